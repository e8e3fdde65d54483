#include "node/restore_gate.h"

#include <sys/sysinfo.h>

#include "node/node_private.h"
#include "node/sandbox_private.h"

#define RESTORES_PER_CPU 2U
#define RESTORES_MIN     4U

static unsigned int places(void)
{
    unsigned int count = RESTORES_PER_CPU * (unsigned int)get_nprocs();

    return count < RESTORES_MIN ? RESTORES_MIN : count;
}

static void admit(struct sandbox *sb)
{
    sb->node->parts->restores++;
    sb->gate.has_place = true;
    sb->gate.go(sb);
}

void restore_gate_enter(struct sandbox *sb, void (*go)(struct sandbox *sb))
{
    struct node_parts *parts = sb->node->parts;

    sb->gate.go = go;
    if (parts->restores < places()) {
        admit(sb);
    } else {
        list_append(&parts->restores_waiting, &sb->gate.link);
    }
}

void restore_gate_leave(struct sandbox *sb)
{
    struct node_parts *parts = sb->node->parts;

    if (sb->gate.go == NULL) {
        return;
    }
    list_remove(&sb->gate.link);
    sb->gate.go = NULL;
    if (!sb->gate.has_place) {
        return;
    }
    sb->gate.has_place = false;
    parts->restores--;
    if (!list_is_empty(&parts->restores_waiting) && !parts->stopping) {
        struct list *first = parts->restores_waiting.next;

        list_remove(first);
        admit(list_entry(first, struct sandbox, gate.link));
    }
}
