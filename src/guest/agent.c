#include "guest/agent.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#include <sys/sysinfo.h>

#include "base/clock.h"

/* Frames that are sent between two looks at what the host wants. */
#define STEPS_PER_TURN 4
/* Requests are not read while so much waits to be sent. */
#define TX_BACKLOG_MAX 65536U
/* Bytes of requests that are executed between two rounds of sending. */
#define READ_PER_TURN 262144U
/* Small frames are gathered and go out in one write. */
#define TX_GATHER_MAX   4096U
#define MEMORY_RETRY_MS 200
/* The longest time that the agent does not look at the port while bulk output goes on. */
#define REST_SLEEP_NS 500000
/* What a terminal gets to echo a key before bulk output goes on. */
#define ECHO_WAIT_NS    500000
#define WAIT_MAX_NS     3600000000000
#define KEPT_BUDGET_MIN 4194304U
#define KEPT_BUDGET_MAX 268435456U

static size_t kept_budget(void)
{
    struct sysinfo info;
    unsigned long long bytes;

    if (sysinfo(&info) < 0) {
        return KEPT_BUDGET_MIN;
    }
    bytes = (unsigned long long)info.totalram * info.mem_unit / 16;
    if (bytes < KEPT_BUDGET_MIN) {
        return KEPT_BUDGET_MIN;
    }
    return bytes > KEPT_BUDGET_MAX ? KEPT_BUDGET_MAX : (size_t)bytes;
}

int agent_init(struct agent *a, bool is_guest)
{
    int r;

    *a = (struct agent){.epoll_fd = -1, .is_guest = is_guest, .tx = buf_make(0)};
    a->port.source.fd = -1;
    a->port.listener.fd = -1;
    a->freezer.fd = -1;
    a->services_freezer.fd = -1;
    a->spawner.null_fd = -1;
    a->children.fd = -1;
    a->pressure.source.fd = -1;
    a->killed.fd = -1;
    a->next_deadline_ms = INT64_MAX;
    list_init(&a->active);
    list_init(&a->resting);
    channels_init(&a->channels);
    kept_pool_init(&a->pool, kept_budget());
    for (int i = 0; i < AGENT_ASSEMBLIES; i++) {
        a->assemblies[i].joined = buf_make(AGENT_START_MAX);
    }
    cgroups_init(&a->cgroups, is_guest);
    cgroups_prepare(&a->cgroups);
    identity_init(&a->identity, is_guest);
    a->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (a->epoll_fd < 0) {
        return -errno;
    }
    r = agent_reader_init(&a->reader, AGENT_HELLO, true);
    if (r == 0) {
        r = spawner_init(&a->spawner);
    }
    if (r == 0) {
        r = agent_watch_children(a);
    }
    if (is_guest) {
        pressure_open(&a->pressure, a->epoll_fd);
        killed_open(a);
    }
    /* Present before any process can use up the memory. */
    if (r == 0 && buf_reserve(&a->tx, 2U * TX_BACKLOG_MAX) == NULL) {
        r = -ENOMEM;
    }
    return r;
}

void agent_done(struct agent *a)
{
    channels_clear(a);
    kept_pool_done(&a->pool);
    cgroups_done(&a->cgroups);
    identity_done(&a->identity);
    spawner_done(&a->spawner);
    agent_reader_done(&a->reader);
    for (int i = 0; i < AGENT_ASSEMBLIES; i++) {
        buf_done(&a->assemblies[i].joined);
    }
    buf_done(&a->tx);
    port_close(&a->port);
    source_close(&a->freezer);
    source_close(&a->services_freezer);
    source_close(&a->children);
    pressure_close(&a->pressure);
    source_close(&a->killed);
    cleanup_close(&a->epoll_fd);
    a->epoll_fd = -1;
}

bool agent_may_speak(const struct agent *a)
{
    return a->conversing && a->voice != AGENT_FROZEN_SILENT;
}

bool agent_flush(struct agent *a)
{
    /* An error means a frame could not be appended for want of memory: the host would see a frame
     * missing, so it gets the whole conversation again instead. */
    if (buf_error(&a->tx) != 0) {
        buf_clear(&a->tx);
        agent_reader_desynchronise(&a->reader, false);
        a->conversing = false;
        return true;
    }
    while (a->tx.n > 0) {
        size_t n = port_write(&a->port, buf_span(&a->tx));

        if (n == 0) {
            return false;
        }
        buf_consume(&a->tx, n);
    }
    return true;
}

void agent_send(struct agent *a, struct span frame)
{
    if (frame.n + a->tx.n > TX_GATHER_MAX && agent_flush(a)) {
        frame = span_skip(frame, port_write(&a->port, frame));
    }
    buf_put(&a->tx, frame);
}

void agent_result(struct agent *a, uint32_t channel, uint32_t id, int r)
{
    struct agent_result m = {id, r < 0 ? (uint32_t)-r : 0};

    agent_result_format(&a->tx, channel, &m);
}

void agent_tell_input(struct channel *c)
{
    struct agent_stdin_ack m;

    if (!c->forgotten && agent_may_speak(c->agent) && input_take_ack(&c->input, &m)) {
        agent_stdin_ack_format(&c->agent->tx, c->number, &m);
    }
}

static void end_conversation(struct agent *a)
{
    agent_reader_desynchronise(&a->reader, true);
    buf_clear(&a->tx);
    a->conversing = false;
}

