#include "node/spool.h"

#include <errno.h>
#include <string.h>

#include "base/fd.h"
#include "base/log.h"
#include "node/spool_private.h"

struct spool *spool_new(struct spool_store *store,
                        int dir_fd,
                        const char *session_id,
                        const struct spool_limits *limits)
{
    struct spool *spool = calloc(1, sizeof(*spool));

    if (spool == NULL) {
        return NULL;
    }
    spool->store = store;
    spool->dir_fd = dir_fd;
    spool->limits = *limits;
    spool->dropping = true;
    list_init(&spool->lru);
    list_init(&spool->pins);
    spool->held = buf_make(0);
    (void)snprintf(spool->session_id, sizeof(spool->session_id), "%s", session_id);
    for (unsigned int i = 0; i < SPOOL_FILES; i++) {
        spool->fds[i] = -1;
    }
    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        spool->memory[i] = buf_make(0);
        spool->head_end[i] = ORDER_HEAD_WHOLE;
    }
    return spool;
}

static void forget_memory(struct spool *spool)
{
    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        spool->store->memory_bytes -= spool->memory[i].n;
        buf_done(&spool->memory[i]);
        spool->memory[i] = buf_make(0);
    }
}

void spool_free(struct spool *spool)
{
    if (spool == NULL) {
        return;
    }
    spool_uncount(spool);
    spool_close_files(spool);
    while (!list_is_empty(&spool->pins)) {
        list_remove(spool->pins.next);
    }
    forget_memory(spool);
    spool_let_go(spool);
    free(spool->marks);
    free(spool);
}

void spool_detach(struct spool *spool)
{
    spool_close_files(spool);
    spool->detached = true;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t spool_head(const struct spool *spool, unsigned int stream)
{
    uint64_t whole = min_u64(spool->head_end[stream], spool->end.at[stream]);

    return spool->start.at[stream] == 0 ? whole : min_u64(whole, spool->limits.head_keep);
}

/* Bytes of both streams from here on are not there. */
static void end_heads(struct spool *spool)
{
    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        spool->head_end[i] = min_u64(spool->head_end[i], spool->end.at[i]);
    }
}

const struct order_position *spool_start(const struct spool *spool)
{
    return &spool->start;
}

const struct order_position *spool_end(const struct spool *spool)
{
    return &spool->end;
}

uint64_t spool_retained(const struct spool *spool)
{
    return order_total(&spool->end) - order_total(&spool->start);
}

uint64_t spool_order_bytes(const struct spool *spool)
{
    return spool->exists[SPOOL_ORDER] ? (spool->mark_count - spool->mark_first) * ORDER_RECORD_BYTES
                                      : 0;
}

uint64_t spool_usage(const struct spool *spool)
{
    uint64_t bytes = spool_retained(spool) + spool_order_bytes(spool);

    /* Of the heads, what is before the start. */
    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        bytes += min_u64(spool->start.at[i], min_u64(spool->head_end[i], spool->limits.head_keep));
    }
    return bytes;
}

void spool_uncount(struct spool *spool)
{
    if (spool->limits.group != NULL) {
        spool->limits.group->bytes -= spool->counted;
        spool->counted = 0;
    }
}

void spool_count(struct spool *spool)
{
    spool_uncount(spool);
    if (spool->limits.group != NULL) {
        spool->counted = spool_usage(spool);
        spool->limits.group->bytes += spool->counted;
    }
}

uint64_t spool_kept(const struct spool *spool, unsigned int stream)
{
    return spool->in_files ? spool->end.at[stream] : 0;
}

void spool_set_dropping(struct spool *spool, bool dropping)
{
    spool->dropping = dropping;
}

/* ---- the order ---- */

static int add_mark_in_memory(struct spool *spool, const struct order_mark *mark)
{
    /* Grows by doubling from 1: most sessions have one stream. */
    if ((spool->mark_count & (spool->mark_count - 1)) == 0) {
        size_t room = spool->mark_count == 0 ? 1 : (size_t)spool->mark_count * 2;
        struct order_mark *grown = realloc(spool->marks, room * sizeof(*grown));

        if (grown == NULL) {
            return -ENOMEM;
        }
        spool->marks = grown;
    }
    spool->marks[spool->mark_count] = *mark;
    return 0;
}

