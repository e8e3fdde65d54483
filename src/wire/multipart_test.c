#include "wire/multipart.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/buf.h"

#define TYPE "multipart/form-data; boundary=XX"

/* Reads a body in pieces of `step` bytes into a text: "[name|filename]content;" per part. 0 or the
 * failure. */
static int read_all(const char *type, struct span body, size_t step, struct buf *out)
{
    struct multipart *m = malloc(sizeof(*m));
    int r = multipart_init(m, span_of_str(type));

    while (r >= 0 && body.n > 0) {
        struct span piece = span_head(body, step);

        body = span_skip(body, piece.n);
        while (r >= 0) {
            enum multipart_event event;
            struct span data;

            r = multipart_next(m, piece, &event, &data);
            if (r < 0 || event == MULTIPART_NONE) {
                break;
            }
            piece = span_skip(piece, (size_t)r);
            if (event == MULTIPART_PART) {
                buf_printf(out, "[%s|%s]", m->name, m->has_filename ? m->filename : "-");
            } else if (event == MULTIPART_DATA) {
                assert_true(data.n > 0);
                buf_put(out, data);
            } else {
                buf_put_str(out, event == MULTIPART_PART_END ? ";" : ".");
            }
        }
    }
    if (r >= 0) {
        r = multipart_finish(m);
    }
    assert_true((r < 0) == (m->fault != NULL));
    free(m);
    return r < 0 ? r : 0;
}

static void expect(const char *body, const char *want)
{
    for (size_t step = 1; step <= strlen(body); step++) {
        _cleanup_buf_ struct buf out = buf_make(0);
        int r = read_all(TYPE, span_of_str(body), step, &out);

        if (r < 0 || strcmp(buf_str(&out), want) != 0) {
            fail_msg("step %zu: %d %s", step, r, buf_str(&out));
        }
    }
}

static void expect_refused(int code, const char *body)
{
    for (size_t step = 1; step <= strlen(body) + 1; step++) {
        _cleanup_buf_ struct buf out = buf_make(0);
        int r = read_all(TYPE, span_of_str(body), step, &out);

        if (r != code) {
            fail_msg("%s, step %zu: %d %s", body, step, r, buf_str(&out));
        }
    }
}

#define FILE_A "Content-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n"

static void test_parts(void **state)
{
    (void)state;
    expect("--XX\r\n" FILE_A "\r\nhello\r\n--XX--\r\n", "[file|a]hello;.");
    expect("--XX\r\n" FILE_A "\r\nhello\r\n--XX--", "[file|a]hello;.");
    expect("--XX\r\n" FILE_A "\r\n\r\n--XX--\r\n", "[file|a];.");
    expect("--XX\r\ncontent-disposition:form-data;name=path\r\n\r\n/x\r\n--XX\r\n" FILE_A
           "Content-Type: text/plain\r\nContent-Transfer-Encoding: binary\r\n\r\n1\r\n--XX--\r\n",
           "[path|-]/x;[file|a]1;.");
    expect("--XX--\r\n", ".");
}

/* What looks like a boundary for a while. */
static void test_near_boundaries(void **state)
{
    (void)state;
    expect("--XX\r\n" FILE_A
           "\r\n\r\r\n\r\n-\r\n--\r\n--X\r\n--x\n--XX\r--XX--XX\r\n\r\n--XX--\r\n",
           "[file|a]\r\r\n\r\n-\r\n--\r\n--X\r\n--x\n--XX\r--XX--XX\r\n;.");
    expect("--XX\r\n" FILE_A "\r\n\r\n-\r\n--XX--\r\n", "[file|a]\r\n-;.");
}

static void test_names(void **state)
{
    (void)state;
    expect(
        "--XX\r\nContent-Disposition: form-data; name=\"a%22%0d%0A%41\"; filename=\"b\\c d;e\"\r\n"
        "\r\n\r\n--XX--\r\n",
        "[a\"\r\n%41|b\\c d;e];.");
    expect("--XX\r\nContent-Disposition: form-data; filename=\"gr\xc3\xbc\xff\"; name=\"\"\r\n"
           "\r\n\r\n--XX--\r\n",
           "[|gr\xc3\xbc\xff];.");
    expect(
        "--XX\r\nContent-Disposition: form-data; name=\"x\"; filename=\"\"\r\n\r\n\r\n--XX--\r\n",
        "[x|];.");
}

