#include "wire/tar.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "wire/tar_block.h"

/* Parses the whole archive; the entries' names, types and contents as text. */
static int parse(struct span archive, struct buf *ret)
{
    struct tar_parser p;
    int r = TAR_MORE;

    tar_parser_init(&p);
    while (archive.n > 0 && r >= 0) {
        struct tar_entry e;
        struct span content;

        r = tar_parser_next(&p, &archive, &e, &content);
        if (r == TAR_ENTRY) {
            buf_printf(ret, "[%c%o %lld ", e.type, (unsigned int)e.mode, (long long)e.modified_s);
            buf_put(ret, e.name);
            buf_put_str(ret, e.target.n > 0 ? ">" : "");
            buf_put(ret, e.target);
            buf_put_str(ret, "]");
        } else if (r == TAR_CONTENT) {
            buf_put(ret, content);
        }
    }
    r = r < 0 ? r : tar_parser_finish(&p);
    tar_parser_done(&p);
    return r;
}

static struct tar_entry file_entry(const char *name, uint64_t size)
{
    return (struct tar_entry){.type = TAR_FILE,
                              .name = span_of_str(name),
                              .mode = 0644,
                              .size_bytes = size,
                              .modified_s = 1764480000};
}

static void put_file(struct buf *b, const char *name, const char *content)
{
    struct tar_entry e = file_entry(name, strlen(content));

    tar_entry_format(b, &e);
    buf_put_str(b, content);
    for (size_t n = tar_padding(e.size_bytes); n > 0; n--) {
        buf_put_u8(b, 0);
    }
}

static void expect(const struct buf *archive, const char *text)
{
    _cleanup_buf_ struct buf got = buf_make(0);

    assert_int_equal(buf_error(archive), 0);
    assert_int_equal(parse(buf_span(archive), &got), 0);
    assert_string_equal(buf_str(&got), text);
}

static void test_what_is_written_is_read(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct tar_entry e = {.type = TAR_SYMLINK, .name = span_of_str("l"), .mode = 0777};

    (void)state;
    put_file(&b, "a/b", "hello");
    put_file(&b, "empty", "");
    e.target = span_of_str("../x");
    tar_entry_format(&b, &e);
    e = (struct tar_entry){.type = TAR_DIRECTORY, .name = span_of_str("d/"), .mode = 01755};
    tar_entry_format(&b, &e);
    tar_end_format(&b);
    assert_int_equal(b.n % TAR_BLOCK_BYTES, 0);
    expect(&b, "[0644 1764480000 a/b]hello[0644 1764480000 empty][2777 0 l>../x][51755 0 d/]");
}

static void test_long_names_and_large_numbers(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    char name[1001];
    struct tar_entry e = file_entry(name, 20000000000);
    struct tar_entry got;
    struct tar_parser p;
    struct span rest;
    struct span content;

    (void)state;
    memset(name, 'n', 1000);
    name[1000] = '\0';
    name[500] = '\xff';
    e.name = span_of_str(name);
    e.modified_s = -5;
    e.uid = 4000000000;
    tar_entry_format(&b, &e);
    tar_parser_init(&p);
    rest = buf_span(&b);
    assert_int_equal(tar_parser_next(&p, &rest, &got, &content), TAR_ENTRY);
    assert_true(span_equals(got.name, e.name));
    assert_int_equal(got.size_bytes, 20000000000);
    assert_int_equal(got.modified_s, -5);
    assert_int_equal(rest.n, 0);
    assert_int_equal(tar_parser_finish(&p), -EBADMSG);
    tar_parser_done(&p);
    /* Lengths around the places where the length of the length changes. */
    for (size_t n = 101; n < 1000; n++) {
        buf_clear(&b);
        e = file_entry(name, 0);
        e.name = span_make(name, n);
        tar_entry_format(&b, &e);
        tar_parser_init(&p);
        rest = buf_span(&b);
        assert_int_equal(tar_parser_next(&p, &rest, &got, &content), TAR_ENTRY);
        assert_int_equal(got.name.n, n);
        tar_parser_done(&p);
    }
}

static void fix_sum(uint8_t *block)
{
    (void)snprintf((char *)&block[TAR_SUM_FIELD.at], 8, "%06o",
                   (unsigned int)tar_block_sum(block, TAR_BLOCK_BYTES));
    block[TAR_SUM_FIELD.at + 7] = ' ';
}

/* An entry of GNU's making: magic with blanks, a long name before it, a size in base 256. */
static void test_gnu(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    _cleanup_buf_ struct buf expected = buf_make(0);
    char name[151];

    (void)state;
    memset(name, 'g', 150);
    name[150] = '\0';
    put_file(&b, "././@LongLink", name);
    b.p[TAR_TYPE_FIELD.at] = 'L';
    fix_sum(b.p);
    put_file(&b, "short", "xyz");
    memcpy(&b.p[1024 + TAR_MAGIC_FIELD.at], "ustar  ", 8);
    memcpy(&b.p[1024 + TAR_PREFIX_FIELD.at], "123", 3);
    memcpy(&b.p[1024 + TAR_SIZE_FIELD.at], "\x80\0\0\0\0\0\0\0\0\0\0\3", 12);
    fix_sum(&b.p[1024]);
    tar_end_format(&b);
    buf_put(&b, span_make("\0\0\0", 3));
    buf_printf(&expected, "[0644 1764480000 %s]xyz", name);
    expect(&b, buf_str(&expected));
}

