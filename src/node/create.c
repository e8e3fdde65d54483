/* PUT /n1/sandboxes/{sb}: a sandbox, its first files and its first command in one request.
 *
 * What the request asks beyond the sandbox itself is kept as a struct create until the sandbox's
 * agent takes frames; files and START then travel in the same write as the identity. The request
 * may come again (its sender restarted): it finds the same sandbox and the same process. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "io/json_request.h"
#include "io/loop.h"
#include "node/agent.h"
#include "node/base64.h"
#include "node/data.h"
#include "node/file_error.h"
#include "node/node.h"
#include "node/objects.h"
#include "node/routes.h"
#include "node/run.h"
#include "node/sandbox.h"

#define FILES_MAX       1024U
#define FILES_BYTES_MAX 1048576U
#define FILE_WAIT_MS    60000
#define USER_ID         1000U /* the unprivileged user of every template */

struct create {
    struct list link;  /* in data->creates */
    struct data *data; /* NULL: the sandbox or all of it is gone */
    char sandbox_id[ID_SIZE];
    unsigned int refs; /* the list, and each file under way */
    json_t *files;     /* checked; NULL: none */
    struct command_request run;
    bool has_run;
    bool ephemeral;
    bool is_done; /* the guest has both, which are not kept */
    bool is_late; /* files and command came when it ran already */
    bool is_old;  /* it ran before this request came: somebody's earlier one may be done */
    unsigned int late_files; /* under way, of one that is late */
    struct list held;        /* calls that wait for those */
    struct process_watch watch;
    struct error error; /* code NONE while nothing went wrong */
};

/* The state of one PUT call. */
struct put_call {
    struct list link; /* in create->held */
    struct call *call;
    struct loop_timer *timer; /* the sandbox is deleted when it fires; NULL: at the call's end */
    bool has_run;
    bool delete_after;
    bool failed; /* what is there is to be deleted */
};

static void create_unref(struct create *create)
{
    if (--create->refs > 0) {
        return;
    }
    json_decref(create->files);
    command_request_done(&create->run);
    free(create);
}

/* Files and command have reached the guest: only what repetitions are answered with stays. */
static void drop_request(struct create *create)
{
    create->is_done = true;
    json_decref(TAKE(create->files));
    command_request_done(&create->run);
}

static struct create *find_create(struct data *data, const char *sandbox_id)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &data->creates)
    {
        struct create *create = list_entry(it, struct create, link);

        if (strcmp(create->sandbox_id, sandbox_id) == 0) {
            return create;
        }
    }
    return NULL;
}

/* ---- the request ---- */

static int check_file(json_t *item, size_t index, size_t *total, struct error *err)
{
    struct json_fields f;
    struct span text;
    struct span coded;
    char prefix[32];
    const char *path;

    (void)snprintf(prefix, sizeof(prefix), "files[%zu].", index);
    if (!json_is_object(item)) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "files",
                              "files must hold objects with path and text or base64");
    }
    json_fields_start(&f, item, prefix, err);
    json_fields_require(&f, "path");
    path = json_fields_string(&f, "path", 1, AGENT_PATH_BYTES - 64U, NULL);
    text = json_fields_text(&f, "text", FILES_BYTES_MAX);
    coded = json_fields_text(&f, "base64", FILES_BYTES_MAX / 3 * 4 + 4);
    if ((text.p != NULL) == (coded.p != NULL)) {
        json_fields_fail(&f, "text", "or base64 is required, and not both");
    }
    if (f.error == 0 && coded.n > 0) {
        _cleanup_buf_ struct buf bytes = buf_make(FILES_BYTES_MAX);

        if (base64_parse(coded, &bytes) < 0) {
            json_fields_fail(&f, "base64", "is not base64, or too long");
        }
        *total += bytes.n;
    }
    *total += text.n;
    if (f.error == 0 && path != NULL && path[strlen(path) - 1] == '/') {
        json_fields_fail(&f, "path", "must name a file");
    }
    return json_fields_finish(&f);
}

static json_t *read_files(struct json_fields *f)
{
    json_t *files = json_fields_array(f, "files", FILES_MAX);
    json_t *item;
    size_t total = 0;
    size_t i;

    json_array_foreach(files, i, item) {
        int r = check_file(item, i, &total, f->err);

        if (r < 0) {
            f->error = r;
            return NULL;
        }
    }
    if (total > FILES_BYTES_MAX) {
        json_fields_fail(f, "files", "must have at most %u bytes in all, got %zu", FILES_BYTES_MAX,
                         total);
    }
    return files;
}

