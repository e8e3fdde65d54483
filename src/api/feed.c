#include "api/feed.h"

#include <errno.h>

#include "api/api.h"
#include "api/checkpoint_check.h"
#include "api/expiry.h"
#include "api/lifecycle.h"
#include "api/report.h"
#include "api/run_once.h"
#include "api/store_checkpoint.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/json_request.h"
#include "io/loop.h"

#define ORPHAN_AGE_MS 60000
#define SEEN_MAX      200000

struct orphan {
    char id[ID_SIZE];
    int64_t due_ms; /* real time */
};

struct feed {
    struct api *api;
    char (*seen)[ID_SIZE]; /* sandboxes that this stream has shown before `synced` */
    size_t seen_count;
    size_t shown_count; /* at `synced`: those before are sorted, those behind are missing */
    size_t seen_room;
    struct orphan orphans[256];
    size_t orphan_count;
    struct loop_timer *timer;
};

static int compare_ids(const void *a, const void *b)
{
    return memcmp(a, b, ID_LENGTH);
}

static bool was_seen(const struct feed *feed, const char *id)
{
    return feed->shown_count > 0 &&
           bsearch(id, feed->seen, feed->shown_count, ID_SIZE, compare_ids) != NULL;
}

static int remember_seen(struct feed *feed, const char *id)
{
    if (feed->seen_count == feed->seen_room) {
        size_t room = feed->seen_room == 0 ? 256 : feed->seen_room * 2;
        void *grown = room > SEEN_MAX ? NULL : realloc(feed->seen, room * ID_SIZE);

        if (grown == NULL) {
            return -ENOMEM;
        }
        feed->seen = grown;
        feed->seen_room = room;
    }
    memcpy(feed->seen[feed->seen_count++], id, ID_SIZE);
    return 0;
}

/* ---- orphans: sandboxes of the node that the store has never known ---- */

static void on_orphan_timer(void *arg)
{
    struct feed *feed = arg;
    int64_t now = clock_real_ms();
    int64_t next = 0;
    size_t kept = 0;

    for (size_t i = 0; i < feed->orphan_count; i++) {
        struct orphan orphan = feed->orphans[i];
        _cleanup_sandbox_ struct sandbox s = {0};
        struct error err;

        if (orphan.due_ms <= now) {
            if (store_sandbox_get(feed->api->store, orphan.id, &s, &err) == 0) {
                lifecycle_purge(feed->api, orphan.id);
            }
            continue;
        }
        feed->orphans[kept++] = orphan;
        next = next == 0 || orphan.due_ms < next ? orphan.due_ms : next;
    }
    feed->orphan_count = kept;
    if (next != 0) {
        loop_timer_start(feed->timer, next - now);
    }
}

/* Not before it is a minute old: a store that was put back from a backup a moment ago must not
 * cost a sandbox that somebody is just making. What does not fit comes with the next stream. */
static void add_orphan(struct feed *feed, const struct sandbox_report *report)
{
    int64_t now = clock_real_ms();
    int64_t since = report->running_at != 0 ? report->running_at : now;

    for (size_t i = 0; i < feed->orphan_count; i++) {
        if (strcmp(feed->orphans[i].id, report->id) == 0) {
            return;
        }
    }
    if (feed->orphan_count == sizeof(feed->orphans) / sizeof(feed->orphans[0])) {
        return;
    }
    log_warning("orphan", "sandbox=%s", report->id);
    memcpy(feed->orphans[feed->orphan_count].id, report->id, ID_SIZE);
    feed->orphans[feed->orphan_count].due_ms = since + ORPHAN_AGE_MS;
    feed->orphan_count++;
    loop_timer_start(feed->timer, 1);
}

/* ---- events ---- */

static int mark_lost(struct api *api, const char *id, const char *code, const char *message)
{
    struct error err;

    log_warning("sandbox lost", "sandbox=%s code=%s", id, code);
    return store_sandbox_set_state(api->store, id, SANDBOX_ERROR, code, message, &err);
}

/* In the object store, from its suspend until it runs: no node needs to have it. */
static bool is_stored(const struct sandbox *s)
{
    return s->manifest[0] != '\0' && s->state != SANDBOX_DELETING;
}

/* The node has it no more, or not yet: it is where it was. */
static int mark_stored(struct api *api, const struct sandbox *s)
{
    struct error err;

    if (s->state == SANDBOX_SUSPENDED) {
        return 0;
    }
    log_info("sandbox stored", "sandbox=%s state=%s", s->id, sandbox_state_name(s->state));
    expiry_changed(api, clock_real_ms());
    return store_sandbox_set_state(api->store, s->id, SANDBOX_SUSPENDED, "", "", &err);
}

static int apply(struct api *api, struct sandbox *s, const struct sandbox_report *report)
{
    struct error err;
    enum sandbox_state before = s->state;
    int r;

    if (report->deleted && is_stored(s)) {
        return mark_stored(api, s);
    }
    if (report->deleted) {
        return s->state == SANDBOX_ERROR
                   ? 0
                   : mark_lost(api, s->id, "deleted_at_node", "the node has deleted this sandbox");
    }
    if (is_stored(s) && (report->state == SANDBOX_CREATING || report->state == SANDBOX_DELETING)) {
        return 0; /* it is being fetched, or that has failed */
    }
    r = report_apply(report, s);
    if (r <= 0) {
        return r;
    }
    if (before != s->state) {
        expiry_changed(api, clock_real_ms()); /* rules may count from here on */
        log_info("sandbox", "sandbox=%s state=%s reason=%s", s->id, sandbox_state_name(s->state),
                 s->reason_code[0] == '\0' ? "-" : s->reason_code);
    }
    return store_sandbox_update(api->store, s, &err);
}

