/* The life of one VM in the pool: spawn, load, rehearse, fall silent, stop. */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "node/agent.h"
#include "node/node_private.h"
#include "node/pool_private.h"
#include "node/vm.h"

#define PRIME_TIMEOUT_MS 300000
#define PRIME_COMMAND_MS 90000
#define AGENT_TIMEOUT_MS 90000

static void entry_free(struct pool_entry *entry)
{
    list_remove(&entry->link);
    rehearsal_stop(&entry->rehearsal);
    if (entry->base != NULL) {
        base_unref(entry->base);
    }
    free(entry);
}

struct vm *entry_take_vm(struct pool_entry *entry)
{
    struct vm *vm = TAKE(entry->vm);

    entry_free(entry);
    return vm;
}

void entry_drop(struct pool_entry *entry)
{
    struct vm *vm = entry_take_vm(entry);

    if (vm != NULL) {
        vm_end(vm, NULL, NULL);
    }
}

static void on_vm_end(void *arg, struct vm *vm, const char *code, const char *message)
{
    struct pool_entry *entry = arg;

    (void)vm;
    entry->vm = NULL;
    pool_entry_failed(entry, code, message);
}

/* ---- rehearsal ---- */

static void on_prime_stopped(void *arg, struct vm *vm)
{
    struct pool_entry *entry = arg;

    vm_set_deadline(vm, 0, "", "");
    vm_set_background(vm, false);
    entry->state = ENTRY_STATE_WARM;
    log_debug("vm_warm", "duration_ms=%lld", (long long)(clock_monotonic_ms() - entry->started_ms));
    pool_entry_waits(entry);
}

static void on_silent(void *arg, int result)
{
    struct pool_entry *entry = arg;

    if (result == 0) {
        vm_stop(entry->vm, on_prime_stopped, entry);
    } else if (result > 0) {
        vm_fail(entry->vm, "agent_protocol", "the agent could not fall silent");
    }
}

static void on_reset(void *arg, int result)
{
    struct pool_entry *entry = arg;

    if (result == 0) {
        agent_silence(vm_agent(entry->vm), 0, AGENT_TIMEOUT_MS, on_silent, entry);
    } else if (result > 0) {
        vm_fail(entry->vm, "agent_protocol", "the rehearsal could not be undone");
    }
}

static void on_rehearsed(void *arg)
{
    struct pool_entry *entry = arg;

    agent_reset(vm_agent(entry->vm), AGENT_TIMEOUT_MS, on_reset, entry);
}

static void on_hello(void *arg, int result)
{
    struct pool_entry *entry = arg;

    if (result == 0) {
        entry->rehearsal.command_ms = PRIME_COMMAND_MS;
        entry->rehearsal.done = on_rehearsed;
        entry->rehearsal.arg = entry;
        rehearsal_start(&entry->rehearsal, vm_agent(entry->vm), entry->pool->node->parts->volume,
                        &base_key_of(entry->base)->template_info);
    }
}

static void prime(struct pool_entry *entry)
{
    const struct node_parts *parts = entry->pool->node->parts;

    if (!parts->runtime.restores_cold) {
        /* Nothing is translated, so nothing is cold. */
        vm_set_background(entry->vm, false);
        entry->state = ENTRY_STATE_WARM;
        pool_entry_waits(entry);
        return;
    }
    entry->state = ENTRY_STATE_PRIMING;
    vm_set_deadline(entry->vm, PRIME_TIMEOUT_MS, "agent_timeout", "the rehearsal took too long");
    agent_begin(vm_agent(entry->vm), true, AGENT_TIMEOUT_MS, on_hello, entry);
    vm_cont(entry->vm, NULL, NULL);
}

/* ---- spawn and load ---- */

static void on_loaded(void *arg, struct vm *vm)
{
    struct pool_entry *entry = arg;

    (void)vm;
    if (entry->request != NULL) {
        pool_entry_loaded(entry);
    } else {
        prime(entry);
    }
}

void entry_load(struct pool_entry *entry)
{
    _cleanup_close_ int fd = base_open_state(entry->base);

    entry->state = ENTRY_STATE_LOADING;
    if (fd < 0) {
        vm_fail(entry->vm, "start_failed", strerror(-fd));
        return;
    }
    vm_load(entry->vm, fd, on_loaded, entry);
}

static void on_spawned(void *arg, struct vm *vm)
{
    struct pool_entry *entry = arg;

    if (entry->request != NULL || entry->want_warm) {
        entry_load(entry);
        return;
    }
    vm_set_background(vm, false);
    entry->state = ENTRY_STATE_PREPARED;
    pool_entry_waits(entry);
}

struct pool_entry *entry_start(struct pool *pool,
                               struct base *base,
                               bool want_warm,
                               struct pool_request *request,
                               struct error *err)
{
    static const struct vm_owner owner = {on_vm_end};
    struct pool_entry *entry = calloc(1, sizeof(*entry));
    struct vm_spec spec = {.ram_memfd = -1};

    if (entry == NULL) {
        base_unref(base);
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    entry->pool = pool;
    entry->base = base;
    entry->want_warm = want_warm;
    entry->request = request;
    entry->started_ms = clock_monotonic_ms();
    list_init(&entry->link);
    base_fill_spec(base, &spec);
    spec.background = request == NULL;
    entry->vm = vm_start(pool->node, &spec, &owner, entry, err);
    if (entry->vm == NULL) {
        entry_free(entry);
        return NULL;
    }
    vm_on_ready(entry->vm, on_spawned, entry);
    list_append(&pool->entries, &entry->link);
    return entry;
}