static void read_spec(struct json_fields *f, struct sandbox_spec *spec)
{
    spec->checkpoint = json_fields_string(f, "checkpoint", 1, ID_LENGTH, NULL);
    if (spec->checkpoint == NULL) {
        json_fields_require(f, "template");
    }
    spec->template_name = json_fields_string(f, "template", 1, SANDBOX_TEMPLATE_SIZE - 1, NULL);
    spec->template_version = json_fields_string(f, "template_version", 1, ID_LENGTH, NULL);
    spec->hostname = json_fields_string(f, "hostname", 1, SANDBOX_HOSTNAME_SIZE - 1, NULL);
    spec->manifest =
        json_fields_string(f, "manifest", OBJECTS_NAME_SIZE - 1, OBJECTS_NAME_SIZE - 1, NULL);
    spec->vcpus = (unsigned int)json_fields_unsigned(f, "vcpus", 1, SANDBOX_VCPUS_MAX, 0);
    spec->memory_mib = (unsigned int)json_fields_unsigned(f, "memory_mib", SANDBOX_MEMORY_MIB_MIN,
                                                          SANDBOX_MEMORY_MIB_MAX, 0);
    spec->disk_mib = (unsigned int)json_fields_unsigned(f, "disk_mib", 1, SANDBOX_DISK_MIB_MAX, 0);
    spec->env = json_fields_object(f, "env", SANDBOX_ENV_MAX);
    if (spec->env != NULL && f->error == 0) {
        f->error = command_env_check(spec->env, "env", f->err);
    }
}

/* It goes on where it was: its template and sizes are needed, and have to be the same. */
static void check_manifest(struct json_fields *f,
                           const struct sandbox_spec *spec,
                           const struct create *create,
                           bool has_run)
{
    if (spec->manifest == NULL) {
        return;
    }
    json_fields_require(f, "template_version");
    if (spec->checkpoint != NULL || create->files != NULL || has_run || create->ephemeral) {
        json_fields_fail(f, "manifest", "cannot come with checkpoint, files, run or delete_after");
    }
}

/* What it is made from says what it is; and what the guest does first is what it did last. */
static void check_checkpoint(struct json_fields *f,
                             const struct sandbox_spec *spec,
                             const struct create *create,
                             bool has_run)
{
    if (spec->checkpoint == NULL) {
        return;
    }
    if (spec->template_name != NULL || spec->template_version != NULL) {
        json_fields_fail(f, "template", "cannot be chosen with a checkpoint");
    } else if (spec->vcpus != 0 || spec->memory_mib != 0 || spec->disk_mib != 0) {
        json_fields_fail(f, spec->vcpus != 0 ? "vcpus" : "memory_mib",
                         "cannot be chosen with a checkpoint");
    } else if (create->files != NULL || has_run) {
        json_fields_fail(f, has_run ? "run" : "files", "cannot come with a checkpoint");
    }
}

/* Fills spec (borrowing from body) and create. */
static int read_put(struct call *call,
                    json_t *body,
                    struct sandbox_spec *spec,
                    struct create *create,
                    struct error *err)
{
    struct json_fields f;
    json_t *run;
    int r;

    json_fields_start(&f, body, "", err);
    if (!id_is_valid(call->sandbox_id, "sb")) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "id", "the path has no sandbox id");
    }
    spec->id = call->sandbox_id;
    read_spec(&f, spec);
    create->files = json_incref(read_files(&f));
    run = json_fields_object(&f, "run", SIZE_MAX);
    create->ephemeral = json_fields_bool(&f, "delete_after", false);
    check_checkpoint(&f, spec, create, run != NULL);
    check_manifest(&f, spec, create, run != NULL);
    r = json_fields_finish(&f);
    if (r < 0 || run == NULL) {
        return r;
    }
    create->has_run = true;
    return command_request_parse(run, COMMAND_KIND_RUN, "", call->sandbox_id, &create->run, err);
}

/* ---- files and first command ---- */

static void fail_file(struct create *create, int errnum)
{
    if (create->error.code != ERROR_NONE) {
        return;
    }
    if (errnum < 0) {
        (void)error_set_code(&create->error, ERROR_SERVICE_UNAVAILABLE, NULL,
                             "one of the files cannot be written: the agent went away");
        return;
    }
    (void)file_error_set(&create->error, errnum, span_make(NULL, 0));
    (void)error_wrap(&create->error, "one of the files cannot be written");
}

