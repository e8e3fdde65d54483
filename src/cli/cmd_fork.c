/* `space fork`. */
#include <errno.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/id.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/rest.h"
#include "cli/text.h"

#define COUNT_MAX 100

static json_t *make_body(const struct args *args, struct error *err)
{
    const char *text = args_get(args, "count");
    uint64_t count = 1;
    json_t *body;

    if (text != NULL && text_parse_count(text, "count", COUNT_MAX, &count, err) < 0) {
        return NULL;
    }
    if (count == 0) {
        (void)error_set(err, EINVAL, "--count must be 1 or more");
        return NULL;
    }
    body = api_create_body(args, NULL, err);
    (void)json_object_set_new(body, "count", json_integer((json_int_t)count));
    return body;
}

/* The ids of those that are there; the others are named beside them. */
static int print_children(const struct cli *cli, const json_t *answer)
{
    const json_t *operation = json_object_get(answer, "operation");
    const json_t *children = json_object_get(json_object_get(operation, "result"), "children");
    _cleanup_buf_ struct buf out = buf_make(0);
    int status = EXIT_STATUS_DONE;
    const json_t *child;
    size_t i;
    int r;

    json_array_foreach(children, i, child) {
        const json_t *error = json_object_get(child, "error");

        if (json_is_object(error)) {
            status = EXIT_STATUS_REFUSED;
            cli_note("%s was not made: %s (%s)", api_text(child, "sandbox_id"),
                     api_text(error, "message"), api_text(error, "code"));
        } else {
            buf_printf(&out, "%s\n", api_text(child, "sandbox_id"));
        }
    }
    r = cli->json ? cli_print_json(answer) : cli_print(&out);
    return r != EXIT_STATUS_DONE ? r : status;
}

int cmd_fork(struct cli *cli, const struct args *args)
{
    struct error err = {0};
    _cleanup_json_ json_t *body = make_body(args, &err);
    _cleanup_json_ json_t *answer = NULL;
    char path[REST_REQUEST_SIZE];
    char id[ID_SIZE];

    if (body == NULL) {
        return cli_fail_usage(cli, &err);
    }
    if (cli_connect(cli, &err) < 0 || api_find_sandbox(cli, args_word(args, 0), id, &err) < 0) {
        return cli_fail(cli, &err);
    }
    cli_progress(cli, "forking %s …", args_word(args, 0));
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/fork?wait=60", id);
    if (api_send(cli, "POST", path, body, &answer, &err) < 0 ||
        api_wait_operation(cli, answer, &err) < 0) {
        return cli_fail(cli, &err);
    }
    return print_children(cli, answer);
}
