/* Files through space-api: what goes down to a fake node and what comes up, packed and plain. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <sys/socket.h>

#include <cmocka.h>

#include "api/codec.h"
#include "api/test_rig.h"
#include "base/clock.h"
#include "base/fd.h"

#define ENDLESS_BYTES (32U << 20)

struct world {
    struct rig *rig;
    char box[21];
};

static int setup(void **state)
{
    static struct world w;

    w.rig = rig_new("");
    rig_create(w.rig, "{\"template\": \"base\"}", w.box);
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    rig_free(((struct world *)*state)->rig);
    return 0;
}

/* ---- calls ---- */

static const char *at(const struct world *w, const char *rest)
{
    static char path[4096];

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/files%s", w->box, rest);
    return path;
}

/* `headers`: further lines, each with CR LF. */
static void send_bytes(const struct world *w,
                       int fd,
                       const char *method,
                       const char *rest,
                       const char *headers,
                       struct span body)
{
    char head[4600];

    (void)snprintf(head, sizeof(head),
                   "%s %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer %s\r\n"
                   "Content-Length: %zu\r\n%s\r\n",
                   method, at(w, rest), w->rig->key, body.n, headers);
    client_send_text(fd, head);
    (void)!fd_write_all(fd, body);
}

static void ask_bytes(const struct world *w,
                      const char *method,
                      const char *rest,
                      const char *headers,
                      struct span body,
                      struct answer *ret_answer)
{
    int fd = client_connect(w->rig->port);

    send_bytes(w, fd, method, rest, headers, body);
    client_read(fd, ret_answer);
    (void)close(fd);
}

static void get(const struct world *w, const char *rest, const char *headers, struct answer *answer)
{
    client_ask(w->rig->port, &(struct call){"GET", at(w, rest), NULL, w->rig->key, headers},
               answer);
}

static void expect_put(
    const struct world *w, int status, const char *rest, const char *headers, struct span body)
{
    _cleanup_answer_ struct answer a = {0};

    ask_bytes(w, "PUT", rest, headers, body, &a);
    if (a.status != status) {
        fail_msg("PUT %s: %d %s", rest, a.status, buf_str(&a.body));
    }
}

static void expect_header(const struct answer *answer, const char *name, const char *value)
{
    char have[256];

    answer_header(answer, name, have);
    assert_string_equal(have, value);
}

/* ---- packing, for the tests ---- */

static void convert(enum codec_format format, bool pack, struct span in, struct buf *out)
{
    struct codec *codec = codec_new(format, pack);
    int r = CODEC_FULL;

    assert_non_null(codec);
    while (r != CODEC_DONE) {
        size_t n = 0;

        r = codec_run(codec, &in, true, buf_reserve(out, 65536), 65536, &n);
        assert_true(r >= 0);
        buf_commit(out, n);
    }
    codec_free(codec);
}

static void lines(struct buf *out, int count)
{
    for (int i = 0; i < count; i++) {
        buf_printf(out, "line %d of a text that packs well\n", i);
    }
}

/* ---- tests ---- */

static void test_content(void **state)
{
    const struct world *w = *state;
    _cleanup_answer_ struct answer made = {0};
    _cleanup_answer_ struct answer whole = {0};
    _cleanup_answer_ struct answer part = {0};
    _cleanup_answer_ struct answer known = {0};
    _cleanup_answer_ struct answer head = {0};
    _cleanup_answer_ struct answer missing = {0};

    ask_bytes(w, "PUT", "?path=/a&mode=0600", "", span_of_str("12345678"), &made);
    assert_int_equal(made.status, 201);
    assert_string_equal(answer_text(&made, "path"), "/a");
    expect_put(w, 200, "?path=/a", "", span_of_str("abcdefgh"));
    get(w, "?path=/a", "", &whole);
    assert_int_equal(whole.status, 200);
    assert_string_equal(buf_str(&whole.body), "abcdefgh");
    expect_header(&whole, "Content-Length", "8");
    expect_header(&whole, "Accept-Ranges", "bytes");
    expect_header(&whole, "ETag", "\"v1\"");
    expect_header(&whole, "Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT");
    expect_header(&whole, "Access-Control-Allow-Origin", "*");
    get(w, "?path=/a", "Range: bytes=0-3\r\n", &part);
    assert_int_equal(part.status, 206);
    assert_string_equal(buf_str(&part.body), "abcd");
    expect_header(&part, "Content-Range", "bytes 0-3/8");
    get(w, "?path=/a", "If-None-Match: W/\"v1\"\r\n", &known);
    assert_int_equal(known.status, 304);
    client_ask(w->rig->port, &(struct call){"HEAD", at(w, "?path=/a"), NULL, w->rig->key, NULL},
               &head);
    assert_int_equal(head.status, 200);
    assert_int_equal(head.body.n, 0);
    expect_header(&head, "Content-Length", "8");
    get(w, "?path=/none", "", &missing);
    assert_int_equal(missing.status, 404);
    assert_string_equal(answer_text(&missing, "error.details.resource"), "file");
}

