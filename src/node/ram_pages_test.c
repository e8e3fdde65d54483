#include "node/ram_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "node/ram_layer.h"
#include "node/ram_rig.h"

static int set_up(void **state)
{
    struct ram_rig *rig = calloc(1, sizeof(*rig));

    if (rig == NULL || ram_rig_init(rig) < 0 || ram_rig_spawn(rig) < 0) {
        return -1;
    }
    *state = rig;
    return 0;
}

static int tear_down(void **state)
{
    ram_rig_done(*state);
    free(*state);
    return 0;
}

struct found {
    unsigned int runs;
    uint32_t first[16];
    uint32_t pages[16];
};

static int find(void *arg, uint32_t first, uint32_t pages)
{
    struct found *f = arg;

    assert_true(f->runs < 16);
    f->first[f->runs] = first;
    f->pages[f->runs++] = pages;
    return 0;
}

static void open_view(const struct ram_rig *rig, struct ram_view *view)
{
    struct error err = {0};

    if (ram_view_open(rig->proc_fd, rig->image_fd, false, view, &err) < 0) {
        fail_msg("%s", err.message);
    }
}

/* Written pages are its own, read ones are not, those with the image's bytes included. */
static void check_pages(struct ram_rig *rig, bool no_scan)
{
    struct ram_view view;
    struct found f = {0};

    ram_rig_write(rig, 5, 77);
    ram_rig_write(rig, 6, 78);
    ram_rig_write(rig, 9, 10); /* what the image has there */
    (void)ram_rig_read(rig, 20);
    ram_rig_write(rig, RAM_RIG_PAGES / 2 + 3, 0);
    (void)ram_rig_read(rig, RAM_RIG_PAGES / 2 + 4);
    ram_rig_write(rig, RAM_RIG_PAGES - 1, 1);
    open_view(rig, &view);
    view.no_scan = no_scan;
    assert_int_equal(view.ram_bytes, (uint64_t)RAM_RIG_PAGES * RAM_PAGE_BYTES);
    assert_int_equal(ram_view_each(&view, find, &f), 0);
    assert_int_equal(f.runs, 4);
    assert_int_equal(f.first[0], 5);
    assert_int_equal(f.pages[0], 2);
    assert_int_equal(f.first[1], 9);
    assert_int_equal(f.first[2], RAM_RIG_PAGES / 2 + 3);
    assert_int_equal(f.pages[2], 1);
    assert_int_equal(f.first[3], RAM_RIG_PAGES - 1);
    ram_view_close(&view);
}

static void test_own_pages(void **state)
{
    check_pages(*state, false);
}

static void test_own_pages_without_scan(void **state)
{
    check_pages(*state, true);
}

static void test_bytes_in_and_out(void **state)
{
    struct ram_rig *rig = *state;
    struct ram_view view;
    uint8_t *page = malloc(2UL * RAM_PAGE_BYTES);

    assert_non_null(page);
    ram_rig_write(rig, 100, 3);
    open_view(rig, &view);
    assert_int_equal(ram_view_read(&view, 100, 2, page), 0);
    assert_int_equal(page[0], 3);
    assert_int_equal(page[RAM_PAGE_BYTES], 102);
    memset(page, 44, 2UL * RAM_PAGE_BYTES);
    assert_int_equal(ram_view_write(&view, 101, 2, page), 0);
    assert_int_equal(ram_rig_read(rig, 100), 3);
    assert_int_equal(ram_rig_read(rig, 101), 44);
    assert_int_equal(ram_rig_read(rig, 102), 44);
    assert_int_equal(ram_rig_read(rig, 103), 104);
    /* The image has none of it. */
    assert_int_equal(pread(rig->image_fd, page, 1, 101L * RAM_PAGE_BYTES), 1);
    assert_int_equal(page[0], 102);
    assert_int_equal(ram_view_read(&view, RAM_RIG_PAGES, 1, page), -EINVAL);
    ram_view_close(&view);
    free(page);
}

