#include "node/template_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/file.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "node/disk.h"
#include "node/json_field.h"

#define NEXT_MAX   65536U /* as a record's */
#define FILES_PATH 640
#define LOCK_FILE  ".lock" /* of a name: set-up holds it while it builds (tools/setup/template) */

static void path_of(char out[FILES_PATH], const char *volume, const char *name)
{
    (void)snprintf(out, FILES_PATH, "%.400s/templates%s%.64s", volume, name[0] != '\0' ? "/" : "",
                   name);
}

static void
path_in(char out[FILES_PATH], const char *volume, const struct template_info *t, const char *file)
{
    (void)snprintf(out, FILES_PATH, "%.400s/templates/%s/%s%s%s", volume, t->name, t->version,
                   file[0] != '\0' ? "/" : "", file);
}

static int sync_dir(const char *path)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

static int fail(struct error *err, int r, const char *what)
{
    if (r == -ENOSPC || r == -EDQUOT) {
        return error_set_code(err, ERROR_STORAGE_FULL, NULL,
                              "the node's disk has no room for the template");
    }
    return error_set(err, -r, "the template cannot be %s: %s", what, strerror(-r));
}

/* ---- a walk over versions ---- */

/* dir_fd: the name's directory. Not 0: the walk ends with that. */
typedef int (*version_fn)(void *arg, int dir_fd, const char *name, const char *version);

static int each_version(const char *volume, const char *name, version_fn fn, void *arg)
{
    char path[FILES_PATH];
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    int r = 0;

    path_of(path, volume, name);
    dir = opendir(path);
    if (dir == NULL) {
        return errno == ENOENT ? 0 : -errno;
    }
    while (r == 0 && (entry = readdir(dir)) != NULL) {
        if (id_is_valid(entry->d_name, "tm")) {
            r = fn(arg, dirfd(dir), name, entry->d_name);
        }
    }
    return r;
}

static int each_name(const char *volume, version_fn fn, void *arg)
{
    char path[FILES_PATH];
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    int r = 0;

    path_of(path, volume, "");
    dir = opendir(path);
    if (dir == NULL) {
        return errno == ENOENT ? 0 : -errno;
    }
    while (r == 0 && (entry = readdir(dir)) != NULL) {
        if (template_name_is_valid(entry->d_name)) {
            r = each_version(volume, entry->d_name, fn, arg);
        }
    }
    return r;
}

static bool has(int dir_fd, const char *version, const char *file)
{
    char path[ID_SIZE + 32];

    (void)snprintf(path, sizeof(path), "%.24s/%s", version, file);
    return faccessat(dir_fd, path, F_OK, 0) == 0;
}

/* ---- the newest ---- */

/* Of what set-up has built as long as there is any: no member's disk takes the place of that. */
struct newest {
    const char *volume;
    char version[ID_SIZE]; /* "": none */
    char built_at[32];
    bool is_shipped;
};

static int note_newest(void *arg, int dir_fd, const char *name, const char *version)
{
    struct newest *newest = arg;
    struct template_info t;
    bool is_shipped;

    (void)dir_fd;
    if (template_load(newest->volume, name, version, &t, NULL) < 0) {
        return 0;
    }
    is_shipped = t.checkpoint_id[0] == '\0';
    if (newest->version[0] == '\0' || (is_shipped && !newest->is_shipped) ||
        (is_shipped == newest->is_shipped && strcmp(t.built_at, newest->built_at) > 0)) {
        memcpy(newest->version, t.version, sizeof(newest->version));
        memcpy(newest->built_at, t.built_at, sizeof(newest->built_at));
        newest->is_shipped = is_shipped;
    }
    return 0;
}

static int point_at(const char *volume, const char *name, const char *version)
{
    char path[FILES_PATH];
    char link[FILES_PATH + 32];
    char fresh[FILES_PATH + 32];

    path_of(path, volume, name);
    (void)snprintf(link, sizeof(link), "%s/current", path);
    (void)snprintf(fresh, sizeof(fresh), "%s/.current.next", path);
    if (unlink(version[0] != '\0' ? fresh : link) < 0 && errno != ENOENT) {
        return -errno;
    }
    if (version[0] != '\0' && (symlink(version, fresh) < 0 || rename(fresh, link) < 0)) {
        return -errno;
    }
    return sync_dir(path);
}

