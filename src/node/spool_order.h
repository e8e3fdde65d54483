/* The order log of a session: where runs of stdout and stderr begin, so that a replay keeps the
 * interleaving of the two streams.
 *
 * The output of a session is a path: each byte moves one of two offsets on by one. A mark is the
 * point of the path where a run of one stream begins; a run ends where the next mark is. The file
 * is a head of ORDER_HEAD_BYTES and one record of ORDER_RECORD_BYTES per mark, written before the
 * first byte of its run, so that after a crash the data files' lengths are the truth and the log
 * fits them once marks beyond them are cut off. It is read back as hostile input. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/span.h"

#define ORDER_HEAD_BYTES   64U
#define ORDER_RECORD_BYTES 16U
#define ORDER_STREAMS      2U

struct order_position {
    uint64_t at[ORDER_STREAMS]; /* offsets in stdout and stderr */
};

struct order_mark {
    struct order_position begin;
    unsigned int stream; /* index: 0 stdout, 1 stderr */
};

struct order_head {
    struct order_position start;      /* what is before it was dropped */
    uint64_t first;                   /* index of the first mark that is still valid */
    uint64_t head_end[ORDER_STREAMS]; /* each stream's begin is whole up to here */
};

#define ORDER_HEAD_WHOLE UINT64_MAX /* head_end: nothing was lost */
#define ORDER_HEAD_INIT  ((struct order_head){.head_end = {ORDER_HEAD_WHOLE, ORDER_HEAD_WHOLE}})

/* Length of the path up to a position. */
static inline uint64_t order_total(const struct order_position *p)
{
    return p->at[0] + p->at[1];
}

void order_head_format(const struct order_head *head, uint8_t out[ORDER_HEAD_BYTES]);
/* 0 or -EBADMSG. */
int order_head_parse(struct span in, struct order_head *ret_head) _must_check_;
void order_mark_format(const struct order_mark *mark, uint8_t out[ORDER_RECORD_BYTES]);
int order_mark_parse(struct span in, struct order_mark *ret_mark) _must_check_;
/* Whether `next` may follow `mark` on a path. */
bool order_mark_follows(const struct order_mark *mark, const struct order_mark *next);

/* Judges the records of a log, fed in pieces. */
struct order_check {
    struct order_position size; /* lengths of the data files */
    struct order_head head;
    uint64_t index; /* of the next record to be fed */
    uint64_t valid; /* one past the last good record */
    struct order_mark last;
    bool stopped;
};

void order_check_start(struct order_check *c,
                       const struct order_head *head,
                       const struct order_position *size);
/* Takes whole records (a cut one at the end of the file is not given). */
void order_check_feed(struct order_check *c, struct span records);
/* The mark that has to be added so that all data is on the path: returns true and fills ret. Call
 * again after adding it to c->last until it returns false. */
bool order_check_missing(struct order_check *c, struct order_mark *ret_mark);
