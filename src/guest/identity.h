/* What makes one guest different from the others that came from the same snapshot. */
#pragma once

#include <stdbool.h>

#include "base/buf.h"
#include "wire/agent_message.h"

struct identity {
    bool is_guest;
    bool confirmed;     /* every part of the epoch's identity is in place */
    bool was_confirmed; /* before the last silence */
    bool ever_confirmed;
    bool keys_removed; /* host keys of another guest, and nobody was told yet */
    uint64_t epoch;
    uint8_t boot_id[AGENT_ID_BYTES];
    uint8_t machine_id[AGENT_ID_BYTES];
    struct buf env; /* blocks, as struct agent_strings has them */
    uint32_t env_count;
    int random_fd;
    int boot_id_fd;
    int cgroup_fd; /* the root of all control groups */
};

/* Opens what is needed later and, in a guest, binds a file over the kernel's boot_id. */
void identity_init(struct identity *i, bool is_guest);
void identity_done(struct identity *i);
/* Puts every part in place; ret says what was done. */
void identity_apply(struct identity *i,
                    const struct agent_identity *m,
                    struct agent_identity_ok *ret);
/* When all of it is in place and before anything frozen goes on: makes keys for an ssh server that
 * has none, and runs the guest's own programs (hooks.h). */
void identity_tell(struct identity *i);
/* Goes through all of it once with values that mean nothing (RESET), so that files have their size
 * and, under emulation, the code is translated when an identity comes. */
void identity_rehearse(struct identity *i);
/* Silence: unconfirmed until the next identity. */
void identity_suspend(struct identity *i);
/* The wall clock. 0 or -errno. */
int identity_set_clock(uint64_t realtime_ns);
/* WAKE: still the same guest. */
void identity_restore(struct identity *i);
