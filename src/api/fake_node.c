#include "api/fake_node.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "api/fake_control.h"
#include "api/fake_files.h"
#include "api/fake_respond.h"
#include "api/fake_run.h"
#include "api/fake_tcp.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/list.h"
#include "io/byte_stream.h"
#include "io/http_server.h"
#include "io/json_request.h"
#include "io/loop.h"

#define PREFIX         "/n1/sandboxes/"
#define LOST_ANSWER_MS 300

struct fake_sandbox {
    struct list link;
    char id[ID_SIZE];
    char state[16];
    json_t *spec;
    json_t *run; /* the result of its run */
    int64_t created;
    json_t *processes; /* process id -> result */
    json_t *reason;    /* of its pause, or NULL */
};

struct fake {
    struct loop *loop;
    struct http_server *server;
    const char *control_path;
    struct list sandboxes;
    struct list feeds; /* struct exchange_data */
    struct fake_files *files;
    int changes; /* on their way */
    int puts;    /* of sandboxes, so far */
};

/* One exchange and what is to be done with it later. */
struct later {
    struct fake *fake;
    struct http_exchange *exchange;
    struct list feed_link;
    struct loop_timer *timer;
    json_t *body;
    char id[ID_SIZE];
    char path[512];
    uint64_t left; /* of a long answer */
    uint64_t taken;
    bool gone;
    bool loses; /* of a create: as it was asked for */
};

/* ---- sandboxes ---- */

static struct fake_sandbox *find(struct fake *fake, const char *id)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &fake->sandboxes)
    {
        struct fake_sandbox *s = list_entry(it, struct fake_sandbox, link);

        if (strcmp(s->id, id) == 0) {
            return s;
        }
    }
    return NULL;
}

static json_t *describe(const struct fake_sandbox *s, const char *state)
{
    char created[CLOCK_TEXT_SIZE];

    clock_format(s->created, created);
    return json_pack("{s:s, s:s, s:O?, s:O, s:s, s:O, s:O, s:O, s:s, s:s, s:{s:i, s:b, s:b, s:b, "
                     "s:b, s:b, s:s}}",
                     "id", s->id, "state", state, "reason", s->reason, "template",
                     json_object_get(s->spec, "template"), "template_version",
                     "tm00000000000000000a", "vcpus", json_object_get(s->spec, "vcpus"),
                     "memory_mib", json_object_get(s->spec, "memory_mib"), "disk_mib",
                     json_object_get(s->spec, "disk_mib"), "running_at", created, "active_at",
                     created, "identity", "epoch", 1, "entropy", 1, "clock", 1, "hostname", 1,
                     "machine_id", 1, "tokens", 1, "confirmed_at", created);
}

static void feed_write(struct http_exchange *exchange, const char *name, json_t *data)
{
    _cleanup_json_ json_t *owned = data;
    _cleanup_buf_ struct buf text = buf_make(0);

    buf_printf(&text, "event: %s\ndata: ", name);
    json_write(owned, &text);
    buf_put_str(&text, "\n\n");
    (void)http_exchange_write(exchange, buf_span(&text));
}

static void feed_tell_all(struct fake *fake, const char *name, json_t *data)
{
    _cleanup_json_ json_t *owned = data;
    struct list *it;
    struct list *following;

    list_foreach(it, following, &fake->feeds)
    {
        feed_write(list_entry(it, struct later, feed_link)->exchange, name, json_incref(owned));
    }
}

static void feed_tell(struct fake *fake, const struct fake_sandbox *s, const char *state)
{
    feed_tell_all(fake, "sandbox", describe(s, state));
}

static void drop_sandbox(struct fake *fake, struct fake_sandbox *s)
{
    feed_tell(fake, s, "deleted");
    list_remove(&s->link);
    json_decref(s->spec);
    json_decref(s->run);
    json_decref(s->processes);
    json_decref(s->reason);
    free(s);
}

