#include "api/port_headers.h"

#include <errno.h>
#include <stdlib.h>
#include <strings.h>

#include "api/port_cookie.h"
#include "api/port_query.h"

#define OPTIONS_MAX 32

void port_headers_done(struct port_headers *headers)
{
    for (size_t i = 0; i < headers->owned_count; i++) {
        free(headers->owned[i]);
    }
    headers->owned_count = 0;
    headers->count = 0;
}

void port_headers_add(struct port_headers *headers, const char *name, const char *value)
{
    if (headers->count == PORT_HEADERS_MAX) {
        headers->error = -EMSGSIZE;
        return;
    }
    headers->items[headers->count++] = (struct http_header){name, value};
}

/* Takes the text of a buffer as a header's value. */
static void add_owned(struct port_headers *headers, const char *name, struct buf *value)
{
    char *copy = buf_error(value) < 0 ? NULL : strdup(buf_str(value));

    if (copy == NULL || headers->owned_count == PORT_HEADERS_MAX) {
        free(copy);
        headers->error = copy == NULL ? -ENOMEM : -EMSGSIZE;
        return;
    }
    headers->owned[headers->owned_count++] = copy;
    port_headers_add(headers, name, copy);
}

const char *port_headers_find(const struct port_headers *headers, const char *name)
{
    for (size_t i = 0; i < headers->count; i++) {
        if (strcasecmp(headers->items[i].name, name) == 0) {
            return headers->items[i].value;
        }
    }
    return NULL;
}

/* ---- what is of one connection ---- */

static bool is_in(const char *const *names, const char *name)
{
    for (size_t i = 0; names[i] != NULL; i++) {
        if (strcasecmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

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

/* Takes the next element of a comma-separated list, without the blanks around it. */
static bool next_element(struct span *rest, struct span *ret_element)
{
    size_t comma;

    if (rest->n == 0) {
        return false;
    }
    comma = span_find(*rest, 0, ',');
    *ret_element = trim(span_head(*rest, comma));
    *rest = span_skip(*rest, comma + 1);
    return true;
}

/* The names in Connection headers. */
struct options {
    struct span items[OPTIONS_MAX];
    size_t count;
};

/* False when there are too many: each header is compared with each. */
static bool read_options(const struct http_header *in, size_t count, struct options *ret_options)
{
    ret_options->count = 0;
    for (size_t i = 0; i < count; i++) {
        struct span rest = span_of_str(in[i].value);
        struct span option;

        if (strcasecmp(in[i].name, "Connection") != 0) {
            continue;
        }
        while (next_element(&rest, &option)) {
            if (ret_options->count == OPTIONS_MAX) {
                return false;
            }
            ret_options->items[ret_options->count++] = option;
        }
    }
    return true;
}

static bool is_of_connection(const struct options *options, const char *name)
{
    static const char *const names[] = {"Connection",
                                        "Keep-Alive",
                                        "Proxy-Connection",
                                        "Proxy-Authenticate",
                                        "Proxy-Authentication-Info",
                                        "Proxy-Authorization",
                                        "TE",
                                        "Trailer",
                                        "Transfer-Encoding",
                                        "Content-Length",
                                        "Upgrade",
                                        NULL};

    for (size_t i = 0; i < options->count; i++) {
        if (span_equals_nocase(options->items[i], name)) {
            return true;
        }
    }
    return is_in(names, name);
}

/* ---- requests ---- */

/* `Bearer X` with a credential of ours. */
static bool is_our_authorization(const char *value)
{
    struct span text = span_of_str(value);
    size_t blank = span_find(text, 0, ' ');

    return span_equals_nocase(span_head(text, blank), "bearer") &&
           port_credential_is_ours(trim(span_skip(text, blank)));
}

static void put_cookie(struct port_headers *out, const struct http_header *header)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    port_cookie_strip(span_of_str(header->value), &text);
    if (text.n > 0 || buf_error(&text) < 0) {
        add_owned(out, header->name, &text);
    }
}

static void put_referer(struct port_headers *out, const struct http_header *header)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    if (port_url_strip(span_of_str(header->value), &text) || buf_error(&text) < 0) {
        add_owned(out, header->name, &text);
    } else {
        port_headers_add(out, header->name, header->value);
    }
}

static void put_request_header(struct port_headers *out,
                               const struct http_header *header,
                               const struct port_request_facts *facts)
{
    /* Host is written by the caller, Expect was answered by us, the others are written below. */
    static const char *const ours[] = {"Host",
                                       "Expect",
                                       "X-Space-Token",
                                       "X-Forwarded-For",
                                       "X-Forwarded-Proto",
                                       "X-Forwarded-Host",
                                       NULL};

    if (is_in(ours, header->name)) {
        return;
    }
    if (strcasecmp(header->name, "Authorization") == 0) {
        if (!is_our_authorization(header->value)) {
            port_headers_add(out, header->name, header->value);
        }
    } else if (strcasecmp(header->name, "Cookie") == 0) {
        if (!facts->by_path) {
            put_cookie(out, header);
        }
    } else if (strcasecmp(header->name, "Referer") == 0) {
        put_referer(out, header);
    } else {
        port_headers_add(out, header->name, header->value);
    }
}

/* The addresses that the request came by, ours last. */
static void put_forwarded_for(struct port_headers *out,
                              const struct http_header *in,
                              size_t count,
                              const char *peer)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    for (size_t i = 0; i < count; i++) {
        if (strcasecmp(in[i].name, "X-Forwarded-For") == 0) {
            buf_printf(&text, "%s, ", in[i].value);
        }
    }
    buf_put_str(&text, peer);
    add_owned(out, "X-Forwarded-For", &text);
}