static void test_refusals(void **state)
{
    const struct world *w = *state;
    static const char *const bad[] = {"?path=%00", "?path=%zz", "?nosuch=1&path=/a",
                                      "?path=/a&path=/b", "?path=/a&compression=gzip"};
    char path[160];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        expect_put(w, 400, bad[i], "", span_of_str("x"));
    }
    expect_put(w, 400, "?path=/a", "Content-Encoding: br\r\n", span_of_str("x"));
    expect_put(w, 400, "/tar?path=/a&compression=lzma", "", span_of_str("x"));
    expect_put(w, 400, "/tar?path=/a&compression=gzip", "Content-Encoding: gzip\r\n",
               span_of_str("x"));
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/sb%.18s/files?path=/a", "000000000000000000");
    rig_expect(w->rig, 404, "GET", path, NULL);
}

/* Paths are any bytes; they reach the node exactly as they came. */
static void test_names(void **state)
{
    const struct world *w = *state;
    static const char query[] = "?path=/%ff%0a%7f%20caf%c3%a9%2F%25&user=root";
    _cleanup_answer_ struct answer a = {0};
    _cleanup_buf_ struct buf log = buf_make(0);
    char path[160];

    expect_put(w, 201, query, "", span_of_str("any bytes"));
    get(w, query, "", &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(buf_str(&a.body), "any bytes");
    (void)snprintf(path, sizeof(path), "%s/node.log", w->rig->dir);
    assert_int_equal(file_read(AT_FDCWD, path, 1U << 24, &log), 0);
    assert_non_null(strstr(buf_str(&log), query));
}

static void test_gzip_down(void **state)
{
    const struct world *w = *state;
    _cleanup_buf_ struct buf text = buf_make(0);
    _cleanup_buf_ struct buf back = buf_make(0);
    _cleanup_answer_ struct answer packed = {0};
    _cleanup_answer_ struct answer head = {0};
    _cleanup_answer_ struct answer ranged = {0};
    _cleanup_answer_ struct answer small = {0};
    _cleanup_answer_ struct answer refused = {0};

    lines(&text, 20000);
    expect_put(w, 201, "?path=/long", "", buf_span(&text));
    expect_put(w, 201, "?path=/short", "", span_of_str("12345678"));
    get(w, "?path=/long", "Accept-Encoding: deflate, gzip;q=0.5\r\n", &packed);
    assert_int_equal(packed.status, 200);
    expect_header(&packed, "Content-Encoding", "gzip");
    expect_header(&packed, "Vary", "Accept-Encoding");
    expect_header(&packed, "ETag", "W/\"v1\"");
    expect_header(&packed, "Content-Length", "");
    expect_header(&packed, "Accept-Ranges", "none");
    assert_true(packed.body.n < text.n / 4);
    convert(CODEC_GZIP, false, buf_span(&packed.body), &back);
    assert_true(span_equals(buf_span(&back), buf_span(&text)));
    client_ask(w->rig->port,
               &(struct call){"HEAD", at(w, "?path=/long"), NULL, w->rig->key,
                              "Accept-Encoding: gzip\r\n"},
               &head);
    expect_header(&head, "Content-Encoding", "gzip");
    expect_header(&head, "Content-Length", "");
    get(w, "?path=/long", "Accept-Encoding: gzip\r\nRange: bytes=0-3\r\n", &ranged);
    assert_int_equal(ranged.status, 206);
    expect_header(&ranged, "Content-Encoding", "");
    get(w, "?path=/short", "Accept-Encoding: gzip\r\n", &small);
    expect_header(&small, "Content-Encoding", "");
    expect_header(&small, "Vary", "Accept-Encoding");
    assert_string_equal(buf_str(&small.body), "12345678");
    get(w, "?path=/long", "Accept-Encoding: gzip;q=0, br\r\n", &refused);
    expect_header(&refused, "Content-Encoding", "");
    assert_int_equal(refused.body.n, text.n);
}

static void test_gzip_up(void **state)
{
    const struct world *w = *state;
    _cleanup_buf_ struct buf text = buf_make(0);

    lines(&text, 20000);
    for (int i = 0; i < 2; i++) {
        _cleanup_buf_ struct buf packed = buf_make(0);
        _cleanup_answer_ struct answer back = {0};
        _cleanup_answer_ struct answer missing = {0};
        const char *header = i == 0 ? "Content-Encoding: gzip\r\n" : "Content-Encoding: zstd\r\n";

        convert(i == 0 ? CODEC_GZIP : CODEC_ZSTD, true, buf_span(&text), &packed);
        expect_put(w, i == 0 ? 201 : 200, "?path=/packed", header, buf_span(&packed));
        get(w, "?path=/packed", "", &back);
        assert_true(span_equals(buf_span(&back.body), buf_span(&text)));
        /* Broken in the middle, or broken off: told, and never a complete upload. */
        expect_put(w, 400, "?path=/broken", header, span_head(buf_span(&packed), packed.n - 3));
        expect_put(w, 400, "?path=/broken", header, span_head(buf_span(&packed), packed.n / 2));
        packed.p[packed.n / 2] ^= 0x55;
        expect_put(w, 400, "?path=/broken", header, buf_span(&packed));
        expect_put(w, 400, "?path=/broken", header, span_of_str("not packed at all, not at all"));
        expect_put(w, 400, "?path=/broken", header, span_make(NULL, 0));
        get(w, "?path=/broken", "", &missing);
        assert_int_equal(missing.status, 404);
    }
}

/* ---- forms ---- */

#define FORM "Content-Type: multipart/form-data; boundary=XX\r\n"

static void add_part(struct buf *body, const char *filename, struct span content)
{
    buf_printf(body,
               "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"%s\"\r\n\r\n",
               filename);
    buf_put(body, content);
    buf_put_str(body, "\r\n");
}

static void expect_content(const struct world *w, const char *rest, struct span want)
{
    _cleanup_answer_ struct answer a = {0};

    get(w, rest, "", &a);
    assert_int_equal(a.status, 200);
    assert_true(span_equals(buf_span(&a.body), want));
}

static void test_form(void **state)
{
    const struct world *w = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_buf_ struct buf text = buf_make(0);
    _cleanup_buf_ struct buf body = buf_make(0);

    lines(&text, 60000);
    add_part(&body, "one.txt", span_of_str("1\r\n"));
    add_part(&body, "sub/two", buf_span(&text));
    add_part(&body, "empty", span_make(NULL, 0));
    buf_put_str(&body,
                "--XX\r\nContent-Disposition: form-data; name=\"path\"\r\n\r\nnamed/by field\r\n");
    add_part(&body, "three", span_of_str("3"));
    buf_put_str(&body, "--XX--\r\n");
    ask_bytes(w, "POST", "?path=/form%20dir&user=root", FORM, buf_span(&body), &a);
    assert_int_equal(a.status, 200);
    assert_int_equal(json_array_size(answer_find(&a, "items")), 4);
    assert_string_equal(answer_text(&a, "items.1.path"), "/form dir/sub/two");
    expect_content(w, "?path=/form%20dir/one.txt", span_of_str("1\r\n"));
    expect_content(w, "?path=/form%20dir/sub/two", buf_span(&text));
    expect_content(w, "?path=/form%20dir/empty", span_make(NULL, 0));
    expect_content(w, "?path=/form%20dir/named/by%20field", span_of_str("3"));
}

static void test_many_small_files(void **state)
{
    const struct world *w = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer over = {0};
    _cleanup_buf_ struct buf body = buf_make(0);

    for (int i = 0; i < 1001; i++) {
        char name[32];

        if (i == 1000) {
            size_t n = body.n;

            buf_put_str(&body, "--XX--\r\n");
            ask_bytes(w, "POST", "?path=/many", FORM, buf_span(&body), &a);
            assert_int_equal(a.status, 200);
            assert_int_equal(json_array_size(answer_find(&a, "items")), 1000);
            body.n = n;
        }
        (void)snprintf(name, sizeof(name), "f%d", i);
        add_part(&body, name, span_of_str("x"));
    }
    buf_put_str(&body, "--XX--\r\n");
    ask_bytes(w, "POST", "?path=/many", FORM, buf_span(&body), &over);
    assert_int_equal(over.status, 400);
    assert_int_equal(json_integer_value(answer_find(&over, "error.details.written")), 1000);
}

/* What was written before the file at fault stays, and the error says so. */
static void test_failing_forms(void **state)
{
    const struct world *w = *state;
    _cleanup_answer_ struct answer denied = {0};
    _cleanup_answer_ struct answer full = {0};
    _cleanup_answer_ struct answer cut = {0};
    _cleanup_answer_ struct answer missing = {0};
    _cleanup_buf_ struct buf text = buf_make(0);
    _cleanup_buf_ struct buf body = buf_make(0);

    lines(&text, 60000);
    add_part(&body, "/first", span_of_str("1"));
    add_part(&body, "/denied", span_of_str("2"));
    add_part(&body, "/third", span_of_str("3"));
    buf_put_str(&body, "--XX--\r\n");
    ask_bytes(w, "POST", "", FORM, buf_span(&body), &denied);
    assert_int_equal(denied.status, 403);
    assert_string_equal(answer_text(&denied, "error.details.path"), "/denied");
    assert_int_equal(json_integer_value(answer_find(&denied, "error.details.written")), 1);
    expect_content(w, "?path=/first", span_of_str("1"));
    get(w, "?path=/third", "", &missing);
    assert_int_equal(missing.status, 404);
    buf_clear(&body);
    add_part(&body, "/full", buf_span(&text));
    buf_put_str(&body, "--XX--\r\n");
    ask_bytes(w, "POST", "", FORM, buf_span(&body), &full);
    assert_int_equal(full.status, 507);
    buf_clear(&body);
    add_part(&body, "/whole", span_of_str("1"));
    add_part(&body, "/half", buf_span(&text));
    ask_bytes(w, "POST", "", FORM, span_head(buf_span(&body), body.n - 100), &cut);
    assert_int_equal(cut.status, 400);
    assert_string_equal(answer_text(&cut, "error.details.path"), "/half");
    expect_content(w, "?path=/whole", span_of_str("1"));
    {
        _cleanup_answer_ struct answer half = {0};

        get(w, "?path=/half", "", &half);
        assert_int_equal(half.status, 404);
    }
}

static void
expect_bad_form(const struct world *w, const char *rest, const char *headers, const char *body)
{
    _cleanup_answer_ struct answer a = {0};

    ask_bytes(w, "POST", rest, headers, span_of_str(body), &a);
    if (a.status != 400 || strcmp(answer_text(&a, "error.code"), "invalid_request") != 0) {
        fail_msg("%s: %d %s", body, a.status, buf_str(&a.body));
    }
}

static void test_bad_forms(void **state)
{
    static const char *const names[] = {"../x", "a/../../x", "/etc/x", "", ".."};
    const struct world *w = *state;

    expect_bad_form(w, "", "", "--XX--\r\n");
    expect_bad_form(w, "", "Content-Type: application/json\r\n", "{}");
    expect_bad_form(w, "", FORM "Content-Encoding: gzip\r\n", "--XX--\r\n");
    expect_bad_form(w, "", FORM, "");
    expect_bad_form(w, "", FORM, "--XX--\r\n");
    expect_bad_form(w, "", FORM,
                    "--XX\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n1\r\n--XX--");
    expect_bad_form(w, "?nosuch=1", FORM, "--XX--\r\n");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        _cleanup_buf_ struct buf body = buf_make(0);

        add_part(&body, names[i], span_of_str("x"));
        buf_put_str(&body, "--XX--\r\n");
        expect_bad_form(w, "?path=/safe", FORM, buf_str(&body));
    }
}

