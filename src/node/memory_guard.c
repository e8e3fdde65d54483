#include "node/memory_guard.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "io/loop.h"
#include "node/node_private.h"
#include "node/pool.h"
#include "node/sandbox_capture.h"
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

static void wait_for(struct memory_guard *guard, unsigned int slot)
{
    guard->slot = slot;
    guard->vm = guard->node->parts->slots[slot];
    guard->waited = 0;
}

/* Its memory is being written down: it goes by itself, or what was written so far would be lost. */
static bool is_captured(const struct node *node, const struct vm *vm)
{
    const struct list *head = &node->parts->sandboxes->sandboxes;

    for (struct list *it = head->next; it != head; it = it->next) {
        const struct sandbox *sb = list_entry(it, struct sandbox, link);

        if (sb->vm == vm) {
            return sb->capture != NULL && sb->capture->is_silent;
        }
    }
    return false;
}

/* The slot of the one that uses most, 0: none. */
static unsigned int find_largest(const struct node *node, bool spares, uint64_t *ret_bytes)
{
    const struct node_parts *parts = node->parts;
    unsigned int found = 0;

    *ret_bytes = 0;
    for (unsigned int slot = 1; slot < parts->slot_count; slot++) {
        struct cgroup_memory memory;

        if (parts->slots[slot] != NULL && cgroup_read_memory(&parts->cgroup, slot, &memory) == 0 &&
            memory.fixed_bytes > *ret_bytes && !(spares && is_captured(node, parts->slots[slot]))) {
            *ret_bytes = memory.fixed_bytes;
            found = slot;
        }
    }
    return found;
}

static void end_largest(struct memory_guard *guard)
{
    struct node_parts *parts = guard->node->parts;
    uint64_t most;
    unsigned int found = find_largest(guard->node, true, &most);

    if (found == 0) {
        found = find_largest(guard->node, false, &most);
    }
    if (found == 0) {
        return;
    }
    log_warning("memory_guard", "slot=%u mib=%llu", found, (unsigned long long)(most >> 20));
    wait_for(guard, found);
    vm_fail(parts->slots[found], "out_of_memory",
            "all sandboxes together used the memory that this machine has for them, and this one "
            "most of it");
}

/* Those that wait in a pool hold nothing that anybody would miss, and all of them go at once: each
 * period that passes here, every VMM stands still for want of memory. */
static void make_room(struct memory_guard *guard)
{
    unsigned int slot = 0;
    unsigned int count = 0;

    while (pool_yield(guard->node->parts->pool, &slot)) {
        wait_for(guard, slot);
        count++;
    }
    if (count == 0) {
        end_largest(guard);
        return;
    }
    log_info("pool_yields", "count=%u", count);
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
        make_room(guard);
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
