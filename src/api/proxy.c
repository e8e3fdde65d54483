#include "api/proxy.h"

#include <errno.h>

#include "api/api.h"
#include "api/idempotency.h"
#include "api/request.h"
#include "api/wake.h"
#include "io/http_client.h"
#include "io/json_request.h"

#define KEEP_MAX      (8U * 1024U * 1024U) /* of an answer that an Idempotency-Key keeps */
#define TARGET_MAX    (QUERY_TEXT_MAX + 256)
#define PACK_MIN      1024 /* a shorter answer gains nothing */
#define DOWN_MAX      16
#define WEAK_TAG_SIZE 128

struct proxy {
    struct request *rq;
    struct http_call *call;        /* NULL once it is done */
    struct transcoder *transcoder; /* of the upload or of the answer, or NULL */
    enum codec_format pack;
    bool pack_encodes;
    const char *pack_type;
    proxy_upgraded_fn on_upgraded;
    struct spill kept; /* with an Idempotency-Key */
    bool ended;        /* the upload */
};

static void proxy_free(struct proxy *p)
{
    transcoder_free(p->transcoder);
    spill_done(&p->kept);
    free(p);
}

static void on_gone(void *arg)
{
    struct proxy *p = arg;

    if (p->call != NULL) {
        http_call_cancel(p->call);
    }
    proxy_free(p);
}

/* Nothing comes back from the request any more; the proxy is over. */
static struct request *leave(struct proxy *p)
{
    struct request *rq = p->rq;

    request_on_gone(rq, NULL, NULL);
    http_exchange_on_drain(rq->exchange, NULL, NULL);
    return rq;
}

/* Gives up in the middle. */
static void fail(struct proxy *p, const struct error *err)
{
    struct request *rq = leave(p);
    struct error copy = *err;

    on_gone(p);
    if (rq->answered) {
        http_exchange_abort(rq->exchange);
    } else {
        request_fail(rq, &copy);
    }
}

/* ---- the answer's head ---- */

static int64_t content_length(const struct http_call *call)
{
    const char *text = http_call_header(call, "Content-Length");
    uint64_t value;

    if (text == NULL || span_parse_u64(span_of_str(text), INT64_MAX, &value) < 0) {
        return -1;
    }
    return (int64_t)value;
}

/* Packed, the bytes differ from run to run of the library: a tag says "the same content" only. */
static void
add_weak_tag(struct request_headers *headers, const struct http_call *call, char out[WEAK_TAG_SIZE])
{
    const char *tag = http_call_header(call, "ETag");
    bool is_weak = tag != NULL && strncmp(tag, "W/", 2) == 0;

    if (tag != NULL && strlen(tag) + 3 <= WEAK_TAG_SIZE) {
        (void)snprintf(out, WEAK_TAG_SIZE, "%s%s", is_weak ? "" : "W/", tag);
        request_headers_add(headers, "ETag", out);
    }
}

static bool packs(const struct proxy *p, int status, int64_t length)
{
    return p->pack != CODEC_NONE && status == 200 &&
           (!p->pack_encodes || length < 0 || length >= PACK_MIN);
}

static void add_all(struct request_headers *headers, const struct http_call *call, bool is_packed)
{
    static const char *const always[] = {"X-Space-Next-Offset", "X-Space-End", "Retry-After",
                                         "Last-Modified", "Content-Disposition"};
    static const char *const plain[] = {"Accept-Ranges", "Content-Range", "ETag"};

    for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++) {
        request_headers_add(headers, always[i], http_call_header(call, always[i]));
    }
    for (size_t i = 0; !is_packed && i < sizeof(plain) / sizeof(plain[0]); i++) {
        request_headers_add(headers, plain[i], http_call_header(call, plain[i]));
    }
}

static void start_answer(struct proxy *p, struct http_call *call, int status, bool is_packed)
{
    struct request *rq = p->rq;
    const char *type = http_call_header(call, "Content-Type");
    struct request_headers headers;
    char tag[WEAK_TAG_SIZE];

    if (is_packed && p->pack_type != NULL) {
        type = p->pack_type;
    }
    if (type == NULL && status != 204) {
        type = "application/json";
    }
    request_headers_make(rq, type, &headers);
    add_all(&headers, call, is_packed);
    if (is_packed) {
        add_weak_tag(&headers, call, tag);
    }
    if (is_packed && p->pack_encodes) {
        request_headers_add(&headers, "Content-Encoding", codec_name(p->pack));
        request_headers_add(&headers, "Accept-Ranges", "none");
    }
    if (p->pack_encodes) {
        request_headers_add(&headers, "Vary", "Accept-Encoding");
    }
    rq->answered = true;
    rq->status = status;
    http_exchange_start(rq->exchange, status, headers.list, headers.count,
                        is_packed ? -1 : content_length(call));
}

/* ---- the answer's body ---- */

static void on_answer_drain(void *arg)
{
    struct proxy *p = arg;

    if (p->call != NULL) {
        http_call_pause(p->call, false);
    }
}