static void test_archives(void **state)
{
    static const char *const names[] = {"none", "gzip", "zstd"};
    static const char *const types[] = {"application/x-tar", "application/gzip",
                                        "application/zstd"};
    const struct world *w = *state;
    _cleanup_answer_ struct answer encoded = {0};
    _cleanup_buf_ struct buf plain = buf_make(0);

    for (enum codec_format f = CODEC_NONE; f <= CODEC_ZSTD; f++) {
        _cleanup_answer_ struct answer got = {0};
        _cleanup_answer_ struct answer put = {0};
        _cleanup_buf_ struct buf text = buf_make(0);
        char rest[160];

        (void)snprintf(rest, sizeof(rest), "/tar?path=/t&exclude=a&exclude=b%%ff&compression=%s",
                       names[f]);
        get(w, rest, "Accept-Encoding: identity\r\n", &got);
        assert_int_equal(got.status, 200);
        expect_header(&got, "Content-Type", types[f]);
        expect_header(&got, "Content-Encoding", "");
        if (f == CODEC_NONE) {
            buf_put(&text, buf_span(&got.body));
        } else {
            convert(f, false, buf_span(&got.body), &text);
        }
        /* The parameter is ours: the node does not see it. */
        assert_non_null(strstr(buf_str(&text), "with path=/t&exclude=a&exclude=b%ff\n"));
        (void)snprintf(rest, sizeof(rest), "/tar?path=/t&compression=%s", names[f]);
        ask_bytes(w, "PUT", rest, "", buf_span(&got.body), &put);
        assert_int_equal(put.status, 200);
        assert_int_equal(json_integer_value(answer_find(&put, "entries")), text.n);
    }
    get(w, "/tar?path=/t", "Accept-Encoding: gzip\r\n", &encoded);
    expect_header(&encoded, "Content-Encoding", "gzip");
    expect_header(&encoded, "Content-Type", "application/x-tar");
    convert(CODEC_GZIP, false, buf_span(&encoded.body), &plain);
    assert_non_null(strstr(buf_str(&plain), "with path=/t\n"));
}

