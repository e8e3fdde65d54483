/* Requests of the node protocol: dispatch, and what the handlers share.
 *
 * A struct call is one request. It lives in the exchange's memory and is gone after its answer was
 * given or the client went away: a handler touches it no more once it answered. Whatever a call
 * waits with (watch, timer, sandbox waits) is let go by its close. */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "base/id.h"
#include "io/http_server.h"
#include "node/process.h"
#include "node/process_watch.h"

struct call;
struct data;
struct loop_timer;
struct run_options;
struct run_text;
struct checkpoint;
struct sandbox;

enum route_body {
    ROUTE_BODY_NONE,
    ROUTE_BODY_JSON,     /* an object */
    ROUTE_BODY_OPTIONAL, /* an object or nothing */
    ROUTE_BODY_STREAM    /* the handler reads it */
};

struct route {
    const char *method;
    const char *pattern; /* "{sb}", "{pr}", "{se}", "{ck}" stand for ids, "{port}" for a port */
    enum route_body body;
    /* body is borrowed, NULL without one. */
    void (*handle)(struct call *call, json_t *body);
};

#define BODY_SLACK_BYTES 65536U /* what space-api adds to a client's body */
/* Output of a result that is answered in one piece. More is read and written as the client takes
 * it. */
#define ANSWER_OUTPUT_WHOLE 65536U

struct call {
    struct data *data;
    struct http_exchange *exchange;
    const struct route *route;
    char request_id[65];
    char sandbox_id[ID_SIZE];
    char process_id[ID_SIZE];
    char session_id[ID_SIZE];
    char port[ID_SIZE];
    char checkpoint_id[ID_SIZE];
    char template_version[ID_SIZE];
    struct process_watch watch;
    struct loop_timer *timer;
    void (*on_close)(struct call *call, bool complete); /* the handler's own, or NULL */
    void *state;                                        /* the handler's own */
    struct run_text *text;                              /* of a result that is on its way */
    struct loop_timer *text_timer;
    bool is_activity; /* of its sandbox, until it is closed */
    bool answered;
};

/* ---- routes.c ---- */
void routes_on_request(void *ctx, struct http_exchange *exchange);
void routes_on_refused(void *ctx, const struct error *err, struct http_exchange *exchange);

/* ---- routes_templates.c ---- */
void handle_templates(struct call *call, json_t *body);
void handle_template_put(struct call *call, json_t *body);
void handle_template_remove(struct call *call, json_t *body);

/* ---- call.c: answers and arguments ---- */
/* value is stolen; NULL answers `internal`. */
void call_respond(struct call *call, int status, json_t *value);
/* JSON text that was formatted already. */
void call_respond_text(struct call *call, int status, struct span text);
/* call_result.c: the result of a process; sandbox (stolen) NULL: of that alone. With a sandbox the
 * result names it, and the header X-Space-Sandbox has it as JSON in ASCII. A long result goes at
 * its client's pace, and needs neither process nor sandbox any more. Uses call->watch. */
void call_respond_result(struct call *call,
                         struct process *p,
                         const struct run_options *options,
                         json_t *sandbox);
void call_fail(struct call *call, const struct error *err);
/* With one more header; extra may be NULL. */
void call_fail_with(struct call *call, const struct error *err, const struct http_header *extra);
/* routes_state.c: the error, and what the sandbox is now: space-api keeps both. */
void call_fail_with_record(struct call *call, const struct error *err);
/* The call is activity of its sandbox: now, and when it ends, however it does. */
void call_touch(struct call *call);
/* Finds the sandbox of the path, or answers not_found and returns NULL. */
struct sandbox *call_sandbox(struct call *call);
/* The same for the process and the session of the path (`gone` for a session that expired). */
struct process *call_process(struct call *call);
struct process *call_session(struct call *call);
/* Parameters of the query. Absent gives the default; a bad one sets err and returns -EINVAL. */
int call_query_unsigned(struct call *call,
                        const char *name,
                        uint64_t max,
                        uint64_t *value,
                        struct error *err) _must_check_;
int call_query_text(struct call *call, const char *name, char *out, size_t size, struct error *err)
    _must_check_;
/* "true" or "false". */
int call_query_flag(struct call *call, const char *name, bool *value, struct error *err)
    _must_check_;
