/* Copies of checkpoints: links and a clone, which need the one that they were made of no more. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include <sys/stat.h>

#include "base/fd.h"
#include "node/checkpoint.h"
#include "node/sessions_copy.h"
#include "node/snapshot.h"

static int make_directory(const char *building, struct error *err)
{
    int r = dir_remove_tree(AT_FDCWD, building);

    if (r == 0 && mkdir(building, 0700) < 0) {
        r = -errno;
    }
    return r < 0 ? error_set_code(err, r == -ENOSPC ? ERROR_STORAGE_FULL : ERROR_INTERNAL, NULL,
                                  "the copy's directory cannot be made: %s", strerror(-r))
                 : 0;
}

static int copy_snapshot(const struct checkpoint_copy *copy, struct error *err)
{
    char from[SNAPSHOT_PATH_SIZE + 16];
    char into[SNAPSHOT_PATH_SIZE + 16];
    int r;

    (void)snprintf(from, sizeof(from), "%.460s/snapshot", copy->from);
    (void)snprintf(into, sizeof(into), "%.460s/snapshot", copy->building);
    r = snapshot_is_cold(from) ? snapshot_check_cold(from, copy->facts, err)
                               : snapshot_check(from, copy->facts, err);
    if (r == 0) {
        r = snapshot_copy(from, into, copy->reserve_mib, err);
    }
    if (r == 0) {
        r = snapshot_settle(into);
        return r < 0 ? error_set(err, -r, "the copy cannot be kept: %s", strerror(-r)) : 0;
    }
    return r;
}

int checkpoint_copy(const struct checkpoint_copy *copy,
                    struct checkpoint_info *info,
                    struct error *err)
{
    char from[CHECKPOINT_PATH_SIZE + 16];
    char into[CHECKPOINT_PATH_SIZE + 16];
    int r = make_directory(copy->building, err);

    if (r == 0) {
        (void)snprintf(from, sizeof(from), "%.460s/sessions", copy->from);
        (void)snprintf(into, sizeof(into), "%.460s/sessions", copy->building);
        r = sessions_copy(from, into, NULL, err);
    }
    if (r == 0) {
        r = copy_snapshot(copy, err);
    }
    return r == 0 ? checkpoint_commit(info, copy->building, copy->env, err) : r;
}
