/* Inside of spool.h: shared by the spool_*.c files only. */
#pragma once

#include "base/buf.h"
#include "node/spool.h"

#define SPOOL_FILES 3U /* stdout, stderr, order log */
#define SPOOL_ORDER 2U
/* Marks kept at most, in proportion to the bytes, so that alternating single bytes are bounded. */
#define SPOOL_BYTES_PER_MARK 64U
#define SPOOL_MARKS_MIN      4096U
#define SPOOL_PAGE           4096U

struct spool {
    struct spool_store *store;
    struct list lru; /* in store->open while descriptors are open */
    int dir_fd;
    char session_id[ID_SIZE];
    struct spool_limits limits;
    int fds[SPOOL_FILES];
    bool exists[SPOOL_FILES]; /* the file was made */
    bool in_files;
    bool dropping;
    bool detached;
    bool logged_full;
    bool start_unsaved; /* the order log on disk does not have it yet */
    struct list pins;
    struct buf memory[ORDER_STREAMS]; /* all there is, until in_files */
    struct order_position start;
    struct order_position end;
    uint64_t head_end[ORDER_STREAMS]; /* the stream is whole up to here */
    uint64_t punched[ORDER_STREAMS];  /* files are freed up to here, the heads aside */
    struct order_mark *marks;         /* all of them, until the order log exists */
    uint64_t mark_count;              /* indices count from the session's begin */
    uint64_t mark_first;
    struct order_mark last;
    uint64_t counted;    /* in limits.group */
    struct buf held;     /* what waits for room on the disk, */
    uint32_t *held_runs; /* in runs of one stream: HELD_SECOND, and their lengths */
    size_t held_count;
    size_t held_room;
};

/* spool.c */
/* Brings limits.group up to date; and takes this spool out of it. */
void spool_count(struct spool *spool);
void spool_uncount(struct spool *spool);

/* A run of this stream begins at the end, unless one is under way. */
int spool_begin_run(struct spool *spool, unsigned int stream) _must_check_;
/* Writes bytes of a stream at an offset, its file. */
int spool_write_stream(struct spool *spool, unsigned int stream, uint64_t offset, struct span bytes)
    _must_check_;
/* The bytes are dropped, and what makes room for them if it does. */
void spool_append_dropping(struct spool *spool, unsigned int stream, struct span bytes, int why);

/* spool_hold.c */
/* `why`: -errno of the attempt to write it. */
void spool_hold(struct spool *spool, unsigned int stream, struct span bytes, int why);

/* spool_files.c */
/* Opens (and makes, if `create`) what is needed; index as in fds. 0 or -errno, -ENOENT when the
 * file does not exist and is not made. */
int spool_open_file(struct spool *spool, unsigned int index, bool create) _must_check_;
void spool_close_files(struct spool *spool);
int spool_write_head(struct spool *spool) _must_check_;
int spool_write_mark(struct spool *spool, uint64_t index, const struct order_mark *mark)
    _must_check_;
int spool_get_mark(struct spool *spool, uint64_t index, struct order_mark *ret_mark) _must_check_;
/* Writes the order log's head and the marks in memory. */
int spool_write_order(struct spool *spool) _must_check_;
/* The order log comes into being with the marks so far, which leave memory. */
int spool_make_order(struct spool *spool) _must_check_;
/* Index of the last mark at or before a total length of the path. */
int spool_find_mark(struct spool *spool, uint64_t total, uint64_t *ret_index) _must_check_;
void spool_punch(struct spool *spool);
