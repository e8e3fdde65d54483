/* Building and finding base snapshots.
 *
 * States of a base: checking (a worker looks for a complete one on disk) -> ready, or -> queued ->
 * building -> ready, or failed (the waiters hear why and the record goes; the next request tries
 * again). Building: directory and RAM file (worker), boot with the RAM file shared, handshake,
 * rehearsal, RESET, SILENCE, stop, save the device state, end the VMM, then seal and rename
 * (worker).
 *
 * A boot takes a whole CPU, so one base of set-up's templates is built at a time, and one of those
 * that were made from checkpoints: how long these take is their makers' doing. One of them that is
 * not done within SLOW_MS yields its CPU and its turn; SLOW_MAX may be so at once, one of each
 * version. */
#include "node/base_snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/accelerator.h"
#include "node/agent.h"
#include "node/base_files.h"
#include "node/node_private.h"
#include "node/rehearsal.h"
#include "node/vm.h"

#define SILENCE_TIMEOUT_MS 30000
#define REHEARSAL_MS       120000 /* none takes that long whose guest answers */
#define COMMANDS_MS        60000
#define COMMAND_MS         15000
#define PINNED_MAX         256U
#define SLOW_MS            15000
#define SLOW_MAX           4U

enum base_state {
    BASE_STATE_CHECKING,
    BASE_STATE_QUEUED,
    BASE_STATE_BUILDING,
    BASE_STATE_READY,
};

/* Who waits for whom. */
enum lane {
    LANE_SHIPPED,
    LANE_MADE,
    LANES,
};

struct base_waiter {
    struct list link;
    base_fn fn;
    void *arg;
};

struct base {
    struct list link;
    struct node *node;
    struct base_key key;
    struct base_files files;
    enum base_state state;
    unsigned int refs;
    bool is_slow; /* it is being built, and not in its lane any more */
    struct loop_timer *patience;
    int64_t started_ms;
    struct list waiters;
    int state_fd;
    int ram_memfd;
    struct vm *vm;
    struct rehearsal rehearsal;
    int job_result;
    struct error job_err;
    const char *pinned[PINNED_MAX + 1];
};

struct base_set {
    struct list bases;
    unsigned int building[LANES];
    unsigned int slow;
};

static void build_next(void *arg);

struct base_set *base_set_new(struct node *node, struct error *err)
{
    struct base_set *set = calloc(1, sizeof(*set));

    if (set == NULL) {
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    base_files_sweep(node->parts->volume);
    list_init(&set->bases);
    return set;
}

static void base_free(struct base *base)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &base->waiters)
    {
        list_remove(it);
        free(list_entry(it, struct base_waiter, link));
    }
    list_remove(&base->link);
    rehearsal_stop(&base->rehearsal);
    loop_timer_free(base->patience);
    if (base->state_fd >= 0) {
        (void)close(base->state_fd);
    }
    if (base->ram_memfd >= 0) {
        (void)close(base->ram_memfd);
    }
    free(base);
}

void base_set_free(struct base_set *set)
{
    struct list *it;
    struct list *following;

    if (set == NULL) {
        return;
    }
    list_foreach(it, following, &set->bases)
    {
        base_free(list_entry(it, struct base, link));
    }
    free(set);
}

bool base_key_equals(const struct base_key *a, const struct base_key *b)
{
    return a->vcpus == b->vcpus && a->memory_mib == b->memory_mib &&
           strcmp(a->template_info.version, b->template_info.version) == 0;
}

const struct base_key *base_key_of(const struct base *base)
{
    return &base->key;
}