/* ---- delayed work ---- */

static void on_close(void *arg, struct http_exchange *exchange, bool complete)
{
    struct later *later = arg;
    struct fake_sandbox *s = find(later->fake, later->id);

    (void)complete;
    if (s != NULL && json_is_true(json_object_get(s->spec, "delete_after")) &&
        strcmp(http_exchange_method(exchange), "PUT") == 0) {
        drop_sandbox(later->fake, s);
    }
    list_remove(&later->feed_link);
    loop_timer_free(later->timer);
    json_decref(later->body);
    free(later);
}

static struct later *later_new(struct fake *fake, struct http_exchange *exchange)
{
    struct later *later = calloc(1, sizeof(*later));

    if (later == NULL) {
        abort();
    }
    later->fake = fake;
    later->exchange = exchange;
    list_init(&later->feed_link);
    (void)snprintf(later->path, sizeof(later->path), "%s", http_exchange_path(exchange));
    http_exchange_on_close(exchange, on_close, later);
    return later;
}

static void after(struct later *later, int ms, loop_fn fn)
{
    later->timer = loop_timer_new(later->fake->loop, fn, later);
    loop_timer_start(later->timer, ms);
}

static void answer_put(void *arg)
{
    struct later *later = arg;

    fake_respond_put(later->exchange, later->body, false);
}

static void end_vm(struct fake *fake, struct fake_sandbox *s)
{
    (void)snprintf(s->state, sizeof(s->state), "error");
    json_decref(s->reason);
    s->reason = json_pack("{s:s, s:s}", "code", "vmm_crashed", "message", "the VMM ended");
    feed_tell(fake, s, "error");
}

/* Where it is lost, the answer was made before that, and comes after the news of it. */
static void answer_or_lose(struct later *later, struct fake_sandbox *s, json_t *answer)
{
    struct control c;

    if (!later->loses) {
        control_read(later->fake->control_path, &c);
        fake_respond_put(later->exchange, answer, c.die_in_answer);
        json_decref(answer);
        if (c.die_in_answer) {
            loop_timer_free(TAKE(later->timer));
            after(later, 50, (loop_fn)abort);
        }
        return;
    }
    json_decref(later->body);
    later->body = answer;
    end_vm(later->fake, s);
    loop_timer_free(TAKE(later->timer));
    after(later, LOST_ANSWER_MS, answer_put);
}

static void finish_put(void *arg)
{
    struct later *later = arg;
    struct fake_sandbox *s = find(later->fake, later->id);
    json_t *answer;

    if (s == NULL) {
        fake_respond_error(later->exchange, "conflict", NULL);
        return;
    }
    if (strcmp(s->state, "running") != 0) {
        (void)snprintf(s->state, sizeof(s->state), "running");
        feed_tell(later->fake, s, "running");
    }
    answer = json_pack("{s:o}", "sandbox", describe(s, "running"));
    if (json_object_get(later->body, "run") != NULL) {
        (void)json_object_set_new(
            answer, "run", fake_run_result(s->processes, json_object_get(later->body, "run")));
    }
    answer_or_lose(later, s, answer);
}