static void execute_requests(struct agent *a)
{
    struct agent_frame f;

    while (a->tx.n < TX_BACKLOG_MAX && agent_reader_next(&a->reader, &f) > 0) {
        if (agent_execute(a, &f) < 0) {
            agent_reader_desynchronise(&a->reader, false);
            a->conversing = false;
        }
    }
}

static void read_requests(struct agent *a)
{
    size_t total = 0;

    execute_requests(a);
    while (a->tx.n < TX_BACKLOG_MAX && total < READ_PER_TURN) {
        size_t room;
        uint8_t *to = agent_reader_space(&a->reader, &room);
        size_t n = port_read(&a->port, to, room);

        if (n == 0) {
            return;
        }
        agent_reader_commit(&a->reader, n);
        total += n;
        execute_requests(a);
    }
}

/* Takes channels in turn, one step each. */
static void serve_streams(struct agent *a)
{
    int steps = 0;

    while (!list_is_empty(&a->active) && steps < STEPS_PER_TURN) {
        struct stream *s = list_entry(a->active.next, struct stream, in_active);

        list_remove(&s->in_active);
        if (stream_step(s)) {
            stream_activate(s); /* unless the step did: the end of its process activates streams */
        }
        steps++;
    }
}

static void act_on_time(struct agent *a)
{
    int64_t now_ms = clock_monotonic_ms();
    struct list *it;
    struct list *next;

    if (a->memory_short) {
        a->memory_short = false;
        list_foreach(it, next, &a->channels.all)
        {
            struct channel *c = list_entry(it, struct channel, in_all);

            stream_activate(&c->streams[0]);
            stream_activate(&c->streams[1]);
        }
    }
    agent_continue_silence(a, now_ms);
    if (now_ms < a->next_deadline_ms) {
        return;
    }
    a->deadlines_changed = true;
    list_foreach(it, next, &a->channels.all)
    {
        channel_on_time(list_entry(it, struct channel, in_all), now_ms);
    }
}

static void find_next_deadline(struct agent *a)
{
    struct list *it;
    struct list *next;

    if (!a->deadlines_changed) {
        return;
    }
    a->deadlines_changed = false;
    a->next_deadline_ms = INT64_MAX;
    list_foreach(it, next, &a->channels.all)
    {
        int64_t at = channel_next_deadline(list_entry(it, struct channel, in_all));

        a->next_deadline_ms = at < a->next_deadline_ms ? at : a->next_deadline_ms;
    }
}

/* How long the next turn may wait: -1 for ever, which is what an idle agent does. */
static int64_t next_timeout_ns(struct agent *a)
{
    int64_t rest_ns = streams_end_rests(a);
    int64_t next_ms;
    int64_t left_ns;

    find_next_deadline(a);
    if (a->reap_again || !list_is_empty(&a->active) || a->port.lost ||
        (a->port.readable && a->tx.n < TX_BACKLOG_MAX)) {
        return 0;
    }
    next_ms = a->next_deadline_ms;
    if (a->voice == AGENT_FALLING_SILENT && a->silence_until_ms < next_ms) {
        next_ms = a->silence_until_ms;
    }
    if (a->memory_short) {
        int64_t retry_ms = clock_monotonic_ms() + MEMORY_RETRY_MS;

        next_ms = retry_ms < next_ms ? retry_ms : next_ms;
    }
    if (next_ms != INT64_MAX && next_ms < rest_ns / 1000000) {
        rest_ns = next_ms * 1000000;
    }
    if (rest_ns == INT64_MAX) {
        return -1;
    }
    left_ns = rest_ns - clock_monotonic_ns();
    if (left_ns < 0) {
        return 0;
    }
    return left_ns < WAIT_MAX_NS ? left_ns : WAIT_MAX_NS;
}

/* The agent comes before everything in the guest, the kernel's own work for a terminal included,
 * and bulk output would keep it busy until the pipe is empty: it waits for the echo instead. */
static void wait_for_echo(struct agent *a)
{
    if (a->key_taken && !(list_is_empty(&a->active) && list_is_empty(&a->resting))) {
        source_dispatch(a->epoll_fd, ECHO_WAIT_NS);
    }
    a->key_taken = false;
}

void agent_turn(struct agent *a)
{
    bool was_blocked = a->port.blocked;
    int64_t timeout_ns = next_timeout_ns(a);

    if (timeout_ns > 0 && timeout_ns <= REST_SLEEP_NS && !list_is_empty(&a->resting)) {
        /* Asleep, not waiting for events: the port reports each buffer that the host took, and each
         * report would take the processor from the process that fills the pipe. */
        const struct timespec rest = {0, timeout_ns};

        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, NULL);
        timeout_ns = 0;
    }
    source_dispatch(a->epoll_fd, timeout_ns);
    if (timeout_ns >= 0) {
        act_on_time(a);
    }
    if (a->port.lost) {
        a->port.lost = false;
        end_conversation(a);
    }
    if (a->reap_again) {
        agent_reap(a);
    }
    (void)agent_flush(a);
    read_requests(a);
    if (was_blocked && !a->port.blocked) {
        agent_speak_again(a);
    }
    wait_for_echo(a);
    serve_streams(a);
    (void)agent_flush(a);
    channels_sweep(a);
    if (a->process_ended) {
        a->process_ended = false;
        cgroups_prepare(&a->cgroups); /* now that nobody waits for it */
    }
}

void agent_run(struct agent *a)
{
    while (!a->stop && !a->port.gone) {
        agent_turn(a);
    }
}
