#include "node/gate.h"

#include <errno.h>

#include "io/loop.h"

static void let_in(struct gate *gate)
{
    struct gate_ticket *ticket = list_entry(gate->waiting.next, struct gate_ticket, link);

    list_remove(&ticket->link);
    list_append(&gate->inside, &ticket->link);
    gate->waiting_count--;
    gate->inside_count++;
    ticket->is_inside = true;
    ticket->fn(ticket->arg);
}

static void on_timer(void *arg)
{
    struct gate *gate = arg;

    while (gate->inside_count < gate->limit && !list_is_empty(&gate->waiting)) {
        let_in(gate);
    }
}

int gate_init(struct gate *gate, struct loop *loop, unsigned int limit, unsigned int waiting_max)
{
    list_init(&gate->inside);
    list_init(&gate->waiting);
    gate->inside_count = 0;
    gate->waiting_count = 0;
    gate->limit = limit;
    gate->waiting_max = waiting_max;
    gate->timer = loop_timer_new(loop, on_timer, gate);
    return gate->timer != NULL ? 0 : -ENOMEM;
}

void gate_flush(struct gate *gate)
{
    while (!list_is_empty(&gate->waiting)) {
        let_in(gate);
    }
}

void gate_done(struct gate *gate)
{
    gate_flush(gate);
    while (!list_is_empty(&gate->inside)) {
        struct gate_ticket *ticket = list_entry(gate->inside.next, struct gate_ticket, link);

        list_remove(&ticket->link);
        ticket->gate = NULL;
    }
    loop_timer_free(gate->timer);
    gate->timer = NULL;
}

int gate_enter(struct gate *gate, struct gate_ticket *ticket, void (*fn)(void *arg), void *arg)
{
    if (gate->inside_count + gate->waiting_count >= gate->limit + gate->waiting_max) {
        return -EDQUOT;
    }
    ticket->gate = gate;
    ticket->is_inside = false;
    ticket->fn = fn;
    ticket->arg = arg;
    list_append(&gate->waiting, &ticket->link);
    gate->waiting_count++;
    loop_timer_start(gate->timer, 0);
    return 0;
}

void gate_leave(struct gate_ticket *ticket)
{
    struct gate *gate = ticket->gate;

    if (gate == NULL) {
        return;
    }
    ticket->gate = NULL;
    list_remove(&ticket->link);
    if (!ticket->is_inside) {
        gate->waiting_count--;
        return;
    }
    gate->inside_count--;
    if (!list_is_empty(&gate->waiting)) {
        loop_timer_start(gate->timer, 0);
    }
}
