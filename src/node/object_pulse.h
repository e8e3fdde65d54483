/* The sign of life of a job: a blank to its result's pipe every second, for as long as no call of
 * the store takes longer than it may.
 *
 * A filesystem that does not answer holds a thread for ever, and a killed process with it. So that
 * space-node need not wait for that one, a thread of its own watches the calls. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"

#define OBJECT_PULSE_CALLS 8U /* at once; more are not watched */

struct object_pulse {
    int fd;
    int64_t limit_ms;                     /* of one call; 0: none */
    int64_t begun_ms[OBJECT_PULSE_CALLS]; /* 0: no call */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    bool stopping;
};

/* fd stays the caller's. 0 or -errno. */
int object_pulse_start(struct object_pulse *pulse, int fd, int64_t limit_ms) _must_check_;
/* No blank comes any more. */
void object_pulse_stop(struct object_pulse *pulse);
/* Around each call, from any thread; NULL is fine. */
unsigned int object_pulse_begin(struct object_pulse *pulse);
void object_pulse_end(struct object_pulse *pulse, unsigned int call);
