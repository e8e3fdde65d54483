#include "cli/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

#include <sys/file.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "cli/installation.h"
#include "cli/logfile.h"
#include "cli/supervise_start.h"

#define FIRST_PAUSE_MS  100
#define LAST_PAUSE_MS   10000
#define SERVED_PAUSE_MS 1000  /* not longer for one that has served: somebody waits for it */
#define STEADY_AFTER_MS 10000 /* a life this long forgives earlier deaths */
#define STOP_LIMIT_MS   15000
#define ROTATE_EVERY_MS 5000
#define SUPERVISED      2 /* DAEMON_NODE, DAEMON_API: started in this order, stopped in reverse */

struct daemon {
    enum daemon_id id;
    struct proc_ref ref;
    int pidfd;     /* -1: not running */
    bool is_child; /* not adopted: ours to wait for */
    int ready_fd;  /* says that it serves; -1: it has, or was adopted */
    bool served;
    int64_t began_ms;
    int64_t start_at_ms; /* when it is to be started again */
    int64_t pause_ms;
};

struct supervisor {
    const struct settings *settings;
    const struct supervise_options *options;
    struct daemon daemons[SUPERVISED];
    int signal_fd;
    int64_t rotate_at_ms;
};

static int64_t longer_pause(int64_t pause_ms, int64_t limit_ms)
{
    if (pause_ms == 0) {
        return FIRST_PAUSE_MS;
    }
    return pause_ms * 2 < limit_ms ? pause_ms * 2 : limit_ms;
}

static void take_readiness(struct daemon *d)
{
    char byte;
    ssize_t n = d->ready_fd >= 0 ? read(d->ready_fd, &byte, 1) : -1;

    d->served = d->served || n == 1;
    if (n >= 0) {
        (void)close(TAKE_FD(d->ready_fd));
    }
}

static void start_daemon(struct supervisor *s, struct daemon *d)
{
    const struct supervise_start_options o = {
        .settings = s->settings,
        .config_path = s->options->config_path,
        .libexec = s->options->libexec,
        .id = d->id,
    };
    struct error err = {0};

    d->began_ms = clock_monotonic_ms();
    d->served = false;
    d->pidfd = supervise_start(&o, &d->ref, &d->ready_fd, &err);
    d->is_child = d->pidfd >= 0;
    if (d->pidfd < 0) {
        log_error("daemon not started", "daemon=%s error=%s", daemon_name(d->id),
                  LOG_STR(err.message));
        d->pause_ms = longer_pause(d->pause_ms, LAST_PAUSE_MS);
        d->start_at_ms = d->began_ms + d->pause_ms;
        return;
    }
    log_info("daemon started", "daemon=%s pid=%d", daemon_name(d->id), (int)d->ref.pid);
}

/* Takes over a daemon that an earlier supervisor started. */
static bool adopt_daemon(struct supervisor *s, struct daemon *d)
{
    char path[INSTALLATION_PATH_SIZE];
    char name[64];
    struct proc_ref ref;
    int fd;

    daemon_record_path(s->settings, d->id, path);
    if (proc_record_read(path, &ref) < 0) {
        return false;
    }
    fd = proc_open(&ref);
    if (fd < 0) {
        return false;
    }
    if (proc_exe_name(&ref, name, sizeof(name)) < 0 || strcmp(name, daemon_name(d->id)) != 0) {
        (void)close(fd);
        return false;
    }
    d->ref = ref;
    d->pidfd = fd;
    d->is_child = false;
    d->served = true;
    d->began_ms = clock_monotonic_ms();
    log_info("daemon adopted", "daemon=%s pid=%d", daemon_name(d->id), (int)ref.pid);
    return true;
}

/* Reaps a child of ours and says how it ended; an adopted one left no status to us. */
static void log_end(const struct daemon *d)
{
    siginfo_t info = {0};

    if (!d->is_child || waitid(P_PIDFD, (id_t)d->pidfd, &info, WEXITED | WNOHANG) < 0) {
        log_warning("daemon ended", "daemon=%s pid=%d", daemon_name(d->id), (int)d->ref.pid);
        return;
    }
    log_warning("daemon ended", "daemon=%s pid=%d %s=%d", daemon_name(d->id), (int)d->ref.pid,
                info.si_code == CLD_EXITED ? "status" : "signal", info.si_status);
}