/* The node refuses before the upload is over, or after it. */
static void test_refused_uploads(void **state)
{
    const struct world *w = *state;
    _cleanup_buf_ struct buf text = buf_make(0);
    _cleanup_buf_ struct buf packed = buf_make(0);

    lines(&text, 200000);
    convert(CODEC_GZIP, true, buf_span(&text), &packed);
    expect_put(w, 507, "?path=/full", "", buf_span(&text));
    expect_put(w, 507, "?path=/full", "Content-Encoding: gzip\r\n", buf_span(&packed));
    expect_put(w, 403, "?path=/denied", "Content-Encoding: gzip\r\n", buf_span(&packed));
}

/* A reader that stops for a while loses nothing and holds up no other. */
static void test_slow_readers(void **state)
{
    static const char *const accepted[] = {"", "Accept-Encoding: gzip\r\n"};
    const struct world *w = *state;

    for (int i = 0; i < 2; i++) {
        _cleanup_answer_ struct answer slow = {0};
        _cleanup_answer_ struct answer quick = {0};
        _cleanup_buf_ struct buf plain = buf_make(0);
        int fd = client_connect(w->rig->port);

        client_send(fd,
                    &(struct call){"GET", at(w, "?path=/endless"), NULL, w->rig->key, accepted[i]});
        get(w, "?path=/a", "", &quick);
        assert_int_equal(quick.status, 200);
        client_read(fd, &slow);
        (void)close(fd);
        assert_false(slow.cut);
        if (i == 1) {
            convert(CODEC_GZIP, false, buf_span(&slow.body), &plain);
            assert_int_equal(plain.n, ENDLESS_BYTES);
        } else {
            assert_int_equal(slow.body.n, ENDLESS_BYTES);
        }
    }
}