static int on_packed(void *arg, struct span bytes)
{
    struct proxy *p = arg;

    return http_exchange_write(p->rq->exchange, bytes);
}

static void on_packed_drain(void *arg)
{
    struct proxy *p = arg;

    transcoder_resume(p->transcoder);
}

static void on_packed_end(void *arg, const struct error *err)
{
    struct proxy *p = arg;
    struct request *rq;

    if (err != NULL) {
        fail(p, err);
        return;
    }
    rq = leave(p);
    proxy_free(p);
    http_exchange_end(rq->exchange);
}

/* The call ends with this, without on_done. */
static void switch_over(struct proxy *p, struct http_call *call)
{
    struct byte_stream *far = http_call_take_stream(call);
    proxy_upgraded_fn fn = p->on_upgraded;
    struct request *rq = leave(p);

    if (far == NULL) {
        http_call_cancel(call);
    }
    proxy_free(p);
    fn(rq, call, far);
}

static void on_head(void *arg, struct http_call *call, int status)
{
    static const struct transcoder_callbacks callbacks = {on_packed, on_answer_drain,
                                                          on_packed_end};
    struct proxy *p = arg;
    struct request *rq = p->rq;
    bool is_packed = packs(p, status, content_length(call));
    bool is_head = strcmp(http_exchange_method(rq->exchange), "HEAD") == 0;
    struct error err;

    if (status == 101) {
        switch_over(p, call);
        return;
    }
    if (wake_may_repeat(rq, call)) {
        (void)leave(p);
        on_gone(p);
        wake_repeat(rq);
        return;
    }
    if (is_packed && !is_head) {
        p->transcoder = transcoder_new(&rq->api->transcoders, p->pack, true, &callbacks, p, &err);
        if (p->transcoder == NULL) {
            fail(p, &err);
            return;
        }
    }
    http_exchange_on_drain(rq->exchange, p->transcoder == NULL ? on_answer_drain : on_packed_drain,
                           p);
    start_answer(p, call, status, is_packed);
}

static void on_data(void *arg, struct http_call *call, struct span piece)
{
    struct proxy *p = arg;
    int room;

    if (p->rq->flight != NULL) {
        spill_put(&p->kept, piece);
    }
    room = p->pack != CODEC_NONE && p->transcoder != NULL
               ? transcoder_write(p->transcoder, piece)
               : http_exchange_write(p->rq->exchange, piece);
    if (room == 0) {
        http_call_pause(call, true);
    }
}

static bool is_final(int status)
{
    return status < 500 ? status != 429 : status == 500 || status == 507;
}

static void on_done(void *arg, struct http_call *call, const struct error *err)
{
    struct proxy *p = arg;
    struct request *rq = p->rq;
    struct span kept;

    (void)call;
    p->call = NULL;
    if (err != NULL) {
        fail(p, err);
        return;
    }
    if (p->pack != CODEC_NONE && p->transcoder != NULL) {
        transcoder_end(p->transcoder); /* on_packed_end goes on */
        return;
    }
    (void)leave(p);
    if (rq->flight != NULL) {
        if (spill_read(&p->kept, &kept) < 0) {
            /* Too long: who repeats it asks the node, which knows the process by its id. */
            idempotency_leave(rq);
        } else {
            idempotency_finish(rq->flight, rq->status, kept, is_final(rq->status));
        }
    }
    proxy_free(p);
    http_exchange_end(rq->exchange);
}

/* ---- uploads ---- */

static void on_upload_drain(void *arg)
{
    struct proxy *p = arg;

    http_exchange_pause_body(p->rq->exchange, false);
}

static int on_unpacked(void *arg, struct span bytes)
{
    struct proxy *p = arg;

    return http_call_write(p->call, bytes);
}

static void on_unpacked_drain(void *arg)
{
    struct proxy *p = arg;

    transcoder_resume(p->transcoder);
}

/* The node sees the end of the body only when all of it made sense. */
static void on_unpacked_end(void *arg, const struct error *err)
{
    struct proxy *p = arg;

    if (err != NULL) {
        fail(p, err);
    } else {
        http_call_end(p->call);
    }
}

static void on_piece(void *arg,
                     struct http_exchange *exchange,
                     struct span piece,
                     bool last,
                     const struct error *err)
{
    struct request *rq = arg;
    struct proxy *p = rq->gone_arg;
    int room = 1;

    if (rq->on_gone != on_gone || p->ended || p->call == NULL) {
        return; /* the node has answered already; what still comes is dropped */
    }
    if (err != NULL) {
        fail(p, err);
        return;
    }
    if (piece.n > 0) {
        room = p->transcoder != NULL ? transcoder_write(p->transcoder, piece)
                                     : http_call_write(p->call, piece);
    }
    if (room == 0) {
        http_exchange_pause_body(exchange, true);
    }
    if (last) {
        p->ended = true;
        if (p->transcoder != NULL) {
            transcoder_end(p->transcoder);
        } else {
            http_call_end(p->call);
        }
    }
}

