/* `space up`: from whatever state to a ready installation, touching only what is missing. */
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <string.h>

#include <sys/stat.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "cli/api.h"
#include "cli/child.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/distant.h"
#include "cli/guest_check.h"
#include "cli/installation.h"
#include "cli/nodes.h"
#include "cli/readiness.h"
#include "cli/rest.h"
#include "cli/text.h"

#define STOP_WAIT_MS      30000
#define DEFAULT_WAIT_MS   180000
#define PASSWD_TEXT_SIZE  16384U
#define SYSTEMCTL_WAIT_MS 60000
#define KEY_TIMEOUT_MS    30000

static void say(const char *what, const char *text)
{
    (void)printf("%-17s %s\n", what, text);
    (void)fflush(stdout);
}

/* `option` may be NULL. */
static int
run_setup(const struct cli *cli, const char *script, const char *option, struct error *err)
{
    char program[INSTALLATION_PATH_SIZE];
    char name[64];
    char config[SETTINGS_PATH_SIZE + 16];
    const char *argv[] = {program, option, NULL};
    /* The scripts read the settings from here. */
    const char *env[] = {config,
                         "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                         "LANG=C.UTF-8", NULL};
    struct child_options o = {.env = env};
    int status;

    (void)snprintf(name, sizeof(name), "setup/%s", script);
    (void)snprintf(config, sizeof(config), "SPACE_CONFIG=%s", cli->config_path);
    installation_program(cli, name, program);
    status = child_run(argv, &o, err);
    if (status == 0 || status < 0) {
        return status;
    }
    return error_set(err, EPROTO,
                     status == 127 ? "%s is missing: run make install" : "%s failed; see above",
                     program);
}

static int find_user(const char *name, uid_t *ret_uid, gid_t *ret_gid)
{
    _cleanup_free_ char *text = malloc(PASSWD_TEXT_SIZE);
    struct passwd entry;
    struct passwd *found = NULL;

    if (text == NULL || getpwnam_r(name, &entry, text, PASSWD_TEXT_SIZE, &found) != 0 ||
        found == NULL) {
        return -ENOENT;
    }
    *ret_uid = found->pw_uid;
    *ret_gid = found->pw_gid;
    return 0;
}

static int make_directory(const char *path, mode_t mode, struct error *err)
{
    int r = dir_make_all(AT_FDCWD, path, 0755);

    if (r == 0 && chmod(path, mode) < 0) {
        r = -errno;
    }
    return r < 0 ? error_set(err, -r, "cannot make %.180s: %s", path, strerror(-r)) : 0;
}

static int prepare_directories(const struct cli *cli, struct error *err)
{
    const struct settings *s = &cli->settings;
    char store[INSTALLATION_PATH_SIZE];
    uid_t uid = 0;
    gid_t gid = 0;

    if (find_user(s->service_user, &uid, &gid) < 0 &&
        (run_setup(cli, "user", NULL, err) < 0 || find_user(s->service_user, &uid, &gid) < 0)) {
        return error_set(err, ENOENT, "there is no user %s: run %.150s/setup/user", s->service_user,
                         cli->libexec);
    }
    if (make_directory(s->run_dir, 0755, err) < 0 || make_directory(s->log_dir, 0750, err) < 0 ||
        run_setup(cli, "volume", NULL, err) < 0) {
        return -EIO;
    }
    (void)snprintf(store, sizeof(store), "%s/store", s->data_dir);
    if (make_directory(store, 0700, err) < 0) {
        return -EIO;
    }
    return chown(store, uid, gid) < 0 ? error_set(err, errno, "cannot give %.150s to %s: %s", store,
                                                  s->service_user, strerror(errno))
                                      : 0;
}

/* After an upgrade guests start with the agent that came with it. Another kernel would keep what is
 * suspended from waking: that is for an operator to ask for. The agent that is there works too. */
static void renew_guest(const struct cli *cli)
{
    struct error err = {0};

    if (guest_check(cli) == GUEST_CHECK_STALE &&
        run_setup(cli, "guest", "--keep-kernel", &err) < 0) {
        cli_note("space: warning: sandboxes keep the agent of the earlier version: %s",
                 err.message);
    }
}

/* The first key, made before the API runs. The program has the file before the key, and takes the
 * key back where the file cannot be put in place. */
static int make_admin_key(const struct cli *cli, struct error *err)
{
    const char *path = cli->settings.admin_key_file;
    char program[INSTALLATION_PATH_SIZE];
    const char *const argv[] = {program,  "--config", cli->config_path, "--create-key", "admin",
                                "--role", "admin",    "--out",          path,           NULL};
    struct child_options o = {.timeout_ms = KEY_TIMEOUT_MS};
    struct stat st;
    int status;

    if (stat(path, &st) == 0) {
        return 0;
    }
    installation_program(cli, daemon_name(DAEMON_API), program);
    status = child_run(argv, &o, err);
    if (status != 0) {
        return status < 0
                   ? status
                   : error_set(err, EPROTO, "%.150s could not make the key %.150s; see above",
                               program, path);
    }
    say("admin key", path);
    return 0;
}

/* Stops a daemon whose program or settings have changed; what supervises it starts it again. */
static int stop_stale(const struct cli *cli, enum daemon_id id, int number, struct error *err)
{
    struct proc_ref ref;
    const char *why;
    char text[120];

    if (installation_find_daemon(cli, id, &ref) < 0 ||
        (why = installation_stale_reason(cli, id, &ref)) == NULL) {
        return 0;
    }
    (void)snprintf(text, sizeof(text), "restarting: %s", why);
    say(daemon_name(id), text);
    (void)proc_signal(&ref, number);
    if (proc_wait_end(&ref, STOP_WAIT_MS) < 0) {
        return error_set(err, ETIMEDOUT, "%s (pid %d) does not stop", daemon_name(id),
                         (int)ref.pid);
    }
    return 0;
}

static int start_supervised(const struct cli *cli, struct error *err)
{
    char program[INSTALLATION_PATH_SIZE];
    const char *const argv[] = {program,     "--config",   cli->config_path,
                                "--libexec", cli->libexec, NULL};
    struct child_options o = {0};
    struct proc_ref ref;
    int status;

    /* An older supervisor leaves its daemons to the new one, before stale ones are stopped. */
    if (stop_stale(cli, DAEMON_SUPERVISOR, SIGUSR1, err) < 0) {
        return -ETIMEDOUT;
    }
    installation_program(cli, daemon_name(DAEMON_SUPERVISOR), program);
    if (installation_find_daemon(cli, DAEMON_SUPERVISOR, &ref) < 0) {
        status = child_run(argv, &o, err);
        if (status < 0) {
            return status;
        }
        if (status != 0) {
            return error_set(err, EPROTO, "%s did not start (status %d)", program, status);
        }
    }
    if (stop_stale(cli, DAEMON_NODE, SIGTERM, err) < 0 ||
        stop_stale(cli, DAEMON_API, SIGTERM, err) < 0) {
        return -ETIMEDOUT;
    }
    return 0;
}

static int systemctl(const char *verb, const char *unit, struct error *err)
{
    const char *const argv[] = {"systemctl", verb, unit, NULL};
    struct child_options o = {.timeout_ms = SYSTEMCTL_WAIT_MS};
    int status = child_run(argv, &o, err);

    return status > 0 ? error_set(err, EPROTO, "systemctl %s %s failed", verb, unit) : status;
}

static int start_by_systemd(const struct cli *cli, struct error *err)
{
    static const enum daemon_id ids[] = {DAEMON_NODE, DAEMON_API};

    for (size_t i = 0; i < 2; i++) {
        struct proc_ref ref;
        bool stale = installation_find_daemon(cli, ids[i], &ref) == 0 &&
                     installation_stale_reason(cli, ids[i], &ref) != NULL;

        if (systemctl(stale ? "restart" : "start", daemon_name(ids[i]), err) < 0) {
            return -EPROTO;
        }
    }
    return 0;
}

static void say_daemon(const struct cli *cli, enum daemon_id id, pid_t before)
{
    struct proc_ref ref;
    char text[64];

    if (installation_find_daemon(cli, id, &ref) == 0) {
        (void)snprintf(text, sizeof(text), "%s, pid %d", ref.pid == before ? "running" : "started",
                       (int)ref.pid);
        say(daemon_name(id), text);
    }
}

static pid_t daemon_pid(const struct cli *cli, enum daemon_id id)
{
    struct proc_ref ref;

    return installation_find_daemon(cli, id, &ref) == 0 ? ref.pid : 0;
}

/* A key file that the store does not know (a restored or emptied store) is worth a word now. */
static void check_admin_key(struct cli *cli)
{
    struct rest_request q = {.method = "GET", .path = "/v1/templates?limit=1", .timeout_ms = 5000};
    struct error err = {0};

    if (cli_connect(cli, &err) == 0 && cli->config.key[0] != '\0' &&
        rest_call(cli->rest, &q, NULL, NULL, &err) < 0 && err.code == ERROR_UNAUTHORIZED) {
        cli_note("space: warning: the key in %s is not known to this installation; move the file "
                 "away and run `space up` to get a new one",
                 cli->settings.admin_key_file);
    }
}

static void check_listen(const struct cli *cli)
{
    if (config_is_unprotected(&cli->settings)) {
        cli_note("space: warning: api.listen = %s without TLS: keys and output can be read on the "
                 "way; set api.tls_certificate and api.tls_key, or listen on 127.0.0.1",
                 cli->settings.api_listen);
    }
}

/* Said now rather than by the first suspend. */
static void check_store(const struct cli *cli)
{
    const char *path = cli->settings.objects_store;
    struct stat st;
    int r = path[0] == '/' ? distant_stat(path, &st) : 0;

    if (r == -ETIMEDOUT) {
        cli_note("space: warning: objects.store = %s does not answer", path);
    } else if (r < 0) {
        cli_note("space: warning: objects.store = %s: %s; `space doctor` says how to make it", path,
                 strerror(-r));
    }
}

/* Easily forgotten after a maintenance. */
static void check_drain(const struct cli *cli)
{
    _cleanup_json_ json_t *nodes = NULL;
    const json_t *node;
    size_t i;

    if (nodes_ask_here(cli, &nodes, NULL) < 0) {
        return;
    }
    json_array_foreach(nodes, i, node) {
        _cleanup_buf_ struct buf text = buf_make(0);

        if (nodes_put_drain(&text, node)) {
            cli_note("space: %s; `space node undrain` ends that", buf_str(&text));
        }
    }
}

static int bring_up(struct cli *cli, int64_t wait_ms, struct error *err)
{
    int64_t began_ms = clock_monotonic_ms();
    pid_t node = daemon_pid(cli, DAEMON_NODE);
    pid_t api = daemon_pid(cli, DAEMON_API);
    bool systemd = installation_uses_systemd(cli);
    char url[CONFIG_URL_SIZE];
    char text[CONFIG_URL_SIZE + SETTINGS_PATH_SIZE];

    if (prepare_directories(cli, err) < 0) {
        return -EIO;
    }
    renew_guest(cli);
    if (config_installation_url(&cli->settings, url, err) < 0 ||
        (api == 0 && readiness_check_port(&cli->settings, err) < 0) ||
        make_admin_key(cli, err) < 0) {
        return -EIO;
    }
    if ((systemd ? start_by_systemd(cli, err) : start_supervised(cli, err)) < 0 ||
        readiness_wait(cli, url, wait_ms, err) < 0) {
        return -EIO;
    }
    say_daemon(cli, DAEMON_NODE, node);
    say_daemon(cli, DAEMON_API, api);
    (void)snprintf(text, sizeof(text), "%s after %.1f s", url,
                   (double)(clock_monotonic_ms() - began_ms) / 1000.0);
    say("ready", text);
    if (strstr(url, cli->settings.api_listen) == NULL) {
        say("listens on", cli->settings.api_listen);
    }
    return 0;
}

int cmd_up(struct cli *cli, const struct args *args)
{
    const char *timeout = args_get(args, "timeout");
    struct error err = {0};
    double seconds = DEFAULT_WAIT_MS / 1000.0;

    if (timeout != NULL && text_parse_seconds(timeout, "timeout", &seconds, &err) < 0) {
        return cli_fail_usage(cli, &err);
    }
    if (cli_need_root("up", &err) < 0 || cli_need_settings(cli, &err) < 0 ||
        installation_check_owner(cli, &err) < 0 ||
        bring_up(cli, (int64_t)(seconds * 1000), &err) < 0) {
        return cli_fail(cli, &err);
    }
    check_admin_key(cli);
    check_listen(cli);
    check_store(cli);
    check_drain(cli);
    return EXIT_STATUS_DONE;
}
