#include "wire/service_record.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static struct span only_record(const struct buf *b, uint8_t type)
{
    struct service_record m;

    assert_int_equal(buf_error(b), 0);
    assert_int_equal(service_record_next(buf_span(b), &m), b->n);
    assert_int_equal(m.type, type);
    return m.payload;
}

static const struct service_entry entry = {
    .path = {(const uint8_t *)"/a\n\xff", 4},
    .type = SERVICE_ENTRY_SYMLINK,
    .size_bytes = 10737418240,
    .mode = 04755,
    .uid = 1000,
    .gid = 4294967294U,
    .user = {(const uint8_t *)"user", 4},
    .modified_ns = 1764480000000000001,
    .symlink_target = {(const uint8_t *)"../b", 4},
};

static void test_entry_comes_back(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct service_entry m;

    (void)state;
    service_entry_format(&b, &entry);
    assert_int_equal(service_entry_parse(only_record(&b, SERVICE_RECORD_ENTRY), &m), 0);
    assert_true(span_equals(m.path, entry.path));
    assert_int_equal(m.type, SERVICE_ENTRY_SYMLINK);
    assert_int_equal(m.size_bytes, 10737418240);
    assert_int_equal(m.mode, 04755);
    assert_int_equal(m.uid, 1000);
    assert_int_equal(m.gid, 4294967294U);
    assert_true(span_equals_str(m.user, "user"));
    assert_int_equal(m.group.n, 0);
    assert_int_equal(m.modified_ns, 1764480000000000001);
    assert_true(span_equals_str(m.symlink_target, "../b"));
}

static void test_others_come_back(void **state)
{
    const struct service_listener listener = {.port = 8080, .family = 4, .address = {127, 0, 0, 1}};
    _cleanup_buf_ struct buf b = buf_make(0);
    struct service_error error;
    struct service_body body;
    struct service_done done;
    struct service_change change;
    struct service_listener listens;
    struct service_sample sample;

    (void)state;
    service_error_format(&b, &(struct service_error){ENOENT, span_of_str("/x")});
    assert_int_equal(service_error_parse(only_record(&b, SERVICE_RECORD_ERROR), &error), 0);
    assert_int_equal(error.errnum, ENOENT);
    assert_true(span_equals_str(error.path, "/x"));
    buf_clear(&b);
    service_body_format(&b, &(struct service_body){5, SERVICE_LENGTH_UNKNOWN});
    assert_int_equal(service_body_parse(only_record(&b, SERVICE_RECORD_BODY), &body), 0);
    assert_true(body.offset == 5 && body.length == SERVICE_LENGTH_UNKNOWN);
    buf_clear(&b);
    service_done_format(&b, &(struct service_done){7, true});
    assert_int_equal(service_done_parse(only_record(&b, SERVICE_RECORD_DONE), &done), 0);
    assert_true(done.count == 7 && done.more);
    buf_clear(&b);
    service_change_format(&b, &(struct service_change){SERVICE_CHANGE_MOVED, true,
                                                       span_of_str("/to"), span_of_str("/from")});
    assert_int_equal(service_change_parse(only_record(&b, SERVICE_RECORD_CHANGE), &change), 0);
    assert_true(change.is_directory && span_equals_str(change.from, "/from"));
    buf_clear(&b);
    service_listener_format(&b, &listener);
    assert_int_equal(service_listener_parse(only_record(&b, SERVICE_RECORD_LISTENER), &listens), 0);
    assert_memory_equal(&listens, &listener, sizeof(listener));
    buf_clear(&b);
    service_sample_format(&b, &(struct service_sample){1, 2, 3, 4, 5, 6});
    assert_int_equal(service_sample_parse(only_record(&b, SERVICE_RECORD_SAMPLE), &sample), 0);
    assert_true(sample.cpu_ns == 1 && sample.disk_used_bytes == 5 && sample.processes == 6);
}

