#include "node/template_make.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/accelerator.h"
#include "node/base_snapshot.h"
#include "node/checkpoint.h"
#include "node/node_private.h"
#include "node/sandbox_private.h"
#include "node/snapshot.h"
#include "node/template_files.h"
#include "node/template_prune.h"

struct waiter {
    struct list link;
    template_fn fn;
    void *arg;
};

struct making {
    struct list link;
    struct node *node;
    struct template_step step;
    struct template_info info;
    struct checkpoint *source; /* in use */
    struct checkpoint *image;  /* of one with memory, until it is made */
    struct checkpoint_info image_info;
    struct checkpoint_copy copy;
    struct snapshot_facts facts;
    json_t *env;
    char disk[CHECKPOINT_PATH_SIZE + 32];
    bool is_withdrawn;
    bool was_published; /* before this order came: others may use it */
    int result;
    struct error err;
    struct list waiters;
};

struct withdrawal {
    struct list link; /* in none */
    struct node *node;
    struct template_step step;
    char name[SANDBOX_TEMPLATE_SIZE];
    char version[ID_SIZE];
    json_t *item; /* as it was */
    int result;
    struct error err;
    struct list waiters;
};

/* ---- one after the other ---- */

static void work_step(void *arg)
{
    struct template_step *step = arg;

    step->work(step->arg);
}

static void done_step(void *arg);

/* With no room among the loop's jobs the work is done here. */
static void start_next(struct node *node)
{
    struct template_set *set = &node->parts->templates;

    while (!set->is_working && !node->parts->stopping && !list_is_empty(&set->steps)) {
        struct template_step *step = list_entry(set->steps.next, struct template_step, link);

        list_remove(&step->link);
        set->is_working = true;
        if (loop_submit(node->loop, work_step, done_step, step, false) < 0) {
            work_step(step);
            set->is_working = false;
            step->done(step->arg);
        }
    }
}

static void done_step(void *arg)
{
    struct template_step *step = arg;
    struct node *node = step->node;

    node->parts->templates.is_working = false;
    step->done(step->arg);
    start_next(node);
}

void template_step_submit(struct node *node, struct template_step *step)
{
    step->node = node;
    list_append(&node->parts->templates.steps, &step->link);
    start_next(node);
}

/* ---- waiting ---- */

static int add_waiter(struct list *waiters, template_fn fn, void *arg)
{
    struct waiter *w = calloc(1, sizeof(*w));

    if (w == NULL) {
        return -ENOMEM;
    }
    w->fn = fn;
    w->arg = arg;
    list_append(waiters, &w->link);
    return 0;
}

static void cancel(struct list *waiters, const void *arg)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, waiters)
    {
        struct waiter *w = list_entry(it, struct waiter, link);

        if (arg == NULL || w->arg == arg) {
            list_remove(&w->link);
            free(w);
        }
    }
}

/* json is borrowed. */
static void tell(struct list *waiters, json_t *json, const struct error *err)
{
    while (!list_is_empty(waiters)) {
        struct waiter *w = list_entry(waiters->next, struct waiter, link);

        list_remove(&w->link);
        w->fn(w->arg, json, err);
        free(w);
    }
}

void template_cancel_waits(struct node *node, const void *arg)
{
    struct list *it;
    struct list *following;

    if (node->parts == NULL || node->parts->templates.makings.next == NULL) {
        return;
    }
    list_foreach(it, following, &node->parts->templates.makings)
    {
        cancel(&list_entry(it, struct making, link)->waiters, arg);
    }
    list_foreach(it, following, &node->parts->templates.withdrawals)
    {
        cancel(&list_entry(it, struct withdrawal, link)->waiters, arg);
    }
}

/* ---- the end of a making ---- */

static void free_making(struct making *m)
{
    if (m->source != NULL) {
        checkpoint_release(TAKE(m->source));
    }
    cancel(&m->waiters, NULL);
    json_decref(m->env);
    list_remove(&m->link);
    free(m);
}

/* What was published in part is deleted as if it had been whole. */
static void work_discard(void *arg)
{
    struct making *m = arg;
    const char *volume = m->node->parts->volume;
    struct template_info info;
    struct error err;

    m->result = template_load(volume, m->info.name, m->info.version, &info, NULL) == 0
                    ? template_files_withdraw(volume, m->info.name, m->info.version, &err)
                    : template_files_discard(volume, m->info.name, m->info.version);
}

