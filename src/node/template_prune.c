#include "node/template_prune.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/span.h"
#include "node/template.h"
#include "node/template_files.h"

#define PRUNE_PATH 512U

/* ---- what may go ---- */

static bool is_kept(const char *version, const char (*keep)[ID_SIZE], size_t keep_count)
{
    for (size_t i = 0; i < keep_count; i++) {
        if (strcmp(keep[i], version) == 0) {
            return true;
        }
    }
    return false;
}

/* When it was published, or deleted: the time of its record. 0 or -errno. */
static int time_of(int dir_fd, const char *version, const char *record, struct timespec *ret)
{
    char path[ID_SIZE + 32];
    struct stat st;

    *ret = (struct timespec){0, 0};
    (void)snprintf(path, sizeof(path), "%.24s/%s", version, record);
    if (fstatat(dir_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        return -errno;
    }
    *ret = st.st_mtim;
    return 0;
}

static bool is_older(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

/* ---- removal ---- */

/* The record first: what is left after a kill is no version any more, and `current` never names it.
 */
static int remove_version(int dir_fd, const char *version)
{
    static const char *const records[] = {TEMPLATE_RECORD, TEMPLATE_REMOVED};
    char path[ID_SIZE + 32];

    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%.24s/%s", version, records[i]);
        if (unlinkat(dir_fd, path, 0) < 0 && errno != ENOENT) {
            return -errno;
        }
    }
    return dir_remove_tree(dir_fd, version);
}

struct prune {
    const char *volume;
    const char (*keep)[ID_SIZE];
    size_t keep_count;
    struct timespec as_of;
    unsigned int waiting;
    char current[ID_SIZE + 1]; /* of the name that is looked at; "": unclear */
    struct timespec newest;    /* when that was published */
};

static void read_current(struct prune *p, int dir_fd)
{
    ssize_t n = readlinkat(dir_fd, "current", p->current, sizeof(p->current) - 1);

    p->current[n < 0 ? 0 : n] = '\0';
    if (!id_is_valid(p->current, "tm") ||
        time_of(dir_fd, p->current, TEMPLATE_RECORD, &p->newest) < 0) {
        p->current[0] = '\0';
    }
}

/* Nothing that was not deleted goes where it is not clear what is in use. */
static bool may_go(const struct prune *p, int dir_fd, const char *name, const char *version)
{
    struct template_info t;
    struct timespec time;

    if (is_kept(version, p->keep, p->keep_count)) {
        return false;
    }
    if (time_of(dir_fd, version, TEMPLATE_REMOVED, &time) == 0) {
        return is_older(&time, &p->as_of);
    }
    return p->current[0] != '\0' && strcmp(version, p->current) != 0 &&
           time_of(dir_fd, version, TEMPLATE_RECORD, &time) == 0 && is_older(&time, &p->newest) &&
           (template_load(p->volume, name, version, &t, NULL) < 0 || t.checkpoint_id[0] == '\0');
}

static bool is_removed(int dir_fd, const char *version)
{
    struct timespec time;

    return time_of(dir_fd, version, TEMPLATE_REMOVED, &time) == 0;
}

static unsigned int prune_template(struct prune *p, const char *name)
{
    char path[PRUNE_PATH];
    _cleanup_closedir_ DIR *dir = NULL;
    struct dirent *entry;
    unsigned int count = 0;

    (void)snprintf(path, sizeof(path), "%.400s/templates/%.64s", p->volume, name);
    dir = opendir(path);
    if (dir == NULL) {
        return 0;
    }
    read_current(p, dirfd(dir));
    while ((entry = readdir(dir)) != NULL) {
        int r;

        if (!id_is_valid(entry->d_name, "tm")) {
            continue;
        }
        if (!may_go(p, dirfd(dir), name, entry->d_name)) {
            p->waiting += is_removed(dirfd(dir), entry->d_name);
            continue;
        }
        template_files_remove_bases(p->volume, entry->d_name);
        r = remove_version(dirfd(dir), entry->d_name);
        log_info("template_pruned", "template=%s version=%s error=%s", name, entry->d_name,
                 r < 0 ? strerror(-r) : "-");
        count += r == 0;
    }
    if (count > 0) {
        (void)rmdir(path); /* fails while there is another version */
    }
    return count;
}

unsigned int template_prune(const char *volume,
                            const char (*keep)[ID_SIZE],
                            size_t keep_count,
                            int64_t as_of_ms,
                            unsigned int *ret_waiting)
{
    struct prune p = {.volume = volume,
                      .keep = keep,
                      .keep_count = keep_count,
                      .as_of = {.tv_sec = as_of_ms / 1000, .tv_nsec = as_of_ms % 1000 * 1000000}};
    char path[PRUNE_PATH];
    _cleanup_closedir_ DIR *dir = NULL;
    struct dirent *entry;
    unsigned int count = 0;

    (void)snprintf(path, sizeof(path), "%.400s/templates", volume);
    dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (template_name_is_valid(entry->d_name)) {
            count += prune_template(&p, entry->d_name);
        }
    }
    *ret_waiting = p.waiting;
    return count;
}
