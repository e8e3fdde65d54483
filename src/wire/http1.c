/* The head parser: one byte at a time through a small machine, so that a cut changes nothing. A
 * field is judged when its line is complete, the whole head at its last byte. */
#include "wire/http1.h"

#include <errno.h>

#include "wire/http1_chars.h"

enum {
    STATE_METHOD,
    STATE_TARGET,
    STATE_VERSION,
    STATE_VERSION_END,
    STATE_STATUS,
    STATE_STATUS_TEXT,
    STATE_LINE_LF,
    STATE_FIELD_START,
    STATE_NAME,
    STATE_VALUE_START,
    STATE_VALUE,
    STATE_FIELD_LF,
    STATE_END_LF,
    STATE_DONE,
    STATE_FAILED,
};

enum {
    SEEN_HOST = 1U << 0U,
    SEEN_LENGTH = 1U << 1U,
    SEEN_CODING = 1U << 2U,
    SEEN_EXPECT = 1U << 3U,
    SEEN_UPGRADE = 1U << 4U,
    SAYS_CLOSE = 1U << 5U,
    SAYS_KEEP_ALIVE = 1U << 6U,
    SAYS_UPGRADE = 1U << 7U,
};

static const char version_text[] = "HTTP/1.";

#define VERSION_LENGTH (sizeof(version_text)) /* with the digit in place of the NUL */

void http1_head_init(struct http1_head *head,
                     enum http1_kind kind,
                     struct http1_field *fields,
                     unsigned int max_fields,
                     size_t max_bytes)
{
    *head = (struct http1_head){
        .kind = kind,
        .fields = fields,
        .max_fields = max_fields,
        .max_bytes = max_bytes > HTTP1_MAX_HEAD_BYTES ? HTTP1_MAX_HEAD_BYTES : (uint32_t)max_bytes,
        .content_length = -1,
        .state = kind == HTTP1_REQUEST ? STATE_METHOD : STATE_VERSION,
    };
}

struct span http1_slice_span(struct span bytes, struct http1_slice slice)
{
    return span_head(span_skip(bytes, slice.start), slice.n);
}

static int fail(struct http1_head *head, enum http1_fault fault)
{
    head->state = STATE_FAILED;
    head->fault = fault;
    return -1;
}

static struct http1_slice token_slice(const struct http1_head *head, uint32_t end)
{
    return (struct http1_slice){head->token_start, end - head->token_start};
}

/* Starts a token at the byte after the current one. */
static void token_after(struct http1_head *head, unsigned int state)
{
    head->state = state;
    head->token_start = head->position + 1;
    head->token_end = head->token_start;
}

static bool is_port(struct span s)
{
    uint64_t port;

    return s.n <= 5 && span_parse_u64(s, 65535, &port) == 0;
}

static bool is_address_literal(struct span s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (hex_value(s.p[i]) < 0 && s.p[i] != ':' && s.p[i] != '.') {
            return false;
        }
    }
    return s.n >= 2;
}

static bool is_host_name(struct span s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (!is_host_char(s.p[i])) {
            return false;
        }
    }
    return s.n > 0 && s.n <= 255;
}

/* "host", "host:port", "[v6]" or "[v6]:port". */
static bool is_authority(struct span s, bool needs_port)
{
    struct span rest;

    if (s.n > 0 && s.p[0] == '[') {
        size_t end = span_find(s, 0, ']');

        if (end == s.n || !is_address_literal(span_head(span_skip(s, 1), end - 1))) {
            return false;
        }
        rest = span_skip(s, end + 1);
    } else {
        size_t end = span_find(s, 0, ':');

        if (!is_host_name(span_head(s, end))) {
            return false;
        }
        rest = span_skip(s, end);
    }
    if (rest.n == 0) {
        return !needs_port;
    }
    return rest.p[0] == ':' && is_port(span_skip(rest, 1));
}

