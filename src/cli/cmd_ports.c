/* `space ports`: what listens in a sandbox, who may reach it, and with which address. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/rest.h"
#include "cli/table.h"
#include "cli/text.h"

struct ports {
    struct cli *cli;
    char id[ID_SIZE];
};

static int parse_port(const char *text, const char *option, uint64_t *ret, struct error *err)
{
    if (span_parse_u64(span_of_str(text), UINT16_MAX, ret) < 0 || *ret == 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, option,
                              "%s takes a port, 1 to 65535, got %.40s", option, text);
    }
    return 0;
}

static int print_list(const struct cli *cli, const json_t *items)
{
    static const char *const heads[] = {"PORT", "ADDRESS", "PROCESS", "PUBLIC", "~URL"};
    _cleanup_table_ struct table *table = table_new(heads, sizeof(heads) / sizeof(heads[0]));
    const json_t *item;
    size_t i;

    if (table == NULL) {
        return EXIT_STATUS_REFUSED;
    }
    json_array_foreach(items, i, item) {
        const char *address = api_text(item, "address");
        const char *process = api_text(item, "process_id");
        const char *url = api_text(item, "url");

        table_printf(table, "%" PRId64, api_number(item, "port"));
        table_put(table, address[0] != '\0' ? address : NULL);
        table_put(table, process[0] != '\0' ? process : NULL);
        table_put(table, json_is_true(json_object_get(item, "public")) ? "yes" : "no");
        table_put(table, url[0] != '\0' ? url : NULL);
    }
    return cli_print_table(cli, table);
}

static int list(struct ports *p, struct error *err)
{
    _cleanup_json_ json_t *answer = NULL;
    char path[REST_REQUEST_SIZE];
    int r;

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports", p->id);
    r = api_list(p->cli, path, 0, &answer, err);
    if (r < 0) {
        return r;
    }
    return p->cli->json ? cli_print_json(answer)
                        : print_list(p->cli, json_object_get(answer, "items"));
}

static int set_public(struct ports *p, uint64_t port, bool public, struct error *err)
{
    _cleanup_json_ json_t *body = json_pack("{s:b}", "public", public ? 1 : 0);
    _cleanup_json_ json_t *answer = NULL;
    char path[REST_REQUEST_SIZE];
    int r;

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports/%" PRIu64, p->id, port);
    r = api_send(p->cli, "PUT", path, body, &answer, err);
    if (r < 0 || p->cli->json) {
        return r < 0 ? r : cli_print_json(answer);
    }
    if (public && api_text(answer, "url")[0] != '\0') {
        _cleanup_buf_ struct buf out = buf_make(0);

        buf_printf(&out, "%s\n", api_text(answer, "url"));
        return cli_print(&out);
    }
    return EXIT_STATUS_DONE;
}

/* An address with a token in it, which a browser can open. */
static int print_url(struct ports *p, uint64_t port, struct error *err)
{
    const char *ttl = args_get(p->cli->args, "ttl");
    _cleanup_json_ json_t *body = NULL;
    _cleanup_json_ json_t *answer = NULL;
    _cleanup_buf_ struct buf out = buf_make(0);
    double seconds = 0;
    int r;

    if (ttl != NULL && text_parse_seconds(ttl, "ttl", &seconds, err) < 0) {
        return -EINVAL;
    }
    body = json_pack("{s:s, s:I}", "sandbox_id", p->id, "port", (json_int_t)port);
    if (ttl != NULL) {
        (void)json_object_set_new(body, "ttl_seconds", json_integer((json_int_t)(seconds + 0.5)));
    }
    r = api_send(p->cli, "POST", "/v1/tokens", body, &answer, err);
    if (r < 0 || p->cli->json) {
        return r < 0 ? r : cli_print_json(answer);
    }
    if (api_text(answer, "url")[0] == '\0') {
        return error_set(err, EPROTO,
                         "this installation has no address for browsers: set api.domain in its "
                         "settings, or use `space forward`");
    }
    buf_printf(&out, "%s\n", api_text(answer, "url"));
    return cli_print(&out);
}

static int run(struct ports *p, struct error *err)
{
    static const char *const options[] = {"public", "private", "link"};
    const struct args *args = p->cli->args;
    const char *chosen = NULL;
    uint64_t port = 0;

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        if (args_has(args, options[i])) {
            if (chosen != NULL) {
                return error_set_code(err, ERROR_INVALID_REQUEST, "--",
                                      "--%s and --%s exclude each other", chosen, options[i]);
            }
            chosen = options[i];
        }
    }
    if (chosen != NULL) {
        char option[16];

        (void)snprintf(option, sizeof(option), "--%s", chosen);
        if (parse_port(args_get(args, chosen), option, &port, err) < 0) {
            return -EINVAL;
        }
    }
    if (cli_connect(p->cli, err) < 0 ||
        api_find_sandbox(p->cli, args_word(args, 0), p->id, err) < 0) {
        return -EIO;
    }
    if (chosen == NULL) {
        return list(p, err);
    }
    return strcmp(chosen, "link") == 0 ? print_url(p, port, err)
                                       : set_public(p, port, chosen[1] == 'u', err);
}

int cmd_ports(struct cli *cli, const struct args *args)
{
    struct ports p = {.cli = cli};
    struct error err = {0};
    int r = run(&p, &err);

    (void)args;
    if (r == -EINVAL && err.code != ERROR_INVALID_REQUEST) {
        return cli_fail_usage(cli, &err);
    }
    return r < 0 ? cli_fail(cli, &err) : r;
}
