/* Shell states: what `shell_state` keeps of one command for the next of its name and user, the
 * directory and the exported variables.
 *
 * The state lives in the guest, as a shell script in a directory that only its user can write
 * (`/var/tmp/.space-shell-UID/s-NAME`; /tmp or the home where that cannot be). The command is
 * evaluated by a wrapper that reads the state first and replaces it when the shell ends by itself;
 * a shell that is killed, or replaced by `exec`, leaves the one before. A variable is kept when it
 * differs from what the process was given, or was given by the client for this command, so that
 * later changes of the sandbox's own variables come through; one that is gone stays gone. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/cleanup.h"

struct buf;

struct shell_state_command {
    const char *name;    /* checked: letters, digits, '_', '.', '-' */
    const char *command; /* what `shell` said */
    json_t *env;         /* the client's own variables, which win over the state; or NULL */
    bool has_cwd;        /* the client's own directory wins over the state's */
};

/* Appends the arguments of the START as blocks and returns how many they are. The buffer's sticky
 * error tells of a failure. */
uint32_t shell_state_format(const struct shell_state_command *command, struct buf *raw);
/* Bytes of these arguments beyond those of the command itself. */
size_t shell_state_overhead(const char *name, json_t *env);
