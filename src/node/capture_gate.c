#include "node/capture_gate.h"

#include "node/node_private.h"
#include "node/sandbox_capture.h"

static struct sandbox_capture *capture_of(struct list *it)
{
    return list_entry(it, struct sandbox_capture, turn);
}

/* In front of all that wait less urgently. */
static void queue(struct list *waiting, struct sandbox_capture *c)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, waiting)
    {
        if (c->is_urgent && !capture_of(it)->is_urgent) {
            break;
        }
    }
    list_append(it, &c->turn);
}

static void admit(struct sandbox_capture *c)
{
    c->node->parts->captures++;
    c->has_place = true;
    c->go(c->sb);
}

void capture_gate_enter(struct sandbox_capture *c, void (*go)(struct sandbox *sb))
{
    struct node_parts *parts = c->node->parts;

    c->go = go;
    if (parts->captures < CAPTURES_MAX) {
        admit(c);
    } else {
        queue(&parts->captures_waiting, c);
    }
}

void capture_gate_leave(struct sandbox_capture *c)
{
    struct node_parts *parts = c->node->parts;

    list_remove(&c->turn);
    if (!c->has_place) {
        return;
    }
    c->has_place = false;
    parts->captures--;
    if (!list_is_empty(&parts->captures_waiting)) {
        struct sandbox_capture *next = capture_of(parts->captures_waiting.next);

        list_remove(&next->turn);
        admit(next);
    }
}