int base_open_state(const struct base *base)
{
    char path[64];
    int fd;

    /* Not a duplicate: that would share the position in the file with other loads. */
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", base->state_fd);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

void base_unref(struct base *base)
{
    base->refs--;
}

void base_fill_spec(const struct base *base, struct vm_spec *spec)
{
    spec->mode = RUNTIME_MODE_RESTORE;
    spec->vcpus = base->key.vcpus;
    spec->memory_mib = base->key.memory_mib;
    spec->ram_memfd = base->ram_memfd;
    (void)snprintf(spec->ram_path, sizeof(spec->ram_path), "%s/ram", base->files.dir);
    (void)snprintf(spec->disk_source, sizeof(spec->disk_source), "%s/disk.img", base->files.dir);
}

static struct base *find(struct node *node, const struct base_key *key)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &node->parts->bases->bases)
    {
        struct base *base = list_entry(it, struct base, link);

        if (base_key_equals(&base->key, key)) {
            return base;
        }
    }
    return NULL;
}

struct base *base_find(struct node *node, const struct base_key *key)
{
    struct base *base = find(node, key);

    if (base == NULL || base->state != BASE_STATE_READY) {
        return NULL;
    }
    base->refs++;
    return base;
}

static void build_soon(struct node *node)
{
    if (loop_defer(node->loop, build_next, node) < 0) {
        log_error("base_stuck", "error=memory");
    }
}

/* ---- turns ---- */

static enum lane lane_of(const struct base *base)
{
    return base->key.template_info.checkpoint_id[0] == '\0' ? LANE_SHIPPED : LANE_MADE;
}

static void on_slow(void *arg)
{
    struct base *base = arg;
    struct base_set *set = base->node->parts->bases;

    if (base->state != BASE_STATE_BUILDING || base->is_slow) {
        return;
    }
    log_info("base_slow", "template=%s version=%s", base->key.template_info.name,
             base->key.template_info.version);
    base->is_slow = true;
    set->building[lane_of(base)]--;
    set->slow++;
    if (base->vm != NULL) {
        vm_set_background(base->vm, true);
    }
    build_soon(base->node);
}

/* Without a timer nobody overtakes it. */
static void enter_lane(struct base *base)
{
    enum lane lane = lane_of(base);

    base->state = BASE_STATE_BUILDING;
    base->started_ms = clock_monotonic_ms();
    base->node->parts->bases->building[lane]++;
    if (lane == LANE_MADE) {
        base->patience = loop_timer_new(base->node->loop, on_slow, base);
    }
    if (base->patience != NULL) {
        loop_timer_start(base->patience, SLOW_MS);
    }
}

static void leave_lane(struct base *base)
{
    struct base_set *set = base->node->parts->bases;

    if (base->is_slow) {
        base->is_slow = false;
        set->slow--;
    } else {
        set->building[lane_of(base)]--;
    }
    loop_timer_free(TAKE(base->patience));
}

/* Another size of one that is slow would be as slow. */
static bool may_enter(const struct base_set *set, const struct base *base)
{
    if (set->building[lane_of(base)] > 0) {
        return false;
    }
    if (lane_of(base) == LANE_SHIPPED) {
        return true;
    }
    for (struct list *it = set->bases.next; it != &set->bases; it = it->next) {
        const struct base *other = list_entry(it, struct base, link);

        if (other->is_slow &&
            strcmp(other->key.template_info.version, base->key.template_info.version) == 0) {
            return false;
        }
    }
    return set->slow < SLOW_MAX;
}

/* ---- results ---- */

static void tell_waiters(struct base *base, const struct error *err)
{
    while (!list_is_empty(&base->waiters)) {
        struct base_waiter *w = list_entry(base->waiters.next, struct base_waiter, link);

        list_remove(&w->link);
        if (err == NULL) {
            base->refs++;
        }
        w->fn(w->arg, err == NULL ? base : NULL, err);
        free(w);
    }
}

static void fail(struct base *base, const struct error *err)
{
    struct node *node = base->node;

    log_error("base_failed", "template=%s version=%s vcpus=%u memory_mib=%u error=%s",
              base->key.template_info.name, base->key.template_info.version, base->key.vcpus,
              base->key.memory_mib, LOG_STR(err->message));
    if (base->state == BASE_STATE_BUILDING) {
        leave_lane(base);
    }
    tell_waiters(base, err);
    base_free(base);
    build_soon(node);
}

