/* A full disk must not keep its owner from deleting what fills it. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <sys/stat.h>

#include "api/store.h"
#include "base/cleanup.h"
#include "base/log.h"

#define RESERVE_BYTES 1048576

static void reserve_path(const struct store *store, char out[560])
{
    (void)snprintf(out, 560, "%s-reserve", store_path(store));
}

int store_reserve_check(const struct store *store, struct error *err)
{
    struct stat st;
    char path[560];

    reserve_path(store, path);
    if (access(path, F_OK) < 0 || (stat(store_path(store), &st) == 0 && st.st_size > 0)) {
        return 0;
    }
    return error_set(err, EIO,
                     "%.150s is lost or empty: restore it from a backup (docs/operations.md). To "
                     "begin without records, which deletes every sandbox, remove %.160s",
                     store_path(store), path);
}

void store_reserve_take(const struct store *store)
{
    char path[560];
    _cleanup_close_ int fd = -1;

    reserve_path(store, path);
    if (access(path, F_OK) == 0) {
        return;
    }
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0 && fallocate(fd, 0, 0, RESERVE_BYTES) < 0) {
        (void)unlink(path);
    }
}

bool store_reserve_give_back(const struct store *store)
{
    char path[560];

    reserve_path(store, path);
    if (unlink(path) < 0) {
        return false;
    }
    log_warning("store", "problem=\"the disk is full\" reserve=used");
    return true;
}