static void test_malformed(void **state)
{
    static const char *const bodies[] = {
        "\r\n--XX\r\n" FILE_A "\r\n\r\n--XX--\r\n",
        "preamble\r\n--XX\r\n" FILE_A "\r\n\r\n--XX--\r\n",
        "--XY\r\n" FILE_A "\r\n\r\n--XX--\r\n",
        "--XX\n" FILE_A "\r\n\r\n--XX--\r\n",
        "--XX \r\n" FILE_A "\r\n\r\n--XX--\r\n",
        "--XX\r\n\r\nno head\r\n--XX--\r\n",
        "--XX\r\nContent-Type: text/plain\r\n\r\n\r\n--XX--\r\n",
        "--XX\r\n" FILE_A FILE_A "\r\n\r\n--XX--\r\n",
        "--XX\r\nContent-Disposition: attachment; name=\"a\"\r\n\r\n\r\n--XX--\r\n",
        "--XX\r\nContent-Disposition: form-data; filename=\"a\"\r\n\r\n\r\n--XX--\r\n",
        "--XX\r\nContent-Disposition: form-data; name=\"a\"; name=\"b\"\r\n\r\n\r\n--XX--\r\n",
        "--XX\r\nContent-Disposition: form-data; name=\"a\"; filename*=utf-8''b\r\n\r\n\r\n--XX--",
        "--XX\r\nContent-Disposition: form-data; name=\"a\r\n\r\n\r\n--XX--\r\n",
        "--XX\r\nContent-Disposition: form-data name=\"a\"\r\n\r\n\r\n--XX--\r\n",
        "--XX\r\nContent-Disposition: form-data; name=\"a\"x\r\n\r\n\r\n--XX--\r\n",
        "--XX\r\n" FILE_A " folded\r\n\r\n\r\n--XX--\r\n",
        "--XX\r\n" FILE_A "Content-Transfer-Encoding: base64\r\n\r\n\r\n--XX--\r\n",
        "--XX\r\n" FILE_A "X: a\x01\r\n\r\n\r\n--XX--\r\n",
        "--XX\r\n" FILE_A "X: a\nY: b\r\n\r\n\r\n--XX--\r\n",
        "--XX\r\n" FILE_A "\r\nhello\r\n--XXY\r\n--XX--\r\n",
        "--XX\r\n" FILE_A "\r\nhello\r\n--XX-\r\n--XX--\r\n",
        "--XX\r\n" FILE_A "\r\nhello\r\n--XX--\r\nepilogue",
        "--XX\r\n" FILE_A "\r\nhello\r\n--XX--\r\n\r\n",
        "--XX\r\n" FILE_A "\r\nhello\r\n--XX--\n",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        expect_refused(-EBADMSG, bodies[i]);
    }
}

static void test_cut(void **state)
{
    static const char body[] = "--XX\r\n" FILE_A "\r\nhello\r\n--XX--";

    (void)state;
    for (size_t n = 0; n < sizeof(body) - 1; n++) {
        _cleanup_buf_ struct buf out = buf_make(0);

        assert_int_equal(read_all(TYPE, span_make(body, n), 7, &out), -EBADMSG);
    }
    {
        _cleanup_buf_ struct buf out = buf_make(0);

        /* Half of the line end after the last boundary. */
        assert_int_equal(read_all(TYPE, span_of_str("--XX--\r"), 7, &out), -EBADMSG);
    }
}

static void test_limits(void **state)
{
    _cleanup_buf_ struct buf body = buf_make(0);
    _cleanup_buf_ struct buf long_name = buf_make(0);
    _cleanup_buf_ struct buf many = buf_make(0);
    _cleanup_buf_ struct buf out = buf_make(0);

    (void)state;
    buf_put_str(&body, "--XX\r\nX: ");
    for (size_t i = 0; i < MULTIPART_HEAD_MAX; i++) {
        buf_put_u8(&body, 'a');
    }
    assert_int_equal(read_all(TYPE, buf_span(&body), 1000, &out), -EMSGSIZE);
    buf_put_str(&long_name, "--XX\r\nContent-Disposition: form-data; name=\"a\"; filename=\"");
    for (size_t i = 0; i < MULTIPART_FILENAME_SIZE; i++) {
        buf_put_u8(&long_name, 'a');
    }
    buf_put_str(&long_name, "\"\r\n\r\n");
    assert_int_equal(read_all(TYPE, buf_span(&long_name), 1000, &out), -EMSGSIZE);
    buf_put_str(&many, "--XX\r\n");
    for (size_t i = 0; i < MULTIPART_FIELDS_MAX + 1; i++) {
        buf_put_str(&many, "X: a\r\n");
    }
    buf_put_str(&many, "\r\n");
    assert_int_equal(read_all(TYPE, buf_span(&many), 1000, &out), -EMSGSIZE);
}

static void test_content_types(void **state)
{
    static const char *const good[] = {
        "multipart/form-data; boundary=XX",
        "Multipart/Form-Data;charset=utf-8;BOUNDARY=\"XX\"",
    };
    static const char *const bad[] = {
        "",
        "multipart/form-data",
        "multipart/mixed; boundary=XX",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"XX ",
        "multipart/form-data; boundary=\"XX \"",
        "multipart/form-data; boundary=X\"X",
        "multipart/form-data; boundary=X@X",
        "multipart/form-data; boundary=XX; boundary=YY",
        "multipart/form-data boundary=XX",
        "multipart/form-data; boundary=XX; x",
        ("multipart/form-data; boundary="
         "12345678901234567890123456789012345678901234567890123456789012345678901"),
    };
    struct multipart *m = malloc(sizeof(*m));

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        _cleanup_buf_ struct buf out = buf_make(0);

        assert_int_equal(read_all(good[i], span_of_str("--XX--\r\n"), 3, &out), 0);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (multipart_init(m, span_of_str(bad[i])) != -EBADMSG) {
            fail_msg("taken: %s", bad[i]);
        }
    }
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),         cmocka_unit_test(test_near_boundaries),
        cmocka_unit_test(test_names),         cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_cut),           cmocka_unit_test(test_limits),
        cmocka_unit_test(test_content_types),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
