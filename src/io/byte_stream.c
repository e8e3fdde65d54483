/* A stream of bytes over a connection.
 *
 * The owner's calls only move bytes and mark; its callbacks come from three places, the handlers:
 * on_readable, on_writable and on_turn (which a mark schedules). Each ends in stream_finish, which
 * flushes, ends, closes, and makes the events fit. Work is bounded per stream and turn: one read of
 * LOOP_SCRATCH_BYTES and one share of the output, so a busy stream never starves a quiet one.
 *
 * A stream is over when both directions have ended, or when it has an errnum:
 *   a read failed, or the peer vanished before we had ended our direction (for a unix socket that
 *       is how a cut looks)
 *   a write failed: what the peer had sent is still delivered first, within STREAM_BREAK_MS
 *   byte_stream_abort: after what is queued, within STREAM_BREAK_MS
 *   a limit of byte_stream_set_idle passed
 * A peer that vanishes while nothing of it is read, because it has ended its direction or because
 * the owner holds it back, is found by a look every STREAM_PROBE_MS. What it had sent and nobody
 * wanted until then is lost with it. */
#include "io/byte_stream.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include <event2/event.h>

#include "base/clock.h"
#include "io/byte_stream_inner.h"
#include "io/loop.h"

static void on_readable(evutil_socket_t fd, short events, void *arg);
static void on_writable(evutil_socket_t fd, short events, void *arg);
static void on_turn(void *arg);
static void on_timer(void *arg);

/* ---- marks ---- */

static void stream_schedule(struct byte_stream *s)
{
    if (s->turn_pending || s->is_gone) {
        return;
    }
    s->turn_pending = loop_defer(s->loop, on_turn, s) == 0;
    if (!s->turn_pending) {
        event_active(&s->event_write, EV_WRITE, 0); /* needs no memory, and does the same */
    }
}

static void stream_fail(struct byte_stream *s, int errnum)
{
    if (s->errnum == 0) {
        s->errnum = errnum;
        stream_schedule(s);
    }
}

/* ---- the clock ---- */

static bool stream_is_broken(const struct byte_stream *s)
{
    return s->write_error != 0 || s->aborts;
}

/* How long the peer may leave us waiting now; 0: for ever. */
static int64_t stream_limit_ms(const struct byte_stream *s)
{
    if (stream_is_broken(s)) {
        return STREAM_BREAK_MS;
    }
    if (s->out.queued > 0 || (s->idle_reads && !s->is_paused && !s->got_end)) {
        return s->idle_ms;
    }
    return 0;
}

static bool stream_probes(const struct byte_stream *s)
{
    return !s->is_shut && (s->got_end || s->is_paused);
}

/* Runs the timer if something is to be watched. One that fires too early finds nothing to do. */
static void stream_arm(struct byte_stream *s)
{
    int64_t limit_ms = stream_limit_ms(s);
    bool waited = s->waits;
    int64_t now_ms;
    int64_t due_ms;

    s->waits = limit_ms > 0;
    if (!s->waits && !stream_probes(s)) {
        return;
    }
    now_ms = clock_monotonic_ms();
    due_ms = now_ms + STREAM_PROBE_MS;
    if (s->waits && !waited) {
        s->moved_ms = now_ms;
    }
    if (s->waits && s->moved_ms + limit_ms < due_ms) {
        due_ms = s->moved_ms + limit_ms;
    }
    if (s->timer_ms != 0 && s->timer_ms <= due_ms) {
        return;
    }
    if (s->timer == NULL) {
        s->timer = loop_timer_new(s->loop, on_timer, s);
        if (s->timer == NULL) {
            stream_fail(s, ENOMEM);
            return;
        }
    }
    s->timer_ms = due_ms;
    loop_timer_start(s->timer, due_ms > now_ms ? due_ms - now_ms : 0);
}

/* Another limit holds from now on. */
static void stream_rearm(struct byte_stream *s)
{
    s->waits = false;
    stream_arm(s);
}

static void stream_moved(struct byte_stream *s)
{
    if (s->waits) {
        s->moved_ms = clock_monotonic_ms();
    }
}

/* ---- closing ---- */

