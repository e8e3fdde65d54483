#include "node/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/fd.h"
#include "node/disk.h"
#include "node/ram_pages.h"
#include "node/ram_rig.h"
#include "node/ram_stage.h"
#include "node/snapshot_room.h"

#define PATH_SIZE 160

static const struct snapshot_facts facts = {
    .template_version = "tm0123456789abcdefgh",
    .vcpus = 1,
    .memory_mib = 8,
    .env = {"a driver", "10.0.2", "tcg", "Haswell", "6.1.0", "abc-def", 2500000},
};

struct fixture {
    struct ram_rig rig;
    struct snapshot_room room;
    struct ram_stage *stage;
    struct snapshot_source source; /* of the last capture */
    char dir[PATH_SIZE];
    char disk[PATH_SIZE];
};

static void path_of(const struct fixture *f, const char *name, char out[PATH_SIZE])
{
    (void)snprintf(out, PATH_SIZE, "%.100s/%.40s", f->dir, name);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    if (f == NULL || snapshot_room_init(&f->room) < 0 || ram_rig_init(&f->rig) < 0 ||
        ram_rig_spawn(&f->rig) < 0) {
        return -1;
    }
    (void)snprintf(f->dir, sizeof(f->dir), "%.64s/kept", f->rig.dir);
    (void)snprintf(f->disk, sizeof(f->disk), "%.64s/disk", f->rig.dir);
    *state = f;
    return file_write_atomic(AT_FDCWD, f->disk, span_of_str("a disk"), 0600, false);
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    ram_rig_done(&f->rig);
    free(f);
    return 0;
}

static int capture_as(struct fixture *f,
                      const struct snapshot_facts *as,
                      uint64_t reserve_mib,
                      struct snapshot_sizes *sizes,
                      struct error *err)
{
    _cleanup_close_ int state_fd = memfd_create("state", MFD_CLOEXEC);
    struct snapshot_source source = {
        .proc_fd = f->rig.proc_fd,
        .state_fd = state_fd,
        .ram_path = f->rig.image_path,
        .disk_path = f->disk,
        .reserve_mib = reserve_mib,
        .room = &f->room,
        .stage = f->stage,
    };
    int r = fd_write_all(state_fd, span_of_str("devices"));

    if (r == 0) {
        r = snapshot_begin(f->dir, err);
    }
    if (r == 0) {
        r = snapshot_capture(f->dir, as, &source, sizes, err);
    }
    f->source = source;
    return r;
}

static int
capture(struct fixture *f, uint64_t reserve_mib, struct snapshot_sizes *sizes, struct error *err)
{
    return capture_as(f, &facts, reserve_mib, sizes, err);
}

static void make(struct fixture *f)
{
    struct snapshot_sizes sizes;
    struct error err = {0};

    if (capture(f, 0, &sizes, &err) < 0 || snapshot_commit(f->dir, &facts, &sizes, &err) < 0) {
        fail_msg("%s", err.message);
    }
}