static void
on_put(void *arg, struct http_exchange *exchange, struct span body, const struct error *problem)
{
    struct later *later = arg;
    struct fake *fake = later->fake;
    struct fake_sandbox *s;
    struct control c;
    struct error err;

    if (problem != NULL || json_request_parse(body, false, &later->body, &err) < 0) {
        fake_respond_error(exchange, "invalid_request", "body");
        return;
    }
    control_read(fake->control_path, &c);
    later->loses = c.lose;
    fake->puts++;
    if (c.fail[0] != '\0' && (c.fail_each == 0 || fake->puts % c.fail_each == 0)) {
        fake_respond_error(exchange, c.fail,
                           strcmp(c.fail, "invalid_request") == 0 ? "run.argv"
                           : strcmp(c.fail, "internal") == 0      ? "vmm_crashed"
                                                                  : NULL);
        return;
    }
    s = find(fake, later->id);
    if (s == NULL) {
        s = calloc(1, sizeof(*s));
        if (s == NULL) {
            abort();
        }
        memcpy(s->id, later->id, ID_SIZE);
        (void)snprintf(s->state, sizeof(s->state), "creating");
        s->spec = json_incref(later->body);
        if (json_object_get(s->spec, "checkpoint") != NULL) { /* all of them are alike */
            _cleanup_json_ json_t *facts =
                json_pack("{s:s, s:i, s:i, s:i}", "template", "base", "vcpus", 1, "memory_mib",
                          1024, "disk_mib", 4096);

            (void)json_object_update(s->spec, facts);
        }
        s->processes = json_object();
        s->created = clock_real_ms();
        list_append(&fake->sandboxes, &s->link);
        feed_tell(fake, s, "creating");
    }
    if (c.die_in_put) {
        _exit(9);
    }
    after(later, c.delay_ms, finish_put);
}

static void finish_delete(void *arg)
{
    struct later *later = arg;
    struct fake_sandbox *s = find(later->fake, later->id);

    if (s != NULL) {
        drop_sandbox(later->fake, s);
    }
    fake_respond(later->exchange, 200, json_object());
}

/* ---- commands and sessions ---- */

static void finish_run(void *arg)
{
    struct later *later = arg;
    struct fake_sandbox *s = find(later->fake, later->id);
    struct control c;

    control_read(later->fake->control_path, &c);
    if (s == NULL) {
        fake_respond_error(later->exchange, "not_found", "sandbox");
        return;
    }
    if (c.die_in_answer) {
        http_exchange_start(later->exchange, 200, NULL, 0, 1000);
        (void)http_exchange_write(later->exchange, span_of_str("{\"half"));
        after(later, 50, (loop_fn)abort);
        return;
    }
    if (c.lose_answer) {
        json_decref(fake_run_result(s->processes, later->body));
        fake_respond_error(later->exchange, "capacity_unavailable", NULL);
        return;
    }
    if (strstr(later->path, "/commands") != NULL) {
        const char *process = json_string_value(json_object_get(later->body, "process_id"));

        json_decref(fake_run_result(s->processes, later->body)); /* it counts */
        fake_respond(later->exchange, 201,
                     json_pack("{s:{s:s, s:s, s:O}}", "process", "id", process, "state", "running",
                               "session_id", json_object_get(later->body, "session_id")));
        return;
    }
    fake_respond(later->exchange, 200, fake_run_result(s->processes, later->body));
}

static void
on_run(void *arg, struct http_exchange *exchange, struct span body, const struct error *problem)
{
    struct later *later = arg;
    struct error err;
    const char *first;
    const json_t *argv;
    double seconds;

    if (problem != NULL || json_request_parse(body, false, &later->body, &err) < 0) {
        fake_respond_error(exchange, "invalid_request", "body");
        return;
    }
    argv = json_object_get(later->body, "argv");
    first = json_string_value(json_array_get(argv, 0));
    if (first == NULL && json_object_get(later->body, "shell") == NULL) {
        fake_respond_error(exchange, "invalid_request", "argv");
        return;
    }
    seconds = first != NULL && strcmp(first, "sleep") == 0
                  ? json_number_value(json_object_get(later->body, "timeout_seconds"))
                  : 0;
    after(later, (int)(seconds * 1000), finish_run);
}

static void on_stdin(void *arg,
                     struct http_exchange *exchange,
                     struct span piece,
                     bool last,
                     const struct error *err)
{
    struct later *later = arg;

    if (err != NULL) {
        return;
    }
    later->taken += piece.n;
    if (last) {
        fake_respond(exchange, 200, json_pack("{s:I}", "offset", (json_int_t)later->taken));
    }
}

