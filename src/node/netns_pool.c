#include "node/netns_pool.h"

#include <stdio.h>

#include "base/error.h"
#include "base/list.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/netns.h"
#include "node/node.h"

#define NETNS_POOL_MAX 64U
#define NETNS_RETRY_MS 1000

struct netns_waiter {
    struct list link;
    netns_take_fn fn;
    void *arg;
};

struct netns_job {
    struct netns_pool *pool;
    struct netns_lease lease;
    char name[NETNS_NAME_SIZE];
    struct error err;
    int result;
};

struct netns_pool {
    struct node *node;
    struct netns_lease ready[NETNS_POOL_MAX];
    unsigned int count;
    unsigned int target;
    unsigned int making;
    unsigned int waiting;
    unsigned int last; /* number given last */
    struct list waiters;
    struct loop_timer *retry;
    bool freed;
};

static void refill(struct netns_pool *pool);

void netns_lease_name(const struct node *node, unsigned int n, char *out, size_t size)
{
    (void)snprintf(out, size, "%s-%u", node->settings.installation, n);
}

static void on_retry(void *arg)
{
    refill(arg);
}

struct netns_pool *netns_pool_new(struct node *node, unsigned int target)
{
    struct netns_pool *pool = calloc(1, sizeof(*pool));

    if (pool == NULL) {
        return NULL;
    }
    pool->node = node;
    pool->target = target < NETNS_POOL_MAX ? target : NETNS_POOL_MAX;
    list_init(&pool->waiters);
    pool->retry = loop_timer_new(node->loop, on_retry, pool);
    if (pool->retry == NULL) {
        free(pool);
        return NULL;
    }
    return pool;
}

void netns_pool_start(struct netns_pool *pool)
{
    refill(pool);
}

void netns_pool_free(struct netns_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    pool->freed = true;
    loop_timer_free(TAKE(pool->retry));
    for (unsigned int i = 0; i < pool->count; i++) {
        (void)close(pool->ready[i].netns_fd);
        (void)close(pool->ready[i].tap_fd);
    }
    pool->count = 0;
    if (pool->making == 0) {
        free(pool);
    }
}

void netns_pool_skip(struct netns_pool *pool, unsigned int n)
{
    if (pool->last < n) {
        pool->last = n;
    }
}

static void work_make(void *arg)
{
    struct netns_job *job = arg;

    job->result = netns_make(job->name, &job->lease.netns_fd, &job->lease.tap_fd, &job->err);
}

/* Gives a lease, or the failure, to the waiter that is first. */
static void serve_waiter(struct netns_pool *pool, const struct netns_job *job)
{
    struct netns_waiter *w = list_entry(pool->waiters.next, struct netns_waiter, link);
    struct netns_lease none = {0, -1, -1};

    list_remove(&w->link);
    pool->waiting--;
    w->fn(w->arg, job->result == 0 ? &job->lease : &none,
          job->result == 0 ? NULL : job->err.message);
    free(w);
}

static void done_make(void *arg)
{
    struct netns_job *job = arg;
    struct netns_pool *pool = job->pool;

    pool->making--;
    if (pool->freed) {
        if (pool->making == 0) {
            free(pool);
        }
        free(job);
        return;
    }
    if (!list_is_empty(&pool->waiters)) {
        serve_waiter(pool, job);
    } else if (job->result == 0) {
        pool->ready[pool->count++] = job->lease;
    }
    if (job->result < 0) {
        log_warning("netns_failed", "error=%s", LOG_STR(job->err.message));
        loop_timer_start(pool->retry, NETNS_RETRY_MS);
    } else {
        refill(pool);
    }
    free(job);
}

static int make_one(struct netns_pool *pool, bool background)
{
    struct netns_job *job = calloc(1, sizeof(*job));

    if (job == NULL) {
        return -1;
    }
    job->pool = pool;
    job->lease = (struct netns_lease){++pool->last, -1, -1};
    netns_lease_name(pool->node, pool->last, job->name, sizeof(job->name));
    if (loop_submit(pool->node->loop, work_make, done_make, job, background) < 0) {
        free(job);
        return -1;
    }
    pool->making++;
    return 0;
}

static void refill(struct netns_pool *pool)
{
    while (pool->making < pool->waiting) {
        if (make_one(pool, false) < 0) {
            return;
        }
    }
    /* One at a time in the background. */
    if (pool->making == 0 && pool->count < pool->target) {
        (void)make_one(pool, true);
    }
}

void netns_pool_take(struct netns_pool *pool, netns_take_fn fn, void *arg)
{
    struct netns_waiter *w;

    if (pool->count > 0) {
        struct netns_lease lease = pool->ready[--pool->count];

        refill(pool);
        fn(arg, &lease, NULL);
        return;
    }
    w = calloc(1, sizeof(*w));
    if (w == NULL) {
        struct netns_lease none = {0, -1, -1};

        fn(arg, &none, "no memory");
        return;
    }
    w->fn = fn;
    w->arg = arg;
    list_append(&pool->waiters, &w->link);
    pool->waiting++;
    refill(pool);
}
