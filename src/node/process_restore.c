#include "node/process_restore.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/fd.h"
#include "base/log.h"
#include "node/process_private.h"
#include "node/sandbox.h"

#define PATH_SIZE 560

int process_table_lose_all(struct process_table *table, const char *reason)
{
    struct list *it;
    struct list *following;
    int r = 0;

    process_table_load(table);
    list_foreach(it, following, &table->processes)
    {
        struct process *p = list_entry(it, struct process, link);
        bool is_unsaved = !process_is_ended(p) || !list_is_empty(&p->save_link);

        if (!process_is_ended(p)) {
            process_lose(p, reason);
        }
        if (is_unsaved && !table->ephemeral) {
            r = process_save(p);
        }
        if (r < 0) {
            return r;
        }
    }
    return r;
}

/* Records last: what has none is nobody's. */
static int move_all(DIR *dir, int sessions_fd, bool records)
{
    const struct dirent *entry;
    int r = 0;

    rewinddir(dir);
    /* Only this thread reads this stream. */
    while (r == 0 && (entry = readdir(dir)) != NULL) { /* NOLINT(concurrency-mt-unsafe) */
        size_t n = strnlen(entry->d_name, 64);
        bool is_record = n == ID_LENGTH + 5 && strcmp(&entry->d_name[ID_LENGTH], ".json") == 0;

        if (entry->d_name[0] != '.' && is_record == records &&
            renameat(dirfd(dir), entry->d_name, sessions_fd, entry->d_name) < 0) {
            r = -errno;
        }
    }
    return r;
}

int process_table_restore(struct process_table *table, const char *dir)
{
    _cleanup_closedir_ DIR *from = NULL;
    _cleanup_close_ int to = -1;
    int sandbox_fd = sandbox_dir_fd(table->sandbox);
    char path[PATH_SIZE];
    int r;

    (void)snprintf(path, sizeof(path), "%.500s/sessions", dir);
    from = opendir(path);
    if (from == NULL) {
        return errno == ENOENT ? 0 : -errno;
    }
    r = process_table_lose_all(table, "rolled_back");
    if (r == 0 && mkdirat(sandbox_fd, "sessions", 0700) < 0 && errno != EEXIST) {
        r = -errno;
    }
    if (r < 0) {
        return r;
    }
    to = openat(sandbox_fd, "sessions", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (to < 0) {
        return -errno;
    }
    r = move_all(from, to, false);
    if (r == 0) {
        r = move_all(from, to, true);
    }
    if (r == 0) {
        r = process_load_all(table);
    }
    if (r == 0 && rmdir(path) < 0) {
        r = -errno;
    }
    return r;
}
