/* Who gets which VM, and what is made ahead. */
#include "node/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <sys/sysinfo.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/admission.h"
#include "node/node_private.h"
#include "node/pool_private.h"
#include "node/vm.h"

#define TICK_MS        2000
#define SPAWNING_MIN   4U /* cold VMs that come up at once; the others queue */
#define BACKOFF_MIN_MS 2000
#define BACKOFF_MAX_MS 60000
#define YIELD_MS       60000 /* after the memory of all VMs was short */
#define WARM_AUTO_MIN  4U
#define WARM_AUTO_MAX  16U
#define MEMINFO_MAX    16384U

static void refill(struct pool *pool);
static void serve_soon(struct pool *pool);

/* ---- settings ---- */

/* One NAME=COUNT. */
static int parse_line_setting(struct pool *pool, struct span item, struct error *err)
{
    size_t equals = span_find(item, 0, '=');
    struct pool_line *line = &pool->lines[pool->line_count];
    uint64_t count;

    if (pool->line_count == POOL_TEMPLATES_MAX || equals == item.n ||
        span_copy_str(span_head(item, equals), line->name, sizeof(line->name)) < 0 ||
        !template_name_is_valid(line->name) ||
        span_parse_u64(span_skip(item, equals + 1), 1000, &count) < 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "node.warm_pools",
                              "node.warm_pools must be `auto` or NAME=COUNT pairs with commas");
    }
    line->target = (unsigned int)count;
    pool->line_count++;
    return 0;
}

static int parse_setting(struct pool *pool, const char *text, struct error *err)
{
    struct span rest = span_of_str(text);

    if (strcmp(text, "auto") == 0) {
        (void)snprintf(pool->lines[0].name, sizeof(pool->lines[0].name), "base");
        pool->lines[0].target = UINT_MAX;
        pool->line_count = 1;
        return 0;
    }
    while (rest.n > 0) {
        size_t comma = span_find(rest, 0, ',');
        struct span item = span_head(rest, comma);
        int r;

        while (item.n > 0 && item.p[0] == ' ') {
            item = span_skip(item, 1);
        }
        r = parse_line_setting(pool, item, err);
        if (r < 0) {
            return r;
        }
        rest = span_skip(rest, comma + 1);
    }
    return 0;
}

/* As many as fit in a tenth of memory, when a waiting VM costs about half of its guest's size. */
static unsigned int line_target(const struct pool *pool, const struct pool_line *line)
{
    uint64_t fit;

    if (line->target != UINT_MAX) {
        return line->target;
    }
    fit = pool->node->parts->total_mib / 10 / (line->key.memory_mib / 2 + 1);
    return fit < WARM_AUTO_MIN   ? WARM_AUTO_MIN
           : fit > WARM_AUTO_MAX ? WARM_AUTO_MAX
                                 : (unsigned int)fit;
}

/* ---- counting ---- */

struct entry_counts {
    unsigned int warm;
    unsigned int becoming_warm;
    unsigned int prepared; /* or becoming so */
};

static struct entry_counts count_entries(const struct pool *pool, const struct base_key *key)
{
    struct entry_counts c = {0, 0, 0};
    const struct list *it;

    for (it = pool->entries.next; it != &pool->entries; it = it->next) {
        const struct pool_entry *e =
            (const struct pool_entry *)(const void *)((const char *)it -
                                                      offsetof(struct pool_entry, link));

        if (e->request != NULL || (key != NULL && !base_key_equals(base_key_of(e->base), key))) {
            continue;
        }
        if (e->state == ENTRY_STATE_WARM) {
            c.warm++;
        } else if (e->want_warm) {
            c.becoming_warm++;
        } else {
            c.prepared++;
        }
    }
    return c;
}

static struct pool_entry *
find_entry(struct pool *pool, const struct base_key *key, enum entry_state state)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &pool->entries)
    {
        struct pool_entry *e = list_entry(it, struct pool_entry, link);

        if (e->state == state && e->request == NULL && base_key_equals(base_key_of(e->base), key)) {
            return e;
        }
    }
    return NULL;
}

/* ---- requests ---- */

static void request_free(struct pool_request *request)
{
    list_remove(&request->link);
    if (request->starting) {
        request->pool->spawning--;
    }
    if (request->base != NULL) {
        base_unref(request->base);
    }
    loop_timer_free(request->timer);
    free(request);
}

