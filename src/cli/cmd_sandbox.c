/* `space create`, `ls`, `show`, `rm`. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/rest.h"
#include "cli/table.h"
#include "cli/text.h"

/* The body has the word as it was given, which may be a name. */
static int put_checkpoint(struct cli *cli, const char *word, json_t *body, struct error *err)
{
    char id[ID_SIZE];
    int r = api_find_checkpoint(cli, word, NULL, id, err);

    return r < 0 ? r : json_object_set_new(body, "checkpoint_id", json_string(id));
}

int cmd_create(struct cli *cli, const struct args *args)
{
    const char *checkpoint = args_get(args, "checkpoint");
    const char *word = args_word(args, 0);
    bool no_wait = args_has(args, "no-wait");
    struct error err = {0};
    _cleanup_json_ json_t *body = api_create_body(args, word, &err);
    _cleanup_json_ json_t *answer = NULL;
    _cleanup_buf_ struct buf out = buf_make(0);

    if (body != NULL && word == NULL && checkpoint == NULL) {
        (void)error_set(&err, EINVAL, "from what? A TEMPLATE, or --checkpoint CHECKPOINT");
    } else if (body != NULL && word != NULL && checkpoint != NULL) {
        (void)error_set(&err, EINVAL,
                        "TEMPLATE and --checkpoint exclude each other: a checkpoint has its own");
    }
    if (body == NULL || err.errnum != 0) {
        return cli_fail_usage(cli, &err);
    }
    if (cli_connect(cli, &err) < 0 ||
        (checkpoint != NULL && put_checkpoint(cli, checkpoint, body, &err) < 0)) {
        return cli_fail(cli, &err);
    }
    cli_progress(cli, "creating a sandbox from %s …", word != NULL ? word : checkpoint);
    if (api_send(cli, "POST", no_wait ? "/v1/sandboxes?wait=0" : "/v1/sandboxes?wait=60", body,
                 &answer, &err) < 0 ||
        (!no_wait && api_wait_operation(cli, answer, &err) < 0)) {
        return cli_fail(cli, &err);
    }
    if (cli->json) {
        return cli_print_json(answer);
    }
    buf_printf(&out, "%s\n", api_text(json_object_get(answer, "sandbox"), "id"));
    return cli_print(&out);
}

static int put_filters(struct buf *path, const struct args *args, struct error *err)
{
    static const char *const plain[] = {"template", "name"};
    const char *text;

    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        text = args_get(args, plain[i]);
        if (text != NULL) {
            rest_put_query(path, plain[i], text);
        }
    }
    for (size_t i = 0; (text = args_get_nth(args, "state", i)) != NULL; i++) {
        rest_put_query(path, "state", text);
    }
    for (size_t i = 0; (text = args_get_nth(args, "metadata", i)) != NULL; i++) {
        const char *equals = strchr(text, '=');
        char key[300];

        if (equals == NULL || equals - text > 256) {
            return error_set(err, EINVAL, "--metadata takes NAME=VALUE, got %.60s", text);
        }
        (void)snprintf(key, sizeof(key), "metadata.%.*s", (int)(equals - text), text);
        rest_put_query(path, key, equals + 1);
    }
    return buf_error(path) != 0 ? error_set(err, E2BIG, "the filters are too long") : 0;
}

static void put_age(struct table *table, const char *created_at)
{
    char age[TEXT_SHORT_SIZE];
    int64_t then_ms;

    if (clock_parse(created_at, &then_ms) < 0) {
        table_put(table, NULL);
        return;
    }
    text_format_age(clock_real_ms() - then_ms, age);
    table_put(table, age);
}

static void put_sandbox_row(struct table *table, const json_t *sandbox)
{
    const char *name = json_string_value(json_object_get(sandbox, "name"));
    const char *reason = api_text(json_object_get(sandbox, "state_reason"), "code");
    char memory[TEXT_SHORT_SIZE];

    text_format_mib((uint64_t)api_number(sandbox, "memory_mib"), memory);
    table_put(table, api_text(sandbox, "id"));
    table_put(table, name);
    table_printf(table, reason[0] != '\0' ? "%s (%s)" : "%s%s", api_text(sandbox, "state"), reason);
    table_put(table, api_text(sandbox, "template"));
    table_printf(table, "%" PRId64, api_number(sandbox, "vcpus"));
    table_put(table, memory);
    put_age(table, api_text(sandbox, "created_at"));
}

static int print_sandboxes(const struct cli *cli, const json_t *items)
{
    static const char *const heads[] = {"ID",   "~NAME",  "STATE", "~TEMPLATE",
                                        "CPUS", "MEMORY", "AGE"};
    _cleanup_table_ struct table *table = table_new(heads, sizeof(heads) / sizeof(heads[0]));
    const json_t *sandbox;
    size_t i;

    if (table == NULL) {
        return EXIT_STATUS_REFUSED;
    }
    json_array_foreach(items, i, sandbox) {
        put_sandbox_row(table, sandbox);
    }
    return cli_print_table(cli, table);
}

