#include "api/transcoder.h"

#include <errno.h>

#include "base/buf.h"
#include "io/loop.h"

#define MEMORY_MAX   (256U << 20) /* of all codecs together */
#define PIECE        65536U       /* of input or output in one job */
#define INPUT_HIGH   (2 * PIECE)  /* waiting: stop the source */
#define INPUT_LOW    PIECE
#define BUFFERS_COST ((size_t)4 * PIECE)

struct transcoder {
    struct transcoder_pool *pool;
    struct transcoder_callbacks callbacks;
    void *arg;
    struct codec *codec;
    enum codec_format format;
    size_t cost;

    struct buf waiting; /* the loop's side of the input */
    bool ended;         /* no more will wait */
    bool is_over_high;  /* a write returned 0 */
    bool blocked;       /* the sink takes no more */
    bool submitted;     /* a job is under way: what follows is the worker's */
    bool delivering;
    bool is_over; /* on_end was called, or it is to be freed */
    bool is_dead;
    bool has_failed; /* no memory: told at the end of the job, or of the turn */

    struct buf input; /* of the jobs */
    size_t taken;     /* of it */
    bool has_last;    /* nothing comes behind it */
    size_t made;
    int result; /* an enum codec_result or -errno */
    uint8_t output[PIECE];
};

static void advance(struct transcoder *t);

static void destroy(struct transcoder *t)
{
    t->pool->used -= t->cost;
    codec_free(t->codec);
    buf_done(&t->waiting);
    buf_done(&t->input);
    free(t);
}

struct transcoder *transcoder_new(struct transcoder_pool *pool,
                                  enum codec_format format,
                                  bool packs,
                                  const struct transcoder_callbacks *callbacks,
                                  void *arg,
                                  struct error *err)
{
    size_t cost = codec_cost(format, packs) + BUFFERS_COST;
    struct transcoder *t = pool->used + cost > MEMORY_MAX ? NULL : calloc(1, sizeof(*t));

    if (t != NULL) {
        t->codec = codec_new(format, packs);
    }
    if (t == NULL || t->codec == NULL) {
        free(t);
        (void)error_set_code(err, ERROR_CAPACITY_UNAVAILABLE, NULL,
                             "too many transfers are compressed at once");
        return NULL;
    }
    t->pool = pool;
    t->callbacks = *callbacks;
    t->arg = arg;
    t->format = format;
    t->cost = cost;
    t->waiting = buf_make(0);
    t->input = buf_make(0);
    t->result = CODEC_HUNGRY;
    pool->used += cost;
    return t;
}

void transcoder_free(struct transcoder *t)
{
    if (t == NULL) {
        return;
    }
    t->is_dead = true;
    t->is_over = true;
    if (!t->submitted && !t->delivering) {
        destroy(t);
    }
}

/* ---- the worker's part ---- */

static void work(void *arg)
{
    struct transcoder *t = arg;
    struct span all = span_skip(buf_span(&t->input), t->taken);
    struct span piece = span_head(all, PIECE);
    size_t given = piece.n;

    t->result = codec_run(t->codec, &piece, t->has_last && given == all.n, t->output,
                          sizeof(t->output), &t->made);
    t->taken += given - piece.n;
    if (t->result == CODEC_HUNGRY && t->taken < t->input.n) {
        t->result = CODEC_FULL;
    }
}

/* ---- the loop's part ---- */

static void finish(struct transcoder *t, int result)
{
    struct error err;

    t->is_over = true;
    if (result == CODEC_DONE) {
        t->callbacks.on_end(t->arg, NULL);
        return;
    }
    if (result == -EBADMSG) {
        (void)error_set_code(&err, ERROR_INVALID_REQUEST, "body",
                             "the body is not %s, or it breaks off", codec_name(t->format));
    } else if (result == -EMSGSIZE) {
        (void)error_set_code(&err, ERROR_INVALID_REQUEST, "body",
                             "the body needs a window of more than %u bytes", CODEC_WINDOW_MAX);
    } else {
        (void)error_set_code(&err, ERROR_CAPACITY_UNAVAILABLE, NULL, "no memory");
    }
    t->callbacks.on_end(t->arg, &err);
}

/* Delivers what a job has made, with the state of before so that callbacks may do anything. */
static void deliver(struct transcoder *t)
{
    int result = t->result;

    t->delivering = true;
    if (result >= 0 && t->made > 0 &&
        t->callbacks.on_output(t->arg, span_make(t->output, t->made)) == 0) {
        t->blocked = true;
    }
    if (!t->is_over && (result < 0 || result == CODEC_DONE)) {
        finish(t, result);
    }
    if (!t->is_over && t->is_over_high && t->waiting.n <= INPUT_LOW) {
        t->is_over_high = false;
        t->callbacks.on_drain(t->arg);
    }
    t->delivering = false;
}

static void on_worked(void *arg)
{
    struct transcoder *t = arg;

    t->submitted = false;
    if (t->has_failed) {
        t->result = -ENOMEM;
    }
    if (!t->is_over) {
        deliver(t);
    }
    if (t->is_dead) {
        destroy(t);
        return;
    }
    advance(t);
}

/* Told by on_worked: never from inside a call. */
static void fail(struct transcoder *t)
{
    t->has_failed = true;
    /* Without memory even for this the stream stalls, and its idle timeout ends it. */
    if (!t->submitted && loop_defer(t->pool->loop, on_worked, t) == 0) {
        t->submitted = true;
    }
}

/* Hands over what waits once the last input is used up. False when there is nothing to do. */
static bool take_input(struct transcoder *t)
{
    struct buf used = t->input;

    if (t->result != CODEC_HUNGRY) {
        return true;
    }
    if (t->waiting.n == 0 && !(t->ended && !t->has_last)) {
        return false;
    }
    buf_clear(&used);
    t->input = t->waiting;
    t->waiting = used;
    t->taken = 0;
    t->has_last = t->ended;
    return true;
}

static void advance(struct transcoder *t)
{
    if (t->submitted || t->delivering || t->is_over || t->has_failed || t->blocked ||
        !take_input(t)) {
        return;
    }
    t->made = 0;
    if (loop_submit(t->pool->loop, work, on_worked, t, true) < 0) {
        fail(t);
        return;
    }
    t->submitted = true;
}

int transcoder_write(struct transcoder *t, struct span bytes)
{
    if (t->is_over || t->has_failed) {
        return 1;
    }
    buf_put(&t->waiting, bytes);
    if (buf_error(&t->waiting) < 0) {
        fail(t);
        return 0;
    }
    advance(t);
    if (t->waiting.n < INPUT_HIGH) {
        return 1;
    }
    t->is_over_high = true;
    return 0;
}

void transcoder_end(struct transcoder *t)
{
    t->ended = true;
    advance(t);
}

void transcoder_resume(struct transcoder *t)
{
    if (t->blocked) {
        t->blocked = false;
        advance(t);
    }
}
