#include "node/ports.h"

#include <errno.h>
#include <string.h>

#include <arpa/inet.h>

#include "io/loop.h"
#include "node/data.h"
#include "node/file_error.h"
#include "node/node.h"
#include "node/process.h"
#include "node/sandbox.h"
#include "node/service.h"
#include "node/services.h"

#define DELAY_FIRST_MS 50
#define DELAY_MAX_MS   500
#define LISTING_MS     30000
#define FAMILY_V6      6U

struct port_poll {
    struct services *services;
    struct list waits;
    struct service *service; /* a listing is under way */
    struct loop_timer *timer;
    int64_t delay_ms;
    uint64_t round; /* of the listing that is under way, or comes next */
    unsigned int count;
    struct service_listener found[PORTS_MAX];
};

static void start_listing(struct port_poll *poll);

/* The process of a session that has this pid, or NULL. */
static const char *find_process(const struct sandbox *sb, uint32_t pid)
{
    struct process_table *table = sandbox_processes(sb);

    if (table == NULL || pid == 0) {
        return NULL;
    }
    for (struct list *it = table->processes.prev; it != &table->processes; it = it->prev) {
        const struct process *p = list_entry(it, struct process, link);

        if (p->pid == pid && p->state == PROCESS_STATE_RUNNING) {
            return p->id;
        }
    }
    return NULL;
}

json_t *port_describe(const struct sandbox *sb, const struct service_listener *listener)
{
    char address[INET6_ADDRSTRLEN] = "";

    (void)inet_ntop(listener->family == FAMILY_V6 ? AF_INET6 : AF_INET, listener->address, address,
                    sizeof(address));
    return json_pack("{s:i, s:s, s:s?}", "port", (int)listener->port, "address", address,
                     "process_id", find_process(sb, listener->pid));
}

/* ---- one listing ---- */

static const char *on_record(void *arg, const struct service_record *record)
{
    struct port_poll *poll = arg;
    struct service_listener listener;

    if (record->type != SERVICE_RECORD_LISTENER ||
        service_listener_parse(record->payload, &listener) < 0) {
        return "a bad LISTENER";
    }
    if (poll->count < PORTS_MAX) {
        poll->found[poll->count++] = listener;
    }
    return NULL;
}

static const struct service_listener *find(const struct port_poll *poll, uint16_t port)
{
    for (unsigned int i = 0; i < poll->count; i++) {
        if (poll->found[i].port == port) {
            return &poll->found[i];
        }
    }
    return NULL;
}

static void poll_free(struct port_poll *poll)
{
    service_close(poll->service);
    loop_timer_free(poll->timer);
    poll->services->port_poll = NULL;
    free(poll);
}

static void
tell(struct port_wait *wait, const struct service_listener *listener, const struct error *err)
{
    list_remove(&wait->link);
    wait->poll = NULL;
    wait->fn(wait->arg, listener, err);
}

/* Answers whom the listing answers; err is set when it failed. Whoever hears it may leave only
 * itself. */
static void tell_all(struct port_poll *poll, const struct error *err)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &poll->waits)
    {
        struct port_wait *wait = list_entry(it, struct port_wait, link);
        const struct service_listener *listener =
            err == NULL && wait->round <= poll->round ? find(poll, wait->port) : NULL;

        if (listener != NULL || (wait->is_once && wait->round <= poll->round)) {
            tell(wait, listener, err);
        }
    }
}

static void on_ended(void *arg, const struct service_end *end)
{
    struct port_poll *poll = arg;
    struct error err = {0};

    poll->service = NULL;
    if (end->kind != SERVICE_END_DONE) {
        file_error_of_end(&err, end, poll->services->sandbox, "root");
    }
    tell_all(poll, end->kind != SERVICE_END_DONE ? &err : NULL);
    poll->round++;
    if (list_is_empty(&poll->waits)) {
        poll_free(poll);
        return;
    }
    loop_timer_start(poll->timer, poll->delay_ms);
    poll->delay_ms = poll->delay_ms * 2 < DELAY_MAX_MS ? poll->delay_ms * 2 : DELAY_MAX_MS;
}

static void on_timer(void *arg)
{
    struct port_poll *poll = arg;

    if (list_is_empty(&poll->waits)) {
        poll_free(poll);
    } else if (poll->service == NULL) {
        start_listing(poll);
    }
}

static void start_listing(struct port_poll *poll)
{
    static const struct service_callbacks callbacks = {
        .on_record = on_record,
        .on_ended = on_ended,
    };
    struct service_args args;
    const struct service_spec spec = {.args = &args, .user = "", .idle_ms = LISTING_MS};
    struct error err = {0};

    poll->count = 0;
    service_args_init(&args, "ports");
    poll->service = service_open(poll->services, &spec, &callbacks, poll, &err);
    service_args_done(&args);
    if (poll->service == NULL) {
        tell_all(poll, &err);
        poll->round++;
        loop_timer_start(poll->timer, DELAY_MAX_MS);
    }
}

/* ---- who waits ---- */

int port_wait_begin(struct services *services, struct port_wait *wait)
{
    struct port_poll *poll = services->port_poll;

    if (poll == NULL) {
        poll = calloc(1, sizeof(*poll));
        if (poll == NULL) {
            return -ENOMEM;
        }
        poll->timer = loop_timer_new(services->data->node->loop, on_timer, poll);
        if (poll->timer == NULL) {
            free(poll);
            return -ENOMEM;
        }
        list_init(&poll->waits);
        poll->services = services;
        services->port_poll = poll;
    }
    wait->poll = poll;
    wait->round = poll->round + (poll->service != NULL ? 1 : 0);
    list_append(&poll->waits, &wait->link);
    poll->delay_ms = DELAY_FIRST_MS;
    if (poll->service == NULL) {
        loop_timer_start(poll->timer, 0);
    }
    return 0;
}

void port_wait_end(struct port_wait *wait)
{
    struct port_poll *poll = TAKE(wait->poll);

    if (poll == NULL) {
        return;
    }
    list_remove(&wait->link);
    if (list_is_empty(&poll->waits) && poll->service == NULL) {
        loop_timer_start(poll->timer, 0); /* frees it */
    }
}

bool port_wait_expire(struct port_wait *wait)
{
    if (wait->poll != NULL && wait->round >= wait->poll->round) {
        wait->is_once = true;
        return false;
    }
    port_wait_end(wait);
    return true;
}

void port_poll_end(struct services *services)
{
    struct port_poll *poll = services->port_poll;
    struct error err = {0};

    if (poll == NULL) {
        return;
    }
    file_error_of_end(&err, &(struct service_end){.kind = SERVICE_END_CUT}, services->sandbox, "");
    while (!list_is_empty(&poll->waits)) {
        tell(list_entry(poll->waits.next, struct port_wait, link), NULL, &err);
    }
    poll_free(poll);
}
