/* What is taken for an object store, and what is not. */
#include "node/object_claim.h"

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

struct rig {
    char dir[64];
    int fd;
    struct object_claim claim;
    char id[OBJECT_CLAIM_ID_SIZE];
    struct error err;
};

static int set_up(void **state)
{
    struct rig *rig = calloc(1, sizeof(*rig));

    assert_non_null(rig);
    (void)snprintf(rig->dir, sizeof(rig->dir), "/tmp/object-claim-XXXXXX");
    assert_non_null(mkdtemp(rig->dir));
    rig->fd = open(rig->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_true(rig->fd >= 0);
    rig->claim = (struct object_claim){
        .path = rig->dir, .installation = "space", .id = "", .may_begin = true};
    *state = rig;
    return 0;
}

static int tear_down(void **state)
{
    struct rig *rig = *state;

    (void)close(rig->fd);
    (void)dir_remove_tree(AT_FDCWD, rig->dir);
    free(rig);
    return 0;
}

/* The code that it is refused with, or none. */
static enum error_code claim(struct rig *rig)
{
    int fd;

    rig->err = (struct error){0};
    fd = object_claim_open(rig->fd, &rig->claim, rig->id, &rig->err);
    if (fd >= 0) {
        (void)close(fd);
    }
    assert_int_equal(fd < 0, rig->err.code != ERROR_NONE);
    return rig->err.code;
}

static void write_in(const struct rig *rig, const char *name, const char *text)
{
    assert_int_equal(file_write_atomic(rig->fd, name, span_of_str(text), 0600, false), 0);
}

static bool has(const struct rig *rig, const char *name)
{
    return faccessat(rig->fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void test_begins_once(void **state)
{
    struct rig *rig = *state;
    char first[OBJECT_CLAIM_ID_SIZE];

    write_in(rig, OBJECT_CLAIM_NAME ".new", "{"); /* a first use that was killed */
    assert_int_equal(mkdirat(rig->fd, "lost+found", 0700), 0);
    assert_int_equal(claim(rig), ERROR_NONE);
    assert_int_equal(strlen(rig->id), OBJECT_CLAIM_ID_SIZE - 1);
    assert_true(has(rig, OBJECT_CLAIM_NAME) && !has(rig, OBJECT_CLAIM_NAME ".new"));
    memcpy(first, rig->id, sizeof(first));
    write_in(rig, "chunks", "");
    rig->claim.may_begin = false;
    assert_int_equal(claim(rig), ERROR_NONE);
    assert_string_equal(first, rig->id);
    rig->claim.id = first;
    assert_int_equal(claim(rig), ERROR_NONE);
}

static void test_other_content(void **state)
{
    struct rig *rig = *state;

    write_in(rig, "photo.jpg", "");
    assert_int_equal(claim(rig), ERROR_FAILED_PRECONDITION);
    assert_string_equal(rig->err.field, "object_store");
    assert_non_null(strstr(rig->err.message, "photo.jpg"));
    assert_false(has(rig, OBJECT_CLAIM_NAME));
}

/* Of a version that had no such file; what is fetched from it is asked for first, perhaps. */
static void test_an_older_store(void **state)
{
    struct rig *rig = *state;
    struct stat st;

    assert_int_equal(mkdirat(rig->fd, "manifests", 0700), 0);
    assert_int_equal(mkdirat(rig->fd, "chunks", 0700), 0);
    write_in(rig, "bases", ""); /* is not of it */
    assert_int_equal(claim(rig), ERROR_FAILED_PRECONDITION);
    assert_int_equal(unlinkat(rig->fd, "bases", 0), 0);
    if (geteuid() == 0) {
        assert_int_equal(fchownat(rig->fd, "chunks", 4711, 4711, 0), 0);
        assert_int_equal(claim(rig), ERROR_FAILED_PRECONDITION);
        assert_int_equal(fchownat(rig->fd, "chunks", 0, 0, 0), 0);
    }
    /* What somebody stored where a disk was not mounted. */
    assert_int_equal(fstat(rig->fd, &st), 0);
    rig->claim.home_device = st.st_dev;
    assert_int_equal(claim(rig), ERROR_FAILED_PRECONDITION);
    assert_false(has(rig, OBJECT_CLAIM_NAME));
    rig->claim.home_device = st.st_dev + 1;
    rig->claim.may_begin = false;
    assert_int_equal(claim(rig), ERROR_NONE);
    assert_true(has(rig, OBJECT_CLAIM_NAME) && has(rig, "manifests") && has(rig, "chunks"));
}

/* The empty place of a disk that is not mounted. */
static void test_not_mounted(void **state)
{
    struct rig *rig = *state;
    char first[OBJECT_CLAIM_ID_SIZE];

    rig->claim.may_begin = false; /* what is to be fetched is not there anyhow */
    assert_int_equal(claim(rig), ERROR_SERVICE_UNAVAILABLE);
    rig->claim.may_begin = true;
    assert_int_equal(claim(rig), ERROR_NONE);
    memcpy(first, rig->id, sizeof(first));
    rig->claim.id = first;
    assert_int_equal(unlinkat(rig->fd, OBJECT_CLAIM_NAME, 0), 0);
    assert_int_equal(claim(rig), ERROR_SERVICE_UNAVAILABLE);
    assert_non_null(strstr(rig->err.message, "mounted"));
    assert_false(has(rig, OBJECT_CLAIM_NAME));
}

static void test_another_store(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(claim(rig), ERROR_NONE);
    rig->claim.id = "00000000000000000000000000000000";
    assert_int_equal(claim(rig), ERROR_FAILED_PRECONDITION);
    rig->claim.id = "";
    rig->claim.installation = "other";
    assert_int_equal(claim(rig), ERROR_FAILED_PRECONDITION);
    assert_non_null(strstr(rig->err.message, "installation space"));
}

static void test_damaged(void **state)
{
    static const char *const bad[] = {
        "",
        "{",
        "{\"format\":2,\"id\":\"a\",\"installation\":\"space\"}",
        "{\"format\":1,\"id\":\"\",\"installation\":\"space\"}",
        "{\"format\":1,\"id\":\"000000000000000000000000000000000\",\"installation\":\"space\"}",
        "{\"format\":1,\"id\":\"a\"}",
    };
    struct rig *rig = *state;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        write_in(rig, OBJECT_CLAIM_NAME, bad[i]);
        assert_int_equal(claim(rig), ERROR_FAILED_PRECONDITION);
        assert_non_null(strstr(rig->err.message, "not of this program"));
    }
}

static void test_of_somebody_else(void **state)
{
    struct rig *rig = *state;

    if (geteuid() != 0) {
        skip();
    }
    assert_int_equal(chown(rig->dir, 12345, 12345), 0);
    assert_int_equal(claim(rig), ERROR_FAILED_PRECONDITION);
    assert_non_null(strstr(rig->err.message, "chown"));
    assert_false(has(rig, OBJECT_CLAIM_NAME));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_begins_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_content, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_an_older_store, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_not_mounted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_another_store, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_damaged, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_of_somebody_else, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