static void test_memory_comes_back(void **state)
{
    struct fixture *f = *state;
    uint32_t hole = RAM_RIG_PAGES / 2 + 9;
    struct snapshot_sizes sizes;
    char path[PATH_SIZE];

    ram_rig_write(&f->rig, 3, 200);
    ram_rig_write(&f->rig, 4, 201);
    ram_rig_write(&f->rig, 5, 6); /* as in the image */
    ram_rig_write(&f->rig, 7, 0);
    ram_rig_write(&f->rig, hole, 9);
    ram_rig_write(&f->rig, hole + 1, 0); /* as in the image */
    assert_int_equal(capture(f, 0, &sizes, NULL), 0);
    assert_int_equal(sizes.own_pages, 6);
    assert_int_equal(sizes.data_pages, 3);
    assert_int_equal(sizes.zero_pages, 1);
    assert_false(snapshot_exists(f->dir));
    assert_true(snapshot_has_parts(f->dir));
    assert_int_equal(snapshot_commit(f->dir, &facts, &sizes, NULL), 0);
    assert_true(snapshot_exists(f->dir));
    assert_int_equal(snapshot_check(f->dir, &facts, NULL), 0);
    path_of(f, "disk.img", path);
    assert_int_equal(access(path, R_OK), 0);

    /* Another one, which has written where the layer holds nothing. */
    ram_rig_kill(&f->rig);
    assert_int_equal(ram_rig_spawn(&f->rig), 0);
    ram_rig_write(&f->rig, 20, 99);
    ram_rig_write(&f->rig, 4, 99);
    assert_int_equal(snapshot_fill(f->dir, &facts, f->rig.proc_fd, false, NULL), 0);
    assert_int_equal(ram_rig_read(&f->rig, 3), 200);
    assert_int_equal(ram_rig_read(&f->rig, 4), 201);
    assert_int_equal(ram_rig_read(&f->rig, 5), 6);
    assert_int_equal(ram_rig_read(&f->rig, 7), 0);
    assert_int_equal(ram_rig_read(&f->rig, 20), 21);
    assert_int_equal(ram_rig_read(&f->rig, hole), 9);
    assert_int_equal(ram_rig_read(&f->rig, hole + 1), 0);
    assert_int_equal(snapshot_remove(f->dir), 0);
    assert_false(snapshot_has_parts(f->dir));
}

static struct ram_stage *stage_of(struct fixture *f)
{
    _cleanup_close_ int image = open(f->rig.image_path, O_RDONLY | O_CLOEXEC);
    struct ram_stage *stage = ram_stage_new(f->rig.proc_fd, image, false, 0);

    assert_non_null(stage);
    return stage;
}

/* What the guest writes when it goes on is not in it. */
static void test_memory_that_was_staged(void **state)
{
    struct fixture *f = *state;
    struct snapshot_sizes sizes = {0};

    ram_rig_write(&f->rig, 3, 200);
    f->stage = stage_of(f);
    ram_rig_write(&f->rig, 4, 201);
    ram_rig_write(&f->rig, 5, 6); /* as in the image */
    ram_rig_write(&f->rig, 7, 0);
    assert_int_equal(capture(f, 0, &sizes, NULL), 0);
    assert_true(sizes.is_staged);
    assert_int_equal(sizes.own_pages, 4);
    assert_int_equal(f->room.promised_bytes, 0);
    ram_rig_write(&f->rig, 3, 7);
    ram_rig_write(&f->rig, 9, 7);
    assert_int_equal(snapshot_write(f->dir, &facts, &f->source, &sizes, NULL), 0);
    assert_int_equal(sizes.data_pages, 2);
    assert_int_equal(sizes.zero_pages, 1);
    assert_int_equal(sizes.promised_bytes, sizes.memory_bytes);
    snapshot_room_give_back(&f->room, sizes.promised_bytes);
    assert_int_equal(snapshot_commit(f->dir, &facts, &sizes, NULL), 0);
    ram_stage_free(TAKE(f->stage));
    ram_rig_kill(&f->rig);
    assert_int_equal(ram_rig_spawn(&f->rig), 0);
    assert_int_equal(snapshot_fill(f->dir, &facts, f->rig.proc_fd, false, NULL), 0);
    assert_int_equal(ram_rig_read(&f->rig, 3), 200);
    assert_int_equal(ram_rig_read(&f->rig, 4), 201);
    assert_int_equal(ram_rig_read(&f->rig, 5), 6);
    assert_int_equal(ram_rig_read(&f->rig, 7), 0);
    assert_int_equal(ram_rig_read(&f->rig, 9), 10);
}

/* More than there is room for: written while it stands still. */
static void test_memory_that_does_not_fit_the_stage(void **state)
{
    struct fixture *f = *state;
    struct snapshot_sizes sizes = {0};

    f->stage = stage_of(f);
    for (uint32_t page = 0; page < RAM_RIG_PAGES; page++) {
        ram_rig_write(&f->rig, page, 200);
    }
    assert_int_equal(capture(f, 0, &sizes, NULL), 0);
    assert_false(sizes.is_staged);
    assert_int_equal(sizes.own_pages, RAM_RIG_PAGES);
    assert_int_equal(snapshot_write(f->dir, &facts, &f->source, &sizes, NULL), 0);
    assert_int_equal(snapshot_commit(f->dir, &facts, &sizes, NULL), 0);
    assert_int_equal(snapshot_check(f->dir, &facts, NULL), 0);
    snapshot_room_give_back(&f->room, sizes.promised_bytes);
    ram_stage_free(TAKE(f->stage));
}

