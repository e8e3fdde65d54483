#include "cli/api.h"

#include <errno.h>
#include <string.h>

#include "cli/args.h"
#include "cli/cli.h"
#include "cli/rest.h"
#include "cli/text.h"

#define OPERATION_WAIT_SECONDS 60
#define CALL_TIMEOUT_MS        330000 /* past the longest wait the API knows */

const char *api_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL ? text : "";
}

int64_t api_number(const json_t *object, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(object, key));
}

int api_get(struct cli *cli, const char *path, json_t **ret, struct error *err)
{
    struct rest_request q = {.method = "GET", .path = path, .timeout_ms = CALL_TIMEOUT_MS};
    json_t *answer = NULL;
    int r = rest_call(cli->rest, &q, &answer, NULL, err);

    if (r == 0 && answer == NULL) {
        return error_set(err, EBADMSG, "%.120s gave an empty answer", rest_url(cli->rest));
    }
    if (r == 0) {
        *ret = answer;
    }
    return r;
}

int api_send(struct cli *cli,
             const char *method,
             const char *path,
             const json_t *body,
             json_t **ret,
             struct error *err)
{
    struct rest_request q = {
        .method = method,
        .path = path,
        .json = body,
        .idempotent = true,
        .timeout_ms = CALL_TIMEOUT_MS,
    };

    return rest_call(cli->rest, &q, ret, NULL, err);
}

int api_list(struct cli *cli, const char *path, uint64_t max, json_t **ret, struct error *err)
{
    _cleanup_json_ json_t *all = json_array();
    _cleanup_buf_ struct buf cursor = buf_make(0);

    do {
        _cleanup_buf_ struct buf page_path = buf_make(REST_REQUEST_SIZE);
        _cleanup_json_ json_t *page = NULL;
        int r;

        buf_put_str(&page_path, path);
        rest_put_query(&page_path, "limit", max != 0 && max < 1000 ? "100" : "1000");
        if (cursor.n > 0) {
            rest_put_query(&page_path, "cursor", buf_str(&cursor));
        }
        r = buf_error(&page_path) != 0 ? error_set(err, E2BIG, "the filters are too long")
                                       : api_get(cli, buf_str(&page_path), &page, err);
        if (r < 0) {
            return r;
        }
        if (json_array_extend(all, json_object_get(page, "items")) < 0) {
            return error_set(err, EBADMSG, "the list in the answer has no items");
        }
        buf_clear(&cursor);
        buf_put_str(&cursor, api_text(page, "next_cursor"));
    } while (cursor.n > 0 && (max == 0 || json_array_size(all) < max));
    while (max != 0 && json_array_size(all) > max) {
        (void)json_array_remove(all, json_array_size(all) - 1);
    }
    *ret = json_pack("{s:O, s:n}", "items", all, "next_cursor");
    return *ret != NULL ? 0 : error_set(err, ENOMEM, "out of memory");
}

int api_find_sandbox(struct cli *cli, const char *word, char ret_id[ID_SIZE], struct error *err)
{
    _cleanup_buf_ struct buf path = buf_make(REST_REQUEST_SIZE);
    _cleanup_json_ json_t *answer = NULL;
    const char *id;
    int r;

    if (id_is_valid(word, "sb")) {
        return span_copy_str(span_of_str(word), ret_id, ID_SIZE);
    }
    buf_put_str(&path, "/v1/sandboxes");
    rest_put_query(&path, "name", word);
    if (buf_error(&path) != 0) {
        return error_set_code(err, ERROR_NOT_FOUND, "sandbox", "no sandbox is called %.60s", word);
    }
    r = api_get(cli, buf_str(&path), &answer, err);
    if (r < 0) {
        return r;
    }
    id = api_text(json_array_get(json_object_get(answer, "items"), 0), "id");
    if (!id_is_valid(id, "sb")) {
        return error_set_code(err, ERROR_NOT_FOUND, "sandbox",
                              "no sandbox is called %.60s (space ls shows them)", word);
    }
    return span_copy_str(span_of_str(id), ret_id, ID_SIZE);
}