static void test_next_waits_for_the_whole_record(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct service_record m;

    (void)state;
    service_entry_format(&b, &entry);
    for (size_t n = 0; n < b.n; n++) {
        assert_int_equal(service_record_next(span_make(b.p, n), &m), 0);
    }
    b.p[0] = 0;
    assert_int_equal(service_record_next(span_make(b.p, 1), &m), -EBADMSG);
    b.p[0] = SERVICE_RECORD_SAMPLE + 1;
    assert_int_equal(service_record_next(span_make(b.p, 1), &m), -EBADMSG);
    b.p[0] = SERVICE_RECORD_ENTRY;
    b.p[3] = 1; /* 65,536 and more */
    assert_int_equal(service_record_next(span_make(b.p, 5), &m), -EBADMSG);
}

/* Every byte less, and one more, is refused. */
static void test_cut_and_trailing_bytes_are_refused(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct service_entry m;
    struct span payload;

    (void)state;
    service_entry_format(&b, &entry);
    payload = only_record(&b, SERVICE_RECORD_ENTRY);
    for (size_t n = 0; n < payload.n; n++) {
        assert_int_equal(service_entry_parse(span_head(payload, n), &m), -EBADMSG);
    }
    buf_put_u8(&b, 0);
    payload = span_skip(buf_span(&b), SERVICE_RECORD_HEAD_BYTES);
    assert_int_equal(service_entry_parse(payload, &m), -EBADMSG);
}

static void expect_entry_refused(const struct service_entry *bad)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct service_entry m;

    service_entry_format(&b, bad);
    assert_int_equal(service_entry_parse(only_record(&b, SERVICE_RECORD_ENTRY), &m), -EBADMSG);
}

static void test_values_out_of_range_are_refused(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct service_listener listener = {.port = 1, .family = 4, .address = {1, 2, 3, 4, 5}};
    struct service_entry bad = entry;
    struct service_error error;
    struct service_change change;
    struct service_body body;

    (void)state;
    bad.path = span_of_str("relative");
    expect_entry_refused(&bad);
    bad = entry;
    bad.type = 5;
    expect_entry_refused(&bad);
    bad = entry;
    bad.mode = 0100644;
    expect_entry_refused(&bad);
    service_error_format(&b, &(struct service_error){0, {NULL, 0}});
    assert_int_equal(service_error_parse(only_record(&b, SERVICE_RECORD_ERROR), &error), -EBADMSG);
    buf_clear(&b);
    service_body_format(&b, &(struct service_body){UINT64_MAX, 1});
    assert_int_equal(service_body_parse(only_record(&b, SERVICE_RECORD_BODY), &body), -EBADMSG);
    buf_clear(&b);
    service_change_format(&b, &(struct service_change){SERVICE_CHANGE_CREATED, false,
                                                       span_of_str("/to"), span_of_str("/from")});
    assert_int_equal(service_change_parse(only_record(&b, SERVICE_RECORD_CHANGE), &change),
                     -EBADMSG);
    buf_clear(&b);
    service_listener_format(&b, &listener);
    assert_int_equal(service_listener_parse(only_record(&b, SERVICE_RECORD_LISTENER), &listener),
                     -EBADMSG);
}

static void test_fields_over_their_limits_fail(void **state)
{
    static uint8_t letters[SERVICE_PATH_BYTES + 1];
    _cleanup_buf_ struct buf b = buf_make(0);
    struct service_change m = {.kind = SERVICE_CHANGE_MOVED};

    (void)state;
    memset(letters, 'a', sizeof(letters));
    m.path = span_make(letters, SERVICE_PATH_BYTES);
    m.from = m.path;
    service_change_format(&b, &m);
    assert_int_equal(buf_error(&b), 0);
    m.from = span_make(letters, SERVICE_PATH_BYTES + 1);
    service_change_format(&b, &m);
    assert_int_equal(buf_error(&b), -EMSGSIZE);
    buf_clear(&b);
    service_error_format(&b, &(struct service_error){1, span_make("a\0b", 3)});
    assert_int_equal(buf_error(&b), -EMSGSIZE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entry_comes_back),
        cmocka_unit_test(test_others_come_back),
        cmocka_unit_test(test_next_waits_for_the_whole_record),
        cmocka_unit_test(test_cut_and_trailing_bytes_are_refused),
        cmocka_unit_test(test_values_out_of_range_are_refused),
        cmocka_unit_test(test_fields_over_their_limits_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
