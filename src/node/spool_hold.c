/* What waits for room on the disk, of a session whose output may not be dropped. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "node/spool_private.h"

#define HELD_SECOND  0x80000000U /* of the second stream */
#define HELD_RUN_MAX 0x7fffffffU

static unsigned int run_stream(uint32_t run)
{
    return (run & HELD_SECOND) != 0 ? 1 : 0;
}

bool spool_is_holding(const struct spool *spool)
{
    return spool->held_count > 0;
}

void spool_let_go(struct spool *spool)
{
    spool->store->memory_bytes -= spool->held.n;
    buf_done(&spool->held);
    spool->held = buf_make(0);
    free(TAKE(spool->held_runs));
    spool->held_count = 0;
    spool->held_room = 0;
    spool->logged_full = false;
}

/* The run that the next `n` bytes of this stream belong to. */
static int add_run(struct spool *spool, unsigned int stream, size_t n)
{
    uint32_t *last = spool->held_count > 0 ? &spool->held_runs[spool->held_count - 1] : NULL;

    if (last != NULL && run_stream(*last) == stream && (*last & HELD_RUN_MAX) + n <= HELD_RUN_MAX) {
        *last += (uint32_t)n;
        return 0;
    }
    if (spool->held_runs == NULL || spool->held_count == spool->held_room) {
        size_t room = spool->held_room == 0 ? 16 : spool->held_room * 2;
        uint32_t *grown = realloc(spool->held_runs, room * sizeof(*grown));

        if (grown == NULL) {
            return -ENOMEM;
        }
        spool->held_runs = grown;
        spool->held_room = room;
    }
    spool->held_runs[spool->held_count++] = (uint32_t)n | (stream == 1 ? HELD_SECOND : 0);
    return 0;
}

/* Without memory for it nothing can be promised. */
static void drop_all(struct spool *spool)
{
    struct span rest = buf_span(&spool->held);

    for (size_t i = 0; i < spool->held_count; i++) {
        size_t n = spool->held_runs[i] & HELD_RUN_MAX;

        spool_append_dropping(spool, run_stream(spool->held_runs[i]), span_head(rest, n), -ENOMEM);
        rest = span_skip(rest, n);
    }
    spool_let_go(spool);
}

void spool_hold(struct spool *spool, unsigned int stream, struct span bytes, int why)
{
    if (bytes.n == 0) {
        return;
    }
    if (!spool->logged_full) {
        spool->logged_full = true;
        log_warning("output waits", "session=%s error=\"%s\"", spool->session_id, strerror(-why));
    }
    buf_put(&spool->held, bytes);
    if (buf_error(&spool->held) == 0) {
        spool->store->memory_bytes += bytes.n;
        if (add_run(spool, stream, bytes.n) == 0) {
            return;
        }
        spool->held.n -= bytes.n;
        spool->store->memory_bytes -= bytes.n;
    }
    drop_all(spool);
    spool_append_dropping(spool, stream, bytes, -ENOMEM);
}

/* As much as there is room for. */
static int write_held(struct spool *spool, size_t *ret_runs, size_t *ret_bytes)
{
    struct span rest = buf_span(&spool->held);

    for (; *ret_runs < spool->held_count; (*ret_runs)++) {
        unsigned int stream = run_stream(spool->held_runs[*ret_runs]);
        size_t n = spool->held_runs[*ret_runs] & HELD_RUN_MAX;
        int r = spool_begin_run(spool, stream);

        if (r == 0) {
            r = spool_write_stream(spool, stream, spool->end.at[stream], span_head(rest, n));
        }
        if (r < 0) {
            return r;
        }
        spool->end.at[stream] += n;
        *ret_bytes += n;
        rest = span_skip(rest, n);
    }
    return 0;
}

int spool_settle(struct spool *spool)
{
    size_t runs = 0;
    size_t bytes = 0;
    int r = spool_flush(spool);

    if (r < 0 || !spool_is_holding(spool) || spool->detached) {
        return r;
    }
    r = write_held(spool, &runs, &bytes);
    if (r == 0) {
        spool_let_go(spool);
    } else {
        spool->store->memory_bytes -= bytes;
        buf_consume(&spool->held, bytes);
        spool->held_count -= runs;
        memmove(spool->held_runs, &spool->held_runs[runs],
                spool->held_count * sizeof(*spool->held_runs));
    }
    spool_count(spool);
    return r;
}
