/* Snapshots into a store and back: what is shared is stored once, what is damaged is refused, what
 * is referred to stays. The store is a directory. */
#include "node/object_work.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <sys/stat.h>

#include <cmocka.h>

#include "base/fd.h"
#include "node/ram_layer.h"

#define OWNER   "sb000000000000000000"
#define OTHER   "sb111111111111111111"
#define DISK    (8U * 1024U * 1024U)
#define RAM     (4U * 1024U * 1024U)
#define FD_BASE 64

struct rig {
    char dir[64];
    struct object_place place;
    int template_fd;
    int disk_fd;
    int ram_fd;
    int memory_fd;
    char base[OBJECT_SUM_TEXT];
    char manifest[OBJECT_SUM_TEXT];
};

/* ---- files ---- */

static void path_in(const struct rig *rig, const char *name, char out[160])
{
    (void)snprintf(out, 160, "%s/%s", rig->dir, name);
}

static int open_in(const struct rig *rig, const char *name, int flags)
{
    char path[160];
    int fd;
    int high;

    path_in(rig, name, path);
    fd = open(path, flags | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    high = fcntl(fd, F_DUPFD_CLOEXEC, FD_BASE);
    assert_true(high >= 0);
    (void)close(fd);
    return high;
}

static void write_noise(int fd, off_t at, size_t n, unsigned int seed)
{
    _cleanup_free_ uint8_t *bytes = malloc(n);

    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1103515245U + 12345U;
        bytes[i] = (uint8_t)(seed >> 16U);
    }
    assert_int_equal(fd_pwrite_all(fd, span_make(bytes, n), at), 0);
}

static void make_memory(struct rig *rig, unsigned int seed)
{
    const struct ram_layer_place place = {.ram_bytes = RAM};
    struct ram_layer_writer *w = ram_layer_writer_new(rig->memory_fd, &place);
    uint8_t page[2 * RAM_PAGE_BYTES];
    struct ram_layer_head head;

    assert_non_null(w);
    memset(page, (int)seed, sizeof(page));
    assert_int_equal(ram_layer_put(w, 3, 2, page), 0);
    assert_int_equal(ram_layer_put(w, 100, 7, NULL), 0);
    assert_int_equal(ram_layer_put(w, 900, 1, page), 0);
    assert_int_equal(ram_layer_finish(w, &head), 0);
    ram_layer_writer_free(w);
}

static int set_up(void **state)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    char path[160];

    assert_non_null(rig);
    (void)snprintf(rig->dir, sizeof(rig->dir), "/tmp/object-work-XXXXXX");
    assert_non_null(mkdtemp(rig->dir));
    path_in(rig, "store", path);
    assert_int_equal(mkdir(path, 0700), 0);
    rig->place.dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    rig->template_fd = open_in(rig, "template", O_RDWR | O_CREAT);
    write_noise(rig->template_fd, 0, 3U << 20U, 1);
    assert_int_equal(ftruncate(rig->template_fd, DISK / 2), 0);
    rig->disk_fd = open_in(rig, "disk", O_RDWR | O_CREAT);
    write_noise(rig->disk_fd, 0, 3U << 20U, 1);
    assert_int_equal(ftruncate(rig->disk_fd, DISK), 0); /* grown */
    write_noise(rig->disk_fd, 40960, 5000, 2);
    write_noise(rig->disk_fd, 7 << 20, 4096, 3);
    rig->ram_fd = open_in(rig, "ram", O_RDWR | O_CREAT);
    assert_int_equal(ftruncate(rig->ram_fd, RAM), 0);
    write_noise(rig->ram_fd, 1 << 20, 1500000, 4);
    rig->memory_fd = open_in(rig, "memory", O_RDWR | O_CREAT);
    make_memory(rig, 5);
    *state = rig;
    return 0;
}

static int tear_down(void **state)
{
    struct rig *rig = *state;

    (void)close(rig->template_fd);
    (void)close(rig->disk_fd);
    (void)close(rig->ram_fd);
    (void)close(rig->memory_fd);
    (void)close(rig->place.dir_fd);
    (void)dir_remove_tree(AT_FDCWD, rig->dir);
    free(rig);
    return 0;
}

