/* The tree of a guest's files: look at, make, move, change, delete. Each is one service of the
 * guest's agent with one answer. */
#include <errno.h>
#include <string.h>

#include "node/data.h"
#include "node/file_call.h"

#define OWNER_MAX 130U

/* Starts the call, unless its arguments are wrong. */
static void finish(struct file_call *f, const struct error *err)
{
    if (err->code != ERROR_NONE) {
        call_fail(f->call, err);
        return;
    }
    file_call_start(f, false);
}

static void answer_entry(struct file_call *f, const struct service_end *end)
{
    (void)end;
    file_call_answer_entry(f, 200);
}

static void answer_count(struct file_call *f, const struct service_end *end)
{
    json_int_t count = end->count <= INT64_MAX ? (json_int_t)end->count : 0;

    call_respond(f->call, 200, json_pack("{s:I}", "deleted", count));
}

void handle_file_stat(struct call *call, json_t *body)
{
    static const char *const names[] = {"path", "user", NULL};
    struct file_call *f = file_call_new(call, "file-stat");
    struct error err = {0};

    (void)body;
    if (f == NULL) {
        return;
    }
    f->on_done = answer_entry;
    (void)!file_call_read_query(f, names, &err);
    finish(f, &err);
}

void handle_file_delete(struct call *call, json_t *body)
{
    static const char *const names[] = {"path", "user", "recursive", NULL};
    struct file_call *f = file_call_new(call, "file-delete");
    bool recursive = false;
    struct error err = {0};

    (void)body;
    if (f == NULL) {
        return;
    }
    f->on_done = answer_count;
    if (file_call_read_query(f, names, &err) == 0 &&
        file_query_bool(call, "recursive", &recursive, &err) == 0) {
        service_args_add_str(&f->args, recursive ? "recursive" : "");
    }
    finish(f, &err);
}

/* ---- with a body ---- */

void handle_file_make_directory(struct call *call, json_t *body)
{
    struct file_call *f = file_call_new(call, "file-make-directory");
    struct json_fields fields;
    struct error err = {0};

    if (f == NULL) {
        return;
    }
    f->on_done = answer_entry;
    json_fields_start(&fields, body, "", &err);
    file_body_path(&fields, "path", "path_base64", &f->args);
    file_body_mode(&fields, &f->args);
    file_body_user(call, &fields, f->user);
    (void)json_fields_finish(&fields);
    finish(f, &err);
}

void handle_file_move(struct call *call, json_t *body)
{
    struct file_call *f = file_call_new(call, "file-move");
    struct json_fields fields;
    struct error err = {0};

    if (f == NULL) {
        return;
    }
    f->on_done = answer_entry;
    json_fields_start(&fields, body, "", &err);
    file_body_path(&fields, "from", "from_base64", &f->args);
    file_body_path(&fields, "to", "to_base64", &f->args);
    file_body_flag(&fields, "replace", true, &f->args);
    file_body_user(call, &fields, f->user);
    (void)json_fields_finish(&fields);
    finish(f, &err);
}

void handle_file_chmod(struct call *call, json_t *body)
{
    struct file_call *f = file_call_new(call, "file-set-mode");
    struct json_fields fields;
    struct error err = {0};

    if (f == NULL) {
        return;
    }
    f->on_done = answer_entry;
    json_fields_start(&fields, body, "", &err);
    file_body_path(&fields, "path", "path_base64", &f->args);
    json_fields_require(&fields, "mode");
    file_body_mode(&fields, &f->args);
    file_body_flag(&fields, "recursive", false, &f->args);
    file_body_user(call, &fields, f->user);
    (void)json_fields_finish(&fields);
    finish(f, &err);
}

void handle_file_chown(struct call *call, json_t *body)
{
    struct file_call *f = file_call_new(call, "file-set-owner");
    struct json_fields fields;
    const char *owner;
    struct error err = {0};

    if (f == NULL) {
        return;
    }
    f->on_done = answer_entry;
    json_fields_start(&fields, body, "", &err);
    file_body_path(&fields, "path", "path_base64", &f->args);
    json_fields_require(&fields, "owner");
    owner = json_fields_string(&fields, "owner", 1, OWNER_MAX, "");
    service_args_add_str(&f->args, owner != NULL ? owner : "");
    file_body_flag(&fields, "recursive", false, &f->args);
    file_body_user(call, &fields, f->user);
    (void)json_fields_finish(&fields);
    finish(f, &err);
}
