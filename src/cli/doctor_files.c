/* Checks of the installation's files: settings, keys, formats, volume, guest, template. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <linux/major.h>

#include "base/buf.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/distant.h"
#include "cli/doctor.h"
#include "cli/guest_check.h"
#include "cli/installation.h"
#include "cli/text.h"

#define SMALL_FILE_LIMIT 4096U
#define USERS_LIMIT      (4U * 1024U * 1024U)
#define MOUNTS_LIMIT     (4U * 1024U * 1024U)
#define DATA_FORMAT      "1" /* of the data directory, as setup/volume writes it */

static void check_settings(struct doctor *d)
{
    const struct cli *cli = d->cli;
    _cleanup_free_ struct settings *probe = calloc(1, sizeof(*probe));
    struct error err = {0};

    if (cli->has_settings) {
        doctor_put(d, "settings", DOCTOR_OK, NULL, "%s, installation %s", cli->config_path,
                   cli->settings.installation);
        return;
    }
    if (probe != NULL && settings_load(probe, cli->config_path, &err) < 0) {
        doctor_put(d, "settings", DOCTOR_MISSING,
                   "correct the file; " SPACE_SHAREDIR "/space.conf has every key with its default",
                   "%s", err.message);
    }
}

static void check_key(struct doctor *d)
{
    const char *path = d->cli->settings.admin_key_file;
    struct stat st;

    if (stat(path, &st) < 0) {
        if (errno == EACCES) {
            return;
        }
        doctor_put(d, "admin key", DOCTOR_DEGRADED, "space up makes it", "%s: %s", path,
                   strerror(errno));
    } else if ((st.st_mode & 077) != 0) {
        doctor_put(d, "admin key", DOCTOR_DEGRADED, "chmod 600 on it, and make a new key",
                   "%s can be read by others (mode %04o)", path, (unsigned int)st.st_mode & 07777);
    } else {
        doctor_put(d, "admin key", DOCTOR_OK, NULL, "%s, mode %04o", path,
                   (unsigned int)st.st_mode & 07777);
    }
}

static void check_format(struct doctor *d)
{
    _cleanup_buf_ struct buf text = buf_make(SMALL_FILE_LIMIT);
    char path[INSTALLATION_PATH_SIZE];
    struct span version;

    (void)snprintf(path, sizeof(path), "%s/format", d->cli->settings.data_dir);
    if (file_read(AT_FDCWD, path, SMALL_FILE_LIMIT, &text) < 0) {
        doctor_put(d, "data directory", DOCTOR_MISSING, "setup/volume makes it (space up runs it)",
                   "%s is not there or was not set up", d->cli->settings.data_dir);
        return;
    }
    version = span_head(buf_span(&text), span_find(buf_span(&text), 0, '\n'));
    if (span_equals_str(version, DATA_FORMAT)) {
        doctor_put(d, "data directory", DOCTOR_OK, NULL, "%s, format %s", d->cli->settings.data_dir,
                   DATA_FORMAT);
    } else {
        doctor_put(d, "data directory", DOCTOR_MISSING,
                   "use the version of SPACE that made it, or another data_dir",
                   "%s has format %.*s, this version reads " DATA_FORMAT, d->cli->settings.data_dir,
                   (int)(version.n < 20 ? version.n : 20), (const char *)version.p);
    }
}

/* It has all that is in the sandboxes, whatever the modes inside. */
static void check_image(struct doctor *d)
{
    char path[INSTALLATION_PATH_SIZE];
    char remedy[2 * INSTALLATION_PATH_SIZE + 40];
    struct stat st;

    (void)snprintf(path, sizeof(path), "%s/volume.img", d->cli->settings.data_dir);
    if (stat(path, &st) < 0) {
        return; /* a directory, or not for this user to see */
    }
    if ((st.st_mode & 077) == 0 && st.st_uid == 0) {
        doctor_put(d, "volume image", DOCTOR_OK, NULL, "%s, root's alone", path);
        return;
    }
    (void)snprintf(remedy, sizeof(remedy), "chown 0:0 %s; chmod 0600 %s", path, path);
    doctor_put(d, "volume image", DOCTOR_MISSING, remedy,
               "%s can be read by others, and with it every sandbox (mode %03o)", path,
               (unsigned int)(st.st_mode & 0777));
}

static bool is_on_loop(const char *path, struct stat *ret)
{
    return stat(path, ret) == 0 && major(ret->st_dev) == LOOP_MAJOR;
}

/* Whether the filesystem's options, the last word of a line of mountinfo, have `discard`. */
static bool has_discard(struct span line)
{
    const char *space = memrchr(line.p, ' ', line.n);
    struct span options =
        span_skip(line, (size_t)(space != NULL ? space - (const char *)line.p : 0));

    while (options.n > 0) {
        options = span_skip(options, 1);
        if (span_equals_str(span_head(options, span_find(options, 0, ',')), "discard")) {
            return true;
        }
        options = span_skip(options, span_find(options, 0, ','));
    }
    return false;
}

