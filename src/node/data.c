#include "node/data.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "io/http_server.h"
#include "io/loop.h"
#include "node/agent.h"
#include "node/agent_hold.h"
#include "node/node.h"
#include "node/process.h"
#include "node/process_restore.h"
#include "node/routes.h"
#include "node/sandbox.h"
#include "node/services.h"

#define SWEEP_MS           10000
#define SAVE_RETRY_MS      1000
#define MAX_CONNECTIONS    8192U
#define HEADER_TIMEOUT_MS  30000
#define IDLE_TIMEOUT_MS    120000
#define SAVES_PER_TURN_MAX 64U

/* ---- hooks of the lifecycle ---- */

static void sample_if_running(struct data *data, struct sandbox *sb)
{
    struct services *services = sandbox_services(sb);

    if (sandbox_info(sb)->state != SANDBOX_STATE_RUNNING) {
        if (services != NULL) {
            metrics_stop(&services->metrics);
        }
        return;
    }
    services = services_get(data, sb);
    if (services != NULL) {
        metrics_start(&services->metrics);
    }
}

static void on_change(void *ctx, struct sandbox *sb)
{
    struct data *data = ctx;

    session_events_on_change(data, sb);
    attach_on_change(data, sb);
    feed_on_change(data, sb);
    sample_if_running(data, sb);
}

static void on_agent(void *ctx, struct sandbox *sb, bool adopted)
{
    struct data *data = ctx;
    struct process_table *table;

    if (!adopted) {
        create_on_agent(data, sb);
        return;
    }
    table = process_table_get(data, sb);
    if (table == NULL) {
        log_error("processes not adopted", "sandbox=%s", sandbox_info(sb)->id);
        agent_spare_unknown(sandbox_agent(sb));
        return;
    }
    process_table_adopt(table, sandbox_agent(sb));
    sample_if_running(data, sb); /* its state does not change */
}

static int on_restored(void *ctx, struct sandbox *sb, const char *dir)
{
    struct process_table *table = process_table_get(ctx, sb);

    return table != NULL ? process_table_restore(table, dir) : -ENOMEM;
}

static int on_booted(void *ctx, struct sandbox *sb)
{
    struct process_table *table = process_table_get(ctx, sb);

    return table != NULL ? process_table_lose_all(table, "crashed") : -ENOMEM;
}

static void on_lost(void *ctx, struct sandbox *sb, const char *reason)
{
    struct process_table *table = sandbox_processes(sb);
    struct services *services = sandbox_services(sb);

    (void)ctx;
    if (services != NULL) {
        services_lose(services);
    }
    if (table != NULL) {
        process_table_lose(table, reason);
    }
}

static int on_silent(void *ctx, struct sandbox *sb)
{
    (void)ctx;
    return sandbox_processes(sb) != NULL ? process_table_flush(sandbox_processes(sb)) : 0;
}

static void on_asleep(void *ctx, struct sandbox *sb)
{
    struct process_table *table = sandbox_processes(sb);
    struct services *services = sandbox_services(sb);

    (void)ctx;
    if (services != NULL) {
        services_lose(services);
    }
    if (table != NULL) {
        process_table_sleep(table);
    }
}

static void on_checkpoint(void *ctx, const struct checkpoint *ck)
{
    feed_on_checkpoint(ctx, ck);
}

static void on_started(void *ctx)
{
    feed_on_started(ctx);
}

static void on_free(void *ctx, struct sandbox *sb)
{
    struct data *data = ctx;

    services_free(sandbox_services(sb));
    process_table_free(sandbox_processes(sb));
    sandbox_set_processes(sb, NULL);
    create_on_free(data, sb);
}

/* ---- ends that are to be written down ---- */

/* Output, then record, then the guest may forget it. */
static int save_end(struct process *p)
{
    int r;

    if (sandbox_info(p->table->sandbox)->state == SANDBOX_STATE_DELETING) {
        return 0;
    }
    r = spool_flush(p->spool);
    if (r == 0) {
        r = process_save(p);
    }
    if (r == 0 && p->channel != NULL) {
        agent_channel_close(TAKE(p->channel));
    }
    return r;
}

static void on_save_timer(void *arg)
{
    struct data *data = arg;
    struct list *it;
    struct list *following;
    unsigned int done = 0;

    list_foreach(it, following, &data->unsaved)
    {
        struct process *p = list_entry(it, struct process, save_link);
        int r;

        if (++done > SAVES_PER_TURN_MAX) {
            loop_timer_start(data->save_timer, 0);
            return;
        }
        r = save_end(p);
        if (r < 0) {
            /* The guest keeps it until then; meanwhile all of it is readable from memory. */
            if (!data->save_failed) {
                log_warning("ends of processes not written", "process=%s error=\"%s\"", p->id,
                            strerror(-r));
            }
            data->save_failed = true;
            loop_timer_start(data->save_timer, SAVE_RETRY_MS);
            return;
        }
        data->save_failed = false;
        list_remove(&p->save_link);
    }
}

/* ---- retention ---- */

static void on_sweep_timer(void *arg)
{
    struct data *data = arg;
    int64_t keep_ms = (int64_t)data->node->settings.node_session_keep_minutes * 60000;
    int64_t now = clock_real_ms();

    while (!list_is_empty(&data->ended)) {
        struct process *p = list_entry(data->ended.next, struct process, ended_link);

        if (p->exited_at_ms + keep_ms > now) {
            break;
        }
        process_remove(p);
    }
    attach_touch_all(data);
    loop_timer_start(data->sweep_timer, SWEEP_MS);
}

/* ---- the socket ---- */

