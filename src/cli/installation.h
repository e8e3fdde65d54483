/* The installation on this machine: its daemons, its node, its store. */
#pragma once

#include <stddef.h>

#include <jansson.h>

#include "base/error.h"
#include "base/settings.h"
#include "cli/proc.h"

struct cli;

#define INSTALLATION_PATH_SIZE (SETTINGS_PATH_SIZE + 64)

enum daemon_id {
    DAEMON_NODE,
    DAEMON_API,
    DAEMON_SUPERVISOR,
    DAEMON_COUNT
};

/* "space-node" and so on. */
const char *daemon_name(enum daemon_id id);
/* `<run_dir>/<name>.pid`, `<log_dir>/<name>.log`, `<run_dir>/space-supervisor.lock`. */
void daemon_record_path(const struct settings *s,
                        enum daemon_id id,
                        char out[INSTALLATION_PATH_SIZE]);
void daemon_log_path(const struct settings *s, enum daemon_id id, char out[INSTALLATION_PATH_SIZE]);
void daemon_lock_path(const struct settings *s, char out[INSTALLATION_PATH_SIZE]);

/* Whether systemd runs this installation's daemons: it is PID 1, the settings file is the default
 * one, and the units are there. */
bool installation_uses_systemd(const struct cli *cli);
/* `<libexec>/<name>` */
void installation_program(const struct cli *cli,
                          const char *name,
                          char out[INSTALLATION_PATH_SIZE]);
/* -EADDRINUSE, with a remedy, when what runs in this run_dir was started for another data_dir: to
 * be asked before anything is started or stopped. */
int installation_check_owner(const struct cli *cli, struct error *err) _must_check_;
/* The running daemon, or -ESRCH. */
int installation_find_daemon(const struct cli *cli, enum daemon_id id, struct proc_ref *ret)
    _must_check_;
/* The daemon that was started last, alive or not: when it changes while nobody asked for a restart,
 * the daemon keeps dying. -ESRCH when none was. */
int installation_last_start(const struct cli *cli, enum daemon_id id, struct proc_ref *ret)
    _must_check_;
/* NULL, or why a running daemon should be started anew: its program or the settings file changed
 * after it began. */
const char *
installation_stale_reason(const struct cli *cli, enum daemon_id id, const struct proc_ref *ref);
/* GET /n1/node through the node's socket. */
int installation_ask_node(const struct cli *cli, json_t **ret, struct error *err) _must_check_;
/* A key made by the program that owns the store, without the API: as `POST /v1/keys` answers. */
int installation_create_key(const struct cli *cli,
                            const json_t *body,
                            json_t **ret,
                            struct error *err) _must_check_;
