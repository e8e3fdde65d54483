/* `space version`, `space env`. */
#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/rest.h"
#include "cli/text.h"

#define VERSION_TIMEOUT_MS 3000

int cmd_version(struct cli *cli, const struct args *args)
{
    struct rest_request q = {.method = "GET", .path = "/version", .timeout_ms = VERSION_TIMEOUT_MS};
    _cleanup_json_ json_t *server = NULL;
    _cleanup_json_ json_t *document = NULL;
    _cleanup_buf_ struct buf out = buf_make(0);
    struct error err = {0};
    int r = cli_connect(cli, &err);

    (void)args;
    if (r == 0) {
        r = rest_call(cli->rest, &q, &server, NULL, &err);
    }
    if (cli->json) {
        document = json_pack("{s:s, s:o}", "client", SPACE_VERSION, "server",
                             server != NULL ? json_incref(server) : json_null());
        return cli_print_json(document);
    }
    buf_printf(&out, "client  %s\n", SPACE_VERSION);
    if (r == 0) {
        buf_printf(&out, "server  %s (API %s) at %s\n", api_text(server, "version"),
                   api_text(server, "api"), rest_url(cli->rest));
    } else {
        buf_printf(&out, "server  none: %s\n", err.message);
    }
    return cli_print(&out);
}

int cmd_env(struct cli *cli, const struct args *args)
{
    _cleanup_buf_ struct buf out = buf_make(0);
    struct error err = {0};

    (void)args;
    if (cli_connect(cli, &err) < 0) {
        return cli_fail(cli, &err);
    }
    if (cli->config.key[0] == '\0') {
        (void)error_set_code(&err, ERROR_UNAUTHORIZED, NULL, "there is no key to print");
        return cli_fail(cli, &err);
    }
    buf_put_str(&out, "export SPACE_URL=");
    text_put_shell_word(&out, cli->config.url);
    buf_put_str(&out, "\nexport SPACE_API_KEY=");
    text_put_shell_word(&out, cli->config.key);
    buf_put_str(&out, "\n");
    return cli_print(&out);
}
