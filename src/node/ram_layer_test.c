#include "node/ram_layer.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/cleanup.h"

#define PAGES 1024U

static const struct ram_layer_place place = {
    (uint64_t)PAGES * RAM_PAGE_BYTES,
    {{1, 2, 3}},
};

static uint8_t content[4][RAM_PAGE_BYTES];

static int make_file(void)
{
    int fd = memfd_create("layer", MFD_CLOEXEC);

    assert_true(fd >= 0);
    return fd;
}

/* Two stored runs with a zero one between them. */
static void write_layer(int fd, struct ram_layer_head *head)
{
    struct ram_layer_writer *w = ram_layer_writer_new(fd, &place);

    for (unsigned int i = 0; i < 4; i++) {
        memset(content[i], (int)i + 1, RAM_PAGE_BYTES);
    }
    assert_non_null(w);
    assert_int_equal(ram_layer_put(w, 3, 2, content[0]), 0);
    assert_int_equal(ram_layer_put(w, 5, 200, NULL), 0);
    assert_int_equal(ram_layer_put(w, PAGES - 2, 2, content[2]), 0);
    assert_int_equal(ram_layer_finish(w, head), 0);
    ram_layer_writer_free(w);
}

struct seen {
    unsigned int runs;
    unsigned int zero_pages;
};

static int see(void *arg, const struct ram_run *run, const uint8_t *bytes)
{
    struct seen *seen = arg;

    if (bytes == NULL) {
        assert_int_equal(run->first, 5);
        seen->zero_pages += run->pages;
    } else {
        assert_memory_equal(bytes, content[run->first == 3 ? 0 : 2], 2UL * RAM_PAGE_BYTES);
    }
    seen->runs++;
    return 0;
}

static void test_round_trip(void **state)
{
    _cleanup_close_ int fd = make_file();
    struct ram_layer_head head;
    struct ram_layer layer;
    struct seen seen = {0};
    struct stat st;
    uint32_t at = 0;

    (void)state;
    write_layer(fd, &head);
    assert_int_equal(head.data_pages, 4);
    assert_int_equal(head.zero_pages, 200);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, ram_layer_file_bytes(&head));
    assert_int_equal(ram_layer_open(fd, &place, &layer, NULL), 0);
    assert_int_equal(ram_layer_read(&layer, see, &seen, NULL), 0);
    assert_int_equal(seen.runs, 3);
    assert_int_equal(seen.zero_pages, 200);
    assert_false(ram_layer_has(&layer, 2, &at));
    assert_true(ram_layer_has(&layer, 3, &at));
    assert_true(ram_layer_has(&layer, 204, &at));
    assert_false(ram_layer_has(&layer, 205, &at));
    assert_true(ram_layer_has(&layer, PAGES - 1, &at));
    ram_layer_close(&layer);
}

static void test_an_empty_layer_is_one(void **state)
{
    _cleanup_close_ int fd = make_file();
    struct ram_layer_writer *w = ram_layer_writer_new(fd, &place);
    struct ram_layer_head head;
    struct ram_layer layer;

    (void)state;
    assert_int_equal(ram_layer_finish(w, &head), 0);
    ram_layer_writer_free(w);
    assert_int_equal(ram_layer_open(fd, &place, &layer, NULL), 0);
    assert_int_equal(ram_layer_read(&layer, NULL, NULL, NULL), 0);
    ram_layer_close(&layer);
}

/* Whether it is taken, bytes of pages included. */
static bool is_good(int fd)
{
    struct ram_layer layer;
    bool good;

    if (ram_layer_open(fd, &place, &layer, NULL) < 0) {
        return false;
    }
    good = ram_layer_read(&layer, NULL, NULL, NULL) == 0;
    ram_layer_close(&layer);
    return good;
}

