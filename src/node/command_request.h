/* Bodies of `run` and `commands`: the one place where they are validated. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/id.h"

struct json_fields;

#define COMMAND_RUN_TIMEOUT_MS     60000
#define COMMAND_RUN_TIMEOUT_MAX_MS 3600000
#define COMMAND_TIMEOUT_MAX_MS     31536000000 /* a year */
#define COMMAND_OUTPUT_BYTES       1048576U
#define COMMAND_OUTPUT_BYTES_MAX   16777216U
#define COMMAND_INPUT_BYTES_MAX    4194304U
#define COMMAND_SPOOL_BYTES_MIN    65536U
#define COMMAND_SPOOL_BYTES_MAX    1099511627776U
#define COMMAND_TTY_CELLS_MAX      1000U
#define COMMAND_TERM_MAX           64U
#define COMMAND_SHELL_STATE_MAX    64U

enum command_kind {
    COMMAND_KIND_RUN,     /* collected, limited in time */
    COMMAND_KIND_COMMANDS /* streamed */
};

enum command_encoding {
    COMMAND_ENCODING_AUTO,
    COMMAND_ENCODING_UTF8,
    COMMAND_ENCODING_BASE64
};

struct command_tty {
    bool on;
    uint16_t cols;
    uint16_t rows;
    char term[COMMAND_TERM_MAX + 1];
};

struct command_request {
    json_t *body; /* owned; the pointers below borrow from it */
    char process_id[ID_SIZE];
    char session_id[ID_SIZE];
    json_t *argv;     /* owned: array of 1 or more strings */
    json_t *env;      /* borrowed: object of strings, or NULL */
    const char *cwd;  /* NULL: the user's home */
    const char *user; /* NULL: the template's */
    struct buf input;
    bool stdin_open;
    int64_t timeout_ms; /* 0: none */
    bool leave_on_timeout;
    uint64_t max_output_bytes;
    enum command_encoding encoding;
    uint64_t spool_bytes; /* 0: the node's */
    bool block_when_full;
    struct command_tty tty;  /* its stdin is always open */
    bool start_on_attach;    /* not before the first reader */
    const char *shell_state; /* a name; only when argv came as `shell`. NULL: none */
};

#define _cleanup_command_request_ _cleanup_(command_request_done)

/* Checks `body` (an object; a reference is kept). prefix is "" or "run." for messages; the process
 * and session ids must belong to sandbox_id. On failure ret is left empty and err names the field;
 * command_request_done is fine on both. */
int command_request_parse(json_t *body,
                          enum command_kind kind,
                          const char *prefix,
                          const char *sandbox_id,
                          struct command_request *ret,
                          struct error *err) _must_check_;
void command_request_done(struct command_request *request);

/* Reads "cols" and "rows" of an object. */
void command_read_size(struct json_fields *f,
                       const struct command_tty *initial,
                       struct command_tty *ret);

/* Appends the variables of `env` (object of strings) as blocks "NAME=value" to raw. */
void command_env_format(json_t *env, struct buf *raw);
/* Checks an object of environment variables: at most AGENT_ENV_MAX, strings, usable names. */
int command_env_check(json_t *env, const char *field, struct error *err) _must_check_;
