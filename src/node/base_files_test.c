#include "node/base_files.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include <cmocka.h>

#include "base/fd.h"
#include "node/disk.h"

static const struct runtime_env env = {
    "a driver", "10.0.2", "tcg", "Haswell", "6.1.0", "abc-def", 2499990,
};

static int set_up(void **state)
{
    char *root = strdup("/tmp/base-files-test-XXXXXX");

    if (root == NULL || mkdtemp(root) == NULL) {
        return -1;
    }
    *state = root;
    return 0;
}

static int tear_down(void **state)
{
    assert_int_equal(dir_remove_tree(AT_FDCWD, *state), 0);
    free(*state);
    return 0;
}

static struct base_key make_key(unsigned int memory_mib)
{
    struct base_key key = {.vcpus = 1, .memory_mib = memory_mib};

    (void)snprintf(key.template_info.name, sizeof(key.template_info.name), "base");
    (void)snprintf(key.template_info.version, sizeof(key.template_info.version),
                   "tm0123456789abcdefgh");
    return key;
}

static void put(const char *dir, const char *name, const char *text)
{
    char path[BASE_PATH_SIZE + 32];

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_of_str(text), 0600, false), 0);
}

static void build(const char *root, unsigned int memory_mib, struct base_files *f)
{
    struct base_key key = make_key(memory_mib);

    assert_int_equal(base_files_init(f, root, &key, NULL), 0);
    assert_int_equal(base_files_begin(f, &key, NULL), 0);
    put(f->building, "state", "device state");
    put(f->building, "disk.img", "a disk");
    assert_int_equal(base_files_finish(f, &key, &env, NULL), 0);
}

static void test_build_and_check(void **state)
{
    struct base_key key = make_key(128);
    struct base_files f = {.ram_bytes = 0};
    struct base_files again = {.ram_bytes = 0};
    struct runtime_env other = env;
    char path[BASE_PATH_SIZE + 32];
    struct stat st;

    assert_int_equal(base_files_init(&again, *state, &key, NULL), 0);
    assert_false(base_files_check(&again, &key, &env));
    build(*state, 128, &f);
    assert_true(base_files_check(&again, &key, &env));
    assert_int_equal(again.ram_bytes, 128U * 1048576U);
    assert_int_equal(again.state_bytes, strlen("device state"));
    (void)snprintf(path, sizeof(path), "%s/ram", f.dir);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0444);
    /* Another environment, another size, a cut file: not this base. */
    (void)snprintf(other.vmm_version, sizeof(other.vmm_version), "7.2");
    assert_false(base_files_check(&again, &key, &other));
    other = env;
    (void)snprintf(other.guest_id, sizeof(other.guest_id), "x");
    assert_false(base_files_check(&again, &key, &other));
    other = env;
    other.tsc_khz = 2500010; /* the same clock, measured again */
    assert_true(base_files_check(&again, &key, &other));
    other.tsc_khz = 2510000;
    assert_false(base_files_check(&again, &key, &other));
    (void)snprintf(path, sizeof(path), "%s/state", f.dir);
    assert_int_equal(truncate(path, 3), 0);
    assert_false(base_files_check(&again, &key, &env));
    /* A rebuild puts a good one in its place. */
    build(*state, 128, &f);
    assert_true(base_files_check(&again, &key, &env));
    put(f.dir, "base.json", "{\"format\": 1");
    assert_false(base_files_check(&again, &key, &env));
}

static bool exists(const struct base_files *f)
{
    return access(f->dir, F_OK) == 0;
}

static void test_evict(void **state)
{
    static const char *const nothing[] = {NULL};
    static const char *const pinned[] = {"tm0123456789abcdefgh-1-128", NULL};
    struct base_files f[3];
    char path[4096];

    memset(f, 0, sizeof(f));
    for (unsigned int i = 0; i < 3; i++) {
        const struct timespec times[2] = {{1000 + i, 0}, {1000 + i, 0}};

        build(*state, 128 * (i + 1), &f[i]);
        (void)snprintf(path, sizeof(path), "%s/base.json", f[i].dir);
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    }
    base_files_evict(*state, "other", 1, nothing);
    assert_true(exists(&f[0]) && exists(&f[1]) && exists(&f[2]));
    base_files_evict(*state, "base", 2, pinned);
    assert_true(exists(&f[0]) && !exists(&f[1]) && exists(&f[2]));
    base_files_evict(*state, "base", 1, nothing);
    assert_true(!exists(&f[0]) && exists(&f[2]));
}

static void test_copy_ram(void **state)
{
    struct base_files f = {.ram_bytes = 0};
    int fd;
    char byte = 1;

    build(*state, 128, &f);
    fd = base_files_copy_ram(&f);
    assert_true(fd >= 0);
    assert_int_equal(lseek(fd, 0, SEEK_END), 128L * 1048576L);
    assert_int_equal(pwrite(fd, &byte, 1, 0), -1); /* sealed */
    assert_int_equal(errno, EPERM);
    (void)close(fd);
}

static void test_disk(void **state)
{
    char source[256];
    char copy[256];
    struct stat st;
    struct error err = {0};

    put(*state, "a", "content");
    (void)snprintf(source, sizeof(source), "%s/a", (const char *)*state);
    (void)snprintf(copy, sizeof(copy), "%s/b", (const char *)*state);
    assert_int_equal(truncate(source, 1048576), 0);
    assert_int_equal(disk_clone(source, copy, 4194304, &err), 0);
    assert_int_equal(stat(copy, &st), 0);
    assert_int_equal(st.st_size, 4194304);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_true(disk_clone(source, copy, 0, &err) < 0); /* never over another disk */
    assert_int_equal(disk_grow(copy, 8388608, &err), 0);
    assert_true(disk_grow(copy, 4096, &err) < 0);
    assert_int_equal(stat(copy, &st), 0);
    assert_int_equal(st.st_size, 8388608);
}

static void test_punch(void **state)
{
    _cleanup_free_ char *page = calloc(1, 65536);
    char path[256];
    struct stat st;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/ram", (const char *)*state);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    for (int i = 0; i < 16; i++) {
        page[100] = i == 7 ? 'x' : 0;
        assert_int_equal(write(fd, page, 65536), 65536);
    }
    assert_int_equal(disk_punch_zeroes(fd, 16UL * 65536UL), 0);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 16L * 65536L);
    assert_true(st.st_blocks * 512 <= 2L * 65536L);
    assert_int_equal(pread(fd, page, 1, 7L * 65536L + 100), 1);
    assert_int_equal(page[0], 'x');
    (void)close(fd);
}

static void test_sweep(void **state)
{
    const char *root = *state;
    struct base_files f;
    char path[BASE_PATH_SIZE + 32];

    build(root, 128, &f);
    (void)snprintf(path, sizeof(path), "%s/bases/x-1-128.new", root);
    assert_int_equal(dir_make_all(AT_FDCWD, path, 0700), 0);
    put(path, "ram", "half");
    base_files_sweep(root);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(f.dir, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_build_and_check, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_evict, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_sweep, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_copy_ram, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_disk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_punch, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
