/* Snapshots made of snapshots, and those that are a disk only. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include <jansson.h>

#include "base/clock.h"
#include "base/fd.h"
#include "node/disk.h"
#include "node/json_field.h"
#include "node/snapshot_private.h"
#include "node/snapshot_room.h"

#define COLD     "cold"
#define COLD_MAX 512U
#define MIB      1048576U

static void path_in(const char *dir, const char *suffix, const char *name, char *out)
{
    (void)snprintf(out, SNAPSHOT_PATH_SIZE + 32, "%.470s%s/%s", dir, suffix, name);
}

/* What is left must serve the guests that run. */
static int check_room(const char *dir, uint64_t reserve_mib)
{
    char path[SNAPSHOT_PATH_SIZE + 32];
    uint64_t total;
    uint64_t available;
    int r;

    path_in(dir, ".new", "", path);
    r = disk_space(path, &total, &available);
    if (r < 0) {
        return r;
    }
    return available < reserve_mib + 1 ? -ENOSPC : 0;
}

/* ---- cold ones ---- */

bool snapshot_is_cold(const char *dir)
{
    char path[SNAPSHOT_PATH_SIZE + 32];

    path_in(dir, "", COLD, path);
    return access(path, F_OK) == 0;
}

static int length_of(const char *dir, const char *suffix, const char *name, uint64_t *ret)
{
    char path[SNAPSHOT_PATH_SIZE + 32];
    struct stat st;

    path_in(dir, suffix, name, path);
    if (lstat(path, &st) < 0) {
        return -errno;
    }
    if (!S_ISREG(st.st_mode)) {
        return -EINVAL;
    }
    *ret = (uint64_t)st.st_size;
    return 0;
}

int snapshot_capture_cold(const char *dir,
                          const struct snapshot_source *source,
                          struct snapshot_sizes *ret,
                          struct error *err)
{
    int64_t begun_ns = clock_monotonic_ns();
    struct snapshot_sizes sizes = {0};
    char path[SNAPSHOT_PATH_SIZE + 32];
    int r;

    path_in(dir, ".new", "", path);
    r = snapshot_room_promise(source->room, path, 0, source->reserve_mib);
    path_in(dir, ".new", "ram", path);
    if (r == 0 && link(source->ram_path, path) < 0) {
        r = -errno;
    }
    if (r < 0) {
        return snapshot_fail(err, r, "the disk cannot be captured");
    }
    path_in(dir, ".new", "disk.img", path);
    r = disk_clone(source->disk_path, path, 0, err);
    if (r < 0) {
        return r;
    }
    r = length_of(dir, ".new", "disk.img", &sizes.disk_bytes);
    if (r < 0) {
        return snapshot_fail(err, r, "the disk cannot be captured");
    }
    sizes.disk_us = (clock_monotonic_ns() - begun_ns) / 1000;
    *ret = sizes;
    return 0;
}

int snapshot_commit_cold(const char *dir, struct error *err)
{
    char path[SNAPSHOT_PATH_SIZE + 32];
    uint64_t ram = 0;
    uint64_t disk = 0;
    json_t *root = NULL;
    int r = snapshot_sync_file(dir, "disk.img");

    if (r == 0) {
        r = length_of(dir, ".new", "ram", &ram);
    }
    if (r == 0) {
        r = length_of(dir, ".new", "disk.img", &disk);
    }
    if (r == 0) {
        path_in(dir, ".new", COLD, path);
        root =
            json_pack("{s:I, s:I}", "ram_bytes", (json_int_t)ram, "disk_bytes", (json_int_t)disk);
        r = root == NULL ? -ENOMEM : json_file_write(AT_FDCWD, path, root, true);
        json_decref(root);
    }
    if (r == 0) {
        r = snapshot_settle(dir);
    }
    return r < 0 ? snapshot_fail(err, r, "the snapshot cannot be kept") : 0;
}

int snapshot_check_cold(const char *dir, const struct snapshot_facts *want, struct error *err)
{
    char path[SNAPSHOT_PATH_SIZE + 32];
    uint64_t wanted[2] = {0};
    uint64_t found[2] = {0};
    json_t *root;
    bool good;

    path_in(dir, "", COLD, path);
    root = json_file_read(AT_FDCWD, path, COLD_MAX);
    good = root != NULL && json_field_u64(root, "ram_bytes", INT64_MAX, &wanted[0]) &&
           json_field_u64(root, "disk_bytes", INT64_MAX, &wanted[1]) &&
           length_of(dir, "", "ram", &found[0]) == 0 &&
           length_of(dir, "", "disk.img", &found[1]) == 0 && wanted[0] == found[0] &&
           wanted[1] == found[1] && found[0] == (uint64_t)want->memory_mib * MIB;
    json_decref(root);
    return good ? 0
                : error_set(err, EBADMSG,
                            "the snapshot is damaged: its disk is missing, or is not what was "
                            "written");
}

/* ---- copies ---- */

static int link_file(const char *from, const char *into, const char *name)
{
    char old[SNAPSHOT_PATH_SIZE + 32];
    char fresh[SNAPSHOT_PATH_SIZE + 32];

    path_in(from, "", name, old);
    path_in(into, ".new", name, fresh);
    return link(old, fresh) < 0 ? -errno : 0;
}

int snapshot_copy(const char *from, const char *into, uint64_t reserve_mib, struct error *err)
{
    /* Nothing writes into them once they are there. */
    static const char *const warm[] = {"ram", "memory", "state", "snapshot.json", NULL};
    static const char *const cold[] = {"ram", COLD, NULL};
    const char *const *names = snapshot_is_cold(from) ? cold : warm;
    char old[SNAPSHOT_PATH_SIZE + 32];
    char fresh[SNAPSHOT_PATH_SIZE + 32];
    int r = snapshot_begin(into, err);

    if (r < 0) {
        return r;
    }
    r = check_room(into, reserve_mib);
    for (size_t i = 0; r == 0 && names[i] != NULL; i++) {
        r = link_file(from, into, names[i]);
        if (r == -ENOENT) {
            return error_set(err, EBADMSG, "the snapshot is damaged: its file %s is missing",
                             names[i]);
        }
    }
    if (r < 0) {
        return snapshot_fail(err, r, "the snapshot cannot be copied");
    }
    path_in(from, "", "disk.img", old);
    path_in(into, ".new", "disk.img", fresh);
    r = disk_clone(old, fresh, 0, err);
    if (r == 0) {
        r = snapshot_sync_file(into, "disk.img");
        return r < 0 ? snapshot_fail(err, r, "the snapshot cannot be copied") : 0;
    }
    return r;
}
