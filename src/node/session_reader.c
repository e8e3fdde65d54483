#include "node/session_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "node/signal_name.h"

const char *session_stream_name(unsigned int stream)
{
    static const char *const names[ORDER_STREAMS] = {"stdout", "stderr"};

    return names[stream];
}

void session_reader_init(struct session_reader *reader, struct process *p)
{
    memset(reader, 0, sizeof(*reader));
    reader->process = p;
    list_init(&reader->attached.link);
}

int session_reader_attach(struct session_reader *reader, struct error *err)
{
    reader->attached.had = reader->at;
    return process_add_reader(reader->process, &reader->attached, err);
}

bool session_reader_gathers(const struct session_reader *reader)
{
    return reader->process != NULL && reader->phase == SESSION_PHASE_STARTED &&
           process_gathers(reader->process, order_total(spool_end(reader->process->spool)) -
                                                order_total(&reader->at));
}

void session_reader_detach(struct session_reader *reader)
{
    if (reader->process != NULL) {
        process_remove_reader(reader->process, &reader->attached);
    }
    reader->process = NULL;
}

int session_reader_seek(struct session_reader *reader,
                        const struct order_position *offsets,
                        struct error *err)
{
    struct spool *spool = reader->process->spool;
    const struct order_position *start = spool_start(spool);
    const struct order_position *end = spool_end(spool);
    struct order_position first = *end;

    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        struct order_position at = *start;
        int r = 0;

        if (offsets->at[i] > end->at[i]) {
            return error_set_code(err, ERROR_INVALID_REQUEST, session_stream_name(i),
                                  "%s must be at most %" PRIu64 ", the end so far",
                                  session_stream_name(i), end->at[i]);
        }
        if (offsets->at[i] > start->at[i]) {
            r = spool_find_offset(spool, i, offsets->at[i], &at);
        }
        if (r < 0 && r != -ESTALE) {
            return error_set(err, -r, "the session cannot be read: %s", strerror(-r));
        }
        if (order_total(&at) < order_total(&first)) {
            first = at;
        }
    }
    reader->at = first;
    reader->wanted = *offsets;
    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        if (offsets->at[i] < start->at[i]) {
            reader->at.at[i] = offsets->at[i]; /* a gap up to the start */
        }
    }
    return 0;
}

/* What lies before `to` on the path cannot be read. True when some of it was wanted. */
static bool take_gap(struct session_reader *reader,
                     const struct order_position *to,
                     struct session_item *ret_item)
{
    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        uint64_t from = reader->at.at[i];

        if (from >= to->at[i]) {
            continue;
        }
        reader->at.at[i] = to->at[i];
        from = from < reader->wanted.at[i] ? reader->wanted.at[i] : from;
        if (from < to->at[i]) {
            *ret_item = (struct session_item){SESSION_ITEM_GAP, i, from, to->at[i] - from};
            return true;
        }
    }
    return false;
}

/* The next piece of output or gap. 1 when there is one, 0, or -errno. */
static int take_output(struct session_reader *reader,
                       size_t max,
                       struct buf *bytes,
                       struct session_item *ret_item)
{
    struct spool *spool = reader->process->spool;

    for (;;) {
        struct spool_run run;
        uint64_t *at;
        size_t n;
        int r;

        if (order_total(&reader->at) < order_total(spool_start(spool)) &&
            take_gap(reader, spool_start(spool), ret_item)) {
            return 1;
        }
        r = spool_find_run(spool, &reader->at, &run);
        if (r < 0 || run.bytes == 0) {
            return r;
        }
        at = &reader->at.at[run.stream];
        if (*at < reader->wanted.at[run.stream]) {
            uint64_t skip = reader->wanted.at[run.stream] - *at;

            *at += skip < run.bytes ? skip : run.bytes;
            continue;
        }
        n = run.bytes < max ? (size_t)run.bytes : max;
        r = spool_read(spool, run.stream, *at, n, bytes);
        if (r < 0) {
            return r;
        }
        *ret_item = (struct session_item){SESSION_ITEM_OUTPUT, run.stream, *at, n};
        *at += n;
        return 1;
    }
}

int session_reader_next(struct session_reader *reader,
                        size_t max,
                        struct buf *bytes,
                        struct session_item *ret_item)
{
    struct process *p = reader->process;
    int r = 0;

    *ret_item = (struct session_item){.kind = SESSION_ITEM_NONE};
    if (p == NULL || reader->phase == SESSION_PHASE_DONE) {
        return 0;
    }
    if (reader->phase == SESSION_PHASE_NEW && p->pid != 0) {
        reader->phase = SESSION_PHASE_STARTED;
        ret_item->kind = SESSION_ITEM_STARTED;
        return 0;
    }
    /* What a reader has seen must be there, in this order, after a restart of this program. A disk
     * that is full cannot keep that promise, which is no reason to hold the output back. */
    if (!reader->unreadable && spool_flush(p->spool) < 0) {
        log_debug("spool not flushed", "process=%s", p->id);
    }
    if (!reader->unreadable) {
        r = take_output(reader, max, bytes, ret_item);
        reader->unreadable = r == -ESTALE;
    }
    if (reader->unreadable) {
        r = take_gap(reader, spool_end(p->spool), ret_item) ? 1 : 0;
    }
    if (r == 0 && process_is_ended(p)) {
        reader->phase = SESSION_PHASE_DONE;
        ret_item->kind = SESSION_ITEM_END;
    }
    return r < 0 ? r : 0;
}

void session_reader_settle(struct session_reader *reader)
{
    if (reader->process != NULL) {
        process_move_reader(reader->process, &reader->attached, &reader->at);
    }
}

/* ---- as JSON ---- */

static json_t *end_fields(const struct process *p)
{
    char name[16];

    if (p->state == PROCESS_STATE_LOST) {
        return json_pack("{s:s}", "reason", p->lost_reason);
    }
    signal_name(p->signal, name);
    return json_pack("{s:o, s:s?, s:b, s:b, s:b, s:I, s:I}", "exit_code",
                     p->exit_code >= 0 ? json_integer(p->exit_code) : json_null(), "signal",
                     p->signal != 0 ? name : NULL, "timed_out", p->timed_out, "out_of_memory",
                     p->out_of_memory, "pipe_held", p->pipe_held, "stdout_bytes",
                     (json_int_t)spool_end(p->spool)->at[0], "stderr_bytes",
                     (json_int_t)spool_end(p->spool)->at[1]);
}

json_t *session_item_fields(const struct session_reader *reader, const struct session_item *item)
{
    switch (item->kind) {
    case SESSION_ITEM_STARTED:
        return json_pack("{s:s, s:I}", "process_id", reader->process->id, "pid",
                         (json_int_t)reader->process->pid);
    case SESSION_ITEM_GAP:
        return json_pack("{s:s, s:I, s:I}", "stream", session_stream_name(item->stream), "offset",
                         (json_int_t)item->offset, "bytes", (json_int_t)item->bytes);
    case SESSION_ITEM_END:
        return end_fields(reader->process);
    case SESSION_ITEM_NONE:
    case SESSION_ITEM_OUTPUT:
        break;
    }
    return NULL;
}

const char *session_item_name(const struct session_reader *reader, const struct session_item *item)
{
    switch (item->kind) {
    case SESSION_ITEM_STARTED:
        return "process_started";
    case SESSION_ITEM_GAP:
        return "gap";
    case SESSION_ITEM_OUTPUT:
        return "output";
    case SESSION_ITEM_END:
        return reader->process->state == PROCESS_STATE_LOST ? "process_lost" : "process_exited";
    case SESSION_ITEM_NONE:
        break;
    }
    return "";
}