static void end_late_file(struct create *create);

static void on_file_written(void *arg, int result)
{
    struct create *create = arg;
    struct sandbox *sb =
        create->data != NULL ? sandbox_find(create->data->node, create->sandbox_id) : NULL;

    if (result != 0) {
        fail_file(create, result);
    }
    if (create->is_late) {
        end_late_file(create);
    } else if (sb != NULL && result != -ECANCELED) {
        sandbox_release_creation(sb);
    }
    create_unref(create);
}

/* The sandbox runs only when it has its files: a restart of this program could not send again what
 * was not on its way, while a command that is on record is started. */
static void put_file(struct create *create, struct sandbox *sb, json_t *item)
{
    const char *user = sandbox_info(sb)->user;
    _cleanup_buf_ struct buf bytes = buf_make(0);
    const char *path = json_string_value(json_object_get(item, "path"));
    const json_t *coded = json_object_get(item, "base64");
    const json_t *text = json_object_get(item, "text");
    bool is_root = strcmp(user, "root") == 0;
    char full[AGENT_PATH_BYTES + 64U];
    struct agent_file file = {.path = path, .mode = 0644};

    if (path[0] != '/') {
        (void)snprintf(full, sizeof(full), "%s%s/%s", is_root ? "/" : "/home/", user, path);
        file.path = full;
    }
    file.uid = is_root ? 0 : USER_ID;
    file.gid = file.uid;
    file.content = span_make(json_string_value(text), json_string_length(text));
    if (json_is_string(coded)) {
        (void)base64_parse(span_make(json_string_value(coded), json_string_length(coded)), &bytes);
        file.content = buf_span(&bytes);
    }
    create->refs++;
    if (!create->is_late) {
        sandbox_hold_creation(sb);
    }
    agent_put_file(sandbox_agent(sb), &file, FILE_WAIT_MS, on_file_written, create);
}

static void on_process(void *arg, struct process *p, unsigned int events)
{
    struct create *create = arg;

    if ((events & PROCESS_EVENT_FAILED) != 0 && create->error.code == ERROR_NONE) {
        create->error = p->start_error;
    }
}

static void start_first(struct create *create, struct process_table *table)
{
    struct process *p = process_find(table, create->run.process_id);

    if (p != NULL) { /* that of an attempt whose VM died before it heard of it */
        (void)process_start_again(p, &create->error);
        return;
    }
    if (process_start(table, &create->run, &p, &create->error) < 0) {
        return;
    }
    create->watch.fn = on_process;
    create->watch.arg = create;
    process_watch_add(p, &create->watch);
}

void create_on_agent(struct data *data, struct sandbox *sb)
{
    struct create *create = find_create(data, sandbox_info(sb)->id);
    struct process_table *table = process_table_get(data, sb);
    json_t *item;
    size_t i;

    if (create == NULL || create->is_done) {
        return;
    }
    if (table == NULL) {
        (void)error_set(&create->error, ENOMEM, "out of memory");
        return;
    }
    create->error = (struct error){0};
    table->ephemeral = create->ephemeral;
    json_array_foreach(create->files, i, item) {
        put_file(create, sb, item);
    }
    if (create->has_run) {
        start_first(create, table);
    }
}

/* One of a template with memory went on with what ran in it; files and first command are new. */
static bool goes_on(const struct sandbox *sb)
{
    return sandbox_info(sb)->base_version[0] != '\0';
}

static void on_running(void *arg, struct sandbox *sb, const struct error *err);

/* The command begins when its files are there. */
static void end_late_file(struct create *create)
{
    struct sandbox *sb;

    if (--create->late_files > 0 || create->data == NULL) {
        return;
    }
    sb = sandbox_find(create->data->node, create->sandbox_id);
    if (sb != NULL && create->has_run && sandbox_processes(sb) != NULL &&
        create->error.code == ERROR_NONE) {
        start_first(create, sandbox_processes(sb));
    }
    while (sb != NULL && !list_is_empty(&create->held)) {
        struct put_call *put = list_entry(create->held.next, struct put_call, link);
        struct error err;

        list_remove(&put->link);
        if (sandbox_wait_running(sb, on_running, put->call) < 0) {
            (void)error_set(&err, ENOMEM, "out of memory");
            call_fail(put->call, &err);
        }
    }
}