/* Where it points is left alone as long as something is there, and nothing takes set-up's place. */
static int settle_current(const char *volume, const char *name)
{
    struct newest newest = {.volume = volume};
    struct template_info t;
    char path[FILES_PATH];
    char record[FILES_PATH + 32];
    char current[ID_SIZE];

    path_of(path, volume, name);
    (void)snprintf(record, sizeof(record), "%s/current/%s", path, TEMPLATE_RECORD);
    (void)each_version(volume, name, note_newest, &newest);
    if (template_read_current(volume, name, current) == 0 && access(record, F_OK) == 0 &&
        (!newest.is_shipped || template_load(volume, name, current, &t, NULL) < 0 ||
         t.checkpoint_id[0] == '\0')) {
        return 0;
    }
    if (newest.version[0] == '\0' && template_read_current(volume, name, current) == -ENOENT) {
        return 0;
    }
    return point_at(volume, name, newest.version);
}

/* ---- making one ---- */

struct counts {
    const char *volume;
    const char *version; /* that does not count */
    const char *maker;
    unsigned int made;
    unsigned int made_by_it;
    bool shipped;
};

/* Of one in the making. */
static void read_next_maker(int dir_fd, const char *version, char out[ID_SIZE])
{
    char path[64];
    json_t *root;

    (void)snprintf(path, sizeof(path), "%.24s/" TEMPLATE_NEXT, version);
    root = json_file_read(dir_fd, path, NEXT_MAX);
    template_read_maker(root, out);
    json_decref(root);
}

static int count(void *arg, int dir_fd, const char *name, const char *version)
{
    struct counts *counts = arg;
    struct template_info t = {0};

    if (template_load(counts->volume, name, version, &t, NULL) == 0) {
        counts->shipped = counts->shipped || t.checkpoint_id[0] == '\0';
        if (t.checkpoint_id[0] == '\0') {
            return 0;
        }
    } else if (strcmp(version, counts->version) == 0 || !has(dir_fd, version, TEMPLATE_NEXT)) {
        return 0;
    } else {
        read_next_maker(dir_fd, version, t.made_by);
    }
    counts->made++;
    counts->made_by_it +=
        counts->maker != NULL && counts->maker[0] != '\0' && strcmp(t.made_by, counts->maker) == 0;
    return 0;
}

static int refuse_shipped(struct error *err, const char *name)
{
    return error_set_code(err, ERROR_FAILED_PRECONDITION, "shipped",
                          "the template %s is built by the set-up of this installation, and only "
                          "changed by that",
                          name);
}

static int
check(const struct template_build *b, const struct template_info *info, struct error *err)
{
    struct counts counts = {.volume = b->volume, .version = info->version, .maker = info->made_by};
    uint64_t total;
    uint64_t available;
    int r = each_version(b->volume, info->name, count, &counts);

    if (r == 0 && counts.shipped) {
        return refuse_shipped(err, info->name);
    }
    counts.made = 0;
    counts.made_by_it = 0;
    if (r == 0) {
        r = each_name(b->volume, count, &counts);
    }
    if (r == 0 && info->made_by[0] != '\0' && counts.made_by_it >= b->maker_max) {
        return error_set_code(err, ERROR_LIMIT_EXCEEDED, "templates",
                              "this key has made %u versions of templates that are there already",
                              counts.made_by_it);
    }
    if (r == 0 && counts.made >= b->versions_max) {
        return error_set_code(err, ERROR_LIMIT_EXCEEDED, "templates",
                              "there are %u versions of templates made from checkpoints already",
                              counts.made);
    }
    if (r == 0) {
        r = disk_space(b->volume, &total, &available);
    }
    if (r == 0 && available < b->reserve_mib + 1) {
        r = -ENOSPC;
    }
    return r < 0 ? fail(err, r, "made") : 0;
}

static json_t *pack_record(const struct template_info *i, json_t *env)
{
    json_t *names = json_array();
    json_t *value;
    const char *key;

    json_object_foreach(env, key, value) {
        (void)json_array_append_new(names, json_string(key));
    }
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:s, s:b, s:s*, s:o}", "name", i->name,
                     "version", i->version, "vcpus", (int)i->vcpus, "memory_mib",
                     (int)i->memory_mib, "disk_mib", (int)i->disk_mib, "user", i->user, "built_at",
                     i->built_at, "checkpoint_id", i->checkpoint_id, "memory", (int)i->memory,
                     "made_by", i->made_by[0] != '\0' ? i->made_by : NULL, "env_names", names);
}

static int write_json(const char *path, const json_t *value, mode_t mode)
{
    int r = value == NULL ? -ENOMEM : json_file_write(AT_FDCWD, path, value, true);

    return r == 0 && chmod(path, mode) < 0 ? -errno : r;
}

