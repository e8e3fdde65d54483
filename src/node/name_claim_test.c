/* Against directories that look like the kernel's: locks and marks of one directory, seen by the
 * installations of two settings files. */
#include "node/name_claim.h"

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
#include <sys/xattr.h>

#include <cmocka.h>

#include "base/fd.h"
#include "node/data_id.h"

struct host {
    char root[64];
    char first[96];  /* data directories */
    char second[96]; /* the same again, by a link */
    char third[96];
};

static void make(const char *root, const char *rest, char *out, size_t size)
{
    (void)snprintf(out, size, "%s/%s", root, rest);
    assert_int_equal(mkdir(out, 0755), 0);
}

static int set_up(void **state)
{
    struct host *h = calloc(1, sizeof(*h));

    assert_non_null(h);
    (void)snprintf(h->root, sizeof(h->root), "/tmp/name-claim-test-XXXXXX");
    assert_non_null(mkdtemp(h->root));
    make(h->root, "data1", h->first, sizeof(h->first));
    (void)snprintf(h->second, sizeof(h->second), "%s/data2", h->root);
    assert_int_equal(symlink(h->first, h->second), 0);
    make(h->root, "data3", h->third, sizeof(h->third));
    *state = h;
    return 0;
}

static int tear_down(void **state)
{
    struct host *h = *state;

    assert_int_equal(dir_remove_tree(AT_FDCWD, h->root), 0);
    free(h);
    return 0;
}

/* The control group of a name. */
static void open_group(const struct host *h, const char *name, struct cgroup *ret)
{
    *ret = (struct cgroup){.v2 = true, .count = 1};
    (void)snprintf(ret->parents[0], sizeof(ret->parents[0]), "%s/%s", h->root, name);
    assert_true(mkdir(ret->parents[0], 0700) == 0 || errno == EEXIST);
}

static void put_vm(const struct cgroup *cg, const char *procs)
{
    char path[CGROUP_PATH_SIZE + 32];

    (void)snprintf(path, sizeof(path), "%s/vm-7", cg->parents[0]);
    assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
    (void)snprintf(path, sizeof(path), "%s/vm-7/cgroup.procs", cg->parents[0]);
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_of_str(procs), 0644, false), 0);
}

static bool can_mark(const struct host *h)
{
    return setxattr(h->root, "trusted.space-test", "1", 1, 0) == 0;
}

static void test_a_lock_is_a_name(void **state)
{
    const struct host *h = *state;
    const struct name_claim one = {"spt", h->first, 1000, 100, NULL};
    const struct name_claim other = {"spt", h->third, 5000, 100, NULL};
    struct error err = {0};
    struct cgroup cg;
    int held = -1;
    int fd = -1;

    open_group(h, "spt", &cg);
    assert_int_equal(name_claim_take(&cg, &one, &held, &err), 0);
    assert_int_equal(name_claim_take(&cg, &other, &fd, &err), -EADDRINUSE);
    assert_int_equal(fd, -1);
    assert_non_null(strstr(err.message, "the name spt is taken by the installation in"));
    assert_non_null(strstr(err.message, "set another `installation`"));
    (void)close(held);
    assert_int_equal(name_claim_take(&cg, &other, &fd, &err), 0);
    (void)close(fd);
}

static void test_a_removed_group_is_made_again(void **state)
{
    const struct host *h = *state;
    const struct name_claim one = {"spt", h->first, 1000, 100, NULL};
    struct error err = {0};
    struct cgroup cg;
    int fd = -1;

    open_group(h, "spt", &cg);
    assert_int_equal(rmdir(cg.parents[0]), 0);
    assert_int_equal(name_claim_take(&cg, &one, &fd, &err), -ESTALE);
    open_group(h, "spt", &cg);
    assert_int_equal(name_claim_take(&cg, &one, &fd, &err), 0);
    (void)close(fd);
}

static void test_vms_hold_a_name_without_a_daemon(void **state)
{
    const struct host *h = *state;
    const struct name_claim one = {"spt", h->first, 1000, 100, NULL};
    const struct name_claim same = {"spt", h->second, 1000, 100, NULL};
    const struct name_claim other = {"spt", h->third, 5000, 100, NULL};
    struct error err = {0};
    struct cgroup cg;
    int fd = -1;

    if (!can_mark(h)) {
        skip();
    }
    open_group(h, "spt", &cg);
    assert_int_equal(name_claim_take(&cg, &one, &fd, &err), 0);
    assert_int_equal(name_claim_mark(&cg, &one, &err), 0);
    put_vm(&cg, "123\n");
    (void)close(TAKE_FD(fd));
    assert_int_equal(name_claim_take(&cg, &other, &fd, &err), -EADDRINUSE);
    assert_non_null(strstr(err.message, h->first));
    assert_int_equal(name_claim_take(&cg, &same, &fd, &err), 0);
    (void)close(TAKE_FD(fd));
    put_vm(&cg, ""); /* what nobody lives in is anybody's */
    assert_int_equal(name_claim_take(&cg, &other, &fd, &err), 0);
    (void)close(fd);
}

