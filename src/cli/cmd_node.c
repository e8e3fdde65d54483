/* `space node`: the nodes, drain, undrain. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/nodes.h"
#include "cli/rest.h"
#include "cli/table.h"
#include "cli/text.h"

#define NODE_WORDS   "node [ls | drain [NODE] [--wait] | undrain [NODE]]"
#define WAIT_SECONDS 10 /* of one call: progress is shown in between */

static void put_memory(struct table *table, const json_t *node)
{
    const json_t *memory = json_object_get(node, "memory");
    char admitted[TEXT_SHORT_SIZE];
    char limit[TEXT_SHORT_SIZE];

    if (!json_is_object(memory)) {
        table_put(table, "?");
        return;
    }
    text_format_mib((uint64_t)api_number(memory, "admitted_mib"), admitted);
    text_format_mib((uint64_t)api_number(memory, "limit_mib"), limit);
    table_printf(table, "%s of %s", admitted, limit);
}

static int list_nodes(struct cli *cli)
{
    static const char *const heads[] = {"NAME", "STATE", "LIVE", "SUSPENDED", "MEMORY", "PROBLEMS"};
    _cleanup_table_ struct table *table = table_new(heads, sizeof(heads) / sizeof(heads[0]));
    _cleanup_json_ json_t *list = NULL;
    struct error err = {0};
    const json_t *node;
    size_t i;

    if (table == NULL || cli_connect(cli, &err) < 0 ||
        api_list(cli, "/v1/nodes", 0, &list, &err) < 0) {
        return cli_fail(cli, &err);
    }
    if (cli->json) {
        return cli_print_json(list);
    }
    json_array_foreach(json_object_get(list, "items"), i, node) {
        bool away = json_is_false(json_object_get(node, "connected")) &&
                    strcmp(api_text(node, "state"), "away") != 0;

        table_put(table, api_text(node, "name"));
        table_printf(table, "%s%s", api_text(node, "state"), away ? ", away" : "");
        table_printf(table, "%" PRId64, nodes_count_live(node));
        table_printf(table, "%" PRId64,
                     api_number(json_object_get(node, "sandboxes"), "suspended"));
        put_memory(table, node);
        table_printf(table, "%zu", json_array_size(json_object_get(node, "problems")));
    }
    return cli_print_table(cli, table);
}

/* The named node, or the only one. */
static int find_node(struct cli *cli, const char *word, struct buf *path, struct error *err)
{
    _cleanup_json_ json_t *items = NULL;

    buf_put_str(path, "/v1/nodes");
    if (word == NULL) {
        if (nodes_ask(cli->rest, &items, err) < 0) {
            return -EREMOTEIO;
        }
        if (json_array_size(items) != 1) {
            return error_set(err, EINVAL, "which node? space node ls names %zu",
                             json_array_size(items));
        }
        word = api_text(json_array_get(items, 0), "name");
    }
    rest_put_segment(path, word);
    return buf_error(path) < 0 ? error_set(err, E2BIG, "that name is too long") : 0;
}

static void show_problems(const json_t *node)
{
    const json_t *problem;
    size_t i;

    json_array_foreach(json_object_get(node, "problems"), i, problem) {
        cli_note("       %s: %s: %s", api_text(problem, "sandbox_id"), api_text(problem, "code"),
                 api_text(problem, "message"));
    }
}

static void show_drain(const struct cli *cli, const json_t *node)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    if (nodes_put_drain(&text, node)) {
        cli_progress(cli, "%s", buf_str(&text));
    }
}

/* Reads the node until it is no longer draining. */
static int wait_drained(struct cli *cli, const char *path, json_t **node, struct error *err)
{
    char target[REST_REQUEST_SIZE];

    (void)snprintf(target, sizeof(target), "%s?wait=%d", path, WAIT_SECONDS);
    while (strcmp(api_text(*node, "state"), "draining") == 0) {
        json_t *next = NULL;
        int r;

        show_drain(cli, *node);
        r = api_get(cli, target, &next, err);
        if (r < 0) {
            return r;
        }
        json_decref(*node);
        *node = next;
    }
    return strcmp(api_text(*node, "state"), "drained") == 0
               ? 0
               : error_set(err, ECANCELED, "node %.60s was undrained meanwhile",
                           api_text(*node, "name"));
}

/* Drains or undrains; prints the record with --json, else what it came to. */
static int order(struct cli *cli, const struct args *args, const char *verb)
{
    bool waits = args_has(args, "wait") && strcmp(verb, "drain") == 0;
    _cleanup_buf_ struct buf path = buf_make(REST_REQUEST_SIZE - 32);
    _cleanup_json_ json_t *node = NULL;
    struct error err = {0};
    char target[REST_REQUEST_SIZE];

    if (args->word_count > 2) {
        (void)error_set(&err, EINVAL, "unexpected argument: space " NODE_WORDS);
        return cli_fail_usage(cli, &err);
    }
    if (cli_connect(cli, &err) < 0 || find_node(cli, args_word(args, 1), &path, &err) < 0) {
        return cli_fail(cli, &err);
    }
    (void)snprintf(target, sizeof(target), "%s/%s?wait=0", buf_str(&path), verb);
    if (api_send(cli, "POST", target, NULL, &node, &err) < 0 ||
        (waits && wait_drained(cli, buf_str(&path), &node, &err) < 0)) {
        return cli_fail(cli, &err);
    }
    if (cli->json) {
        return cli_print_json(node);
    }
    show_drain(cli, node);
    show_problems(node);
    return EXIT_STATUS_DONE;
}

int cmd_node(struct cli *cli, const struct args *args)
{
    const char *what = args_word(args, 0);
    struct error err = {0};

    if (what == NULL || (strcmp(what, "ls") == 0 && args->word_count == 1)) {
        return list_nodes(cli);
    }
    if (strcmp(what, "drain") == 0 || strcmp(what, "undrain") == 0) {
        return order(cli, args, what);
    }
    (void)error_set(&err, EINVAL, "unexpected argument %.60s: space " NODE_WORDS, what);
    return cli_fail_usage(cli, &err);
}
