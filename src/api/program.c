#include "api/program.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pwd.h>
#include <signal.h>

#include <sys/resource.h>
#include <sys/stat.h>

#include "api/api.h"
#include "api/key_file.h"
#include "api/privileges.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/ready.h"
#include "base/step.h"
#include "io/loop.h"

#if defined(__SANITIZE_ADDRESS__)
#define IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define IS_SANITIZED 1
#endif
#endif
#ifndef IS_SANITIZED
#define IS_SANITIZED 0
#endif

/* One for the store's checkpoints, of which compression never takes both. */
#define WORKERS 2

struct arguments {
    const char *config;
    const char *share_dir;
    int ready_fd;
    struct key_order key;
};

enum option_code {
    OPTION_CONFIG = 1,
    OPTION_SHARE,
    OPTION_READY,
    OPTION_CREATE_KEY,
    OPTION_ROLE,
    OPTION_EXPIRES,
    OPTION_OUT,
    OPTION_VERSION,
    OPTION_HELP,
};

static const char usage[] =
    "usage: space-api [--config FILE] [--share DIR] [--ready-fd N]\n"
    "       space-api [--config FILE] --create-key NAME [--role admin|member|read]\n"
    "                 [--expires-at TIME] [--out FILE]\n"
    "       space-api --version | --help\n"
    "\n"
    "Serves the HTTP API of a SPACE installation in the foreground.\n"
    "--ready-fd names a pipe that gets one byte when requests are taken.\n"
    "--create-key makes an API key in the store, also while the daemon runs, and writes it to a\n"
    "new FILE with mode 0600; without --out its record goes to a pipe as JSON.\n";