static void test_a_mapping_in_parts(void **state)
{
    struct ram_rig *rig = *state;
    uint8_t *pages = malloc(3UL * RAM_PAGE_BYTES);
    struct ram_view view;
    struct found f = {0};

    assert_non_null(pages);
    ram_rig_split(rig, 500);
    ram_rig_write(rig, 499, 1);
    ram_rig_write(rig, 500, 2);
    ram_rig_write(rig, 501, 3);
    open_view(rig, &view);
    assert_int_equal(view.count, 3);
    assert_int_equal(ram_view_each(&view, find, &f), 0);
    assert_int_equal(f.runs, 3);
    assert_int_equal(f.first[2], 501);
    assert_int_equal(ram_view_read(&view, 499, 3, pages), 0);
    assert_int_equal(pages[0], 1);
    assert_int_equal(pages[2UL * RAM_PAGE_BYTES], 3);
    ram_view_close(&view);
    free(pages);
}

static void test_another_image_is_refused(void **state)
{
    struct ram_rig *rig = *state;
    struct ram_view view;
    struct ram_rig other;

    assert_int_equal(ram_rig_init(&other), 0);
    assert_int_equal(ram_view_open(rig->proc_fd, other.image_fd, false, &view, NULL), -ENXIO);
    ram_rig_done(&other);
}

/* The descriptors never speak of a later process. */
static void test_a_dead_one_has_no_memory(void **state)
{
    struct ram_rig *rig = *state;
    uint8_t page[RAM_PAGE_BYTES];
    struct ram_view view;
    struct found f = {0};
    int proc_fd;

    open_view(rig, &view);
    proc_fd = dup(rig->proc_fd);
    ram_rig_kill(rig);
    assert_true(ram_view_read(&view, 1, 1, page) < 0);
    assert_true(ram_view_write(&view, 1, 1, page) < 0);
    (void)ram_view_each(&view, find, &f);
    assert_int_equal(f.runs, 0);
    ram_view_close(&view);
    assert_true(ram_view_open(proc_fd, rig->image_fd, false, &view, NULL) < 0);
    (void)close(proc_fd);
}

static void test_lines_of_maps(void **state)
{
    static const char *const bad[] = {
        "",
        "7f00-7f00 rw-p 00000000 fe:00 12 /x",
        "7f00 rw-p 00000000 fe:00 12 /x",
        "7f00-8f00 rw-p 0000000g fe:00 12 /x",
        "7f00-8f00 rw-p 00000000 fe:00 /x",
        "7f00-8f00 rw 00000000 fe:00 12 /x",
        "10000000000000000-8f00 rw-p 00000000 fe:00 12 /x",
    };
    struct ram_mapping m;

    (void)state;
    assert_int_equal(ram_mapping_parse(
                         span_of_str("7f00-8f00 rw-p 00001000 fe:00 12        /a b (deleted)"), &m),
                     0);
    assert_int_equal(m.start, 0x7f00);
    assert_int_equal(m.end, 0x8f00);
    assert_int_equal(m.offset, 0x1000);
    assert_int_equal(m.inode, 12);
    assert_true(m.is_private);
    assert_true(span_equals_str(m.name, "/a b (deleted)"));
    assert_int_equal(ram_mapping_parse(span_of_str("7f00-8f00 rw-s 0 00:01 12"), &m), 0);
    assert_false(m.is_private);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (ram_mapping_parse(span_of_str(bad[i]), &m) != -EBADMSG) {
            fail_msg("taken: %s", bad[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_of_maps),
        cmocka_unit_test_setup_teardown(test_own_pages, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_own_pages_without_scan, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bytes_in_and_out, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_mapping_in_parts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_another_image_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_dead_one_has_no_memory, set_up, tear_down),
    };

    /* What a process maps is shown to root only. */
    return geteuid() != 0 ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
}
