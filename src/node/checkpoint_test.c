#include "node/checkpoint.h"

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
#include <jansson.h>

#include "base/fd.h"
#include "io/loop.h"
#include "node/node_private.h"

#define CK        "ck0123456789abcdefgh"
#define PATH_SIZE 600

static const struct checkpoint_info info = {
    .id = CK,
    .sandbox_id = "sb0123456789abcdefgh",
    .template_name = "base",
    .template_version = "tm0123456789abcdefgh",
    .user = "user",
    .vcpus = 2,
    .memory_mib = 512,
    .disk_mib = 4096,
    .memory = true,
    .is_local = true,
    .created_at_ms = 1234567,
    .paused_total_ms = 89,
    .identity_epoch = 3,
};

struct fixture {
    struct node node;
    struct node_parts parts;
    char root[64];
};

static void path_of(const struct fixture *f, const char *name, char out[PATH_SIZE])
{
    (void)snprintf(out, PATH_SIZE, "%s/checkpoints/%s", f->root, name);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    char path[PATH_SIZE];

    if (f == NULL) {
        return -1;
    }
    (void)snprintf(f->root, sizeof(f->root), "/tmp/checkpoint-XXXXXX");
    if (mkdtemp(f->root) == NULL) {
        return -1;
    }
    f->node.parts = &f->parts;
    f->node.loop = loop_new(1);
    (void)snprintf(f->parts.volume, sizeof(f->parts.volume), "%s", f->root);
    path_of(f, "", path);
    *state = f;
    return f->node.loop == NULL || dir_make_all(AT_FDCWD, path, 0700) < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    int r;

    loop_finish_work(f->node.loop);
    checkpoint_free_all(&f->node);
    loop_free(f->node.loop);
    r = dir_remove_tree(AT_FDCWD, f->root);
    free(f);
    return r;
}

static void make(struct fixture *f)
{
    struct checkpoint_info made = info;
    struct error err = {0};
    json_t *env = json_pack("{s:s}", "A", "1");
    char path[PATH_SIZE];

    path_of(f, CK ".new/snapshot", path);
    assert_int_equal(dir_make_all(AT_FDCWD, path, 0700), 0);
    path_of(f, CK ".new/snapshot/memory", path);
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_of_str("pages"), 0600, true), 0);
    path_of(f, CK ".new", path);
    if (checkpoint_commit(&made, path, env, &err) < 0) {
        fail_msg("%s", err.message);
    }
    json_decref(env);
    assert_true(made.size_bytes > 0);
}

