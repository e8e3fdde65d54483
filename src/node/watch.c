#include "node/watch.h"

#include <errno.h>
#include <string.h>

#include "base/id.h"
#include "base/log.h"
#include "io/json_request.h"
#include "io/loop.h"
#include "node/data.h"
#include "node/file_call.h"
#include "node/file_entry.h"
#include "node/file_error.h"
#include "node/node.h"
#include "node/sandbox.h"
#include "node/services.h"

#define RING_FIRST     64U
#define RESTART_MS     1000
#define RESTARTS_MAX   10U
#define OVERFLOW_EVENT "event: overflow\ndata: {}\n\n"

struct watch_event {
    size_t n;
    char text[];
};

static const char *const kind_names[] = {
    [SERVICE_CHANGE_CREATED] = "created",
    [SERVICE_CHANGE_MODIFIED] = "modified",
    [SERVICE_CHANGE_DELETED] = "deleted",
    [SERVICE_CHANGE_MOVED] = "moved",
};

static void open_service(struct watch *watch);

/* ---- history ---- */

static void drop_oldest(struct watch *watch)
{
    struct watch_event **slot = &watch->ring[watch->first % watch->room];

    watch->bytes -= (*slot)->n;
    free(*slot);
    *slot = NULL;
    watch->first++;
}

static int make_room(struct watch *watch)
{
    size_t room = watch->room == 0 ? RING_FIRST : watch->room * 2;
    struct watch_event **ring;

    if (watch->end - watch->first < watch->room) {
        return 0;
    }
    if (watch->room == WATCH_EVENTS_MAX) {
        drop_oldest(watch);
        return 0;
    }
    ring = calloc(room, sizeof(watch->ring[0])); // NOLINT(bugprone-sizeof-expression): of pointers
    if (ring == NULL) {
        return -ENOMEM;
    }
    for (uint64_t i = watch->first; watch->room > 0 && i < watch->end; i++) {
        ring[i % room] = watch->ring[i % watch->room];
    }
    free(watch->ring);
    watch->ring = ring;
    watch->room = room;
    return 0;
}

/* An event that cannot be kept is one that readers miss: first moves past it. */
static void skip_event(struct watch *watch)
{
    while (watch->first < watch->end) {
        drop_oldest(watch);
    }
    watch->end++;
    watch->first = watch->end;
}

static void append(struct watch *watch, struct span text)
{
    struct watch_event *event = NULL;

    if (make_room(watch) == 0) {
        event = malloc(sizeof(*event) + text.n);
    }
    if (event == NULL) {
        skip_event(watch);
        return;
    }
    event->n = text.n;
    memcpy(event->text, text.p, text.n);
    watch->ring[watch->end % watch->room] = event;
    watch->end++;
    watch->bytes += text.n;
    while (watch->bytes > WATCH_BYTES_MAX) {
        drop_oldest(watch);
    }
}

static void append_change(struct watch *watch, const struct service_change *change)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    _cleanup_json_ json_t *data = json_object();
    int r;

    if (change->kind == SERVICE_CHANGE_OVERFLOW) {
        append(watch, span_of_str(OVERFLOW_EVENT));
        return;
    }
    r = file_name_set(data, "path", "path_base64", change->path);
    if (change->kind == SERVICE_CHANGE_MOVED) {
        r |= file_name_set(data, "from", "from_base64", change->from);
    } else {
        r |= json_object_set_new(data, "from", json_null());
        r |= json_object_set_new(data, "from_base64", json_null());
    }
    r |= json_object_set_new(data, "is_directory", json_boolean(change->is_directory));
    buf_printf(&text, "event: %s\ndata: ", kind_names[change->kind]);
    json_write(data, &text);
    buf_put_str(&text, "\n\n");
    if (r != 0 || buf_error(&text) != 0) {
        skip_event(watch);
        return;
    }
    append(watch, buf_span(&text));
}

/* ---- life ---- */

static void tell(struct watch *watch)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &watch->readers)
    {
        struct watch_reader *reader = list_entry(it, struct watch_reader, link);

        reader->fn(reader->arg); /* only schedules: nobody leaves from inside */
    }
}

