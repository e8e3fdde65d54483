#include "node/memory_guard.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "io/loop.h"
#include "node/node_private.h"
#include "node/vm.h"

#define PERIOD_MS  1000
#define KEPT_LEAST (48ULL * 1048576)
#define KEPT_PART  64U
#define PATIENCE   10U /* periods in which the one that was ended may be ending */

struct memory_guard {
    struct node *node;
    struct loop_timer *timer;
    unsigned int slot; /* of the one that was ended last, 0: it is gone */
    const struct vm *vm;
    unsigned int waited;
};

uint64_t memory_guard_kept(uint64_t limit_bytes)
{
    uint64_t part = limit_bytes / KEPT_PART;

    return part > KEPT_LEAST ? part : KEPT_LEAST;
}

/* Its memory comes back in a moment. */
static bool is_one_ending(struct memory_guard *guard)
{
    if (guard->slot == 0 || guard->node->parts->slots[guard->slot] != guard->vm ||
        ++guard->waited > PATIENCE) {
        guard->slot = 0;
        guard->waited = 0;
        return false;
    }
    return true;
}

static void end_largest(struct memory_guard *guard)
{
    struct node_parts *parts = guard->node->parts;
    uint64_t most = 0;
    unsigned int found = 0;

    for (unsigned int slot = 1; slot < parts->slot_count; slot++) {
        struct cgroup_memory memory;

        if (parts->slots[slot] != NULL && cgroup_read_memory(&parts->cgroup, slot, &memory) == 0 &&
            memory.fixed_bytes > most) {
            most = memory.fixed_bytes;
            found = slot;
        }
    }
    if (found == 0) {
        return;
    }
    log_warning("memory_guard", "slot=%u mib=%llu", found, (unsigned long long)(most >> 20));
    guard->slot = found;
    guard->vm = parts->slots[found];
    guard->waited = 0;
    vm_fail(parts->slots[found], "out_of_memory",
            "all sandboxes together used the memory that this machine has for them, and this one "
            "most of it");
}

static void on_timer(void *arg)
{
    struct memory_guard *guard = arg;
    const struct cgroup *cgroup = &guard->node->parts->cgroup;
    struct cgroup_memory memory;

    loop_timer_start(guard->timer, PERIOD_MS);
    if (is_one_ending(guard) || !cgroup_is_memory_near(cgroup, memory_guard_kept) ||
        cgroup_read_memory(cgroup, CGROUP_PARENT, &memory) < 0) {
        return;
    }
    if (memory.fixed_bytes + memory_guard_kept(memory.limit_bytes) > memory.limit_bytes) {
        end_largest(guard);
    }
}

struct memory_guard *memory_guard_new(struct node *node, struct error *err)
{
    struct memory_guard *guard = calloc(1, sizeof(*guard));

    if (guard != NULL) {
        guard->node = node;
        guard->timer = loop_timer_new(node->loop, on_timer, guard);
    }
    if (guard == NULL || guard->timer == NULL) {
        free(guard);
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    return guard;
}

void memory_guard_start(struct memory_guard *guard)
{
    loop_timer_start(guard->timer, PERIOD_MS);
}

void memory_guard_free(struct memory_guard *guard)
{
    if (guard != NULL) {
        loop_timer_free(guard->timer);
        free(guard);
    }
}
