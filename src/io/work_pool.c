#include "io/work_pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

#include <sys/eventfd.h>

#include "base/list.h"
#include "base/log.h"

struct work_job {
    struct list link;
    work_fn work;
    work_fn done;
    void *arg;
    bool background;
};

struct work_pool {
    pthread_mutex_t lock;
    pthread_cond_t wanted;   /* a job came, or the pool stops */
    pthread_cond_t finished; /* a job ended: for work_pool_drain */
    struct list queue;       /* foreground */
    struct list background;
    struct list ended;
    unsigned int pending; /* queued, running or ended */
    unsigned int running_background;
    bool stopping;
    int event_fd;
    unsigned int thread_count;
    pthread_t threads[WORK_POOL_MAX_THREADS];
};

static struct work_job *pool_take(struct work_pool *pool)
{
    struct list *from = NULL;
    struct list *first;

    if (!list_is_empty(&pool->queue)) {
        from = &pool->queue;
    } else if (!list_is_empty(&pool->background) &&
               (pool->thread_count == 1 || pool->running_background + 1 < pool->thread_count)) {
        from = &pool->background;
    }
    if (from == NULL) {
        return NULL;
    }
    first = from->next;
    list_remove(first);
    return list_entry(first, struct work_job, link);
}

static void pool_wake_owner(const struct work_pool *pool)
{
    const uint64_t one = 1;

    /* The only failure is a full counter, and then the owner is awake already. */
    if (write(pool->event_fd, &one, sizeof(one)) < 0) {
        return;
    }
}

static void *worker_main(void *arg)
{
    struct work_pool *pool = arg;

    (void)pthread_mutex_lock(&pool->lock);
    while (!pool->stopping) {
        struct work_job *job = pool_take(pool);
        bool was_empty;

        if (job == NULL) {
            (void)pthread_cond_wait(&pool->wanted, &pool->lock);
            continue;
        }
        if (job->background) {
            pool->running_background++;
        }
        (void)pthread_mutex_unlock(&pool->lock);
        job->work(job->arg);
        (void)pthread_mutex_lock(&pool->lock);
        if (job->background) {
            pool->running_background--;
        }
        was_empty = list_is_empty(&pool->ended);
        list_append(&pool->ended, &job->link);
        (void)pthread_cond_signal(&pool->finished);
        if (was_empty) {
            pool_wake_owner(pool);
        }
    }
    (void)pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static int pool_start_threads(struct work_pool *pool, unsigned int threads)
{
    sigset_t all;
    sigset_t before;
    int r = 0;

    /* Signals are the loop thread's business. */
    (void)sigfillset(&all);
    r = pthread_sigmask(SIG_SETMASK, &all, &before);
    while (r == 0 && pool->thread_count < threads) {
        r = pthread_create(&pool->threads[pool->thread_count], NULL, worker_main, pool);
        if (r == 0) {
            (void)pthread_mutex_lock(&pool->lock);
            pool->thread_count++;
            (void)pthread_mutex_unlock(&pool->lock);
        }
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -r;
}

int work_pool_new(unsigned int threads, struct work_pool **ret_pool)
{
    struct work_pool *pool;
    int r;

    if (threads == 0 || threads > WORK_POOL_MAX_THREADS) {
        return -EINVAL;
    }
    pool = calloc(1, sizeof(*pool));
    if (pool == NULL) {
        return -ENOMEM;
    }
    list_init(&pool->queue);
    list_init(&pool->background);
    list_init(&pool->ended);
    (void)pthread_mutex_init(&pool->lock, NULL);
    (void)pthread_cond_init(&pool->wanted, NULL);
    (void)pthread_cond_init(&pool->finished, NULL);
    pool->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = pool->event_fd < 0 ? -errno : pool_start_threads(pool, threads);
    if (r < 0) {
        work_pool_free(pool);
        return r;
    }
    *ret_pool = pool;
    return 0;
}

static void drop_jobs(struct list *jobs)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, jobs)
    {
        list_remove(it);
        free(list_entry(it, struct work_job, link));
    }
}

void work_pool_free(struct work_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    (void)pthread_cond_broadcast(&pool->wanted);
    (void)pthread_mutex_unlock(&pool->lock);
    for (unsigned int i = 0; i < pool->thread_count; i++) {
        (void)pthread_join(pool->threads[i], NULL);
    }
    drop_jobs(&pool->queue);
    drop_jobs(&pool->background);
    drop_jobs(&pool->ended);
    cleanup_close(&pool->event_fd);
    (void)pthread_cond_destroy(&pool->finished);
    (void)pthread_cond_destroy(&pool->wanted);
    (void)pthread_mutex_destroy(&pool->lock);
    free(pool);
}

int work_pool_fd(const struct work_pool *pool)
{
    return pool->event_fd;
}

int work_pool_submit(struct work_pool *pool, work_fn work, work_fn done, void *arg, bool background)
{
    struct work_job *job;

    /* Only the owner changes `pending`, so it reads it without the lock. */
    if (pool->pending >= WORK_POOL_MAX_QUEUED) {
        return -EAGAIN;
    }
    job = calloc(1, sizeof(*job));
    if (job == NULL) {
        return -ENOMEM;
    }
    job->work = work;
    job->done = done;
    job->arg = arg;
    job->background = background;
    pool->pending++;
    (void)pthread_mutex_lock(&pool->lock);
    list_append(background ? &pool->background : &pool->queue, &job->link);
    (void)pthread_cond_signal(&pool->wanted);
    (void)pthread_mutex_unlock(&pool->lock);
    return 0;
}

static struct work_job *pool_take_ended(struct work_pool *pool)
{
    struct work_job *job = NULL;

    (void)pthread_mutex_lock(&pool->lock);
    if (!list_is_empty(&pool->ended)) {
        job = list_entry(pool->ended.next, struct work_job, link);
        list_remove(&job->link);
    }
    (void)pthread_mutex_unlock(&pool->lock);
    return job;
}

void work_pool_finish(struct work_pool *pool)
{
    struct work_job *job;
    uint64_t count;

    /* It only says that there may be some. */
    if (read(pool->event_fd, &count, sizeof(count)) < 0 && errno != EAGAIN) {
        log_debug("work_pool", "error=%s", strerror(errno));
    }
    while ((job = pool_take_ended(pool)) != NULL) {
        pool->pending--;
        job->done(job->arg);
        free(job);
    }
}

void work_pool_drain(struct work_pool *pool)
{
    while (pool->pending > 0) {
        (void)pthread_mutex_lock(&pool->lock);
        while (list_is_empty(&pool->ended)) {
            (void)pthread_cond_wait(&pool->finished, &pool->lock);
        }
        (void)pthread_mutex_unlock(&pool->lock);
        work_pool_finish(pool);
    }
}
