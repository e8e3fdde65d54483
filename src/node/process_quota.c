/* node.spool_total_mib: what all sessions of a sandbox keep together. Over it the output of ended
 * sessions goes, the oldest first; if that is not enough, running ones lose their oldest output,
 * those first that have most. Sessions that block lose nothing that was not read: they reserve
 * their spool_bytes when they start, and wait while the sandbox is over its limit; when one has
 * ended, it keeps what it has while a reader is attached. */
#include "node/data.h"
#include "node/node.h"
#include "node/process_private.h"
#include "node/process_stream.h"

#define MIB 1048576U

static uint64_t total_max(const struct process_table *table)
{
    return table->data->node->settings.node_spool_total_mib * MIB;
}

bool process_table_is_over(const struct process_table *table)
{
    return table->spools.bytes > total_max(table);
}

int process_table_check_block(struct process_table *table, uint64_t spool_bytes, struct error *err)
{
    uint64_t reserved = spool_bytes;
    struct list *it;
    struct list *following;

    list_foreach(it, following, &table->processes)
    {
        const struct process *p = list_entry(it, struct process, link);

        if (p->block_when_full && !process_is_ended(p)) {
            reserved += p->spool_bytes;
        }
    }
    if (reserved > total_max(table)) {
        return error_set_code(err, ERROR_LIMIT_EXCEEDED, "node.spool_total_mib",
                              "the spool_bytes of the sandbox's commands that block would be %llu "
                              "together, more than %llu",
                              (unsigned long long)reserved, (unsigned long long)total_max(table));
    }
    return 0;
}

/* The ended session that is oldest, or the running one that has most and may drop; NULL when none
 * has anything. */
static struct process *find_victim(struct process_table *table, bool ended)
{
    struct process *victim = NULL;
    struct list *it;
    struct list *following;

    list_foreach(it, following, &table->processes)
    {
        struct process *p = list_entry(it, struct process, link);

        if (process_is_ended(p) != ended || spool_usage(p->spool) == 0 ||
            (p->block_when_full && (!ended || !list_is_empty(&p->readers)))) {
            continue;
        }
        if (victim == NULL || (ended ? p->exited_at_ms < victim->exited_at_ms
                                     : spool_usage(p->spool) > spool_usage(victim->spool))) {
            victim = p;
        }
    }
    return victim;
}

/* Drops so many of its oldest bytes, or up to twice that: the order log goes with them. */
static void shrink(struct spool *spool, uint64_t bytes)
{
    uint64_t before = spool_usage(spool);
    uint64_t retained = spool_retained(spool);
    uint64_t each = retained > 0 ? 1 + spool_order_bytes(spool) / retained : 1;
    struct order_position keep;

    bytes = (bytes + each - 1) / each;
    if (spool_find_tail(spool, retained - (bytes < retained ? bytes : retained), &keep) == 0) {
        spool_drop_before(spool, &keep);
    }
    if (spool_usage(spool) == before) {
        spool_discard(spool); /* only its heads are left, or it is in memory */
    }
}

/* What is kept behind readers for their reconnection. */
static void trim_read(struct process_table *table)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &table->processes)
    {
        struct process *p = list_entry(it, struct process, link);

        if (p->block_when_full && !process_is_ended(p)) {
            process_trim(p, 0);
        }
    }
}

void process_table_limit_spools(struct process_table *table)
{
    uint64_t max = total_max(table);
    uint64_t aim = max - max / 8;
    uint64_t before = UINT64_MAX;
    bool ended = true;

    if (!process_table_is_over(table)) {
        return;
    }
    trim_read(table); /* what somebody has had goes before what nobody has */
    while (table->spools.bytes > aim && table->spools.bytes < before) {
        struct process *p = find_victim(table, ended);

        before = table->spools.bytes;
        if (p == NULL && ended) {
            ended = false;
            before = UINT64_MAX;
        } else if (p == NULL) {
            break;
        } else if (ended) {
            spool_discard(p->spool);
        } else {
            shrink(p->spool, before - aim);
        }
    }
    process_table_wake(table);
}

void process_table_wake(struct process_table *table)
{
    struct list *it;
    struct list *following;

    if (!table->held || process_table_is_over(table)) {
        return;
    }
    table->held = false;
    list_foreach(it, following, &table->processes)
    {
        struct process *p = list_entry(it, struct process, link);

        if (p->block_when_full) {
            process_acknowledge(p);
        }
    }
}