/* Clients that go away in the middle of either direction, packed or not. */
static void test_gone_clients(void **state)
{
    const struct world *w = *state;
    _cleanup_buf_ struct buf text = buf_make(0);
    _cleanup_buf_ struct buf packed = buf_make(0);
    _cleanup_answer_ struct answer missing = {0};

    lines(&text, 100000);
    convert(CODEC_GZIP, true, buf_span(&text), &packed);
    for (int i = 0; i < 8; i++) {
        int fd = client_connect(w->rig->port);

        if (i < 4) {
            client_send(fd, &(struct call){"GET", at(w, "?path=/endless"), NULL, w->rig->key,
                                           i % 2 == 0 ? "" : "Accept-Encoding: gzip\r\n"});
            rig_sleep_ms(10);
        } else {
            char head[4600];
            const struct buf *body = i % 2 == 0 ? &text : &packed;

            (void)snprintf(head, sizeof(head),
                           "PUT %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n%s"
                           "Content-Length: %zu\r\n\r\n",
                           at(w, "?path=/cut"), w->rig->key,
                           i % 2 == 0 ? "" : "Content-Encoding: gzip\r\n", body->n + 1);
            client_send_text(fd, head);
            (void)!fd_write_all(fd, buf_span(body));
        }
        (void)close(fd);
    }
    rig_sleep_ms(200);
    get(w, "?path=/cut", "", &missing);
    assert_int_equal(missing.status, 404);
}

