/* What a sandbox in state `error` may start again from, with real files. */
#include "node/sandbox_boot.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include <cmocka.h>

#include "base/fd.h"
#include "node/node_private.h"
#include "node/sandbox_private.h"

#define MIB 1048576

struct place {
    char dir[64];
    struct sandbox_boot boot;
};

/* ---- fakes ---- */

void sandbox_dir_path(const struct sandbox *sb, const char *file, char *out, size_t size)
{
    (void)snprintf(out, size, "%s/sandboxes/%s%s%s", sb->node->parts->volume, sb->info.id,
                   file[0] != '\0' ? "/" : "", file);
}

const char *sandbox_base_version(const struct sandbox *sb)
{
    return sb->info.template_version;
}

const char *sandbox_state_name(enum sandbox_state state)
{
    return state == SANDBOX_STATE_ERROR ? "error" : "another";
}

/* ---- files ---- */

static void make_file(const struct place *p, const char *name, off_t bytes)
{
    char path[128];
    _cleanup_close_ int fd = -1;

    (void)snprintf(path, sizeof(path), "%s/%s", p->dir, name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes), 0);
}

static void write_at(const struct place *p, const char *name, off_t at, const char *bytes, size_t n)
{
    char path[128];
    _cleanup_close_ int fd = -1;

    (void)snprintf(path, sizeof(path), "%s/%s", p->dir, name);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, at), (ssize_t)n);
}

static void drop(const struct place *p, const char *name)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", p->dir, name);
    assert_int_equal(unlink(path), 0);
}

static bool is_there(const struct place *p, const char *name)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", p->dir, name);
    return access(path, F_OK) == 0;
}

/* A disk and an image, both good. */
static int set_up(void **state)
{
    struct place *p = calloc(1, sizeof(*p));
    struct node_parts parts = {.slot_count = 0};
    struct node node = {.parts = &parts};
    struct sandbox sb = {.node = &node};
    char path[128];

    assert_non_null(p);
    (void)snprintf(p->dir, sizeof(p->dir), "/tmp/boot-test-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    (void)snprintf(parts.volume, sizeof(parts.volume), "%s", p->dir);
    (void)snprintf(sb.info.id, sizeof(sb.info.id), "sb1");
    (void)snprintf(sb.info.template_version, sizeof(sb.info.template_version), "tm1");
    sb.info.vcpus = 2;
    sb.info.memory_mib = 128;
    sb.info.disk_mib = 4;
    sandbox_boot_describe(&sb, &p->boot);
    (void)snprintf(path, sizeof(path), "%s/bases/tm1-2-128", p->dir);
    assert_int_equal(dir_make_all(AT_FDCWD, path, 0700), 0);
    (void)snprintf(path, sizeof(path), "%s/sandboxes/sb1", p->dir);
    assert_int_equal(dir_make_all(AT_FDCWD, path, 0700), 0);
    make_file(p, "sandboxes/sb1/disk.img", 4 * MIB);
    write_at(p, "sandboxes/sb1/disk.img", 1080, "\x53\xef", 2);
    make_file(p, "sandboxes/sb1/ram", 128L * MIB);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct place *p = *state;

    assert_int_equal(dir_remove_tree(AT_FDCWD, p->dir), 0);
    free(p);
    return 0;
}

static void expect_refused(const struct place *p, const char *why)
{
    struct error err = {0};

    assert_true(sandbox_boot_check(&p->boot, &err) < 0);
    assert_int_equal(err.code, ERROR_FAILED_PRECONDITION);
    assert_string_equal(err.field, "error");
    assert_non_null(strstr(err.message, why));
}

static void expect_good(const struct place *p)
{
    struct error err = {0};

    assert_int_equal(sandbox_boot_check(&p->boot, &err), 0);
}

static void test_a_good_disk(void **state)
{
    const struct place *p = *state;

    expect_good(p);
    make_file(p, "sandboxes/sb1/disk.img", 5 * MIB);
    write_at(p, "sandboxes/sb1/disk.img", 1080, "\x53\xef", 2);
    expect_good(p);
}

static void test_a_disk_that_is_gone(void **state)
{
    const struct place *p = *state;

    drop(p, "sandboxes/sb1/disk.img");
    expect_refused(p, "gone");
    assert_false(is_there(p, "sandboxes/sb1/disk.img"));
}

static void test_a_disk_that_is_damaged(void **state)
{
    const struct place *p = *state;

    write_at(p, "sandboxes/sb1/disk.img", 1080, "\xef\x53", 2);
    expect_refused(p, "no file system");
    make_file(p, "sandboxes/sb1/disk.img", 4 * MIB - 1);
    write_at(p, "sandboxes/sb1/disk.img", 1080, "\x53\xef", 2);
    expect_refused(p, "shorter");
}

/* One that an earlier release made. */
static void test_an_image_without_its_name(void **state)
{
    const struct place *p = *state;

    drop(p, "sandboxes/sb1/ram");
    expect_refused(p, "base image");
    make_file(p, "bases/tm1-2-128/ram", 128L * MIB);
    expect_good(p);
    assert_true(is_there(p, "sandboxes/sb1/ram"));
    drop(p, "bases/tm1-2-128/ram"); /* it needs that no more */
    expect_good(p);
}

static void test_an_image_of_another_size(void **state)
{
    const struct place *p = *state;

    make_file(p, "sandboxes/sb1/ram", 127L * MIB);
    expect_refused(p, "base image");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_good_disk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_disk_that_is_gone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_disk_that_is_damaged, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_an_image_without_its_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_an_image_of_another_size, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