int api_find_checkpoint(struct cli *cli,
                        const char *word,
                        const char *sandbox_id,
                        char ret_id[ID_SIZE],
                        struct error *err)
{
    _cleanup_buf_ struct buf path = buf_make(REST_REQUEST_SIZE);
    _cleanup_json_ json_t *answer = NULL;
    const json_t *items;
    const char *id;
    int r;

    if (id_is_valid(word, "ck")) {
        return span_copy_str(span_of_str(word), ret_id, ID_SIZE);
    }
    buf_put_str(&path, "/v1/checkpoints?limit=2");
    rest_put_query(&path, "name", word);
    if (sandbox_id != NULL) {
        rest_put_query(&path, "sandbox_id", sandbox_id);
    }
    r = buf_error(&path) != 0 ? 0 : api_get(cli, buf_str(&path), &answer, err);
    if (r < 0) {
        return r;
    }
    items = json_object_get(answer, "items");
    id = api_text(json_array_get(items, 0), "id");
    if (json_array_size(items) > 1) {
        return error_set_code(err, ERROR_CONFLICT, "checkpoint",
                              "more than one checkpoint is called %.60s: give an id "
                              "(space checkpoint ls shows them)",
                              word);
    }
    if (!id_is_valid(id, "ck")) {
        return error_set_code(err, ERROR_NOT_FOUND, "checkpoint",
                              "no checkpoint is called %.60s (space checkpoint ls shows them)",
                              word);
    }
    return span_copy_str(span_of_str(id), ret_id, ID_SIZE);
}

static bool has_process(struct cli *cli, const char *sandbox_id, const char *process_id)
{
    _cleanup_json_ json_t *process = NULL;
    char path[REST_REQUEST_SIZE];

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/processes/%s", sandbox_id, process_id);
    return api_get(cli, path, &process, NULL) == 0;
}

/* A process id says nothing about its sandbox that clients may rely on, so the sandboxes are asked;
 * the shared part of the ids only decides the order. */
int api_find_process(struct cli *cli,
                     const char *sandbox_word,
                     const char *process_id,
                     char ret_sandbox_id[ID_SIZE],
                     struct error *err)
{
    _cleanup_json_ json_t *sandboxes = NULL;
    const json_t *items;
    const json_t *item;
    size_t i;
    int r;

    if (!id_is_valid(process_id, "pr")) {
        return error_set_code(err, ERROR_NOT_FOUND, "process",
                              "%.60s is no process id (pr…); `space ps SANDBOX` shows them",
                              process_id);
    }
    if (sandbox_word != NULL) {
        return api_find_sandbox(cli, sandbox_word, ret_sandbox_id, err);
    }
    r = api_list(cli, "/v1/sandboxes?fields=id", 0, &sandboxes, err);
    if (r < 0) {
        return r;
    }
    items = json_object_get(sandboxes, "items");
    for (int near = 1; near >= 0; near--) {
        json_array_foreach(items, i, item) {
            const char *id = api_text(item, "id");
            bool is_near =
                id_is_valid(id, "sb") && strncmp(&id[2], &process_id[2], ID_SHARD_CHARS) == 0;

            if (is_near == (near == 1) && has_process(cli, id, process_id)) {
                return span_copy_str(span_of_str(id), ret_sandbox_id, ID_SIZE);
            }
        }
    }
    return error_set_code(err, ERROR_NOT_FOUND, "process", "no sandbox has a process %s",
                          process_id);
}

static int fail_from_operation(const json_t *operation, struct error *err)
{
    const json_t *failure = json_object_get(operation, "error");
    const char *code = api_text(failure, "code");
    const char *message = api_text(failure, "message");

    (void)error_set(err, EPROTO, "%s: %s", code[0] != '\0' ? code : "failed",
                    message[0] != '\0' ? message : "the operation failed");
    return -EPROTO;
}

