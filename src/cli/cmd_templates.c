/* `space templates`. */
#include <errno.h>
#include <inttypes.h>
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

#define TEMPLATE_WORDS                                                                             \
    "templates [ls [NAME] | create NAME --checkpoint CHECKPOINT | rm NAME[@VERSION]…]"

static int usage(struct cli *cli)
{
    struct error err = {0};

    (void)error_set(&err, EINVAL, "unexpected arguments: space " TEMPLATE_WORDS);
    return cli_fail_usage(cli, &err);
}

static int print_templates(const struct cli *cli, const json_t *items)
{
    static const char *const heads[] = {"NAME", "VERSION", "CPUS", "MEMORY",
                                        "DISK", "USER",    "FROM", "CREATED"};
    _cleanup_table_ struct table *table = table_new(heads, sizeof(heads) / sizeof(heads[0]));
    const json_t *row;
    size_t i;

    if (table == NULL) {
        return EXIT_STATUS_REFUSED;
    }
    json_array_foreach(items, i, row) {
        char memory[TEXT_SHORT_SIZE];
        char disk[TEXT_SHORT_SIZE];

        text_format_mib((uint64_t)api_number(row, "memory_mib"), memory);
        text_format_mib((uint64_t)api_number(row, "disk_mib"), disk);
        table_put(table, api_text(row, "name"));
        table_put(table, api_text(row, "version"));
        table_printf(table, "%" PRId64, api_number(row, "vcpus"));
        table_put(table, memory);
        table_put(table, disk);
        table_put(table, api_text(row, "user"));
        table_put(table, json_is_true(json_object_get(row, "memory")) ? "memory"
                         : api_text(row, "checkpoint_id")[0] != '\0'  ? "disk"
                                                                      : "set-up");
        table_printf(table, "%.10s", api_text(row, "created_at"));
    }
    return cli_print_table(cli, table);
}

/* Of all names the current version, or all versions of one. */
static int list(struct cli *cli, const char *name)
{
    _cleanup_json_ json_t *answer = NULL;
    struct error err = {0};
    char path[REST_REQUEST_SIZE];

    if (name != NULL && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") != strlen(name)) {
        (void)error_set(&err, EINVAL, "%.70s is no template's name", name);
        return cli_fail_usage(cli, &err);
    }
    (void)snprintf(path, sizeof(path), "/v1/templates%s%s", name != NULL ? "?name=" : "",
                   name != NULL ? name : "");
    if (cli_connect(cli, &err) < 0 || api_list(cli, path, 0, &answer, &err) < 0) {
        return cli_fail(cli, &err);
    }
    return cli->json ? cli_print_json(answer)
                     : print_templates(cli, json_object_get(answer, "items"));
}

static int show(struct cli *cli, const char *name)
{
    _cleanup_buf_ struct buf path = buf_make(REST_REQUEST_SIZE);
    _cleanup_json_ json_t *answer = NULL;
    _cleanup_json_ json_t *items = NULL;
    struct error err = {0};

    buf_put_str(&path, "/v1/templates");
    rest_put_segment(&path, name);
    if (buf_error(&path) != 0) {
        (void)error_set(&err, E2BIG, "that name is too long");
        return cli_fail(cli, &err);
    }
    if (cli_connect(cli, &err) < 0 || api_get(cli, buf_str(&path), &answer, &err) < 0) {
        return cli_fail(cli, &err);
    }
    items = json_pack("[O]", answer);
    return cli->json ? cli_print_json(answer) : print_templates(cli, items);
}

static int create(struct cli *cli, const struct args *args)
{
    const char *checkpoint = args_get(args, "checkpoint");
    _cleanup_json_ json_t *body = NULL;
    _cleanup_json_ json_t *answer = NULL;
    _cleanup_json_ json_t *operation = NULL;
    _cleanup_buf_ struct buf out = buf_make(0);
    struct error err = {0};
    char path[REST_REQUEST_SIZE];
    char id[ID_SIZE];
    const json_t *made;

    if (args->word_count != 2) {
        return usage(cli);
    }
    if (checkpoint == NULL) {
        (void)error_set(&err, EINVAL, "from what? --checkpoint CHECKPOINT");
        return cli_fail_usage(cli, &err);
    }
    if (cli_connect(cli, &err) < 0 || api_find_checkpoint(cli, checkpoint, NULL, id, &err) < 0) {
        return cli_fail(cli, &err);
    }
    body = json_pack("{s:s, s:s}", "name", args_word(args, 1), "checkpoint_id", id);
    if (api_send(cli, "POST", "/v1/templates?wait=60", body, &answer, &err) < 0 ||
        api_wait_operation(cli, answer, &err) < 0) {
        return cli_fail(cli, &err);
    }
    (void)snprintf(path, sizeof(path), "/v1/operations/%s",
                   api_text(json_object_get(answer, "operation"), "id"));
    if (api_get(cli, path, &operation, &err) < 0) {
        return cli_fail(cli, &err);
    }
    made = json_object_get(operation, "result");
    if (cli->json) {
        return cli_print_json(made);
    }
    buf_printf(&out, "%s@%s\n", api_text(made, "name"), api_text(made, "version"));
    return cli_print(&out);
}

static int remove_one(struct cli *cli, const char *name, json_t *removed)
{
    _cleanup_buf_ struct buf path = buf_make(REST_REQUEST_SIZE);
    struct error err = {0};

    buf_put_str(&path, "/v1/templates");
    rest_put_segment(&path, name);
    if (buf_error(&path) != 0) {
        (void)error_set(&err, E2BIG, "that name is too long");
        return cli_fail(cli, &err);
    }
    if (api_send(cli, "DELETE", buf_str(&path), NULL, NULL, &err) < 0) {
        return cli_fail(cli, &err);
    }
    (void)json_array_append_new(removed, json_string(name));
    if (!cli->json) {
        cli_progress(cli, "removed %s", name);
    }
    return EXIT_STATUS_DONE;
}

/* Every word is tried, whatever became of the ones before it. */
static int remove_all(struct cli *cli, const struct args *args)
{
    bool asks = !args_has(args, "yes") && cli->err_is_terminal && isatty(STDIN_FILENO) == 1;
    _cleanup_json_ json_t *removed = json_array();
    _cleanup_json_ json_t *document = NULL;
    struct error err = {0};
    int status = EXIT_STATUS_DONE;

    if (args->word_count < 2) {
        return usage(cli);
    }
    if (asks && !cli_confirm(cli, "Remove %s%s?", args_word(args, 1),
                             args->word_count > 2 ? " and the others" : "")) {
        cli_note("nothing was removed");
        return EXIT_STATUS_REFUSED;
    }
    if (cli_connect(cli, &err) < 0) {
        return cli_fail(cli, &err);
    }
    for (size_t i = 1; i < args->word_count; i++) {
        int r = remove_one(cli, args->words[i], removed);

        status = r != EXIT_STATUS_DONE ? r : status;
    }
    if (cli->json) {
        document = json_pack("{s:O}", "removed", removed);
        (void)cli_print_json(document);
    }
    return status;
}

int cmd_templates(struct cli *cli, const struct args *args)
{
    const char *word = args_word(args, 0);

    if (word == NULL) {
        return list(cli, NULL);
    }
    if (strcmp(word, "create") == 0) {
        return create(cli, args);
    }
    if (strcmp(word, "rm") == 0) {
        return remove_all(cli, args);
    }
    if (args->word_count > 1 + (strcmp(word, "ls") == 0)) {
        return usage(cli);
    }
    return strcmp(word, "ls") == 0 ? list(cli, args_word(args, 1)) : show(cli, word);
}