static void test_is_found_again(void **state)
{
    struct fixture *f = *state;
    struct checkpoint *ck = NULL;
    struct error err = {0};
    char path[PATH_SIZE];
    json_t *env;

    make(f);
    path_of(f, "ck0123456789abcdefgj.new", path);
    assert_int_equal(mkdir(path, 0700), 0);
    path_of(f, "ck0123456789abcdefgk.old", path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(checkpoint_load_all(&f->node), 0);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(checkpoint_use(&f->node, CK, &ck, NULL), 0);
    assert_int_equal(ck->info.paused_total_ms, 89);
    assert_int_equal(ck->info.identity_epoch, 3);
    assert_int_equal(ck->info.memory_mib, 512);
    assert_string_equal(ck->info.user, "user");
    assert_true(ck->info.memory);
    assert_true(ck->info.is_local && !checkpoint_is_stored(ck));
    env = checkpoint_load_env(ck);
    assert_string_equal(json_string_value(json_object_get(env, "A")), "1");
    json_decref(env);
    checkpoint_release(ck);
    assert_true(checkpoint_use(&f->node, "ck0123456789abcdefgj", &ck, &err) < 0);
    assert_int_equal(err.code, ERROR_NOT_FOUND);
}

/* No byte of the record may change unseen. */
static void test_a_damaged_record_is_known(void **state)
{
    struct fixture *f = *state;
    _cleanup_close_ int fd = -1;
    char path[PATH_SIZE];
    struct stat st;

    make(f);
    path_of(f, CK "/checkpoint.json", path);
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(fstat(fd, &st), 0);
    for (off_t at = 0; at < st.st_size; at++) {
        struct checkpoint *ck = NULL;
        uint8_t byte;
        uint8_t other;

        assert_int_equal(pread(fd, &byte, 1, at), 1);
        if (byte == ' ' || byte == '\n') {
            continue; /* no content */
        }
        other = byte ^ 0x02;
        assert_int_equal(pwrite(fd, &other, 1, at), 1);
        assert_int_equal(checkpoint_load_all(&f->node), 0);
        if (checkpoint_use(&f->node, CK, &ck, NULL) >= 0) {
            fail_msg("byte %lld was flipped and taken", (long long)at);
        }
        checkpoint_free_all(&f->node);
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
}

struct answer {
    unsigned int calls;
    enum error_code code;
    struct loop *loop;
};

static void on_answer(void *arg, const struct checkpoint *ck, const struct error *err)
{
    struct answer *answer = arg;

    (void)ck;
    answer->calls++;
    answer->code = err != NULL ? err->code : ERROR_NONE;
}

/* What is being made from it keeps it. */
static void test_is_removed_when_nobody_uses_it(void **state)
{
    struct fixture *f = *state;
    struct answer answer = {0};
    struct checkpoint *ck = NULL;
    struct error err = {0};
    char path[PATH_SIZE];

    make(f);
    path_of(f, CK, path);
    assert_int_equal(checkpoint_load_all(&f->node), 0);
    assert_int_equal(checkpoint_use(&f->node, CK, &ck, NULL), 0);
    assert_int_equal(checkpoint_remove(&f->node, CK, on_answer, &answer), 0);
    loop_finish_work(f->node.loop);
    assert_int_equal(answer.calls, 0);
    assert_int_equal(access(path, F_OK), 0);
    assert_true(checkpoint_use(&f->node, CK, &ck, &err) < 0);
    assert_int_equal(err.code, ERROR_NOT_FOUND);
    checkpoint_release(ck);
    loop_finish_work(f->node.loop);
    assert_int_equal(answer.calls, 1);
    assert_int_equal(answer.code, ERROR_NONE);
    assert_int_equal(access(path, F_OK), -1);
    assert_null(checkpoint_find(&f->node, CK));
    assert_int_equal(checkpoint_remove(&f->node, CK, on_answer, &answer), 0);
    assert_int_equal(answer.calls, 2);
}

static void test_one_that_failed_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct answer made = {0};
    struct answer gone = {0};
    struct answer left = {0};
    struct checkpoint *ck;
    struct error err = {0};
    char path[PATH_SIZE];

    assert_int_equal(checkpoint_load_all(&f->node), 0);
    ck = checkpoint_new(&f->node, CK);
    path_of(f, CK ".new", path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(checkpoint_wait(ck, on_answer, &made), 0);
    assert_int_equal(checkpoint_wait(ck, on_answer, &left), 0);
    checkpoint_cancel_waits(&f->node, &left);
    assert_int_equal(checkpoint_remove(&f->node, CK, on_answer, &gone), 0);
    assert_int_equal(gone.calls, 0);
    (void)error_set_code(&err, ERROR_STORAGE_FULL, NULL, "full");
    checkpoint_fail(ck, &err);
    loop_finish_work(f->node.loop);
    assert_int_equal(made.calls, 1);
    assert_int_equal(made.code, ERROR_STORAGE_FULL);
    assert_int_equal(gone.calls, 1);
    assert_int_equal(gone.code, ERROR_NONE);
    assert_int_equal(left.calls, 0);
    assert_int_equal(access(path, F_OK), -1);
    assert_null(checkpoint_find(&f->node, CK));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_is_found_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_damaged_record_is_known, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_is_removed_when_nobody_uses_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_one_that_failed_leaves_nothing, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
