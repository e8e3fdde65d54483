/* `space down`: stops the daemons, the sandboxes, and releases the volume. What is stopped already
 * is no error. */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include <sys/stat.h>

#include "base/buf.h"
#include "cli/child.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/installation.h"

#define SUPERVISOR_WAIT_MS 45000 /* it waits for both daemons itself */
#define DAEMON_WAIT_MS     15000
#define KILLED_WAIT_MS     5000
#define SYSTEMCTL_WAIT_MS  120000
#define SAID_LIMIT         1048576U

/* SIGTERM, and SIGKILL when that is not enough. Unless it ran, 0 without a word. */
static int stop_process(const struct cli *cli, enum daemon_id id, int wait_ms, struct error *err)
{
    char path[INSTALLATION_PATH_SIZE];
    struct proc_ref ref;

    if (installation_find_daemon(cli, id, &ref) == 0) {
        cli_progress(cli, "stopping %s (pid %d) …", daemon_name(id), (int)ref.pid);
        (void)proc_signal(&ref, SIGTERM);
        if (proc_wait_end(&ref, wait_ms) < 0) {
            cli_note("space: %s (pid %d) does not stop and is killed", daemon_name(id),
                     (int)ref.pid);
            (void)proc_signal(&ref, SIGKILL);
        }
        if (proc_wait_end(&ref, KILLED_WAIT_MS) < 0) {
            return error_set(err, ETIMEDOUT, "%s (pid %d) cannot be stopped", daemon_name(id),
                             (int)ref.pid);
        }
        (void)printf("%-17s stopped\n", daemon_name(id));
    }
    daemon_record_path(&cli->settings, id, path);
    (void)unlink(path);
    return 0;
}

static int stop_by_systemd(struct error *err)
{
    const char *const argv[] = {"systemctl", "stop", daemon_name(DAEMON_API),
                                daemon_name(DAEMON_NODE), NULL};
    struct child_options o = {.timeout_ms = SYSTEMCTL_WAIT_MS};
    int status = child_run(argv, &o, err);

    return status > 0 ? error_set(err, EPROTO, "systemctl stop failed") : status;
}

static int stop_daemons(const struct cli *cli, struct error *err)
{
    if (installation_uses_systemd(cli)) {
        return stop_by_systemd(err);
    }
    /* The supervisor stops both; what an earlier, killed one left behind is stopped here. */
    if (stop_process(cli, DAEMON_SUPERVISOR, SUPERVISOR_WAIT_MS, err) < 0 ||
        stop_process(cli, DAEMON_API, DAEMON_WAIT_MS, err) < 0 ||
        stop_process(cli, DAEMON_NODE, DAEMON_WAIT_MS, err) < 0) {
        return -ETIMEDOUT;
    }
    return 0;
}

/* What the program says is shown only when it fails. */
static int
run_program(const struct cli *cli, const char *name, const char *option, struct error *err)
{
    char program[INSTALLATION_PATH_SIZE];
    const char *const argv[] = {program, "--config", cli->config_path, option, NULL};
    _cleanup_buf_ struct buf said = buf_make(SAID_LIMIT);
    struct child_options o = {.output = &said, .merged = true};
    int status;

    installation_program(cli, name, program);
    status = child_run(argv, &o, err);
    if (status > 0) {
        cli_note_lines("  | ", buf_span(&said));
        return error_set(err, EPROTO, "%s %s failed (status %d)", program, option, status);
    }
    return status;
}

/* With the daemons gone, space-node ends what it knows from its journals, and reaps the rest. */
static int stop_sandboxes(const struct cli *cli, struct error *err)
{
    struct stat st;

    if (stat(cli->settings.data_dir, &st) < 0) {
        return 0;
    }
    cli_progress(cli, "stopping sandboxes …");
    if (run_program(cli, daemon_name(DAEMON_NODE), "--stop-all", err) < 0 ||
        run_program(cli, "setup/volume", "--release", err) < 0) {
        return -EPROTO;
    }
    (void)printf("%-17s stopped, data volume released\n", "sandboxes");
    return 0;
}

int cmd_down(struct cli *cli, const struct args *args)
{
    struct error err = {0};

    if (cli_need_root("down", &err) < 0 || cli_need_settings(cli, &err) < 0 ||
        installation_check_owner(cli, &err) < 0 || stop_daemons(cli, &err) < 0 ||
        (!args_has(args, "keep-sandboxes") && stop_sandboxes(cli, &err) < 0)) {
        return cli_fail(cli, &err);
    }
    return EXIT_STATUS_DONE;
}