static void test_read_keys(void **state)
{
    const struct world *w = *state;
    _cleanup_answer_ struct answer made = {0};
    const char *key;

    expect_put(w, 200, "?path=/a", "", span_of_str("abcdefgh"));
    rig_ask(w->rig, "POST", "/v1/keys", "{\"name\": \"r\", \"role\": \"read\"}", &made);
    key = answer_text(&made, "key");
    for (int i = 0; i < 4; i++) {
        static const char *const methods[] = {"GET", "PUT", "DELETE", "POST"};
        static const char *const rests[] = {"?path=/a", "?path=/a", "?path=/a", "/mkdir"};
        _cleanup_answer_ struct answer a = {0};

        client_ask(w->rig->port,
                   &(struct call){methods[i], at(w, rests[i]), i == 3 ? "{}" : NULL, key, NULL},
                   &a);
        assert_int_equal(a.status, i == 0 ? 200 : 403);
    }
}

static void test_passing(void **state)
{
    const struct world *w = *state;
    _cleanup_answer_ struct answer moved = {0};
    _cleanup_answer_ struct answer listed = {0};
    char path[160];

    rig_ask(w->rig, "POST", at(w, "/move"), "{\"from\": \"/a\", \"to\": \"/b\"}", &moved);
    assert_int_equal(moved.status, 200);
    assert_string_equal(answer_text(&moved, "body.to"), "/b");
    get(w, "/list?path=/&depth=3&limit=2&cursor=abc", "", &listed);
    assert_string_equal(answer_text(&listed, "query"), "path=/&depth=3&limit=2&cursor=abc");
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/metrics?start=x", w->box);
    rig_expect(w->rig, 200, "GET", path, NULL);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/processes/pr%.8s0000000000/resize", w->box,
                   &w->box[2]);
    rig_expect(w->rig, 200, "POST", path, "{\"cols\": 80, \"rows\": 24}");
}