static void watch_free(struct watch *watch)
{
    service_close(watch->service);
    loop_timer_free(watch->timer);
    list_remove(&watch->link);
    while (watch->first < watch->end) {
        drop_oldest(watch);
    }
    free(watch->ring);
    free(watch->user);
    buf_done(&watch->path);
    free(watch);
}

/* Its readers take what is left and then leave. */
static void end_watch(struct watch *watch)
{
    service_close(TAKE(watch->service));
    list_remove(&watch->link);
    loop_timer_stop(watch->timer);
    watch->is_ended = true;
    if (watch->services != NULL) {
        watch->services->watch_count--;
        watch->services = NULL;
    }
    if (list_is_empty(&watch->readers)) {
        watch_free(watch);
        return;
    }
    tell(watch);
}

void watches_end(struct services *services)
{
    while (!list_is_empty(&services->watches)) {
        struct watch *watch = list_entry(services->watches.next, struct watch, link);

        file_error_of_end(&watch->error, &(struct service_end){.kind = SERVICE_END_CUT},
                          services->sandbox, watch->user);
        end_watch(watch);
    }
}

static void on_timer(void *arg)
{
    struct watch *watch = arg;

    if (list_is_empty(&watch->readers)) {
        end_watch(watch); /* nobody came back */
    } else if (watch->service == NULL) {
        open_service(watch);
    }
}

/* ---- the service ---- */

static const char *on_record(void *arg, const struct service_record *record)
{
    struct watch *watch = arg;
    struct service_change change;

    if (record->type == SERVICE_RECORD_DONE) {
        if (watch->watching && watch->restarts == 0) {
            return "DONE twice";
        }
        watch->watching = true;
        watch->restarts = 0;
        service_set_idle(watch->service, 0);
        tell(watch);
        return NULL;
    }
    if (record->type != SERVICE_RECORD_CHANGE || !watch->watching || watch->restarts > 0 ||
        service_change_parse(record->payload, &change) < 0) {
        return "a bad or unasked record of a watch";
    }
    append_change(watch, &change);
    tell(watch);
    return NULL;
}

static void on_ended(void *arg, const struct service_end *end)
{
    struct watch *watch = arg;
    struct sandbox *sb = watch->services->sandbox;
    bool is_alive = sandbox_info(sb)->state == SANDBOX_STATE_RUNNING && sandbox_agent(sb) != NULL;

    watch->service = NULL;
    if (end->kind == SERVICE_END_CUT && is_alive && watch->watching &&
        watch->restarts < RESTARTS_MAX) {
        /* The conversation began anew, or the guest ended the service: what happened meanwhile is
         * not known. */
        watch->restarts++;
        append(watch, span_of_str(OVERFLOW_EVENT));
        tell(watch);
        loop_timer_start(watch->timer, RESTART_MS);
        return;
    }
    file_error_of_end(&watch->error, end, sb, watch->user);
    if (end->kind == SERVICE_END_ERROR && end->errnum == ENOSPC) {
        (void)error_set_errno(&watch->error, ERROR_LIMIT_EXCEEDED, "watched_directories", ENOSPC,
                              "the tree has more directories than the sandbox can watch");
    }
    end_watch(watch);
}

static void open_service(struct watch *watch)
{
    static const struct service_callbacks callbacks = {
        .on_record = on_record,
        .on_ended = on_ended,
    };
    struct service_args args;
    const struct service_spec spec = {
        .args = &args,
        .user = watch->user,
        .goes_on = true,
        .idle_ms = FILE_STEP_MAX_MS,
    };

    service_args_init(&args, "watch");
    service_args_add(&args, buf_span(&watch->path));
    service_args_add_str(&args, watch->recursive ? "recursive" : "");
    watch->service = service_open(watch->services, &spec, &callbacks, watch, &watch->error);
    service_args_done(&args);
    if (watch->service == NULL) {
        end_watch(watch);
    }
}

/* ---- readers ---- */

static struct watch *
find(struct services *services, struct span path, bool recursive, const char *user)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &services->watches)
    {
        struct watch *watch = list_entry(it, struct watch, link);

        if (watch->recursive == recursive && strcmp(watch->user, user) == 0 &&
            span_equals(buf_span(&watch->path), path)) {
            return watch;
        }
    }
    return NULL;
}

