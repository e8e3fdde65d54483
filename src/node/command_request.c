#include "node/command_request.h"

#include <errno.h>
#include <string.h>

#include "io/json_request.h"
#include "node/base64.h"
#include "node/shell_state.h"
#include "wire/agent_limits.h"

static const char *const timeout_words[] = {"kill", "leave", NULL};
static const char *const encoding_words[] = {"auto", "utf8", "base64", NULL};
static const char *const start_words[] = {"now", "on_attach", NULL};
static const char *const full_words[] = {"drop", "block", NULL};
static const char *const stdin_words[] = {"closed", "open", NULL};

void command_request_done(struct command_request *request)
{
    json_decref(TAKE(request->body));
    json_decref(TAKE(request->argv));
    buf_done(&request->input);
}

static void read_argv(struct json_fields *f, struct command_request *ret)
{
    json_t *argv = json_fields_array(f, "argv", AGENT_ARGV_MAX);
    size_t total = 0;
    size_t i;
    const json_t *item;

    if (argv == NULL) {
        return;
    }
    if (json_array_size(argv) == 0) {
        json_fields_fail(f, "argv", "must not be empty");
    }
    json_array_foreach(argv, i, item) {
        if (!json_is_string(item)) {
            json_fields_fail(f, "argv", "must hold only strings; entry %zu is none", i);
            return;
        }
        if (json_string_length(item) > AGENT_STRING_BYTES) {
            json_fields_fail(f, "argv", "must have at most %u bytes in an entry; entry %zu has %zu",
                             AGENT_STRING_BYTES, i, json_string_length(item));
            return;
        }
        total += json_string_length(item);
    }
    if (f->error == 0 && json_string_length(json_array_get(argv, 0)) == 0) {
        json_fields_fail(f, "argv", "must begin with a program's name");
    }
    if (total > AGENT_ARGV_BYTES) {
        json_fields_fail(f, "argv", "must have at most %u bytes in all, got %zu", AGENT_ARGV_BYTES,
                         total);
    }
    ret->argv = json_incref(argv);
}

static void read_command(struct json_fields *f, struct command_request *ret)
{
    const char *shell;

    read_argv(f, ret);
    shell = json_fields_string(f, "shell", 1, AGENT_STRING_BYTES, NULL);
    if (f->error != 0) {
        return;
    }
    if ((shell != NULL) == (ret->argv != NULL)) {
        json_fields_fail(f, shell != NULL ? "shell" : "argv",
                         shell != NULL ? "and argv exclude each other" : "or shell is required");
        return;
    }
    if (shell != NULL) {
        ret->argv = json_pack("[s, s, s]", "/bin/bash", "-c", shell);
        if (ret->argv == NULL) {
            f->error = error_set(f->err, ENOMEM, "out of memory");
        }
    }
}

int command_env_check(json_t *env, const char *field, struct error *err)
{
    const char *name;
    const json_t *value;
    size_t total = 0;

    if (json_object_size(env) > AGENT_ENV_MAX) {
        return error_set_code(err, ERROR_INVALID_REQUEST, field,
                              "%s must have at most %u variables, got %zu", field, AGENT_ENV_MAX,
                              json_object_size(env));
    }
    json_object_foreach(env, name, value) {
        if (name[0] == '\0' || strchr(name, '=') != NULL) {
            return error_set_code(err, ERROR_INVALID_REQUEST, field,
                                  "%s has a name that is empty or has a '='", field);
        }
        if (!json_is_string(value)) {
            return error_set_code(err, ERROR_INVALID_REQUEST, field,
                                  "%s must hold only strings; %.60s is none", field, name);
        }
        if (strlen(name) + 1 + json_string_length(value) > AGENT_STRING_BYTES) {
            return error_set_code(err, ERROR_INVALID_REQUEST, field,
                                  "%s must have at most %u bytes in a variable, its name included; "
                                  "%.60s is longer",
                                  field, AGENT_STRING_BYTES, name);
        }
        total += strlen(name) + 1 + json_string_length(value);
    }
    if (total > AGENT_ENV_BYTES) {
        return error_set_code(err, ERROR_INVALID_REQUEST, field,
                              "%s must have at most %u bytes in all, got %zu", field,
                              AGENT_ENV_BYTES, total);
    }
    return 0;
}