static bool is_absolute(struct span target)
{
    size_t n;

    if (span_equals_nocase(span_head(target, 7), "http://")) {
        n = 7;
    } else if (span_equals_nocase(span_head(target, 8), "https://")) {
        n = 8;
    } else {
        return false;
    }
    target = span_skip(target, n);
    n = span_find(target, 0, '/');
    if (span_find(target, 0, '?') < n) {
        n = span_find(target, 0, '?');
    }
    return is_authority(span_head(target, n), false);
}

static int judge_target(struct http1_head *head, struct span bytes)
{
    struct span method = http1_slice_span(bytes, head->method);
    struct span target = http1_slice_span(bytes, head->target);

    if (span_equals_str(method, "CONNECT")) {
        head->target_form = HTTP1_TARGET_AUTHORITY;
        return is_authority(target, true) ? 0 : fail(head, HTTP1_FAULT_TARGET);
    }
    if (target.n > 0 && target.p[0] == '/') {
        head->target_form = HTTP1_TARGET_ORIGIN;
        return 0;
    }
    if (span_equals_str(target, "*") && span_equals_str(method, "OPTIONS")) {
        head->target_form = HTTP1_TARGET_ASTERISK;
        return 0;
    }
    head->target_form = HTTP1_TARGET_ABSOLUTE;
    return is_absolute(target) ? 0 : fail(head, HTTP1_FAULT_TARGET);
}

static int on_method(struct http1_head *head, uint8_t c)
{
    uint32_t n = head->position - head->token_start;

    if (c == ' ' && n > 0) {
        head->method = token_slice(head, head->position);
        token_after(head, STATE_TARGET);
        return 0;
    }
    return is_token_char(c) && n < HTTP1_MAX_METHOD_BYTES ? 0 : fail(head, HTTP1_FAULT_METHOD);
}

static int on_target(struct http1_head *head, struct span bytes, uint8_t c)
{
    if (c == ' ') {
        head->target = token_slice(head, head->position);
        token_after(head, STATE_VERSION);
        return judge_target(head, bytes);
    }
    return is_target_char(c) ? 0 : fail(head, HTTP1_FAULT_TARGET);
}

static int on_version(struct http1_head *head, uint8_t c)
{
    uint32_t at = head->position - head->token_start;

    if (at < VERSION_LENGTH - 1) {
        return c == (uint8_t)version_text[at] ? 0 : fail(head, HTTP1_FAULT_VERSION);
    }
    if (c != '0' && c != '1') {
        return fail(head, HTTP1_FAULT_VERSION);
    }
    head->minor = c - (unsigned int)'0';
    head->state = STATE_VERSION_END;
    return 0;
}

static int on_version_end(struct http1_head *head, uint8_t c)
{
    if (head->kind == HTTP1_REQUEST) {
        head->state = STATE_LINE_LF;
        return c == '\r' ? 0 : fail(head, HTTP1_FAULT_VERSION);
    }
    token_after(head, STATE_STATUS);
    return c == ' ' ? 0 : fail(head, HTTP1_FAULT_VERSION);
}

static int on_status(struct http1_head *head, uint8_t c)
{
    uint32_t at = head->position - head->token_start;

    if (at < 3) {
        head->status = head->status * 10 + (c - '0');
        return is_digit(c) ? 0 : fail(head, HTTP1_FAULT_STATUS);
    }
    if (head->status < 100 || head->status > 599) {
        return fail(head, HTTP1_FAULT_STATUS);
    }
    token_after(head, STATE_STATUS_TEXT);
    if (c == '\r') {
        head->state = STATE_LINE_LF;
        return 0;
    }
    return c == ' ' ? 0 : fail(head, HTTP1_FAULT_STATUS);
}

static int on_status_text(struct http1_head *head, uint8_t c)
{
    if (c == '\r') {
        head->status_text = token_slice(head, head->position);
        head->state = STATE_LINE_LF;
        return 0;
    }
    if (c == '\n') {
        return fail(head, HTTP1_FAULT_LINE_END);
    }
    return is_value_char(c) && head->position - head->token_start < HTTP1_MAX_STATUS_TEXT_BYTES
               ? 0
               : fail(head, HTTP1_FAULT_STATUS);
}