/* A deleted sandbox stays as it was told last. */
static void read_sandbox_anew(struct cli *cli, json_t *answer)
{
    json_t *sandbox = NULL;
    char path[REST_REQUEST_SIZE];
    struct error err = {0};

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%.40s",
                   api_text(json_object_get(answer, "sandbox"), "id"));
    if (json_object_get(answer, "sandbox") != NULL && api_get(cli, path, &sandbox, &err) == 0) {
        (void)json_object_set_new(answer, "sandbox", sandbox);
    }
}

int api_wait_operation(struct cli *cli, json_t *answer, struct error *err)
{
    _cleanup_json_ json_t *operation = json_incref(json_object_get(answer, "operation"));

    for (;;) {
        const char *state = api_text(operation, "state");
        json_t *next = NULL;
        char path[REST_REQUEST_SIZE];
        int r;

        if (operation == NULL || strcmp(state, "succeeded") == 0) {
            if (operation != json_object_get(answer, "operation")) {
                (void)json_object_set(answer, "operation", operation);
                read_sandbox_anew(cli, answer);
            }
            return 0;
        }
        if (strcmp(state, "failed") == 0) {
            return fail_from_operation(operation, err);
        }
        (void)snprintf(path, sizeof(path), "/v1/operations/%.40s?wait=%d",
                       api_text(operation, "id"), OPERATION_WAIT_SECONDS);
        r = api_get(cli, path, &next, err);
        if (r < 0) {
            return r;
        }
        json_decref(operation);
        operation = next;
    }
}

static int put_size(
    json_t *body, const struct args *args, const char *option, const char *key, struct error *err)
{
    const char *text = args_get(args, option);
    uint64_t mib;
    int r;

    if (text == NULL) {
        return 0;
    }
    r = text_parse_mib(text, option, &mib, err);
    return r < 0 ? r : json_object_set_new(body, key, json_integer((json_int_t)mib));
}

/* Repeated NAME=VALUE options as an object under `key`. Without `=` the environment of this process
 * gives nothing: values are explicit. */
static int put_pairs(
    json_t *body, const struct args *args, const char *option, const char *key, struct error *err)
{
    json_t *pairs = NULL;
    const char *text;

    for (size_t i = 0; (text = args_get_nth(args, option, i)) != NULL; i++) {
        const char *equals = strchr(text, '=');

        if (equals == NULL || equals == text) {
            return error_set(err, EINVAL, "--%s takes NAME=VALUE, got %.60s", option, text);
        }
        if (pairs == NULL) {
            pairs = json_object();
            if (json_object_set_new(body, key, pairs) < 0) {
                return error_set(err, ENOMEM, "out of memory");
            }
        }
        if (json_object_setn_new(pairs, text, (size_t)(equals - text), json_string(equals + 1)) <
            0) {
            return error_set(err, EINVAL, "--%s %.60s: not UTF-8", option, text);
        }
    }
    return 0;
}

static int put_seconds(
    json_t *object, const struct args *args, const char *option, const char *key, struct error *err)
{
    const char *text = args_get(args, option);
    double seconds;

    if (text == NULL) {
        return 0;
    }
    if (text_parse_seconds(text, option, &seconds, err) < 0) {
        return -EINVAL;
    }
    return json_object_set_new(object, key, json_real(seconds)) < 0
               ? error_set(err, ENOMEM, "out of memory")
               : 0;
}

/* The only one of these that is on by itself. */
static int put_idle_timeout(json_t *lifecycle, const struct args *args, struct error *err)
{
    const char *text = args_get(args, "idle-timeout");

    if (text != NULL && strcmp(text, "none") == 0) {
        return json_object_set_new(lifecycle, "idle_timeout_seconds", json_null()) < 0
                   ? error_set(err, ENOMEM, "out of memory")
                   : 0;
    }
    return put_seconds(lifecycle, args, "idle-timeout", "idle_timeout_seconds", err);
}

