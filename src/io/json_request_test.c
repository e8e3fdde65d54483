#include "io/json_request.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"

static json_t *parse(const char *text)
{
    json_t *object = NULL;
    struct error err = {0};

    assert_int_equal(json_request_parse(span_of_str(text), false, &object, &err), 0);
    return object;
}

static void test_parse_refuses(void **state)
{
    static const char *const bad[] = {"",
                                      "[]",
                                      "1",
                                      "{",
                                      "{} x",
                                      "{\"a\":1,\"a\":2}",
                                      "{\"a\":\"\\ud800\"}",
                                      "{\"a\":\"\xff\"}",
                                      "{'a':1}"};
    struct error err;
    json_t *object = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        memset(&err, 0, sizeof(err));
        assert_int_equal(json_request_parse(span_of_str(bad[i]), false, &object, &err), -EINVAL);
        assert_int_equal(err.code, ERROR_INVALID_REQUEST);
        assert_string_equal(err.field, "body");
        assert_null(object);
    }
    assert_int_equal(json_request_parse(span_make(NULL, 0), true, &object, &err), 0);
    assert_int_equal(json_object_size(object), 0);
    json_decref(object);
}

static void test_parse_depth(void **state)
{
    struct error err = {0};
    json_t *object = NULL;
    _cleanup_buf_ struct buf text = buf_make(0);

    (void)state;
    buf_put_str(&text, "{\"a\":");
    for (int i = 0; i < 100000; i++) {
        buf_put_str(&text, "[");
    }
    assert_int_equal(json_request_parse(buf_span(&text), false, &object, &err), -EINVAL);
    assert_non_null(strstr(err.message, "nested"));
}

static void test_parse_value_count(void **state)
{
    struct error err = {0};
    json_t *object = NULL;
    _cleanup_buf_ struct buf text = buf_make(0);

    (void)state;
    buf_put_str(&text, "{\"a\":[0");
    for (int i = 0; i < JSON_VALUES_MAX - 3; i++) {
        buf_put_str(&text, i % 2 == 0 ? ",0" : ",\",[{\"");
    }
    buf_put_str(&text, "]}");
    assert_int_equal(json_request_parse(buf_span(&text), false, &object, &err), 0);
    assert_int_equal(json_array_size(json_object_get(object, "a")), JSON_VALUES_MAX - 2);
    json_decref(object);
    object = NULL;
    text.n -= 2;
    buf_put_str(&text, ",0]}");
    assert_int_equal(json_request_parse(buf_span(&text), false, &object, &err), -EINVAL);
    assert_non_null(strstr(err.message, "65536 values"));
    assert_null(object);
}

static void test_fields_read(void **state)
{
    static const char *const words[] = {"kill", "leave", NULL};
    _cleanup_json_ json_t *o = parse("{\"s\":\"abc\",\"n\":5,\"d\":0.25,\"b\":true,\"w\":\"leave\","
                                     "\"o\":{\"x\":1},\"a\":[1,2],\"z\":null,\"t\":null}");
    struct error err = {0};
    struct json_fields f;

    (void)state;
    json_fields_start(&f, o, "", &err);
    assert_string_equal(json_fields_string(&f, "s", 1, 3, NULL), "abc");
    assert_int_equal(json_fields_unsigned(&f, "n", 1, 5, 9), 5);
    assert_int_equal(json_fields_unsigned(&f, "absent", 1, 5, 9), 9);
    assert_int_equal(json_fields_duration_ms(&f, "d", 0, 1000, 7), 250);
    assert_int_equal(json_fields_duration_ms(&f, "t", 0, 1000, 7), JSON_DURATION_OFF);
    assert_true(json_fields_bool(&f, "b", false));
    assert_int_equal(json_fields_choice(&f, "w", words, 0), 1);
    assert_int_equal(json_object_size(json_fields_object(&f, "o", 4)), 1);
    assert_int_equal(json_array_size(json_fields_array(&f, "a", 2)), 2);
    assert_null(json_fields_string(&f, "z", 0, 9, "x"));
    assert_int_equal(json_fields_finish(&f), 0);
}

