#include "io/http_output.h"

#include <errno.h>
#include <stdlib.h>

#define SMALL_SEGMENT_BYTES 4000U
#define SEGMENT_BYTES       16300U
#define MAX_IOV             16U
#define FLUSH_SHARE_BYTES   1048576U /* of one connection in one turn */

struct segment {
    struct list link;
    int fd;         /* -1: bytes of data[] */
    int64_t offset; /* in the file */
    uint64_t start; /* in data */
    uint64_t left;  /* still to be written */
    size_t room;    /* of data */
    uint8_t data[];
};

void http_output_init(struct http_output *out)
{
    list_init(&out->segments);
    out->queued = 0;
}

void http_output_move(struct http_output *to, struct http_output *from)
{
    while (!list_is_empty(&from->segments)) {
        struct list *first = from->segments.next;

        list_remove(first);
        list_append(&to->segments, first);
    }
    to->queued += from->queued;
    from->queued = 0;
}

static struct segment *segment_first(const struct http_output *out)
{
    return list_entry(out->segments.next, struct segment, link);
}

static void segment_free(struct segment *segment)
{
    list_remove(&segment->link);
    cleanup_close(&segment->fd);
    free(segment);
}

void http_output_clear(struct http_output *out)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &out->segments)
    {
        segment_free(list_entry(it, struct segment, link));
    }
    out->queued = 0;
}

static struct segment *segment_append(struct http_output *out, size_t room)
{
    struct segment *segment = malloc(sizeof(*segment) + room);

    if (segment != NULL) {
        *segment = (struct segment){.fd = -1, .room = room};
        list_init(&segment->link);
        list_append(&out->segments, &segment->link);
    }
    return segment;
}

static size_t segment_put(struct segment *segment, struct span bytes)
{
    size_t used = (size_t)(segment->start + segment->left);
    size_t n = segment->room - used;

    if (n > bytes.n) {
        n = bytes.n;
    }
    if (n > 0) {
        memcpy(&segment->data[used], bytes.p, n);
        segment->left += n;
    }
    return n;
}

/* Bytes that still fit into the last segment are copied there; returns how many. */
static size_t output_fill_last(struct http_output *out, struct span bytes)
{
    struct segment *last = list_entry(out->segments.prev, struct segment, link);

    if (list_is_empty(&out->segments) || last->fd >= 0) {
        return 0;
    }
    return segment_put(last, bytes);
}

int http_output_put(struct http_output *out, struct span bytes)
{
    struct segment *last;
    size_t n;

    if (bytes.n == 0) {
        return 0;
    }
    n = output_fill_last(out, bytes);
    out->queued += n;
    bytes = span_skip(bytes, n);
    if (bytes.n == 0) {
        return 0;
    }
    n = bytes.n > SEGMENT_BYTES ? bytes.n : SEGMENT_BYTES;
    if (out->queued == 0 && bytes.n <= SMALL_SEGMENT_BYTES) {
        n = SMALL_SEGMENT_BYTES;
    }
    last = segment_append(out, n);
    if (last == NULL) {
        return -ENOMEM;
    }
    out->queued += segment_put(last, bytes);
    return 0;
}

int http_output_put_file(struct http_output *out, int fd, int64_t offset, uint64_t count)
{
    struct segment *segment = segment_append(out, 0);

    if (segment == NULL) {
        return -ENOMEM;
    }
    segment->fd = fd;
    segment->offset = offset;
    segment->left = count;
    out->queued += count;
    return 0;
}

/* Takes n written bytes off the front. */
static void output_consume(struct http_output *out, uint64_t n)
{
    out->queued -= n;
    while (n > 0) {
        struct segment *segment = segment_first(out);
        uint64_t taken = n < segment->left ? n : segment->left;

        segment->start += taken;
        segment->offset += (int64_t)taken;
        segment->left -= taken;
        n -= taken;
        if (segment->left == 0) {
            segment_free(segment);
        }
    }
}

/* Gathers the leading byte segments; *ret_more when a file follows them. */
static size_t output_gather(const struct http_output *out, struct iovec *iov, bool *ret_more)
{
    size_t count = 0;
    struct list *it = out->segments.next;

    *ret_more = false;
    while (it != &out->segments && count < MAX_IOV) {
        struct segment *segment = list_entry(it, struct segment, link);

        if (segment->fd >= 0) {
            *ret_more = true;
            break;
        }
        iov[count].iov_base = &segment->data[segment->start];
        iov[count].iov_len = (size_t)segment->left;
        count++;
        it = it->next;
    }
    return count;
}

static ssize_t output_write_once(const struct http_output *out, struct http_transport *t)
{
    const struct segment *first = segment_first(out);
    struct iovec iov[MAX_IOV];
    size_t count;
    ssize_t n;
    bool more;

    if (first->fd < 0) {
        count = output_gather(out, iov, &more);
        return http_transport_writev(t, iov, count, more);
    }
    n = http_transport_send_file(t, first->fd, first->offset,
                                 first->left < FLUSH_SHARE_BYTES / 2 ? (size_t)first->left
                                                                     : FLUSH_SHARE_BYTES / 2);
    return n == 0 ? -ENODATA : n;
}

int http_output_flush(struct http_output *out, struct http_transport *t)
{
    uint64_t written = 0;

    while (out->queued > 0) {
        ssize_t n;

        if (written >= FLUSH_SHARE_BYTES) {
            return HTTP_FLUSH_BUSY;
        }
        n = output_write_once(out, t);
        if (n < 0) {
            return n == -EAGAIN ? HTTP_FLUSH_BLOCKED : (int)n;
        }
        output_consume(out, (uint64_t)n);
        written += (uint64_t)n;
    }
    return HTTP_FLUSH_EMPTY;
}

int http_output_send(struct http_output *out,
                     struct http_transport *t,
                     struct span a,
                     struct span b)
{
    if (out->queued == 0 && t->ssl == NULL) {
        struct iovec iov[2] = {
            {(void *)(uintptr_t)a.p, a.n},
            {(void *)(uintptr_t)b.p, b.n},
        };
        ssize_t n = http_transport_writev(t, iov, 2, false);

        if (n < 0 && n != -EAGAIN) {
            return (int)n;
        }
        if (n > 0) {
            size_t taken = (size_t)n;

            b = span_skip(b, taken > a.n ? taken - a.n : 0);
            a = span_skip(a, taken);
        }
        if (a.n + b.n == 0) {
            return HTTP_FLUSH_EMPTY;
        }
    }
    if (http_output_put(out, a) < 0 || http_output_put(out, b) < 0) {
        return -ENOMEM;
    }
    return http_output_flush(out, t);
}