static void stream_release(struct byte_stream *s)
{
    s->is_gone = true;
    if (s->transport.fd >= 0) {
        (void)event_del(&s->event_read);
        (void)event_del(&s->event_write);
    }
    loop_timer_free(TAKE(s->timer));
    if (s->is_shut) {
        http_transport_done(&s->transport);
    } else {
        http_transport_reset(&s->transport);
    }
    http_output_clear(&s->out);
    buf_done(&s->in);
    if (s->holder != NULL) {
        *s->holder = NULL;
        s->holder = NULL;
    }
    list_remove(&s->owner_link);
    if (s->on_gone != NULL) {
        s->on_gone(s->owner);
    }
}

static void stream_describe(int errnum, struct error *ret_error)
{
    enum error_code code = ERROR_BAD_GATEWAY;

    if (errnum == ETIMEDOUT) {
        code = ERROR_DEADLINE_EXCEEDED;
    } else if (errnum == ENOMEM) {
        code = ERROR_CAPACITY_UNAVAILABLE;
    } else if (errnum == ECANCELED) {
        code = ERROR_SERVICE_UNAVAILABLE;
    }
    (void)error_set_code(ret_error, code, NULL, "the connection broke: %s", strerror(errnum));
    ret_error->errnum = errnum;
}

static void stream_close(struct byte_stream *s)
{
    struct error err = {0};

    stream_release(s);
    if (s->errnum != 0) {
        stream_describe(s->errnum, &err);
    }
    if (s->callbacks.on_closed != NULL) {
        s->callbacks.on_closed(s->arg, s, s->errnum != 0 ? &err : NULL);
    }
}

static void stream_enter(struct byte_stream *s)
{
    s->is_busy = true;
}

static void stream_leave(struct byte_stream *s)
{
    s->is_busy = false;
    if (s->is_gone && !s->turn_pending) {
        free(s);
    }
}

void byte_stream_cut(struct byte_stream *s, int errnum)
{
    bool was_busy = s->is_busy;

    if (s->is_gone) {
        return;
    }
    stream_enter(s);
    stream_fail(s, errnum);
    stream_close(s);
    if (!was_busy) {
        stream_leave(s);
    }
}

void byte_stream_free(struct byte_stream *s)
{
    if (s == NULL || s->is_gone) {
        return;
    }
    stream_release(s);
    if (!s->is_busy && !s->turn_pending) {
        free(s);
    }
}

/* ---- input ---- */

static bool stream_takes_input(const struct byte_stream *s)
{
    return !s->is_gone && !s->is_held && !s->is_paused && !s->got_end && !s->aborts &&
           s->errnum == 0;
}

static void stream_at_end(struct byte_stream *s)
{
    s->got_end = true;
    if (s->write_error != 0) {
        stream_fail(s, s->write_error);
        return;
    }
    if (!s->is_shut && http_transport_is_cut(&s->transport)) {
        stream_fail(s, ECONNRESET);
        return;
    }
    if (s->callbacks.on_end != NULL) {
        s->callbacks.on_end(s->arg, s);
    }
}

static void stream_read(struct byte_stream *s)
{
    uint8_t *scratch = loop_scratch(s->loop);
    ssize_t n = http_transport_read(&s->transport, scratch, LOOP_SCRATCH_BYTES);

    /* A part of a record is pending too: only what follows a read is worth another one. */
    s->tls_more = n > 0 && http_transport_has_pending(&s->transport);
    if (n > 0) {
        stream_moved(s);
        s->callbacks.on_data(s->arg, s, span_make(scratch, (size_t)n));
    } else if (n == 0) {
        stream_at_end(s);
    } else if (s->write_error != 0) {
        stream_fail(s, s->write_error); /* that was all it had sent */
    } else if (n != -EAGAIN) {
        stream_fail(s, (int)-n);
    }
}

static void stream_deliver_waiting(struct byte_stream *s)
{
    struct buf in = s->in;

    s->in = buf_make(0);
    s->callbacks.on_data(s->arg, s, buf_span(&in));
    buf_done(&in);
}

int byte_stream_unread(struct byte_stream *s, struct span bytes)
{
    if (!s->is_gone) {
        buf_put(&s->in, bytes);
    }
    return buf_error(&s->in);
}

/* ---- output ---- */

/* The outcome of writing, r as of http_output_flush. */
static void stream_after_write(struct byte_stream *s, int r)
{
    if (r == -ENOMEM) {
        stream_fail(s, ENOMEM);
    } else if (r < 0) {
        s->write_error = -r;
        s->write_blocked = false;
        http_output_clear(&s->out);
        stream_rearm(s);
    } else {
        s->write_blocked = r != HTTP_FLUSH_EMPTY;
    }
}