static void expect_failure(const char *text, const char *field, const char *message)
{
    static const char *const words[] = {"kill", "leave", NULL};
    _cleanup_json_ json_t *o = parse(text);
    struct error err = {0};
    struct json_fields f;

    json_fields_start(&f, o, "run.", &err);
    (void)json_fields_string(&f, "s", 1, 3, NULL);
    (void)json_fields_unsigned(&f, "vcpus", 1, 8, 1);
    (void)json_fields_duration_ms(&f, "d", 0, 1000, 7);
    (void)json_fields_bool(&f, "b", false);
    (void)json_fields_choice(&f, "w", words, 0);
    (void)json_fields_object(&f, "o", 1);
    (void)json_fields_array(&f, "a", 1);
    assert_int_equal(json_fields_finish(&f), -EINVAL);
    assert_string_equal(err.field, field);
    assert_string_equal(err.message, message);
}

static void test_fields_refuse(void **state)
{
    (void)state;
    expect_failure("{\"q\":1}", "run.q", "unknown field run.q");
    expect_failure("{\"vcpus\":99}", "run.vcpus", "run.vcpus must be between 1 and 8, got 99");
    expect_failure("{\"vcpus\":-1}", "run.vcpus", "run.vcpus must be between 1 and 8, got -1");
    expect_failure("{\"vcpus\":1.5}", "run.vcpus", "run.vcpus must be a whole number from 1 to 8");
    expect_failure("{\"vcpus\":null}", "run.vcpus", "run.vcpus must be a whole number from 1 to 8");
    expect_failure("{\"s\":\"\"}", "run.s", "run.s must have 1 to 3 bytes, got 0");
    expect_failure("{\"s\":1}", "run.s", "run.s must be a string");
    expect_failure("{\"d\":2}", "run.d", "run.d must be between 0 and 1 seconds, got 2");
    expect_failure("{\"b\":1}", "run.b", "run.b must be true or false");
    expect_failure("{\"w\":\"x\"}", "run.w", "run.w must be one of: kill, leave");
    expect_failure("{\"o\":[]}", "run.o", "run.o must be an object");
    expect_failure("{\"o\":{\"a\":1,\"b\":2}}", "run.o",
                   "run.o must have at most 1 entries, got 2");
    expect_failure("{\"a\":[1,2]}", "run.a", "run.a must have at most 1 entries, got 2");
}

/* A field that is missing may be the unknown one, misspelt. */
static void expect_missing(const char *text, const char *field, const char *message)
{
    _cleanup_json_ json_t *o = parse(text);
    struct error err = {0};
    struct json_fields f;

    json_fields_start(&f, o, "", &err);
    json_fields_require(&f, "template");
    (void)json_fields_string(&f, "template", 1, 9, NULL);
    (void)json_fields_unsigned(&f, "vcpus", 1, 8, 1);
    assert_int_equal(json_fields_finish(&f), -EINVAL);
    assert_string_equal(err.field, field);
    assert_string_equal(err.message, message);
}

static void test_a_missing_field_and_an_unknown_one(void **state)
{
    (void)state;
    expect_missing("{}", "template", "template is required");
    expect_missing("{\"template\":null}", "template", "template is required");
    expect_missing("{\"vcpus\":99}", "template", "template is required");
    expect_missing("{\"tmplate\":\"base\"}", "tmplate", "unknown field tmplate");
    expect_missing("{\"template\":\"base\",\"vcpus\":99,\"x\":1}", "vcpus",
                   "vcpus must be between 1 and 8, got 99");
}

static void test_long_times_are_written_out(void **state)
{
    _cleanup_json_ json_t *o = parse("{\"t\":40000000.5}");
    struct error err = {0};
    struct json_fields f;

    (void)state;
    json_fields_start(&f, o, "", &err);
    (void)json_fields_duration_ms(&f, "t", 1, 31536000000, 7);
    assert_int_equal(json_fields_finish(&f), -EINVAL);
    assert_string_equal(err.message,
                        "t must be between 0.001 and 31536000 seconds, got 40000000.5");
}

/* As jansson writes it: what a text means does not depend on the writer. */
static void expect_written(json_t *value)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    char *expected = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));

    json_write(value, &text);
    assert_int_equal(buf_error(&text), 0);
    assert_string_equal(buf_str(&text), expected);
    free(expected);
    json_decref(value);
}

static void test_write(void **state)
{
    static const char *const texts[] = {
        "{}",
        "[]",
        "[[],{},[[]],{\"a\":{}}]",
        "{\"z\":1,\"a\":-2.5,\"m\":[true,false,null,1e300,0.1,9007199254740993]}",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\xc3\xa9\xf0\x9f\x98\x80\"",
        "{\"k\\n\\u0001\":\"\\u0000x\"}",
        "7",
    };
    _cleanup_buf_ struct buf small = buf_make(8);
    _cleanup_json_ json_t *deep = json_array();
    char all[20000];

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        expect_written(json_loads(texts[i], JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL));
    }
    for (size_t i = 0; i < sizeof(all); i++) {
        all[i] = (char)(i % 0x7f);
    }
    expect_written(json_stringn(all, sizeof(all)));
    json_write(json_array_get(deep, 0), &small);
    assert_int_equal(buf_error(&small), -ENOMEM); /* no value: an earlier allocation failed */
    buf_clear(&small);
    for (int i = 0; i < 1000; i++) {
        deep = json_pack("[o]", deep);
    }
    json_write(deep, &small);
    assert_true(buf_error(&small) < 0);
}

