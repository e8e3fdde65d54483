#include "node/base_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include <jansson.h>

#include "base/clock.h"
#include "base/fd.h"
#include "node/disk.h"
#include "node/json_field.h"

#define BASE_JSON_MAX  16384U
#define BASE_STATE_MAX (16U * 1024U * 1024U)
#define BASES_MAX      512U

struct base_entry {
    char name[64];
    int64_t used_ms;
};

int base_files_init(struct base_files *files,
                    const char *volume,
                    const struct base_key *key,
                    struct error *err)
{
    int n = snprintf(files->dir, sizeof(files->dir), "%s/bases/%s-%u-%u", volume,
                     key->template_info.version, key->vcpus, key->memory_mib);

    if (n < 0 || (size_t)n + 5 >= sizeof(files->dir)) {
        return error_set(err, ENAMETOOLONG, "data_dir is too long");
    }
    (void)snprintf(files->building, sizeof(files->building), "%.*s.new", n, files->dir);
    return 0;
}

static bool text_is(const json_t *object, const char *key, const char *want)
{
    char text[128];

    return json_field_text(object, key, text, sizeof(text)) && strcmp(text, want) == 0;
}

static bool environment_is(const json_t *root, const struct runtime_env *env)
{
    const json_t *e = json_object_get(root, "environment");
    uint64_t clock_khz;

    return text_is(e, "driver", env->driver) && text_is(e, "vmm_version", env->vmm_version) &&
           text_is(e, "accelerator", env->accelerator) && text_is(e, "cpu_model", env->cpu_model) &&
           text_is(e, "kernel", env->kernel) && text_is(e, "guest_id", env->guest_id) &&
           json_field_u64(e, "clock_khz", INT32_MAX, &clock_khz) &&
           runtime_same_clock(clock_khz, env->tsc_khz);
}

static bool file_has_size(const char *dir, const char *name, uint64_t size)
{
    char path[BASE_PATH_SIZE + 16];
    struct stat st;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == size;
}

bool base_files_check(struct base_files *files,
                      const struct base_key *key,
                      const struct runtime_env *env)
{
    char path[BASE_PATH_SIZE + 16];
    unsigned int format = 0;
    json_t *root;
    bool good;

    (void)snprintf(path, sizeof(path), "%s/base.json", files->dir);
    root = json_file_read(AT_FDCWD, path, BASE_JSON_MAX);
    good = json_field_uint(root, "format", BASE_FORMAT, &format) && format == BASE_FORMAT &&
           text_is(root, "template_version", key->template_info.version) &&
           json_field_u64(root, "ram_bytes", INT64_MAX, &files->ram_bytes) &&
           json_field_u64(root, "state_bytes", BASE_STATE_MAX, &files->state_bytes) &&
           json_field_u64(root, "disk_bytes", INT64_MAX, &files->disk_bytes) &&
           files->ram_bytes == (uint64_t)key->memory_mib * 1048576U && environment_is(root, env) &&
           file_has_size(files->dir, "ram", files->ram_bytes) &&
           file_has_size(files->dir, "state", files->state_bytes) &&
           file_has_size(files->dir, "disk.img", files->disk_bytes);
    json_decref(root);
    if (good) {
        /* The manifest's time says when the base was used last. */
        (void)utimensat(AT_FDCWD, path, NULL, 0);
    }
    return good;
}

int base_files_begin(const struct base_files *files, const struct base_key *key, struct error *err)
{
    char path[BASE_PATH_SIZE + 16];
    _cleanup_close_ int fd = -1;
    int r = dir_remove_tree(AT_FDCWD, files->building);

    if (r == 0) {
        r = dir_make_all(AT_FDCWD, files->building, 0700);
    }
    if (r < 0) {
        return error_set(err, -r, "cannot make %.200s: %s", files->building, strerror(-r));
    }
    (void)snprintf(path, sizeof(path), "%s/ram", files->building);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)key->memory_mib * 1048576) < 0) {
        return error_set(err, errno, "cannot make %.200s: %s", path, strerror(errno));
    }
    return 0;
}

