/* A gate lets so many through at once; more wait in order, up to a limit of their own. */
#pragma once

#include <stdbool.h>

#include "base/list.h"

struct loop;
struct loop_timer;

struct gate {
    struct list inside;
    struct list waiting;
    unsigned int inside_count;
    unsigned int waiting_count;
    unsigned int limit;
    unsigned int waiting_max;
    struct loop_timer *timer; /* lets the next ones in, from the loop */
};

/* Embedded in who wants through; zeroed before gate_enter. */
struct gate_ticket {
    struct list link;
    struct gate *gate; /* NULL: in none */
    bool is_inside;
    void (*fn)(void *arg);
    void *arg;
};

/* 0 or -ENOMEM. */
int gate_init(struct gate *gate, struct loop *loop, unsigned int limit, unsigned int waiting_max)
    __attribute__((warn_unused_result));
/* Lets go of all: who waits hears fn at once, as if it were let in. */
void gate_done(struct gate *gate);
/* Lets all in that wait, now: nothing is left to wait for. */
void gate_flush(struct gate *gate);
/* fn is called when the ticket is let in: later, from the loop, also when there is room now.
 * -EDQUOT when too many wait. */
int gate_enter(struct gate *gate, struct gate_ticket *ticket, void (*fn)(void *arg), void *arg)
    __attribute__((warn_unused_result));
/* Done, or does not want any more. Fine for a ticket that is in no gate. */
void gate_leave(struct gate_ticket *ticket);