/* ---- jobs ---- */

static int run(const struct rig *rig,
               int (*fn)(struct object_work *w, json_t *result, struct error *err),
               json_t *request,
               json_t **ret_result,
               struct error *err)
{
    struct object_work w = {.place = &rig->place, .request = request};
    json_t *result = json_object();
    int r;

    w.store = object_store_open(&rig->place, err);
    assert_non_null(w.store);
    r = fn(&w, result, err);
    object_store_close(w.store);
    json_decref(request);
    if (ret_result != NULL && r == 0) {
        *ret_result = result;
    } else {
        json_decref(result);
    }
    return r;
}

static json_int_t number(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* Bytes that were new to the store. */
static json_int_t put(struct rig *rig, const char *owner)
{
    struct error err = {0};
    json_t *result = NULL;
    json_int_t fresh;
    json_t *request = json_pack(
        "{s:s, s:s, s:i, s:i, s:[{s:s, s:s, s:i}, {s:s, s:s, s:i}, {s:s, s:s, s:i}]}", "owner",
        owner, "base", rig->base, "ram_fd", rig->ram_fd, "template_fd", rig->template_fd, "files",
        "name", "disk.img", "kind", "disk", "fd", rig->disk_fd, "name", "memory", "kind", "layer",
        "fd", rig->memory_fd, "name", "sessions/se.json", "kind", "file", "fd", rig->memory_fd);

    assert_non_null(request);
    if (run(rig, object_work_put, request, &result, &err) < 0) {
        fail_msg("put: %s", err.message);
    }
    (void)snprintf(rig->base, sizeof(rig->base), "%s",
                   json_string_value(json_object_get(result, "base")));
    (void)snprintf(rig->manifest, sizeof(rig->manifest), "%s",
                   json_string_value(json_object_get(result, "manifest")));
    fresh = number(result, "new_bytes");
    json_decref(result);
    return fresh;
}

static int
get(const struct rig *rig, const char *owner, const char *name, bool has_base, struct error *err)
{
    char path[160];
    char disk[200];
    int dir_fd;
    int fd;
    int r;

    path_in(rig, name, path);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(disk, sizeof(disk), "%s/disk.img", name);
    fd = open_in(rig, disk, O_RDWR | O_CREAT);
    write_noise(fd, 0, 3U << 20U, 1); /* the template's */
    (void)close(fd);
    dir_fd = open_in(rig, name, O_RDONLY | O_DIRECTORY);
    r = run(rig, object_work_get,
            json_pack("{s:s, s:s, s:i, s:[s]}", "owner", owner, "manifest", rig->manifest, "dir_fd",
                      dir_fd, "have", has_base ? rig->base : ""),
            NULL, err);
    (void)close(dir_fd);
    return r;
}

static void check_same(const struct rig *rig, const char *a, const char *b)
{
    _cleanup_buf_ struct buf one = buf_make(0);
    _cleanup_buf_ struct buf two = buf_make(0);
    char path[160];

    path_in(rig, a, path);
    assert_int_equal(file_read(AT_FDCWD, path, DISK, &one), 0);
    path_in(rig, b, path);
    assert_int_equal(file_read(AT_FDCWD, path, DISK, &two), 0);
    assert_true(span_equals(buf_span(&one), buf_span(&two)));
}

static json_t *sweep(const struct rig *rig, int keep_seconds)
{
    struct error err = {0};
    json_t *result = NULL;

    if (run(rig, object_work_sweep, json_pack("{s:i}", "keep_seconds", keep_seconds), &result,
            &err) < 0) {
        fail_msg("sweep: %s", err.message);
    }
    return result;
}

/* The path of some chunk of the store; the n-th that is found. */
static int find_chunk(void *arg, const struct object_entry *entry)
{
    char(*key)[OBJECT_KEY_SIZE] = arg;

    (void)snprintf(*key, sizeof(*key), "%s", entry->key);
    return 0;
}

static void last_key(const struct rig *rig, const char *prefix, char out[OBJECT_KEY_SIZE])
{
    struct error err = {0};
    struct object_store *store = object_store_open(&rig->place, &err);

    out[0] = '\0';
    assert_int_equal(object_store_list(store, prefix, find_chunk, out, &err), 0);
    object_store_close(store);
    assert_true(out[0] != '\0');
}

/* ---- tests ---- */

static void test_round(void **state)
{
    struct rig *rig = *state;
    struct error err = {0};
    struct stat a;
    struct stat b;
    char path[160];

    assert_true(put(rig, OWNER) > 12000);
    if (get(rig, OWNER, "out", false, &err) < 0) {
        fail_msg("get: %s", err.message);
    }
    check_same(rig, "disk", "out/disk.img");
    check_same(rig, "memory", "out/memory");
    check_same(rig, "memory", "out/sessions/se.json");
    check_same(rig, "ram", "out/ram");
    /* The layer of pages is bound to the time of the image. */
    path_in(rig, "ram", path);
    assert_int_equal(stat(path, &a), 0);
    path_in(rig, "out/ram", path);
    assert_int_equal(stat(path, &b), 0);
    assert_int_equal(a.st_mtim.tv_sec, b.st_mtim.tv_sec);
    assert_int_equal(a.st_mtim.tv_nsec, b.st_mtim.tv_nsec);
    assert_int_equal(get(rig, OWNER, "again", true, &err), 0);
    path_in(rig, "again/ram", path);
    assert_true(access(path, F_OK) < 0);
}

static void test_shared(void **state)
{
    struct rig *rig = *state;
    json_int_t first = put(rig, OWNER);
    char before[OBJECT_SUM_TEXT];

    (void)snprintf(before, sizeof(before), "%s", rig->manifest);
    assert_true(first > 12000);
    assert_true(put(rig, OTHER) < 4096); /* a manifest, and nothing else */
    assert_true(put(rig, OWNER) < 4096);
    assert_string_equal(before, rig->manifest); /* the same content has the same name */
    write_noise(rig->disk_fd, 6 << 20, 4096, 9);
    assert_true(put(rig, OWNER) < 12000); /* one block and a manifest */
    assert_string_not_equal(before, rig->manifest);
}

static void test_foreign(void **state)
{
    struct rig *rig = *state;
    struct error err = {0};

    (void)put(rig, OWNER);
    assert_true(get(rig, OTHER, "out", false, &err) < 0);
    assert_int_equal(err.code, ERROR_NOT_FOUND);
    rig->manifest[0] = rig->manifest[0] == '0' ? '1' : '0';
    assert_true(get(rig, OWNER, "out2", false, &err) < 0);
    assert_int_equal(err.code, ERROR_NOT_FOUND);
}

static void damage(const struct rig *rig, const char *key, const char *how)
{
    int fd = openat(rig->place.dir_fd, key, O_RDWR | O_CLOEXEC);
    uint8_t byte;
    struct stat st;

    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    if (strcmp(how, "flipped") == 0) {
        assert_int_equal(pread(fd, &byte, 1, st.st_size / 2), 1);
        byte ^= 4U;
        assert_int_equal(pwrite(fd, &byte, 1, st.st_size / 2), 1);
    } else if (strcmp(how, "cut") == 0) {
        assert_int_equal(ftruncate(fd, st.st_size - 1), 0);
    } else {
        assert_int_equal(unlinkat(rig->place.dir_fd, key, 0), 0);
    }
    (void)close(fd);
}

static void test_damaged(void **state)
{
    static const char *const ways[] = {"flipped", "cut", "missing"};
    static const char *const what[] = {"chunks/", "bases/", "manifests/"};
    struct rig *rig = *state;
    char key[OBJECT_KEY_SIZE];
    char name[32];

    for (unsigned int i = 0; i < 9; i++) {
        struct error err = {0};

        assert_int_equal(dir_remove_tree(rig->place.dir_fd, "chunks"), 0);
        assert_int_equal(dir_remove_tree(rig->place.dir_fd, "bases"), 0);
        rig->base[0] = '\0';
        (void)put(rig, OWNER);
        last_key(rig, what[i / 3], key);
        damage(rig, key, ways[i % 3]);
        (void)snprintf(name, sizeof(name), "out%u", i);
        assert_true(get(rig, OWNER, name, false, &err) < 0);
        if (i / 3 == 0 || i % 3 < 2) {
            assert_int_equal(err.code, ERROR_INTERNAL);
            assert_non_null(strstr(err.message, "damaged"));
        } else {
            assert_int_equal(err.code, ERROR_NOT_FOUND);
        }
    }
}

static void test_sweep(void **state)
{
    struct rig *rig = *state;
    struct error err = {0};
    json_t *result;
    json_int_t chunks;

    (void)put(rig, OTHER);
    (void)put(rig, OWNER);
    result = sweep(rig, 0);
    assert_int_equal(number(result, "removed"), 0);
    assert_int_equal(number(result, "snapshots"), 2);
    chunks = number(result, "chunks");
    json_decref(result);
    assert_int_equal(
        run(rig, object_work_forget, json_pack("{s:[s]}", "owners", OTHER), NULL, &err), 0);
    result = sweep(rig, 0);
    assert_int_equal(number(result, "removed"), 0); /* the other one has the same */
    json_decref(result);
    assert_int_equal(get(rig, OWNER, "out", false, &err), 0);
    assert_int_equal(
        run(rig, object_work_forget, json_pack("{s:[s]}", "owners", OWNER), NULL, &err), 0);
    result = sweep(rig, 3600);
    assert_int_equal(number(result, "removed"), 0); /* too young */
    json_decref(result);
    result = sweep(rig, 0);
    assert_int_equal(number(result, "removed"), chunks + 1); /* and the base */
    assert_int_equal(number(result, "chunks"), 0);
    json_decref(result);
}

/* What was being written when its process was killed. */
static void test_sweep_left_over(void **state)
{
    static const char *const names[] = {"manifests/.new-0123", "bases/.new-0123",
                                        "chunks/00/.new-0123"};
    struct rig *rig = *state;
    struct error err = {0};
    json_t *result;

    (void)put(rig, OWNER);
    assert_int_equal(dir_make_all(rig->place.dir_fd, "chunks/00", 0700), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(
            file_write_atomic(rig->place.dir_fd, names[i], span_of_str("half"), 0600, false), 0);
    }
    result = sweep(rig, 3600);
    assert_int_equal(number(result, "removed"), 0); /* it may be under way */
    json_decref(result);
    result = sweep(rig, 0);
    assert_int_equal(number(result, "removed"), 3);
    json_decref(result);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_true(faccessat(rig->place.dir_fd, names[i], F_OK, 0) < 0);
    }
    assert_int_equal(get(rig, OWNER, "out", false, &err), 0);
}