static void test_a_stage_leaves_the_host_its_memory(void **state)
{
    (void)state;
    assert_int_equal(ram_stage_limit_mib(0, 1024, UINT64_MAX), RAM_STAGE_MIB_MIN);
    assert_int_equal(ram_stage_limit_mib(1024, 1024, UINT64_MAX), RAM_STAGE_MIB_MIN);
    assert_int_equal(ram_stage_limit_mib(1424, 1024, UINT64_MAX), 100);
    assert_int_equal(ram_stage_limit_mib(4096, 1024, UINT64_MAX), RAM_STAGE_MIB_MAX);
    assert_int_equal(ram_stage_limit_mib(4096, 1024, 2048), RAM_STAGE_MIB_MAX);
    assert_int_equal(ram_stage_limit_mib(4096, 1024, 480), 120);
    assert_int_equal(ram_stage_limit_mib(0, 1024, 100), 25); /* below the least */
    assert_int_equal(ram_stage_limit_mib(4096, 1024, 0), 0);
}

static void test_a_stage_has_its_own_room_check(void **state)
{
    struct fixture *f = *state;
    struct snapshot_sizes sizes = {0};
    struct error err = {0};

    ram_rig_write(&f->rig, 3, 200);
    f->stage = stage_of(f);
    assert_int_equal(capture(f, 1ULL << 40U, &sizes, &err), 0);
    assert_int_equal(snapshot_write(f->dir, &facts, &f->source, &sizes, &err), -ENOSPC);
    assert_int_equal(err.code, ERROR_STORAGE_FULL);
    assert_int_equal(f->room.promised_bytes, 0);
    ram_stage_free(TAKE(f->stage));
}

static void test_the_image_outlives_its_base(void **state)
{
    struct fixture *f = *state;

    ram_rig_write(&f->rig, 3, 200);
    make(f);
    assert_int_equal(unlink(f->rig.image_path), 0);
    assert_int_equal(snapshot_check(f->dir, &facts, NULL), 0);
    assert_int_equal(snapshot_fill(f->dir, &facts, f->rig.proc_fd, false, NULL), 0);
}

static void test_a_full_disk_is_found_before_it_is_full(void **state)
{
    struct snapshot_sizes sizes;
    struct error err = {0};

    assert_true(capture(*state, UINT32_MAX, &sizes, &err) < 0);
    assert_int_equal(err.code, ERROR_STORAGE_FULL);
}

/* What others are going to write is no free space, though nothing of it is there yet. */
static void test_captures_at_once_share_the_room(void **state)
{
    struct fixture *f = *state;
    struct snapshot_sizes sizes;
    struct error err = {0};
    uint64_t total_mib;
    uint64_t free_mib;
    uint64_t reserve_mib;

    assert_int_equal(disk_space(f->rig.dir, &total_mib, &free_mib), 0);
    if (free_mib < 4096) {
        skip();
    }
    reserve_mib = free_mib - 2048;
    ram_rig_write(&f->rig, 3, 200);
    ram_rig_write(&f->rig, 5, 6); /* as in the image */
    assert_int_equal(capture(f, reserve_mib, &sizes, NULL), 0);
    assert_int_equal(sizes.promised_bytes, sizes.memory_bytes);
    assert_int_equal(f->room.promised_bytes, sizes.memory_bytes);
    snapshot_room_give_back(&f->room, sizes.promised_bytes);

    assert_int_equal(snapshot_room_promise(&f->room, f->rig.dir, 3ULL << 30U, free_mib - 4090), 0);
    assert_true(capture(f, reserve_mib, &sizes, &err) < 0);
    assert_int_equal(err.code, ERROR_STORAGE_FULL);
    assert_true(f->room.promised_bytes == 3ULL << 30U);
    assert_int_equal(snapshot_room_promise(&f->room, f->rig.dir, UINT64_MAX, 0), -ENOSPC);
    snapshot_room_give_back(&f->room, 3ULL << 30U);
    assert_int_equal(capture(f, reserve_mib, &sizes, NULL), 0);
}

