#include "node/object_pulse.h"

#include <errno.h>
#include <time.h>

#include "base/clock.h"
#include "base/fd.h"

/* Locked. */
static bool is_stuck(const struct object_pulse *p, int64_t now)
{
    for (unsigned int i = 0; p->limit_ms > 0 && i < OBJECT_PULSE_CALLS; i++) {
        if (p->begun_ms[i] != 0 && now - p->begun_ms[i] > p->limit_ms) {
            return true;
        }
    }
    return false;
}

static void *run(void *arg)
{
    struct object_pulse *p = arg;

    (void)pthread_mutex_lock(&p->lock);
    while (!p->stopping) {
        struct timespec until;

        /* Nobody reads any more: the process ends with its parent. */
        if (!is_stuck(p, clock_monotonic_ms()) && fd_write_all(p->fd, span_of_str(" ")) < 0) {
            break;
        }
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec++;
        (void)pthread_cond_timedwait(&p->wake, &p->lock, &until);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

static int init_wake(pthread_cond_t *wake)
{
    pthread_condattr_t attributes;
    int r = -pthread_condattr_init(&attributes);

    if (r < 0) {
        return r;
    }
    r = -pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    if (r == 0) {
        r = -pthread_cond_init(wake, &attributes);
    }
    (void)pthread_condattr_destroy(&attributes);
    return r;
}

int object_pulse_start(struct object_pulse *p, int fd, int64_t limit_ms)
{
    int r;

    *p = (struct object_pulse){.fd = fd, .limit_ms = limit_ms};
    r = -pthread_mutex_init(&p->lock, NULL);
    if (r < 0) {
        return r;
    }
    r = init_wake(&p->wake);
    if (r < 0) {
        (void)pthread_mutex_destroy(&p->lock);
        return r;
    }
    r = -pthread_create(&p->thread, NULL, run, p);
    if (r < 0) {
        (void)pthread_cond_destroy(&p->wake);
        (void)pthread_mutex_destroy(&p->lock);
    }
    return r;
}

void object_pulse_stop(struct object_pulse *p)
{
    (void)pthread_mutex_lock(&p->lock);
    p->stopping = true;
    (void)pthread_cond_signal(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
    (void)pthread_join(p->thread, NULL);
    (void)pthread_cond_destroy(&p->wake);
    (void)pthread_mutex_destroy(&p->lock);
}

unsigned int object_pulse_begin(struct object_pulse *p)
{
    unsigned int call = 0;

    if (p == NULL) {
        return OBJECT_PULSE_CALLS;
    }
    (void)pthread_mutex_lock(&p->lock);
    while (call < OBJECT_PULSE_CALLS && p->begun_ms[call] != 0) {
        call++;
    }
    if (call < OBJECT_PULSE_CALLS) {
        p->begun_ms[call] = clock_monotonic_ms();
    }
    (void)pthread_mutex_unlock(&p->lock);
    return call;
}

void object_pulse_end(struct object_pulse *p, unsigned int call)
{
    if (p != NULL && call < OBJECT_PULSE_CALLS) {
        (void)pthread_mutex_lock(&p->lock);
        p->begun_ms[call] = 0;
        (void)pthread_mutex_unlock(&p->lock);
    }
}