static void test_every_flipped_byte_is_found(void **state)
{
    _cleanup_close_ int fd = make_file();
    struct ram_layer_head head;
    off_t n;

    (void)state;
    write_layer(fd, &head);
    n = (off_t)ram_layer_file_bytes(&head);
    for (off_t at = 0; at < n; at += at < 200 || at > n - 200 ? 1 : 61) {
        uint8_t byte;
        uint8_t flipped;

        assert_int_equal(pread(fd, &byte, 1, at), 1);
        flipped = byte ^ 0x10;
        assert_int_equal(pwrite(fd, &flipped, 1, at), 1);
        if (is_good(fd)) {
            fail_msg("byte %lld was flipped and the layer taken", (long long)at);
        }
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    assert_true(is_good(fd));
}

static void test_other_lengths_are_refused(void **state)
{
    _cleanup_close_ int fd = make_file();
    struct ram_layer_head head;
    off_t n;

    (void)state;
    write_layer(fd, &head);
    n = (off_t)ram_layer_file_bytes(&head);
    assert_int_equal(ftruncate(fd, n + 1), 0);
    assert_false(is_good(fd));
    for (off_t cut = 1; cut <= n; cut += 777) {
        assert_int_equal(ftruncate(fd, n), 0);
        assert_int_equal(ftruncate(fd, n - cut), 0);
        assert_false(is_good(fd));
    }
}

static void test_another_base_or_size_is_refused(void **state)
{
    _cleanup_close_ int fd = make_file();
    struct ram_layer_place other = place;
    struct ram_layer_head head;
    struct ram_layer layer;
    struct error err = {0};

    (void)state;
    write_layer(fd, &head);
    other.binding.bytes[15] = 1;
    assert_int_equal(ram_layer_open(fd, &other, &layer, &err), -EBADMSG);
    assert_non_null(strstr(err.message, "another base or environment"));
    other = place;
    other.ram_bytes *= 2;
    assert_int_equal(ram_layer_open(fd, &other, &layer, NULL), -EBADMSG);
}

static void test_the_writer_refuses_disorder(void **state)
{
    _cleanup_close_ int fd = make_file();
    struct ram_layer_writer *w = ram_layer_writer_new(fd, &place);

    (void)state;
    assert_int_equal(ram_layer_put(w, 10, 2, NULL), 0);
    assert_int_equal(ram_layer_put(w, 11, 1, NULL), -EINVAL);
    assert_int_equal(ram_layer_put(w, 9, 1, NULL), -EINVAL);
    assert_int_equal(ram_layer_put(w, 12, 0, NULL), -EINVAL);
    assert_int_equal(ram_layer_put(w, 12, RAM_RUN_PAGES_MAX + 1, NULL), -EINVAL);
    assert_int_equal(ram_layer_put(w, PAGES - 1, 2, NULL), -EINVAL);
    assert_int_equal(ram_layer_put(w, PAGES - 1, 1, NULL), 0);
    ram_layer_writer_free(w);
}

/* Indexes whose sums are right and whose runs are not. */
static void test_crooked_indexes_are_refused(void **state)
{
    static const struct ram_run crooked[][2] = {
        {{.first = 4, .pages = 2, .is_zero = true}, {.first = 5, .pages = 2, .is_zero = true}},
        {{.first = 8, .pages = 2, .is_zero = true}, {.first = 5, .pages = 2, .is_zero = true}},
        {{.first = 4, .pages = 2, .is_zero = true}, {.first = PAGES, .pages = 2, .is_zero = true}},
        {{.first = 4, .pages = 2, .is_zero = true},
         {.first = UINT32_MAX, .pages = 2, .is_zero = true}},
        {{.first = 4, .pages = 0, .is_zero = true}, {.first = 5, .pages = 4, .is_zero = true}},
        {{.first = 4, .pages = 2, .is_zero = true}, {.first = 7, .pages = 2}},
        {{.first = 4, .pages = 2, .is_zero = true},
         {.first = 7, .pages = 2, .is_zero = true, .sum = {{1}}}},
    };
    struct ram_layer_head head = {.place = place, .zero_pages = 4, .runs = 2};
    uint8_t index[2 * RAM_RUN_BYTES];
    struct ram_run runs[2];

    (void)state;
    for (size_t i = 0; i < sizeof(crooked) / sizeof(crooked[0]); i++) {
        ram_run_format(&crooked[i][0], index);
        ram_run_format(&crooked[i][1], &index[RAM_RUN_BYTES]);
        head.index_sum = ram_sum_of(span_make(index, sizeof(index)));
        if (ram_layer_index_parse(&head, span_make(index, sizeof(index)), runs) != -EBADMSG) {
            fail_msg("index %zu was taken", i);
        }
    }
}

static void test_heads_that_do_not_add_up_are_refused(void **state)
{
    static const struct ram_layer_head good = {
        .place = {(uint64_t)PAGES * RAM_PAGE_BYTES, {{0}}}, .data_pages = 2, .runs = 1};
    struct ram_layer_head heads[6] = {good, good, good, good, good, good};
    uint8_t block[RAM_PAGE_BYTES];
    struct ram_layer_head again;

    (void)state;
    ram_layer_head_format(&good, block);
    assert_int_equal(ram_layer_head_parse(span_make(block, sizeof(block)), &again), 0);
    assert_memory_equal(&again, &good, sizeof(good));
    assert_int_equal(ram_layer_head_parse(span_make(block, sizeof(block) - 1), &again), -EBADMSG);
    heads[0].place.ram_bytes = 0;
    heads[1].place.ram_bytes += 1;
    heads[2].data_pages = PAGES + 1;
    heads[3].zero_pages = UINT64_MAX;
    heads[4].runs = 3;
    heads[5].runs = 0;
    for (size_t i = 0; i < 6; i++) {
        ram_layer_head_format(&heads[i], block);
        if (ram_layer_head_parse(span_make(block, sizeof(block)), &again) != -EBADMSG) {
            fail_msg("head %zu was taken", i);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_an_empty_layer_is_one),
        cmocka_unit_test(test_every_flipped_byte_is_found),
        cmocka_unit_test(test_other_lengths_are_refused),
        cmocka_unit_test(test_another_base_or_size_is_refused),
        cmocka_unit_test(test_the_writer_refuses_disorder),
        cmocka_unit_test(test_crooked_indexes_are_refused),
        cmocka_unit_test(test_heads_that_do_not_add_up_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