void command_env_format(json_t *env, struct buf *raw)
{
    const char *name;
    const json_t *value;

    json_object_foreach(env, name, value) {
        size_t name_n = strlen(name);
        size_t value_n = json_string_length(value);

        buf_put_u32(raw, (uint32_t)(name_n + 1 + value_n));
        buf_put(raw, span_make(name, name_n));
        buf_put_u8(raw, '=');
        buf_put(raw, span_make(json_string_value(value), value_n));
    }
}

static void read_env(struct json_fields *f, struct command_request *ret)
{
    char field[64];

    ret->env = json_fields_object(f, "env", SIZE_MAX);
    if (ret->env != NULL && f->error == 0) {
        (void)snprintf(field, sizeof(field), "%senv", f->prefix);
        f->error = command_env_check(ret->env, field, f->err);
    }
}

static void read_input(struct json_fields *f, struct command_request *ret)
{
    struct span text = json_fields_text(f, "input", COMMAND_INPUT_BYTES_MAX);
    struct span coded = json_fields_text(f, "input_base64", COMMAND_INPUT_BYTES_MAX / 3 * 4 + 4);

    if (text.p != NULL && coded.p != NULL) {
        json_fields_fail(f, "input", "and input_base64 exclude each other");
    }
    if (f->error != 0) {
        return;
    }
    if (text.n > 0) {
        buf_put(&ret->input, text);
    }
    if (coded.n > 0 && base64_parse(coded, &ret->input) < 0 && buf_error(&ret->input) == 0) {
        json_fields_fail(f, "input_base64", "is not base64");
    }
    if (buf_error(&ret->input) != 0) {
        json_fields_fail(f, coded.n > 0 ? "input_base64" : "input", "must have at most %u bytes",
                         COMMAND_INPUT_BYTES_MAX);
    }
}

static void read_timeout(struct json_fields *f, enum command_kind kind, struct command_request *ret)
{
    bool run = kind == COMMAND_KIND_RUN;
    int64_t timeout = json_fields_duration_ms(
        f, "timeout_seconds", 1, run ? COMMAND_RUN_TIMEOUT_MAX_MS : COMMAND_TIMEOUT_MAX_MS,
        run ? COMMAND_RUN_TIMEOUT_MS : 0);

    if (run && timeout == JSON_DURATION_OFF) {
        json_fields_fail(f, "timeout_seconds",
                         "must be at most %d seconds; longer work belongs "
                         "in commands",
                         COMMAND_RUN_TIMEOUT_MAX_MS / 1000);
    }
    ret->timeout_ms = timeout == JSON_DURATION_OFF ? 0 : timeout;
    ret->leave_on_timeout = json_fields_choice(f, "on_timeout", timeout_words, 0) == 1;
}

/* ---- terminals and shell states ---- */

void command_read_size(struct json_fields *f,
                       const struct command_tty *initial,
                       struct command_tty *ret)
{
    ret->cols = (uint16_t)json_fields_unsigned(f, "cols", 1, COMMAND_TTY_CELLS_MAX, initial->cols);
    ret->rows = (uint16_t)json_fields_unsigned(f, "rows", 1, COMMAND_TTY_CELLS_MAX, initial->rows);
}

static void read_tty(struct json_fields *f, struct command_request *ret)
{
    static const struct command_tty initial = {true, 1, 1, "xterm-256color"};
    json_t *object = json_fields_object(f, "tty", SIZE_MAX);
    struct json_fields inner;
    const char *term;
    char prefix[sizeof(f->prefix)];

    if (object == NULL || f->error != 0) {
        return;
    }
    ret->tty = initial;
    (void)snprintf(prefix, sizeof(prefix), "%.40stty.", f->prefix);
    json_fields_start(&inner, object, prefix, f->err);
    json_fields_require(&inner, "cols");
    json_fields_require(&inner, "rows");
    command_read_size(&inner, &initial, &ret->tty);
    term = json_fields_string(&inner, "term", 1, COMMAND_TERM_MAX, initial.term);
    if (term == NULL) {
        term = initial.term;
    }
    for (const char *c = term; *c != '\0'; c++) {
        if (*c <= ' ' || *c > '~') {
            json_fields_fail(&inner, "term", "must have printable characters only");
            break;
        }
    }
    (void)snprintf(ret->tty.term, sizeof(ret->tty.term), "%.64s", term);
    f->error = json_fields_finish(&inner);
    if (json_fields_has(f, "stdin") && !ret->stdin_open) {
        json_fields_fail(f, "stdin", "of a tty is always open");
    }
}

