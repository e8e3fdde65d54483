#include "cli/installation.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>

#include "base/buf.h"
#include "cli/api.h"
#include "cli/child.h"
#include "cli/cli.h"
#include "cli/rest.h"

#define SYSTEMCTL_TIMEOUT_MS 10000
#define NODE_TIMEOUT_MS      5000
#define KEY_TIMEOUT_MS       30000

bool installation_uses_systemd(const struct cli *cli)
{
    static const char *const argv[] = {"systemctl", "cat", "space-node.service", NULL};
    _cleanup_buf_ struct buf out = buf_make(0);
    struct child_options o = {.output = &out, .quiet = true, .timeout_ms = SYSTEMCTL_TIMEOUT_MS};
    struct stat st;

    return strcmp(cli->config_path, SETTINGS_DEFAULT_FILE) == 0 &&
           stat("/run/systemd/system", &st) == 0 && child_run(argv, &o, NULL) == 0;
}

void installation_program(const struct cli *cli, const char *name, char out[INSTALLATION_PATH_SIZE])
{
    (void)snprintf(out, INSTALLATION_PATH_SIZE, "%s/%s", cli->libexec, name);
}

/* A number that systemd knows about a unit. */
static int ask_systemd(enum daemon_id id, const char *property, uint64_t *ret)
{
    char unit[64];
    const char *const argv[] = {"systemctl", "show", property, "--value", unit, NULL};
    _cleanup_buf_ struct buf out = buf_make(0);
    struct child_options o = {.output = &out, .quiet = true, .timeout_ms = SYSTEMCTL_TIMEOUT_MS};
    struct span text;

    (void)snprintf(unit, sizeof(unit), "%s.service", daemon_name(id));
    if (child_run(argv, &o, NULL) != 0) {
        return -ESRCH;
    }
    text = buf_span(&out);
    return span_parse_u64(span_head(text, span_find(text, 0, '\n')), INT32_MAX, ret) < 0 ? -ESRCH
                                                                                         : 0;
}

static int find_by_systemd(enum daemon_id id, struct proc_ref *ret)
{
    uint64_t pid;

    return ask_systemd(id, "--property=MainPID", &pid) < 0 ? -ESRCH : proc_find((pid_t)pid, ret);
}

int installation_last_start(const struct cli *cli, enum daemon_id id, struct proc_ref *ret)
{
    char path[INSTALLATION_PATH_SIZE];
    uint64_t restarts;

    if (installation_uses_systemd(cli)) {
        if (ask_systemd(id, "--property=NRestarts", &restarts) < 0) {
            return -ESRCH;
        }
        *ret = (struct proc_ref){1, restarts}; /* all that is asked of it is to differ */
        return 0;
    }
    daemon_record_path(&cli->settings, id, path);
    return proc_record_read(path, ret) < 0 ? -ESRCH : 0;
}

int installation_find_daemon(const struct cli *cli, enum daemon_id id, struct proc_ref *ret)
{
    char path[INSTALLATION_PATH_SIZE];
    struct proc_ref ref;

    if (id != DAEMON_SUPERVISOR && installation_uses_systemd(cli)) {
        return find_by_systemd(id, ret);
    }
    daemon_record_path(&cli->settings, id, path);
    if (proc_record_read(path, &ref) < 0 || !proc_is_alive(&ref)) {
        return -ESRCH;
    }
    *ret = ref;
    return 0;
}

static bool is_same_directory(const char *a, const char *b)
{
    char real_a[PATH_MAX];
    char real_b[PATH_MAX];

    return strcmp(a, b) == 0 || (realpath(a, real_a) != NULL && realpath(b, real_b) != NULL &&
                                 strcmp(real_a, real_b) == 0);
}