bool data_peer_is_allowed(const struct data *data, const char *peer)
{
    struct span text = span_of_str(peer);
    size_t colon = span_find(text, 0, ':');
    uint64_t uid;

    if (!span_equals_str(span_head(text, colon), "unix") ||
        span_parse_u64(span_skip(text, colon + 1), UINT32_MAX, &uid) < 0) {
        return false;
    }
    return uid == 0 || uid == data->service_uid || uid == geteuid();
}

static gid_t find_service(struct data *data)
{
    char text[4096];
    struct passwd entry;
    struct passwd *found = NULL;

    data->service_uid = (uid_t)-1;
    if (getpwnam_r(data->node->settings.service_user, &entry, text, sizeof(text), &found) != 0 ||
        found == NULL) {
        log_warning("no service user", "user=%s", LOG_STR(data->node->settings.service_user));
        return (gid_t)-1;
    }
    data->service_uid = entry.pw_uid;
    return entry.pw_gid;
}

int data_new(struct node *node, struct data **ret_data, struct error *err)
{
    struct data *data = calloc(1, sizeof(*data));

    if (data == NULL) {
        return error_set(err, ENOMEM, "out of memory");
    }
    data->timeout_guard_ms = PROCESS_TIMEOUT_GUARD_MS;
    data->node = node;
    spool_store_init(&data->spools);
    list_init(&data->ended);
    list_init(&data->unsaved);
    list_init(&data->starting);
    list_init(&data->holding);
    list_init(&data->feeds);
    list_init(&data->changes);
    list_init(&data->readers);
    list_init(&data->attaches);
    list_init(&data->creates);
    data->save_timer = loop_timer_new(node->loop, on_save_timer, data);
    data->sweep_timer = loop_timer_new(node->loop, on_sweep_timer, data);
    data->start_timer = loop_timer_new(node->loop, process_on_start_timer, data);
    data->hold_timer = loop_timer_new(node->loop, process_on_hold_timer, data);
    data->feed_timer = loop_timer_new(node->loop, feed_on_timer, data);
    if (data->save_timer == NULL || data->sweep_timer == NULL || data->start_timer == NULL ||
        data->hold_timer == NULL || data->feed_timer == NULL ||
        metrics_sampler_init(&data->sampler, data) < 0) {
        data_free(data);
        return error_set(err, ENOMEM, "out of memory");
    }
    loop_timer_start(data->sweep_timer, SWEEP_MS);
    node->hooks = (struct node_hooks){.on_change = on_change,
                                      .on_agent = on_agent,
                                      .on_restored = on_restored,
                                      .on_booted = on_booted,
                                      .on_lost = on_lost,
                                      .on_silent = on_silent,
                                      .on_asleep = on_asleep,
                                      .on_checkpoint = on_checkpoint,
                                      .on_started = on_started,
                                      .on_free = on_free};
    node->hooks_ctx = data;
    node->data = data;
    *ret_data = data;
    return 0;
}

int data_serve(struct data *data, struct error *err)
{
    static const struct http_server_callbacks callbacks = {
        .on_request = routes_on_request,
        .on_refused = routes_on_refused,
    };
    const struct http_server_limits limits = {
        .max_connections = MAX_CONNECTIONS,
        .header_timeout_ms = HEADER_TIMEOUT_MS,
        .idle_timeout_ms = IDLE_TIMEOUT_MS,
        .max_body_bytes = data->node->settings.api_max_body_bytes + BODY_SLACK_BYTES,
    };
    char path[SETTINGS_PATH_SIZE + 16];
    gid_t group = find_service(data);
    int r = http_server_new(data->node->loop, &limits, &callbacks, data, &data->server, err);

    if (r < 0) {
        return r;
    }
    (void)snprintf(path, sizeof(path), "%s/node.sock", data->node->settings.run_dir);
    return http_server_listen_unix(data->server, path, 0660, group, err);
}

void data_touch(struct data *data, const char *sandbox_id)
{
    struct sandbox *sb = sandbox_find(data->node, sandbox_id);

    if (sb != NULL) {
        sandbox_touch(sb);
    }
}

/* At the end: what the guests have said so far, and which of their processes have ended. The
 * guests, which keep the rest, may be powered off next. */
static void write_all(struct data *data)
{
    unsigned int index = 0;
    const struct list *first = NULL;
    struct sandbox *sb;

    while (data->node->data == data && (sb = sandbox_next(data->node, &index)) != NULL) {
        if (sandbox_processes(sb) != NULL && process_table_flush(sandbox_processes(sb)) < 0) {
            log_warning("output_not_written", "sandbox=%s", sandbox_info(sb)->id);
        }
    }
    while (!list_is_empty(&data->unsaved) && data->unsaved.next != first) {
        first = data->unsaved.next; /* as long as it gets on */
        on_save_timer(data);
    }
}

void data_free(struct data *data)
{
    struct list *it;
    struct list *following;
    unsigned int index = 0;
    struct sandbox *sb;

    if (data == NULL) {
        return;
    }
    http_server_free(data->server);
    write_all(data);
    /* What runs in the guests goes on; its records are on disk. */
    while (data->node->data == data && (sb = sandbox_next(data->node, &index)) != NULL) {
        services_free(sandbox_services(sb));
        process_table_free(sandbox_processes(sb));
        sandbox_set_processes(sb, NULL);
        create_on_free(data, sb);
    }
    list_foreach(it, following, &data->creates)
    {
        list_remove(it);
    }
    metrics_sampler_done(&data->sampler);
    loop_timer_free(data->save_timer);
    loop_timer_free(data->sweep_timer);
    loop_timer_free(data->start_timer);
    loop_timer_free(data->hold_timer);
    loop_timer_free(data->feed_timer);
    feed_forget(data);
    if (data->node->data == data) {
        data->node->hooks = (struct node_hooks){0};
        data->node->data = NULL;
    }
    free(data);
}
