#include "api/expiry.h"

#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/idle.h"
#include "api/lifecycle.h"
#include "api/store_idempotency.h"
#include "api/store_operation.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/loop.h"

#define TICK_MS      200
#define IDLE_TICK_MS 5000
#define PRUNE_MS     (60LL * 1000)
/* Of a sandbox of POST /v1/run nobody holds a session; there can be many of them. */
#define TRANSIENT_KEEP_MS (15LL * 60 * 1000)
#define HOUR_MS           (3600LL * 1000)
#define TOUCH_MAX         256
#define EXPIRE_MAX        64   /* of one rule in one turn of the loop */
#define PROBLEM_MS        1000 /* between tries when the store refuses */
#define RULES             2
#define FLUSH_MS          1000

struct touched {
    char id[ID_SIZE];
    int64_t at;
};

struct expiry {
    struct api *api;
    struct loop_timer *timer;
    int64_t next;          /* the earliest expires_at, real time; 0: none */
    int skip[RULES];       /* of those that are due, the ones that were tried in this round */
    int64_t held_until_ms; /* monotonic */
    int64_t next_prune;
    int64_t next_flush;
    struct touched touched[TOUCH_MAX];
    size_t touched_count;
};

int expiry_rest(struct api *api,
                const struct sandbox *s,
                enum lifecycle_action action,
                const char *operation_id,
                struct error *err)
{
    const struct change change = {
        .verb = action == LIFECYCLE_PAUSE ? CHANGE_PAUSE : CHANGE_SUSPEND,
        .operation_id = operation_id,
        .key_id = s->key_id,
        .reason_code = s->reason_code,
        .reason_message = s->reason_message,
        .spends_timeout = strcmp(s->reason_code, "timeout") == 0,
    };

    return lifecycle_change(api, s, &change, err);
}

static void give_reason(struct sandbox *s, const char *code)
{
    (void)snprintf(s->reason_code, sizeof(s->reason_code), "%s", code);
    (void)snprintf(s->reason_message, sizeof(s->reason_message), "%s_seconds has passed", code);
}

/* One that failed, or already uses less than the rule asks for, stays so; one that is being made
 * can rest in a while. */
static bool is_past(const struct sandbox *s)
{
    return s->state == SANDBOX_ERROR || s->state == SANDBOX_SUSPENDED ||
           s->state == SANDBOX_SUSPENDING;
}

static int carry_out_timeout(struct api *api, struct sandbox *s, struct error *err)
{
    char operation_id[ID_SIZE];
    char started[ID_SIZE];
    int r = id_make("op", operation_id);

    if (r < 0) {
        return error_set(err, -r, "no random bytes");
    }
    give_reason(s, "timeout");
    if (s->rules.timeout_action == LIFECYCLE_DELETE) {
        return lifecycle_delete(api, s, operation_id, s->key_id, started, err);
    }
    r = expiry_rest(api, s, s->rules.timeout_action, operation_id, err);
    if (r < 0 && err->code == ERROR_FAILED_PRECONDITION) {
        r = is_past(s) ? store_sandbox_spend_timeout(api->store, s->id, err) : -EAGAIN;
    }
    return r;
}

/* Unless something wakes it: that came first. */
static int carry_out_retention(struct api *api, struct sandbox *s, struct error *err)
{
    char operation_id[ID_SIZE];
    char started[ID_SIZE];
    int r = id_make("op", operation_id);

    if (lifecycle_is_busy(api, s->id)) {
        return -EAGAIN;
    }
    give_reason(s, "keep_suspended");
    return r < 0 ? error_set(err, -r, "no random bytes")
                 : lifecycle_delete(api, s, operation_id, s->key_id, started, err);
}

typedef int (*carry_out_fn)(struct api *api, struct sandbox *s, struct error *err);

enum outcome {
    OUTCOME_DONE,
    OUTCOME_LATER,  /* this one cannot be carried out now */
    OUTCOME_FAILED, /* nor can others: the store refuses */
};