static void stream_flush(struct byte_stream *s)
{
    uint64_t before = s->out.queued;

    if (before == 0 || s->write_blocked || s->write_error != 0) {
        return;
    }
    stream_after_write(s, http_output_flush(&s->out, &s->transport));
    if (s->out.queued < before) {
        stream_moved(s);
    }
}

static bool stream_may_write(const struct byte_stream *s)
{
    return !s->is_gone && !s->ends && !s->aborts && s->write_error == 0 && s->errnum == 0;
}

int byte_stream_write_two(struct byte_stream *s, struct span a, struct span b)
{
    if (!stream_may_write(s)) {
        return 0;
    }
    if (a.n + b.n == 0) {
        return s->out.queued < STREAM_HIGH_BYTES ? 1 : 0;
    }
    /* The first piece of a turn goes out at once, further small ones together at its end. */
    if (s->out.queued == 0 && (!s->turn_pending || a.n + b.n >= STREAM_DIRECT_BYTES)) {
        stream_after_write(s, http_output_send(&s->out, &s->transport, a, b));
        stream_moved(s);
    } else if (http_output_put(&s->out, a) < 0 || http_output_put(&s->out, b) < 0) {
        stream_fail(s, ENOMEM);
    } else if (s->out.queued >= STREAM_FLUSH_BYTES) {
        stream_flush(s);
    }
    stream_schedule(s);
    if (stream_may_write(s) && s->out.queued < STREAM_HIGH_BYTES) {
        return 1;
    }
    s->is_blocked = true;
    return 0;
}

int byte_stream_write(struct byte_stream *s, struct span bytes)
{
    return byte_stream_write_two(s, bytes, span_make(NULL, 0));
}

size_t byte_stream_queued(const struct byte_stream *s)
{
    return (size_t)s->out.queued;
}

static void stream_check_drain(struct byte_stream *s)
{
    if (!s->is_blocked || !stream_may_write(s) || s->out.queued > STREAM_HIGH_BYTES / 2) {
        return;
    }
    s->is_blocked = false;
    if (s->callbacks.on_drain != NULL) {
        s->callbacks.on_drain(s->arg, s);
    }
}

/* Ends or cuts our direction when it is due. */
static void stream_check_end(struct byte_stream *s)
{
    if (s->out.queued > 0) {
        return;
    }
    if (s->aborts) {
        stream_fail(s, s->write_error != 0 ? s->write_error : ECONNABORTED);
    } else if (s->ends && !s->is_shut && s->write_error == 0) {
        s->is_shut = http_transport_shutdown(&s->transport) == 0;
        s->write_blocked = !s->is_shut;
    }
}

/* ---- handlers ---- */

static void set_event(struct event *event, bool *is_added, bool wanted)
{
    if (*is_added == wanted) {
        return;
    }
    *is_added = wanted;
    if (wanted) {
        (void)event_add(event, NULL);
    } else {
        (void)event_del(event);
    }
}

/* Input that no event will signal. */
static bool stream_has_hidden_input(const struct byte_stream *s)
{
    return stream_takes_input(s) && (s->in.n > 0 || s->write_error != 0 || s->tls_more);
}

static void stream_finish(struct byte_stream *s)
{
    if (!s->is_gone) {
        stream_flush(s);
        stream_check_drain(s);
    }
    if (!s->is_gone) {
        stream_check_end(s);
    }
    if (s->is_gone) {
        stream_leave(s);
        return;
    }
    if (s->errnum != 0 || (s->got_end && s->is_shut)) {
        stream_close(s);
        stream_leave(s);
        return;
    }
    set_event(&s->event_read, &s->reads,
              stream_takes_input(s) && s->in.n == 0 && s->write_error == 0);
    set_event(&s->event_write, &s->writes,
              (s->write_blocked && (s->out.queued > 0 || s->ends)) ||
                  s->transport.read_wants_write);
    if (stream_has_hidden_input(s)) {
        stream_schedule(s);
    }
    stream_arm(s);
    stream_leave(s);
}

static void on_readable(evutil_socket_t fd, short events, void *arg)
{
    struct byte_stream *s = arg;

    (void)fd;
    (void)events;
    stream_enter(s);
    if (stream_takes_input(s) && s->in.n == 0) {
        stream_read(s);
    }
    if (!s->is_gone && s->transport.ssl != NULL) {
        s->write_blocked = false; /* a TLS write may have waited for input */
    }
    stream_finish(s);
}