static void done_discard(void *arg)
{
    struct making *m = arg;

    if (m->result < 0) {
        log_warning("template_left", "template=%s version=%s error=%s", m->info.name,
                    m->info.version, strerror(-m->result));
    }
    if (m->info.memory && !m->node->parts->stopping) {
        template_drop_images(m->node); /* after the record: what is listed has its memory */
    }
    base_forget_removed(m->node);
    template_pruner_start(m->node->parts->pruner);
    tell(&m->waiters, NULL, &m->err);
    free_making(m);
}

/* Nothing of it stays, unless it is not this order's; then whoever waits hears why. */
static void fail(struct making *m)
{
    log_warning("template_failed", "template=%s version=%s error=%s", m->info.name, m->info.version,
                LOG_STR(m->err.message));
    if (m->image != NULL) {
        checkpoint_fail(TAKE(m->image), &m->err);
    }
    if (m->was_published) {
        tell(&m->waiters, NULL, &m->err);
        free_making(m);
        return;
    }
    m->step = (struct template_step){.work = work_discard, .done = done_discard, .arg = m};
    template_step_submit(m->node, &m->step);
}

static bool is_withdrawn(struct making *m)
{
    if (m->is_withdrawn) {
        (void)error_set_code(&m->err, ERROR_CONFLICT, NULL, "the template %s@%s was deleted",
                             m->info.name, m->info.version);
    }
    return m->is_withdrawn;
}

/* ---- its steps ---- */

static void work_publish(void *arg)
{
    struct making *m = arg;

    m->result = template_files_publish(m->node->parts->volume, &m->info, &m->err);
}

/* version "": the current one. */
static json_t *find_listed(struct node *node, const char *name, const char *version)
{
    json_t *items = template_list(node->parts->volume);
    json_t *found = NULL;
    json_t *item;
    size_t i;

    json_array_foreach(items, i, item) {
        if (strcmp(json_string_value(json_object_get(item, "name")), name) == 0 &&
            (version[0] == '\0'
                 ? json_is_true(json_object_get(item, "current"))
                 : strcmp(json_string_value(json_object_get(item, "version")), version) == 0)) {
            found = json_incref(item);
            break;
        }
    }
    json_decref(items);
    return found;
}

static void done_publish(void *arg)
{
    struct making *m = arg;
    json_t *item = m->result == 0 ? find_listed(m->node, m->info.name, m->info.version) : NULL;

    if (m->result == 0 && item == NULL) {
        (void)error_set(&m->err, EIO, "the template's record cannot be read");
    }
    if (item == NULL) {
        fail(m);
        return;
    }
    log_info("template_made", "template=%s version=%s checkpoint=%s memory=%d", m->info.name,
             m->info.version, m->info.checkpoint_id, (int)m->info.memory);
    tell(&m->waiters, item, NULL);
    json_decref(item);
    free_making(m);
}

static void publish(struct making *m)
{
    m->step = (struct template_step){.work = work_publish, .done = done_publish, .arg = m};
    template_step_submit(m->node, &m->step);
}

static void on_base(void *arg, struct base *base, const struct error *err)
{
    struct making *m = arg;

    if (base != NULL) {
        base_unref(base);
    } else if (err->code == ERROR_INTERNAL && strcmp(err->field, ACCELERATOR_UNAVAILABLE) != 0) {
        (void)error_set_code(&m->err, ERROR_FAILED_PRECONDITION, "not_bootable", "%s",
                             err->message);
    } else {
        m->err = *err;
    }
    if (base == NULL || is_withdrawn(m)) {
        fail(m);
    } else {
        publish(m);
    }
}

static void work_build(void *arg)
{
    struct making *m = arg;
    const struct settings *set = &m->node->settings;
    const struct template_build build = {
        .volume = m->node->parts->volume,
        .disk = m->info.memory ? NULL : m->disk,
        .env = m->env,
        .versions_max = (unsigned int)set->node_template_versions,
        .maker_max = (unsigned int)set->node_template_versions_per_key,
        .reserve_mib = set->node_disk_reserve_mib / 2,
    };

    m->result = template_files_build(&build, &m->info, &m->err);
    if (m->result == 0 && m->info.memory) {
        m->result = checkpoint_copy(&m->copy, &m->image_info, &m->err);
    }
}

static void done_build(void *arg)
{
    struct making *m = arg;
    struct base_key key = {m->info, m->info.vcpus, m->info.memory_mib};

    if (m->node->parts->stopping) {
        return; /* a restart removes what there is of it */
    }
    if (m->result < 0) {
        fail(m);
        return;
    }
    if (m->image != NULL) {
        checkpoint_settle(TAKE(m->image), &m->image_info);
    }
    if (is_withdrawn(m)) {
        fail(m);
    } else if (m->info.memory) {
        publish(m);
    } else {
        base_get(m->node, &key, on_base, m);
    }
}