int installation_check_owner(const struct cli *cli, struct error *err)
{
    const struct settings *s = &cli->settings;

    for (int id = 0; id < DAEMON_COUNT && !installation_uses_systemd(cli); id++) {
        char path[INSTALLATION_PATH_SIZE];
        char owner[SETTINGS_PATH_SIZE];
        struct proc_ref ref;

        daemon_record_path(s, (enum daemon_id)id, path);
        if (installation_find_daemon(cli, (enum daemon_id)id, &ref) == 0 &&
            proc_record_owner(path, owner, sizeof(owner)) == 0 &&
            !is_same_directory(owner, s->data_dir)) {
            return error_set(err, EADDRINUSE,
                             "%s (pid %d) runs in %.120s for the data_dir %.120s, not for %.120s: "
                             "set another run_dir in these settings, or stop that one with its own "
                             "(`space down`; if it was these that changed, with the old data_dir)",
                             daemon_name((enum daemon_id)id), (int)ref.pid, s->run_dir, owner,
                             s->data_dir);
        }
    }
    return 0;
}

static bool is_newer(const char *path, int64_t started_ms)
{
    struct stat st;

    return stat(path, &st) == 0 &&
           (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000 > started_ms;
}

const char *
installation_stale_reason(const struct cli *cli, enum daemon_id id, const struct proc_ref *ref)
{
    char program[INSTALLATION_PATH_SIZE];
    int64_t started_ms;
    struct stat st;

    installation_program(cli, daemon_name(id), program);
    if (stat(program, &st) == 0 && !proc_runs_file(ref, program)) {
        return "the installed program is another one";
    }
    if (proc_started_at(ref, &started_ms) < 0) {
        return NULL;
    }
    if (is_newer(cli->config_path, started_ms)) {
        return "the settings file is newer";
    }
    (void)snprintf(program, sizeof(program), "%s/guest/guest.json", cli->settings.data_dir);
    if (id == DAEMON_NODE && is_newer(program, started_ms)) {
        return "the guest's kernel or agent is newer";
    }
    return NULL;
}

int installation_ask_node(const struct cli *cli, json_t **ret, struct error *err)
{
    struct rest_request q = {.method = "GET", .path = "/n1/node", .timeout_ms = NODE_TIMEOUT_MS};
    _cleanup_rest_ struct rest *rest = NULL;
    char path[INSTALLATION_PATH_SIZE];
    json_t *answer = NULL;
    int r;

    (void)snprintf(path, sizeof(path), "%s/node.sock", cli->settings.run_dir);
    r = rest_new_unix(path, &rest, err);
    if (r == 0) {
        r = rest_call(rest, &q, &answer, NULL, err);
    }
    if (r == 0 && !json_is_object(answer)) {
        json_decref(answer);
        return error_set(err, EBADMSG, "the node's answer is not understood");
    }
    if (r == 0) {
        *ret = answer;
    }
    return r;
}

int installation_create_key(const struct cli *cli,
                            const json_t *body,
                            json_t **ret,
                            struct error *err)
{
    const char *expires = api_text(body, "expires_at");
    _cleanup_buf_ struct buf out = buf_make(0);
    char program[INSTALLATION_PATH_SIZE];
    const char *argv[] = {program,
                          "--config",
                          cli->config_path,
                          "--create-key",
                          api_text(body, "name"),
                          "--role",
                          api_text(body, "role"),
                          expires[0] != '\0' ? "--expires-at" : NULL,
                          expires,
                          NULL};
    struct child_options o = {
        .output = &out, .user = cli->settings.service_user, .timeout_ms = KEY_TIMEOUT_MS};
    json_t *answer;
    int status;

    installation_program(cli, daemon_name(DAEMON_API), program);
    status = child_run(argv, &o, err);
    if (status < 0) {
        return status;
    }
    answer = status == 0 ? json_loadb((const char *)out.p, out.n, 0, NULL) : NULL;
    explicit_bzero(out.p, out.n);
    if (api_text(answer, "key")[0] == '\0') {
        json_decref(answer);
        if (status == CHILD_CANNOT_RUN) {
            return error_set(err, ENOEXEC,
                             "%.150s cannot be run by %s: is it there, and may that "
                             "user read its directories?",
                             program, cli->settings.service_user);
        }
        return error_set(err, EPROTO, "%s could not make a key (status %d); see above", program,
                         status);
    }
    *ret = answer;
    return 0;
}
