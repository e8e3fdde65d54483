#include "node/capture_gate.h"

#include <errno.h>

#include "base/log.h"
#include "io/loop.h"
#include "node/node_private.h"
#include "node/sandbox_capture.h"

static struct sandbox_capture *capture_of(struct list *it)
{
    return list_entry(it, struct sandbox_capture, turn);
}

static unsigned int rank(const struct sandbox_capture *c)
{
    if (c->is_silent) {
        return 2; /* its guest stands still meanwhile */
    }
    return c->is_urgent ? 1 : 0;
}

/* In front of all that wait less urgently. */
static void queue(struct list *waiting, struct sandbox_capture *c)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, waiting)
    {
        if (rank(c) > rank(capture_of(it))) {
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

static void give_place(struct sandbox_capture *c)
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

static void on_patience(void *arg)
{
    struct sandbox_capture *c = arg;

    log_info("capture_place_lost", "sandbox=%s", c->sb->info.id);
    give_place(c);
}

int capture_gate_init(struct sandbox_capture *c, struct sandbox *sb)
{
    c->sb = sb;
    c->node = sb->node;
    list_init(&c->turn);
    c->patience = loop_timer_new(c->node->loop, on_patience, c);
    return c->patience == NULL ? -ENOMEM : 0;
}

void capture_gate_enter(struct sandbox_capture *c, void (*go)(struct sandbox *sb))
{
    struct node_parts *parts = c->node->parts;

    c->go = go;
    c->is_urgent = c->is_urgent && !c->sb->was_loud;
    if (parts->captures < CAPTURES_MAX) {
        admit(c);
    } else {
        queue(&parts->captures_waiting, c);
    }
}

void capture_gate_ask(struct sandbox_capture *c)
{
    loop_timer_start(c->patience, CAPTURE_PATIENCE_MS);
}

void capture_gate_answered(struct sandbox_capture *c, void (*go)(struct sandbox *sb))
{
    loop_timer_stop(c->patience);
    c->is_silent = true;
    if (c->has_place) {
        go(c->sb);
    } else {
        capture_gate_enter(c, go);
    }
}

void capture_gate_leave(struct sandbox_capture *c)
{
    loop_timer_free(TAKE(c->patience));
    give_place(c);
}
