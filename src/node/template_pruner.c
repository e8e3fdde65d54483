/* When old versions of templates are looked for, and which are in use. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "io/loop.h"
#include "node/base_snapshot.h"
#include "node/node_private.h"
#include "node/sandbox.h"
#include "node/template_make.h"
#include "node/template_prune.h"

#define PERIOD_MS         300000
#define PERIOD_WAITING_MS 5000 /* while deleted ones are in use */

struct template_pruner {
    struct node *node;
    struct loop_timer *timer;
    char (*keep)[ID_SIZE]; /* while a job runs */
    size_t count;
    size_t room;
    unsigned int pruned;
    unsigned int waiting;
    int64_t as_of_ms;
    struct template_step step;
    bool is_running;
    bool is_wanted; /* once more */
};

static bool add_kept(struct template_pruner *pruner, const char *version)
{
    if (pruner->count > 0 && strcmp(pruner->keep[pruner->count - 1], version) == 0) {
        return true;
    }
    if (pruner->count == pruner->room) {
        size_t room = pruner->room == 0 ? 64 : pruner->room * 2;
        void *grown = reallocarray(pruner->keep, room, ID_SIZE);

        if (grown == NULL) {
            return false;
        }
        pruner->keep = grown;
        pruner->room = room;
    }
    (void)snprintf(pruner->keep[pruner->count++], ID_SIZE, "%s", version);
    return true;
}

/* What is deleted while the job runs is kept until the next one; a creation that begins meanwhile
 * uses a version that is not deleted, or an old one of set-up's that it names at its own risk. */
static bool collect(struct template_pruner *pruner)
{
    const struct base_key *key;
    const struct checkpoint *ck;
    const struct sandbox *sb;
    struct checkpoint_walk walk = {0};
    unsigned int index = 0;
    bool good = true;

    pruner->count = 0;
    pruner->as_of_ms = clock_real_ms();
    while (good && (sb = sandbox_next(pruner->node, &index)) != NULL) {
        good = add_kept(pruner, sandbox_info(sb)->template_version) &&
               add_kept(pruner, sandbox_info(sb)->base_version);
    }
    while (good && (ck = checkpoint_next(pruner->node, &walk)) != NULL) {
        good = checkpoint_is_image(ck) || (add_kept(pruner, ck->info.template_version) &&
                                           add_kept(pruner, ck->info.base_version));
    }
    index = 0;
    while (good && (key = base_next_used(pruner->node, &index)) != NULL) {
        good = add_kept(pruner, key->template_info.version);
    }
    return good;
}

static void work_prune(void *arg)
{
    struct template_pruner *pruner = arg;

    pruner->pruned =
        template_prune(pruner->node->parts->volume, (const char(*)[ID_SIZE])pruner->keep,
                       pruner->count, pruner->as_of_ms, &pruner->waiting);
}

static void done_prune(void *arg)
{
    struct template_pruner *pruner = arg;

    pruner->is_running = false;
    if (pruner->node->parts->stopping) {
        return;
    }
    if (pruner->pruned > 0) {
        base_forget_removed(pruner->node);
        template_drop_images(pruner->node);
    }
    loop_timer_start(pruner->timer, pruner->is_wanted     ? 0
                                    : pruner->waiting > 0 ? PERIOD_WAITING_MS
                                                          : PERIOD_MS);
    pruner->is_wanted = false;
}

static void on_timer(void *arg)
{
    struct template_pruner *pruner = arg;

    if (!collect(pruner)) {
        loop_timer_start(pruner->timer, PERIOD_MS);
        return;
    }
    pruner->is_running = true;
    pruner->step = (struct template_step){.work = work_prune, .done = done_prune, .arg = pruner};
    template_step_submit(pruner->node, &pruner->step);
}

struct template_pruner *template_pruner_new(struct node *node, struct error *err)
{
    struct template_pruner *pruner = calloc(1, sizeof(*pruner));

    if (pruner != NULL) {
        pruner->node = node;
        pruner->timer = loop_timer_new(node->loop, on_timer, pruner);
    }
    if (pruner == NULL || pruner->timer == NULL) {
        free(pruner);
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    return pruner;
}

void template_pruner_start(struct template_pruner *pruner)
{
    if (pruner->is_running) {
        pruner->is_wanted = true;
        return;
    }
    loop_timer_start(pruner->timer, 0);
}

void template_pruner_free(struct template_pruner *pruner)
{
    if (pruner != NULL) {
        loop_timer_free(pruner->timer);
        free(pruner->keep);
        free(pruner);
    }
}
