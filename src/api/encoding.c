#include "api/encoding.h"

#include <strings.h>

#include "api/proxy.h"
#include "api/request.h"

static struct span trim(struct span s)
{
    while (s.n > 0 && (s.p[0] == ' ' || s.p[0] == '\t')) {
        s = span_skip(s, 1);
    }
    while (s.n > 0 && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t')) {
        s = span_head(s, s.n - 1);
    }
    return s;
}

/* "q=0", "q=0.0" and so on. */
static bool is_refusal(struct span parameters)
{
    struct span q = trim(parameters);

    if (q.n < 3 || (q.p[0] != 'q' && q.p[0] != 'Q') || q.p[1] != '=') {
        return false;
    }
    for (size_t i = 2; i < q.n; i++) {
        if (q.p[i] != '0' && q.p[i] != '.') {
            return false;
        }
    }
    return true;
}

bool encoding_accepts_gzip(const char *value)
{
    struct span rest = span_of_str(value == NULL ? "" : value);

    while (rest.n > 0) {
        struct span item = span_head(rest, span_find(rest, 0, ','));
        struct span name = span_head(item, span_find(item, 0, ';'));

        rest = span_skip(rest, item.n + 1);
        if (span_equals_nocase(trim(name), "gzip")) {
            return !is_refusal(span_skip(item, name.n + 1));
        }
    }
    return false;
}

/* 1 when the request says it, else 0 with CODEC_NONE. */
static int
read_compression(const struct request *rq, enum codec_format *ret_format, struct error *err)
{
    const char *text = query_find(&rq->query, "compression");

    *ret_format = CODEC_NONE;
    if (text == NULL) {
        return 0;
    }
    if (codec_find(text, ret_format) < 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "compression",
                              "compression must be none, gzip or zstd");
    }
    return 1;
}

int encoding_of_answer(const struct request *rq, struct proxy_order *order, struct error *err)
{
    static const char *const types[] = {
        [CODEC_NONE] = NULL, [CODEC_GZIP] = "application/gzip", [CODEC_ZSTD] = "application/zstd"};
    const char *accepted = http_exchange_header(rq->exchange, "Accept-Encoding");
    enum codec_format format;
    int r = read_compression(rq, &format, err);

    if (r < 0) {
        return r;
    }
    order->pack = format;
    order->pack_type = types[format];
    if (format == CODEC_NONE && http_exchange_header(rq->exchange, "Range") == NULL &&
        encoding_accepts_gzip(accepted)) {
        order->pack = CODEC_GZIP;
        order->pack_encodes = true;
    }
    return 0;
}

int encoding_of_upload(const struct request *rq, struct proxy_order *order, struct error *err)
{
    const char *encoding = http_exchange_header(rq->exchange, "Content-Encoding");
    enum codec_format format;
    int r = read_compression(rq, &format, err);

    if (r < 0) {
        return r;
    }
    order->unpack = format;
    if (encoding == NULL || strcasecmp(encoding, "identity") == 0) {
        return 0;
    }
    if (http_exchange_header_count(rq->exchange, "Content-Encoding") > 1 ||
        (strcasecmp(encoding, "gzip") != 0 && strcasecmp(encoding, "zstd") != 0)) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "Content-Encoding",
                              "Content-Encoding must be gzip, zstd or identity");
    }
    if (r == 1) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "Content-Encoding",
                              "Content-Encoding and compression exclude each other");
    }
    order->unpack = strcasecmp(encoding, "gzip") == 0 ? CODEC_GZIP : CODEC_ZSTD;
    return 0;
}