/* `wait` in seconds (0 to 300) as milliseconds; 0 when absent. */
int call_query_wait(struct call *call, int64_t *ret_ms, struct error *err) _must_check_;
/* invalid_request for a parameter that is not among the NULL-terminated names. */
int call_query_check(struct call *call, const char *const *names, struct error *err) _must_check_;
/* The port of the path, or answers not_found. */
bool call_port(struct call *call, uint16_t *ret_port);
/* Watches a process until the call is closed. */
void call_watch(struct call *call,
                struct process *p,
                void (*fn)(void *arg, struct process *p, unsigned int events));
/* (Re)starts the call's timer: fn(call). 0 or -ENOMEM. */
int call_start_timer(struct call *call, int64_t delay_ms, void (*fn)(void *arg)) _must_check_;

/* ---- handlers ---- */
void handle_node(struct call *call, json_t *body);
void handle_feed(struct call *call, json_t *body);
void handle_sandbox_put(struct call *call, json_t *body);
void handle_sandbox_list(struct call *call, json_t *body);
void handle_sandbox_get(struct call *call, json_t *body);
void handle_sandbox_patch(struct call *call, json_t *body);
void handle_sandbox_delete(struct call *call, json_t *body);
void handle_sandbox_pause(struct call *call, json_t *body);
void handle_sandbox_suspend(struct call *call, json_t *body);
void handle_sandbox_wake(struct call *call, json_t *body);
void handle_sandbox_rollback(struct call *call, json_t *body);
void handle_checkpoint_list(struct call *call, json_t *body);
void handle_checkpoint_put(struct call *call, json_t *body);
void handle_checkpoint_get(struct call *call, json_t *body);
void handle_checkpoint_delete(struct call *call, json_t *body);
void handle_console(struct call *call, json_t *body);
void handle_run(struct call *call, json_t *body);
void handle_commands(struct call *call, json_t *body);
void handle_process_list(struct call *call, json_t *body);
void handle_process_get(struct call *call, json_t *body);
void handle_result(struct call *call, json_t *body);
void handle_signal(struct call *call, json_t *body);
void handle_kill(struct call *call, json_t *body);
void handle_resize(struct call *call, json_t *body);
void handle_stdin(struct call *call, json_t *body);
void handle_session_events(struct call *call, json_t *body);
void handle_session_output(struct call *call, json_t *body);
void handle_session_attach(struct call *call, json_t *body);
void handle_file_get(struct call *call, json_t *body);
void handle_file_put(struct call *call, json_t *body);
void handle_file_delete(struct call *call, json_t *body);
void handle_file_stat(struct call *call, json_t *body);
void handle_file_list(struct call *call, json_t *body);
void handle_file_make_directory(struct call *call, json_t *body);
void handle_file_move(struct call *call, json_t *body);
void handle_file_chmod(struct call *call, json_t *body);
void handle_file_chown(struct call *call, json_t *body);
void handle_tar_get(struct call *call, json_t *body);
void handle_tar_put(struct call *call, json_t *body);
void handle_watch(struct call *call, json_t *body);
void handle_port_list(struct call *call, json_t *body);
void handle_port_get(struct call *call, json_t *body);
void handle_port_tcp(struct call *call, json_t *body);
void handle_metrics(struct call *call, json_t *body);

/* ---- hooks of the lifecycle for the handlers' long answers ---- */
/* feed.c: a sandbox's record changed. */
void feed_on_change(struct data *data, struct sandbox *sb);
/* It is in the object store now. */
void feed_on_checkpoint(struct data *data, const struct checkpoint *ck);
/* VMs are started from now on. */
void feed_on_started(struct data *data);
/* feed_timer: tells the readers what has changed. */
void feed_on_timer(void *arg);
void feed_forget(struct data *data);
/* session_events.c: tells the readers of a sandbox's sessions its new state. */
void session_events_on_change(struct data *data, struct sandbox *sb);
/* attach.c: the same; and that an open attachment is activity, of one sandbox or of all. */
void attach_on_change(struct data *data, struct sandbox *sb);
void attach_touch(struct data *data, const char *sandbox_id);
void attach_touch_all(struct data *data);
/* create.c: the sandbox's agent takes frames; queue its files and its first command. */
void create_on_agent(struct data *data, struct sandbox *sb);
/* create.c: the sandbox is gone; a first command that was waiting is forgotten. */
void create_on_free(struct data *data, struct sandbox *sb);