/* Whether the image is mounted so that what is free in it goes back to the filesystem below. */
static bool gives_space_back(const char *path)
{
    _cleanup_buf_ struct buf text = buf_make(MOUNTS_LIMIT);
    char device[32];
    struct stat st;
    struct span rest;

    if (!is_on_loop(path, &st) ||
        file_read(AT_FDCWD, "/proc/self/mountinfo", MOUNTS_LIMIT, &text) < 0) {
        return false;
    }
    (void)snprintf(device, sizeof(device), " %u:%u ", major(st.st_dev), minor(st.st_dev));
    rest = buf_span(&text);
    while (rest.n > 0) {
        struct span line = span_head(rest, span_find(rest, 0, '\n'));

        rest = span_skip(rest, line.n + 1);
        if (memmem(line.p, line.n, device, strlen(device)) != NULL && has_discard(line)) {
            return true;
        }
    }
    return false;
}

/* Whether a filesystem's device is a loop device that the page cache is between. */
static bool is_buffered_loop(const char *path)
{
    _cleanup_buf_ struct buf text = buf_make(SMALL_FILE_LIMIT);
    char attribute[64];
    struct stat st;

    if (!is_on_loop(path, &st)) {
        return false;
    }
    (void)snprintf(attribute, sizeof(attribute), "/sys/dev/block/%u:%u/loop/dio", major(st.st_dev),
                   minor(st.st_dev));
    return file_read(AT_FDCWD, attribute, SMALL_FILE_LIMIT, &text) == 0 &&
           span_equals_str(buf_span(&text), "0\n");
}

static bool check_volume(struct doctor *d)
{
    const char *data_dir = d->cli->settings.data_dir;
    _cleanup_buf_ struct buf kind = buf_make(SMALL_FILE_LIMIT);
    char path[INSTALLATION_PATH_SIZE];
    struct span text;

    (void)snprintf(path, sizeof(path), "%s/volume/.space-volume", data_dir);
    if (file_read(AT_FDCWD, path, SMALL_FILE_LIMIT, &kind) < 0) {
        doctor_put(d, "volume", DOCTOR_MISSING, "space up mounts it",
                   "%s/volume is not mounted or was not made", data_dir);
        return false;
    }
    text = span_head(buf_span(&kind), span_find(buf_span(&kind), 0, '\n'));
    if (span_equals_str(text, "plain directory")) {
        doctor_put(d, "volume", DOCTOR_DEGRADED,
                   "put data_dir on XFS or btrfs, or make loop devices and XFS available",
                   "no reflink: each sandbox copies its template's disk");
    } else if (gives_space_back(path)) {
        doctor_put(d, "volume", DOCTOR_DEGRADED, "space down, then space up mounts it anew",
                   "%.*s, mounted with discard: what is free in it goes to others, and writes in "
                   "sandboxes may find no room",
                   (int)text.n, (const char *)text.p);
    } else if (is_buffered_loop(path)) {
        doctor_put(d, "volume", DOCTOR_DEGRADED,
                   "space down and space up attach it anew; where that does not help, put data_dir "
                   "on a filesystem with direct I/O (ext4, XFS, btrfs)",
                   "%.*s, without direct I/O: its data is in the host's memory twice", (int)text.n,
                   (const char *)text.p);
    } else {
        doctor_put(d, "volume", DOCTOR_OK, NULL, "%.*s", (int)text.n, (const char *)text.p);
    }
    check_image(d);
    return true;
}

static void check_space(struct doctor *d)
{
    const struct settings *s = &d->cli->settings;
    char path[INSTALLATION_PATH_SIZE];
    char text[TEXT_SHORT_SIZE];
    struct statvfs fs;
    uint64_t free_mib;

    (void)snprintf(path, sizeof(path), "%s/volume", s->data_dir);
    if (statvfs(path, &fs) < 0) {
        return;
    }
    free_mib = (uint64_t)fs.f_bavail * fs.f_frsize / 1048576;
    text_format_mib(free_mib, text);
    if (free_mib < s->node_disk_reserve_mib) {
        doctor_put(d, "free space", DOCTOR_MISSING, "space rm what is not needed; a larger volume",
                   "%s on the volume, below node.disk_reserve_mib: creates are refused", text);
    } else if (free_mib < 2 * s->node_disk_reserve_mib) {
        doctor_put(d, "free space", DOCTOR_DEGRADED, "space rm what is not needed",
                   "%s on the volume, near node.disk_reserve_mib", text);
    } else {
        doctor_put(d, "free space", DOCTOR_OK, NULL, "%s on the volume", text);
    }
}

static void check_there(struct doctor *d, const char *name, const char *below, const char *remedy)
{
    char path[INSTALLATION_PATH_SIZE + 64];

    (void)snprintf(path, sizeof(path), "%s/%s", d->cli->settings.data_dir, below);
    if (access(path, F_OK) == 0) {
        doctor_put(d, name, DOCTOR_OK, NULL, "%s", path);
    } else {
        doctor_put(d, name, DOCTOR_MISSING, remedy, "%s: %s", path, strerror(errno));
    }
}