static int start_upload(struct proxy *p, enum codec_format unpack, struct error *err)
{
    static const struct transcoder_callbacks callbacks = {on_unpacked, on_upload_drain,
                                                          on_unpacked_end};

    if (unpack != CODEC_NONE) {
        p->transcoder = transcoder_new(&p->rq->api->transcoders, unpack, false, &callbacks, p, err);
        if (p->transcoder == NULL) {
            return -err->errnum;
        }
    }
    http_call_on_drain(p->call, unpack == CODEC_NONE ? on_upload_drain : on_unpacked_drain, p);
    http_exchange_stream_body(p->rq->exchange, on_piece, p->rq);
    return 0;
}

/* ---- the call ---- */

void proxy_put_query(const struct request *rq, const char *more, struct buf *target)
{
    struct span rest = span_of_str(http_exchange_query(rq->exchange));
    char sign = '?';

    while (rest.n > 0) {
        struct span pair = span_head(rest, span_find(rest, 0, '&'));

        rest = span_skip(rest, pair.n + 1);
        if (pair.n > 0 && !query_pair_is(pair, "token") && !query_pair_is(pair, "compression") &&
            !query_pair_is(pair, "fields")) {
            buf_put_u8(target, (uint8_t)sign);
            buf_put(target, pair);
            sign = '&';
        }
    }
    if (more != NULL) {
        buf_put_u8(target, (uint8_t)sign);
        buf_put_str(target, more);
    }
}

/* Of a packed answer no range is taken. */
static size_t
put_headers(const struct request *rq, const struct proxy_order *order, struct http_header *list)
{
    static const char *const passed[] = {"Last-Event-ID", "If-Match", "If-None-Match",
                                         "If-Modified-Since", "If-Unmodified-Since"};
    static const char *const ranges[] = {"Range", "If-Range"};
    size_t n = 0;

    list[n++] = (struct http_header){"X-Request-Id", rq->id};
    list[n++] = (struct http_header){"Content-Type", order->uploads ? "application/octet-stream"
                                                                    : "application/json"};
    for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++) {
        list[n] = (struct http_header){passed[i], http_exchange_header(rq->exchange, passed[i])};
        n += list[n].value != NULL;
    }
    for (size_t i = 0; order->pack == CODEC_NONE && i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        list[n] = (struct http_header){ranges[i], http_exchange_header(rq->exchange, ranges[i])};
        n += list[n].value != NULL;
    }
    for (size_t i = 0; i < order->header_count && n < DOWN_MAX; i++) {
        list[n++] = order->headers[i];
    }
    return n;
}

static struct http_call *
start_call(struct proxy *p, const struct proxy_order *order, struct error *err)
{
    static const struct http_call_callbacks callbacks = {on_head, on_data, on_done};
    struct request *rq = p->rq;
    int64_t length = http_exchange_content_length(rq->exchange);
    struct http_header headers[DOWN_MAX];
    _cleanup_buf_ struct buf target = buf_make(TARGET_MAX);
    _cleanup_buf_ struct buf text = buf_make(0);
    struct http_call_request request = {
        .method = order->method,
        .stream_body = order->uploads,
        .headers = headers,
        .upgrade = order->upgrade,
    };

    (void)error_set(err, ENOMEM, "no memory");
    buf_put_str(&target, order->path);
    if (order->with_query) {
        proxy_put_query(rq, order->more_query, &target);
    }
    if (order->body != NULL) {
        json_write(order->body, &text);
    }
    if (buf_error(&target) < 0 || buf_error(&text) < 0) {
        return NULL;
    }
    if (order->uploads && order->unpack == CODEC_NONE && length > 0) {
        request.stream_length = (uint64_t)length;
    }
    request.target = buf_str(&target);
    request.header_count = put_headers(rq, order, headers);
    request.body = buf_span(&text);
    return http_client_start(rq->api->client, &request, &callbacks, p, err);
}

void proxy_start(struct request *rq, const struct proxy_order *order)
{
    struct proxy *p = calloc(1, sizeof(*p));
    struct error err;

    if (p == NULL) {
        (void)error_set(&err, ENOMEM, "no memory");
        request_fail(rq, &err);
        return;
    }
    *p = (struct proxy){.rq = rq,
                        .pack = order->pack,
                        .pack_encodes = order->pack_encodes,
                        .pack_type = order->pack_type,
                        .on_upgraded = order->on_upgraded};
    spill_init(&p->kept, rq->api, rq->key, KEEP_MAX);
    p->call = start_call(p, order, &err);
    if (p->call == NULL) {
        proxy_free(p);
        request_fail(rq, &err);
        return;
    }
    idempotency_begun(rq);
    request_on_gone(rq, on_gone, p);
    if (order->uploads && start_upload(p, order->unpack, &err) < 0) {
        fail(p, &err);
    }
}

void proxy_json(
    struct request *rq, const char *method, const char *path, const json_t *body, bool with_query)
{
    proxy_start(rq, &(struct proxy_order){
                        .method = method, .path = path, .body = body, .with_query = with_query});
}

void proxy_upload(struct request *rq, const char *method, const char *path)
{
    proxy_start(rq, &(struct proxy_order){
                        .method = method, .path = path, .with_query = true, .uploads = true});
}
