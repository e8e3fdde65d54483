/* What is on disk of checkpoints. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/step.h"
#include "node/checkpoint_private.h"
#include "node/disk.h"
#include "node/json_field.h"
#include "node/node_private.h"
#include "node/ram_layer.h"

#define RECORD     "checkpoint.json"
#define RECORD_MAX 16384U
#define ENV_FILE   "env.json"
#define ENV_MAX    (4U * 1024U * 1024U)
#define FORMAT     1
#define SUM_TEXT   (2U * RAM_LAYER_SUM_BYTES + 1U)

/* ---- the record ---- */

static int check_of(const json_t *root, char out[SUM_TEXT])
{
    _cleanup_free_ char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
    struct ram_sum sum;

    if (text == NULL) {
        return -ENOMEM;
    }
    sum = ram_sum_of(span_of_str(text));
    for (size_t i = 0; i < RAM_LAYER_SUM_BYTES; i++) {
        (void)snprintf(&out[2 * i], 3, "%02x", sum.bytes[i]);
    }
    return 0;
}

static int write_record(const char *path, const struct checkpoint_info *i)
{
    char check[SUM_TEXT];
    json_t *root = json_pack(
        "{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:b, s:b, s:I, s:I, s:I, s:I}",
        "format", FORMAT, "base_version", i->base_version, "id", i->id, "sandbox_id", i->sandbox_id,
        "template", i->template_name, "template_version", i->template_version, "user", i->user,
        "vcpus", (int)i->vcpus, "memory_mib", (int)i->memory_mib, "disk_mib", (int)i->disk_mib,
        "memory", (int)i->memory, "local", (int)i->is_local, "size_bytes",
        (json_int_t)i->size_bytes, "created_at_ms", (json_int_t)i->created_at_ms, "paused_total_ms",
        (json_int_t)i->paused_total_ms, "identity_epoch", (json_int_t)i->identity_epoch);
    int r = root == NULL ? -ENOMEM : check_of(root, check);

    if (r == 0 && json_object_set_new(root, "check", json_string(check)) < 0) {
        r = -ENOMEM;
    }
    if (r == 0) {
        r = json_file_write(AT_FDCWD, path, root, true);
    }
    json_decref(root);
    return r;
}

static bool parse_times(const json_t *root, struct checkpoint_info *i)
{
    uint64_t created;
    uint64_t paused;

    if (!json_field_u64(root, "created_at_ms", INT64_MAX, &created) ||
        !json_field_u64(root, "paused_total_ms", INT64_MAX, &paused)) {
        return false;
    }
    i->created_at_ms = (int64_t)created;
    i->paused_total_ms = (int64_t)paused;
    return true;
}

/* Those of earlier releases stand on their template's base. */
static bool parse_base(const json_t *root, struct checkpoint_info *i)
{
    if (json_object_get(root, "base_version") == NULL) {
        memcpy(i->base_version, i->template_version, sizeof(i->base_version));
        return true;
    }
    return json_field_text(root, "base_version", i->base_version, sizeof(i->base_version));
}

static bool parse_record(json_t *root, struct checkpoint_info *i)
{
    unsigned int format = 0;
    char check[SUM_TEXT];
    char want[SUM_TEXT];

    if (!json_field_text(root, "check", check, sizeof(check)) ||
        json_object_del(root, "check") < 0 || check_of(root, want) < 0 ||
        strcmp(check, want) != 0) {
        return false;
    }
    i->memory = json_is_true(json_object_get(root, "memory"));
    i->is_local = json_is_true(json_object_get(root, "local"));
    return json_field_uint(root, "format", FORMAT, &format) && format == FORMAT &&
           json_field_text(root, "id", i->id, sizeof(i->id)) &&
           json_field_text(root, "sandbox_id", i->sandbox_id, sizeof(i->sandbox_id)) &&
           json_field_text(root, "template", i->template_name, sizeof(i->template_name)) &&
           json_field_text(root, "template_version", i->template_version,
                           sizeof(i->template_version)) &&
           parse_base(root, i) && json_field_text(root, "user", i->user, sizeof(i->user)) &&
           json_field_uint(root, "vcpus", SANDBOX_VCPUS_MAX, &i->vcpus) &&
           json_field_uint(root, "memory_mib", SANDBOX_MEMORY_MIB_MAX, &i->memory_mib) &&
           json_field_uint(root, "disk_mib", SANDBOX_DISK_MIB_MAX, &i->disk_mib) &&
           json_field_u64(root, "size_bytes", INT64_MAX, &i->size_bytes) &&
           json_field_u64(root, "identity_epoch", INT64_MAX, &i->identity_epoch) &&
           parse_times(root, i);
}

/* ---- making ---- */

static uint64_t bytes_of(const char *building, const char *name)
{
    char path[CHECKPOINT_PATH_SIZE + 64];

    (void)snprintf(path, sizeof(path), "%.480s/snapshot/%s", building, name);
    return disk_own_bytes(path);
}

static int sync_tree(const char *building)
{
    char path[CHECKPOINT_PATH_SIZE + 64];
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;

    (void)snprintf(path, sizeof(path), "%.480s/sessions", building);
    dir = opendir(path);
    if (dir == NULL) {
        return errno == ENOENT ? 0 : -errno;
    }
    while ((entry = readdir(dir)) != NULL) {
        _cleanup_close_ int fd = -1;

        if (entry->d_name[0] == '.') {
            continue;
        }
        fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 || fsync(fd) < 0) {
            return -errno;
        }
    }
    return fsync(dirfd(dir)) < 0 ? -errno : 0;
}