static int on_field_start(struct http1_head *head, uint8_t c)
{
    if (c == '\r') {
        head->state = STATE_END_LF;
        return 0;
    }
    if (is_blank(c)) {
        return fail(head, HTTP1_FAULT_FOLDED);
    }
    if (c == '\n') {
        return fail(head, HTTP1_FAULT_LINE_END);
    }
    if (!is_token_char(c)) {
        return fail(head, HTTP1_FAULT_FIELD_NAME);
    }
    if (head->field_count == head->max_fields) {
        return fail(head, HTTP1_FAULT_FIELD_COUNT);
    }
    head->state = STATE_NAME;
    head->token_start = head->position;
    return 0;
}

static int on_name(struct http1_head *head, uint8_t c)
{
    if (c == ':') {
        head->fields[head->field_count].name = token_slice(head, head->position);
        token_after(head, STATE_VALUE_START);
        return 0;
    }
    return is_token_char(c) ? 0 : fail(head, HTTP1_FAULT_FIELD_NAME);
}

static int on_value(struct http1_head *head, uint8_t c)
{
    if (c == '\r') {
        head->state = STATE_FIELD_LF;
        return 0;
    }
    if (c == '\n') {
        return fail(head, HTTP1_FAULT_LINE_END);
    }
    if (!is_value_char(c)) {
        return fail(head, HTTP1_FAULT_FIELD_VALUE);
    }
    if (is_blank(c)) {
        return 0;
    }
    if (head->state == STATE_VALUE_START) {
        head->token_start = head->position;
        head->state = STATE_VALUE;
    }
    head->token_end = head->position + 1;
    return 0;
}

static int see_once(struct http1_head *head, unsigned int flag, enum http1_fault fault)
{
    if ((head->flags & flag) != 0) {
        return fail(head, fault);
    }
    head->flags |= flag;
    return 0;
}

static struct span trim_blanks(struct span s)
{
    while (s.n > 0 && is_blank(s.p[0])) {
        s = span_skip(s, 1);
    }
    while (s.n > 0 && is_blank(s.p[s.n - 1])) {
        s = span_head(s, s.n - 1);
    }
    return s;
}

static void judge_connection(struct http1_head *head, struct span value)
{
    while (value.n > 0) {
        size_t comma = span_find(value, 0, ',');
        struct span option = trim_blanks(span_head(value, comma));

        if (span_equals_nocase(option, "close")) {
            head->flags |= SAYS_CLOSE;
        } else if (span_equals_nocase(option, "keep-alive")) {
            head->flags |= SAYS_KEEP_ALIVE;
        } else if (span_equals_nocase(option, "upgrade")) {
            head->flags |= SAYS_UPGRADE;
        }
        value = span_skip(value, comma + 1);
    }
}

static int judge_length(struct http1_head *head, struct span value)
{
    uint64_t length;

    if (see_once(head, SEEN_LENGTH, HTTP1_FAULT_CONTENT_LENGTH) < 0) {
        return -1;
    }
    if (span_parse_u64(value, INT64_MAX, &length) < 0) {
        return fail(head, HTTP1_FAULT_CONTENT_LENGTH);
    }
    head->content_length = (int64_t)length;
    return 0;
}

static int judge_coding(struct http1_head *head, struct span value)
{
    if (see_once(head, SEEN_CODING, HTTP1_FAULT_TRANSFER_ENCODING) < 0) {
        return -1;
    }
    head->is_chunked = true;
    return span_equals_nocase(value, "chunked") ? 0 : fail(head, HTTP1_FAULT_TRANSFER_ENCODING);
}