/* One that the store has as deleted. That of a run is deleted by the node itself after the answer:
 * only where a new stream still shows it has that gone wrong. */
static void purge_deleted(struct api *api,
                          const struct sandbox *s,
                          const struct sandbox_report *report,
                          bool synced)
{
    if (!report->deleted && report->state != SANDBOX_DELETING && !(s->transient && synced)) {
        lifecycle_purge(api, s->id);
    }
}

static int take_report(struct feed *feed, const struct sandbox_report *report, bool synced)
{
    struct api *api = feed->api;
    _cleanup_sandbox_ struct sandbox s = {0};
    struct error err;
    int r = store_sandbox_get(api->store, report->id, &s, &err);

    if (r < 0) {
        return r;
    }
    if (r == 0) {
        if (!report->deleted) {
            add_orphan(feed, report);
        }
        return 0;
    }
    if (s.deleted_at != 0) {
        purge_deleted(api, &s, report, synced);
        return 0;
    }
    /* The answer of a call that is on its way says the same, and more. */
    if (lifecycle_is_busy(api, s.id) || run_once_is_busy(api, s.id)) {
        lifecycle_note(api, report);
        run_once_note(api, report);
        return 0;
    }
    return apply(api, &s, report);
}

int feed_on_sandbox(struct api *api, struct span data, bool synced)
{
    struct feed *feed = api->feed;
    _cleanup_json_ json_t *record = NULL;
    struct sandbox_report report;
    struct error err;
    int r;

    if (json_answer_parse(data, &record, &err) < 0 || report_read(record, &report) < 0) {
        return -EBADMSG;
    }
    if (!synced && !report.deleted) {
        r = remember_seen(feed, report.id);
        if (r < 0) {
            return r;
        }
    }
    r = take_report(feed, &report, synced);
    if (r < 0) {
        /* The store's trouble is no reason to drop the node: the record is stale until the next
         * event or the next stream. */
        log_warning("feed", "sandbox=%s problem=%s", report.id, strerror(-r));
    }
    return 0;
}

int feed_on_checkpoint(struct api *api, struct span data)
{
    _cleanup_json_ json_t *record = NULL;
    const char *id;
    const char *manifest;
    struct error err = {0};

    if (json_answer_parse(data, &record, &err) < 0) {
        return -EBADMSG;
    }
    id = json_string_value(json_object_get(record, "id"));
    manifest = json_string_value(json_object_get(record, "manifest"));
    if (id == NULL || !id_is_valid(id, "ck")) {
        return -EBADMSG;
    }
    if (store_checkpoint_set_manifest(api->store, id, manifest == NULL ? "" : manifest, &err) < 0) {
        log_warning("feed", "checkpoint=%s problem=%s", id, LOG_STR(err.message));
    }
    return 0;
}

void feed_begin(struct api *api)
{
    api->feed->seen_count = 0;
}

static int check_living(void *arg, const struct sandbox *s)
{
    struct feed *feed = arg;
    struct api *api = feed->api;

    if (was_seen(feed, s->id) || s->state == SANDBOX_ERROR ||
        (is_stored(s) && s->state == SANDBOX_SUSPENDED) || lifecycle_is_busy(api, s->id) ||
        run_once_is_busy(api, s->id)) {
        return 0;
    }
    return remember_seen(feed, s->id); /* collected at the end: see below */
}

static int mark_missing(struct api *api, const char *id)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    struct error err;
    int r = store_sandbox_get(api->store, id, &s, &err);

    if (r > 0 && is_stored(&s)) {
        return mark_stored(api, &s);
    }
    return r < 0 ? r
                 : mark_lost(api, id, "host_restarted",
                             "the node no longer has this sandbox: the host or its VMM was "
                             "restarted");
}

int feed_on_synced(struct api *api)
{
    struct feed *feed = api->feed;
    struct error err;
    int r;

    feed->shown_count = feed->seen_count;
    if (feed->shown_count > 0) {
        qsort(feed->seen, feed->shown_count, ID_SIZE, compare_ids);
    }
    /* The ids of those that are missing are gathered behind the sorted ones, since the walk over
     * the store must have ended before it is written to. */
    r = store_sandbox_each_living(api->store, check_living, feed, &err);
    for (size_t i = feed->shown_count; i < feed->seen_count && r == 0; i++) {
        r = mark_missing(api, feed->seen[i]);
    }
    feed->seen_count = 0;
    return r;
}

void feed_after_synced(struct api *api)
{
    lifecycle_resume(api);
    checkpoint_check_start(api->checkpoint_check);
}

struct feed *feed_new(struct api *api)
{
    struct feed *feed = calloc(1, sizeof(*feed));

    if (feed == NULL) {
        return NULL;
    }
    feed->api = api;
    feed->timer = loop_timer_new(api->loop, on_orphan_timer, feed);
    if (feed->timer == NULL) {
        free(feed);
        return NULL;
    }
    return feed;
}

void feed_free(struct feed *feed)
{
    if (feed != NULL) {
        loop_timer_free(feed->timer);
        free(feed->seen);
        free(feed);
    }
}