static void request_answer(struct pool_request *request, struct vm *vm, const struct error *err)
{
    struct pool *pool = request->pool;
    pool_fn fn = request->fn;
    void *arg = request->arg;
    bool counted = vm != NULL && request->starting;

    if (counted) {
        request->starting = false; /* the receiver settles it */
    }
    if (request->entry != NULL) {
        request->entry->request = NULL;
        entry_drop(TAKE(request->entry));
    }
    if (request->base_wanted) {
        request->cancelled = true; /* freed when the base's answer comes */
        loop_timer_stop(request->timer);
        list_remove(&request->link);
    } else {
        request_free(request);
    }
    fn(arg, vm, counted, err);
    serve_soon(pool);
}

void pool_settle(struct pool *pool)
{
    pool->spawning--;
    serve_soon(pool);
}

static void on_request_timeout(void *arg)
{
    struct error err = {0};

    (void)error_set_code(&err, ERROR_DEADLINE_EXCEEDED, NULL,
                         "no VM could be started before the deadline");
    request_answer(arg, NULL, &err);
}

void pool_cancel(struct pool_request *request)
{
    struct pool *pool = request->pool;

    if (request->entry != NULL) {
        request->entry->request = NULL;
        entry_drop(TAKE(request->entry));
    }
    if (request->base_wanted) {
        request->cancelled = true;
        loop_timer_stop(request->timer);
        list_remove(&request->link);
        return;
    }
    request_free(request);
    serve_soon(pool);
}

static void start_for(struct pool_request *request)
{
    struct pool *pool = request->pool;
    struct pool_entry *entry = find_entry(pool, &request->key, ENTRY_STATE_PREPARED);
    struct error err = {0};

    request->starting = true;
    pool->spawning++;
    if (entry != NULL) {
        base_unref(TAKE(request->base));
        entry->request = request;
        request->entry = entry;
        entry_load(entry);
        return;
    }
    request->entry = entry_start(pool, TAKE(request->base), false, request, &err);
    if (request->entry == NULL) {
        request_answer(request, NULL, &err);
    }
}

/* Gives warm VMs to the requests that wait, in order, and starts VMs for the others, a few at
 * once; then refills. At the end of a turn. */
static void serve(void *arg)
{
    struct pool *pool = arg;
    struct list *it;
    struct list *following;

    pool->serve_queued = false;
    if (pool->node->parts->stopping) {
        return;
    }
    list_foreach(it, following, &pool->requests)
    {
        struct pool_request *request = list_entry(it, struct pool_request, link);
        struct pool_entry *warm;

        if (request->entry != NULL || request->base == NULL) {
            continue;
        }
        warm = find_entry(pool, &request->key, ENTRY_STATE_WARM);
        if (warm != NULL) {
            request_answer(request, entry_take_vm(warm), NULL);
        } else if (pool->spawning < pool->spawning_max) {
            start_for(request);
        }
    }
    refill(pool);
}

static void serve_soon(struct pool *pool)
{
    if (!pool->serve_queued && loop_defer(pool->node->loop, serve, pool) == 0) {
        pool->serve_queued = true;
    }
}

static void on_request_base(void *arg, struct base *base, const struct error *err)
{
    struct pool_request *request = arg;

    request->base_wanted = false;
    request->base = base;
    if (request->cancelled) {
        request_free(request);
        return;
    }
    if (err != NULL) {
        request_answer(request, NULL, err);
        return;
    }
    serve_soon(request->pool);
}

struct pool_request *pool_ask(struct node *node, const struct base_key *key, pool_fn fn, void *arg)
{
    struct pool *pool = node->parts->pool;
    struct pool_request *request = calloc(1, sizeof(*request));

    if (request == NULL) {
        return NULL;
    }
    request->pool = pool;
    request->key = *key;
    request->fn = fn;
    request->arg = arg;
    request->timer = loop_timer_new(node->loop, on_request_timeout, request);
    if (request->timer == NULL) {
        free(request);
        return NULL;
    }
    loop_timer_start(request->timer, (int64_t)(node->settings.node_boot_timeout_ms +
                                               node->settings.node_start_timeout_ms));
    list_append(&pool->requests, &request->link);
    request->base_wanted = true;
    base_get(node, key, on_request_base, request);
    return request;
}

struct vm *pool_take_warm(struct node *node, const struct base_key *key)
{
    struct pool *pool = node->parts->pool;
    struct pool_entry *entry = find_entry(pool, key, ENTRY_STATE_WARM);

    if (entry == NULL || !list_is_empty(&pool->requests)) {
        return NULL; /* those who wait come first */
    }
    loop_timer_start(pool->tick, 50); /* refill soon, but not before this create is through */
    return entry_take_vm(entry);
}

/* ---- what entries tell ---- */

static struct pool_line *find_line(struct pool *pool, const struct base_key *key)
{
    for (unsigned int i = 0; i < pool->line_count; i++) {
        if (pool->lines[i].known && base_key_equals(&pool->lines[i].key, key)) {
            return &pool->lines[i];
        }
    }
    return NULL;
}