/* ---- the order ---- */

static struct making *find_making(struct node *node, const char *version)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &node->parts->templates.makings)
    {
        struct making *m = list_entry(it, struct making, link);

        if (strcmp(m->info.version, version) == 0) {
            return m;
        }
    }
    return NULL;
}

static struct making *
new_making(struct node *node, const struct template_info *info, template_fn fn, void *arg)
{
    struct making *m = calloc(1, sizeof(*m));

    if (m == NULL) {
        return NULL;
    }
    m->node = node;
    m->info = *info;
    list_init(&m->waiters);
    list_append(&node->parts->templates.makings, &m->link);
    if (add_waiter(&m->waiters, fn, arg) < 0) {
        free_making(m);
        return NULL;
    }
    return m;
}

/* The checkpoint as it will be the template's. */
static int prepare_image(struct making *m)
{
    const struct checkpoint_info *from = &m->source->info;

    m->image = checkpoint_new(m->node, m->info.version);
    if (m->image == NULL) {
        return -ENOMEM;
    }
    m->image_info = *from;
    memcpy(m->image_info.id, m->info.version, sizeof(m->image_info.id));
    memcpy(m->image_info.template_name, m->info.name, sizeof(m->image_info.template_name));
    memcpy(m->image_info.template_version, m->info.version, sizeof(m->image_info.template_version));
    m->image->info = m->image_info;
    checkpoint_path(m->source, "", "", m->copy.from, sizeof(m->copy.from));
    checkpoint_path(m->image, ".new", "", m->copy.building, sizeof(m->copy.building));
    m->copy.env = m->env;
    m->copy.facts = &m->facts;
    m->copy.reserve_mib = m->node->settings.node_disk_reserve_mib / 2;
    m->facts = (struct snapshot_facts){.vcpus = from->vcpus, .memory_mib = from->memory_mib};
    memcpy(m->facts.template_version, from->base_version, sizeof(m->facts.template_version));
    m->facts.env = m->node->parts->runtime.env;
    return 0;
}

static int take_source(struct making *m, struct error *err)
{
    const struct checkpoint_info *from = &m->source->info;
    struct template_info *i = &m->info;

    i->vcpus = from->vcpus;
    i->memory_mib = from->memory_mib;
    i->disk_mib = from->disk_mib;
    i->memory = from->memory;
    (void)snprintf(i->user, sizeof(i->user), "%s", from->user);
    clock_format(clock_real_ms(), i->built_at);
    checkpoint_path(m->source, "", "snapshot/disk.img", m->disk, sizeof(m->disk));
    m->env = checkpoint_load_env(m->source);
    if (m->env == NULL) {
        return error_set(err, EBADMSG, "checkpoint %s is damaged: its variables cannot be read",
                         i->checkpoint_id);
    }
    if (!i->memory) {
        return sandbox_check_admission(m->node, i->memory_mib, false, err);
    }
    return prepare_image(m) < 0 ? error_set(err, ENOMEM, "no memory") : 0;
}

static int begin(struct node *node,
                 const struct template_info *info,
                 template_fn fn,
                 void *arg,
                 struct error *err)
{
    struct making *m = new_making(node, info, fn, arg);
    int r = m == NULL ? error_set(err, ENOMEM, "no memory")
                      : checkpoint_use(node, info->checkpoint_id, &m->source, err);

    if (r == 0) {
        r = take_source(m, err);
    }
    if (r < 0) {
        if (m != NULL) {
            free_making(m);
        }
        return r;
    }
    m->step = (struct template_step){.work = work_build, .done = done_build, .arg = m};
    template_step_submit(node, &m->step);
    return 0;
}

int template_make(struct node *node,
                  const struct template_order *order,
                  template_fn fn,
                  void *arg,
                  struct error *err)
{
    struct making *m = find_making(node, order->version);
    struct template_info info = {0};
    int r;

