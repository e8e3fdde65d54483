/* Samples of what a sandbox uses: processor time as the host sees its VMM, the rest as its guest
 * says, in a ring in memory.
 *
 * Every node.metrics_interval_seconds each running sandbox is sampled, one after the other over the
 * interval, so that the cost is flat. What the guest says is its own affair: nonsense only spoils
 * its own sample. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

struct data;
struct loop_timer;
struct service;
struct services;

#define METRICS_SAMPLES_MAX 4096U /* kept, whatever the settings say */

struct metrics_sample {
    int64_t at_ms;
    uint64_t cpu_ns;           /* of the VMM since it was started */
    uint32_t cpu_permyriad;    /* of one processor since the sample before */
    uint32_t memory_total_kib; /* this and the rest by the guest; 0 when it did not say */
    uint32_t memory_used_kib;
    uint32_t disk_total_kib;
    uint32_t disk_used_kib;
    uint32_t processes;
};

struct metrics {
    struct list link; /* in sampler->due, while the sandbox runs */
    struct services *services;
    int64_t due_ms;
    struct service *service;    /* the guest is being asked */
    struct metrics_sample next; /* the one that was begun last */
    bool pending;               /* it waits for the guest's part */
    int64_t last_ms;            /* when processor time was read last, monotonic */
    uint64_t last_cpu_ns;
    struct metrics_sample *ring; /* oldest at `start` when full */
    unsigned int room;
    unsigned int count;
    unsigned int start;
};

/* The node's one clock of samples, in struct data. */
struct metrics_sampler {
    struct data *data;
    struct list due; /* ordered by due_ms */
    struct loop_timer *timer;
};

/* 0 or -ENOMEM. */
int metrics_sampler_init(struct metrics_sampler *sampler, struct data *data)
    __attribute__((warn_unused_result));
void metrics_sampler_done(struct metrics_sampler *sampler);

void metrics_init(struct metrics *metrics, struct services *services);
void metrics_done(struct metrics *metrics);
/* The sandbox runs from now on, or does not any more. */
void metrics_start(struct metrics *metrics);
void metrics_stop(struct metrics *metrics);
/* The sample with this index, the oldest first; NULL behind the last. */
const struct metrics_sample *metrics_get(const struct metrics *metrics, unsigned int index);
