#include "node/objects_job.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/wait.h>

#include <event2/event.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/object_fd.h"

#define RESULT_MAX 65536U
/* Of a job that moves a large snapshot over a slow line; its transfers have limits of their own. */
#define DEADLINE_MS (4 * 3600 * 1000)
/* Without a sign of life, which comes every second once the store is open. */
#define SILENCE_MS 20000
/* One that stands in a filesystem that does not answer ends when that does. */
#define CANCEL_MS 2000

struct objects_job {
    struct list link; /* of those that were given up */
    struct list *given_up;
    struct loop *loop;
    objects_job_fn fn;
    void *arg;
    int pidfd;
    int result_fd;
    int64_t deadline_ms;
    struct loop_watch *watch;
    struct loop_timer *timer;
    struct buf text;
    bool closed; /* its end of the pipe */
    bool ended;
    bool told;
};

static void job_free(struct objects_job *job)
{
    list_remove(&job->link);
    loop_watch_free(job->watch);
    loop_timer_free(job->timer);
    if (job->result_fd >= 0) {
        (void)close(job->result_fd);
    }
    if (job->pidfd >= 0) {
        (void)close(job->pidfd);
    }
    buf_done(&job->text);
    free(job);
}

/* ---- the answer ---- */

static void read_error(const json_t *result, struct error *err)
{
    const char *code = json_string_value(json_object_get(result, "code"));
    const char *field = json_string_value(json_object_get(result, "field"));
    const char *message = json_string_value(json_object_get(result, "message"));
    enum error_code known = code == NULL ? ERROR_NONE : error_code_find(code);

    (void)error_set_code(err, known == ERROR_NONE ? ERROR_INTERNAL : known,
                         field != NULL && field[0] != '\0' ? field : NULL, "%.300s",
                         message == NULL ? "space-objects gave no reason" : message);
}

static void tell(struct objects_job *job)
{
    json_t *result =
        buf_error(&job->text) < 0 ? NULL : json_loadb(buf_str(&job->text), job->text.n, 0, NULL);
    struct error err = {0};

    if (result == NULL) {
        (void)error_set(&err, EIO, "space-objects ended without an answer");
    } else if (!json_is_true(json_object_get(result, "ok"))) {
        read_error(result, &err);
    }
    job->fn(job->arg, result, err.code != ERROR_NONE ? &err : NULL);
    json_decref(result);
}

static void settle(struct objects_job *job)
{
    if (!job->ended || (!job->closed && !job->told)) {
        return;
    }
    if (!job->told) {
        tell(job);
    }
    job_free(job);
}

/* What it is told to do is not done, whenever it ends. */
static void give_up(struct objects_job *job, const char *why)
{
    struct error err = {0};

    (void)pidfd_send_signal(job->pidfd, SIGKILL, NULL, 0);
    loop_watch_free(TAKE(job->watch));
    loop_timer_stop(job->timer);
    list_append(job->given_up, &job->link);
    job->told = true;
    (void)error_set_code(&err, ERROR_SERVICE_UNAVAILABLE, NULL, "%s", why);
    job->fn(job->arg, NULL, &err);
}

static void wait_for_sign(struct objects_job *job)
{
    int64_t left = job->deadline_ms - clock_monotonic_ms();

    loop_timer_start(job->timer, left < 1 ? 1 : left < SILENCE_MS ? left : SILENCE_MS);
}

static void on_readable(void *arg, int fd, short events)
{
    struct objects_job *job = arg;
    uint8_t *room = loop_scratch(job->loop);
    ssize_t n = read(fd, room, LOOP_SCRATCH_BYTES);

    (void)events;
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    if (n > 0) {
        struct span text = span_make(room, (size_t)n);

        while (job->text.n == 0 && text.n > 0 && text.p[0] == ' ') {
            text = span_skip(text, 1); /* a sign of life, and no more */
        }
        buf_put(&job->text, text);
        wait_for_sign(job);
        return;
    }
    job->closed = true;
    loop_watch_free(TAKE(job->watch));
    settle(job);
}

