#include "wire/url.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/buf.h"

static void test_decode(void **state)
{
    char out[16];

    (void)state;
    assert_int_equal(url_decode(span_of_str("a%2Fb%c3%A4+"), false, out, sizeof(out)), 6);
    assert_string_equal(out, "a/b\xc3\xa4+");
    assert_int_equal(url_decode(span_of_str("a+b"), true, out, sizeof(out)), 3);
    assert_string_equal(out, "a b");
    assert_int_equal(url_decode(span_of_str(""), true, out, sizeof(out)), 0);
    assert_string_equal(out, "");
    assert_int_equal(url_decode(span_of_str("%"), true, out, sizeof(out)), -EBADMSG);
    assert_int_equal(url_decode(span_of_str("%2"), true, out, sizeof(out)), -EBADMSG);
    assert_int_equal(url_decode(span_of_str("%2g"), true, out, sizeof(out)), -EBADMSG);
    assert_int_equal(url_decode(span_of_str("a%00"), true, out, sizeof(out)), -EBADMSG);
    assert_int_equal(url_decode(span_of_str("0123456789abcde"), true, out, sizeof(out)), 15);
    assert_int_equal(url_decode(span_of_str("0123456789abcdef"), true, out, sizeof(out)),
                     -EMSGSIZE);
    assert_int_equal(url_decode(span_of_str(""), true, out, 0), -EMSGSIZE);
}

static void test_path_segments(void **state)
{
    struct span path = span_of_str("/v1/sandboxes//x/");
    struct span segment;

    (void)state;
    assert_int_equal(url_path_next(&path, &segment), 1);
    assert_true(span_equals_str(segment, "v1"));
    assert_int_equal(url_path_next(&path, &segment), 1);
    assert_true(span_equals_str(segment, "sandboxes"));
    assert_int_equal(url_path_next(&path, &segment), 1);
    assert_int_equal(segment.n, 0);
    assert_int_equal(url_path_next(&path, &segment), 1);
    assert_true(span_equals_str(segment, "x"));
    assert_int_equal(url_path_next(&path, &segment), 1);
    assert_int_equal(segment.n, 0);
    assert_int_equal(url_path_next(&path, &segment), 0);
    path = span_of_str("no-slash");
    assert_int_equal(url_path_next(&path, &segment), 0);
}

static int count_pairs(const char *query)
{
    struct span rest = span_of_str(query);
    struct url_pair pair;
    int count = 0;
    int r;

    while ((r = url_query_next(&rest, &pair)) > 0) {
        count++;
    }
    return r < 0 ? r : count;
}

static void test_query_pairs(void **state)
{
    struct span query = span_of_str("a=1&flag&b=c=d&e=");
    struct url_pair pair;

    (void)state;
    assert_int_equal(url_query_next(&query, &pair), 1);
    assert_true(span_equals_str(pair.name, "a") && span_equals_str(pair.value, "1"));
    assert_int_equal(url_query_next(&query, &pair), 1);
    assert_true(span_equals_str(pair.name, "flag") && !pair.has_value && pair.value.n == 0);
    assert_int_equal(url_query_next(&query, &pair), 1);
    assert_true(span_equals_str(pair.name, "b") && span_equals_str(pair.value, "c=d"));
    assert_int_equal(url_query_next(&query, &pair), 1);
    assert_true(span_equals_str(pair.name, "e") && pair.has_value && pair.value.n == 0);
    assert_int_equal(url_query_next(&query, &pair), 0);

    assert_int_equal(count_pairs(""), 0);
    assert_int_equal(count_pairs("a"), 1);
    assert_int_equal(count_pairs("&"), -EBADMSG);
    assert_int_equal(count_pairs("a&"), -EBADMSG);
    assert_int_equal(count_pairs("&a"), -EBADMSG);
    assert_int_equal(count_pairs("a&&b"), -EBADMSG);
    assert_int_equal(count_pairs("=a"), -EBADMSG);
}

static void test_query_get(void **state)
{
    struct span query = span_of_str("wait=30&na%6De=b+c%21&x=%zz&y&wait=2");
    char out[8];

    (void)state;
    assert_int_equal(url_query_get(query, "name", out, sizeof(out)), 4);
    assert_string_equal(out, "b c!");
    assert_int_equal(url_query_get(query, "y", out, sizeof(out)), 0);
    assert_int_equal(url_query_get(query, "nam", out, sizeof(out)), -ENOENT);
    assert_int_equal(url_query_get(query, "names", out, sizeof(out)), -ENOENT);
    assert_int_equal(url_query_get(query, "wait", out, sizeof(out)), -EEXIST);
    assert_int_equal(url_query_get(query, "x", out, sizeof(out)), -EBADMSG);
    assert_int_equal(url_query_get(span_of_str("a=123456789"), "a", out, sizeof(out)), -EMSGSIZE);
    assert_int_equal(url_query_get(span_of_str("%=1"), "a", out, sizeof(out)), -EBADMSG);
    assert_int_equal(url_query_get(span_of_str("a=1&"), "a", out, sizeof(out)), -EBADMSG);
}

static void test_encode(void **state)
{
    _cleanup_buf_ struct buf out = buf_make(0);

    (void)state;
    url_encode(&out, span_of_str("a/b c%~\xc3"), false);
    assert_string_equal(buf_str(&out), "a%2Fb%20c%25~%C3");
    buf_clear(&out);
    url_encode(&out, span_of_str("/a b"), true);
    assert_string_equal(buf_str(&out), "/a%20b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode),      cmocka_unit_test(test_path_segments),
        cmocka_unit_test(test_query_pairs), cmocka_unit_test(test_query_get),
        cmocka_unit_test(test_encode),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
