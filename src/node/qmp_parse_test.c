#include "node/qmp_parse.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void parse(const char *text, int want, struct qmp_message *ret)
{
    *ret = (struct qmp_message){0};
    assert_int_equal(qmp_parse_line(span_of_str(text), ret), want);
}

static void test_known_shapes(void **state)
{
    struct qmp_message m;

    (void)state;
    parse("{\"QMP\": {\"version\": {}, \"capabilities\": []}}", 0, &m);
    assert_int_equal(m.kind, QMP_KIND_GREETING);
    qmp_message_done(&m);
    parse("{\"event\": \"SHUTDOWN\", \"data\": {\"reason\": \"guest-reset\"}}", 0, &m);
    assert_int_equal(m.kind, QMP_KIND_EVENT);
    assert_string_equal(m.name, "SHUTDOWN");
    assert_string_equal(qmp_string(m.body, "reason"), "guest-reset");
    qmp_message_done(&m);
    parse("{\"return\": \"abc\", \"id\": 7}", 0, &m);
    assert_int_equal(m.kind, QMP_KIND_RETURN);
    assert_int_equal(m.id, 7);
    qmp_message_done(&m);
    parse("{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}, \"id\": 8}", 0, &m);
    assert_int_equal(m.kind, QMP_KIND_ERROR);
    assert_string_equal(m.name, "no");
    qmp_message_done(&m);
}

static void test_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "[]",
        "null",
        "{}",
        "{\"return\": {}}",
        "{\"return\": {}, \"id\": \"1\"}",
        "{\"return\": {}, \"id\": -1}",
        "{\"return\": {}, \"id\": 0}",
        "{\"error\": \"x\", \"id\": 1}",
        "{\"error\": {}, \"id\": 1}",
        "{\"event\": 3}",
        "{\"return\": {}, \"id\": 1} x",
        "{\"id\": 1, \"id\": 1, \"return\": {}}",
    };
    struct qmp_message m;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        parse(bad[i], -EBADMSG, &m);
        assert_null(m.root);
    }
}

static void test_lines(void **state)
{
    struct span line;
    char *big = test_malloc(QMP_LINE_MAX + 2);

    (void)state;
    assert_int_equal(qmp_split_line(span_of_str("{}"), &line), 0);
    assert_int_equal(qmp_split_line(span_of_str(""), &line), 0);
    assert_int_equal(qmp_split_line(span_of_str("ab\r\ncd"), &line), 4);
    assert_true(span_equals_str(line, "ab"));
    assert_int_equal(qmp_split_line(span_of_str("ab\ncd"), &line), 3);
    assert_true(span_equals_str(line, "ab"));
    memset(big, 'x', QMP_LINE_MAX + 2);
    assert_int_equal(qmp_split_line(span_make(big, QMP_LINE_MAX - 1), &line), 0);
    assert_int_equal(qmp_split_line(span_make(big, QMP_LINE_MAX), &line), -EMSGSIZE);
    assert_int_equal(qmp_split_line(span_make(big, QMP_LINE_MAX + 2), &line), -EMSGSIZE);
    test_free(big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_shapes),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_lines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