int spool_begin_run(struct spool *spool, unsigned int stream)
{
    struct order_mark mark = {spool->end, stream};
    int r;

    if (spool->mark_count > spool->mark_first && spool->last.stream == stream) {
        return 0;
    }
    if (!spool->in_files || (spool->mark_count == 0 && !spool->exists[SPOOL_ORDER])) {
        r = add_mark_in_memory(spool, &mark);
    } else {
        r = spool_make_order(spool);
        if (r == 0) {
            r = spool_write_mark(spool, spool->mark_count, &mark);
        }
    }
    if (r == 0) {
        spool->last = mark;
        spool->mark_count++;
    }
    return r;
}

/* ---- dropping ---- */

/* Writes the start down. Until that is done a restart would offer bytes that are holes, so every
 * append tries again. */
static void save_start(struct spool *spool)
{
    spool->start_unsaved = spool_make_order(spool) < 0 || spool_write_head(spool) < 0;
}

static void set_start(struct spool *spool, const struct order_position *start, uint64_t first)
{
    spool->start = *start;
    spool->mark_first = first;
    save_start(spool);
    spool_punch(spool);
    if (spool->start_unsaved) {
        save_start(spool); /* the disk was full: now there is room */
    }
    if (spool->start_unsaved) {
        log_warning("spool head not written", "session=%s", spool->session_id);
    }
    spool_count(spool);
}

void spool_discard(struct spool *spool)
{
    if (spool->detached) {
        return;
    }
    if (!spool->in_files) {
        forget_memory(spool);
        spool->in_files = true;
    }
    memset(spool->head_end, 0, sizeof(spool->head_end));
    memset(spool->punched, 0, sizeof(spool->punched));
    spool->limits.head_keep = 0;
    set_start(spool, &spool->end, spool->mark_count);
}

void spool_drop_before(struct spool *spool, const struct order_position *position)
{
    uint64_t index;

    if (order_total(position) <= order_total(&spool->start) || !spool->in_files ||
        spool_find_mark(spool, order_total(position), &index) < 0) {
        return;
    }
    set_start(spool, position, index);
}

static uint64_t marks_max(const struct spool *spool)
{
    uint64_t n = spool->limits.max_bytes / SPOOL_BYTES_PER_MARK;

    return n > SPOOL_MARKS_MIN ? n : SPOOL_MARKS_MIN;
}

/* Position of the path with this total length. */
static int position_at(struct spool *spool, uint64_t total, struct order_position *ret_at)
{
    struct order_mark mark = {0};
    uint64_t index;
    int r = spool_find_mark(spool, total, &index);

    if (r == 0) {
        r = spool_get_mark(spool, index, &mark);
    }
    if (r < 0) {
        return r;
    }
    *ret_at = mark.begin;
    ret_at->at[mark.stream] += total - order_total(&mark.begin);
    return 0;
}

/* Over the limit, an eighth is dropped at once, so that holes and heads are rare. */
static void drop_excess(struct spool *spool)
{
    uint64_t max = spool->limits.max_bytes;
    struct order_position at;
    struct order_mark mark;

    if (!spool->in_files || !spool->dropping) {
        return;
    }
    if (spool_retained(spool) > max &&
        position_at(spool, order_total(&spool->end) - (max - max / 8), &at) == 0) {
        spool_drop_before(spool, &at);
    }
    if (spool->mark_count - spool->mark_first > marks_max(spool) &&
        spool_get_mark(spool, spool->mark_first + marks_max(spool) / 8, &mark) == 0) {
        spool_drop_before(spool, &mark.begin);
    }
}

/* ---- appending ---- */

int spool_write_stream(struct spool *spool, unsigned int stream, uint64_t offset, struct span bytes)
{
    int r = spool_open_file(spool, stream, true);

    return r < 0 ? r : fd_pwrite_all(spool->fds[stream], bytes, (off_t)offset);
}

