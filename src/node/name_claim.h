/* Whose the names on this host are.
 *
 * Control groups, namespaces and uids of VMMs go by the installation's name and range, and what
 * bears them and belongs to no sandbox is killed at a start. So a name has one owner, which no
 * setting can move: the lock of its control group while a daemon runs, and a mark on that group
 * (an extended attribute: data directory, by id and path, and uids) while VMs live, with a daemon
 * or without. Both are where the VMs are, also for containers that share no /run. What is left
 * behind by a killed installation without VMs holds nothing. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "node/cgroup.h"

struct name_claim {
    const char *installation;
    const char *data_dir;
    uint64_t uid_first;
    uint64_t uid_count;
    const char *data_id; /* data_id.h; NULL or "": none yet */
};

/* Takes the name: locks the control group, waiting up to 5 s for a daemon that is ending. The lock
 * goes with the descriptor. -EADDRINUSE with a remedy: it is another's; -ESTALE: the group was
 * removed meanwhile, and is to be made again. Blocks. */
int name_claim_take(const struct cgroup *cg,
                    const struct name_claim *claim,
                    int *ret_fd,
                    struct error *err) _must_check_;
/* Marks the name, which is locked, as this one's, and looks for other installations whose uids are
 * among these: -EADDRINUSE with both names. */
int name_claim_mark(const struct cgroup *cg, const struct name_claim *claim, struct error *err)
    _must_check_;