static bool is_state_name(const char *name)
{
    return strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") ==
           strlen(name);
}

/* After `shell` and `tty` were read. */
static void read_shell_state(struct json_fields *f, struct command_request *ret)
{
    const char *name = json_fields_string(f, "shell_state", 1, COMMAND_SHELL_STATE_MAX, NULL);

    if (name == NULL || f->error != 0) {
        return;
    }
    if (!is_state_name(name)) {
        json_fields_fail(f, "shell_state", "must have only letters, digits, '_', '.' and '-'");
    }
    if (!json_fields_has(f, "shell") || json_fields_is_null(f, "shell")) {
        json_fields_fail(f, "shell_state", "needs shell");
    }
    if (ret->tty.on) {
        json_fields_fail(f, "shell_state", "and tty exclude each other");
    }
    ret->shell_state = name;
    /* The wrapper has the names of the variables, and is one argument. */
    if (f->error == 0 && shell_state_overhead(name, ret->env) > AGENT_STRING_BYTES) {
        json_fields_fail(f, "env", "has names that are too long for a shell state");
    }
}

static void read_id(struct json_fields *f,
                    const char *name,
                    const char *kind,
                    const char *sandbox_id,
                    char out[ID_SIZE])
{
    const char *id = json_fields_string(f, name, 1, 64, NULL);

    json_fields_require(f, name);
    if (f->error != 0 || id == NULL) {
        return;
    }
    if (!id_is_valid(id, kind) || strncmp(&id[2], &sandbox_id[2], ID_SHARD_CHARS) != 0) {
        json_fields_fail(f, name, "must be an id of this sandbox");
        return;
    }
    (void)snprintf(out, ID_SIZE, "%s", id);
}

int command_request_parse(json_t *body,
                          enum command_kind kind,
                          const char *prefix,
                          const char *sandbox_id,
                          struct command_request *ret,
                          struct error *err)
{
    struct json_fields f;
    int r;

    memset(ret, 0, sizeof(*ret));
    ret->body = json_incref(body);
    ret->input = buf_make(COMMAND_INPUT_BYTES_MAX);
    json_fields_start(&f, body, prefix, err);
    read_id(&f, "process_id", "pr", sandbox_id, ret->process_id);
    read_id(&f, "session_id", "se", sandbox_id, ret->session_id);
    read_command(&f, ret);
    read_env(&f, ret);
    ret->cwd = json_fields_string(&f, "cwd", 1, AGENT_CWD_BYTES, NULL);
    if (ret->cwd != NULL && ret->cwd[0] != '/') {
        json_fields_fail(&f, "cwd", "must be an absolute path");
    }
    ret->user = json_fields_string(&f, "user", 1, AGENT_USER_BYTES, NULL);
    read_input(&f, ret);
    read_timeout(&f, kind, ret);
    ret->max_output_bytes = json_fields_unsigned(&f, "max_output_bytes", 0,
                                                 COMMAND_OUTPUT_BYTES_MAX, COMMAND_OUTPUT_BYTES);
    ret->encoding = (enum command_encoding)json_fields_choice(&f, "encoding", encoding_words, 0);
    if (kind == COMMAND_KIND_COMMANDS) {
        ret->stdin_open = json_fields_choice(&f, "stdin", stdin_words, 0) == 1;
        ret->start_on_attach = json_fields_choice(&f, "start", start_words, 0) == 1;
        ret->spool_bytes = json_fields_unsigned(&f, "spool_bytes", COMMAND_SPOOL_BYTES_MIN,
                                                COMMAND_SPOOL_BYTES_MAX, 0);
        ret->block_when_full = json_fields_choice(&f, "on_full", full_words, 0) == 1;
        read_tty(&f, ret);
    }
    read_shell_state(&f, ret);
    r = json_fields_finish(&f);
    if (r < 0) {
        command_request_done(ret);
        memset(ret, 0, sizeof(*ret));
    }
    return r;
}
