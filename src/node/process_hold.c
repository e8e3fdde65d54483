/* Output of processes that may not lose any, while the disk is full: it waits in memory, and its
 * writer in the guest; an exit is told behind it. */
#include "io/loop.h"
#include "node/data.h"
#include "node/process_private.h"
#include "node/process_stream.h"

#define RETRY_MS 500

void process_hold(struct process *p)
{
    struct data *data = p->table->data;

    if (list_is_empty(&p->hold_link)) {
        list_append(&data->holding, &p->hold_link);
        loop_timer_start(data->hold_timer, RETRY_MS);
    }
}

void process_exit(struct process *p)
{
    if (spool_is_holding(p->spool)) {
        p->exit_held = true;
        process_hold(p);
    } else {
        process_end(p, PROCESS_STATE_EXITED);
    }
}

int process_settle(struct process *p)
{
    int r = spool_settle(p->spool);

    if (r < 0 || list_is_empty(&p->hold_link)) {
        return r;
    }
    list_remove(&p->hold_link);
    process_table_limit_spools(p->table);
    process_acknowledge(p);
    process_notify(p, PROCESS_EVENT_OUTPUT);
    if (p->exit_held) {
        p->exit_held = false;
        process_end(p, PROCESS_STATE_EXITED);
    }
    return 0;
}

void process_on_hold_timer(void *arg)
{
    struct data *data = arg;
    struct list waiting;

    /* Whoever hears of one may remove another. */
    list_init(&waiting);
    while (!list_is_empty(&data->holding)) {
        struct list *first = data->holding.next;

        list_remove(first);
        list_append(&waiting, first);
    }
    while (!list_is_empty(&waiting)) {
        struct process *p = list_entry(waiting.next, struct process, hold_link);

        if (process_settle(p) < 0) {
            list_remove(&p->hold_link);
            list_append(&data->holding, &p->hold_link);
        }
    }
    if (!list_is_empty(&data->holding)) {
        loop_timer_start(data->hold_timer, RETRY_MS);
    }
}