static void test_another_environment_is_named(void **state)
{
    static const char *const names[] = {"driver",          "VMM version",  "accelerator",
                                        "processor model", "guest kernel", "processor clock"};
    struct snapshot_facts other[6] = {facts, facts, facts, facts, facts, facts};
    struct snapshot_facts another = facts;

    make(*state);
    other[0].env.driver[0] = 'x';
    other[1].env.vmm_version[0] = '9';
    other[2].env.accelerator[0] = 'k';
    other[3].env.cpu_model[0] = 'E';
    other[4].env.kernel[0] = '7';
    other[5].env.tsc_khz += 100000;
    for (size_t i = 0; i < 6; i++) {
        struct error err = {0};

        assert_true(snapshot_check(((struct fixture *)*state)->dir, &other[i], &err) < 0);
        assert_int_equal(err.code, ERROR_FAILED_PRECONDITION);
        assert_string_equal(err.field, "environment");
        assert_non_null(strstr(err.message, names[i]));
    }
    /* Another agent in the initramfs: the old one runs in the snapshot. */
    another.env.guest_id[0] = 'x';
    assert_int_equal(snapshot_check(((struct fixture *)*state)->dir, &another, NULL), 0);
    another.vcpus = 2;
    assert_int_equal(snapshot_check(((struct fixture *)*state)->dir, &another, NULL), -EBADMSG);
}

/* Measured anew at each start of the node: what differs by the error of that is one clock, at
 * frequencies where a coarser unit would change too. */
static void test_a_clock_that_is_measured_again_is_the_same(void **state)
{
    static const uint64_t measured[][3] = {/* first, again, another */
                                           {2499990, 2500010, 2506000},
                                           {2500010, 2499990, 2494000},
                                           {2400000, 2399999, 2593900},
                                           {3000001, 2999998, 2893000},
                                           {2596130, 2595990, 2602000}};
    struct fixture *f = *state;

    ram_rig_write(&f->rig, 3, 200);
    for (size_t i = 0; i < sizeof(measured) / sizeof(measured[0]); i++) {
        struct snapshot_facts at = facts;
        struct snapshot_sizes sizes;
        struct error err = {0};

        at.env.tsc_khz = measured[i][0];
        assert_int_equal(capture_as(f, &at, 0, &sizes, NULL), 0);
        assert_int_equal(snapshot_commit(f->dir, &at, &sizes, NULL), 0);
        at.env.tsc_khz = measured[i][1];
        assert_int_equal(snapshot_check(f->dir, &at, NULL), 0);
        assert_int_equal(snapshot_fill(f->dir, &at, f->rig.proc_fd, false, NULL), 0);
        at.env.tsc_khz = measured[i][2];
        assert_true(snapshot_check(f->dir, &at, &err) < 0);
        assert_string_equal(err.field, "environment");
    }
}

