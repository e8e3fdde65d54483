/* Who reads a process's output, and `on_full: block`: how far the writer may be ahead of them.
 *
 * With `block` the writer is held back while spool_bytes are unread by the furthest attached
 * reader. When the last one goes, what it had counts as read, and so does what GET output has given
 * out; nothing else is dropped before a reader had it. What is read stays for a while: bytes on
 * their way may be lost with a connection, and are asked for again. */
#include <string.h>

#include "base/clock.h"
#include "node/agent.h"
#include "node/data.h"
#include "node/node.h"
#include "node/process_private.h"
#include "node/process_stream.h"

/* Kept behind the furthest reader, at least; half of spool_bytes if that is more. What a reader had
 * is what was handed to its connection, and nobody says what has come out at the other end: this
 * covers what may be on the way when it breaks. Those are our queues and the unix sockets between
 * the programs (1 MiB together), a TCP socket's output (4 MiB, as far as Linux lets it grow) and
 * the client's own input, which grows to 6 MiB by itself and to more where the client asks for it.
 */
#define BEHIND_BYTES_MIN (32U * 1048576U)

static uint64_t later(uint64_t total, const struct order_position *position)
{
    uint64_t other = order_total(position);

    return other > total ? other : total;
}

/* How long the path is that has been read. */
static uint64_t read_total(const struct process *p)
{
    uint64_t total = order_total(spool_start(p->spool));
    struct list *it;
    struct list *following;

    total = later(total, &p->polled);
    if (list_is_empty(&p->readers)) {
        return later(total, &p->left);
    }
    list_foreach(it, following, &p->readers)
    {
        total = later(total, &list_entry(it, struct process_reader, link)->had);
    }
    return total;
}

/* Whether its writer is to be held back. */
static bool must_wait(const struct process *p)
{
    if (!p->block_when_full) {
        return false;
    }
    if (order_total(spool_end(p->spool)) - read_total(p) >= p->spool_bytes) {
        return true;
    }
    if (process_table_is_over(p->table)) {
        p->table->held = true;
        return true;
    }
    return false;
}

void process_acknowledge(struct process *p)
{
    bool waits;

    if (p->channel == NULL) {
        return;
    }
    waits = must_wait(p);
    process_timeout_note(p, waits || spool_is_holding(p->spool));
    if (waits) {
        return;
    }
    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        agent_channel_ack(p->channel, AGENT_STDOUT + i, spool_kept(p->spool, i));
    }
}

void process_trim(struct process *p, uint64_t behind)
{
    uint64_t unread = order_total(spool_end(p->spool)) - read_total(p);
    struct order_position keep;

    if (spool_find_tail(p->spool, unread + behind, &keep) == 0) {
        spool_drop_before(p->spool, &keep);
    }
}

/* The readers have moved, come or gone: drops what they all had long ago, and lets the writer go on
 * if it may. */
static void review(struct process *p)
{
    uint64_t behind = p->spool_bytes / 2;

    if (!p->block_when_full) {
        return;
    }
    behind = behind > BEHIND_BYTES_MIN ? behind : BEHIND_BYTES_MIN;
    process_trim(p, process_table_is_over(p->table) ? 0 : behind);
    process_acknowledge(p);
    process_table_wake(p->table);
}

int process_add_reader(struct process *p, struct process_reader *reader, struct error *err)
{
    uint64_t max = p->table->data->node->settings.node_max_attached;

    if (p->table->attached >= max) {
        return error_set_code(err, ERROR_LIMIT_EXCEEDED, "node.max_attached",
                              "the sandbox has %zu attached readers, as many as it may",
                              p->table->attached);
    }
    p->table->attached++;
    list_append(&p->readers, &reader->link);
    review(p);
    return 0;
}

void process_move_reader(struct process *p,
                         struct process_reader *reader,
                         const struct order_position *had)
{
    if (order_total(had) > order_total(&reader->had)) {
        reader->had = *had;
        review(p);
    }
}

void process_remove_reader(struct process *p, struct process_reader *reader)
{
    if (list_is_empty(&reader->link)) {
        return;
    }
    list_remove(&reader->link);
    p->table->attached--;
    if (list_is_empty(&p->readers) && order_total(&reader->had) > order_total(&p->left)) {
        p->left = reader->had;
    }
    review(p);
}

bool process_gathers(const struct process *p, uint64_t unread)
{
    return !p->block_when_full && !process_is_ended(p) &&
           gather_wants(&p->gather, unread, p->spool_bytes, clock_monotonic_ms());
}

/* The furthest position of the path at which no more of a stream than up to `offset` has been
 * passed. */
static int
find_passed(struct process *p, unsigned int stream, uint64_t offset, struct order_position *ret)
{
    if (offset >= spool_end(p->spool)->at[stream]) {
        *ret = *spool_end(p->spool); /* all of it: what follows is the other's */
        return 0;
    }
    return spool_find_offset(p->spool, stream, offset, ret);
}

void process_note_stream_read(struct process *p, unsigned int stream, uint64_t offset)
{
    uint64_t end = spool_end(p->spool)->at[stream];
    struct order_position at[ORDER_STREAMS];

    offset = offset < end ? offset : end; /* one beyond is refused by who reads */
    if (!p->block_when_full || offset <= p->asked.at[stream]) {
        return;
    }
    p->asked.at[stream] = offset;
    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        if (find_passed(p, i, p->asked.at[i], &at[i]) < 0) {
            return;
        }
    }
    if (order_total(&at[1]) < order_total(&at[0])) {
        at[0] = at[1];
    }
    if (order_total(&at[0]) > order_total(&p->polled)) {
        p->polled = at[0];
        review(p);
    }
}