/* With a manifest that says nothing, nobody knows what is in use. */
static void test_sweep_damaged(void **state)
{
    struct rig *rig = *state;
    struct error err = {0};
    char key[OBJECT_KEY_SIZE];
    char chunk[OBJECT_KEY_SIZE];

    (void)put(rig, OWNER);
    last_key(rig, "chunks/", chunk);
    last_key(rig, "manifests/", key);
    damage(rig, key, "flipped");
    assert_true(run(rig, object_work_sweep, json_pack("{s:i}", "keep_seconds", 0), NULL, &err) < 0);
    assert_non_null(strstr(err.message, "damaged"));
    assert_int_equal(faccessat(rig->place.dir_fd, chunk, F_OK, 0), 0);
}

/* A store that has lost a part of what it had says nothing of the rest. */
static void test_sweep_lost(void **state)
{
    struct rig *rig = *state;
    struct error err = {0};
    char chunk[OBJECT_KEY_SIZE];
    char base[OBJECT_KEY_SIZE];

    (void)put(rig, OWNER);
    last_key(rig, "chunks/", chunk);
    last_key(rig, "bases/", base);
    assert_int_equal(renameat(rig->place.dir_fd, "manifests", rig->place.dir_fd, "away"), 0);
    assert_true(run(rig, object_work_sweep, json_pack("{s:i}", "keep_seconds", 0), NULL, &err) < 0);
    assert_int_equal(faccessat(rig->place.dir_fd, base, F_OK, 0), 0);
    assert_int_equal(renameat(rig->place.dir_fd, "away", rig->place.dir_fd, "manifests"), 0);
    json_decref(sweep(rig, 0));
    assert_int_equal(renameat(rig->place.dir_fd, base, rig->place.dir_fd, "away"), 0);
    err = (struct error){0};
    assert_true(run(rig, object_work_sweep, json_pack("{s:i}", "keep_seconds", 0), NULL, &err) < 0);
    assert_non_null(strstr(err.message, "0 of 1 base images"));
    assert_int_equal(faccessat(rig->place.dir_fd, chunk, F_OK, 0), 0);
}

