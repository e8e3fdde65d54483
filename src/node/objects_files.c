/* Files of snapshots on their way into the object store and out of it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/step.h"
#include "node/disk.h"
#include "node/object_fd.h"
#include "node/object_name.h"
#include "node/object_sum.h"
#include "node/objects_private.h"

/* ---- in ---- */

void objects_put_free(struct objects_put *put)
{
    if (put == NULL) {
        return;
    }
    for (unsigned int i = 0; i < put->fd_count; i++) {
        (void)close(put->fds[i]);
    }
    if (put->snapshot_fd >= 0) {
        (void)close(put->snapshot_fd);
    }
    free(put->fds);
    json_decref(put->request);
    free(put);
}

/* Its number in the process, or -errno. */
static int add_fd(struct objects_put *put, int dir_fd, const char *path)
{
    struct stat st;
    int fd;

    if (put->fd_count >= OBJECTS_FILES_MAX) {
        return -E2BIG;
    }
    fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return -errno;
    }
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        (void)close(fd);
        return -EINVAL;
    }
    put->fds[put->fd_count] = fd;
    return (int)(OBJECT_FD_FIRST + put->fd_count++);
}

/* `name` in it, as `as`. */
struct place {
    int dir_fd;
    const char *name;
};

static int
add_file(struct objects_put *put, const struct place *from, const char *as, const char *kind)
{
    int fd = add_fd(put, from->dir_fd, from->name);

    if (fd < 0) {
        return fd;
    }
    return json_array_append_new(json_object_get(put->request, "files"),
                                 json_pack("{s:s, s:s, s:i}", "name", as, "kind", kind, "fd", fd)) <
                   0
               ? -ENOMEM
               : 0;
}

static int add_if_there(struct objects_put *put, int dir_fd, const char *name, const char *kind)
{
    int r = add_file(put, &(struct place){dir_fd, name}, name, kind);

    return r == -ENOENT ? 0 : r;
}

static int open_dir(int dir_fd, const char *path)
{
    int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    return fd < 0 ? -errno : fd;
}

/* Rolled back, and not woken since: those of the checkpoint, which are in the snapshot. */
static int add_sessions(struct objects_put *put, int home_fd)
{
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    int fd = open_dir(put->snapshot_fd, "sessions");
    int r = 0;

    if (fd == -ENOENT) {
        fd = open_dir(home_fd, "sessions");
    }
    if (fd < 0) {
        return fd == -ENOENT ? 0 : fd;
    }
    dir = fdopendir(fd);
    if (dir == NULL) {
        (void)close(fd);
        return -ENOMEM;
    }
    /* Only this thread reads this stream. */
    while (r == 0 && (entry = readdir(dir)) != NULL) { /* NOLINT(concurrency-mt-unsafe) */
        char name[OBJECT_NAME_SIZE];

        if (entry->d_name[0] == '.' || strnlen(entry->d_name, 80) >= 80) {
            continue;
        }
        (void)snprintf(name, sizeof(name), "sessions/%.80s", entry->d_name);
        if (object_name_is_valid(name)) {
            r = add_file(put, &(struct place){fd, entry->d_name}, name, "file");
        }
        r = r == -ENOENT ? 0 : r; /* removed meanwhile */
    }
    return r;
}

/* The one whose file the snapshot's base image is, if it was stored or fetched before. */
static void find_base(struct objects_put *put, int ram_fd)
{
    _cleanup_closedir_ DIR *dir = opendir(put->images);
    const struct dirent *entry;
    struct stat own;
    struct stat st;

    if (dir == NULL || fstat(ram_fd, &own) < 0) {
        return;
    }
    while ((entry = readdir(dir)) != NULL) { /* NOLINT(concurrency-mt-unsafe) */
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode) && st.st_ino == own.st_ino) {
            (void)json_object_set_new(put->request, "base", json_string(entry->d_name));
            return;
        }
    }
}