static int put_disk(const struct template_build *b, const char *path, struct error *err)
{
    _cleanup_close_ int fd = -1;
    int r = disk_clone(b->disk, path, 0, err);

    if (r < 0) {
        return r;
    }
    fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 || fsync(fd) < 0 || fchmod(fd, 0444) < 0 ? fail(err, -errno, "made") : 0;
}

int template_files_build(const struct template_build *b,
                         const struct template_info *info,
                         struct error *err)
{
    char path[FILES_PATH];
    json_t *record;
    int r = check(b, info, err);

    if (r < 0) {
        return r;
    }
    r = template_files_discard(b->volume, info->name, info->version);
    path_in(path, b->volume, info, "");
    if (r == 0) {
        r = dir_make_all(AT_FDCWD, path, 0755);
    }
    if (r < 0) {
        return fail(err, r, "made");
    }
    if (b->disk != NULL) {
        path_in(path, b->volume, info, "disk.img");
        r = put_disk(b, path, err);
        if (r < 0) {
            return r;
        }
        path_in(path, b->volume, info, "env.json");
        r = write_json(path, b->env, 0400);
    }
    if (r == 0) {
        record = pack_record(info, b->env);
        path_in(path, b->volume, info, TEMPLATE_NEXT);
        r = write_json(path, record, 0444);
        json_decref(record);
    }
    if (r == 0) {
        path_in(path, b->volume, info, "");
        r = sync_dir(path);
    }
    return r < 0 ? fail(err, r, "made") : 0;
}

/* *ret_lock is set-up's lock of the name, or -1 when set-up never had one: whoever begins now
 * publishes long after this. */
static int
check_name(const char *volume, const struct template_info *info, int *ret_lock, struct error *err)
{
    struct counts counts = {.volume = volume, .version = info->version};
    char path[FILES_PATH];
    char lock[FILES_PATH + 32];
    int r;

    path_of(path, volume, info->name);
    (void)snprintf(lock, sizeof(lock), "%s/%s", path, LOCK_FILE);
    *ret_lock = open(lock, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (*ret_lock < 0 && errno != ENOENT) {
        return fail(err, -errno, "published");
    }
    if (*ret_lock >= 0 && flock(*ret_lock, LOCK_EX | LOCK_NB) < 0) {
        return errno == EWOULDBLOCK ? refuse_shipped(err, info->name)
                                    : fail(err, -errno, "published");
    }
    r = each_version(volume, info->name, count, &counts);
    if (r == 0 && counts.shipped) {
        return refuse_shipped(err, info->name);
    }
    return r < 0 ? fail(err, r, "published") : 0;
}

int template_files_publish(const char *volume, const struct template_info *info, struct error *err)
{
    _cleanup_close_ int lock = -1;
    struct newest newest = {.volume = volume};
    char next[FILES_PATH];
    char record[FILES_PATH];
    int r;

    path_in(next, volume, info, TEMPLATE_NEXT);
    path_in(record, volume, info, TEMPLATE_RECORD);
    if (access(record, F_OK) < 0) {
        r = check_name(volume, info, &lock, err);
        if (r < 0) {
            return r;
        }
    }
    r = rename(next, record) < 0 && errno != ENOENT ? -errno : 0;
    if (r == 0) {
        path_in(next, volume, info, "");
        r = sync_dir(next);
    }
    if (r == 0) {
        r = each_version(volume, info->name, note_newest, &newest);
    }
    if (r == 0 && newest.version[0] == '\0') {
        r = -ENOENT;
    }
    if (r == 0) {
        r = point_at(volume, info->name, newest.version);
    }
    return r < 0 ? fail(err, r, "published") : 0;
}

/* ---- the end ---- */

void template_files_remove_bases(const char *volume, const char *version)
{
    char path[FILES_PATH];
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    size_t n = strlen(version);

    (void)snprintf(path, sizeof(path), "%.400s/bases", volume);
    dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (strncmp(entry->d_name, version, n) == 0 && entry->d_name[n] == '-' &&
            dir_remove_tree(dirfd(dir), entry->d_name) < 0) {
            log_warning("prune", "base=%s", LOG_STR(entry->d_name));
        }
    }
}

static void remove_name(const char *volume, const char *name)
{
    char path[FILES_PATH];

    path_of(path, volume, name);
    (void)rmdir(path); /* fails while there is another version */
}

