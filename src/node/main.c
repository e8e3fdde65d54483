/* space-node: the root daemon of a worker. Parses arguments, builds one context, runs the loop. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/resource.h>

#include "base/log.h"
#include "base/ready.h"
#include "base/step.h"
#include "io/loop.h"
#include "node/data.h"
#include "node/node.h"
#include "node/privileges.h"

#define WORKERS 6U

struct options {
    const char *config;
    bool stop_all;
    int ready_fd;
};

static void usage(FILE *out)
{
    (void)fputs(
        "usage: space-node [--config FILE] [--ready-fd N | --stop-all]\n"
        "\n"
        "Runs the sandboxes of this machine (as root).\n"
        "  --config FILE  settings (default " SETTINGS_DEFAULT_FILE ")\n"
        "  --ready-fd N   a pipe that gets one byte when requests are taken\n"
        "  --stop-all     powers off every guest of the installation, ends its VMs and removes "
        "its\n"
        "                 control groups and namespaces; disks of sandboxes are kept. No daemon\n"
        "                 may run.\n"
        "  --version      prints the version\n",
        out);
}

/* 0 to go on, 1 when all is said, -EINVAL. */
static int parse_options(int argc, char **argv, struct options *o)
{
    static const struct option table[] = {
        {"config", required_argument, NULL, 'c'}, {READY_OPTION, required_argument, NULL, 'r'},
        {"stop-all", no_argument, NULL, 's'},     {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0},
    };
    int c;

    *o = (struct options){SETTINGS_DEFAULT_FILE, false, -1};
    while ((c = getopt_long(argc, argv, "c:h", table, NULL)) != -1) {
        if (c == 'c') {
            o->config = optarg;
        } else if (c == 's') {
            o->stop_all = true;
        } else if (c == 'r' && ready_parse(optarg, &o->ready_fd) == 0) {
            continue;
        } else if (c == 'v') {
            (void)puts("space-node " SPACE_VERSION);
            return 1;
        } else {
            usage(c == 'h' ? stdout : stderr);
            return c == 'h' ? 1 : -EINVAL;
        }
    }
    if (optind != argc) {
        usage(stderr);
        return -EINVAL;
    }
    return 0;
}

/* Each VM takes a few descriptors, each client some. */
static void raise_file_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* Before the first thread: capabilities are a thread's. */
static int limit_privileges(struct error *err)
{
    int r = privileges_limit_capabilities(err);

    return r < 0 ? r : privileges_limit_syscalls(err);
}

static int run(struct node *node, int ready_fd, struct error *err)
{
    struct data *data = NULL;
    int r = data_new(node, &data, err);

    if (r == 0) {
        r = node_start(node, err);
    }
    if (r == 0) {
        r = data_serve(data, err);
    }
    if (r == 0) {
        ready_tell(ready_fd);
        r = loop_run(node->loop);
    }
    /* The VMs run on: an upgrade of this program loses no sandbox. */
    if (data != NULL) {
        data_free(data);
    }
    node_stop(node);
    return r;
}

int main(int argc, char **argv)
{
    struct node node = {0};
    struct options options;
    struct error err = {0};
    enum log_level level = LOG_LEVEL_INFO;
    int r = parse_options(argc, argv, &options);

    if (r != 0) {
        return r < 0 ? 2 : 0;
    }
    log_init("space-node", LOG_LEVEL_INFO);
    r = settings_load(&node.settings, options.config, &err);
    if (r == 0) {
        (void)log_level_parse(node.settings.log_level, &level);
        log_set_level(level);
        (void)signal(SIGPIPE, SIG_IGN);
        step_init(node.settings.run_dir, "space-node");
        raise_file_limit();
    }
    if (r == 0 && geteuid() != 0) {
        r = error_set(&err, EPERM, "space-node must run as root");
    }
    if (r == 0) {
        r = limit_privileges(&err);
    }
    if (r == 0) {
        node.loop = loop_new(WORKERS);
        if (node.loop == NULL) {
            r = error_set(&err, ENOMEM, "no memory for the loop");
        } else {
            r = options.stop_all ? node_stop_all(&node, &err) : run(&node, options.ready_fd, &err);
        }
        loop_free(node.loop);
        node_free(&node);
    }
    if (r < 0) {
        log_error("stopped", "error=%s",
                  LOG_STR(err.message[0] != '\0' ? err.message : strerror(-r)));
        return 1;
    }
    if (!options.stop_all) {
        log_info("stopped", "reason=signal");
    }
    return 0;
}