static enum outcome expire_one(struct api *api, const char *id, carry_out_fn carry_out)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    struct error err = {0};
    int r = store_sandbox_get(api->store, id, &s, &err);

    if (r > 0) {
        r = carry_out(api, &s, &err);
    }
    if (r == -EAGAIN || (r < 0 && err.code == ERROR_LIMIT_EXCEEDED)) {
        return OUTCOME_LATER;
    }
    if (r < 0) {
        log_warning("expiry", "sandbox=%s problem=%s", id, LOG_STR(err.message));
        return OUTCOME_FAILED;
    }
    log_info("expired", "sandbox=%s", id);
    return OUTCOME_DONE;
}

static void find_next(struct expiry *expiry, int64_t now)
{
    struct error err = {0};
    int64_t kept = 0;
    int64_t idle = 0;

    if (store_sandbox_next_expiry(expiry->api->store, &expiry->next, &err) < 0 ||
        store_sandbox_next_retention(expiry->api->store, &kept, &err) < 0 ||
        store_sandbox_next_idle(expiry->api->store, &idle, &err) < 0) {
        expiry->next = now + PROBLEM_MS;
        return;
    }
    if (kept != 0 && (expiry->next == 0 || kept < expiry->next)) {
        expiry->next = kept;
    }
    if (idle != 0 && (expiry->next == 0 || idle < expiry->next)) {
        expiry->next = idle;
    }
}

typedef int (*find_fn)(struct store *store,
                       int64_t now,
                       char (*ret_ids)[ID_SIZE],
                       struct id_range range,
                       struct error *err);

struct rule {
    find_fn find;
    carry_out_fn carry_out;
};

static const struct rule rules[RULES] = {
    {store_sandbox_find_expired, carry_out_timeout},
    {store_sandbox_find_kept, carry_out_retention},
};

/* A batch of those that are due. What stays due stays in front of the rest, and is passed over
 * until the end is reached. Returns whether there are more. */
static bool expire_some(struct expiry *expiry, int64_t now, size_t index)
{
    char ids[EXPIRE_MAX][ID_SIZE];
    struct id_range range = {.skip = expiry->skip[index], .max = EXPIRE_MAX};
    struct error err = {0};
    int count = rules[index].find(expiry->api->store, now, ids, range, &err);
    enum outcome outcome = count < 0 ? OUTCOME_FAILED : OUTCOME_DONE;

    for (int i = 0; i < count && outcome != OUTCOME_FAILED; i++) {
        outcome = expire_one(expiry->api, ids[i], rules[index].carry_out);
        expiry->skip[index] += outcome == OUTCOME_DONE ? 0 : 1;
    }
    if (outcome == OUTCOME_FAILED) {
        expiry->held_until_ms = clock_monotonic_ms() + PROBLEM_MS;
        return false;
    }
    if (count < EXPIRE_MAX) {
        expiry->skip[index] = 0;
    }
    return count == EXPIRE_MAX;
}

/* Returns whether there is more to do at once: other events of the loop come in between. */
static bool expire(struct expiry *expiry, int64_t now)
{
    bool is_more = false;

    for (size_t i = 0; i < RULES && expiry->held_until_ms <= clock_monotonic_ms(); i++) {
        is_more |= expire_some(expiry, now, i);
    }
    if (!is_more) {
        expiry_flush(expiry->api); /* what was active a moment ago is not idle */
        idle_check(expiry->api, now);
    }
    find_next(expiry, now);
    return is_more;
}

/* One batch. Returns whether there may be more: a large one would hold up the loop. */
static bool prune(struct api *api, int64_t now)
{
    int64_t before = now - (int64_t)api->settings.api_operation_keep_hours * HOUR_MS;
    struct error err = {0};
    int sandboxes = store_sandbox_prune(api->store, before, now - TRANSIENT_KEEP_MS, &err);
    int operations = sandboxes < 0 ? -1 : store_operation_prune(api->store, before, &err);
    int keys =
        operations < 0 ? -1 : store_idempotency_prune(api->store, now - IDEMPOTENCY_KEEP_MS, &err);

    if (keys < 0) {
        log_warning("prune", "problem=%s", LOG_STR(err.message));
        return false;
    }
    return sandboxes + operations + keys > 0;
}

