#include <errno.h>

#include "base/buf.h"
#include "wire/http1.h"
#include "wire/http1_chars.h"

static bool is_all(struct span s, bool (*is_char)(uint8_t c))
{
    for (size_t i = 0; i < s.n; i++) {
        if (!is_char(s.p[i])) {
            return false;
        }
    }
    return true;
}

int http1_put_request_line(struct buf *out, struct span method, struct span target)
{
    if (method.n == 0 || method.n > HTTP1_MAX_METHOD_BYTES || !is_all(method, is_token_char) ||
        target.n == 0 || !is_all(target, is_target_char)) {
        return -EBADMSG;
    }
    buf_put(out, method);
    buf_put_str(out, " ");
    buf_put(out, target);
    buf_put_str(out, " HTTP/1.1\r\n");
    return 0;
}

int http1_put_status_line(struct buf *out, int status)
{
    if (status < 100 || status > 599) {
        return -EBADMSG;
    }
    buf_printf(out, "HTTP/1.1 %d %s\r\n", status, http1_status_text(status));
    return 0;
}

int http1_put_field(struct buf *out, struct span name, struct span value)
{
    if (name.n == 0 || !is_all(name, is_token_char) || !is_all(value, is_value_char)) {
        return -EBADMSG;
    }
    buf_put(out, name);
    buf_put_str(out, ": ");
    buf_put(out, value);
    buf_put_str(out, "\r\n");
    return 0;
}

void http1_put_end(struct buf *out)
{
    buf_put_str(out, "\r\n");
}

size_t http1_format_chunk_head(uint64_t size, char out[HTTP1_CHUNK_HEAD_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    char reversed[16];
    size_t n = 0;
    size_t used = 0;

    do {
        reversed[n++] = digits[size & 15U];
        size >>= 4U;
    } while (size > 0);
    while (n > 0) {
        out[used++] = reversed[--n];
    }
    out[used++] = '\r';
    out[used++] = '\n';
    return used;
}

struct status_row {
    int status;
    const char *text;
};

const char *http1_status_text(int status)
{
    static const struct status_row rows[] = {
        {100, "Continue"},
        {101, "Switching Protocols"},
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {206, "Partial Content"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {303, "See Other"},
        {304, "Not Modified"},
        {307, "Temporary Redirect"},
        {308, "Permanent Redirect"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {411, "Length Required"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Content"},
        {426, "Upgrade Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {507, "Insufficient Storage"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].status == status) {
            return rows[i].text;
        }
    }
    return "";
}
