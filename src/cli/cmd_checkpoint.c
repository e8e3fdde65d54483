/* `space checkpoint`, `space rollback`. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/rest.h"
#include "cli/table.h"
#include "cli/text.h"

#define CHECKPOINT_WORDS "checkpoint create SANDBOX | ls [SANDBOX] | rm CHECKPOINT…"

static bool asks(const struct cli *cli, const struct args *args)
{
    return !args_has(args, "yes") && cli->err_is_terminal && isatty(STDIN_FILENO) == 1;
}

static int usage(struct cli *cli)
{
    struct error err = {0};

    (void)error_set(&err, EINVAL, "unexpected arguments: space " CHECKPOINT_WORDS);
    return cli_fail_usage(cli, &err);
}

/* The operation's end: its result is the checkpoint. */
static int wait_result(struct cli *cli, json_t *answer, json_t **ret, struct error *err)
{
    char path[REST_REQUEST_SIZE];

    if (api_wait_operation(cli, answer, err) < 0) {
        return -EREMOTEIO;
    }
    (void)snprintf(path, sizeof(path), "/v1/operations/%s",
                   api_text(json_object_get(answer, "operation"), "id"));
    return api_get(cli, path, ret, err);
}

static int create(struct cli *cli, const struct args *args)
{
    const char *name = args_get(args, "name");
    _cleanup_json_ json_t *body =
        json_pack("{s:s*, s:b}", "name", name, "memory", !args_has(args, "disk-only"));
    _cleanup_json_ json_t *answer = NULL;
    _cleanup_json_ json_t *operation = NULL;
    _cleanup_buf_ struct buf out = buf_make(0);
    struct error err = {0};
    char path[REST_REQUEST_SIZE];
    char id[ID_SIZE];

    if (args->word_count != 2) {
        return usage(cli);
    }
    if (cli_connect(cli, &err) < 0 || api_find_sandbox(cli, args_word(args, 1), id, &err) < 0) {
        return cli_fail(cli, &err);
    }
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/checkpoints?wait=60", id);
    if (api_send(cli, "POST", path, body, &answer, &err) < 0 ||
        wait_result(cli, answer, &operation, &err) < 0) {
        return cli_fail(cli, &err);
    }
    if (cli->json) {
        return cli_print_json(json_object_get(operation, "result"));
    }
    buf_printf(&out, "%s\n", api_text(json_object_get(operation, "result"), "id"));
    return cli_print(&out);
}

/* The list of one sandbox, or of all. */
static int put_list_path(struct cli *cli, const char *sandbox, struct buf *path, struct error *err)
{
    char id[ID_SIZE];
    int r = 0;

    buf_put_str(path, "/v1/checkpoints");
    if (sandbox == NULL) {
        return 0;
    }
    r = api_find_sandbox(cli, sandbox, id, err);
    if (r == 0) {
        rest_put_query(path, "sandbox_id", id);
    } else if (err->code == ERROR_NOT_FOUND) {
        return error_set_code(err, ERROR_NOT_FOUND, "sandbox",
                              "no sandbox is called %.60s; `space checkpoint ls` lists those of "
                              "deleted ones too",
                              sandbox);
    }
    return r;
}

static int list(struct cli *cli, const struct args *args)
{
    static const char *const heads[] = {"ID", "NAME", "SANDBOX", "MEMORY", "SIZE", "CREATED"};
    _cleanup_table_ struct table *table = table_new(heads, sizeof(heads) / sizeof(heads[0]));
    _cleanup_json_ json_t *items = NULL;
    _cleanup_buf_ struct buf path = buf_make(REST_REQUEST_SIZE);
    struct error err = {0};
    const json_t *item;
    size_t i;

    if (args->word_count > 2) {
        return usage(cli);
    }
    if (table == NULL || cli_connect(cli, &err) < 0 ||
        put_list_path(cli, args_word(args, 1), &path, &err) < 0 ||
        api_list(cli, buf_str(&path), 0, &items, &err) < 0) {
        return cli_fail(cli, &err);
    }
    if (cli->json) {
        return cli_print_json(items);
    }
    json_array_foreach(json_object_get(items, "items"), i, item) {
        const char *name = api_text(item, "name");
        char size[TEXT_SHORT_SIZE];

        text_format_mib((uint64_t)api_number(item, "size_bytes") / 1048576U, size);
        table_put(table, api_text(item, "id"));
        table_put(table, name[0] != '\0' ? name : NULL);
        table_put(table, api_text(item, "sandbox_id"));
        table_put(table, json_is_true(json_object_get(item, "memory")) ? "yes" : "no");
        table_put(table, size);
        table_put(table, api_text(item, "created_at"));
    }
    return cli_print_table(cli, table);
}