/* The filesystem took no more: give back what this session has, then let go of the new bytes. */
void spool_append_dropping(struct spool *spool, unsigned int stream, struct span bytes, int why)
{
    if (!spool->logged_full) {
        spool->logged_full = true;
        log_warning("output dropped", "session=%s error=\"%s\"", spool->session_id, strerror(-why));
    }
    spool_drop_before(spool, &spool->end);
    if (spool_begin_run(spool, stream) == 0 &&
        spool_write_stream(spool, stream, spool->end.at[stream], bytes) == 0) {
        spool->end.at[stream] += bytes.n;
        spool_count(spool);
        return;
    }
    end_heads(spool);
    spool->end.at[stream] += bytes.n;
    spool->start = spool->end;
    spool->mark_first = spool->mark_count; /* the next run begins with a new mark */
    save_start(spool);
    spool_count(spool);
}

void spool_skip(struct spool *spool, unsigned int stream, uint64_t n)
{
    end_heads(spool);
    spool->end.at[stream] += n;
    set_start(spool, &spool->end, spool->mark_count);
}

static void append_to_files(struct spool *spool, unsigned int stream, struct span bytes)
{
    int r;

    if (spool->start_unsaved) {
        save_start(spool);
    }
    r = spool_begin_run(spool, stream);
    if (r == 0) {
        r = spool_write_stream(spool, stream, spool->end.at[stream], bytes);
    }
    if (r < 0 && !spool->dropping) {
        spool_hold(spool, stream, bytes, r);
        return;
    }
    if (r < 0) {
        spool_append_dropping(spool, stream, bytes, r);
        return;
    }
    spool->end.at[stream] += bytes.n;
    drop_excess(spool);
    spool_count(spool);
}

static bool fits_in_memory(const struct spool *spool, struct span bytes)
{
    return !spool->in_files &&
           spool->memory[0].n + spool->memory[1].n + bytes.n <= SPOOL_MEMORY_MAX &&
           spool->mark_count < SPOOL_MEMORY_MARKS &&
           spool->store->memory_bytes + bytes.n <= SPOOL_MEMORY_TOTAL_MAX;
}

void spool_append(struct spool *spool, unsigned int stream, struct span bytes)
{
    if (spool->detached) {
        spool->end.at[stream] += bytes.n;
        return;
    }
    if (spool_is_holding(spool)) {
        spool_hold(spool, stream, bytes, -ENOSPC);
        return;
    }
    if (fits_in_memory(spool, bytes) && spool_begin_run(spool, stream) == 0) {
        buf_put(&spool->memory[stream], bytes);
        if (buf_error(&spool->memory[stream]) == 0) {
            spool->store->memory_bytes += bytes.n;
            spool->end.at[stream] += bytes.n;
            spool_count(spool);
            return;
        }
        spool->memory[stream].error = 0;
    }
    if (!spool->in_files) {
        int r = spool_flush(spool);

        if (r < 0 && !spool->dropping) {
            spool_hold(spool, stream, bytes, r);
            return;
        }
        if (r < 0) {
            log_warning("spool files not made", "session=%s error=\"%s\"", spool->session_id,
                        strerror(-r));
            /* What was in memory is dropped with the rest. */
            forget_memory(spool);
            memset(spool->head_end, 0, sizeof(spool->head_end));
            spool->in_files = true;
            spool->start = spool->end;
            spool->start_unsaved = true;
            spool->mark_first = spool->mark_count;
        }
    }
    append_to_files(spool, stream, bytes);
}

int spool_flush(struct spool *spool)
{
    int r = 0;

    if (spool->in_files || spool->detached) {
        return 0;
    }
    if (spool->mark_count > 1) {
        r = spool_write_order(spool);
    }
    for (unsigned int i = 0; r == 0 && i < ORDER_STREAMS; i++) {
        if (spool->memory[i].n > 0) {
            r = spool_write_stream(spool, i, 0, buf_span(&spool->memory[i]));
        }
    }
    if (r < 0) {
        return r;
    }
    if (spool->mark_count > 1) {
        free(TAKE(spool->marks));
    }
    forget_memory(spool);
    spool->in_files = true;
    spool_count(spool);
    return 0;
}