static void test_full(void **state)
{
    struct rig *rig = *state;
    struct error err = {0};
    json_t *request = json_pack("{s:s, s:i, s:i, s:[{s:s, s:s, s:i}]}", "owner", OWNER, "ram_fd",
                                rig->ram_fd, "template_fd", rig->template_fd, "files", "name",
                                "memory", "kind", "layer", "fd", rig->memory_fd);

    rig->place.reserve_bytes = INT64_MAX;
    assert_true(run(rig, object_work_put, request, NULL, &err) < 0);
    assert_int_equal(err.code, ERROR_STORAGE_FULL);
    assert_non_null(strstr(err.message, "stay free"));
}

/* Another try would not help, and the code says so. */
static void test_too_large(void **state)
{
    struct rig *rig = *state;
    struct error err = {0};
    json_t *request = json_pack("{s:s, s:i, s:i, s:[]}", "owner", OWNER, "ram_fd", rig->ram_fd,
                                "template_fd", rig->template_fd, "files");

    assert_non_null(request);
    for (unsigned int i = 0; i <= OBJECT_FILES_MAX; i++) {
        assert_int_equal(json_array_append_new(json_object_get(request, "files"),
                                               json_pack("{s:s, s:s, s:i}", "name", "memory",
                                                         "kind", "file", "fd", rig->memory_fd)),
                         0);
    }
    assert_true(run(rig, object_work_put, request, NULL, &err) < 0);
    assert_int_equal(err.code, ERROR_PAYLOAD_TOO_LARGE);
}