static void write_more(void *arg)
{
    struct later *later = arg;
    char piece[16384];

    memset(piece, 'x', sizeof(piece));
    while (later->left > 0) {
        size_t n = later->left < sizeof(piece) ? (size_t)later->left : sizeof(piece);

        later->left -= n;
        if (http_exchange_write(later->exchange, span_make(piece, n)) == 0 && later->left > 0) {
            return;
        }
    }
    http_exchange_end(later->exchange);
}

static void on_event_tick(void *arg)
{
    struct later *later = arg;
    char text[64];

    (void)snprintf(text, sizeof(text), "id: %llu\nevent: output\ndata: {}\n\n",
                   (unsigned long long)++later->taken);
    (void)http_exchange_write(later->exchange, span_of_str(text));
    loop_timer_start(later->timer, 50);
}

/* ---- attachments: everything comes back ---- */

static void on_echo(void *arg, struct byte_stream *stream, struct span bytes)
{
    (void)arg;
    (void)byte_stream_write(stream, bytes);
    if (bytes.n == 4 && memcmp(bytes.p, "bye!", 4) == 0) {
        byte_stream_end(stream);
    }
}

static void on_echo_end(void *arg, struct byte_stream *stream)
{
    (void)arg;
    byte_stream_end(stream);
}

static void on_echo_closed(void *arg, struct byte_stream *stream, const struct error *err)
{
    (void)arg;
    (void)stream;
    (void)fprintf(stderr, "attachment closed%s\n", err == NULL ? "" : " by a cut");
}

static void serve_attach(struct later *later)
{
    static const struct byte_stream_callbacks callbacks = {
        .on_data = on_echo, .on_end = on_echo_end, .on_closed = on_echo_closed};
    const struct http_header accept[] = {
        {"Sec-WebSocket-Accept", http_exchange_header(later->exchange, "Sec-WebSocket-Key")}};
    const char *query = http_exchange_query(later->exchange);
    struct byte_stream *stream;

    if (strstr(query, "stdout=404") != NULL) {
        fake_respond_error(later->exchange, "gone", "session");
        return;
    }
    stream = http_exchange_upgrade(later->exchange, "websocket", accept, 1);
    if (stream == NULL) {
        fake_respond_error(later->exchange, "invalid_request", "Upgrade");
        return;
    }
    byte_stream_set_callbacks(stream, &callbacks, NULL);
    (void)byte_stream_write(stream, span_of_str("<"));
    (void)byte_stream_write(stream, span_of_str(query));
    (void)byte_stream_write(stream, span_of_str(">"));
    byte_stream_pause(stream, false);
}

static void serve_session(struct later *later)
{
    static const struct http_header sse[] = {{"Content-Type", "text/event-stream"}};
    static const struct http_header bytes[] = {{"Content-Type", "application/octet-stream"},
                                               {"X-Space-Next-Offset", "33554432"},
                                               {"X-Space-End", "true"}};

    if (strstr(later->path, "/attach") != NULL) {
        serve_attach(later);
        return;
    }
    if (strstr(later->path, "/output") != NULL) {
        later->left = 33554432;
        http_exchange_on_drain(later->exchange, write_more, later);
        http_exchange_start(later->exchange, 200, bytes, 3, 33554432);
        write_more(later);
        return;
    }
    http_exchange_start(later->exchange, 200, sse, 1, -1);
    after(later, 1, on_event_tick);
}

/* ---- ports ---- */