static void on_exit_of(void *arg, pid_t pid, int wait_status)
{
    struct objects_job *job = arg;

    if (wait_status != 0) {
        log_warning("objects_job_failed", "pid=%d status=%d", (int)pid, wait_status);
    }
    job->ended = true;
    settle(job);
}

/* What it wrote before may not have been read yet, when this loop was late itself. */
static void on_deadline(void *arg)
{
    struct objects_job *job = arg;
    struct pollfd end = {.fd = job->result_fd, .events = POLLIN};

    if (clock_monotonic_ms() >= job->deadline_ms) {
        log_warning("objects_job_late", "limit_ms=%d", DEADLINE_MS);
        give_up(job, "the object store takes too long");
    } else if (job->closed || poll(&end, 1, 0) > 0) {
        wait_for_sign(job);
    } else {
        log_warning("objects_job_silent", "limit_ms=%d", SILENCE_MS);
        give_up(job, "the object store does not answer");
    }
}

/* ---- the start ---- */

static int make_request(json_t *request)
{
    _cleanup_free_ char *text = json_dumps(request, JSON_COMPACT);
    _cleanup_close_ int fd = memfd_create("objects-request", MFD_CLOEXEC);
    int r = text == NULL ? -ENOMEM : fd < 0 ? -errno : fd_write_all(fd, span_of_str(text));

    if (r == 0 && lseek(fd, 0, SEEK_SET) < 0) {
        r = -errno;
    }
    return r < 0 ? r : TAKE_FD(fd);
}

/* Above all targets first, so that none overwrites a source. */
static int
place_all(posix_spawn_file_actions_t *actions, const int *sources, unsigned int count, int *parked)
{
    int r = 0;

    for (unsigned int i = 0; r == 0 && i < count; i++) {
        parked[i] = fcntl(sources[i], F_DUPFD_CLOEXEC, OBJECT_FD_REQUEST + (int)count);
        r = parked[i] < 0
                ? -errno
                : -posix_spawn_file_actions_adddup2(actions, parked[i], OBJECT_FD_REQUEST + (int)i);
    }
    return r;
}

static int
spawn(const struct objects_order *o, const int *sources, unsigned int count, pid_t *ret_pid)
{
    static char *const environment[] = {NULL};
    _cleanup_free_ int *parked = malloc(count * sizeof(*parked));
    posix_spawn_file_actions_t actions;
    char uid[16];
    char parent[16];
    char *argv[] = {(char *)(uintptr_t)o->program,
                    uid,
                    parent,
                    (char *)(uintptr_t)(o->dir != NULL ? o->dir : "-"),
                    (char *)(uintptr_t)(o->run_dir != NULL ? o->run_dir : "-"),
                    NULL};
    int r;

    if (parked == NULL) {
        return -ENOMEM;
    }
    memset(parked, 0xff, count * sizeof(*parked));
    (void)snprintf(uid, sizeof(uid), "%u", o->uid);
    (void)snprintf(parent, sizeof(parent), "%d", (int)getpid());
    r = -posix_spawn_file_actions_init(&actions);
    if (r < 0) {
        return r;
    }
    r = place_all(&actions, sources, count, parked);
    for (int fd = STDIN_FILENO; r == 0 && fd <= STDOUT_FILENO; fd++) {
        r = -posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
    }
    if (r == 0) {
        r = -posix_spawn(ret_pid, o->program, &actions, NULL, argv, environment);
    }
    (void)posix_spawn_file_actions_destroy(&actions);
    for (unsigned int i = 0; i < count; i++) {
        if (parked[i] >= 0) {
            (void)close(parked[i]);
        }
    }
    return r;
}