static void test_envelope(void **state)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    _cleanup_json_ json_t *envelope = NULL;
    struct error err = {0};
    struct error back = {0};

    (void)state;
    (void)error_set_code(&err, ERROR_INVALID_REQUEST, "argv", "cannot be executed");
    err.errnum = ENOENT;
    json_error_format(&err, "r1", &text);
    assert_string_equal(buf_str(&text),
                        "{\"error\":{\"code\":\"invalid_request\",\"message\":\"cannot be "
                        "executed\",\"details\":{\"field\":\"argv\",\"errno\":\"ENOENT\"},"
                        "\"retryable\":false,\"request_id\":\"r1\"}}");
    envelope = json_loads(buf_str(&text), 0, NULL);
    assert_int_equal(json_error_read(envelope, &back), 0);
    assert_int_equal(back.code, ERROR_INVALID_REQUEST);
    assert_string_equal(back.field, "argv");
    assert_int_equal(back.errnum, ENOENT);
}

/* An errno of the guest is shown even where it is the code's own. */
static void test_envelope_with_errno(void **state)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    _cleanup_buf_ struct buf again = buf_make(0);
    _cleanup_json_ json_t *envelope = NULL;
    struct error err = {0};
    struct error back = {0};

    (void)state;
    assert_int_equal(
        error_set_errno(&err, ERROR_NOT_FOUND, "file", ENOENT, "no such file or directory: a"),
        -ENOENT);
    json_error_format(&err, "r1", &text);
    assert_string_equal(buf_str(&text),
                        "{\"error\":{\"code\":\"not_found\",\"message\":\"no such file or "
                        "directory: a\",\"details\":{\"resource\":\"file\",\"errno\":\"ENOENT\"},"
                        "\"retryable\":false,\"request_id\":\"r1\"}}");
    envelope = json_loads(buf_str(&text), 0, NULL);
    assert_int_equal(json_error_read(envelope, &back), 0);
    json_error_format(&back, "r1", &again);
    assert_string_equal(buf_str(&again), buf_str(&text));
}

static void test_envelope_of_cut_text(void **state)
{
    _cleanup_buf_ struct buf name = buf_make(0);
    _cleanup_json_ json_t *envelope = NULL;
    struct error err = {0};
    struct error back = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(err.message); i++) {
        buf_put_str(&name, "\xc3\xa9"); /* the limit of a field's name falls into one of them */
    }
    (void)error_set_code(&err, ERROR_INVALID_REQUEST, buf_str(&name), "unknown field %s",
                         buf_str(&name));
    envelope = json_error_make(&err, "r1", NULL);
    assert_non_null(envelope);
    assert_int_equal(json_error_read(envelope, &back), 0);
    assert_memory_equal(back.field, buf_str(&name), sizeof(back.field) - 4);
    assert_non_null(strstr(back.message, "unknown field \xc3\xa9"));
}

static void test_answers_hold_what_commands_print(void **state)
{
    _cleanup_json_ json_t *answer = NULL;
    json_t *refused = NULL;
    struct error err = {0};

    (void)state;
    assert_int_equal(json_answer_parse(span_of_str("{\"stdout\": \"a\\u0000b\"}"), &answer, &err),
                     0);
    assert_int_equal(json_string_length(json_object_get(answer, "stdout")), 3);
    assert_int_equal(json_answer_parse(span_of_str("[]"), &refused, &err), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_refuses),
        cmocka_unit_test(test_parse_depth),
        cmocka_unit_test(test_parse_value_count),
        cmocka_unit_test(test_fields_read),
        cmocka_unit_test(test_fields_refuse),
        cmocka_unit_test(test_a_missing_field_and_an_unknown_one),
        cmocka_unit_test(test_long_times_are_written_out),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_envelope),
        cmocka_unit_test(test_envelope_with_errno),
        cmocka_unit_test(test_envelope_of_cut_text),
        cmocka_unit_test(test_answers_hold_what_commands_print),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