static void test_prefix_and_old_directories(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    (void)state;
    put_file(&b, "name", "");
    memcpy(&b.p[TAR_PREFIX_FIELD.at], "some/where", 10);
    fix_sum(b.p);
    put_file(&b, "old/", "");
    memset(&b.p[512 + TAR_MAGIC_FIELD.at], 0, 8);
    b.p[512 + TAR_TYPE_FIELD.at] = 0;
    fix_sum(&b.p[512]);
    tar_end_format(&b);
    expect(&b, "[0644 1764480000 some/where/name][5644 1764480000 old/]");
}

static void put_pax(struct buf *b, char type, const char *text)
{
    size_t at = b->n;

    put_file(b, "pax", text);
    b->p[at + TAR_TYPE_FIELD.at] = (uint8_t)type;
    fix_sum(&b->p[at]);
}

static void test_pax(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    (void)state;
    put_pax(&b, 'g', "13 comment=x\n");
    put_pax(&b, 'x', "12 path=p/q\n20 mtime=12.3456789\n25 SCHILY.xattr.user.a=b\n");
    put_file(&b, "short", "1");
    put_file(&b, "next", "2");
    tar_end_format(&b);
    expect(&b, "[0644 12 p/q]1[0644 1764480000 next]2");
}

static void expect_refused(const struct buf *b, int error)
{
    _cleanup_buf_ struct buf got = buf_make(0);

    assert_int_equal(buf_error(b), 0);
    assert_int_equal(parse(buf_span(b), &got), error);
}

static void test_bad_pax_is_refused(void **state)
{
    static const char *const bad[] = {
        "x",
        "12 path=p/q",
        "11 path=p/q\n",
        "13 path=p/q\n",
        "99 path=p/q\n",
        " path=p/q\n",
        "5 =a\n",
        "6 abc\n",
        "3 \n",
        "22 GNU.sparse.major=1\n",
        "14 size=1e100\n",
        "11 size=-1\n",
        "12 mtime=xy\n",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        _cleanup_buf_ struct buf b = buf_make(0);

        put_pax(&b, 'x', bad[i]);
        put_file(&b, "f", "");
        tar_end_format(&b);
        expect_refused(&b, -EBADMSG);
    }
}

static void test_bad_archives_are_refused(void **state)
{
    static const char types[] = {'S', 'D', 'M', 'V', 'N', '8', 'A'};
    _cleanup_buf_ struct buf b = buf_make(0);

    (void)state;
    for (size_t i = 0; i < sizeof(types); i++) {
        buf_clear(&b);
        put_pax(&b, types[i], "");
        tar_end_format(&b);
        expect_refused(&b, -EBADMSG);
    }
    buf_clear(&b);
    put_file(&b, "f", "x"); /* no end */
    expect_refused(&b, -EBADMSG);
    tar_end_format(&b);
    buf_put_u8(&b, 1); /* something behind it */
    expect_refused(&b, -EBADMSG);
    buf_clear(&b);
    put_file(&b, "f", "x");
    tar_end_format(&b);
    b.p[0] = 'g'; /* another sum */
    expect_refused(&b, -EBADMSG);
    buf_clear(&b);
    put_pax(&b, 'x', "12 path=p/q\n"); /* of nothing */
    tar_end_format(&b);
    expect_refused(&b, -EBADMSG);
    buf_clear(&b);
    put_pax(&b, 'g', "12 path=p/q\n");
    put_file(&b, "f", "x");
    tar_end_format(&b);
    expect_refused(&b, -EBADMSG);
    buf_clear(&b);
    put_pax(&b, '2', "content"); /* of a link */
    expect_refused(&b, -EBADMSG);
}

static void test_too_long_is_refused(void **state)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct tar_entry e = file_entry("x", TAR_EXTRA_MAX + 1);

    (void)state;
    e.type = 'x';
    tar_entry_format(&b, &e);
    expect_refused(&b, -EMSGSIZE);
    buf_clear(&b);
    e = file_entry("", 0);
    tar_entry_format(&b, &e);
    assert_int_equal(buf_error(&b), -EMSGSIZE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_written_is_read),
        cmocka_unit_test(test_long_names_and_large_numbers),
        cmocka_unit_test(test_gnu),
        cmocka_unit_test(test_prefix_and_old_directories),
        cmocka_unit_test(test_pax),
        cmocka_unit_test(test_bad_pax_is_refused),
        cmocka_unit_test(test_bad_archives_are_refused),
        cmocka_unit_test(test_too_long_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