static int print_ids(const json_t *items)
{
    _cleanup_buf_ struct buf out = buf_make(0);
    const json_t *item;
    size_t i;

    json_array_foreach(items, i, item) {
        buf_printf(&out, "%s\n", api_text(item, "id"));
    }
    return cli_print(&out);
}

int cmd_ls(struct cli *cli, const struct args *args)
{
    _cleanup_buf_ struct buf path = buf_make(REST_REQUEST_SIZE - 200);
    _cleanup_json_ json_t *list = NULL;
    const char *limit = args_get(args, "limit");
    struct error err = {0};
    uint64_t max = 0;
    const json_t *items;

    buf_put_str(&path, "/v1/sandboxes");
    if (limit != NULL && text_parse_count(limit, "limit", 1000000, &max, &err) == 0 && max == 0) {
        (void)error_set(&err, EINVAL, "--limit must be at least 1");
    }
    if (err.errnum != 0 || put_filters(&path, args, &err) < 0) {
        return cli_fail_usage(cli, &err);
    }
    if (cli_connect(cli, &err) < 0 || api_list(cli, buf_str(&path), max, &list, &err) < 0) {
        return cli_fail(cli, &err);
    }
    items = json_object_get(list, "items");
    if (cli->json) {
        return cli_print_json(list);
    }
    if (args_has(args, "quiet")) {
        return print_ids(items);
    }
    if (json_array_size(items) == 0 && cli->out_is_terminal) {
        cli_progress(cli, "no sandboxes; `space create` makes one");
        return EXIT_STATUS_DONE;
    }
    return print_sandboxes(cli, items);
}

static void put_value(struct buf *out, const json_t *value)
{
    if (json_is_string(value)) {
        text_put_safe(out, span_of_str(json_string_value(value)));
    } else if (value == NULL || json_is_null(value)) {
        buf_put_str(out, "-");
    } else {
        _cleanup_free_ char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

        if (text != NULL) {
            text_put_safe(out, span_of_str(text));
        }
    }
}

/* "metadata.team", "env_names" and so on, one line each, in the API's order. */
static int print_record(const json_t *record)
{
    _cleanup_buf_ struct buf out = buf_make(0);
    const char *key;
    const char *inner_key;
    json_t *value;
    json_t *inner;

    json_object_foreach((json_t *)(uintptr_t)record, key, value) {
        if (!json_is_object(value)) {
            buf_printf(&out, "%-32s ", key);
            put_value(&out, value);
            buf_put_str(&out, "\n");
            continue;
        }
        json_object_foreach(value, inner_key, inner) {
            buf_printf(&out, "%s.%-*s ", key, (int)(31 - (strlen(key) < 31 ? strlen(key) : 30)),
                       inner_key);
            put_value(&out, inner);
            buf_put_str(&out, "\n");
        }
    }
    return cli_print(&out);
}

int cmd_show(struct cli *cli, const struct args *args)
{
    _cleanup_json_ json_t *sandbox = NULL;
    struct error err = {0};
    char id[ID_SIZE];
    char path[REST_REQUEST_SIZE];

    if (cli_connect(cli, &err) < 0 || api_find_sandbox(cli, args_word(args, 0), id, &err) < 0) {
        return cli_fail(cli, &err);
    }
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", id);
    if (api_get(cli, path, &sandbox, &err) < 0) {
        return cli_fail(cli, &err);
    }
    return cli->json ? cli_print_json(sandbox) : print_record(sandbox);
}

/* Every word is tried, whatever became of the ones before it. */
static int remove_one(struct cli *cli, const char *word, json_t *answers)
{
    _cleanup_json_ json_t *answer = NULL;
    struct error err = {0};
    char id[ID_SIZE];
    char path[REST_REQUEST_SIZE];

    if (api_find_sandbox(cli, word, id, &err) < 0) {
        return cli_fail(cli, &err);
    }
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s?wait=60", id);
    if (api_send(cli, "DELETE", path, NULL, &answer, &err) < 0 ||
        api_wait_operation(cli, answer, &err) < 0) {
        return cli_fail(cli, &err);
    }
    (void)json_array_append(answers, answer);
    if (!cli->json) {
        cli_progress(cli, "removed %s", id);
    }
    return EXIT_STATUS_DONE;
}

int cmd_rm(struct cli *cli, const struct args *args)
{
    _cleanup_json_ json_t *answers = json_array();
    struct error err = {0};
    int status = EXIT_STATUS_DONE;

    if (cli_connect(cli, &err) < 0) {
        return cli_fail(cli, &err);
    }
    if (!args_has(args, "yes") && cli->err_is_terminal && isatty(STDIN_FILENO) == 1 &&
        !cli_confirm(cli, "Delete %s%s with everything in it?", args_word(args, 0),
                     args->word_count > 1 ? " and the others" : "")) {
        cli_note("nothing was deleted");
        return EXIT_STATUS_REFUSED;
    }
    for (size_t i = 0; i < args->word_count; i++) {
        int r = remove_one(cli, args->words[i], answers);

        status = r != EXIT_STATUS_DONE ? r : status;
    }
    if (cli->json) {
        (void)cli_print_answers(answers, args->word_count);
    }
    return status;
}
