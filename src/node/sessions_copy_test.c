#include "node/sessions_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/id.h"
#include "node/json_field.h"

#define PATH_SIZE 200
#define RUNNING   "se0123456789abcdefgh"
#define ENDED     "se0123456789abcdefgj"

static const char *const owner = "sbzzzzzzzz9abcdefghj";

struct fixture {
    char root[64];
    char from[PATH_SIZE];
    char to[PATH_SIZE];
};

static void put(const struct fixture *f, const char *name, const char *text)
{
    char path[PATH_SIZE + 64];

    (void)snprintf(path, sizeof(path), "%s/%s", f->from, name);
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_of_str(text), 0600, false), 0);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    if (f == NULL) {
        return -1;
    }
    (void)snprintf(f->root, sizeof(f->root), "/tmp/sessions-copy-XXXXXX");
    if (mkdtemp(f->root) == NULL) {
        free(f);
        return -1;
    }
    (void)snprintf(f->from, sizeof(f->from), "%s/from", f->root);
    (void)snprintf(f->to, sizeof(f->to), "%s/to", f->root);
    *state = f;
    return dir_make_all(AT_FDCWD, f->from, 0700);
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    int r = dir_remove_tree(AT_FDCWD, f->root);

    free(f);
    return r;
}

static void fill(const struct fixture *f)
{
    put(f, RUNNING ".json",
        "{\"state\": \"running\", \"id\": \"pr0123456789abcdefgh\", "
        "\"session_id\": \"" RUNNING "\", \"channel\": 7}");
    put(f, RUNNING ".out", "output");
    put(f, RUNNING ".in", "");
    put(f, ENDED ".json", "{\"state\": \"exited\", \"id\": \"pr0123456789abcdefgj\"}");
    put(f, ENDED ".out", "old");
    put(f, "se0123456789abcdefgk.json", "no record");
    put(f, "expired", "x");
}

static unsigned int count_files(const char *path, char ret_record[64])
{
    _cleanup_closedir_ DIR *dir = opendir(path);
    const struct dirent *entry;
    unsigned int n = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        n += entry->d_name[0] != '.';
        if (strstr(entry->d_name, ".json") != NULL) {
            (void)snprintf(ret_record, 64, "%.60s", entry->d_name);
        }
    }
    return n;
}

static void check_content(const struct fixture *f, const char *session)
{
    _cleanup_buf_ struct buf text = buf_make(100);
    char path[PATH_SIZE + 64];

    (void)snprintf(path, sizeof(path), "%s/%.20s.out", f->to, session);
    assert_int_equal(file_read(AT_FDCWD, path, 100, &text), 0);
    assert_string_equal(buf_str(&text), "output");
}

static void test_keeps_what_runs(void **state)
{
    const struct fixture *f = *state;
    char record[64] = "";

    fill(f);
    assert_int_equal(sessions_copy(f->from, f->to, NULL, NULL), 0);
    assert_int_equal(count_files(f->to, record), 3);
    assert_string_equal(record, RUNNING ".json");
    check_content(f, record);
}

static void test_gives_new_ids(void **state)
{
    const struct fixture *f = *state;
    char record[64] = "";
    char path[PATH_SIZE + 64];
    char id[ID_SIZE];
    unsigned int channel = 0;
    json_t *root;

    fill(f);
    assert_int_equal(sessions_copy(f->from, f->to, owner, NULL), 0);
    assert_int_equal(count_files(f->to, record), 3);
    assert_memory_equal(record, "sezzzzzzzz", 10);
    check_content(f, record);
    (void)snprintf(path, sizeof(path), "%s/%s", f->to, record);
    root = json_file_read(AT_FDCWD, path, 4096);
    assert_non_null(root);
    assert_true(json_field_text(root, "session_id", id, sizeof(id)));
    assert_memory_equal(id, record, ID_LENGTH);
    assert_true(json_field_text(root, "id", id, sizeof(id)));
    assert_true(id_is_valid(id, "pr"));
    assert_memory_equal(id, "przzzzzzzz", 10);
    assert_string_not_equal(&id[10], &record[10]);
    assert_true(json_field_uint(root, "channel", 100, &channel));
    assert_int_equal(channel, 7);
    json_decref(root);
}

static void test_nothing_is_nothing(void **state)
{
    const struct fixture *f = *state;
    char record[64] = "";
    char none[PATH_SIZE];
    struct error err = {0};

    (void)snprintf(none, sizeof(none), "%s/none", f->root);
    assert_int_equal(sessions_copy(none, f->to, owner, NULL), 0);
    assert_int_equal(count_files(f->to, record), 0);
    assert_int_equal(sessions_copy(f->from, f->to, owner, &err), -EEXIST);
    assert_int_equal(err.code, ERROR_INTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_keeps_what_runs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_gives_new_ids, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nothing_is_nothing, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
