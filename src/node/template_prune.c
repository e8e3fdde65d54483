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

/* When it was published: the time of its record. 0 or -errno. */
static int publication(int dir_fd, const char *version, struct timespec *ret)
{
    char path[ID_SIZE + 32];
    struct stat st;

    (void)snprintf(path, sizeof(path), "%.24s/template.json", version);
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

/* Those of a version that no record holds: nobody maps them, or has what is mapped open. */
static void remove_bases(const char *volume, const char *version)
{
    char path[PRUNE_PATH];
    _cleanup_closedir_ DIR *dir = NULL;
    struct dirent *entry;
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

/* The record first: what is left after a kill is no version any more, and `current` never names it.
 */
static int remove_version(int dir_fd, const char *version)
{
    char path[ID_SIZE + 32];

    (void)snprintf(path, sizeof(path), "%.24s/template.json", version);
    if (unlinkat(dir_fd, path, 0) < 0 && errno != ENOENT) {
        return -errno;
    }
    return dir_remove_tree(dir_fd, version);
}

static unsigned int
prune_template(const char *volume, const char *name, const char (*keep)[ID_SIZE], size_t keep_count)
{
    char path[PRUNE_PATH];
    char current[ID_SIZE + 1];
    _cleanup_closedir_ DIR *dir = NULL;
    struct dirent *entry;
    struct timespec newest = {0};
    unsigned int count = 0;
    ssize_t n;

    (void)snprintf(path, sizeof(path), "%.400s/templates/%.64s", volume, name);
    dir = opendir(path);
    if (dir == NULL) {
        return 0;
    }
    n = readlinkat(dirfd(dir), "current", current, sizeof(current) - 1);
    if (n < 0) {
        return 0;
    }
    current[n] = '\0';
    if (!id_is_valid(current, "tm") || publication(dirfd(dir), current, &newest) < 0) {
        return 0; /* nothing goes where it is not clear what is in use */
    }
    while ((entry = readdir(dir)) != NULL) {
        struct timespec time = {0};
        int r;

        if (!id_is_valid(entry->d_name, "tm") || strcmp(entry->d_name, current) == 0 ||
            is_kept(entry->d_name, keep, keep_count)) {
            continue;
        }
        r = publication(dirfd(dir), entry->d_name, &time);
        if (r < 0 ? r != -ENOENT : !is_older(&time, &newest)) {
            continue;
        }
        remove_bases(volume, entry->d_name);
        r = remove_version(dirfd(dir), entry->d_name);
        log_info("template_pruned", "template=%s version=%s error=%s", name, entry->d_name,
                 r < 0 ? strerror(-r) : "-");
        count += r == 0;
    }
    return count;
}

unsigned int template_prune(const char *volume, const char (*keep)[ID_SIZE], size_t keep_count)
{
    char path[PRUNE_PATH];
    _cleanup_closedir_ DIR *dir = NULL;
    struct dirent *entry;
    unsigned int count = 0;

    (void)snprintf(path, sizeof(path), "%.400s/templates", volume);
    dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (template_name_is_valid(entry->d_name)) {
            count += prune_template(volume, entry->d_name, keep, keep_count);
        }
    }
    return count;
}