static void back_off(struct pool_line *line)
{
    if (line == NULL) {
        return;
    }
    line->backoff_ms = line->backoff_ms == 0 ? BACKOFF_MIN_MS : line->backoff_ms * 2;
    if (line->backoff_ms > BACKOFF_MAX_MS) {
        line->backoff_ms = BACKOFF_MAX_MS;
    }
    line->retry_at_ms = clock_monotonic_ms() + line->backoff_ms;
}

void pool_entry_failed(struct pool_entry *entry, const char *code, const char *message)
{
    struct pool *pool = entry->pool;
    struct pool_request *request = entry->request;
    struct error err = {0};

    if (request == NULL) {
        log_warning("pool_vm_failed", "code=%s error=%s", code, LOG_STR(message));
        back_off(find_line(pool, base_key_of(entry->base)));
        entry_drop(entry);
        return;
    }
    request->entry = NULL;
    entry->request = NULL;
    entry_drop(entry);
    (void)error_set_code(&err,
                         strcmp(code, "storage_full") == 0 ? ERROR_STORAGE_FULL : ERROR_INTERNAL,
                         code, "the VM could not be started: %.60s: %.220s", code, message);
    request_answer(request, NULL, &err);
}

void pool_entry_loaded(struct pool_entry *entry)
{
    struct pool_request *request = entry->request;

    request->entry = NULL;
    entry->request = NULL;
    request_answer(request, entry_take_vm(entry), NULL);
}

void pool_entry_waits(struct pool_entry *entry)
{
    struct pool *pool = entry->pool;
    struct pool_line *line = find_line(pool, base_key_of(entry->base));

    if (line != NULL) {
        line->backoff_ms = 0;
    }
    serve_soon(pool);
}

/* ---- refilling ---- */

static void on_line_base(void *arg, struct base *base, const struct error *err)
{
    struct pool_line *line = arg;

    line->base_wanted = false;
    if (err != NULL) {
        back_off(line);
        return;
    }
    if (base_key_equals(base_key_of(base), &line->key)) {
        line->base = base;
    } else {
        base_unref(base); /* the template was replaced meanwhile */
    }
}

/* Follows the template's current version; VMs of another one are dropped. */
static void refresh_line(struct pool *pool, struct pool_line *line)
{
    struct template_info t;
    struct list *it;
    struct list *following;

    if (template_load(pool->node->parts->volume, line->name, NULL, &t, NULL) < 0) {
        return;
    }
    if (line->known && strcmp(line->key.template_info.version, t.version) == 0) {
        return;
    }
    list_foreach(it, following, &pool->entries)
    {
        struct pool_entry *e = list_entry(it, struct pool_entry, link);

        if (line->known && e->request == NULL &&
            base_key_equals(base_key_of(e->base), &line->key)) {
            entry_drop(e);
        }
    }
    if (line->base != NULL) {
        base_unref(TAKE(line->base));
    }
    line->key = (struct base_key){t, t.vcpus, t.memory_mib};
    line->known = true;
    line->backoff_ms = 0;
    line->retry_at_ms = 0;
}

static bool memory_allows(const struct pool *pool)
{
    _cleanup_buf_ struct buf text = buf_make(MEMINFO_MAX);
    uint64_t total;
    uint64_t available;

    return file_read(AT_FDCWD, "/proc/meminfo", MEMINFO_MAX, &text) == 0 &&
           admission_parse_meminfo(buf_str(&text), &total, &available) == 0 &&
           available > pool->node->parts->reserve_mib + 512;
}

/* Starts at most one VM for this line. True when something is under way. */
static bool refill_line(struct pool *pool, struct pool_line *line, unsigned int prepared_target)
{
    struct entry_counts c;
    bool want_warm;
    struct error err = {0};

    if (!line->known || clock_monotonic_ms() < line->retry_at_ms) {
        return false;
    }
    c = count_entries(pool, &line->key);
    want_warm = c.warm + c.becoming_warm < line_target(pool, line);
    if (!want_warm && c.prepared >= prepared_target) {
        return false;
    }
    if (line->base == NULL) {
        if (!line->base_wanted) {
            line->base_wanted = true;
            base_get(pool->node, &line->key, on_line_base, line);
        }
        return true;
    }
    if (base_find(pool->node, &line->key) == NULL) {
        return false;
    }
    if (entry_start(pool, line->base, want_warm, NULL, &err) == NULL) {
        log_warning("pool_refill_failed", "error=%s", LOG_STR(err.message));
        back_off(line);
        return false;
    }
    return true;
}