/* All descriptors of the process in their order, the pipe among them; *ret_read is our end. */
static int start_process(const struct objects_order *o, int *ret_read, pid_t *ret_pid)
{
    unsigned int count = OBJECT_FD_FIRST - OBJECT_FD_REQUEST + o->fd_count;
    _cleanup_free_ int *sources = malloc(count * sizeof(*sources));
    _cleanup_close_ int request = make_request(o->request);
    int ends[2];
    int r;

    if (request < 0 || sources == NULL) {
        return request < 0 ? request : -ENOMEM;
    }
    if (pipe2(ends, O_CLOEXEC) < 0) {
        return -errno;
    }
    sources[0] = request;
    sources[OBJECT_FD_RESULT - OBJECT_FD_REQUEST] = ends[1];
    sources[OBJECT_FD_KEYS - OBJECT_FD_REQUEST] = o->keys_fd >= 0 ? o->keys_fd : request;
    for (unsigned int i = 0; i < o->fd_count; i++) {
        sources[OBJECT_FD_FIRST - OBJECT_FD_REQUEST + i] = o->fds[i];
    }
    r = spawn(o, sources, count, ret_pid);
    (void)close(ends[1]);
    if (r < 0 || fd_set_nonblock(ends[0]) < 0) {
        (void)close(ends[0]);
        return r < 0 ? r : -EIO;
    }
    *ret_read = ends[0];
    return 0;
}

/* The process is there: from here on it is watched to its end. */
static int watch(struct objects_job *job, pid_t pid)
{
    int exit_fd;

    job->pidfd = pidfd_open(pid, 0);
    exit_fd = job->pidfd < 0 ? -1 : fcntl(job->pidfd, F_DUPFD_CLOEXEC, 3);
    job->timer = loop_timer_new(job->loop, on_deadline, job);
    job->watch = loop_watch_new(job->loop, job->result_fd, EV_READ, on_readable, job);
    if (exit_fd < 0 || job->timer == NULL || job->watch == NULL ||
        loop_watch_exit(job->loop, exit_fd, on_exit_of, job) < 0) {
        (void)kill(pid, SIGKILL); /* not waited for yet: the number is still its own */
        return -ENOMEM;
    }
    job->deadline_ms = clock_monotonic_ms() + DEADLINE_MS;
    wait_for_sign(job);
    return 0;
}

struct objects_job *objects_job_start(struct loop *loop,
                                      const struct objects_order *order,
                                      objects_job_fn fn,
                                      void *arg,
                                      struct error *err)
{
    struct objects_job *job = calloc(1, sizeof(*job));
    pid_t pid = 0;
    int r;

    if (job == NULL) {
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    *job = (struct objects_job){.given_up = order->given_up,
                                .loop = loop,
                                .fn = fn,
                                .arg = arg,
                                .pidfd = -1,
                                .result_fd = -1,
                                .text = buf_make(RESULT_MAX)};
    list_init(&job->link);
    r = start_process(order, &job->result_fd, &pid);
    if (r == 0) {
        r = watch(job, pid);
    }
    if (r < 0) {
        (void)error_set(err, -r, "cannot run %.150s: %s", order->program, strerror(-r));
        job_free(job);
        return NULL;
    }
    return job;
}

/* At the end of this program, when the loop is not run any more: nothing is told of the exit. */
void objects_job_cancel(struct objects_job *job)
{
    struct pollfd end = {.events = POLLIN};
    siginfo_t info;

    if (job == NULL) {
        return;
    }
    if (!job->ended) {
        int wait_ms = job->told ? 0 : CANCEL_MS; /* it was killed then */

        (void)pidfd_send_signal(job->pidfd, SIGKILL, NULL, 0);
        end.fd = job->pidfd;
        if (poll(&end, 1, wait_ms) <= 0) {
            log_warning("objects_job_hangs", "wait_ms=%d", wait_ms);
        }
        (void)waitid(P_PIDFD, (id_t)job->pidfd, &info, WEXITED | WNOHANG);
    }
    job_free(job);
}

void objects_job_cancel_all(struct list *given_up)
{
    while (!list_is_empty(given_up)) {
        objects_job_cancel(list_entry(given_up->next, struct objects_job, link));
    }
}