static void on_tick(void *arg)
{
    struct expiry *expiry = arg;
    int64_t now = clock_real_ms();
    int64_t delay = TICK_MS;

    if (expiry->next != 0 && expiry->next <= now && expire(expiry, now)) {
        loop_timer_start(expiry->timer, 0);
        return;
    }
    if (expiry->touched_count > 0 && now >= expiry->next_flush) {
        expiry_flush(expiry->api);
    }
    if (now >= expiry->next_prune) {
        store_reserve_take(expiry->api->store);
        expiry->next_prune = prune(expiry->api, now) ? now + TICK_MS : now + PRUNE_MS;
    }
    /* Short steps, since the wall clock may be set; none is needed while nothing waits. */
    if (expiry->next == 0 && expiry->touched_count == 0) {
        delay = expiry->next_prune - now < IDLE_TICK_MS ? TICK_MS : IDLE_TICK_MS;
    } else if (expiry->next != 0 && expiry->next > now && expiry->next - now < TICK_MS) {
        delay = expiry->next - now;
    }
    loop_timer_start(expiry->timer, delay);
}

void expiry_changed(struct api *api, int64_t expires_at)
{
    struct expiry *expiry = api->expiry;

    if (expires_at != 0 && (expiry->next == 0 || expires_at < expiry->next)) {
        expiry->next = expires_at;
        loop_timer_start(expiry->timer, 0);
    }
}

void expiry_touch(struct api *api, const char *sandbox_id)
{
    struct expiry *expiry = api->expiry;
    int64_t now = clock_real_ms();

    if (expiry->touched_count == 0) {
        expiry->next_flush = now + FLUSH_MS;
        loop_timer_start(expiry->timer, TICK_MS);
    }
    for (size_t i = 0; i < expiry->touched_count; i++) {
        if (strcmp(expiry->touched[i].id, sandbox_id) == 0) {
            expiry->touched[i].at = now;
            return;
        }
    }
    if (expiry->touched_count == TOUCH_MAX) {
        expiry_flush(api);
    }
    (void)snprintf(expiry->touched[expiry->touched_count].id, ID_SIZE, "%s", sandbox_id);
    expiry->touched[expiry->touched_count++].at = now;
}

void expiry_flush(struct api *api)
{
    struct expiry *expiry = api->expiry;
    struct error err = {0};
    int r;

    if (expiry->touched_count == 0) {
        return;
    }
    r = store_begin(api->store, &err);
    for (size_t i = 0; r == 0 && i < expiry->touched_count; i++) {
        r = store_sandbox_touch(api->store, expiry->touched[i].id, expiry->touched[i].at, &err);
    }
    if (r < 0) {
        store_rollback(api->store);
    } else {
        r = store_commit(api->store, &err);
    }
    if (r < 0) {
        log_warning("activity", "problem=%s", LOG_STR(err.message));
    }
    expiry->touched_count = 0;
}

struct expiry *expiry_new(struct api *api)
{
    struct expiry *expiry = calloc(1, sizeof(*expiry));

    if (expiry == NULL) {
        return NULL;
    }
    expiry->api = api;
    expiry->timer = loop_timer_new(api->loop, on_tick, expiry);
    if (expiry->timer == NULL) {
        free(expiry);
        return NULL;
    }
    find_next(expiry, clock_real_ms());
    loop_timer_start(expiry->timer, 0);
    return expiry;
}

void expiry_free(struct expiry *expiry)
{
    if (expiry != NULL) {
        expiry_flush(expiry->api); /* what ended while this program was stopping */
        loop_timer_free(expiry->timer);
        free(expiry);
    }
}
