#include "cli/nodes.h"

#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/rest.h"

#define ASK_TIMEOUT_MS 5000

int nodes_ask(struct rest *rest, json_t **ret_items, struct error *err)
{
    struct rest_request q = {
        .method = "GET", .path = "/v1/nodes?limit=1000", .timeout_ms = ASK_TIMEOUT_MS};
    _cleanup_json_ json_t *answer = NULL;
    json_t *items;
    int r = rest_call(rest, &q, &answer, NULL, err);

    if (r < 0) {
        return r;
    }
    items = json_object_get(answer, "items");
    if (!json_is_array(items)) {
        return error_set(err, EBADMSG, "the list of nodes in the answer has no items");
    }
    *ret_items = json_incref(items);
    return 0;
}

int nodes_ask_here(const struct cli *cli, json_t **ret_items, struct error *err)
{
    struct config config = {0};
    _cleanup_rest_ struct rest *rest = NULL;
    int r = config_installation_url(&cli->settings, config.url, err);

    if (r == 0) {
        (void)snprintf(config.ca_file, sizeof(config.ca_file), "%s",
                       cli->settings.api_tls_certificate);
        r = config_read_key_file(cli->settings.admin_key_file, config.key, err);
    }
    if (r == 0) {
        r = rest_new(&config, -1, &rest, err);
    }
    explicit_bzero(config.key, sizeof(config.key));
    return r < 0 ? r : nodes_ask(rest, ret_items, err);
}

int64_t nodes_count_live(const json_t *node)
{
    json_t *sandboxes = json_object_get(node, "sandboxes");
    int64_t count = 0;
    const char *state;
    json_t *number;

    json_object_foreach(sandboxes, state, number) {
        if (strcmp(state, "suspended") != 0 && strcmp(state, "error") != 0) {
            count += (int64_t)json_integer_value(number);
        }
    }
    return count;
}

bool nodes_put_drain(struct buf *out, const json_t *node)
{
    const char *state = api_text(node, "state");
    size_t problems = json_array_size(json_object_get(node, "problems"));

    if (strcmp(state, "drained") == 0) {
        buf_printf(out, "node %s is drained: it makes and wakes no sandbox",
                   api_text(node, "name"));
        return true;
    }
    if (strcmp(state, "draining") != 0) {
        return false;
    }
    buf_printf(out, "node %s is draining: it makes and wakes no sandbox, %" PRId64 " to go",
               api_text(node, "name"), nodes_count_live(node));
    if (problems > 0) {
        buf_printf(out, ", %zu cannot be suspended", problems);
    }
    return true;
}
