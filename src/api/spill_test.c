/* What is kept until it is asked for: in memory, in a file, and beyond what there is room for. */
#include "api/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <sys/stat.h>

#include <cmocka.h>

#include "api/api.h"
#include "base/fd.h"

#define PIECE_BYTES 10000U

static int set_up(void **state)
{
    struct api *api = calloc(1, sizeof(*api));
    char store[SETTINGS_PATH_SIZE + 8];

    assert_non_null(api);
    (void)snprintf(api->settings.data_dir, sizeof(api->settings.data_dir), "/tmp/spill-XXXXXX");
    assert_non_null(mkdtemp(api->settings.data_dir));
    (void)snprintf(store, sizeof(store), "%s/store", api->settings.data_dir);
    assert_int_equal(mkdir(store, 0700), 0);
    *state = api;
    return 0;
}

static int tear_down(void **state)
{
    struct api *api = *state;

    assert_int_equal(dir_remove_tree(AT_FDCWD, api->settings.data_dir), 0);
    free(api);
    return 0;
}

static void put_pieces(struct spill *spill, unsigned int count)
{
    uint8_t piece[PIECE_BYTES];

    for (unsigned int i = 0; i < count; i++) {
        memset(piece, 'a' + (int)(i % 26), sizeof(piece));
        spill_put(spill, span_make(piece, sizeof(piece)));
    }
}

static void expect_pieces(struct spill *spill, unsigned int count)
{
    struct span all;

    assert_int_equal(spill_read(spill, &all), 0);
    assert_int_equal(all.n, count * PIECE_BYTES);
    for (size_t i = 0; i < all.n; i++) {
        assert_int_equal(all.p[i], 'a' + (i / PIECE_BYTES) % 26);
    }
}

static void test_short_and_long(void **state)
{
    struct api *api = *state;
    struct key_entry key = {.streams = 0};
    struct spill spill;
    struct span none;

    spill_init(&spill, api, &key, UINT64_MAX);
    assert_int_equal(spill_read(&spill, &none), 0);
    assert_int_equal(none.n, 0);
    put_pieces(&spill, 6);
    assert_int_equal(spill.fd, -1);
    expect_pieces(&spill, 6);
    assert_int_equal(api->spilled_bytes, 0);
    spill_done(&spill);

    spill_init(&spill, api, &key, UINT64_MAX);
    put_pieces(&spill, 60);
    assert_true(spill.fd >= 0);
    assert_int_equal(spill.memory.room, 0);
    expect_pieces(&spill, 60);
    assert_int_equal(api->spilled_bytes, 60 * PIECE_BYTES);
    assert_int_equal(key.spilled_bytes, 60 * PIECE_BYTES);
    spill_done(&spill);
    assert_int_equal(api->spilled_bytes, 0);
    assert_int_equal(key.spilled_bytes, 0);
}

static void expect_none(struct spill *spill, int error)
{
    struct span all;

    assert_int_equal(spill_read(spill, &all), error);
    put_pieces(spill, 1);
    assert_int_equal(spill->n, 0);
    spill_done(spill);
}

static void test_too_long(void **state)
{
    struct api *api = *state;
    struct spill spill;

    spill_init(&spill, api, NULL, 20 * PIECE_BYTES);
    put_pieces(&spill, 20);
    expect_pieces(&spill, 20);
    put_pieces(&spill, 1);
    expect_none(&spill, -EMSGSIZE);
    assert_int_equal(api->spilled_bytes, 0);
}

/* One key has its part, and others theirs beside it, until all of it is taken. */
static void test_room(void **state)
{
    struct api *api = *state;
    struct key_entry full = {.spilled_bytes = SPILL_KEY_MAX - 10 * PIECE_BYTES};
    struct key_entry other = {.streams = 0};
    struct spill spill;

    api->spilled_bytes = full.spilled_bytes;
    spill_init(&spill, api, &full, UINT64_MAX);
    put_pieces(&spill, 11);
    expect_none(&spill, -EDQUOT);
    assert_int_equal(full.spilled_bytes, SPILL_KEY_MAX - 10 * PIECE_BYTES);
    assert_int_equal(api->spilled_bytes, full.spilled_bytes);
    spill_init(&spill, api, &other, UINT64_MAX);
    put_pieces(&spill, 11);
    expect_pieces(&spill, 11);
    spill_done(&spill);
    api->spilled_bytes = SPILL_ALL_MAX - 10 * PIECE_BYTES;
    spill_init(&spill, api, &other, UINT64_MAX);
    put_pieces(&spill, 11);
    expect_none(&spill, -EDQUOT);
    spill_init(&spill, api, NULL, UINT64_MAX);
    put_pieces(&spill, 6); /* in memory there is room */
    expect_pieces(&spill, 6);
    spill_done(&spill);
}

static void test_no_directory(void **state)
{
    struct api *api = *state;
    struct spill spill;

    assert_int_equal(dir_remove_tree(AT_FDCWD, api->settings.data_dir), 0);
    spill_init(&spill, api, NULL, UINT64_MAX);
    put_pieces(&spill, 7);
    expect_none(&spill, -ENOENT);
}

/* Where there are no files without a name; what a kill left there is no obstacle. */
static void test_a_file_that_loses_its_name(void **state)
{
    const struct api *api = *state;
    char left[SETTINGS_PATH_SIZE + 16];
    struct stat st;
    int fd;

    (void)snprintf(left, sizeof(left), "%s/.spill", api->settings.data_dir);
    assert_int_equal(symlink("/etc/passwd", left), 0);
    fd = spill_open_named(api->settings.data_dir);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_nlink, 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(fd_write_all(fd, span_of_str("kept")), 0);
    assert_int_equal(lstat(left, &st), -1);
    (void)close(fd);
    assert_int_equal(spill_open_named("/nowhere"), -ENOENT);
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_short_and_long),
        CASE(test_too_long),
        CASE(test_room),
        CASE(test_no_directory),
        CASE(test_a_file_that_loses_its_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