static void on_daemon_end(struct daemon *d)
{
    int64_t now_ms = clock_monotonic_ms();

    log_end(d);
    (void)close(TAKE_FD(d->pidfd));
    take_readiness(d);
    if (d->ready_fd >= 0) {
        (void)close(TAKE_FD(d->ready_fd));
    }
    d->pause_ms = now_ms - d->began_ms >= STEADY_AFTER_MS
                      ? FIRST_PAUSE_MS
                      : longer_pause(d->pause_ms, d->served ? SERVED_PAUSE_MS : LAST_PAUSE_MS);
    d->start_at_ms = now_ms + d->pause_ms;
    log_info("daemon waits", "daemon=%s pause_ms=%lld served=%s", daemon_name(d->id),
             (long long)d->pause_ms, d->served ? "yes" : "no");
}

/* Orphans that fell to us, VMMs among them. Our own daemons are waited for through their pidfds. */
static void reap_orphans(const struct supervisor *s)
{
    for (;;) {
        siginfo_t info = {0};

        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0) {
            return;
        }
        for (int i = 0; i < SUPERVISED; i++) {
            if (s->daemons[i].pidfd >= 0 && s->daemons[i].ref.pid == info.si_pid) {
                return; /* its pidfd is readable too: on_daemon_end comes first */
            }
        }
        (void)waitid(P_PID, (id_t)info.si_pid, &info, WEXITED | WNOHANG);
    }
}

static void rotate_logs(struct supervisor *s, int64_t now_ms)
{
    if (now_ms < s->rotate_at_ms) {
        return;
    }
    s->rotate_at_ms = now_ms + ROTATE_EVERY_MS;
    for (int id = 0; id < DAEMON_COUNT; id++) {
        char path[INSTALLATION_PATH_SIZE];

        daemon_log_path(s->settings, (enum daemon_id)id, path);
        (void)logfile_rotate(path, s->options->log_limit_bytes);
    }
}

/* SIGKILL follows when the daemon does not end in time. */
static void stop_daemon(struct daemon *d)
{
    struct pollfd p = {.fd = d->pidfd, .events = POLLIN};
    int64_t end_ms = clock_monotonic_ms() + STOP_LIMIT_MS;
    int64_t left;

    if (d->pidfd < 0) {
        return;
    }
    (void)pidfd_send_signal(d->pidfd, SIGTERM, NULL, 0);
    while ((left = end_ms - clock_monotonic_ms()) > 0 && poll(&p, 1, (int)left) <= 0) {
    }
    if (left <= 0) {
        log_warning("daemon killed", "daemon=%s pid=%d", daemon_name(d->id), (int)d->ref.pid);
        (void)pidfd_send_signal(d->pidfd, SIGKILL, NULL, 0);
        (void)poll(&p, 1, STOP_LIMIT_MS);
    }
    log_end(d);
    (void)close(TAKE_FD(d->pidfd));
}

static void stop_all(struct supervisor *s)
{
    for (int i = SUPERVISED - 1; i >= 0; i--) {
        char path[INSTALLATION_PATH_SIZE];

        stop_daemon(&s->daemons[i]);
        daemon_record_path(s->settings, s->daemons[i].id, path);
        (void)unlink(path);
    }
}

/* True when the supervisor is to end. */
static bool take_signals(struct supervisor *s)
{
    struct signalfd_siginfo info;

    while (read(s->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT) {
            log_info("stopping", "by=%d", (int)info.ssi_pid);
            stop_all(s);
            return true;
        }
        if (info.ssi_signo == SIGUSR1) {
            log_info("leaving the daemons", "by=%d", (int)info.ssi_pid);
            return true;
        }
    }
    return false;
}

static int next_wait_ms(const struct supervisor *s, int64_t now_ms)
{
    int64_t at_ms = s->rotate_at_ms;

    for (int i = 0; i < SUPERVISED; i++) {
        if (s->daemons[i].pidfd < 0 && s->daemons[i].start_at_ms < at_ms) {
            at_ms = s->daemons[i].start_at_ms;
        }
    }
    return at_ms > now_ms ? (int)(at_ms - now_ms) : 0;
}