/* Each file in turn: a byte, the length, the file. */
static void test_damage_is_refused(void **state)
{
    struct fixture *f = *state;
    static const char *const flipped[] = {"memory", "state", "snapshot.json"};
    static const char *const all[] = {"ram", "memory", "state", "disk.img", "snapshot.json"};
    char path[PATH_SIZE];
    char aside[PATH_SIZE + 8];

    ram_rig_write(&f->rig, 3, 200);
    make(f);
    for (size_t i = 0; i < 3; i++) {
        _cleanup_close_ int fd = -1;
        struct stat st;

        path_of(f, flipped[i], path);
        assert_int_equal(chmod(path, 0600), 0);
        fd = open(path, O_RDWR | O_CLOEXEC);
        assert_int_equal(fstat(fd, &st), 0);
        for (off_t at = 0; at<st.st_size; at += st.st_size> 4096 ? 97 : 1) {
            uint8_t byte;
            uint8_t other;

            assert_int_equal(pread(fd, &byte, 1, at), 1);
            other = byte ^ 0x02;
            assert_int_equal(pwrite(fd, &other, 1, at), 1);
            if (snapshot_check(f->dir, &facts, NULL) == 0) {
                /* Blanks between the members of JSON are no content. */
                if (byte != ' ' && byte != '\n') {
                    fail_msg("%s: byte %lld was flipped and taken", flipped[i], (long long)at);
                }
            }
            assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        }
    }
    assert_int_equal(snapshot_check(f->dir, &facts, NULL), 0);
    for (size_t i = 0; i < 5; i++) {
        path_of(f, all[i], path);
        (void)snprintf(aside, sizeof(aside), "%s.aside", path);
        assert_int_equal(rename(path, aside), 0);
        assert_true(snapshot_check(f->dir, &facts, NULL) < 0);
        assert_int_equal(rename(aside, path), 0);
    }
    assert_int_equal(snapshot_check(f->dir, &facts, NULL), 0);
    path_of(f, "disk.img", path);
    assert_int_equal(truncate(path, 1), 0);
    assert_true(snapshot_check(f->dir, &facts, NULL) < 0);
}

static void test_what_was_interrupted_goes(void **state)
{
    struct fixture *f = *state;
    struct snapshot_sizes sizes;

    assert_int_equal(capture(f, 0, &sizes, NULL), 0); /* and no commit */
    make(f);
    assert_int_equal(snapshot_check(f->dir, &facts, NULL), 0);
    assert_int_equal(snapshot_disown(f->dir), 0);
    assert_false(snapshot_exists(f->dir));
    make(f);
    assert_int_equal(snapshot_remove(f->dir), 0);
    assert_int_equal(snapshot_remove(f->dir), 0);
    assert_false(snapshot_has_parts(f->dir));
}

/* What could not be removed keeps no later one in its place. */
static void test_remains_keep_nothing_in_place(void **state)
{
    static const char *const remains[] = {".old", ".old1", ".old2"};
    struct fixture *f = *state;
    char path[PATH_SIZE + 16];

    make(f);
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof(path), "%s%s/memory", f->dir, remains[i]);
        assert_int_equal(dir_make_all(AT_FDCWD, path, 0700), 0);
    }
    assert_int_equal(snapshot_disown(f->dir), 0);
    assert_false(snapshot_exists(f->dir));
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(snapshot_disown(f->dir), 0); /* there is none */
    assert_true(snapshot_has_parts(f->dir));
    assert_int_equal(snapshot_remove(f->dir), 0);
    assert_false(snapshot_has_parts(f->dir));
}

static void test_a_tag_tells_captures_apart(void **state)
{
    struct fixture *f = *state;
    struct snapshot_sizes sizes;
    char copy[PATH_SIZE];

    assert_int_equal(capture(f, 0, &sizes, NULL), 0);
    assert_int_equal(snapshot_tag(f->dir, 0x123456789abcdefU), 0);
    assert_false(snapshot_has_tag(f->dir, 0x123456789abcdefU)); /* not whole yet */
    assert_int_equal(snapshot_commit(f->dir, &facts, &sizes, NULL), 0);
    assert_true(snapshot_has_tag(f->dir, 0x123456789abcdefU));
    assert_false(snapshot_has_tag(f->dir, 0x123456789abcdeeU));
    assert_int_equal(snapshot_check(f->dir, &facts, NULL), 0);
    (void)snprintf(copy, sizeof(copy), "%.64s/copy", f->rig.dir);
    assert_int_equal(snapshot_copy(f->dir, copy, 0, NULL), 0);
    assert_int_equal(snapshot_settle(copy), 0);
    assert_false(snapshot_has_tag(copy, 0x123456789abcdefU));
    make(f);
    assert_false(snapshot_has_tag(f->dir, 0));
}

