#include "api/port_error.h"

#include "api/cors.h"
#include "api/port_headers.h"
#include "api/request.h"
#include "base/buf.h"

/* Nothing of the page runs or loads anything: it may stand on a name of an application. */
#define PAGE_POLICY "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"
#define PAGE_STYLE                                                                                 \
    "body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:4em auto;padding:0 1em}"        \
    "h1{font-size:1.3em}p.d{color:#777;font-size:.85em}"

static void put_escaped(struct buf *out, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '&':
            buf_put_str(out, "&amp;");
            break;
        case '<':
            buf_put_str(out, "&lt;");
            break;
        case '>':
            buf_put_str(out, "&gt;");
            break;
        case '"':
            buf_put_str(out, "&quot;");
            break;
        case '\'':
            buf_put_str(out, "&#39;");
            break;
        default:
            buf_put(out, span_make(text, 1));
            break;
        }
    }
}

static void put_page(struct buf *out, const struct error *err, const char *request_id)
{
    int status = error_code_status(err->code);

    buf_printf(out,
               "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
               "<meta name=\"viewport\" content=\"width=device-width\"><title>%d %s</title>"
               "<style>" PAGE_STYLE "</style></head>\n<body><h1>",
               status, error_code_name(err->code));
    put_escaped(out, err->message);
    buf_printf(out, "</h1>\n<p class=\"d\">%d %s &middot; request ", status,
               error_code_name(err->code));
    put_escaped(out, request_id);
    buf_put_str(out, "</p></body></html>\n");
}

void port_error_answer(struct request *rq,
                       const struct error *err,
                       struct span json,
                       const char *retry_after)
{
    bool html = port_accepts_html(http_exchange_header(rq->exchange, "Accept"));
    _cleanup_buf_ struct buf page = buf_make(0);
    struct request_headers headers;

    if (rq->answered) {
        return;
    }
    put_page(&page, err, rq->id);
    html = html && buf_error(&page) == 0;
    request_headers_make(rq, html ? "text/html; charset=utf-8" : "application/json", &headers);
    request_headers_add(&headers, "X-Space-Error", error_code_name(err->code));
    cors_add_port_headers(&headers);
    request_headers_add(&headers, "Vary", "Accept");
    request_headers_add(&headers, "Content-Security-Policy", PAGE_POLICY);
    request_headers_add(&headers, "Retry-After",
                        error_code_is_retryable(err->code) ? retry_after : NULL);
    request_headers_add(&headers, "WWW-Authenticate",
                        err->code == ERROR_UNAUTHORIZED ? "Bearer" : NULL);
    request_answer_headers(rq, error_code_status(err->code), &headers,
                           html ? buf_span(&page) : json);
}