static int judge_request_field(struct http1_head *head,
                               struct span name,
                               struct span value,
                               struct http1_slice slice)
{
    if (span_equals_nocase(name, "host")) {
        head->host = slice;
        if (!is_authority(value, false)) {
            return fail(head, HTTP1_FAULT_HOST);
        }
        return see_once(head, SEEN_HOST, HTTP1_FAULT_HOST);
    }
    if (span_equals_nocase(name, "expect")) {
        head->expects_continue = true;
        if (!span_equals_nocase(value, "100-continue")) {
            return fail(head, HTTP1_FAULT_EXPECT);
        }
        return see_once(head, SEEN_EXPECT, HTTP1_FAULT_EXPECT);
    }
    return 0;
}

/* A field's line is complete. */
static int judge_field(struct http1_head *head, struct span bytes)
{
    struct http1_field *field = &head->fields[head->field_count];
    struct span name = http1_slice_span(bytes, field->name);
    struct span value;

    field->value = token_slice(head, head->token_end);
    value = http1_slice_span(bytes, field->value);
    head->field_count++;
    if (span_equals_nocase(name, "content-length")) {
        return judge_length(head, value);
    }
    if (span_equals_nocase(name, "transfer-encoding")) {
        return judge_coding(head, value);
    }
    if (span_equals_nocase(name, "connection")) {
        judge_connection(head, value);
    } else if (span_equals_nocase(name, "upgrade")) {
        head->flags |= SEEN_UPGRADE;
    }
    return head->kind == HTTP1_REQUEST ? judge_request_field(head, name, value, field->value) : 0;
}

static int judge_head(struct http1_head *head)
{
    const unsigned int upgrade = SAYS_UPGRADE | SEEN_UPGRADE;

    if (head->is_chunked && head->content_length >= 0) {
        return fail(head, HTTP1_FAULT_FRAMING);
    }
    if (head->is_chunked && head->minor == 0) {
        return fail(head, HTTP1_FAULT_TRANSFER_ENCODING);
    }
    if (head->kind == HTTP1_REQUEST && head->minor == 1 && (head->flags & SEEN_HOST) == 0) {
        return fail(head, HTTP1_FAULT_HOST);
    }
    head->is_keep_alive = (head->flags & SAYS_CLOSE) == 0 &&
                          (head->minor == 1 || (head->flags & SAYS_KEEP_ALIVE) != 0);
    head->wants_upgrade = head->minor == 1 && (head->flags & upgrade) == upgrade;
    head->expects_continue = head->expects_continue && head->minor == 1;
    head->state = STATE_DONE;
    return 0;
}

/* The line feed after a carriage return. */
static int on_line_feed(struct http1_head *head, struct span bytes, uint8_t c)
{
    unsigned int state = head->state;

    if (c != '\n') {
        return fail(head, HTTP1_FAULT_LINE_END);
    }
    head->state = STATE_FIELD_START;
    if (state == STATE_FIELD_LF) {
        return judge_field(head, bytes);
    }
    return state == STATE_END_LF ? judge_head(head) : 0;
}

static int head_step(struct http1_head *head, struct span bytes, uint8_t c)
{
    switch (head->state) {
    case STATE_METHOD:
        return on_method(head, c);
    case STATE_TARGET:
        return on_target(head, bytes, c);
    case STATE_VERSION:
        return on_version(head, c);
    case STATE_VERSION_END:
        return on_version_end(head, c);
    case STATE_STATUS:
        return on_status(head, c);
    case STATE_STATUS_TEXT:
        return on_status_text(head, c);
    case STATE_FIELD_START:
        return on_field_start(head, c);
    case STATE_NAME:
        return on_name(head, c);
    case STATE_VALUE_START:
    case STATE_VALUE:
        return on_value(head, c);
    default:
        return on_line_feed(head, bytes, c);
    }
}

int http1_head_parse(struct http1_head *head, struct span bytes)
{
    while (head->state < STATE_DONE && head->position < bytes.n) {
        if (head->position == head->max_bytes) {
            (void)fail(head, HTTP1_FAULT_HEAD_SIZE);
            break;
        }
        if (head_step(head, bytes, bytes.p[head->position]) < 0) {
            break;
        }
        head->position++;
    }
    if (head->state == STATE_FAILED) {
        return head->fault == HTTP1_FAULT_HEAD_SIZE || head->fault == HTTP1_FAULT_FIELD_COUNT
                   ? -EMSGSIZE
                   : -EBADMSG;
    }
    return head->state == STATE_DONE ? (int)head->position : 0;
}