/* `rest` is what follows "/ports": "", "/N" or "/N/tcp". */
static void serve_ports(struct later *later, const char *rest)
{
    struct span text = span_skip(span_of_str(rest), 1);
    size_t slash = span_find(text, 0, '/');
    uint64_t port = 0;

    if (rest[0] == '\0') {
        fake_respond(
            later->exchange, 200,
            json_pack("{s:[o, o]}", "items", fake_tcp_describe(80), fake_tcp_describe(8080)));
        return;
    }
    (void)span_parse_u64(span_head(text, slash), UINT16_MAX, &port);
    if (slash < text.n) {
        struct http_exchange *exchange = later->exchange;

        if (!fake_tcp_serve(later->fake->loop, exchange, (unsigned int)port)) {
            fake_respond_error(exchange, "bad_gateway", NULL);
        }
    } else if (fake_tcp_listens((unsigned int)port)) {
        fake_respond(later->exchange, 200, fake_tcp_describe((unsigned int)port));
    } else {
        fake_respond_error(later->exchange, "not_found", "port");
    }
}

/* ---- routes ---- */

static void serve_feed(struct later *later)
{
    static const struct http_header sse[] = {{"Content-Type", "text/event-stream"}};
    struct fake *fake = later->fake;
    struct list *it;
    struct list *following;

    http_exchange_start(later->exchange, 200, sse, 1, -1);
    list_foreach(it, following, &fake->sandboxes)
    {
        struct fake_sandbox *s = list_entry(it, struct fake_sandbox, link);

        feed_write(later->exchange, "sandbox", describe(s, s->state));
    }
    feed_write(later->exchange, "synced", json_object());
    list_append(&fake->feeds, &later->feed_link);
}

static void finish_change(void *arg)
{
    struct later *later = arg;
    struct fake_sandbox *s = find(later->fake, later->id);
    const char *verb = strrchr(later->path, '/');

    later->fake->changes--;
    if (s == NULL) {
        fake_respond_error(later->exchange, "conflict", NULL);
        return;
    }
    (void)snprintf(s->state, sizeof(s->state), "%s",
                   strcmp(verb, "/pause") == 0     ? "paused"
                   : strcmp(verb, "/suspend") == 0 ? "suspended"
                                                   : "running");
    json_decref(s->reason);
    s->reason = json_incref(json_object_get(later->body, "reason"));
    feed_tell(later->fake, s, s->state);
    answer_or_lose(later, s, describe(s, s->state));
}

static void refuse_change(struct later *later, const char *code, const char *state)
{
    const struct fake_sandbox *s = find(later->fake, later->id);
    enum error_code value = error_code_find(code);
    struct error err;
    json_t *answer;

    (void)error_set_code(&err, value, value == ERROR_FAILED_PRECONDITION ? state : NULL,
                         "it is %s, says the fake node", state);
    answer = json_error_make(&err, "", NULL);
    (void)json_object_set_new(answer, "sandbox", describe(s, state));
    fake_respond(later->exchange, error_code_status(value), answer);
}

static void
on_change(void *arg, struct http_exchange *exchange, struct span body, const struct error *problem)
{
    struct later *later = arg;
    struct control c;
    struct error err;

    (void)exchange;
    (void)problem;
    (void)json_answer_parse(body, &later->body, &err);
    control_read(later->fake->control_path, &c);
    if (c.is_settling) {
        refuse_change(later, "failed_precondition", "waking");
        return;
    }
    if (strcmp(find(later->fake, later->id)->state, "error") == 0 &&
        !json_is_true(json_object_get(later->body, "boot"))) {
        (void)snprintf(c.change_fail, sizeof(c.change_fail), "failed_precondition");
    }
    if (c.change_fail[0] != '\0') {
        refuse_change(later, c.change_fail, find(later->fake, later->id)->state);
        return;
    }
    later->loses = c.lose;
    later->fake->changes++;
    (void)fprintf(stderr, "changes=%d\n", later->fake->changes); /* how many at once */
    after(later, c.change_delay_ms, finish_change);
}

static void finish_checkpoint(void *arg)
{
    struct later *later = arg;
    bool memory = json_is_true(json_object_get(later->body, "memory"));
    struct control c;

    control_read(later->fake->control_path, &c);
    if (c.change_fail[0] != '\0') {
        fake_respond_error(later->exchange, c.change_fail, NULL);
        return;
    }
    fake_respond(
        later->exchange, 200,
        json_pack("{s:s, s:b, s:i}", "id", later->id, "memory", memory, "size_bytes", 4711));
}

