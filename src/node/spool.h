/* The output of one session, kept with byte offsets.
 *
 * Theory of operation. Output begins in memory (SPOOL_MEMORY_MAX bytes, unacknowledged to the
 * guest, which keeps a copy) and moves to files when it grows or its process ends:
 * `sessions/<se>.out` and `.err`, where a file's offset is the stream's offset, and `.order`, the
 * order log (spool_order.h), which exists only when both streams have data or something was
 * dropped. What exceeds the limit is dropped from the oldest end of the whole path, by holes in
 * the files; the first `head_keep` bytes of each stream are kept besides, for collected results.
 * Nothing is synced: after kill -9 of this program the files' lengths are the truth and the guest
 * sends the rest again; a crash of the host ends the guests anyway.
 * When the disk is full, older output of the session makes room; failing that the new output is
 * dropped and shows as a gap like any other. Where nothing may be dropped, the new output is held
 * in memory, unacknowledged and behind the spool's end, until there is room: the guest's window
 * bounds it. Descriptors are opened when needed, and the least recently used are closed beyond a
 * limit. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/id.h"
#include "base/list.h"
#include "base/span.h"
#include "node/spool_order.h"

struct buf;
struct spool;

#define SPOOL_MEMORY_MAX       16384U
#define SPOOL_MEMORY_MARKS     256U
#define SPOOL_MEMORY_TOTAL_MAX (64U * 1024U * 1024U)
#define SPOOL_OPEN_MAX         512U

/* Shared by all spools of a node; embed one and init it. */
struct spool_store {
    struct list open; /* spools with open descriptors, most recently used first */
    unsigned int open_count;
    unsigned int open_max;
    uint64_t memory_bytes;
};

/* Spools that are limited together, those of a sandbox; embed one, all zero. */
struct spool_group {
    uint64_t bytes; /* that its spools keep */
};

struct spool_limits {
    uint64_t max_bytes;        /* kept, both streams together */
    uint64_t head_keep;        /* of each stream, never dropped by max_bytes */
    struct spool_group *group; /* may be NULL */
};

void spool_store_init(struct spool_store *store);

/* dir_fd (borrowed, must stay open as long as the spool) is the sandbox's directory. */
struct spool *spool_new(struct spool_store *store,
                        int dir_fd,
                        const char *session_id,
                        const struct spool_limits *limits);
/* A spool that an earlier run of this program left behind; missing files are empty streams.
 * 0 or -errno. */
int spool_recover(struct spool_store *store,
                  int dir_fd,
                  const char *session_id,
                  const struct spool_limits *limits,
                  struct spool **ret_spool) _must_check_;
/* Closes the files and forgets the memory; the files stay. */
void spool_free(struct spool *spool);
/* Removes the files. */
void spool_remove(struct spool *spool);
/* Closes the descriptors and touches the directory no more: reads give -ESTALE. */
void spool_detach(struct spool *spool);

/* Takes the next bytes of a stream (index 0 or 1). Never fails: what cannot be kept is dropped, or
 * held. */
void spool_append(struct spool *spool, unsigned int stream, struct span bytes);
/* What an earlier run of this program acknowledged and could not write down is missing here: the
 * stream goes on n bytes further, and a gap takes the place of all before. */
void spool_skip(struct spool *spool, unsigned int stream, uint64_t n);
/* Moves what is in memory to files. 0 or -errno (then it stays in memory). */
int spool_flush(struct spool *spool) _must_check_;
/* Offset up to which a stream survives the end of this program. */
uint64_t spool_kept(const struct spool *spool, unsigned int stream);
/* Bytes between start and end, both streams. */
uint64_t spool_retained(const struct spool *spool);
/* Of the order log, which may be longer than the output where the streams take turns. */
uint64_t spool_order_bytes(const struct spool *spool);
/* What it keeps in all, heads and order log included. */
uint64_t spool_usage(const struct spool *spool);
/* Drops all output, heads included; readers see a gap. */
void spool_discard(struct spool *spool);
/* Drops what is before a position of the path (used with `block`: readers have it). */
void spool_drop_before(struct spool *spool, const struct order_position *position);
/* With false nothing is dropped by the limit, or for want of room on the disk: the owner holds the
 * writer back. */
void spool_set_dropping(struct spool *spool, bool dropping);
/* Whether bytes wait for room on the disk. */
bool spool_is_holding(const struct spool *spool);
/* spool_flush, and writes what is held. 0, or -errno when something of it still waits. */
int spool_settle(struct spool *spool) _must_check_;
/* Forgets what is held: the stream ends before it. */
void spool_let_go(struct spool *spool);

/* How many bytes from the stream's very begin can be read, whatever was dropped behind them. */
uint64_t spool_head(const struct spool *spool, unsigned int stream);
const struct order_position *spool_start(const struct spool *spool);
const struct order_position *spool_end(const struct spool *spool);

/* ---- reading ---- */

/* A run of one stream at a position of the path. */
struct spool_run {
    unsigned int stream;
    uint64_t bytes; /* 0: the end of what there is */
};

/* What comes next at a position between start and end. 0, -EINVAL when the position is not on the
 * path, -ESTALE after spool_detach, or -errno. */
int spool_find_run(struct spool *spool, const struct order_position *at, struct spool_run *ret_run)
    _must_check_;
/* The position of the path `bytes` before its end, or its start when there is less. */
int spool_find_tail(struct spool *spool, uint64_t bytes, struct order_position *ret_at)
    _must_check_;
/* A position of the path at which this stream is at `offset`, which must be between its start and
 * its end: what follows there is all of the stream from there on. 0 or -errno. */
int spool_find_offset(struct spool *spool,
                      unsigned int stream,
                      uint64_t offset,
                      struct order_position *ret_at) _must_check_;
/* Appends n bytes of a stream from offset (they must be there). */
int spool_read(struct spool *spool,
               unsigned int stream,
               uint64_t offset,
               size_t n,
               struct buf *ret_bytes) _must_check_;
/* While bytes of a file are on their way to a client without a copy, they must not become a hole:
 * nothing at or after `from` of this stream is freed as long as the pin is set. The pin's owner
 * gives up when spool_start runs too far ahead. */
struct spool_pin {
    struct list link;
    unsigned int stream;
    uint64_t from;
};
void spool_pin_set(struct spool *spool, struct spool_pin *pin);
void spool_pin_clear(struct spool_pin *pin); /* fine for one that is all zero */

/* The stream's file for sendfile (borrowed until the next call on any spool), or -ENODATA while
 * the stream is in memory. */
int spool_stream_fd(struct spool *spool, unsigned int stream) _must_check_;