enum http1_body http1_head_body(const struct http1_head *head, bool is_bodiless)
{
    if (head->kind == HTTP1_RESPONSE &&
        (is_bodiless || head->status < 200 || head->status == 204 || head->status == 304)) {
        return HTTP1_BODY_NONE;
    }
    if (head->is_chunked) {
        return HTTP1_BODY_CHUNKED;
    }
    if (head->content_length >= 0) {
        return head->content_length > 0 ? HTTP1_BODY_LENGTH : HTTP1_BODY_NONE;
    }
    return head->kind == HTTP1_RESPONSE ? HTTP1_BODY_UNTIL_CLOSE : HTTP1_BODY_NONE;
}

/* What there is to say about each fault. */
static const struct fault_row {
    const char *field;
    const char *text;
} fault_rows[] = {
    [HTTP1_FAULT_NONE] = {"", "the message is well formed"},
    [HTTP1_FAULT_METHOD] = {"method", "the request does not begin with a method"},
    [HTTP1_FAULT_TARGET] = {"target", "the request target is malformed"},
    [HTTP1_FAULT_VERSION] = {"version", "the version must be HTTP/1.0 or HTTP/1.1"},
    [HTTP1_FAULT_STATUS] = {"status", "the status line is malformed"},
    [HTTP1_FAULT_LINE_END] = {"head", "a line must end with CR LF, and neither may stand alone"},
    [HTTP1_FAULT_FIELD_NAME] = {"headers", "a header name is malformed"},
    [HTTP1_FAULT_FIELD_VALUE] = {"headers", "a header value holds a control character"},
    [HTTP1_FAULT_FOLDED] = {"headers", "a header line begins with a blank"},
    [HTTP1_FAULT_CONTENT_LENGTH] = {"Content-Length", "Content-Length must be one decimal number"},
    [HTTP1_FAULT_TRANSFER_ENCODING] = {"Transfer-Encoding",
                                       "the only Transfer-Encoding accepted is chunked"},
    [HTTP1_FAULT_FRAMING] = {"Transfer-Encoding",
                             "Content-Length and Transfer-Encoding exclude each other"},
    [HTTP1_FAULT_HOST] = {"Host", "exactly one valid Host header is required"},
    [HTTP1_FAULT_EXPECT] = {"Expect", "the only Expect accepted is 100-continue"},
    [HTTP1_FAULT_HEAD_SIZE] = {"head", "the request line and headers are too large"},
    [HTTP1_FAULT_FIELD_COUNT] = {"headers", "there are too many headers"},
    [HTTP1_FAULT_CHUNK_SIZE] = {"body", "a chunk of the body is malformed"},
    [HTTP1_FAULT_CHUNK_EXTENSION] = {"body", "a chunk extension is malformed or too long"},
    [HTTP1_FAULT_TRAILER] = {"trailers", "the trailers are malformed or too long"},
};

static const struct fault_row *fault_row(enum http1_fault fault)
{
    bool is_known = (unsigned int)fault < sizeof(fault_rows) / sizeof(fault_rows[0]);

    return &fault_rows[is_known ? fault : HTTP1_FAULT_NONE];
}

const char *http1_fault_text(enum http1_fault fault)
{
    return fault_row(fault)->text;
}

const char *http1_fault_field(enum http1_fault fault)
{
    return fault_row(fault)->field;
}

struct span http1_head_fault_field(const struct http1_head *head, struct span bytes)
{
    /* Its name was complete, and of token characters, before the value began. */
    if (head->fault == HTTP1_FAULT_FIELD_VALUE) {
        return http1_slice_span(bytes, head->fields[head->field_count].name);
    }
    return span_of_str(http1_fault_field(head->fault));
}