static void on_checkpoint(void *arg,
                          struct http_exchange *exchange,
                          struct span body,
                          const struct error *problem)
{
    struct later *later = arg;
    struct control c;
    struct error err;

    (void)problem;
    (void)json_answer_parse(body, &later->body, &err);
    control_read(later->fake->control_path, &c);
    if (c.is_settling) {
        (void)error_set_code(&err, ERROR_FAILED_PRECONDITION, "waking", "not yet");
        fake_respond(exchange, 409, json_error_make(&err, "", NULL));
    } else if (c.lose) { /* its sandbox, meanwhile */
        end_vm(later->fake,
               find(later->fake, json_string_value(json_object_get(later->body, "sandbox"))));
        after(later, LOST_ANSWER_MS, finish_checkpoint);
    } else {
        after(later, c.change_delay_ms, finish_checkpoint);
    }
}

static void serve_checkpoint(struct later *later, const char *method)
{
    if (strcmp(method, "PUT") == 0) {
        http_exchange_collect_body(later->exchange, 65536, on_checkpoint, later);
    } else {
        fake_respond(later->exchange, 200, json_object());
    }
}

static void serve_delete(struct later *later)
{
    struct control c;

    control_read(later->fake->control_path, &c);
    if (c.delete_fail) {
        fake_respond_error(later->exchange, "internal", NULL);
        return;
    }
    after(later, c.delete_delay_ms, finish_delete);
}

static void serve_sandbox(struct later *later, const char *method, const char *rest)
{
    struct http_exchange *exchange = later->exchange;
    struct fake_sandbox *s = find(later->fake, later->id);

    if (rest[0] == '\0' && strcmp(method, "PUT") == 0) {
        http_exchange_collect_body(exchange, 1U << 26, on_put, later);
    } else if (rest[0] == '\0' && strcmp(method, "DELETE") == 0) {
        serve_delete(later);
    } else if (s == NULL) {
        fake_respond_error(exchange, "not_found", "sandbox");
    } else if (rest[0] == '\0') {
        fake_respond(exchange, 200, describe(s, s->state));
    } else if (strcmp(rest, "/pause") == 0 || strcmp(rest, "/suspend") == 0 ||
               strcmp(rest, "/wake") == 0 || strcmp(rest, "/rollback") == 0) {
        http_exchange_collect_body(exchange, 65536, on_change, later);
    } else if (strcmp(rest, "/run") == 0 || strcmp(rest, "/commands") == 0) {
        http_exchange_collect_body(exchange, 1U << 26, on_run, later);
    } else if (strncmp(rest, "/sessions/", 10) == 0) {
        serve_session(later);
    } else if (strcmp(rest, "/console") == 0) {
        http_exchange_respond(exchange, 200, NULL, 0, span_of_str("login:"));
    } else if (strcmp(rest, "/processes") == 0) {
        fake_respond(
            exchange, 200,
            json_pack("{s:[{s:s},{s:s},{s:s}]}", "items", "id", "c", "id", "b", "id", "a"));
    } else if (strncmp(rest, "/ports", 6) == 0) {
        serve_ports(later, &rest[6]);
    } else if (strstr(rest, "/stdin") != NULL) {
        http_exchange_stream_body(exchange, on_stdin, later);
    } else {
        fake_respond(exchange, 200, json_object());
    }
}