static void fail_text(struct base *base, const char *message)
{
    struct error err = {0};

    (void)error_set(&err, EIO, "the base snapshot could not be built: %.220s", message);
    fail(base, &err);
}

/* Opens what every restore needs; blocks for the memfd only. */
static int open_files(struct base *base)
{
    const struct runtime *rt = &base->node->parts->runtime;
    char path[BASE_PATH_SIZE + 16];

    (void)snprintf(path, sizeof(path), "%s/state", base->files.dir);
    base->state_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (base->state_fd < 0) {
        return -errno;
    }
    if (!rt->ops->maps_ram_file(rt)) {
        base->ram_memfd = base_files_copy_ram(&base->files);
        if (base->ram_memfd < 0) {
            return base->ram_memfd;
        }
    }
    return 0;
}

const struct base_key *base_next_used(const struct node *node, unsigned int *index)
{
    const struct list *head = &node->parts->bases->bases;
    unsigned int i = 0;

    for (struct list *it = head->next; it != head; it = it->next) {
        const struct base *base = list_entry(it, struct base, link);

        if (base->refs == 0 && base->state == BASE_STATE_READY) {
            continue;
        }
        if (i++ == *index) {
            (*index)++;
            return &base->key;
        }
    }
    return NULL;
}

/* ---- building ---- */

static void on_build_end(void *arg, struct vm *vm, const char *code, const char *message)
{
    struct base *base = arg;
    char text[400];

    (void)vm;
    base->vm = NULL;
    if (strcmp(code, ACCELERATOR_UNAVAILABLE) == 0) {
        struct error err = {0};

        (void)error_set_code(&err, ERROR_INTERNAL, code, "%s", message);
        fail(base, &err);
        return;
    }
    (void)snprintf(text, sizeof(text), "%s: %s", code, message);
    fail_text(base, text);
}

static void work_finish(void *arg)
{
    struct base *base = arg;
    const struct node_parts *parts = base->node->parts;

    base->job_result =
        base_files_finish(&base->files, &base->key, &parts->runtime.env, &base->job_err);
    if (base->job_result < 0) {
        return;
    }
    base->job_result = open_files(base);
    if (base->job_result < 0) {
        (void)error_set(&base->job_err, -base->job_result, "cannot open the base snapshot: %s",
                        strerror(-base->job_result));
        return;
    }
    base_files_evict(parts->volume, base->key.template_info.name,
                     (unsigned int)base->node->settings.node_bases_per_template, base->pinned);
}

void base_forget_removed(struct node *node)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &node->parts->bases->bases)
    {
        struct base *other = list_entry(it, struct base, link);

        if (other->refs == 0 && other->state == BASE_STATE_READY &&
            access(other->files.dir, F_OK) < 0) {
            base_free(other);
        }
    }
}

static void done_finish(void *arg)
{
    struct base *base = arg;
    struct node *node = base->node;

    if (base->job_result < 0) {
        fail(base, &base->job_err);
        return;
    }
    leave_lane(base);
    base_forget_removed(node);
    base->state = BASE_STATE_READY;
    log_info("base_built", "template=%s version=%s vcpus=%u memory_mib=%u duration_ms=%lld",
             base->key.template_info.name, base->key.template_info.version, base->key.vcpus,
             base->key.memory_mib, (long long)(clock_monotonic_ms() - base->started_ms));
    tell_waiters(base, NULL);
    build_soon(node);
}

/* Bases in use must stay when others are evicted. */
static void collect_pinned(struct base *base)
{
    struct list *it;
    struct list *following;
    size_t n = 0;

    list_foreach(it, following, &base->node->parts->bases->bases)
    {
        struct base *other = list_entry(it, struct base, link);
        const char *name = strrchr(other->files.dir, '/');

        if ((other->refs > 0 || other->state != BASE_STATE_READY) && name != NULL &&
            n < PINNED_MAX) {
            base->pinned[n++] = name + 1;
        }
    }
    base->pinned[n] = NULL;
}

