#include "api/test_client.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cmocka.h>

#include "base/fd.h"

#define TIMEOUT_SECONDS 60
#define BODY_MAX        (128U * 1024U * 1024U)

void answer_done(struct answer *answer)
{
    buf_done(&answer->head);
    buf_done(&answer->body);
    json_decref(answer->json);
    answer->json = NULL;
}

int client_connect(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval limit = {.tv_sec = TIMEOUT_SECONDS};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)), 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

void client_send_text(int fd, const char *text)
{
    struct span rest = span_of_str(text);

    while (rest.n > 0) {
        ssize_t n = send(fd, rest.p, rest.n, MSG_NOSIGNAL);

        if (n < 0) {
            return; /* a server that has closed is seen when reading */
        }
        rest = span_skip(rest, (size_t)n);
    }
}

void client_send(int fd, const struct call *call)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    buf_printf(&text, "%s %s HTTP/1.1\r\nHost: test\r\nConnection: close\r\n", call->method,
               call->path);
    if (call->key != NULL) {
        buf_printf(&text, "Authorization: Bearer %s\r\n", call->key);
    }
    if (call->headers != NULL) {
        buf_put_str(&text, call->headers);
    }
    if (call->body != NULL) {
        buf_printf(&text, "Content-Length: %zu\r\n", strlen(call->body));
    }
    buf_put_str(&text, "\r\n");
    buf_put_str(&text, call->body == NULL ? "" : call->body);
    client_send_text(fd, buf_str(&text));
}

static bool read_all(int fd, struct buf *out)
{
    for (;;) {
        uint8_t *to = buf_reserve(out, 65536);
        ssize_t n = read(fd, to, 65536);

        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            fail_msg("no answer within %d s", TIMEOUT_SECONDS);
        }
        if (n <= 0) {
            return n == 0;
        }
        buf_commit(out, (size_t)n);
    }
}

static size_t find_text(struct span in, const char *what)
{
    size_t n = strlen(what);

    for (size_t i = 0; i + n <= in.n; i++) {
        if (memcmp(&in.p[i], what, n) == 0) {
            return i;
        }
    }
    return in.n;
}

static void read_chunks(struct span raw, struct answer *answer)
{
    for (;;) {
        size_t line = find_text(raw, "\r\n");
        size_t n = 0;

        if (raw.p == NULL || line == raw.n) {
            answer->cut = true;
            return;
        }
        for (size_t i = 0; i < line; i++) {
            uint8_t c = raw.p[i];

            n = n * 16 + (size_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
        }
        raw = span_skip(raw, line + 2);
        if (n == 0) {
            return;
        }
        if (raw.n < n + 2) {
            buf_put(&answer->body, raw);
            answer->cut = true;
            return;
        }
        buf_put(&answer->body, span_head(raw, n));
        raw = span_skip(raw, n + 2);
    }
}

void client_read(int fd, struct answer *ret_answer)
{
    _cleanup_buf_ struct buf raw = buf_make(BODY_MAX);
    struct answer *a = ret_answer;
    char length[256];
    uint64_t wanted;
    size_t end;

    memset(a, 0, sizeof(*a));
    (void)read_all(fd, &raw);
    end = raw.n == 0 ? 0 : find_text(buf_span(&raw), "\r\n\r\n");
    if (raw.n < 12 || end == raw.n) {
        a->cut = true;
        return;
    }
    buf_put(&a->head, span_head(buf_span(&raw), end));
    buf_put_str(&a->head, "\r\n");
    a->status = (raw.p[9] - '0') * 100 + (raw.p[10] - '0') * 10 + (raw.p[11] - '0');
    answer_header(a, "Transfer-Encoding", length);
    if (strcmp(length, "chunked") == 0) {
        read_chunks(span_skip(buf_span(&raw), end + 4), a);
    } else {
        buf_put(&a->body, span_skip(buf_span(&raw), end + 4));
        answer_header(a, "Content-Length", length);
        a->cut =
            span_parse_u64(span_of_str(length), UINT64_MAX, &wanted) == 0 && wanted != a->body.n;
    }
    if (a->body.n > 0) {
        a->json = json_loadb((const char *)a->body.p, a->body.n, 0, NULL);
    }
}

void client_ask(int port, const struct call *call, struct answer *ret_answer)
{
    int fd = client_connect(port);

    memset(ret_answer, 0, sizeof(*ret_answer));
    if (fd < 0) {
        return;
    }
    client_send(fd, call);
    client_read(fd, ret_answer);
    (void)close(fd);
}

void answer_header(const struct answer *answer, const char *name, char out[256])
{
    struct span rest = buf_span(&answer->head);

    out[0] = '\0';
    while (rest.n > 0) {
        struct span line = span_head(rest, find_text(rest, "\r\n"));
        size_t colon = span_find(line, 0, ':');

        if (colon < line.n && span_equals_nocase(span_head(line, colon), name)) {
            (void)span_copy_str(span_skip(line, colon + 2), out, 256);
            return;
        }
        rest = span_skip(rest, line.n + 2);
    }
}

const json_t *answer_find(const struct answer *answer, const char *path)
{
    const json_t *at = answer->json;
    struct span rest = span_of_str(path);

    while (rest.n > 0 && at != NULL) {
        struct span word = span_head(rest, span_find(rest, 0, '.'));
        char name[64];

        assert_int_equal(span_copy_str(word, name, sizeof(name)), 0);
        at = name[0] >= '0' && name[0] <= '9' ? json_array_get(at, (size_t)(name[0] - '0'))
                                              : json_object_get(at, name);
        rest = span_skip(rest, word.n + 1);
    }
    return at;
}

const char *answer_text(const struct answer *answer, const char *path)
{
    const char *text = json_string_value(answer_find(answer, path));

    return text == NULL ? "" : text;
}
