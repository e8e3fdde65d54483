/* `space forward`: ports of a sandbox on this machine. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "cli/api.h"
#include "cli/attach.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/forward.h"
#include "cli/rest.h"

/* "8080" or "9000:8080" (0: any free port). */
static int parse_port(const char *text, struct forward_port *ret, struct error *err)
{
    struct span all = span_of_str(text);
    size_t colon = span_find(all, 0, ':');
    struct span local = span_head(all, colon);
    struct span remote = colon < all.n ? span_skip(all, colon + 1) : all;
    uint64_t l;
    uint64_t r;

    if (span_parse_u64(local, UINT16_MAX, &l) < 0 || span_parse_u64(remote, UINT16_MAX, &r) < 0 ||
        r == 0) {
        return error_set(err, EINVAL, "%.40s is no port; it is PORT or LOCAL:PORT, 1 to 65535",
                         text);
    }
    *ret = (struct forward_port){.local = (uint16_t)l, .remote = (uint16_t)r, .listen_fd = -1};
    return 0;
}

static int parse_ports(struct forward *f, const struct args *args, struct error *err)
{
    if (args->word_count - 1 > FORWARD_PORTS_MAX) {
        return error_set(err, EINVAL, "at most %d ports", FORWARD_PORTS_MAX);
    }
    for (size_t i = 1; i < args->word_count; i++) {
        if (parse_port(args->words[i], &f->ports[f->port_count], err) < 0) {
            return -EINVAL;
        }
        f->port_count++;
    }
    return 0;
}

/* Addresses on stdout, one a line; for people what they lead to. */
static int print_ports(const struct cli *cli, const struct forward *f)
{
    _cleanup_buf_ struct buf out = buf_make(0);
    json_t *items = json_array();
    int printed;

    for (size_t i = 0; i < f->port_count; i++) {
        const struct forward_port *p = &f->ports[i];

        (void)json_array_append_new(
            items, json_pack("{s:s, s:i}", "address", p->address, "port", (int)p->remote));
        buf_printf(&out, "%s\n", p->address);
        cli_progress(cli, "%s leads to port %u of %s; Ctrl-C ends it", p->address,
                     (unsigned int)p->remote, f->sandbox_word);
    }
    if (cli->json) {
        _cleanup_json_ json_t *document = json_pack("{s:o}", "items", items);

        return cli_print_json(document);
    }
    json_decref(items);
    printed = cli_print(&out);
    return printed;
}

/* A port may begin to listen later; that nothing does now is worth a word. */
static void warn_of_silent_ports(struct cli *cli, const struct forward *f)
{
    for (size_t i = 0; i < f->port_count; i++) {
        _cleanup_json_ json_t *found = NULL;
        struct error why = {0};
        char path[REST_REQUEST_SIZE];

        (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports/%u", f->sandbox_id,
                       (unsigned int)f->ports[i].remote);
        if (api_get(cli, path, &found, &why) < 0 && why.code == ERROR_NOT_FOUND) {
            cli_note("space: nothing listens on port %u of %s yet",
                     (unsigned int)f->ports[i].remote, f->sandbox_word);
        }
    }
}

static void close_ports(struct forward *f)
{
    for (size_t i = 0; i < f->port_count; i++) {
        if (f->ports[i].listen_fd >= 0) {
            (void)close(f->ports[i].listen_fd);
        }
    }
}

static int listen_and_run(struct cli *cli, struct forward *f, struct error *err)
{
    const char *address = args_get(cli->args, "address");
    int r = 0;

    for (size_t i = 0; i < f->port_count && r == 0; i++) {
        r = forward_listen(&f->ports[i], address != NULL ? address : "127.0.0.1", err);
    }
    if (r < 0) {
        return r;
    }
    warn_of_silent_ports(cli, f);
    if (print_ports(cli, f) != EXIT_STATUS_DONE) {
        return error_set(err, EPIPE, "nobody reads the address");
    }
    return forward_run(f, err);
}

int cmd_forward(struct cli *cli, const struct args *args)
{
    _cleanup_free_ struct forward *f = calloc(1, sizeof(*f));
    _cleanup_close_ int signal_fd = -1;
    struct error err = {0};
    int r;

    if (f == NULL) {
        return EXIT_STATUS_REFUSED;
    }
    if (parse_ports(f, args, &err) < 0) {
        return cli_fail_usage(cli, &err);
    }
    f->sandbox_word = args_word(args, 0);
    if (cli_connect(cli, &err) < 0 ||
        api_find_sandbox(cli, f->sandbox_word, f->sandbox_id, &err) < 0) {
        return cli_fail(cli, &err);
    }
    signal_fd = attach_take_signals(&err);
    if (signal_fd < 0) {
        return cli_fail(cli, &err);
    }
    f->rest = cli->rest;
    f->signal_fd = signal_fd;
    rest_set_signal_fd(cli->rest, signal_fd);
    r = listen_and_run(cli, f, &err);
    rest_set_signal_fd(cli->rest, -1);
    close_ports(f);
    return r < 0 ? cli_fail(cli, &err) : 128 + r;
}