static void on_vm_gone(void *arg)
{
    struct base *base = arg;

    collect_pinned(base);
    if (loop_submit(base->node->loop, work_finish, done_finish, base, true) < 0) {
        fail_text(base, "too much work is queued");
    }
}

static void on_saved(void *arg, struct vm *vm, const struct error *err)
{
    struct base *base = arg;
    char path[BASE_PATH_SIZE + 16];
    int r;

    if (err != NULL) {
        vm_fail(vm, "start_failed", err->message);
        return;
    }
    (void)snprintf(path, sizeof(path), "%s/disk.img", base->files.building);
    r = vm_move_disk(vm, path);
    if (r < 0) {
        vm_fail(vm, "start_failed", strerror(-r));
        return;
    }
    base->vm = NULL;
    vm_end(vm, on_vm_gone, base);
}

static void on_stopped(void *arg, struct vm *vm)
{
    struct base *base = arg;
    char path[BASE_PATH_SIZE + 16];
    _cleanup_close_ int fd = -1;

    (void)snprintf(path, sizeof(path), "%s/state", base->files.building);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        vm_fail(vm, "start_failed", strerror(errno));
        return;
    }
    vm_save(vm, fd, on_saved, base);
}

static void on_silent(void *arg, int result)
{
    struct base *base = arg;

    if (result < 0) {
        return; /* on_build_end tells */
    }
    if (result > 0) {
        vm_fail(base->vm, "agent_protocol", "the agent could not fall silent");
        return;
    }
    vm_stop(base->vm, on_stopped, base);
}

static void on_reset(void *arg, int result)
{
    struct base *base = arg;

    if (result > 0) {
        vm_fail(base->vm, "agent_protocol", "the agent could not be reset");
    } else if (result == 0) {
        /* Not frozen: there are no processes yet, and rehearsals run before an identity thaws. */
        agent_silence(vm_agent(base->vm), AGENT_SILENCE_SYNC, SILENCE_TIMEOUT_MS, on_silent, base);
    }
}

static void on_rehearsed(void *arg)
{
    struct base *base = arg;

    vm_set_deadline(base->vm, 0, "", "");
    /* A reset rehearses an identity: its files exist then, and every restore only rewrites them in
     * place. */
    agent_reset(vm_agent(base->vm), SILENCE_TIMEOUT_MS, on_reset, base);
}

/* What typical programs read of the disk is in the base's memory then, and in no snapshot. */
static void on_hello(void *arg, int result)
{
    struct base *base = arg;

    if (result == 0) {
        vm_set_deadline(base->vm, REHEARSAL_MS, "agent_timeout", "the rehearsal took too long");
        base->rehearsal.command_ms = COMMAND_MS;
        base->rehearsal.all_ms = COMMANDS_MS;
        base->rehearsal.done = on_rehearsed;
        base->rehearsal.arg = base;
        rehearsal_start(&base->rehearsal, vm_agent(base->vm), base->node->parts->volume,
                        &base->key.template_info);
    }
}

static void on_booting(void *arg, struct vm *vm)
{
    struct base *base = arg;
    int64_t timeout = (int64_t)base->node->settings.node_boot_timeout_ms;

    if (base->is_slow) { /* since before it had a control group */
        vm_set_background(vm, true);
    }
    vm_set_deadline(vm, timeout, "agent_timeout", "the guest did not come up in time");
    agent_begin(vm_agent(vm), false, timeout, on_hello, base);
}

static void start_boot(struct base *base)
{
    static const struct vm_owner owner = {on_build_end};
    struct vm_spec spec = {.mode = RUNTIME_MODE_BOOT, .ram_memfd = -1};
    struct error err = {0};

    spec.vcpus = base->key.vcpus;
    spec.memory_mib = base->key.memory_mib;
    spec.background = base->is_slow;
    (void)snprintf(spec.ram_path, sizeof(spec.ram_path), "%s/ram", base->files.building);
    if (template_disk_path(base->node->parts->volume, &base->key.template_info, spec.disk_source,
                           sizeof(spec.disk_source)) < 0) {
        fail_text(base, "data_dir is too long");
        return;
    }
    base->vm = vm_start(base->node, &spec, &owner, base, &err);
    if (base->vm == NULL) {
        fail(base, &err);
        return;
    }
    vm_on_ready(base->vm, on_booting, base);
}