static int sync_dir(const char *path)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

int checkpoint_put_in_place(const char *building)
{
    char path[CHECKPOINT_PATH_SIZE];
    size_t n = strlen(building);
    char *slash;

    if (n < 4 || n >= sizeof(path)) {
        return -ENAMETOOLONG;
    }
    memcpy(path, building, n - 4);
    path[n - 4] = '\0';
    step("place checkpoint");
    if (rename(building, path) < 0) {
        return -errno;
    }
    step("placed checkpoint");
    slash = strrchr(path, '/');
    if (slash == NULL) {
        return -EINVAL;
    }
    *slash = '\0';
    return sync_dir(path);
}

int checkpoint_commit(struct checkpoint_info *info,
                      const char *building,
                      const struct json_t *env,
                      struct error *err)
{
    char path[CHECKPOINT_PATH_SIZE + 64];
    int r = sync_tree(building);

    info->size_bytes =
        bytes_of(building, "disk.img") + bytes_of(building, "memory") + bytes_of(building, "state");
    if (r == 0) {
        (void)snprintf(path, sizeof(path), "%.480s/%s", building, ENV_FILE);
        r = json_file_write(AT_FDCWD, path, env, true);
    }
    if (r == 0) {
        (void)snprintf(path, sizeof(path), "%.480s/%s", building, RECORD);
        r = write_record(path, info);
    }
    if (r == 0) {
        r = sync_dir(building);
    }
    if (r == 0) {
        r = checkpoint_put_in_place(building);
    }
    if (r == -ENOSPC || r == -EDQUOT) {
        return error_set_code(err, ERROR_STORAGE_FULL, NULL,
                              "the node's disk has no room for the checkpoint");
    }
    return r < 0 ? error_set(err, -r, "the checkpoint cannot be kept: %s", strerror(-r)) : 0;
}

int checkpoint_remove_files(const char *path)
{
    char old[CHECKPOINT_PATH_SIZE + 80];
    char half[CHECKPOINT_PATH_SIZE + 80];
    int r;

    (void)snprintf(old, sizeof(old), "%s.old", path);
    (void)snprintf(half, sizeof(half), "%s.new", path);
    r = dir_remove_tree(AT_FDCWD, old);
    step("disown checkpoint");
    if (r == 0 && rename(path, old) < 0 && errno != ENOENT) {
        r = -errno;
    }
    step("remove checkpoint");
    if (r == 0) {
        r = dir_remove_tree(AT_FDCWD, old);
    }
    r = r == 0 ? dir_remove_tree(AT_FDCWD, half) : r;
    step("removed checkpoint");
    return r;
}

struct json_t *checkpoint_load_env(const struct checkpoint *ck)
{
    char path[CHECKPOINT_PATH_SIZE + 64];
    json_t *env;

    checkpoint_path(ck, "", ENV_FILE, path, sizeof(path));
    env = json_file_read(AT_FDCWD, path, ENV_MAX);
    if (env != NULL && !json_is_object(env)) {
        json_decref(env);
        return NULL;
    }
    return env;
}

/* ---- after a start ---- */

int checkpoint_read(const char *dir, const char *id, struct checkpoint_info *ret)
{
    struct checkpoint_info info = {0};
    char path[CHECKPOINT_PATH_SIZE + 64];
    json_t *root;
    bool good;

    (void)snprintf(path, sizeof(path), "%.480s/%s", dir, RECORD);
    root = json_file_read(AT_FDCWD, path, RECORD_MAX);
    good = root != NULL && parse_record(root, &info) && strcmp(info.id, id) == 0;
    json_decref(root);
    if (good) {
        *ret = info;
    }
    return good ? 0 : -EBADMSG;
}

static int load_one(struct node *node, const char *id)
{
    struct checkpoint *ck = checkpoint_new(node, id);
    char path[CHECKPOINT_PATH_SIZE];

    if (ck == NULL) {
        return -ENOMEM;
    }
    checkpoint_path(ck, "", "", path, sizeof(path));
    if (checkpoint_read(path, id, &ck->info) == 0) {
        checkpoint_path(ck, "", "snapshot", path, sizeof(path));
        objects_read_marker(path, ck->manifest);
        ck->state = CHECKPOINT_STATE_READY;
    } else {
        log_error("checkpoint_damaged", "checkpoint=%s", id);
        ck->state = CHECKPOINT_STATE_DAMAGED;
    }
    return 0;
}

int checkpoint_load_all(struct node *node)
{
    char path[CHECKPOINT_PATH_SIZE];
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    int r = 0;

    list_init(&node->parts->checkpoints.checkpoints);
    (void)snprintf(path, sizeof(path), "%.400s/checkpoints", node->parts->volume);
    dir = opendir(path);
    if (dir == NULL) {
        return -errno;
    }
    while (r == 0 && (entry = readdir(dir)) != NULL) {
        if (id_is_valid(entry->d_name, "ck") || id_is_valid(entry->d_name, "tm")) {
            r = load_one(node, entry->d_name);
        } else if (entry->d_name[0] != '.' && dir_remove_tree(dirfd(dir), entry->d_name) < 0) {
            log_warning("checkpoint_left", "path=%s", LOG_STR(entry->d_name));
        }
    }
    return r;
}
