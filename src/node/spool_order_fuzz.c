/* The order log as recovery reads it: the data files' sizes, a head, records, all of them any
 * bytes. What is accepted must be one path from the start to the sizes, and the same in one piece
 * or many.
 */
#include "node/spool_order.h"

#include <stdlib.h>
#include <string.h>

#include "base/reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

/* Recovery has made the sizes at least the start. */
static void lift(struct order_position *size, const struct order_head *head)
{
    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        size->at[i] &= (1ULL << 62U) - 1;
        if (size->at[i] < head->start.at[i]) {
            size->at[i] = head->start.at[i];
        }
    }
}

static void check_round_trip(const struct order_mark *mark)
{
    uint8_t bytes[ORDER_RECORD_BYTES];
    struct order_mark again;

    order_mark_format(mark, bytes);
    require(order_mark_parse(span_make(bytes, sizeof(bytes)), &again) == 0);
    require(memcmp(&again.begin, &mark->begin, sizeof(again.begin)) == 0 &&
            again.stream == mark->stream);
}

static void check_head(const struct order_head *head)
{
    uint8_t bytes[ORDER_HEAD_BYTES];
    struct order_head again;

    order_head_format(head, bytes);
    require(order_head_parse(span_make(bytes, sizeof(bytes)), &again) == 0);
    require(memcmp(&again, head, sizeof(again)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reader r = reader_make(span_make(data, size));
    struct order_position end = {{reader_get_u64(&r), reader_get_u64(&r)}};
    struct span log = r.rest;
    struct span records = span_skip(log, ORDER_HEAD_BYTES);
    struct order_head head = ORDER_HEAD_INIT;
    struct order_check whole;
    struct order_check parts;
    struct order_mark mark;
    unsigned int added = 0;

    if (order_head_parse(log, &head) == 0) {
        check_head(&head);
    }
    lift(&end, &head);
    order_check_start(&whole, &head, &end);
    order_check_start(&parts, &head, &end);
    order_check_feed(&whole, records);
    while (records.n >= ORDER_RECORD_BYTES) {
        order_check_feed(&parts, span_head(records, ORDER_RECORD_BYTES));
        records = span_skip(records, ORDER_RECORD_BYTES);
    }
    require(whole.valid == parts.valid && whole.stopped == parts.stopped);
    if (whole.valid > head.first) {
        check_round_trip(&whole.last);
    }
    while (order_check_missing(&whole, &mark)) {
        check_round_trip(&mark);
        require(++added <= 2);
    }
    if (whole.valid > head.first) {
        unsigned int other = 1U - whole.last.stream;

        require(whole.last.begin.at[other] == end.at[other]);
        require(whole.last.begin.at[whole.last.stream] <= end.at[whole.last.stream]);
    } else {
        require(end.at[0] == head.start.at[0] && end.at[1] == head.start.at[1]);
    }
    return 0;
}
