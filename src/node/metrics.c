#include "node/metrics.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/id.h"
#include "io/loop.h"
#include "node/data.h"
#include "node/node.h"
#include "node/sandbox.h"
#include "node/service.h"
#include "node/services.h"

#define RING_FIRST      16U
#define KIB             1024U
#define GUEST_ANSWER_MS 10000

/* ---- the ring ---- */

static unsigned int ring_limit(const struct metrics *m)
{
    const struct settings *settings = &m->services->data->node->settings;
    uint64_t samples =
        settings->node_metrics_keep_minutes * 60 / settings->node_metrics_interval_seconds;

    if (samples > METRICS_SAMPLES_MAX) {
        return METRICS_SAMPLES_MAX;
    }
    return samples > 0 ? (unsigned int)samples : 1;
}

const struct metrics_sample *metrics_get(const struct metrics *metrics, unsigned int index)
{
    return index < metrics->count && metrics->room > 0
               ? &metrics->ring[(metrics->start + index) % metrics->room]
               : NULL;
}

/* Room for one more: the ring grows to its limit, then the oldest goes. 0 or -ENOMEM. */
static int make_room(struct metrics *m)
{
    unsigned int limit = ring_limit(m);
    unsigned int room = m->room == 0 ? RING_FIRST : m->room * 2;
    struct metrics_sample *ring;

    if (m->count < m->room) {
        return 0;
    }
    if (m->room >= limit) {
        m->start = (m->start + 1) % m->room;
        m->count--;
        return 0;
    }
    room = room < limit ? room : limit;
    ring = calloc(room, sizeof(*ring));
    if (ring == NULL) {
        return -ENOMEM;
    }
    for (unsigned int i = 0; i < m->count; i++) {
        ring[i] = *metrics_get(m, i);
    }
    free(m->ring);
    m->ring = ring;
    m->room = room;
    m->start = 0;
    return 0;
}

/* Puts the sample that was begun where readers see it. */
static void keep(struct metrics *m)
{
    const struct metrics_sample *last = metrics_get(m, m->count - 1);

    m->pending = false;
    if (last != NULL && m->next.at_ms <= last->at_ms) {
        m->next.at_ms = last->at_ms + 1; /* the machine's clock was set back */
    }
    if (make_room(m) == 0 && m->ring != NULL && m->room > 0) {
        m->ring[(m->start + m->count) % m->room] = m->next;
        m->count++;
    }
}

/* ---- the guest's part ---- */

static uint32_t kib_of(uint64_t bytes)
{
    return bytes / KIB < UINT32_MAX ? (uint32_t)(bytes / KIB) : UINT32_MAX;
}

static const char *on_record(void *arg, const struct service_record *record)
{
    struct metrics *m = arg;
    struct service_sample sample;

    if (record->type != SERVICE_RECORD_SAMPLE ||
        service_sample_parse(record->payload, &sample) < 0) {
        return "a bad SAMPLE";
    }
    if (!m->pending || sample.memory_total_bytes < KIB ||
        sample.memory_used_bytes > sample.memory_total_bytes ||
        sample.disk_used_bytes > sample.disk_total_bytes) {
        return NULL; /* too late, or nonsense: the sample goes without it */
    }
    m->next.memory_total_kib = kib_of(sample.memory_total_bytes);
    m->next.memory_used_kib = kib_of(sample.memory_used_bytes);
    m->next.disk_total_kib = kib_of(sample.disk_total_bytes);
    m->next.disk_used_kib = kib_of(sample.disk_used_bytes);
    m->next.processes = sample.processes;
    return NULL;
}

static void on_ended(void *arg, const struct service_end *end)
{
    struct metrics *m = arg;

    (void)end;
    m->service = NULL;
    if (m->pending) {
        keep(m);
    }
}

static void ask_guest(struct metrics *m)
{
    static const struct service_callbacks callbacks = {
        .on_record = on_record,
        .on_ended = on_ended,
    };
    struct service_args args;
    const struct service_spec spec = {
        .args = &args,
        .user = "",
        .is_tolerant = true,
        .idle_ms = GUEST_ANSWER_MS,
    };

    service_args_init(&args, "metrics");
    m->service = service_open(m->services, &spec, &callbacks, m, NULL);
    service_args_done(&args);
}

/* ---- samples ---- */