    if (m != NULL) {
        return add_waiter(&m->waiters, fn, arg) < 0 ? error_set(err, ENOMEM, "no memory") : 0;
    }
    if (template_load(node->parts->volume, order->name, order->version, &info, NULL) == 0) {
        m = new_making(node, &info, fn, arg); /* killed before `current` pointed at it, perhaps */
        if (m == NULL) {
            return error_set(err, ENOMEM, "no memory");
        }
        m->was_published = true;
        publish(m);
        return 0;
    }
    r = node_check_start(node, err);
    if (r < 0) {
        return r;
    }
    if (template_files_exist(node->parts->volume, order->version)) {
        return error_set_code(err, ERROR_CONFLICT, NULL, "the template %.64s@%.24s was deleted",
                              order->name, order->version);
    }
    (void)snprintf(info.name, sizeof(info.name), "%s", order->name);
    (void)snprintf(info.version, sizeof(info.version), "%s", order->version);
    (void)snprintf(info.checkpoint_id, sizeof(info.checkpoint_id), "%s", order->checkpoint_id);
    (void)snprintf(info.made_by, sizeof(info.made_by), "%s", order->made_by);
    return begin(node, &info, fn, arg, err);
}

/* ---- deletion ---- */

static void free_withdrawal(struct withdrawal *w)
{
    cancel(&w->waiters, NULL);
    json_decref(w->item);
    list_remove(&w->link);
    free(w);
}

static void work_withdraw(void *arg)
{
    struct withdrawal *w = arg;

    w->result = template_files_withdraw(w->node->parts->volume, w->name, w->version, &w->err);
}

static void done_withdraw(void *arg)
{
    struct withdrawal *w = arg;
    if (w->result == 0) {
        log_info("template_deleted", "template=%s version=%s", w->name,
                 w->version[0] != '\0' ? w->version : "all");
        template_pruner_start(w->node->parts->pruner);
    }
    tell(&w->waiters, w->result == 0 ? w->item : NULL, w->result == 0 ? NULL : &w->err);
    free_withdrawal(w);
}

int template_withdraw(struct node *node,
                      const char *name,
                      const char *version,
                      template_fn fn,
                      void *arg,
                      struct error *err)
{
    struct making *m = version[0] != '\0' ? find_making(node, version) : NULL;
    struct withdrawal *w = calloc(1, sizeof(*w));

    if (w == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    list_init(&w->link);
    list_init(&w->waiters);
    w->item = find_listed(node, name, version);
    if (w->item == NULL) {
        w->item = json_object();
    }
    if (w->item == NULL || add_waiter(&w->waiters, fn, arg) < 0) {
        free_withdrawal(w);
        return error_set(err, ENOMEM, "no memory");
    }
    if (m != NULL) {
        m->is_withdrawn = true; /* else it is published by now, and found */
    }
    w->node = node;
    list_append(&node->parts->templates.withdrawals, &w->link);
    (void)snprintf(w->name, sizeof(w->name), "%s", name);
    (void)snprintf(w->version, sizeof(w->version), "%s", version);
    w->step = (struct template_step){.work = work_withdraw, .done = done_withdraw, .arg = w};
    template_step_submit(node, &w->step);
    return 0;
}

/* ---- start and end ---- */

static void on_image_gone(void *arg, const struct checkpoint *ck, const struct error *err)
{
    (void)arg;
    (void)ck;
    (void)err;
}

static void remove_image(struct node *node, const char *version)
{
    if (checkpoint_remove(node, version, on_image_gone, NULL) < 0) {
        log_warning("image_left", "version=%s", version);
    }
}

void template_drop_images(struct node *node)
{
    struct checkpoint_walk walk = {0};
    struct checkpoint *ck;

    while ((ck = checkpoint_next(node, &walk)) != NULL) {
        if (checkpoint_is_image(ck) && !ck->remove_wanted &&
            (ck->state == CHECKPOINT_STATE_READY || ck->state == CHECKPOINT_STATE_DAMAGED) &&
            !template_files_exist(node->parts->volume, ck->info.id)) {
            remove_image(node, ck->info.id);
        }
    }
}

void template_make_begin(struct node *node)
{
    struct template_set *set = &node->parts->templates;

    list_init(&set->makings);
    list_init(&set->withdrawals);
    list_init(&set->steps);
    template_files_sweep(node->parts->volume);
    template_drop_images(node);
}

void template_make_end(struct node *node)
{
    struct template_set *set = &node->parts->templates;

    while (set->makings.next != NULL && !list_is_empty(&set->makings)) {
        struct making *m = list_entry(set->makings.next, struct making, link);

        m->source = NULL; /* the checkpoints' records go with the node */
        free_making(m);
    }
    while (set->withdrawals.next != NULL && !list_is_empty(&set->withdrawals)) {
        struct withdrawal *w = list_entry(set->withdrawals.next, struct withdrawal, link);

        free_withdrawal(w);
    }
}