/* Makes one file durable and read-only; its size comes back. */
static int seal_file(const char *dir, const char *name, uint64_t *ret_size)
{
    char path[BASE_PATH_SIZE + 16];
    _cleanup_close_ int fd = -1;
    struct stat st;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0) {
        return -errno;
    }
    if (strcmp(name, "ram") == 0) {
        int r = disk_punch_zeroes(fd, (uint64_t)st.st_size);

        if (r < 0 && r != -EOPNOTSUPP) {
            return r;
        }
    }
    if (fsync(fd) < 0 || fchmod(fd, 0444) < 0) {
        return -errno;
    }
    *ret_size = (uint64_t)st.st_size;
    return 0;
}

static json_t *make_manifest(const struct base_files *files,
                             const struct base_key *key,
                             const struct runtime_env *env)
{
    char now[CLOCK_TEXT_SIZE];

    clock_format(clock_real_ms(), now);
    return json_pack("{s:i, s:s, s:s, s:i, s:i, s:I, s:I, s:I, s:s,"
                     " s:{s:s, s:s, s:s, s:s, s:s, s:s, s:I}}",
                     "format", BASE_FORMAT, "template", key->template_info.name, "template_version",
                     key->template_info.version, "vcpus", (int)key->vcpus, "memory_mib",
                     (int)key->memory_mib, "ram_bytes", (json_int_t)files->ram_bytes, "state_bytes",
                     (json_int_t)files->state_bytes, "disk_bytes", (json_int_t)files->disk_bytes,
                     "created_at", now, "environment", "driver", env->driver, "vmm_version",
                     env->vmm_version, "accelerator", env->accelerator, "cpu_model", env->cpu_model,
                     "kernel", env->kernel, "guest_id", env->guest_id, "clock_khz",
                     (json_int_t)env->tsc_khz);
}

/* Replaces the directory: the old one, if any, is moved aside first and then removed. VMs that run
 * on it keep its files open. */
static int put_in_place(const struct base_files *files)
{
    char old[BASE_PATH_SIZE + 8];
    int r;

    (void)snprintf(old, sizeof(old), "%s.old", files->dir);
    r = dir_remove_tree(AT_FDCWD, old);
    if (r == 0 && rename(files->dir, old) < 0 && errno != ENOENT) {
        r = -errno;
    }
    if (r == 0 && rename(files->building, files->dir) < 0) {
        r = -errno;
    }
    return r == 0 ? dir_remove_tree(AT_FDCWD, old) : r;
}

int base_files_finish(struct base_files *files,
                      const struct base_key *key,
                      const struct runtime_env *env,
                      struct error *err)
{
    char path[BASE_PATH_SIZE + 16];
    json_t *root;
    int r = seal_file(files->building, "ram", &files->ram_bytes);

    if (r == 0) {
        r = seal_file(files->building, "state", &files->state_bytes);
    }
    if (r == 0) {
        r = seal_file(files->building, "disk.img", &files->disk_bytes);
    }
    if (r == 0) {
        root = make_manifest(files, key, env);
        (void)snprintf(path, sizeof(path), "%s/base.json", files->building);
        r = root == NULL ? -ENOMEM : json_file_write(AT_FDCWD, path, root, true);
        json_decref(root);
    }
    if (r == 0) {
        r = put_in_place(files);
    }
    if (r < 0) {
        return error_set_code(err, r == -ENOSPC ? ERROR_STORAGE_FULL : ERROR_INTERNAL, NULL,
                              "cannot keep the base snapshot %.200s: %s", files->dir, strerror(-r));
    }
    return 0;
}

static int compare_entries(const void *a, const void *b)
{
    const struct base_entry *x = a;
    const struct base_entry *y = b;

    return x->used_ms < y->used_ms ? -1 : x->used_ms > y->used_ms;
}

