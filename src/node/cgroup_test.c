/* Against directories that look like the kernel's: which files are written, with what. */
#include "node/cgroup.h"

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

#include "base/buf.h"
#include "base/fd.h"

static int set_up(void **state)
{
    char *root = strdup("/tmp/cgroup-test-XXXXXX");

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

static void put(const char *root, const char *path, const char *text)
{
    char full[256];
    const char *slash = strrchr(path, '/');

    if (slash != NULL) {
        (void)snprintf(full, sizeof(full), "%s/%.*s", root, (int)(slash - path), path);
        assert_int_equal(dir_make_all(AT_FDCWD, full, 0755), 0);
    }
    (void)snprintf(full, sizeof(full), "%s/%s", root, path);
    assert_int_equal(file_write_atomic(AT_FDCWD, full, span_of_str(text), 0644, false), 0);
}

static void expect(const char *root, const char *path, const char *want)
{
    _cleanup_buf_ struct buf text = buf_make(4096);
    char full[256];

    (void)snprintf(full, sizeof(full), "%s/%s", root, path);
    assert_int_equal(file_read(AT_FDCWD, full, 4096, &text), 0);
    assert_string_equal(buf_str(&text), want);
}

static const struct cgroup_limits limits = {.memory_bytes = 1048576, .vcpus = 2, .pids = 100};

static uint64_t keep_hundred(uint64_t limit)
{
    (void)limit;
    return 100;
}

/* 730 bytes of 1000, and what the kernel can take back. */
static void check_memory(const char *root,
                         const struct cgroup *cg,
                         const char *limit,
                         const char *usage,
                         const char *stat)
{
    const char *top = cg->v2 ? "spt" : "memory/spt";
    struct cgroup_memory memory;
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", top, limit);
    put(root, path, "1000\n");
    (void)snprintf(path, sizeof(path), "%s/memory.stat", top);
    put(root, path, stat);
    (void)snprintf(path, sizeof(path), "%s/%s", top, usage);
    put(root, path, "900\n");
    assert_false(cgroup_is_memory_near(cg, keep_hundred));
    put(root, path, "901\n");
    assert_true(cgroup_is_memory_near(cg, keep_hundred));
    assert_int_equal(cgroup_read_memory(cg, CGROUP_PARENT, &memory), 0);
    assert_int_equal(memory.fixed_bytes, 730);
    assert_int_equal(memory.limit_bytes, 1000);
    assert_true(cgroup_read_memory(cg, 6, &memory) < 0);
}

static void test_v2(void **state)
{
    const char *root = *state;
    struct cgroup cg;
    int fds[CGROUP_TREES_MAX];

    put(root, "cgroup.controllers", "cpu memory pids\n");
    put(root, "cgroup.subtree_control", "");
    put(root, "spt/cgroup.subtree_control", "");
    put(root, "spt/memory.max", "");
    put(root, "spt/vm-5/memory.max", "");
    put(root, "spt/vm-5/memory.swap.max", "");
    put(root, "spt/vm-5/pids.max", "");
    put(root, "spt/vm-5/cpu.max", "");
    put(root, "spt/vm-5/cpu.weight", "");
    put(root, "spt/vm-5/memory.oom.group", "");
    put(root, "spt/vm-5/cgroup.procs", "");
    assert_int_equal(cgroup_open(root, "spt", &cg, NULL), 0);
    assert_true(cg.v2);
    expect(root, "cgroup.subtree_control", "+memory +cpu +pids");
    assert_int_equal(cgroup_limit_parent(&cg, 77, NULL), 0);
    expect(root, "spt/memory.max", "77");
    assert_int_equal(cgroup_make(&cg, 5, &limits, fds, NULL), 0);
    (void)close(fds[0]);
    expect(root, "spt/vm-5/memory.max", "1048576");
    expect(root, "spt/vm-5/cpu.max", "300000 100000");
    expect(root, "spt/vm-5/pids.max", "100");
    put(root, "spt/vm-5/memory.events", "low 0\nhigh 0\nmax 3\noom 1\noom_kill 0\n");
    assert_false(cgroup_was_out_of_memory(&cg, 5));
    put(root, "spt/vm-5/memory.events", "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n");
    assert_true(cgroup_was_out_of_memory(&cg, 5));
    assert_false(cgroup_was_out_of_memory(&cg, 6));
    check_memory(root, &cg, "memory.max", "memory.current", "anon 700\nfile 9\nshmem 30\n");
    put(root, "spt/memory.max", "max\n");
    assert_false(cgroup_is_memory_near(&cg, keep_hundred));
}

static void test_v2_without_controllers(void **state)
{
    const char *root = *state;
    struct cgroup cg;
    struct error err = {0};

    put(root, "cgroup.controllers", "");
    assert_true(cgroup_open(root, "spt", &cg, &err) < 0);
    assert_non_null(strstr(err.message, "memory, cpu and pids"));
}

static void count_slot(void *arg, unsigned int slot)
{
    unsigned int *sum = arg;

    *sum += slot;
}

static void test_v1(void **state)
{
    const char *root = *state;
    struct cgroup cg;
    struct error err = {0};
    int fds[CGROUP_TREES_MAX];
    unsigned int sum = 0;

    put(root, "memory/cgroup.procs", "");
    put(root, "cpu/cgroup.procs", "");
    assert_true(cgroup_open(root, "spt", &cg, &err) < 0);
    assert_non_null(strstr(err.message, "pids"));
    put(root, "pids/cgroup.procs", "");
    put(root, "memory/spt/memory.limit_in_bytes", "");
    put(root, "memory/spt/memory.memsw.limit_in_bytes", "");
    put(root, "memory/spt/vm-5/memory.limit_in_bytes", "");
    put(root, "memory/spt/vm-5/memory.memsw.limit_in_bytes", "");
    put(root, "memory/spt/vm-5/memory.swappiness", "6");
    put(root, "memory/spt/vm-5/cgroup.procs", "");
    put(root, "cpu/spt/vm-5/cpu.shares", "");
    put(root, "cpu/spt/vm-5/cpu.cfs_quota_us", "");
    put(root, "cpu/spt/vm-5/cgroup.procs", "");
    put(root, "pids/spt/vm-5/pids.max", "");
    put(root, "pids/spt/vm-5/cgroup.procs", "");
    assert_int_equal(cgroup_open(root, "spt", &cg, &err), 0);
    assert_false(cg.v2);
    assert_int_equal(cgroup_limit_parent(&cg, 77, &err), 0);
    expect(root, "memory/spt/memory.limit_in_bytes", "77");
    expect(root, "memory/spt/memory.memsw.limit_in_bytes", "77");
    assert_int_equal(cgroup_make(&cg, 5, &limits, fds, &err), 0);
    for (unsigned int i = 0; i < CGROUP_TREES_MAX; i++) {
        (void)close(fds[i]);
    }
    expect(root, "memory/spt/vm-5/memory.limit_in_bytes", "1048576");
    expect(root, "memory/spt/vm-5/memory.memsw.limit_in_bytes", "1048576");
    expect(root, "memory/spt/vm-5/memory.swappiness", "0");
    expect(root, "pids/spt/vm-5/pids.max", "100");
    expect(root, "cpu/spt/vm-5/cpu.cfs_quota_us", "300000");
    put(root, "memory/spt/vm-5/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
    assert_true(cgroup_was_out_of_memory(&cg, 5));
    check_memory(
        root, &cg, "memory.limit_in_bytes", "memory.usage_in_bytes",
        "rss 1\nshmem 2\ntotal_cache 8\ntotal_rss 700\ntotal_rss_huge 9\ntotal_shmem 30\n");
    put(root, "memory/spt/vm-x/cgroup.procs", "");
    put(root, "memory/spt/other/cgroup.procs", "");
    cgroup_each(&cg, count_slot, &sum);
    assert_int_equal(sum, 15); /* once per hierarchy */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_v2, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_v2_without_controllers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_v1, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