static void begin_late(struct create *create, struct sandbox *sb)
{
    struct process_table *table = sandbox_processes(sb);
    json_t *item;
    size_t i;

    create->is_late = true;
    create->error = (struct error){0};
    if (table != NULL) {
        table->ephemeral = create->ephemeral;
    }
    create->late_files = 1; /* this function */
    json_array_foreach(create->files, i, item) {
        create->late_files++;
        put_file(create, sb, item);
    }
    end_late_file(create);
}

/* A command that may have run, and of which nothing is on record, does not run again. */
static bool is_due_late(const struct create *create, const struct sandbox *sb)
{
    if (create == NULL || create->is_done || create->is_late || !goes_on(sb) ||
        sandbox_agent(sb) == NULL || (create->is_old && create->ephemeral)) {
        return false;
    }
    return !create->has_run ||
           (sandbox_processes(sb) != NULL &&
            process_find(sandbox_processes(sb), create->run.process_id) == NULL &&
            !process_is_expired(sandbox_processes(sb), create->run.process_id) &&
            !process_is_unread(sandbox_processes(sb), create->run.session_id));
}

static void fail_held(struct create *create)
{
    struct error err = {0};

    (void)error_set_code(&err, ERROR_CONFLICT, NULL, "the sandbox was deleted");
    while (!list_is_empty(&create->held)) {
        struct put_call *put = list_entry(create->held.next, struct put_call, link);

        list_remove(&put->link);
        call_fail(put->call, &err);
    }
}

void create_on_free(struct data *data, struct sandbox *sb)
{
    struct create *create = find_create(data, sandbox_info(sb)->id);

    if (create != NULL) {
        process_watch_remove(&create->watch);
        list_remove(&create->link);
        create->data = NULL;
        fail_held(create);
        create_unref(create);
    }
}

/* ---- the answer ---- */

static void delete_put(void *arg)
{
    struct call *call = arg;

    ((struct put_call *)call->state)->delete_after = false;
    if (sandbox_delete(call->data->node, call->sandbox_id, NULL, NULL) < 0) {
        log_error("sandbox not deleted", "sandbox=%s", call->sandbox_id);
    }
}

static void on_close(struct call *call, bool complete)
{
    struct put_call *put = call->state;

    (void)complete;
    list_remove(&put->link);
    loop_timer_free(TAKE(put->timer));
    if (put->delete_after || put->failed) {
        delete_put(call);
    }
}

/* A client may take long to read a result: its sandbox does not live on for that. */
static void delete_soon(struct call *call)
{
    struct put_call *put = call->state;

    put->timer = loop_timer_new(call->data->node->loop, delete_put, call);
    if (put->timer != NULL) {
        loop_timer_start(put->timer, 0);
    }
}

/* Nothing of a sandbox stays whose first files or command failed. */
static void fail_put(struct call *call, const struct error *err)
{
    ((struct put_call *)call->state)->failed = true;
    call_fail(call, err);
}

static void respond_put(struct call *call, struct process *p)
{
    const struct put_call *put = call->state;
    struct sandbox *sb = sandbox_find(call->data->node, call->sandbox_id);
    struct run_options options;
    struct error err = {0};

    if (sb == NULL) {
        (void)error_set_code(&err, ERROR_CONFLICT, NULL, "the sandbox was deleted");
        call_fail(call, &err);
        return;
    }
    if (p == NULL) {
        call_respond(call, 200, json_pack("{s:o}", "sandbox", sandbox_describe(sb)));
        return;
    }
    options = (struct run_options){p->max_output_bytes, p->encoding};
    call_respond_result(call, p, &options, sandbox_describe(sb));
    if (call->text != NULL && put->delete_after) {
        delete_soon(call);
    }
}

static void on_run_event(void *arg, struct process *p, unsigned int events)
{
    struct call *call = arg;
    struct error err = {0};

    if ((events & PROCESS_EVENT_FAILED) != 0) {
        process_watch_remove(&call->watch);
        fail_put(call, &p->start_error);
    } else if ((events & PROCESS_EVENT_GONE) != 0) {
        process_watch_remove(&call->watch);
        (void)error_set_code(&err, ERROR_CONFLICT, NULL, "the sandbox was deleted");
        call_fail(call, &err);
    } else if ((events & (PROCESS_EVENT_ENDED | PROCESS_EVENT_TIMEOUT)) != 0) {
        const struct create *create = find_create(call->data, call->sandbox_id);

        process_watch_remove(&call->watch);
        if (create != NULL && create->error.code != ERROR_NONE) {
            fail_put(call, &create->error);
            return;
        }
        respond_put(call, p);
    }
}