static void test_unreachable(void **state)
{
    struct rig *rig = *state;
    struct error err = {0};
    struct object_place place = {.dir_fd = -1,
                                 .endpoint = "http://127.0.0.1:1",
                                 .bucket = "b",
                                 .region = "us-east-1",
                                 .access_key = "a",
                                 .secret_key = "s",
                                 .attempts = 1};
    struct object_store *store = object_store_open(&place, &err);
    uint64_t bytes;

    (void)rig;
    assert_non_null(store);
    assert_true(object_store_has(store, "bases/x", &bytes, &err) < 0);
    assert_int_equal(err.code, ERROR_SERVICE_UNAVAILABLE);
    assert_null(strstr(err.message, "secret"));
    object_store_close(store);
}

static void test_place(void **state)
{
    static const char *const bad[] = {"relative",  "s3://",    "s3:///p", "s3://b/../c",
                                      "s3://b//c", "s3://b c", "http://x"};
    struct object_place place = {0};
    struct error err = {0};

    (void)state;
    assert_int_equal(object_place_parse("s3://bucket/a/b/", &place, &err), 0);
    assert_string_equal(place.bucket, "bucket");
    assert_string_equal(place.prefix, "a/b");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        place = (struct object_place){0};
        assert_true(object_place_parse(bad[i], &place, &err) < 0);
    }
    assert_int_equal(object_place_parse_keys(
                         &place, span_of_str("# x\naccess_key = AK\n secret_key=s/+K=\n"), &err),
                     0);
    assert_string_equal(place.secret_key, "s/+K=");
    place = (struct object_place){0};
    assert_true(object_place_parse_keys(&place, span_of_str("access_key = AK\n"), &err) < 0);
    assert_true(object_place_parse_keys(&place, span_of_str("hunter2"), &err) < 0);
    assert_null(strstr(err.message, "hunter2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_shared, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_foreign, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_damaged, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_sweep, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_sweep_left_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_sweep_damaged, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_sweep_lost, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_full, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_too_large, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_unreachable, set_up, tear_down),
        cmocka_unit_test(test_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