static void stream_turn(struct byte_stream *s)
{
    bool wants_write = s->transport.read_wants_write;

    stream_enter(s);
    if (stream_takes_input(s) && s->in.n > 0) {
        stream_deliver_waiting(s);
    } else if (stream_has_hidden_input(s) || (stream_takes_input(s) && wants_write)) {
        stream_read(s);
    }
    stream_finish(s);
}

static void on_writable(evutil_socket_t fd, short events, void *arg)
{
    struct byte_stream *s = arg;

    (void)fd;
    (void)events;
    s->write_blocked = false;
    stream_turn(s);
}

static void on_turn(void *arg)
{
    struct byte_stream *s = arg;

    s->turn_pending = false;
    if (s->is_gone) {
        free(s);
        return;
    }
    stream_turn(s);
}

static void on_timer(void *arg)
{
    struct byte_stream *s = arg;
    int64_t limit_ms = stream_limit_ms(s);

    s->timer_ms = 0;
    if (limit_ms > 0 && s->waits && clock_monotonic_ms() - s->moved_ms >= limit_ms) {
        stream_fail(s, s->write_error != 0 ? s->write_error : ETIMEDOUT);
    } else if (stream_probes(s) && http_transport_is_cut(&s->transport)) {
        stream_fail(s, ECONNRESET);
    }
    stream_enter(s);
    stream_finish(s);
}

/* ---- the owner's calls ---- */

void byte_stream_set_callbacks(struct byte_stream *s,
                               const struct byte_stream_callbacks *callbacks,
                               void *arg)
{
    s->callbacks = *callbacks;
    s->arg = arg;
}

void byte_stream_end(struct byte_stream *s)
{
    if (!s->ends) {
        s->ends = true;
        stream_schedule(s);
    }
}

void byte_stream_abort(struct byte_stream *s)
{
    if (s->is_gone || s->aborts) {
        return;
    }
    s->aborts = true;
    stream_rearm(s);
    stream_schedule(s);
}

void byte_stream_pause(struct byte_stream *s, bool paused)
{
    if (s->is_paused == paused || s->is_gone) {
        return;
    }
    assert(paused || s->callbacks.on_data != NULL);
    s->is_paused = paused;
    stream_schedule(s);
}

void byte_stream_set_idle(struct byte_stream *s, int64_t timeout_ms, bool reads)
{
    if (s->is_gone) {
        return;
    }
    s->idle_ms = timeout_ms;
    s->idle_reads = reads;
    stream_rearm(s);
}

/* ---- birth ---- */

struct byte_stream *byte_stream_new(struct loop *loop)
{
    struct byte_stream *s = calloc(1, sizeof(*s));

    if (s != NULL) {
        s->loop = loop;
        s->transport.fd = -1;
        s->in = buf_make(0);
        s->is_paused = true;
        s->is_held = true;
        http_output_init(&s->out);
        list_init(&s->owner_link);
    }
    return s;
}

void byte_stream_adopt(struct byte_stream *s,
                       struct http_transport *transport,
                       struct http_output *out,
                       struct byte_stream **holder)
{
    struct event_base *base = loop_event_base(s->loop);

    s->transport = http_transport_take(transport);
    http_output_move(&s->out, out);
    s->holder = holder;
    *holder = s;
    (void)event_assign(&s->event_read, base, s->transport.fd, EV_READ | EV_PERSIST, on_readable, s);
    (void)event_assign(&s->event_write, base, s->transport.fd, EV_WRITE | EV_PERSIST, on_writable,
                       s);
}

void byte_stream_begin(struct byte_stream *s, struct buf *in)
{
    if (buf_error(in) < 0) {
        stream_fail(s, ENOMEM); /* they are not all there */
    }
    s->in = *in;
    *in = buf_make(0);
    s->is_held = false;
    s->holder = NULL;
    s->tls_more = s->transport.ssl != NULL;
    stream_schedule(s);
}

void byte_stream_set_owner(struct byte_stream *s,
                           struct list *list,
                           void (*on_gone)(void *owner),
                           void *owner)
{
    list_append(list, &s->owner_link);
    s->on_gone = on_gone;
    s->owner = owner;
}
