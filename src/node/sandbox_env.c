/* Environment variables of a sandbox: `env.json` in its directory, mode 0600. */
#include <errno.h>
#include <string.h>

#include "node/json_field.h"
#include "node/sandbox_private.h"

#define ENV_FILE     "env.json"
#define ENV_FILE_MAX (4U * SANDBOX_ENV_BYTES_MAX)

static bool name_is_valid(const char *name)
{
    return name[0] != '\0' && strchr(name, '=') == NULL;
}

int sandbox_check_env(const json_t *env, struct error *err)
{
    const char *name;
    const json_t *value;
    size_t bytes = 0;

    if (json_object_size(env) > SANDBOX_ENV_MAX) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "env", "env has more than %u variables",
                              SANDBOX_ENV_MAX);
    }
    for (void *it = json_object_iter((json_t *)(uintptr_t)env); it != NULL;
         it = json_object_iter_next((json_t *)(uintptr_t)env, it)) {
        name = json_object_iter_key(it);
        value = json_object_iter_value(it);
        if (!name_is_valid(name) || !json_is_string(value) ||
            strlen(json_string_value(value)) != json_string_length(value)) {
            return error_set_code(err, ERROR_INVALID_REQUEST, "env",
                                  "env has a name or value that cannot be used");
        }
        bytes += strlen(name) + json_string_length(value) + 2;
    }
    if (bytes > SANDBOX_ENV_BYTES_MAX) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "env", "env is larger than %u bytes",
                              SANDBOX_ENV_BYTES_MAX);
    }
    return 0;
}

int sandbox_store_env(struct sandbox *sb)
{
    return json_file_write(sb->dir_fd, ENV_FILE, sb->env, false);
}

int sandbox_load_env(struct sandbox *sb)
{
    json_t *env = json_file_read(sb->dir_fd, ENV_FILE, ENV_FILE_MAX);

    if (env != NULL && sandbox_check_env(env, NULL) < 0) {
        json_decref(env);
        return -EBADMSG;
    }
    sb->env = env != NULL ? env : json_object(); /* no file: no variables */
    return sb->env != NULL ? 0 : -ENOMEM;
}

int sandbox_merge_env(struct sandbox *sb, struct json_t *changes, struct error *err)
{
    json_t *merged = json_copy(sb->env);
    json_t *before = sb->env;
    const char *name;
    json_t *value;
    int r;

    if (merged == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    if (strcmp(sb->info.reason_code, SANDBOX_JOURNAL_DAMAGED) == 0) {
        json_decref(merged);
        return error_set_code(
            err, ERROR_FAILED_PRECONDITION, "error",
            "the node's record of this sandbox is damaged, and is not written over");
    }
    json_object_foreach(changes, name, value) {
        if (json_is_null(value)) {
            (void)json_object_del(merged, name);
        } else if (json_object_set(merged, name, value) < 0) {
            json_decref(merged);
            return error_set(err, ENOMEM, "no memory");
        }
    }
    r = sandbox_check_env(merged, err);
    if (r == 0) {
        sb->env = merged;
        r = sandbox_store_env(sb);
        if (r == 0) {
            sandbox_sync_later(sb);
        }
        if (r < 0) {
            sb->env = before;
            r = error_set(err, -r, "cannot store the variables: %s", strerror(-r));
        }
    }
    json_decref(r == 0 ? before : merged);
    return r;
}
