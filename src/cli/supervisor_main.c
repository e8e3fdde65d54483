/* The program space-supervisor: goes into the background and supervises (supervise.h). */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"
#include "cli/args.h"
#include "cli/installation.h"
#include "cli/logfile.h"
#include "cli/supervise.h"

#define LOG_LIMIT_BYTES 16777216U

static const struct option_spec supervisor_options[] = {
    {"config", 0, "FILE", "settings file (default " SETTINGS_DEFAULT_FILE ")"},
    {"libexec", 0, "DIR", "where space-node and space-api are"},
    {"log-limit", 0, "BYTES", "rotate a log file beyond this size (default 16777216)"},
    {"foreground", 0, NULL, "stay in the foreground and log to standard error"},
    {"help", 'h', NULL, "print this"},
    {"version", 0, NULL, "print the version"},
    {NULL, 0, NULL, NULL},
};

static const struct verb no_verbs[] = {
    {NULL, VERB_GROUP_COUNT, NULL, NULL, NULL, NULL, NULL, 0, 0, VERB_COMMAND_NONE,
     VERB_WORDS_OTHER, NULL},
};

static int fail(const struct error *err, int status)
{
    (void)fprintf(stderr, "space-supervisor: %s\n", err->message);
    return status;
}

static int print_about(const struct args *args)
{
    if (args_has(args, "version")) {
        (void)printf("space-supervisor " SPACE_VERSION "\n");
        return 0;
    }
    (void)printf(
        "usage: space-supervisor [OPTIONS]\n\n"
        "Keeps space-node and space-api running where systemd does not. `space up` starts\n"
        "it and `space down` stops it.\n\n");
    for (const struct option_spec *s = supervisor_options; s->name != NULL; s++) {
        (void)printf("  --%s %-*s %s\n", s->name, 20 - (int)strlen(s->name),
                     s->value != NULL ? s->value : "", s->help);
    }
    return 0;
}

/* Parent: waits for the byte that says "all are started" and leaves with a fitting status. */
static int await_ready(int fd)
{
    char byte;
    ssize_t n;

    do {
        n = read(fd, &byte, 1);
    } while (n < 0 && errno == EINTR);
    return n == 1 ? 0 : 1;
}

/* Twice forked, in a session of its own, so that nothing ties it to the caller's terminal. Returns
 * in the background process; the caller leaves from here. */
static int go_to_background(const struct settings *s, int *ret_ready_fd, struct error *err)
{
    _cleanup_close_ int log_fd = -1;
    _cleanup_close_ int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    char path[INSTALLATION_PATH_SIZE];
    int fds[2];
    pid_t pid;

    daemon_log_path(s, DAEMON_SUPERVISOR, path);
    log_fd = logfile_open(path, err);
    if (log_fd < 0) {
        return log_fd;
    }
    if (null_fd < 0 || pipe2(fds, O_CLOEXEC) < 0 || (pid = fork()) < 0) {
        return error_set(err, errno, "cannot go into the background: %s", strerror(errno));
    }
    if (pid > 0) {
        (void)close(fds[1]);
        _exit(await_ready(fds[0]));
    }
    (void)close(fds[0]);
    if (setsid() < 0 || (pid = fork()) < 0) {
        return error_set(err, errno, "cannot go into the background: %s", strerror(errno));
    }
    if (pid > 0) {
        _exit(0);
    }
    if (chdir("/") < 0 || dup2(null_fd, STDIN_FILENO) < 0 || dup2(log_fd, STDOUT_FILENO) < 0 ||
        dup2(log_fd, STDERR_FILENO) < 0) {
        return error_set(err, errno, "cannot redirect output: %s", strerror(errno));
    }
    *ret_ready_fd = fds[1];
    return 0;
}

static int run(const struct args *args, struct error *err)
{
    _cleanup_free_ struct settings *settings = calloc(1, sizeof(*settings));
    const char *config = args_get(args, "config");
    const char *libexec = args_get(args, "libexec");
    const char *limit = args_get(args, "log-limit");
    struct supervise_options o = {.config_path = config != NULL ? config : SETTINGS_DEFAULT_FILE,
                                  .libexec = libexec != NULL ? libexec : SPACE_LIBEXECDIR,
                                  .log_limit_bytes = LOG_LIMIT_BYTES,
                                  .ready_fd = -1};
    enum log_level level = LOG_LEVEL_INFO;

    if (settings == NULL) {
        return error_set(err, ENOMEM, "out of memory");
    }
    if (settings_load(settings, o.config_path, err) < 0) {
        return -EINVAL;
    }
    if (limit != NULL && span_parse_u64(span_of_str(limit), UINT64_MAX, &o.log_limit_bytes) < 0) {
        return error_set(err, EINVAL, "--log-limit must be a number of bytes");
    }
    if (!args_has(args, "foreground") && go_to_background(settings, &o.ready_fd, err) < 0) {
        return -EIO;
    }
    (void)log_level_parse(settings->log_level, &level);
    log_init("space-supervisor", level);
    return supervise_run(settings, &o, err);
}

int main(int argc, char **argv)
{
    _cleanup_args_ struct args args = {0};
    struct error err = {0};

    if (args_parse(&args, argc, argv, no_verbs, supervisor_options, &err) < 0) {
        return fail(&err, 2);
    }
    /* What the caller left open (locks, pipes) must not live as long as we do. */
    (void)close_range(STDERR_FILENO + 1, ~0U, 0);
    if (args_has(&args, "help") || args_has(&args, "version")) {
        return print_about(&args);
    }
    return run(&args, &err) < 0 ? fail(&err, 1) : 0;
}