/* Who only looks is not told of a suspend that began meanwhile. */
static void test_suspends_between(void **state)
{
    const struct world *w = *state;
    static const char *const looks[] = {"?path=/asleep", "/stat?path=/asleep",
                                        "/list?path=/asleep&fields=name"};
    _cleanup_answer_ struct answer put = {0};
    _cleanup_answer_ struct answer made = {0};
    _cleanup_answer_ struct answer never = {0};
    _cleanup_answer_ struct answer head = {0};

    ask_bytes(w, "PUT", "?path=/asleep", "", span_of_str("content"), &put);
    assert_int_equal(put.status, 201);
    for (size_t i = 0; i < 3; i++) {
        _cleanup_answer_ struct answer a = {0};

        ask_bytes(w, "GET", looks[i], "", span_of_str(""), &a);
        assert_int_equal(a.status, 200);
    }
    ask_bytes(w, "HEAD", "?path=/asleep", "", span_of_str(""), &head);
    assert_int_equal(head.status, 200);
    /* Not for ever, and nothing that changes something: it may have been done. */
    ask_bytes(w, "GET", "?path=/never", "", span_of_str(""), &never);
    assert_int_equal(never.status, 409);
    assert_string_equal(answer_text(&never, "error.details.state"), "suspending");
    ask_bytes(w, "DELETE", "?path=/asleep", "", span_of_str(""), &made);
    assert_int_equal(made.status, 409);
}

static void test_watch(void **state)
{
    const struct world *w = *state;
    char text[65536];
    size_t n = 0;
    int fd = client_connect(w->rig->port);

    client_send(fd, &(struct call){"GET", at(w, "/watch?path=/&recursive=true"), NULL, w->rig->key,
                                   "Last-Event-ID: 41\r\n"});
    memset(text, 0, sizeof(text));
    while (strstr(text, "id: 44\n") == NULL) {
        ssize_t got = read(fd, &text[n], sizeof(text) - 1 - n);

        assert_true(got > 0);
        n += (size_t)got;
    }
    (void)close(fd);
    assert_non_null(strstr(text, "text/event-stream"));
    assert_non_null(strstr(text, "id: 42\n"));
    assert_null(strstr(text, "id: 41\n"));
}

/* A key that is revoked in the middle of a download and of an upload. */
static void test_revocation(void **state)
{
    const struct world *w = *state;
    _cleanup_answer_ struct answer made = {0};
    _cleanup_answer_ struct answer down = {0};
    _cleanup_answer_ struct answer up = {0};
    char path[160];
    char head[4600];
    int64_t began;
    int reader = client_connect(w->rig->port);
    int writer = client_connect(w->rig->port);

    rig_ask(w->rig, "POST", "/v1/keys", "{\"name\": \"m\", \"role\": \"member\"}", &made);
    client_send(reader, &(struct call){"GET", at(w, "?path=/endless"), NULL,
                                       answer_text(&made, "key"), NULL});
    (void)snprintf(head, sizeof(head),
                   "PUT %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n"
                   "Content-Length: 100\r\n\r\n12345",
                   at(w, "?path=/cut"), answer_text(&made, "key"));
    client_send_text(writer, head);
    rig_sleep_ms(200);
    (void)snprintf(path, sizeof(path), "/v1/keys/%s", answer_text(&made, "id"));
    began = clock_monotonic_ms();
    rig_expect(w->rig, 200, "DELETE", path, NULL);
    client_read(reader, &down);
    assert_true(down.cut);
    client_send_text(writer, "");
    (void)shutdown(writer, SHUT_WR);
    client_read(writer, &up);
    assert_int_equal(up.status, 401);
    assert_in_range(clock_monotonic_ms() - began, 0, 3000); /* a busy machine */
    (void)close(reader);
    (void)close(writer);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_gzip_down),
        cmocka_unit_test(test_gzip_up),
        cmocka_unit_test(test_archives),
        cmocka_unit_test(test_refused_uploads),
        cmocka_unit_test(test_slow_readers),
        cmocka_unit_test(test_gone_clients),
        cmocka_unit_test(test_read_keys),
        cmocka_unit_test(test_passing),
        cmocka_unit_test(test_suspends_between),
        cmocka_unit_test(test_watch),
        cmocka_unit_test(test_form),
        cmocka_unit_test(test_many_small_files),
        cmocka_unit_test(test_failing_forms),
        cmocka_unit_test(test_bad_forms),
        cmocka_unit_test(test_revocation),
    };
    int status = rig_main(argc, argv);

    if (status >= 0) {
        return status;
    }
    return cmocka_run_group_tests(tests, setup, teardown);
}
