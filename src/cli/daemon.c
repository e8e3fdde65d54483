/* Names and paths of the daemons, shared by `space` and space-supervisor. */
#include <stdio.h>

#include "cli/installation.h"

static const char *const daemon_names[DAEMON_COUNT] = {
    [DAEMON_NODE] = "space-node",
    [DAEMON_API] = "space-api",
    [DAEMON_SUPERVISOR] = "space-supervisor",
};

const char *daemon_name(enum daemon_id id)
{
    return daemon_names[id];
}

void daemon_record_path(const struct settings *s,
                        enum daemon_id id,
                        char out[INSTALLATION_PATH_SIZE])
{
    (void)snprintf(out, INSTALLATION_PATH_SIZE, "%s/%s.pid", s->run_dir, daemon_names[id]);
}

void daemon_log_path(const struct settings *s, enum daemon_id id, char out[INSTALLATION_PATH_SIZE])
{
    (void)snprintf(out, INSTALLATION_PATH_SIZE, "%s/%s.log", s->log_dir, daemon_names[id]);
}

void daemon_lock_path(const struct settings *s, char out[INSTALLATION_PATH_SIZE])
{
    (void)snprintf(out, INSTALLATION_PATH_SIZE, "%s/space-supervisor.lock", s->run_dir);
}
