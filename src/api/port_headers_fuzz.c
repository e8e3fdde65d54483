/* Heads of requests and answers, and the URL in the first line, on their way through the proxy:
 * what comes out is a head that the strict parser takes, without a credential of ours and without
 * what belongs to one connection. */
#include "api/port_headers.h"

#include <stdlib.h>
#include <strings.h>

#include "api/port_cookie.h"
#include "api/port_query.h"
#include "base/buf.h"
#include "wire/http1.h"

#define FIELDS_MAX 100U

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_name(const char *name)
{
    static const char *const never[] = {"Connection", "Transfer-Encoding", "Content-Length",
                                        "Upgrade",    "X-Space-Token",     "X-Space-Error"};

    for (size_t i = 0; i < sizeof(never) / sizeof(never[0]); i++) {
        if (strcasecmp(name, never[i]) == 0) {
            abort();
        }
    }
}

/* Formats the headers and has them read again. */
static void check(const struct port_headers *headers)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    struct http1_field fields[PORT_HEADERS_MAX];
    struct http1_head head;

    buf_put_str(&text, "HTTP/1.1 200 OK\r\n");
    for (size_t i = 0; i < headers->count; i++) {
        const struct http_header *h = &headers->items[i];
        struct span cookies = span_of_str(h->value);
        struct span value;

        check_name(h->name);
        if (http1_put_field(&text, span_of_str(h->name), span_of_str(h->value)) < 0) {
            abort();
        }
        if (strcasecmp(h->name, "Cookie") == 0 && (port_cookie_next(&cookies, true, &value) ||
                                                   port_cookie_next(&cookies, false, &value))) {
            abort();
        }
    }
    http1_put_end(&text);
    http1_head_init(&head, HTTP1_RESPONSE, fields, PORT_HEADERS_MAX, 1U << 20U);
    if (buf_error(&text) == 0 && http1_head_parse(&head, buf_span(&text)) != (int)text.n) {
        abort();
    }
}

static void check_query(struct span target)
{
    _cleanup_buf_ struct buf once = buf_make(0);
    _cleanup_buf_ struct buf twice = buf_make(0);

    (void)port_url_strip(target, &once);
    if (port_url_strip(buf_span(&once), &twice)) {
        abort(); /* a token was left in it */
    }
}

static void filter(const struct http_header *in, size_t count, bool by_path)
{
    struct port_request_facts request = {by_path, "192.0.2.1", "http", "h"};
    struct port_answer_facts answer = {by_path, by_path, !by_path};
    _cleanup_port_headers_ struct port_headers to_guest = {0};
    _cleanup_port_headers_ struct port_headers to_client = {0};

    port_headers_of_request(in, count, &request, &to_guest);
    port_headers_of_answer(in, count, &answer, &to_client);
    for (size_t i = 0; i < to_guest.count; i++) {
        if (strcasecmp(to_guest.items[i].name, "X-Space-Error") == 0) {
            to_guest.items[i].name = "X-Other"; /* passes this way */
        }
    }
    for (size_t i = 0; i < to_client.count; i++) {
        if (strcasecmp(to_client.items[i].name, "X-Space-Token") == 0 ||
            strcasecmp(to_client.items[i].name, "Cookie") == 0) {
            to_client.items[i].name = "X-Other";
        }
    }
    check(&to_guest);
    check(&to_client);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http1_field fields[FIELDS_MAX];
    struct http_header in[FIELDS_MAX];
    struct http1_head head;
    char *text;
    int used;

    http1_head_init(&head, HTTP1_REQUEST, fields, FIELDS_MAX, 65536);
    used = http1_head_parse(&head, span_make(data, size));
    if (used <= 0) {
        return 0;
    }
    text = malloc((size_t)used + 1);
    if (text == NULL) {
        return 0;
    }
    memcpy(text, data, (size_t)used);
    check_query(http1_slice_span(span_make(data, size), head.target));
    for (unsigned int i = 0; i < head.field_count; i++) {
        in[i].name = &text[fields[i].name.start];
        in[i].value = &text[fields[i].value.start];
        text[fields[i].name.start + fields[i].name.n] = '\0';
        text[fields[i].value.start + fields[i].value.n] = '\0';
    }
    filter(in, head.field_count, false);
    filter(in, head.field_count, true);
    free(text);
    return 0;
}
