#include "cli/supervise_start.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <linux/capability.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/ready.h"
#include "cli/child.h"
#include "cli/logfile.h"

#define NODE_FILES    1048576U
#define API_FILES     65536U
#define NODE_OOM_TEXT "-900"

/* What a failed step of the child was, told over the pipe as one line. */
static void die(int pipe_fd, const char *what, int errnum)
{
    char line[200];
    int n = snprintf(line, sizeof(line), "%s: %s", what, strerror(errnum));

    if (fd_write_all(pipe_fd, span_make(line, n > 0 ? (size_t)n : 0)) < 0) {
        _exit(126);
    }
    _exit(127);
}

/* With the one capability that a port below 1024 takes, where we have it ourselves; space-api drops
 * it when it has its port. */
static int become_service_user(const char *user)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3] = {0};
    uint32_t bit = 1U << CAP_NET_BIND_SERVICE;
    int r;

    (void)prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0);
    r = child_become(user);
    if (r < 0) {
        return r;
    }
    caps[0] =
        (struct __user_cap_data_struct){.effective = bit, .permitted = bit, .inheritable = bit};
    if (syscall(SYS_capset, &header, caps) == 0) {
        (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_BIND_SERVICE, 0, 0);
        return 0;
    }
    caps[0] = (struct __user_cap_data_struct){0};
    return syscall(SYS_capset, &header, caps) < 0 ? -errno : 0;
}

static void set_limits(enum daemon_id id)
{
    struct rlimit files;
    rlim_t want = id == DAEMON_NODE ? NODE_FILES : API_FILES;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_max = files.rlim_max > want || geteuid() == 0 ? want : files.rlim_max;
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

/* The VMMs are what the kernel should end first, never the daemon that watches them. */
static void protect_from_oom(void)
{
    _cleanup_close_ int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

    if (fd < 0 || fd_write_all(fd, span_of_str(NODE_OOM_TEXT)) < 0) {
        return; /* a container may forbid it */
    }
}

/* The data_dir is what the program will read, not what was there when the supervisor began. */
static void write_record(const struct supervise_start_options *o, int pipe_fd)
{
    struct settings *now = calloc(1, sizeof(*now));
    char path[INSTALLATION_PATH_SIZE];
    struct proc_ref self;
    struct error err;
    int r = proc_find(getpid(), &self);

    daemon_record_path(o->settings, o->id, path);
    if (r == 0) {
        bool is_read = now != NULL && settings_load(now, o->config_path, &err) == 0;

        r = proc_record_write(path, &self, is_read ? now->data_dir : o->settings->data_dir);
    }
    free(now);
    if (r < 0) {
        die(pipe_fd, "cannot write the pid file", -r);
    }
}

static void redirect(int log_fd, int pipe_fd)
{
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 || dup2(log_fd, STDOUT_FILENO) < 0 ||
        dup2(log_fd, STDERR_FILENO) < 0) {
        die(pipe_fd, "cannot redirect its output", errno);
    }
}

struct child_fds {
    int log;
    int pipe;
    int ready;
    pid_t parent;
};

/* The child, up to exec. Nothing but 0, 1, 2 and the pipe for its readiness is left open; the other
 * pipe's closing tells of success. */
static void become_daemon(const struct supervise_start_options *o, const struct child_fds *fds)
{
    int pipe_fd = fds->pipe;
    char program[INSTALLATION_PATH_SIZE];
    char config[SETTINGS_PATH_SIZE];
    char ready[16];
    char *argv[] = {program, (char[]){"--config"}, config, (char[]){"--" READY_OPTION}, ready,
                    NULL};
    char *env[] = {(char[]){"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
                   (char[]){"LANG=C.UTF-8"}, NULL};
    sigset_t none;
    int r;

    (void)snprintf(program, sizeof(program), "%s/%s", o->libexec, daemon_name(o->id));
    (void)snprintf(config, sizeof(config), "%s", o->config_path);
    (void)snprintf(ready, sizeof(ready), "%d", fds->ready);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != fds->parent) {
        _exit(127); /* the supervisor died before the signal was set */
    }
    (void)setpgid(0, 0);
    (void)close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
    (void)fcntl(fds->ready, F_SETFD, 0);
    (void)umask(0077);
    set_limits(o->id);
    write_record(o, pipe_fd);
    (void)prctl(PR_SET_PDEATHSIG, 0);
    redirect(fds->log, pipe_fd);
    if (o->id == DAEMON_NODE) {
        protect_from_oom();
    }
    if (o->id == DAEMON_API && geteuid() == 0) {
        r = become_service_user(o->settings->service_user);
        if (r < 0) {
            die(pipe_fd, "cannot become the service user (see setup/user)", -r);
        }
        (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    }
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)execve(program, argv, env);
    die(pipe_fd, program, errno);
}

/* Waits until the child has executed its program (the pipe closes) or told why not. */
static int await_exec(int pipe_fd, struct error *err)
{
    _cleanup_buf_ struct buf text = buf_make(4096);
    int r = fd_read_all(pipe_fd, &text);

    if (r < 0) {
        return error_set(err, -r, "cannot read from the child: %s", strerror(-r));
    }
    return text.n > 0 ? error_set(err, EPROTO, "%s", buf_str(&text)) : 0;
}

static int make_pipe(int *ret_read, int *ret_write, int flags)
{
    int fds[2];

    if (pipe2(fds, flags) < 0) {
        return -errno;
    }
    *ret_read = fds[0];
    *ret_write = fds[1];
    return 0;
}

int supervise_start(const struct supervise_start_options *o,
                    struct proc_ref *ret,
                    int *ret_ready_fd,
                    struct error *err)
{
    _cleanup_close_ int log_fd = -1;
    _cleanup_close_ int read_fd = -1;
    _cleanup_close_ int write_fd = -1;
    _cleanup_close_ int ready_read_fd = -1;
    _cleanup_close_ int ready_write_fd = -1;
    _cleanup_close_ int pidfd = -1;
    char log_path[INSTALLATION_PATH_SIZE];
    struct child_fds fds;
    struct proc_ref ref = {0};
    pid_t pid;

    daemon_log_path(o->settings, o->id, log_path);
    log_fd = logfile_open(log_path, err);
    if (log_fd < 0) {
        return log_fd;
    }
    if (make_pipe(&read_fd, &write_fd, O_CLOEXEC) < 0 ||
        make_pipe(&ready_read_fd, &ready_write_fd, O_CLOEXEC | O_NONBLOCK) < 0) {
        return error_set(err, errno, "cannot make a pipe: %s", strerror(errno));
    }
    fds = (struct child_fds){log_fd, write_fd, ready_write_fd, getpid()};
    pid = fork();
    if (pid < 0) {
        return error_set(err, errno, "cannot fork: %s", strerror(errno));
    }
    if (pid == 0) {
        become_daemon(o, &fds);
    }
    (void)close(TAKE_FD(write_fd));
    pidfd = pidfd_open(pid, 0);
    if (await_exec(read_fd, err) < 0 || pidfd < 0) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        return -EPROTO;
    }
    /* A daemon that has ended already is met through its pidfd, like any other. */
    if (proc_find(pid, &ref) < 0) {
        ref.pid = pid;
    }
    *ret = ref;
    *ret_ready_fd = TAKE_FD(ready_read_fd);
    return TAKE_FD(pidfd);
}