static void on_running(void *arg, struct sandbox *sb, const struct error *err)
{
    struct call *call = arg;
    struct put_call *put = call->state;
    struct create *create = find_create(call->data, call->sandbox_id);
    struct process *p = NULL;
    struct error problem = {0};

    if (err != NULL) {
        call_fail(call, err);
        return;
    }
    if (is_due_late(create, sb)) {
        begin_late(create, sb);
    }
    if (create != NULL && create->late_files > 0) {
        list_append(&create->held, &put->link);
        return;
    }
    if (create != NULL && create->error.code != ERROR_NONE) {
        fail_put(call, &create->error);
        return;
    }
    if (create != NULL && sandbox_agent(sb) != NULL) {
        drop_request(create);
    }
    if (!put->has_run) {
        respond_put(call, NULL);
        return;
    }
    if (sandbox_processes(sb) != NULL) {
        p = process_find(sandbox_processes(sb), call->process_id);
    }
    if (p == NULL && sandbox_processes(sb) != NULL &&
        process_is_expired(sandbox_processes(sb), call->process_id)) {
        (void)error_set_code(&problem, ERROR_GONE, "process",
                             "the result of process %s is not kept any more", call->process_id);
        call_fail(call, &problem); /* what it has made stays */
        return;
    }
    if (p == NULL) {
        (void)error_set_code(&problem, ERROR_FAILED_PRECONDITION, "lost",
                             "whether the command ran is not known: the node was restarted");
        call_fail(call, &problem); /* nor whether somebody works in it since */
        return;
    }
    call_watch(call, p, on_run_event);
    if (process_is_ended(p)) {
        on_run_event(call, p, PROCESS_EVENT_ENDED);
    }
}

/* A sandbox that runs already, from before a restart of this program: a command that is not on
 * record never reached the guest, unless nothing is recorded at all. */
static void start_late(struct call *call, struct sandbox *sb, struct create *create)
{
    struct process_table *table = process_table_get(call->data, sb);

    if (table != NULL && create->has_run && !create->ephemeral && !goes_on(sb) &&
        sandbox_info(sb)->state == SANDBOX_STATE_RUNNING && sandbox_agent(sb) != NULL &&
        process_find(table, create->run.process_id) == NULL &&
        !process_is_expired(table, create->run.process_id) &&
        !process_is_unread(table, create->run.session_id)) {
        start_first(create, table);
    }
}

static int put_sandbox(struct call *call,
                       struct create *create,
                       const struct sandbox_spec *spec,
                       struct error *err)
{
    struct put_call *put = call->state;
    struct sandbox *sb = NULL;
    bool known = sandbox_find(call->data->node, call->sandbox_id) != NULL;
    int r = sandbox_create(call->data->node, spec, &sb, err);

    if (r < 0) {
        return r;
    }
    put->has_run = create->has_run;
    put->delete_after = create->ephemeral;
    memcpy(call->process_id, create->run.process_id, ID_SIZE);
    if (find_create(call->data, call->sandbox_id) == NULL) {
        create->refs++;
        list_append(&call->data->creates, &create->link);
        if (known) {
            create->is_old = sandbox_info(sb)->state == SANDBOX_STATE_RUNNING;
            start_late(call, sb, create);
        }
    }
    call->on_close = on_close;
    if (sandbox_wait_running(sb, on_running, call) < 0) {
        return error_set(err, ENOMEM, "out of memory");
    }
    return 0;
}

void handle_sandbox_put(struct call *call, json_t *body)
{
    struct create *create = calloc(1, sizeof(*create));
    struct sandbox_spec spec = {0};
    struct error err = {0};
    struct put_call *put;

    call->state = http_exchange_alloc(call->exchange, sizeof(struct put_call));
    if (create == NULL || call->state == NULL) {
        free(create);
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    put = call->state;
    *put = (struct put_call){.call = call};
    list_init(&put->link);
    create->data = call->data;
    create->refs = 1;
    list_init(&create->link);
    list_init(&create->held);
    memcpy(create->sandbox_id, call->sandbox_id, ID_SIZE);
    if (read_put(call, body, &spec, create, &err) < 0 ||
        put_sandbox(call, create, &spec, &err) < 0) {
        call_fail(call, &err);
    }
    create_unref(create);
}