/* …/files and what is below, of a sandbox that is there. */
static bool serve_files(struct fake *fake, struct http_exchange *exchange)
{
    const char *path = http_exchange_path(exchange);
    size_t n = sizeof(PREFIX) - 1;
    char id[ID_SIZE];

    if (strncmp(path, PREFIX, n) != 0 || strlen(path) < n + ID_LENGTH ||
        strncmp(&path[n + ID_LENGTH], "/files", 6) != 0) {
        return false;
    }
    (void)snprintf(id, sizeof(id), "%.20s", &path[n]);
    if (find(fake, id) == NULL) {
        return false;
    }
    fake_files_serve(fake->files, exchange, id, &path[n + ID_LENGTH]);
    return true;
}

static void on_request(void *ctx, struct http_exchange *exchange)
{
    struct fake *fake = ctx;
    struct later *later;
    const char *method = http_exchange_method(exchange);
    const char *path = http_exchange_path(exchange);
    struct control c;

    control_read(fake->control_path, &c);
    /* Into node.log: what space-api hands down is looked at by tests. */
    (void)fprintf(stderr, "%s %s?%s\n", method, path, http_exchange_query(exchange));
    if (c.is_started) {
        feed_tell_all(fake, "started", json_object());
    }
    if (serve_files(fake, exchange)) {
        return;
    }
    later = later_new(fake, exchange);
    if (strcmp(path, "/n1/node") == 0) {
        fake_respond(exchange, 200,
                     json_pack("{s:b, s:[s], s:s, s:{s:i, s:i}, s:{s:i}}", "ready", !c.not_ready,
                               "waiting_for", "adoption", "version", "0.0", "vcpus", "host", 2,
                               "admitted", 1, "memory", "total_mib", 4096));
    } else if (strcmp(path, "/n1/templates") == 0) {
        fake_respond(exchange, 200,
                     json_pack("{s:[{s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:b, s:b, s:n, s:[]}]}",
                               "items", "name", "base", "version", "tm00000000000000000a", "vcpus",
                               1, "memory_mib", 512, "disk_mib", 4096, "user", "user", "created_at",
                               "2026-01-01T00:00:00.000Z", "current", 1, "memory", 0,
                               "checkpoint_id", "env_names"));
    } else if (strcmp(path, "/n1/events") == 0) {
        serve_feed(later);
    } else if (strncmp(path, PREFIX, sizeof(PREFIX) - 1) == 0 &&
               strlen(path) >= sizeof(PREFIX) - 1 + ID_LENGTH) {
        memcpy(later->id, &path[sizeof(PREFIX) - 1], ID_LENGTH);
        serve_sandbox(later, method, &path[sizeof(PREFIX) - 1 + ID_LENGTH]);
    } else if (strcmp(path, "/n1/checkpoints") == 0) {
        fake_respond(exchange, 200, control_checkpoints(later->fake->control_path));
    } else if (strncmp(path, "/n1/checkpoints/", 16) == 0) {
        (void)snprintf(later->id, sizeof(later->id), "%.20s", &path[16]);
        serve_checkpoint(later, method);
    } else {
        fake_respond_error(exchange, "not_found", "route");
    }
}

static void on_refused(void *ctx, const struct error *err, struct http_exchange *exchange)
{
    (void)ctx;
    fake_respond_error(exchange, error_code_name(err->code), NULL);
}

int fake_node_main(const char *socket_path, const char *control_path)
{
    struct http_server_limits limits = {
        .max_connections = 4096, .header_timeout_ms = 30000, .idle_timeout_ms = 600000};
    struct http_server_callbacks callbacks = {on_request, on_refused};
    struct fake fake = {.control_path = control_path};
    struct error err;

    list_init(&fake.sandboxes);
    list_init(&fake.feeds);
    fake.loop = loop_new(0);
    fake.files = fake.loop == NULL ? NULL : fake_files_new(fake.loop);
    if (fake.loop == NULL ||
        http_server_new(fake.loop, &limits, &callbacks, &fake, &fake.server, &err) < 0 ||
        http_server_listen_unix(fake.server, socket_path, 0666, (gid_t)-1, &err) < 0) {
        return 1;
    }
    (void)loop_run(fake.loop);
    return 0;
}
