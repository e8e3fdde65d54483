/* Arguments of requests about a guest's files. */
#include "node/file_query.h"

#include <errno.h>
#include <string.h>

#include "node/base64.h"
#include "node/data.h"
#include "node/file_error.h"
#include "node/node.h"
#include "node/sandbox.h"
#include "wire/url.h"

#define MODE_DIGITS_MAX 5U

static void use_default_user(struct call *call, char user[FILE_USER_SIZE])
{
    const struct sandbox *sb = sandbox_find(call->data->node, call->sandbox_id);

    if (sb != NULL) {
        (void)snprintf(user, FILE_USER_SIZE, "%s", sandbox_info(sb)->user);
    }
}

int file_query_user(struct call *call, char user[FILE_USER_SIZE], struct error *err)
{
    if (call_query_text(call, "user", user, FILE_USER_SIZE, err) < 0) {
        return -EINVAL;
    }
    if (user[0] == '\0') {
        use_default_user(call, user);
    }
    return 0;
}

static int check_path(struct span path, const char *name, struct error *err)
{
    if (path.n == 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, name, "%s must not be empty", name);
    }
    if (memchr(path.p, '\0', path.n) != NULL) {
        return error_set_code(err, ERROR_INVALID_REQUEST, name, "%s must not have a NUL byte",
                              name);
    }
    if (path.n >= AGENT_PATH_BYTES) {
        return file_error_set(err, ENAMETOOLONG, path);
    }
    return 0;
}

int file_query_path(struct call *call, struct buf *ret_path, struct error *err)
{
    struct span query = span_of_str(http_exchange_query(call->exchange));
    char path[FILE_PATH_TEXT_MAX];
    int r = url_query_get(query, "path", path, sizeof(path));

    if (r == -ENOENT) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "path", "path is required");
    }
    if (r == -EMSGSIZE) {
        return file_error_set(err, ENAMETOOLONG, span_of_str(""));
    }
    if (r < 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "path",
                              "path is malformed, has a NUL byte or is given twice");
    }
    r = check_path(span_make(path, (size_t)r), "path", err);
    if (r == 0) {
        buf_put_str(ret_path, path);
        r = buf_error(ret_path) != 0 ? error_set(err, ENOMEM, "out of memory") : 0;
    }
    return r;
}

int file_query_bool(struct call *call, const char *name, bool *value, struct error *err)
{
    char text[8];

    if (call_query_text(call, name, text, sizeof(text), err) < 0) {
        return -EINVAL;
    }
    if (strcmp(text, "true") == 0) {
        *value = true;
    } else if (strcmp(text, "false") == 0) {
        *value = false;
    } else if (text[0] != '\0') {
        return error_set_code(err, ERROR_INVALID_REQUEST, name, "%s must be true or false", name);
    }
    return 0;
}

bool file_mode_is_valid(const char *text)
{
    size_t n = strlen(text);

    return n >= 1 && n <= MODE_DIGITS_MAX && strspn(text, "01234567") == n &&
           (n < MODE_DIGITS_MAX || text[0] == '0');
}

void file_body_path(struct json_fields *fields,
                    const char *name,
                    const char *coded_name,
                    struct service_args *args)
{
    _cleanup_buf_ struct buf bytes = buf_make(0);
    struct span text = json_fields_text(fields, name, FILE_PATH_TEXT_MAX);
    struct span coded = json_fields_text(fields, coded_name, FILE_PATH_TEXT_MAX);
    struct span path;

    if (fields->error != 0) {
        return;
    }
    if ((text.p != NULL) == (coded.p != NULL)) {
        json_fields_fail(fields, name, "or %s is required, and not both", coded_name);
        return;
    }
    if (coded.p != NULL && base64_parse(coded, &bytes) < 0) {
        json_fields_fail(fields, coded_name, "is not base64");
        return;
    }
    path = coded.p != NULL ? buf_span(&bytes) : text;
    fields->error = check_path(path, name, fields->err);
    if (fields->error == 0) {
        service_args_add(args, path);
    }
}

void file_body_user(struct call *call, struct json_fields *fields, char user[FILE_USER_SIZE])
{
    const char *text = json_fields_string(fields, "user", 1, FILE_USER_SIZE - 1, NULL);

    if (text != NULL) {
        (void)snprintf(user, FILE_USER_SIZE, "%s", text);
    } else {
        use_default_user(call, user);
    }
}

void file_body_mode(struct json_fields *fields, struct service_args *args)
{
    const char *mode = json_fields_string(fields, "mode", 1, MODE_DIGITS_MAX, "");

    if (mode == NULL) {
        mode = "";
    }
    if (fields->error == 0 && mode[0] != '\0' && !file_mode_is_valid(mode)) {
        json_fields_fail(fields, "mode", "must be an octal mode such as 0644");
        return;
    }
    service_args_add_str(args, mode);
}

void file_body_flag(struct json_fields *fields,
                    const char *name,
                    bool initial,
                    struct service_args *args)
{
    service_args_add_str(args, json_fields_bool(fields, name, initial) ? name : "");
}