int template_files_discard(const char *volume, const char *name, const char *version)
{
    struct template_info info = {0};
    char path[FILES_PATH];
    int r;

    (void)snprintf(info.name, sizeof(info.name), "%s", name);
    (void)snprintf(info.version, sizeof(info.version), "%s", version);
    for (size_t i = 0; i < 2; i++) {
        path_in(path, volume, &info, i == 0 ? TEMPLATE_RECORD : TEMPLATE_REMOVED);
        if (access(path, F_OK) == 0) {
            return -EEXIST; /* somebody may use it */
        }
    }
    path_in(path, volume, &info, TEMPLATE_NEXT);
    if (unlink(path) < 0 && errno != ENOENT) {
        return -errno;
    }
    template_files_remove_bases(volume, version);
    path_in(path, volume, &info, "");
    r = dir_remove_tree(AT_FDCWD, path);
    remove_name(volume, name);
    return r;
}

struct withdrawal {
    const char *volume;
    const char *version; /* "": all */
    unsigned int found;
    bool shipped;
    bool doing;
};

/* Its time is that of the removal: what was begun before is not overlooked. */
static int disown(int dir_fd, const char *version)
{
    char record[ID_SIZE + 32];
    char removed[ID_SIZE + 32];

    (void)snprintf(record, sizeof(record), "%.24s/%s", version, TEMPLATE_RECORD);
    (void)snprintf(removed, sizeof(removed), "%.24s/%s", version, TEMPLATE_REMOVED);
    return utimensat(dir_fd, record, NULL, 0) < 0 || renameat(dir_fd, record, dir_fd, removed) < 0
               ? -errno
               : 0;
}

static int withdraw_one(void *arg, int dir_fd, const char *name, const char *version)
{
    struct withdrawal *w = arg;
    struct template_info t;

    if ((w->version[0] != '\0' && strcmp(w->version, version) != 0) ||
        template_load(w->volume, name, version, &t, NULL) < 0) {
        return 0;
    }
    w->found++;
    w->shipped = w->shipped || t.checkpoint_id[0] == '\0';
    return w->doing ? disown(dir_fd, version) : 0;
}

int template_files_withdraw(const char *volume,
                            const char *name,
                            const char *version,
                            struct error *err)
{
    struct withdrawal w = {.volume = volume, .version = version};
    int r = each_version(volume, name, withdraw_one, &w);

    if (r == 0 && w.found == 0) {
        return error_set_code(err, ERROR_NOT_FOUND, "template", "there is no template %.64s%s%s",
                              name, version[0] != '\0' ? "@" : "", version);
    }
    if (r == 0 && w.shipped) {
        return refuse_shipped(err, name);
    }
    w.doing = true;
    if (r == 0) {
        r = each_version(volume, name, withdraw_one, &w);
    }
    if (r == 0) {
        r = settle_current(volume, name);
    }
    return r < 0 ? fail(err, r, "removed") : 0;
}

/* ---- after a start ---- */

static int is_version(void *arg, int dir_fd, const char *name, const char *version)
{
    (void)dir_fd;
    (void)name;
    return strcmp(arg, version) == 0;
}

bool template_files_exist(const char *volume, const char *version)
{
    char wanted[ID_SIZE];

    (void)snprintf(wanted, sizeof(wanted), "%s", version);
    return each_name(volume, is_version, wanted) != 0;
}

/* Nothing can be made from one whose memory is gone. */
static bool has_lost_memory(const char *volume, const char *name, const char *version)
{
    struct template_info t;
    char path[FILES_PATH];

    (void)snprintf(path, sizeof(path), "%.400s/checkpoints/%.24s", volume, version);
    return template_load(volume, name, version, &t, NULL) == 0 && t.memory &&
           access(path, F_OK) < 0 && errno == ENOENT;
}

static int sweep_one(void *arg, int dir_fd, const char *name, const char *version)
{
    const char *volume = arg;

    if (!has(dir_fd, version, TEMPLATE_RECORD) && !has(dir_fd, version, TEMPLATE_REMOVED) &&
        template_files_discard(volume, name, version) < 0) {
        log_warning("template_left", "template=%s version=%s", name, version);
    }
    if (has_lost_memory(volume, name, version)) {
        int r = disown(dir_fd, version);

        log_warning("template_lost", "template=%s version=%s error=%s", name, version,
                    r < 0 ? strerror(-r) : "-");
    }
    return 0;
}

void template_files_sweep(const char *volume)
{
    char path[FILES_PATH];
    char shared[FILES_PATH];
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;

    (void)snprintf(shared, sizeof(shared), "%s", volume);
    (void)each_name(volume, sweep_one, shared);
    path_of(path, volume, "");
    dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (template_name_is_valid(entry->d_name)) {
            if (settle_current(volume, entry->d_name) < 0) {
                log_warning("template_current", "template=%s", LOG_STR(entry->d_name));
            }
            remove_name(volume, entry->d_name);
        }
    }
}