static bool is_busy(const struct pool *pool)
{
    const struct list *it;

    for (it = pool->entries.next; it != &pool->entries; it = it->next) {
        const struct pool_entry *e =
            (const struct pool_entry *)(const void *)((const char *)it -
                                                      offsetof(struct pool_entry, link));

        if (e->state != ENTRY_STATE_WARM && e->state != ENTRY_STATE_PREPARED) {
            return true;
        }
    }
    return false;
}

static void refill(struct pool *pool)
{
    if (!pool->started || pool->node->parts->stopping || !list_is_empty(&pool->requests) ||
        pool->spawning > 0 || is_busy(pool) || clock_monotonic_ms() < pool->yields_until_ms ||
        !memory_allows(pool)) {
        return;
    }
    for (unsigned int i = 0; i < pool->line_count; i++) {
        struct pool_line *line = &pool->lines[i];

        if (line_target(pool, line) == 0) {
            continue;
        }
        if (refill_line(pool, line,
                        i == 0 ? (unsigned int)pool->node->settings.node_prepared_pool : 0)) {
            return;
        }
    }
}

static void on_tick(void *arg)
{
    struct pool *pool = arg;

    for (unsigned int i = 0; i < pool->line_count; i++) {
        refresh_line(pool, &pool->lines[i]);
    }
    refill(pool);
    loop_timer_start(pool->tick, TICK_MS);
}

/* ---- life ---- */

struct pool *pool_new(struct node *node, struct error *err)
{
    struct pool *pool = calloc(1, sizeof(*pool));

    if (pool == NULL) {
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    pool->node = node;
    pool->spawning_max = 2U * (unsigned int)get_nprocs();
    if (pool->spawning_max < SPAWNING_MIN) {
        pool->spawning_max = SPAWNING_MIN;
    }
    list_init(&pool->entries);
    list_init(&pool->requests);
    pool->tick = loop_timer_new(node->loop, on_tick, pool);
    if (pool->tick == NULL) {
        (void)error_set(err, ENOMEM, "no memory");
        free(pool);
        return NULL;
    }
    if (parse_setting(pool, node->settings.node_warm_pools, err) < 0) {
        loop_timer_free(pool->tick);
        free(pool);
        return NULL;
    }
    return pool;
}

void pool_start(struct pool *pool)
{
    pool->started = true;
    on_tick(pool);
}

void pool_free(struct pool *pool)
{
    struct list *it;
    struct list *following;

    if (pool == NULL) {
        return;
    }
    list_foreach(it, following, &pool->requests)
    {
        struct pool_request *request = list_entry(it, struct pool_request, link);

        list_remove(it);
        loop_timer_free(request->timer);
        free(request);
    }
    list_foreach(it, following, &pool->entries)
    {
        struct pool_entry *e = list_entry(it, struct pool_entry, link);

        list_remove(it);
        rehearsal_stop(&e->rehearsal);
        free(e);
    }
    loop_timer_free(pool->tick);
    free(pool);
}

/* One that waits; with `any`, one that is on its way there too. */
static struct pool_entry *find_unasked(struct pool *pool, bool any)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &pool->entries)
    {
        struct pool_entry *e = list_entry(it, struct pool_entry, link);

        if (e->request == NULL &&
            (any || e->state == ENTRY_STATE_WARM || e->state == ENTRY_STATE_PREPARED)) {
            return e;
        }
    }
    return NULL;
}

bool pool_give_up_one(struct pool *pool)
{
    struct pool_entry *e = find_unasked(pool, false);

    if (e == NULL) {
        return false;
    }
    entry_drop(e);
    return true;
}

bool pool_yield(struct pool *pool, unsigned int *ret_slot)
{
    struct pool_entry *e = find_unasked(pool, false);

    pool->yields_until_ms = clock_monotonic_ms() + YIELD_MS;
    if (e == NULL) {
        e = find_unasked(pool, true);
    }
    if (e == NULL) {
        return false;
    }
    *ret_slot = vm_slot(e->vm);
    entry_drop(e);
    return true;
}

unsigned int pool_prepared(const struct pool *pool)
{
    return count_entries(pool, NULL).prepared;
}

struct json_t *pool_describe(const struct pool *pool)
{
    json_t *items = json_array();

    for (unsigned int i = 0; i < pool->line_count; i++) {
        const struct pool_line *line = &pool->lines[i];
        struct entry_counts c = {0, 0, 0};
        unsigned int target = 0;

        if (line->known) {
            c = count_entries(pool, &line->key);
            target = line_target(pool, line);
        }
        (void)json_array_append_new(
            items, json_pack("{s:s, s:i, s:i, s:b}", "template", line->name, "warm", (int)c.warm,
                             "warm_target", (int)target, "filling",
                             (int)(c.becoming_warm > 0 || (line->known && line->base_wanted))));
    }
    return items;
}