static void supervise_loop(struct supervisor *s)
{
    for (;;) {
        struct pollfd fds[2 * SUPERVISED + 1] = {{.fd = s->signal_fd, .events = POLLIN}};
        int64_t now_ms = clock_monotonic_ms();

        for (int i = 0; i < SUPERVISED; i++) {
            struct daemon *d = &s->daemons[i];

            if (d->pidfd < 0 && now_ms >= d->start_at_ms) {
                start_daemon(s, d);
            }
            fds[i + 1] = (struct pollfd){.fd = d->pidfd, .events = POLLIN};
            fds[SUPERVISED + i + 1] = (struct pollfd){.fd = d->ready_fd, .events = POLLIN};
        }
        rotate_logs(s, now_ms);
        (void)poll(fds, 2 * SUPERVISED + 1, next_wait_ms(s, clock_monotonic_ms()));
        for (int i = 0; i < SUPERVISED; i++) {
            if (fds[SUPERVISED + i + 1].revents != 0) {
                take_readiness(&s->daemons[i]);
            }
            if (fds[i + 1].revents != 0) {
                on_daemon_end(&s->daemons[i]);
            }
        }
        if (fds[0].revents != 0 && take_signals(s)) {
            return;
        }
        reap_orphans(s);
    }
}

static int open_signals(struct error *err)
{
    sigset_t set;
    int fd;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGUSR1);
    (void)sigaddset(&set, SIGCHLD);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0) {
        return error_set(err, errno, "cannot block signals: %s", strerror(errno));
    }
    fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return fd >= 0 ? fd : error_set(err, errno, "cannot watch signals: %s", strerror(errno));
}

static int take_lock(const struct settings *settings, struct error *err)
{
    _cleanup_close_ int fd = -1;
    char path[INSTALLATION_PATH_SIZE];

    daemon_lock_path(settings, path);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return error_set(err, errno, "cannot open %.180s: %s", path, strerror(errno));
    }
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        return error_set(err, EEXIST, "another space-supervisor runs here (%.180s is locked)",
                         path);
    }
    return TAKE_FD(fd);
}

/* Our own record, by which `space` finds us. */
static int write_own_record(const struct settings *settings, struct error *err)
{
    char path[INSTALLATION_PATH_SIZE];
    struct proc_ref self;
    int r = proc_find(getpid(), &self);

    daemon_record_path(settings, DAEMON_SUPERVISOR, path);
    if (r == 0) {
        r = proc_record_write(path, &self, settings->data_dir);
    }
    return r < 0 ? error_set(err, -r, "cannot write %.180s: %s", path, strerror(-r)) : 0;
}

int supervise_run(const struct settings *settings,
                  const struct supervise_options *options,
                  struct error *err)
{
    _cleanup_close_ int lock_fd = take_lock(settings, err);
    _cleanup_close_ int signal_fd = -1;
    struct supervisor s = {.settings = settings, .options = options};
    char record[INSTALLATION_PATH_SIZE];

    if (lock_fd < 0 || write_own_record(settings, err) < 0 || (signal_fd = open_signals(err)) < 0) {
        return -err->errnum;
    }
    s.signal_fd = signal_fd;
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int i = 0; i < SUPERVISED; i++) {
        s.daemons[i] = (struct daemon){.id = (enum daemon_id)i, .pidfd = -1, .ready_fd = -1};
        if (!adopt_daemon(&s, &s.daemons[i])) {
            start_daemon(&s, &s.daemons[i]);
        }
    }
    if (options->ready_fd >= 0) {
        if (fd_write_all(options->ready_fd, span_make("+", 1)) < 0) {
            log_warning("nobody waits", "fd=%d", options->ready_fd);
        }
        (void)close(options->ready_fd);
    }
    supervise_loop(&s);
    daemon_record_path(settings, DAEMON_SUPERVISOR, record);
    (void)unlink(record);
    for (int i = 0; i < SUPERVISED; i++) {
        (void)close(s.daemons[i].pidfd);
    }
    return 0;
}
