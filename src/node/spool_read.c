/* Reading a spool. */
#include <errno.h>

#include "node/spool_private.h"

int spool_find_run(struct spool *spool, const struct order_position *at, struct spool_run *ret_run)
{
    uint64_t total = order_total(at);
    struct order_mark mark = {0};
    struct order_mark next = {0};
    uint64_t index;
    uint64_t end;
    int r;

    if (total > order_total(&spool->end) || total < order_total(&spool->start)) {
        return -EINVAL;
    }
    if (total == order_total(&spool->end)) {
        *ret_run = (struct spool_run){0, 0};
        return at->at[0] == spool->end.at[0] ? 0 : -EINVAL;
    }
    if (spool->detached && spool->in_files) {
        return -ESTALE;
    }
    r = spool_find_mark(spool, total, &index);
    if (r == 0) {
        r = spool_get_mark(spool, index, &mark);
    }
    if (r < 0) {
        return r;
    }
    if (at->at[1U - mark.stream] != mark.begin.at[1U - mark.stream]) {
        return -EINVAL;
    }
    end = spool->end.at[mark.stream];
    if (index + 1 < spool->mark_count) {
        r = spool_get_mark(spool, index + 1, &next);
        if (r < 0) {
            return r;
        }
        end = next.begin.at[mark.stream];
    }
    *ret_run = (struct spool_run){mark.stream, end - at->at[mark.stream]};
    return 0;
}

int spool_find_tail(struct spool *spool, uint64_t bytes, struct order_position *ret_at)
{
    struct order_mark mark = {0};
    uint64_t total;
    uint64_t index;
    int r;

    if (bytes >= spool_retained(spool)) {
        *ret_at = spool->start;
        return 0;
    }
    total = order_total(&spool->end) - bytes;
    r = spool_find_mark(spool, total, &index);
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

int spool_find_offset(struct spool *spool,
                      unsigned int stream,
                      uint64_t offset,
                      struct order_position *ret_at)
{
    struct order_mark mark = {0};
    uint64_t low = spool->mark_first;
    uint64_t high = spool->mark_count;
    int r;

    if (low == high) {
        *ret_at = spool->start;
        return 0;
    }
    /* The last mark at or before the offset: each stream's offsets never fall along the path. */
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;

        r = spool_get_mark(spool, middle, &mark);
        if (r < 0) {
            return r;
        }
        if (mark.begin.at[stream] <= offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    r = spool_get_mark(spool, low, &mark);
    if (r < 0) {
        return r;
    }
    *ret_at = mark.begin;
    if (mark.stream == stream) {
        ret_at->at[stream] = offset;
    }
    if (order_total(ret_at) < order_total(&spool->start)) {
        *ret_at = spool->start;
    }
    return 0;
}

int spool_read(
    struct spool *spool, unsigned int stream, uint64_t offset, size_t n, struct buf *ret_bytes)
{
    uint8_t *to;
    size_t done = 0;
    int r;

    if (n == 0) {
        return 0;
    }
    if (!spool->in_files) {
        if (offset + n > spool->memory[stream].n) {
            return -EINVAL;
        }
        buf_put(ret_bytes, span_make(&spool->memory[stream].p[offset], n));
        return buf_error(ret_bytes);
    }
    r = spool_open_file(spool, stream, false);
    if (r < 0) {
        return r;
    }
    to = buf_reserve(ret_bytes, n);
    if (to == NULL) {
        return buf_error(ret_bytes);
    }
    while (done < n) {
        ssize_t got = pread(spool->fds[stream], &to[done], n - done, (off_t)(offset + done));

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? -errno : -EIO;
        }
        done += (size_t)got;
    }
    buf_commit(ret_bytes, n);
    return 0;
}

int spool_stream_fd(struct spool *spool, unsigned int stream)
{
    int r;

    if (!spool->in_files) {
        return -ENODATA;
    }
    r = spool_open_file(spool, stream, false);
    return r < 0 ? r : spool->fds[stream];
}