static uint32_t permyriad_of(uint64_t cpu_ns, uint64_t elapsed_ms)
{
    /* ns / (ms * 1e6) * 1e4 */
    uint64_t value = elapsed_ms == 0 ? 0 : cpu_ns / 100 / elapsed_ms;

    return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

/* Processor time of the VMM since the last call. */
static void read_cpu(struct metrics *m)
{
    int64_t now = clock_monotonic_ms();
    uint64_t cpu_ns = m->last_cpu_ns;

    if (sandbox_cpu_ns(m->services->sandbox, &cpu_ns) < 0 || cpu_ns < m->last_cpu_ns) {
        cpu_ns = m->last_cpu_ns; /* another VMM */
    }
    m->next.cpu_ns = cpu_ns;
    m->next.cpu_permyriad = permyriad_of(cpu_ns - m->last_cpu_ns, (uint64_t)(now - m->last_ms));
    m->last_cpu_ns = cpu_ns;
    m->last_ms = now;
}

static void take_sample(struct metrics *m)
{
    if (m->pending) {
        keep(m); /* the guest has not answered since the last one */
    }
    m->next = (struct metrics_sample){.at_ms = clock_real_ms()};
    read_cpu(m);
    m->pending = true;
    if (m->service == NULL) {
        ask_guest(m);
    }
    if (m->service == NULL) {
        keep(m);
    }
}

/* ---- the clock ---- */

static int64_t interval_ms(const struct data *data)
{
    return (int64_t)data->node->settings.node_metrics_interval_seconds * 1000;
}

static void arm(struct metrics_sampler *sampler)
{
    if (!list_is_empty(&sampler->due)) {
        const struct metrics *first = list_entry(sampler->due.next, struct metrics, link);
        int64_t delay = first->due_ms - clock_monotonic_ms();

        loop_timer_start(sampler->timer, delay > 0 ? delay : 0);
    }
}

/* Most are due later than all others. */
static void insert(struct metrics_sampler *sampler, struct metrics *m)
{
    struct list *before = sampler->due.prev;

    while (before != &sampler->due &&
           list_entry(before, struct metrics, link)->due_ms > m->due_ms) {
        before = before->prev;
    }
    list_append(before->next, &m->link);
}

static void on_timer(void *arg)
{
    struct metrics_sampler *sampler = arg;
    int64_t now = clock_monotonic_ms();

    while (!list_is_empty(&sampler->due)) {
        struct metrics *m = list_entry(sampler->due.next, struct metrics, link);

        if (m->due_ms > now) {
            break;
        }
        list_remove(&m->link);
        m->due_ms += interval_ms(sampler->data);
        if (m->due_ms <= now) {
            m->due_ms = now + interval_ms(sampler->data);
        }
        insert(sampler, m);
        take_sample(m);
    }
    arm(sampler);
}

int metrics_sampler_init(struct metrics_sampler *sampler, struct data *data)
{
    sampler->data = data;
    list_init(&sampler->due);
    sampler->timer = loop_timer_new(data->node->loop, on_timer, sampler);
    return sampler->timer != NULL ? 0 : -ENOMEM;
}

void metrics_sampler_done(struct metrics_sampler *sampler)
{
    loop_timer_free(TAKE(sampler->timer));
}

void metrics_init(struct metrics *metrics, struct services *services)
{
    memset(metrics, 0, sizeof(*metrics));
    list_init(&metrics->link);
    metrics->services = services;
}

void metrics_done(struct metrics *metrics)
{
    metrics_stop(metrics);
    free(TAKE(metrics->ring));
    metrics->count = 0;
}

void metrics_start(struct metrics *metrics)
{
    struct metrics_sampler *sampler = &metrics->services->data->sampler;
    int64_t interval = interval_ms(sampler->data);
    uint32_t random = 0;

    if (!list_is_empty(&metrics->link)) {
        return;
    }
    (void)!random_bytes(&random, sizeof(random)); /* without it they are only less spread */
    metrics->last_cpu_ns = 0;
    metrics->last_ms = clock_monotonic_ms();
    read_cpu(metrics);
    metrics->due_ms = metrics->last_ms + interval / 2 + (int64_t)(random % (uint64_t)interval) / 2;
    insert(sampler, metrics);
    arm(sampler);
}

void metrics_stop(struct metrics *metrics)
{
    list_remove(&metrics->link);
    metrics->pending = false;
    service_close(TAKE(metrics->service));
}