void port_headers_of_request(const struct http_header *in,
                             size_t count,
                             const struct port_request_facts *facts,
                             struct port_headers *out)
{
    struct options options;

    if (!read_options(in, count, &options)) {
        out->error = -EMSGSIZE;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (!is_of_connection(&options, in[i].name)) {
            put_request_header(out, &in[i], facts);
        }
    }
    put_forwarded_for(out, in, count, facts->peer);
    port_headers_add(out, "X-Forwarded-Proto", facts->scheme);
    if (facts->host[0] != '\0') {
        port_headers_add(out, "X-Forwarded-Host", facts->host);
    }
}

/* ---- answers ---- */

static bool is_kept_from_client(const char *name, const struct port_answer_facts *facts)
{
    /* X-Space-Error says that an answer is ours. The next two would reach cookies and storage of
     * the whole site, and other ports of the same name. */
    static const char *const always[] = {"X-Space-Error", "Clear-Site-Data", "Alt-Svc", NULL};
    /* These speak for the whole origin, which by path is the API's. */
    static const char *const by_path[] = {"Set-Cookie",
                                          "Set-Cookie2",
                                          "Service-Worker-Allowed",
                                          "Strict-Transport-Security",
                                          "Public-Key-Pins",
                                          "Expect-CT",
                                          "NEL",
                                          "Report-To",
                                          "Reporting-Endpoints",
                                          "Accept-CH",
                                          "Origin-Agent-Cluster",
                                          "X-Content-Type-Options",
                                          NULL};

    return is_in(always, name) || (facts->by_path && is_in(by_path, name)) ||
           (facts->had_token && strcasecmp(name, "Referrer-Policy") == 0);
}

static void put_set_cookie(struct port_headers *out, const struct http_header *header)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    if (port_cookie_filter_set(span_of_str(header->value), &text)) {
        add_owned(out, header->name, &text);
    }
}

void port_headers_of_answer(const struct http_header *in,
                            size_t count,
                            const struct port_answer_facts *facts,
                            struct port_headers *out)
{
    struct options options;

    if (!read_options(in, count, &options)) {
        out->error = -EMSGSIZE;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const char *name = in[i].name;

        if (is_of_connection(&options, name) || is_kept_from_client(name, facts)) {
            continue;
        }
        if (strcasecmp(name, "Set-Cookie") == 0) {
            put_set_cookie(out, &in[i]);
        } else {
            port_headers_add(out, name, in[i].value);
        }
    }
    if (facts->had_token) {
        port_headers_add(out, "Referrer-Policy", "no-referrer");
    }
    if (facts->by_token && port_headers_find(out, "Access-Control-Allow-Origin") == NULL) {
        port_headers_add(out, "Access-Control-Allow-Origin", "*");
    }
    if (facts->by_path) {
        port_headers_add(out, "Content-Security-Policy", "sandbox");
        port_headers_add(out, "X-Content-Type-Options", "nosniff");
    }
}

/* ---- Accept ---- */

/* "0.5" in thousandths; what is no digit counts as 0. */
static unsigned int read_weight(struct span text)
{
    unsigned int weight = 0;

    for (size_t i = 0; i < 5; i++) {
        uint8_t c = i < text.n ? text.p[i] : '0';

        if (i != 1) { /* the point */
            weight = weight * 10 + (c >= '0' && c <= '9' ? (unsigned int)(c - '0') : 0);
        }
    }
    return weight > 1000 ? 1000 : weight;
}

/* The weight among the parameters of one element "type;q=0.5", in thousandths. */
static unsigned int weight_of(struct span parameters)
{
    while (parameters.n > 0) {
        size_t end = span_find(parameters, 0, ';');
        struct span one = trim(span_head(parameters, end));

        parameters = span_skip(parameters, end + 1);
        if (span_equals_nocase(span_head(one, 2), "q=")) {
            return read_weight(span_skip(one, 2));
        }
    }
    return 1000;
}

bool port_accepts_html(const char *accept)
{
    struct span rest = span_of_str(accept == NULL ? "" : accept);
    struct span element;
    unsigned int html = 0;
    unsigned int json = 0;

    while (next_element(&rest, &element)) {
        size_t end = span_find(element, 0, ';');
        struct span type = trim(span_head(element, end));
        unsigned int weight = weight_of(span_skip(element, end + 1));

        if (span_equals_nocase(type, "text/html")) {
            html = weight;
        } else if (span_equals_nocase(type, "application/json")) {
            json = weight;
        }
    }
    return html > json;
}