static void check_guest(struct doctor *d)
{
    if (guest_check(d->cli) == GUEST_CHECK_STALE) {
        doctor_put(d, "guest kernel", DOCTOR_DEGRADED, "space up builds it anew",
                   "the agent in %s/guest is of another version than what is installed",
                   d->cli->settings.data_dir);
    } else {
        check_there(d, "guest kernel", "guest/vmlinuz", "setup/guest fetches it");
    }
}

/* Numbers of a colon-separated line: field `index` (0 is the first). */
static int line_number(struct span line, unsigned int index, uint64_t *ret)
{
    for (unsigned int i = 0; i < index; i++) {
        line = span_skip(line, span_find(line, 0, ':') + 1);
    }
    return span_parse_u64(span_head(line, span_find(line, 0, ':')), UINT32_MAX, ret);
}

/* The first line of a file whose numbers (at `first`, or from `first` on `count` many) meet the
 * range of VMM uids; empty when none does. */
static struct span
find_overlap(const struct settings *s, struct span text, unsigned int first, bool has_count)
{
    uint64_t range_end = s->node_vmm_uid_first + s->node_vmm_uid_count;

    while (text.n > 0) {
        struct span line = span_head(text, span_find(text, 0, '\n'));
        uint64_t from;
        uint64_t count = 1;

        text = span_skip(text, line.n + 1);
        if (line_number(line, first, &from) == 0 &&
            (!has_count || line_number(line, first + 1, &count) == 0) && from < range_end &&
            from + count > s->node_vmm_uid_first) {
            return line;
        }
    }
    return span_make(NULL, 0);
}

static void check_uids(struct doctor *d)
{
    static const struct {
        const char *path;
        unsigned int field;
        bool has_count;
    } sources[] = {{"/etc/passwd", 2, false}, {"/etc/subuid", 1, true}};
    const struct settings *s = &d->cli->settings;

    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
        _cleanup_buf_ struct buf text = buf_make(USERS_LIMIT);
        struct span line;

        if (file_read(AT_FDCWD, sources[i].path, USERS_LIMIT, &text) < 0) {
            continue;
        }
        line = find_overlap(s, buf_span(&text), sources[i].field, sources[i].has_count);
        if (line.n > 0) {
            doctor_put(d, "uid range", DOCTOR_DEGRADED, "set another node.vmm_uid_first",
                       "%" PRIu64 " to %" PRIu64 " overlaps %s: %.*s", s->node_vmm_uid_first,
                       s->node_vmm_uid_first + s->node_vmm_uid_count - 1, sources[i].path,
                       (int)span_find(line, 0, ':'), (const char *)line.p);
            return;
        }
    }
    doctor_put(d, "uid range", DOCTOR_OK, NULL, "%" PRIu64 " to %" PRIu64 " overlaps no user",
               s->node_vmm_uid_first, s->node_vmm_uid_first + s->node_vmm_uid_count - 1);
}

/* A directory of the operator's own; the node says what is wrong with it only once it stores
 * something. */
static void check_store_directory(struct doctor *d)
{
    const struct settings *s = &d->cli->settings;
    char remedy[SETTINGS_PATH_SIZE + 120];
    struct stat st;
    int r = s->objects_store[0] == '/' ? distant_stat(s->objects_store, &st) : -EACCES;

    if (r == -EACCES) {
        return;
    }
    (void)snprintf(remedy, sizeof(remedy),
                   "mount its disk; or make it: install -d -m 0700 -o %" PRIu64 " -g %" PRIu64
                   " %s",
                   s->node_vmm_uid_first, s->node_vmm_uid_first, s->objects_store);
    if (r == -ETIMEDOUT) {
        doctor_put(d, "object store", DOCTOR_DEGRADED, "see whether its server answers",
                   "objects.store = %s does not answer", s->objects_store);
    } else if (r < 0) {
        doctor_put(d, "object store", DOCTOR_DEGRADED, remedy, "objects.store = %s: %s",
                   s->objects_store, strerror(-r));
    } else if (!S_ISDIR(st.st_mode)) {
        doctor_put(d, "object store", DOCTOR_DEGRADED, "name a directory",
                   "objects.store = %s is no directory", s->objects_store);
    } else if (st.st_uid != s->node_vmm_uid_first) {
        doctor_put(d, "object store", DOCTOR_DEGRADED, remedy,
                   "objects.store = %s belongs to uid %u, not to the store's process",
                   s->objects_store, st.st_uid);
    } else {
        doctor_put(d, "object store", DOCTOR_OK, NULL, "%s", s->objects_store);
    }
}

void doctor_check_files(struct doctor *d)
{
    bool has_volume;

    check_settings(d);
    if (!d->cli->has_settings) {
        return;
    }
    check_key(d);
    check_format(d);
    has_volume = check_volume(d);
    if (has_volume) {
        check_space(d); /* else it would be that of another file system */
    }
    check_guest(d);
    if (has_volume) {
        check_there(d, "template base", "volume/templates/base/current",
                    "setup/template base builds it");
    }
    check_store_directory(d);
    check_uids(d);
    if (geteuid() == 0) {
        doctor_check_journals(d);
    }
}