static int remove_one(struct cli *cli, const char *word, json_t *answers)
{
    _cleanup_json_ json_t *answer = NULL;
    struct error err = {0};
    char path[REST_REQUEST_SIZE];
    char id[ID_SIZE];

    if (api_find_checkpoint(cli, word, NULL, id, &err) < 0) {
        return cli_fail(cli, &err);
    }
    (void)snprintf(path, sizeof(path), "/v1/checkpoints/%s", id);
    if (api_send(cli, "DELETE", path, NULL, &answer, &err) < 0) {
        return cli_fail(cli, &err);
    }
    (void)json_array_append(answers, answer);
    if (!cli->json) {
        cli_progress(cli, "deleted %s", id);
    }
    return EXIT_STATUS_DONE;
}

/* Every word is tried, whatever became of the ones before it. */
static int remove_all(struct cli *cli, const struct args *args)
{
    _cleanup_json_ json_t *answers = json_array();
    struct error err = {0};
    int status = EXIT_STATUS_DONE;

    if (args->word_count < 2) {
        return usage(cli);
    }
    if (asks(cli, args) && !cli_confirm(cli, "Delete %s%s?", args_word(args, 1),
                                        args->word_count > 2 ? " and the others" : "")) {
        cli_note("nothing was deleted");
        return EXIT_STATUS_REFUSED;
    }
    if (cli_connect(cli, &err) < 0) {
        return cli_fail(cli, &err);
    }
    for (size_t i = 1; i < args->word_count; i++) {
        int r = remove_one(cli, args->words[i], answers);

        status = r != EXIT_STATUS_DONE ? r : status;
    }
    if (cli->json) {
        (void)cli_print_answers(answers, args->word_count - 1);
    }
    return status;
}

int cmd_checkpoint(struct cli *cli, const struct args *args)
{
    const char *word = args_word(args, 0);

    if (strcmp(word, "create") == 0) {
        return create(cli, args);
    }
    if (strcmp(word, "ls") == 0) {
        return list(cli, args);
    }
    return strcmp(word, "rm") == 0 ? remove_all(cli, args) : usage(cli);
}

int cmd_rollback(struct cli *cli, const struct args *args)
{
    _cleanup_json_ json_t *body = NULL;
    _cleanup_json_ json_t *answer = NULL;
    struct error err = {0};
    char path[REST_REQUEST_SIZE];
    char checkpoint[ID_SIZE];
    char id[ID_SIZE];

    /* Found before it is asked about. */
    if (cli_connect(cli, &err) < 0 || api_find_sandbox(cli, args_word(args, 0), id, &err) < 0 ||
        api_find_checkpoint(cli, args_word(args, 1), id, checkpoint, &err) < 0) {
        return cli_fail(cli, &err);
    }
    if (asks(cli, args) && !cli_confirm(cli, "Put %s back to %s? What it did since is lost.",
                                        args_word(args, 0), args_word(args, 1))) {
        cli_note("nothing was changed");
        return EXIT_STATUS_REFUSED;
    }
    body = json_pack("{s:s}", "checkpoint_id", checkpoint);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/rollback?wait=60", id);
    if (body == NULL || api_send(cli, "POST", path, body, &answer, &err) < 0 ||
        api_wait_operation(cli, answer, &err) < 0) {
        return cli_fail(cli, &err);
    }
    if (cli->json) {
        return cli_print_json(answer);
    }
    cli_progress(cli, "rolled back %s", id);
    return EXIT_STATUS_DONE;
}
