#include "node/spool_order.h"

#include <errno.h>

#include "base/reader.h"

static const uint8_t head_magic[8] = {'S', 'P', 'O', 'R', 'D', 'E', 'R', '1'};

#define STREAM_BIT (1ULL << 63U)
#define OFFSET_MAX (1ULL << 62U)

static void store_u64(uint8_t *out, uint64_t v)
{
    for (unsigned int i = 0; i < 8; i++) {
        out[i] = (uint8_t)(v >> (8U * i));
    }
}

void order_head_format(const struct order_head *head, uint8_t out[ORDER_HEAD_BYTES])
{
    memset(out, 0, ORDER_HEAD_BYTES);
    memcpy(out, head_magic, sizeof(head_magic));
    store_u64(&out[8], head->start.at[0]);
    store_u64(&out[16], head->start.at[1]);
    store_u64(&out[24], head->first);
    /* 0 is what logs of the first release have there. */
    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        store_u64(&out[32 + 8 * i],
                  head->head_end[i] == ORDER_HEAD_WHOLE ? 0 : head->head_end[i] + 1);
    }
}

static bool is_head_end(uint64_t offset)
{
    return offset <= OFFSET_MAX || offset == ORDER_HEAD_WHOLE;
}

int order_head_parse(struct span in, struct order_head *ret_head)
{
    struct reader r = reader_make(span_head(in, ORDER_HEAD_BYTES));
    struct span magic = reader_get_bytes(&r, sizeof(head_magic));
    struct order_head head;

    head.start.at[0] = reader_get_u64(&r);
    head.start.at[1] = reader_get_u64(&r);
    head.first = reader_get_u64(&r);
    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        head.head_end[i] = reader_get_u64(&r) - 1; /* 0 becomes ORDER_HEAD_WHOLE */
    }
    (void)reader_get_bytes(&r, ORDER_HEAD_BYTES - 48U);
    if (reader_finish(&r) < 0 || !span_equals(magic, span_make(head_magic, sizeof(head_magic))) ||
        head.start.at[0] > OFFSET_MAX || head.start.at[1] > OFFSET_MAX ||
        head.first > OFFSET_MAX / ORDER_RECORD_BYTES || !is_head_end(head.head_end[0]) ||
        !is_head_end(head.head_end[1])) {
        return -EBADMSG;
    }
    *ret_head = head;
    return 0;
}

void order_mark_format(const struct order_mark *mark, uint8_t out[ORDER_RECORD_BYTES])
{
    store_u64(out, mark->begin.at[0] | (mark->stream == 1 ? STREAM_BIT : 0));
    store_u64(&out[8], mark->begin.at[1]);
}

int order_mark_parse(struct span in, struct order_mark *ret_mark)
{
    struct reader r = reader_make(in);
    uint64_t first = reader_get_u64(&r);
    struct order_mark mark;

    mark.stream = (first & STREAM_BIT) != 0 ? 1 : 0;
    mark.begin.at[0] = first & ~STREAM_BIT;
    mark.begin.at[1] = reader_get_u64(&r);
    if (reader_finish(&r) < 0 || mark.begin.at[0] > OFFSET_MAX || mark.begin.at[1] > OFFSET_MAX) {
        return -EBADMSG;
    }
    *ret_mark = mark;
    return 0;
}

bool order_mark_follows(const struct order_mark *mark, const struct order_mark *next)
{
    unsigned int other = 1U - mark->stream;

    return next->begin.at[mark->stream] >= mark->begin.at[mark->stream] &&
           next->begin.at[other] == mark->begin.at[other];
}

void order_check_start(struct order_check *c,
                       const struct order_head *head,
                       const struct order_position *size)
{
    memset(c, 0, sizeof(*c));
    c->head = *head;
    c->size = *size;
    c->index = head->first;
    c->valid = head->first;
}

/* Marks are on the path, within the data, and the first valid one is not behind the start. */
static bool fits(const struct order_check *c, const struct order_mark *mark)
{
    if (mark->begin.at[0] > c->size.at[0] || mark->begin.at[1] > c->size.at[1]) {
        return false;
    }
    if (c->valid == c->head.first) {
        return mark->begin.at[0] <= c->head.start.at[0] && mark->begin.at[1] <= c->head.start.at[1];
    }
    return order_mark_follows(&c->last, mark);
}

void order_check_feed(struct order_check *c, struct span records)
{
    while (!c->stopped && records.n >= ORDER_RECORD_BYTES) {
        struct order_mark mark;

        if (order_mark_parse(span_head(records, ORDER_RECORD_BYTES), &mark) < 0 ||
            !fits(c, &mark)) {
            c->stopped = true;
            return;
        }
        c->last = mark;
        c->index++;
        c->valid = c->index;
        records = span_skip(records, ORDER_RECORD_BYTES);
    }
}

bool order_check_missing(struct order_check *c, struct order_mark *ret_mark)
{
    struct order_mark mark;
    unsigned int other;

    if (c->valid == c->head.first) {
        /* No mark is left: the path goes on from the start with whatever stream has data. */
        if (c->size.at[0] == c->head.start.at[0] && c->size.at[1] == c->head.start.at[1]) {
            return false;
        }
        mark.begin = c->head.start;
        mark.stream = c->size.at[0] > c->head.start.at[0] ? 0 : 1;
    } else {
        other = 1U - c->last.stream;
        if (c->size.at[other] == c->last.begin.at[other]) {
            return false;
        }
        mark.begin.at[c->last.stream] = c->size.at[c->last.stream];
        mark.begin.at[other] = c->last.begin.at[other];
        mark.stream = other;
    }
    c->last = mark;
    c->valid++;
    *ret_mark = mark;
    return true;
}