static int add_memory(struct objects_put *put)
{
    int fd = add_fd(put, put->snapshot_fd, "ram");

    if (fd < 0) {
        return fd;
    }
    find_base(put, put->fds[put->fd_count - 1]);
    return json_object_set_new(put->request, "ram_fd", json_integer(fd)) < 0 ? -ENOMEM : 0;
}

static int add_disk(struct objects_put *put)
{
    int fd = add_fd(put, AT_FDCWD, put->template_disk);

    /* Without the template it could not be restored anywhere: it stays local. */
    if (fd < 0) {
        return fd;
    }
    (void)json_object_set_new(put->request, "template_fd", json_integer(fd));
    return add_file(put, &(struct place){put->snapshot_fd, "disk.img"}, "disk.img", "disk");
}

/* So that whoever removes the owner removes what is stored too, from here on. */
static int note_stored(int home_fd)
{
    _cleanup_close_ int fd = -1;
    int r;

    step("note stored");
    fd = openat(home_fd, OBJECTS_STORED, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    r = fd < 0 || fsync(fd) < 0 ? -errno : 0;
    step("noted stored");
    return r;
}

static int add_files(struct objects_put *put, int home_fd)
{
    static const char *const files[] = {"snapshot.json", "cold", "capture", "state"};
    int r = add_memory(put);

    if (r == 0) {
        r = add_disk(put);
    }
    for (size_t i = 0; r == 0 && i < sizeof(files) / sizeof(files[0]); i++) {
        r = add_if_there(put, put->snapshot_fd, files[i], "file");
    }
    if (r == 0) {
        r = add_if_there(put, put->snapshot_fd, "memory", "layer");
    }
    if (r == 0) {
        r = add_if_there(put, home_fd, "env.json", "file");
    }
    if (r == 0) {
        r = add_if_there(put, home_fd, put->is_checkpoint ? "checkpoint.json" : "journal.json",
                         "file");
    }
    return r == 0 ? add_sessions(put, home_fd) : r;
}

/* Another snapshot may take its place at any moment: all is of the directory that is opened. */
int objects_work_open(struct objects_put *put)
{
    _cleanup_close_ int home_fd = open_dir(AT_FDCWD, put->dir);
    int r;

    put->fds = calloc(OBJECTS_FILES_MAX, sizeof(*put->fds));
    put->request = json_pack("{s:s, s:s, s:[]}", "job", "put", "owner", put->owner, "files");
    if (put->fds == NULL || put->request == NULL) {
        return -ENOMEM;
    }
    put->snapshot_fd = home_fd < 0 ? home_fd : open_dir(AT_FDCWD, put->snapshot);
    if (put->snapshot_fd < 0) {
        return put->snapshot_fd;
    }
    r = add_files(put, home_fd);
    return r == 0 ? note_stored(home_fd) : r;
}

static int check_place(const struct objects_put *put)
{
    struct stat own;
    struct stat st;

    if (fstat(put->snapshot_fd, &own) < 0 || stat(put->snapshot, &st) < 0) {
        return -errno;
    }
    return own.st_dev == st.st_dev && own.st_ino == st.st_ino ? 0 : -ENOENT;
}

int objects_work_mark(struct objects_put *put)
{
    char image[OBJECTS_PATH_SIZE + 80];
    char text[OBJECTS_NAME_SIZE + 2];
    int r =
        put->store_is_known ? 0 : objects_work_note_store(put->node->parts->objects, put->store);

    if (r < 0) {
        return r;
    }
    (void)snprintf(image, sizeof(image), "%s/%s", put->images, put->base);
    if (linkat(put->snapshot_fd, "ram", AT_FDCWD, image, 0) < 0 && errno != EEXIST &&
        errno != ENOENT) {
        log_warning("image_not_linked", "owner=%s error=%s", put->owner, strerror(errno));
    }
    (void)snprintf(text, sizeof(text), "%s\n", put->manifest);
    step("mark stored");
    r = file_write_atomic(put->snapshot_fd, OBJECTS_MARKER, span_of_str(text), 0600, true);
    step("marked stored");
    return r == 0 ? check_place(put) : r;
}

void objects_read_marker(const char *dir, char out[OBJECTS_NAME_SIZE])
{
    _cleanup_buf_ struct buf content = buf_make(128);
    char path[OBJECTS_PATH_SIZE + 32];
    struct object_sum sum;

    out[0] = '\0';
    (void)snprintf(path, sizeof(path), "%.540s/" OBJECTS_MARKER, dir);
    if (file_read(AT_FDCWD, path, 128, &content) == 0 && content.n == OBJECTS_NAME_SIZE &&
        object_sum_parse(span_head(buf_span(&content), OBJECTS_NAME_SIZE - 1), &sum) == 0) {
        object_sum_format(&sum, out);
    }
}

/* ---- out ---- */

void objects_get_free(struct objects_get *get)
{
    if (get == NULL) {
        return;
    }
    objects_job_cancel(get->job);
    if (get->dir_fd >= 0) {
        (void)close(get->dir_fd);
    }
    json_decref(get->request);
    free(get);
}

static json_t *list_images(const char *images)
{
    _cleanup_closedir_ DIR *dir = opendir(images);
    const struct dirent *entry;
    json_t *list = json_array();

    while (dir != NULL && (entry = readdir(dir)) != NULL) { /* NOLINT(concurrency-mt-unsafe) */
        struct object_sum sum;

        if (object_sum_parse(span_of_str(entry->d_name), &sum) == 0) {
            (void)json_array_append_new(list, json_string(entry->d_name));
        }
    }
    return list;
}

static int give(const char *path, unsigned int uid)
{
    return chown(path, uid, uid) < 0 ? -errno : 0;
}

/* A directory that is the process's own, with a copy of the template's disk. */
int objects_work_prepare(struct objects_get *get)
{
    char path[OBJECTS_PATH_SIZE + 32];
    int r = dir_remove_tree(AT_FDCWD, get->dir);

    if (r == 0 && mkdir(get->dir, 0700) < 0) {
        r = -errno;
    }
    if (r == 0) {
        (void)snprintf(path, sizeof(path), "%s/disk.img", get->dir);
        r = disk_clone(get->template_disk, path, 0, &get->err);
    }
    if (r == 0) {
        r = give(path, get->uid);
    }
    if (r == 0) {
        r = give(get->dir, get->uid);
    }
    if (r == 0) {
        get->dir_fd = open(get->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        r = get->dir_fd < 0 ? -errno : 0;
    }
    if (r < 0 && get->err.code == ERROR_NONE) {
        (void)error_set_code(&get->err, r == -ENOSPC ? ERROR_STORAGE_FULL : ERROR_INTERNAL, NULL,
                             "no directory for the snapshot: %s", strerror(-r));
    }
    if (r == 0) {
        get->request = json_pack("{s:s, s:s, s:s, s:i, s:o}", "job", "get", "owner", get->owner,
                                 "manifest", get->manifest, "dir_fd", (int)OBJECT_FD_FIRST, "have",
                                 list_images(get->images));
        r = get->request == NULL ? error_set(&get->err, ENOMEM, "no memory") : 0;
    }
    return r;
}

/* Of the process's. */
struct source {
    struct place place;
    unsigned int uid;
};

/* A file that nobody else has ever had open, with the same content and time. */
static int copy_own(const struct source *source, const char *into, mode_t mode, struct error *err)
{
    _cleanup_close_ int from = openat(source->place.dir_fd, source->place.name,
                                      O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    _cleanup_close_ int to = -1;
    struct timespec times[2];
    struct stat st;
    char path[32];
    int r;

    if (from < 0 || fstat(from, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != source->uid ||
        st.st_nlink != 1) {
        return error_set(err, EIO, "the snapshot cannot be taken over");
    }
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", from);
    r = disk_clone(path, into, 0, err);
    if (r < 0) {
        return r;
    }
    to = open(into, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    times[0] = st.st_mtim;
    times[1] = st.st_mtim;
    if (to < 0 || fchmod(to, mode) < 0 || futimens(to, times) < 0 || fsync(to) < 0) {
        return error_set(err, errno, "the snapshot cannot be taken over: %s", strerror(errno));
    }
    return 0;
}

static int
take_dir(const struct objects_get *get, const char *prefix, const char *into, struct error *err)
{
    int fd = openat(get->dir_fd, prefix[0] != '\0' ? prefix : ".",
                    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    _cleanup_closedir_ DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;
    int r = 0;

    if (dir == NULL) {
        return error_set(err, EIO, "the snapshot cannot be taken over");
    }
    while (r == 0 && (entry = readdir(dir)) != NULL) { /* NOLINT(concurrency-mt-unsafe) */
        char path[OBJECTS_PATH_SIZE + 400];

        if (!object_name_is_valid(entry->d_name) || strcmp(entry->d_name, "ram") == 0 ||
            (prefix[0] == '\0' && strcmp(entry->d_name, "sessions") == 0)) {
            continue;
        }
        (void)snprintf(path, sizeof(path), "%s/%s", into, entry->d_name);
        r = copy_own(&(struct source){{dirfd(dir), entry->d_name}, get->uid}, path, 0600, err);
    }
    return r;
}

static int take_image(const struct objects_get *get, const char *own, struct error *err)
{
    char image[OBJECTS_PATH_SIZE + 80];
    char fresh[OBJECTS_PATH_SIZE + 96];
    char path[OBJECTS_PATH_SIZE + 32];
    int r = 0;

    (void)snprintf(image, sizeof(image), "%s/%s", get->images, get->base);
    (void)snprintf(fresh, sizeof(fresh), "%s/.new-%s", get->images, get->owner);
    (void)snprintf(path, sizeof(path), "%s/ram", own);
    if (access(image, F_OK) < 0) {
        (void)unlink(fresh);
        r = copy_own(&(struct source){{get->dir_fd, "ram"}, get->uid}, fresh, 0444, err);
        if (r == 0 && rename(fresh, image) < 0) {
            r = error_set(err, errno, "the base image cannot be kept: %s", strerror(errno));
        }
    }
    if (r == 0 && link(image, path) < 0) {
        r = error_set(err, errno, "the base image cannot be used: %s", strerror(errno));
    }
    return r;
}

int objects_work_take(struct objects_get *get)
{
    char own[OBJECTS_PATH_SIZE + 16];
    char sessions[OBJECTS_PATH_SIZE + 32];
    struct stat st;
    int r =
        get->store_is_known ? 0 : objects_work_note_store(get->node->parts->objects, get->store);

    if (r < 0) {
        return error_set(&get->err, -r, "the store cannot be written down: %s", strerror(-r));
    }
    (void)snprintf(own, sizeof(own), "%s.own", get->dir);
    (void)snprintf(sessions, sizeof(sessions), "%s/sessions", own);
    r = dir_remove_tree(AT_FDCWD, own);
    if (r == 0 && (mkdir(own, 0700) < 0 || mkdir(sessions, 0700) < 0)) {
        r = -errno;
    }
    if (r < 0) {
        return error_set(&get->err, -r, "no directory for the snapshot: %s", strerror(-r));
    }
    r = take_image(get, own, &get->err);
    if (r == 0) {
        r = take_dir(get, "", own, &get->err);
    }
    if (r == 0 && fstatat(get->dir_fd, "sessions", &st, AT_SYMLINK_NOFOLLOW) == 0) {
        r = take_dir(get, "sessions", sessions, &get->err);
    }
    if (r == 0) {
        r = dir_remove_tree(AT_FDCWD, get->dir);
        if (r < 0 || rename(own, get->dir) < 0) {
            r = error_set(&get->err, r < 0 ? -r : errno, "the snapshot cannot be put in place");
        }
    }
    if (r < 0) {
        (void)dir_remove_tree(AT_FDCWD, own);
    }
    return r;
}

void objects_drop_images(const char *images)
{
    _cleanup_closedir_ DIR *dir = opendir(images);
    const struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) { /* NOLINT(concurrency-mt-unsafe) */
        struct stat st;

        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode) && st.st_nlink == 1) {
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
        }
    }
}