static bool is_pinned(const char *name, const char *const *pinned)
{
    for (size_t i = 0; pinned[i] != NULL; i++) {
        if (strcmp(pinned[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* Fills entries with the bases of this template; returns their number. */
static size_t list_entries(int dir_fd, DIR *dir, const char *template_name, struct base_entry *out)
{
    struct dirent *entry;
    size_t count = 0;

    while ((entry = readdir(dir)) != NULL && count < BASES_MAX) {
        char path[300];
        struct stat st;
        json_t *root;

        (void)snprintf(path, sizeof(path), "%.255s/base.json", entry->d_name);
        if (entry->d_name[0] == '.' || strlen(entry->d_name) >= sizeof(out[0].name) ||
            fstatat(dir_fd, path, &st, 0) < 0) {
            continue;
        }
        root = json_file_read(dir_fd, path, BASE_JSON_MAX);
        if (root == NULL || text_is(root, "template", template_name)) {
            (void)snprintf(out[count].name, sizeof(out[count].name), "%.63s", entry->d_name);
            out[count++].used_ms = (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000;
        }
        json_decref(root);
    }
    return count;
}

void base_files_evict(const char *volume,
                      const char *template_name,
                      unsigned int keep,
                      const char *const *pinned)
{
    _cleanup_free_ struct base_entry *entries = calloc(BASES_MAX, sizeof(*entries));
    _cleanup_closedir_ DIR *dir = NULL;
    char path[BASE_PATH_SIZE];
    size_t count;
    size_t left;

    (void)snprintf(path, sizeof(path), "%.400s/bases", volume);
    dir = opendir(path);
    if (dir == NULL || entries == NULL) {
        return;
    }
    count = list_entries(dirfd(dir), dir, template_name, entries);
    qsort(entries, count, sizeof(*entries), compare_entries);
    left = count;
    for (size_t i = 0; i < count && left > keep; i++) {
        if (!is_pinned(entries[i].name, pinned) &&
            dir_remove_tree(dirfd(dir), entries[i].name) == 0) {
            left--;
        }
    }
}

static bool has_suffix(const char *text, const char *suffix)
{
    size_t n = strlen(text);
    size_t m = strlen(suffix);

    return n > m && strcmp(&text[n - m], suffix) == 0;
}

void base_files_sweep(const char *volume)
{
    char path[BASE_PATH_SIZE];
    _cleanup_closedir_ DIR *dir = NULL;
    struct dirent *entry;

    (void)snprintf(path, sizeof(path), "%.400s/bases", volume);
    dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (has_suffix(entry->d_name, ".new") || has_suffix(entry->d_name, ".old")) {
            (void)dir_remove_tree(dirfd(dir), entry->d_name);
        }
    }
}

static int copy_data(int src, int dst, off_t size)
{
    off_t at = 0;

    while (at < size && (at = lseek(src, at, SEEK_DATA)) >= 0) {
        off_t hole = lseek(src, at, SEEK_HOLE);

        if (hole < 0 || lseek(dst, at, SEEK_SET) < 0) {
            return -errno;
        }
        while (at < hole) {
            ssize_t n = sendfile(dst, src, &at, (size_t)(hole - at));

            if (n <= 0) {
                return n == 0 ? -EIO : -errno;
            }
        }
    }
    return 0;
}

int base_files_copy_ram(const struct base_files *files)
{
    char path[BASE_PATH_SIZE + 16];
    _cleanup_close_ int src = -1;
    _cleanup_close_ int dst = memfd_create("space-base", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int r;

    (void)snprintf(path, sizeof(path), "%s/ram", files->dir);
    src = open(path, O_RDONLY | O_CLOEXEC);
    if (src < 0 || dst < 0 || ftruncate(dst, (off_t)files->ram_bytes) < 0) {
        return -errno;
    }
    r = copy_data(src, dst, (off_t)files->ram_bytes);
    if (r == 0 &&
        fcntl(dst, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        r = -errno;
    }
    return r < 0 ? r : TAKE_FD(dst);
}