/* All of it, of which nothing but the disk is new; either may go. */
static void test_a_copy_stands_alone(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    char copy[PATH_SIZE];
    char path[PATH_SIZE + 16];
    struct stat st;

    (void)snprintf(copy, sizeof(copy), "%.64s/copy", f->rig.dir);
    ram_rig_write(&f->rig, 3, 200);
    make(f);
    assert_true(snapshot_copy(f->dir, copy, UINT32_MAX, &err) < 0);
    assert_int_equal(err.code, ERROR_STORAGE_FULL);
    assert_int_equal(snapshot_copy(f->dir, copy, 0, NULL), 0);
    assert_false(snapshot_exists(copy));
    assert_int_equal(snapshot_settle(copy), 0);
    assert_false(snapshot_is_cold(copy));
    (void)snprintf(path, sizeof(path), "%s/disk.img", copy);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_nlink, 1);
    (void)snprintf(path, sizeof(path), "%s/memory", copy);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_nlink, 2);
    assert_int_equal(snapshot_remove(f->dir), 0);
    assert_int_equal(snapshot_check(copy, &facts, NULL), 0);
    ram_rig_kill(&f->rig);
    assert_int_equal(ram_rig_spawn(&f->rig), 0);
    assert_int_equal(snapshot_fill(copy, &facts, f->rig.proc_fd, false, NULL), 0);
    assert_int_equal(ram_rig_read(&f->rig, 3), 200);
    assert_int_equal(unlink(path), 0);
    err = (struct error){0};
    assert_true(snapshot_copy(copy, f->dir, 0, &err) < 0);
    assert_non_null(strstr(err.message, "memory is missing"));
}

static void test_a_cold_one_is_a_disk(void **state)
{
    struct fixture *f = *state;
    struct snapshot_source source = {
        .ram_path = f->rig.image_path, .disk_path = f->disk, .room = &f->room};
    struct snapshot_facts fits = facts;
    struct snapshot_sizes sizes;
    struct error err = {0};
    char copy[PATH_SIZE];
    char path[PATH_SIZE];
    struct stat st;

    (void)snprintf(copy, sizeof(copy), "%.64s/copy", f->rig.dir);
    assert_int_equal(stat(f->rig.image_path, &st), 0);
    fits.memory_mib = (unsigned int)(st.st_size / 1048576);
    assert_int_equal(snapshot_begin(f->dir, NULL), 0);
    source.reserve_mib = UINT32_MAX;
    assert_true(snapshot_capture_cold(f->dir, &source, &sizes, &err) < 0);
    assert_int_equal(err.code, ERROR_STORAGE_FULL);
    source.reserve_mib = 0;
    assert_int_equal(snapshot_capture_cold(f->dir, &source, &sizes, NULL), 0);
    assert_int_equal(sizes.disk_bytes, 6);
    assert_false(snapshot_is_cold(f->dir));
    assert_int_equal(snapshot_commit_cold(f->dir, NULL), 0);
    assert_true(snapshot_is_cold(f->dir));
    assert_false(snapshot_exists(f->dir)); /* there is no memory to go on with */
    assert_int_equal(snapshot_copy(f->dir, copy, 0, NULL), 0);
    assert_int_equal(snapshot_settle(copy), 0);
    assert_int_equal(snapshot_check_cold(copy, &fits, NULL), 0);
    fits.memory_mib++;
    assert_int_equal(snapshot_check_cold(copy, &fits, NULL), -EBADMSG);
    fits.memory_mib--;
    path_of(f, "disk.img", path);
    assert_int_equal(truncate(path, 1), 0);
    assert_int_equal(snapshot_check_cold(f->dir, &fits, NULL), -EBADMSG);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(snapshot_check_cold(f->dir, &fits, NULL), -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_memory_comes_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_memory_that_was_staged, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_memory_that_does_not_fit_the_stage, set_up, tear_down),
        cmocka_unit_test(test_a_stage_leaves_the_host_its_memory),
        cmocka_unit_test_setup_teardown(test_a_stage_has_its_own_room_check, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_image_outlives_its_base, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_full_disk_is_found_before_it_is_full, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_captures_at_once_share_the_room, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_another_environment_is_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_clock_that_is_measured_again_is_the_same, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_damage_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_was_interrupted_goes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_remains_keep_nothing_in_place, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_tag_tells_captures_apart, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_copy_stands_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_cold_one_is_a_disk, set_up, tear_down),
    };

    /* What a process maps is shown to root only. */
    return geteuid() != 0 ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
}