static void work_begin(void *arg)
{
    struct base *base = arg;

    base->job_result = base_files_begin(&base->files, &base->key, &base->job_err);
}

static void done_begin(void *arg)
{
    struct base *base = arg;

    if (base->job_result < 0) {
        fail(base, &base->job_err);
        return;
    }
    start_boot(base);
}

/* At the end of a turn: starts the first builds that wait, where none runs. */
static void build_next(void *arg)
{
    struct node *node = arg;
    struct base_set *set = node->parts->bases;
    struct list *it;
    struct list *following;

    if (node->parts->stopping) {
        return;
    }
    list_foreach(it, following, &set->bases)
    {
        struct base *base = list_entry(it, struct base, link);

        if (base->state == BASE_STATE_QUEUED && may_enter(set, base)) {
            enter_lane(base);
            if (loop_submit(node->loop, work_begin, done_begin, base, false) < 0) {
                fail_text(base, "too much work is queued");
                return; /* which has begun the next turn */
            }
        }
    }
}

/* ---- finding ---- */

static void work_check(void *arg)
{
    struct base *base = arg;

    base->job_result = -ENOENT;
    if (base_files_check(&base->files, &base->key, &base->node->parts->runtime.env)) {
        base->job_result = open_files(base);
    }
}

static void done_check(void *arg)
{
    struct base *base = arg;

    if (base->job_result == 0) {
        base->state = BASE_STATE_READY;
        tell_waiters(base, NULL);
        return;
    }
    base->state = BASE_STATE_QUEUED;
    build_soon(base->node);
}

static struct base *base_new(struct node *node, const struct base_key *key, struct error *err)
{
    struct base *base = calloc(1, sizeof(*base));

    if (base == NULL) {
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    base->node = node;
    base->key = *key;
    base->state_fd = -1;
    base->ram_memfd = -1;
    list_init(&base->waiters);
    list_init(&base->link);
    if (base_files_init(&base->files, node->parts->volume, key, err) < 0) {
        base_free(base);
        return NULL;
    }
    list_append(&node->parts->bases->bases, &base->link);
    if (loop_submit(node->loop, work_check, done_check, base, false) < 0) {
        (void)error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL, "too much work is queued");
        base_free(base);
        return NULL;
    }
    return base;
}

struct base_answer {
    struct base *base;
    struct error err;
    base_fn fn;
    void *arg;
};

static void answer(void *arg)
{
    struct base_answer *a = arg;

    a->fn(a->arg, a->base, a->base == NULL ? &a->err : NULL);
    free(a);
}

/* Answers at the end of the turn. */
static void answer_later(struct node *node, const struct base_answer *a)
{
    struct base_answer *copy = malloc(sizeof(*copy));

    if (copy != NULL) {
        *copy = *a;
        if (loop_defer(node->loop, answer, copy) == 0) {
            return;
        }
        free(copy);
    }
    a->fn(a->arg, a->base, a->base == NULL ? &a->err : NULL);
}

void base_get(struct node *node, const struct base_key *key, base_fn fn, void *arg)
{
    struct base_answer a = {.fn = fn, .arg = arg};
    struct base *base = find(node, key);
    struct base_waiter *w;

    if (base == NULL) {
        base = base_new(node, key, &a.err);
    }
    if (base == NULL || base->state == BASE_STATE_READY) {
        a.base = base;
        if (base != NULL) {
            base->refs++;
        }
        answer_later(node, &a);
        return;
    }
    w = calloc(1, sizeof(*w));
    if (w == NULL) {
        (void)error_set(&a.err, ENOMEM, "no memory");
        answer_later(node, &a);
        return;
    }
    w->fn = fn;
    w->arg = arg;
    list_append(&base->waiters, &w->link);
}