/* Ends one that only lingers, when there are too many. */
static int check_count(struct services *services, struct error *err)
{
    uint64_t max = services->data->node->settings.node_max_watches;
    struct list *it;
    struct list *following;

    if (services->watch_count < max) {
        return 0;
    }
    list_foreach(it, following, &services->watches)
    {
        struct watch *watch = list_entry(it, struct watch, link);

        if (list_is_empty(&watch->readers)) {
            end_watch(watch);
            return 0;
        }
    }
    return error_set_code(err, ERROR_LIMIT_EXCEEDED, "node.max_watches",
                          "the sandbox has %u watches, as many as it may", services->watch_count);
}

static struct watch *
watch_new(struct services *services, struct span path, bool recursive, const char *user)
{
    struct watch *watch = calloc(1, sizeof(*watch));

    if (watch == NULL) {
        return NULL;
    }
    list_init(&watch->link);
    list_init(&watch->readers);
    watch->path = buf_make(0);
    buf_put(&watch->path, path);
    watch->recursive = recursive;
    watch->user = strdup(user);
    watch->timer = loop_timer_new(services->data->node->loop, on_timer, watch);
    if (watch->user == NULL || watch->timer == NULL || buf_error(&watch->path) != 0 ||
        random_bytes(&watch->name, sizeof(watch->name)) < 0) {
        watch_free(watch);
        return NULL;
    }
    watch->services = services;
    services->watch_count++;
    list_append(&services->watches, &watch->link);
    return watch;
}

static bool parse_id(const struct watch *watch, const char *text, uint64_t *ret_position)
{
    struct watch_event_id id;

    if (watch_event_id_parse(text, &id) < 0 || id.name != watch->name || id.position > watch->end) {
        return false;
    }
    *ret_position = id.position;
    return true;
}

static void place(struct watch_reader *reader, const char *after)
{
    const struct watch *watch = reader->watch;

    reader->position = watch->end;
    reader->missed = false;
    if (after[0] != '\0' && !parse_id(watch, after, &reader->position)) {
        reader->missed = true;
        reader->position = watch->end;
    }
}

int watch_join(struct services *services,
               const struct watch_target *target,
               const char *after,
               struct watch_reader *reader,
               struct error *err)
{
    struct watch *watch = find(services, target->path, target->recursive, target->user);
    bool is_new = watch == NULL;

    if (is_new) {
        if (check_count(services, err) < 0) {
            return -EDQUOT;
        }
        watch = watch_new(services, target->path, target->recursive, target->user);
    }
    if (watch == NULL) {
        return error_set(err, ENOMEM, "out of memory");
    }
    reader->watch = watch;
    list_append(&watch->readers, &reader->link);
    place(reader, after);
    if (is_new) {
        open_service(watch);
    }
    return 0;
}

void watch_leave(struct watch_reader *reader)
{
    struct watch *watch = TAKE(reader->watch);

    if (watch == NULL) {
        return;
    }
    list_remove(&reader->link);
    if (!list_is_empty(&watch->readers)) {
        return;
    }
    if (watch->is_ended) {
        watch_free(watch);
    } else if (!watch->watching) {
        end_watch(watch); /* it has no events that anybody could come back for */
    } else {
        loop_timer_start(watch->timer, WATCH_LINGER_MS);
    }
}

void watch_format_id(const struct watch_reader *reader, char out[EVENT_ID_SIZE])
{
    watch_event_id_format(&(const struct watch_event_id){reader->watch->name, reader->position},
                          out);
}

bool watch_next(struct watch_reader *reader, struct buf *text)
{
    const struct watch *watch = reader->watch;
    const struct watch_event *event;
    char id[EVENT_ID_SIZE];

    if (reader->missed || reader->position < watch->first) {
        reader->missed = false;
        if (reader->position < watch->first) {
            reader->position = watch->first;
        }
        watch_format_id(reader, id);
        buf_printf(text, "id: %s\n%s", id, OVERFLOW_EVENT);
        return true;
    }
    if (reader->position == watch->end) {
        return false;
    }
    event = watch->ring[reader->position % watch->room];
    reader->position++;
    watch_format_id(reader, id);
    buf_printf(text, "id: %s\n", id);
    buf_put(text, span_make(event->text, event->n));
    return true;
}