static int put_lifecycle(json_t *body, const struct args *args, struct error *err)
{
    const char *action = args_get(args, "idle-action");
    _cleanup_json_ json_t *lifecycle = json_object();

    if (put_seconds(lifecycle, args, "lifetime", "timeout_seconds", err) < 0 ||
        put_idle_timeout(lifecycle, args, err) < 0 ||
        put_seconds(lifecycle, args, "keep-suspended", "keep_suspended_seconds", err) < 0) {
        return -EINVAL;
    }
    if (args_has(args, "lifetime")) {
        (void)json_object_set_new(lifecycle, "timeout_action", json_string("delete"));
    }
    if (action != NULL && json_object_set_new(lifecycle, "idle_action", json_string(action)) < 0) {
        return error_set(err, EINVAL, "--idle-action must be UTF-8");
    }
    if (args_has(args, "no-auto-wake")) {
        (void)json_object_set_new(lifecycle, "auto_wake", json_false());
    }
    return json_object_size(lifecycle) > 0 ? json_object_set(body, "lifecycle", lifecycle) : 0;
}

static int fill_create_body(json_t *body,
                            const struct args *args,
                            const char *template_name,
                            struct error *err)
{
    const char *name = args_get(args, "name");
    const char *vcpus = args_get(args, "vcpus");
    const char *checkpoint = args_get(args, "checkpoint");
    uint64_t count = 0;

    if (vcpus != NULL && text_parse_count(vcpus, "vcpus", 1024, &count, err) < 0) {
        return -EINVAL;
    }
    if ((template_name != NULL &&
         json_object_set_new(body, "template", json_string(template_name)) < 0) ||
        (checkpoint != NULL &&
         json_object_set_new(body, "checkpoint_id", json_string(checkpoint)) < 0) ||
        (name != NULL && json_object_set_new(body, "name", json_string(name)) < 0) ||
        (vcpus != NULL &&
         json_object_set_new(body, "vcpus", json_integer((json_int_t)count)) < 0)) {
        return error_set(err, EINVAL, "names must be UTF-8");
    }
    if (put_size(body, args, "memory", "memory_mib", err) < 0 ||
        put_size(body, args, "disk", "disk_mib", err) < 0 ||
        put_pairs(body, args, "env", "env", err) < 0 ||
        put_pairs(body, args, "metadata", "metadata", err) < 0 ||
        put_lifecycle(body, args, err) < 0) {
        return -EINVAL;
    }
    return 0;
}

json_t *api_create_body(const struct args *args, const char *template_name, struct error *err)
{
    _cleanup_json_ json_t *body = json_object();

    if (body == NULL || fill_create_body(body, args, template_name, err) < 0) {
        return NULL;
    }
    return TAKE(body);
}

int api_put_command(json_t *body, const struct args *args, struct error *err)
{
    const char *cwd = args_get(args, "workdir");
    const char *user = args_get(args, "user");
    const char *timeout = args_get(args, "timeout");
    json_t *argv = json_array();
    double seconds = 0;

    if (json_object_set_new(body, "argv", argv) < 0) {
        return error_set(err, ENOMEM, "out of memory");
    }
    for (size_t i = 0; i < args->command_count; i++) {
        if (json_array_append_new(argv, json_string(args->command[i])) < 0) {
            return error_set(err, EINVAL, "argument %zu of the command is not UTF-8", i + 1);
        }
    }
    if (timeout != NULL && (text_parse_seconds(timeout, "timeout", &seconds, err) < 0 ||
                            json_object_set_new(body, "timeout_seconds", json_real(seconds)) < 0)) {
        return -EINVAL;
    }
    if ((cwd != NULL && json_object_set_new(body, "cwd", json_string(cwd)) < 0) ||
        (user != NULL && json_object_set_new(body, "user", json_string(user)) < 0)) {
        return error_set(err, EINVAL, "--workdir and --user must be UTF-8");
    }
    return put_pairs(body, args, "env", "env", err);
}