/* Two containers that share control groups: the path says nothing. */
static void test_the_same_path_elsewhere_is_another(void **state)
{
    const struct host *h = *state;
    char id[ID_SIZE];
    char elsewhere[ID_SIZE];
    const struct name_claim old = {"spt", h->first, 1000, 100, NULL};
    const struct name_claim one = {"spt", h->first, 1000, 100, id};
    const struct name_claim other = {"spt", h->first, 1000, 100, elsewhere};
    struct error err = {0};
    struct cgroup cg;
    int fd = -1;

    if (!can_mark(h)) {
        skip();
    }
    assert_int_equal(data_id_ensure(h->first, id, &err), 0);
    assert_int_equal(data_id_ensure(h->third, elsewhere, &err), 0);
    open_group(h, "spt", &cg);
    put_vm(&cg, "123\n");
    assert_int_equal(name_claim_mark(&cg, &old, &err), 0); /* an update: VMs outlive it */
    assert_int_equal(name_claim_take(&cg, &one, &fd, &err), 0);
    assert_int_equal(name_claim_mark(&cg, &one, &err), 0);
    (void)close(TAKE_FD(fd));
    assert_int_equal(name_claim_take(&cg, &other, &fd, &err), -EADDRINUSE);
    assert_non_null(strstr(err.message, "of another container, with the id"));
    assert_non_null(strstr(err.message, id));
    assert_int_equal(name_claim_take(&cg, &old, &fd, &err), -EADDRINUSE); /* none made yet */
    assert_int_equal(name_claim_take(&cg, &one, &fd, &err), 0);
    (void)close(fd);
}

static void test_an_id_is_made_once(void **state)
{
    const struct host *h = *state;
    char path[128];
    char id[ID_SIZE];
    char again[ID_SIZE];
    struct error err = {0};

    assert_int_equal(data_id_read(h->first, id, &err), 0);
    assert_string_equal(id, "");
    assert_int_equal(data_id_ensure(h->first, id, &err), 0);
    assert_true(id_is_valid(id, DATA_ID_KIND));
    assert_int_equal(data_id_ensure(h->second, again, &err), 0);
    assert_string_equal(again, id);
    (void)snprintf(path, sizeof(path), "%s/id", h->first);
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_of_str("half"), 0644, false), 0);
    assert_int_equal(data_id_ensure(h->first, again, &err), 0);
    assert_true(id_is_valid(again, DATA_ID_KIND));
    assert_string_not_equal(again, id);
    /* One that is there and cannot be read is not made anew. */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(data_id_read(h->first, again, &err), -EISDIR);
    assert_non_null(strstr(err.message, "cannot read"));
    assert_int_equal(data_id_ensure(h->first, again, &err), -EISDIR);
    assert_int_equal(rmdir(path), 0);
    (void)snprintf(path, sizeof(path), "%s/missing", h->root);
    assert_true(data_id_ensure(path, again, &err) < 0);
}

static void test_uids_do_not_meet(void **state)
{
    const struct host *h = *state;
    const struct name_claim one = {"first", h->first, 1000, 100, NULL};
    const struct name_claim good[] = {{"second", h->third, 1100, 50, NULL},
                                      {"second", h->third, 900, 100, NULL}};
    const struct name_claim bad[] = {{"second", h->third, 1099, 50, NULL},
                                     {"second", h->third, 900, 101, NULL},
                                     {"second", h->third, 1010, 10, NULL},
                                     {"second", h->third, 10, 5000, NULL}};
    struct error err = {0};
    struct cgroup first;
    struct cgroup second;
    int fd = -1;

    if (!can_mark(h)) {
        skip();
    }
    open_group(h, "first", &first);
    open_group(h, "second", &second);
    assert_int_equal(name_claim_take(&first, &one, &fd, &err), 0);
    assert_int_equal(name_claim_mark(&first, &one, &err), 0);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(name_claim_mark(&second, &good[i], &err), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(name_claim_mark(&second, &bad[i], &err), -EADDRINUSE);
        assert_non_null(strstr(err.message, "the VMM uids of second"));
        assert_non_null(strstr(err.message, "the installation first, 1000 to 1099"));
    }
    (void)close(fd);
    assert_int_equal(name_claim_mark(&second, &bad[0], &err), 0); /* no daemon and no VM */
    put_vm(&first, "123\n");
    assert_int_equal(name_claim_mark(&second, &bad[0], &err), -EADDRINUSE);
}

static void test_a_mark_of_somebody_else_is_none(void **state)
{
    const struct host *h = *state;
    const struct name_claim one = {"first", h->first, 1000, 100, NULL};
    static const char *const marks[] = {"", "1", "1 2", "x 2 /a", "1000 99999999999 /a", "-1 5 /a"};
    struct error err = {0};
    struct cgroup cg;
    struct cgroup other;

    if (!can_mark(h)) {
        skip();
    }
    open_group(h, "first", &cg);
    open_group(h, "other", &other);
    put_vm(&other, "123\n");
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
        assert_int_equal(setxattr(other.parents[0], "trusted.space", marks[i], strlen(marks[i]), 0),
                         0);
        assert_int_equal(name_claim_mark(&cg, &one, &err), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_lock_is_a_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_removed_group_is_made_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_vms_hold_a_name_without_a_daemon, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_same_path_elsewhere_is_another, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_an_id_is_made_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_uids_do_not_meet, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_mark_of_somebody_else_is_none, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