/* 1: go on; 0: done; -EINVAL: wrong usage. */
static int read_arguments(int argc, char **argv, struct arguments *a)
{
    static const struct option options[] = {
        {"config", required_argument, NULL, OPTION_CONFIG},
        {"share", required_argument, NULL, OPTION_SHARE},
        {READY_OPTION, required_argument, NULL, OPTION_READY},
        {"create-key", required_argument, NULL, OPTION_CREATE_KEY},
        {"role", required_argument, NULL, OPTION_ROLE},
        {"expires-at", required_argument, NULL, OPTION_EXPIRES},
        {"out", required_argument, NULL, OPTION_OUT},
        {"version", no_argument, NULL, OPTION_VERSION},
        {"help", no_argument, NULL, OPTION_HELP},
        {NULL, 0, NULL, 0},
    };
    int code;

    while ((code = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (code) {
        case OPTION_CONFIG:
            a->config = optarg;
            break;
        case OPTION_SHARE:
            a->share_dir = optarg;
            break;
        case OPTION_READY:
            if (ready_parse(optarg, &a->ready_fd) < 0) {
                return -EINVAL;
            }
            break;
        case OPTION_CREATE_KEY:
            a->key.name = optarg;
            break;
        case OPTION_ROLE:
            a->key.role = optarg;
            break;
        case OPTION_EXPIRES:
            a->key.expires_at = optarg;
            break;
        case OPTION_OUT:
            a->key.out = optarg;
            break;
        case OPTION_VERSION:
            (void)printf("space-api %s\n", SPACE_VERSION);
            return 0;
        case OPTION_HELP:
            (void)fputs(usage, stdout);
            return 0;
        default:
            return -EINVAL;
        }
    }
    return optind == argc ? 1 : -EINVAL;
}

/* As root: the store's directory exists and is the service user's. */
static int prepare_store(const struct settings *s, struct error *err)
{
    char path[SETTINGS_PATH_SIZE + 16];
    struct passwd entry;
    struct passwd *found = NULL;
    char text[4096];
    int r;

    if (geteuid() != 0) {
        return 0;
    }
    (void)snprintf(path, sizeof(path), "%s/store", s->data_dir);
    r = dir_make_all(AT_FDCWD, path, 0755);
    (void)getpwnam_r(s->service_user, &entry, text, sizeof(text), &found);
    if (r == 0 && found != NULL &&
        (chown(path, entry.pw_uid, entry.pw_gid) < 0 || chmod(path, 0700) < 0)) {
        r = -errno;
    }
    return r < 0 ? error_set(err, -r, "cannot make %.150s: %s", path, strerror(-r)) : 0;
}

/* Every client and every call to the node is a descriptor. */
static void raise_descriptor_limit(const struct settings *s)
{
    rlim_t wanted = 2 * s->api_max_connections + 1024;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
        limit.rlim_cur = wanted;
        if (limit.rlim_max < wanted && geteuid() == 0) {
            limit.rlim_max = wanted;
        } else if (limit.rlim_max < wanted) {
            limit.rlim_cur = limit.rlim_max;
        }
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void on_terminate(void *arg)
{
    api_stop(arg);
}

static int limit_itself(const struct settings *s, const char *share_dir, struct error *err)
{
    char store[SETTINGS_PATH_SIZE + 16];
    int r;

    if (IS_SANITIZED) {
        return 0; /* the sanitizer's runtime needs more than the program */
    }
    (void)snprintf(store, sizeof(store), "%s/store", s->data_dir);
    r = privileges_limit_files(store, share_dir, err);
    if (r >= 0) {
        log_info("privileges", "landlock=%s", r == 1 ? "yes" : "no");
        r = privileges_limit_syscalls(err);
    }
    return r < 0 ? r : 0;
}

/* Takes listen_fd. */
static int serve(const struct settings *s,
                 const struct arguments *a,
                 int listen_fd,
                 struct loop *loop,
                 struct error *err)
{
    _cleanup_close_ int fd = listen_fd;
    struct api_options options = {.share_dir = a->share_dir};
    struct api *api = NULL;
    int r = prepare_store(s, err);

    raise_descriptor_limit(s);
    if (r == 0) {
        r = api_new(s, loop, &api, err);
    }
    if (r == 0) {
        r = api_listen(api, TAKE_FD(fd), err);
    }
    if (r == 0) {
        r = privileges_drop(s->service_user, err);
    }
    if (r == 0) {
        r = api_start(api, &options, err);
    }
    if (r == 0) {
        r = limit_itself(s, a->share_dir, err);
    }
    if (r == 0) {
        loop_on_terminate(loop, on_terminate, api);
        log_info("serving", "version=%s listen=%s tls=%s", SPACE_VERSION, s->api_listen,
                 s->api_tls_certificate[0] == '\0' ? "no" : "yes");
        ready_tell(a->ready_fd);
        r = loop_run(loop);
    }
    api_free(api);
    return r;
}

static int run(const struct arguments *a, struct error *err)
{
    struct settings settings;
    enum log_level level = LOG_LEVEL_INFO;
    _cleanup_close_ int fd = -1;
    struct loop *loop;
    int r = settings_load(&settings, a->config, err);

    if (r < 0) {
        return r;
    }
    (void)log_level_parse(settings.log_level, &level);
    log_init("space-api", a->key.name != NULL ? LOG_LEVEL_WARNING : level);
    if (a->key.name != NULL) {
        return key_file_make(&settings, &a->key, err);
    }
    step_init(settings.run_dir, "space-api");
    /* Before there are threads: a capability is a thread's, and a port below 1024 takes one. */
    fd = api_bind(&settings, err);
    r = fd < 0 ? fd : privileges_drop_capabilities(err);
    if (r < 0) {
        return r;
    }
    loop = loop_new(WORKERS);
    if (loop == NULL) {
        return error_set(err, ENOMEM, "no memory for the loop");
    }
    r = serve(&settings, a, TAKE_FD(fd), loop, err);
    loop_free(loop);
    return r;
}

int program_main(int argc, char **argv)
{
    struct arguments arguments = {
        .config = SETTINGS_DEFAULT_FILE, .share_dir = SPACE_SHAREDIR, .ready_fd = -1};
    struct error err = {0};
    int r = read_arguments(argc, argv, &arguments);

    if (r <= 0) {
        if (r < 0) {
            (void)fputs(usage, stderr);
        }
        return r < 0 ? 2 : 0;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    if (run(&arguments, &err) < 0) {
        (void)fprintf(stderr, "space-api: %s\n", err.message);
        return 1;
    }
    return 0;
}
