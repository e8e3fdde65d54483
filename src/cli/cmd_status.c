/* `space status`: what runs, and what it uses. Root on the installation's machine hears it from the
 * node; everybody else from the API's open routes. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/installation.h"
#include "cli/nodes.h"
#include "cli/readiness.h"
#include "cli/rest.h"
#include "cli/text.h"

#define VERSION_TIMEOUT_MS 3000
#define LABEL_WIDTH        16

struct report {
    json_t *document;
    bool well;
};

static void put_line(struct buf *out, const char *label, const char *format, ...) _printf_(3, 4);

static void put_line(struct buf *out, const char *label, const char *format, ...)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    va_list args;

    va_start(args, format);
    buf_vprintf(&text, format, args);
    va_end(args);
    buf_printf(out, "%-*s ", LABEL_WIDTH, label);
    text_put_safe(out, buf_span(&text));
    buf_put_str(out, "\n");
}

/* --- gathering -------------------------------------------------------------------------------- */

static json_t *describe_daemon(const struct cli *cli, enum daemon_id id)
{
    struct proc_ref ref;
    const char *stale;
    char started[CLOCK_TEXT_SIZE] = "";
    int64_t started_ms;

    if (installation_find_daemon(cli, id, &ref) < 0) {
        return json_pack("{s:s, s:s, s:n, s:n, s:n}", "name", daemon_name(id), "state", "stopped",
                         "pid", "started_at", "stale");
    }
    if (proc_started_at(&ref, &started_ms) == 0) {
        clock_format(started_ms, started);
    }
    stale = installation_stale_reason(cli, id, &ref);
    return json_pack("{s:s, s:s, s:i, s:s, s:s?}", "name", daemon_name(id), "state", "running",
                     "pid", (int)ref.pid, "started_at", started, "stale", stale);
}

static void gather_daemons(const struct cli *cli, struct report *report)
{
    bool systemd = installation_uses_systemd(cli);
    json_t *daemons = json_array();

    for (int id = 0; id < DAEMON_COUNT; id++) {
        json_t *daemon;

        if (systemd && id == DAEMON_SUPERVISOR) {
            continue;
        }
        daemon = describe_daemon(cli, (enum daemon_id)id);
        if (strcmp(api_text(daemon, "state"), "running") != 0) {
            report->well = false;
        }
        (void)json_array_append_new(daemons, daemon);
    }
    (void)json_object_set_new(report->document, "supervision",
                              json_string(systemd ? "systemd" : "space-supervisor"));
    (void)json_object_set_new(report->document, "daemons", daemons);
}

static void gather_node(const struct cli *cli, struct report *report)
{
    struct error err = {0};
    json_t *node = NULL;

    if (installation_ask_node(cli, &node, &err) < 0) {
        report->well = false;
        (void)json_object_set_new(report->document, "node_error", json_string(err.message));
    }
    (void)json_object_set_new(report->document, "node", node != NULL ? node : json_null());
}

static void gather_api(struct cli *cli, struct report *report)
{
    struct rest_request q = {.method = "GET", .path = "/version", .timeout_ms = VERSION_TIMEOUT_MS};
    json_t *version = NULL;
    struct error err = {0};
    char waiting[200] = "";
    int r = readiness_ask(cli, cli->config.url, waiting, &err);

    if (rest_call(cli->rest, &q, &version, NULL, NULL) < 0) {
        version = NULL;
    }
    report->well = report->well && r == 0;
    (void)json_object_set_new(report->document, "api",
                              json_pack("{s:s, s:s, s:O?, s:s?, s:s?}", "url", cli->config.url,
                                        "state",
                                        r == 0         ? "ready"
                                        : r == -EAGAIN ? "not ready"
                                                       : "unreachable",
                                        "version", json_object_get(version, "version"),
                                        "waiting_for", r == -EAGAIN ? waiting : NULL, "error",
                                        r < 0 && r != -EAGAIN ? err.message : NULL));
    json_decref(version);
}

/* What only administrators are told; others see null. */
static void gather_nodes(const struct cli *cli, struct report *report)
{
    const json_t *api = json_object_get(report->document, "api");
    json_t *nodes = NULL;

    if (cli->config.key[0] == '\0' || strcmp(api_text(api, "state"), "unreachable") == 0 ||
        nodes_ask(cli->rest, &nodes, NULL) < 0) {
        nodes = NULL;
    }
    (void)json_object_set_new(report->document, "nodes", nodes != NULL ? nodes : json_null());
}

/* --- printing --------------------------------------------------------------------------------- */

static void print_daemons(struct buf *out, const json_t *document)
{
    const json_t *daemon;
    size_t i;

    json_array_foreach(json_object_get(document, "daemons"), i, daemon) {
        const char *stale = api_text(daemon, "stale");
        char age[TEXT_SHORT_SIZE] = "?";
        int64_t then_ms;

        if (strcmp(api_text(daemon, "state"), "running") != 0) {
            put_line(out, api_text(daemon, "name"), "stopped; `space up` starts it");
            continue;
        }
        if (clock_parse(api_text(daemon, "started_at"), &then_ms) == 0) {
            text_format_age(clock_real_ms() - then_ms, age);
        }
        put_line(out, api_text(daemon, "name"), "running, pid %" PRId64 ", for %s%s%s%s",
                 api_number(daemon, "pid"), age, stale[0] != '\0' ? "; stale: " : "", stale,
                 stale[0] != '\0' ? ", `space up` restarts it" : "");
    }
}

static void print_pools(struct buf *out, const json_t *node)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    const json_t *pool;
    size_t i;

    json_array_foreach(json_object_get(node, "pools"), i, pool) {
        buf_printf(&text, "%s: %" PRId64 " of %" PRId64 " warm%s; ", api_text(pool, "template"),
                   api_number(pool, "warm"), api_number(pool, "warm_target"),
                   json_is_true(json_object_get(pool, "filling")) ? ", filling" : "");
    }
    put_line(out, "pools", "%s%" PRId64 " prepared", buf_str(&text), api_number(node, "prepared"));
}

static void print_use(struct buf *out, const json_t *node)
{
    const json_t *memory = json_object_get(node, "memory");
    const json_t *disk = json_object_get(node, "disk");
    char a[TEXT_SHORT_SIZE];
    char b[TEXT_SHORT_SIZE];
    char c[TEXT_SHORT_SIZE];
    char d[TEXT_SHORT_SIZE];

    text_format_mib((uint64_t)api_number(memory, "admitted_mib"), a);
    text_format_mib((uint64_t)api_number(memory, "limit_mib"), b);
    text_format_mib((uint64_t)api_number(memory, "available_mib"), c);
    text_format_mib((uint64_t)api_number(memory, "total_mib"), d);
    put_line(out, "memory", "%s of %s admitted; %s of %s available", a, b, c, d);
    text_format_mib((uint64_t)api_number(disk, "free_mib"), a);
    text_format_mib((uint64_t)api_number(disk, "total_mib"), b);
    put_line(out, "disk", "%s of %s free%s", a, b,
             json_is_false(json_object_get(disk, "reflink")) ? "; no reflink: disks are copied"
                                                             : "");
}

static void print_objects(struct buf *out, const json_t *node)
{
    const json_t *objects = json_object_get(node, "objects");
    const char *problem = api_text(objects, "problem");

    if (!json_is_object(objects)) {
        return;
    }
    put_line(out, "object store", "%s; %" PRId64 " snapshot(s) to store, %" PRId64 " to remove%s%s",
             api_text(objects, "store"), api_number(objects, "waiting"),
             api_number(objects, "removals"), problem[0] != '\0' ? ": " : "", problem);
}

static void print_node(struct buf *out, const json_t *document)
{
    const json_t *node = json_object_get(document, "node");
    const json_t *environment = json_object_get(node, "environment");
    const char *reason = api_text(environment, "accelerator_reason");

    if (!json_is_object(node)) {
        if (json_object_get(document, "node_error") != NULL) {
            put_line(out, "node", "does not answer: %s", api_text(document, "node_error"));
        }
        return;
    }
    if (json_is_object(environment)) {
        const char *accelerator = api_text(environment, "accelerator");

        put_line(out, "accelerator", "%s%s%s%s", accelerator[0] != '\0' ? accelerator : "unknown",
                 reason[0] != '\0' ? " (" : "", reason, reason[0] != '\0' ? ")" : "");
        put_line(out, "environment", "%s %s, CPU %s, kernel %s", api_text(environment, "driver"),
                 api_text(environment, "vmm_version"), api_text(environment, "cpu_model"),
                 api_text(environment, "kernel"));
    }
    put_line(out, "sandboxes", "%" PRId64, api_number(node, "sandboxes"));
    print_pools(out, node);
    print_use(out, node);
    print_objects(out, node);
}

static void print_drains(struct buf *out, const json_t *document)
{
    const json_t *node;
    size_t i;

    json_array_foreach(json_object_get(document, "nodes"), i, node) {
        _cleanup_buf_ struct buf text = buf_make(0);

        if (nodes_put_drain(&text, node)) {
            put_line(out, "drain", "%s; `space node undrain` ends that", buf_str(&text));
        }
    }
}

/* Nothing runs on this machine: one sentence says it all. */
static bool is_stopped(const json_t *document)
{
    const json_t *daemons = json_object_get(document, "daemons");
    const json_t *daemon;
    size_t i;

    json_array_foreach(daemons, i, daemon) {
        if (strcmp(api_text(daemon, "state"), "running") == 0) {
            return false;
        }
    }
    return daemons != NULL &&
           strcmp(api_text(json_object_get(document, "api"), "state"), "unreachable") == 0;
}

/* The address is where this installation's API is to be, whether or not it answers. */
static void put_api(struct buf *out, const json_t *document, const json_t *api, const char *more)
{
    const char *listen = api_text(document, "listen");
    const char *url = api_text(api, "url");
    const char *version = api_text(api, "version");
    bool is_wider = url[0] != '\0' && strstr(url, listen) == NULL;

    put_line(out, "api", "%s%s%s%s%s%s%s%s%s", api_text(api, "state"), more[0] != '\0' ? ": " : "",
             more, url[0] != '\0' ? " at " : "", url, is_wider ? ", listening on " : "",
             is_wider ? listen : "", version[0] != '\0' ? ", version " : "", version);
}

static int print_report(const json_t *document)
{
    const json_t *api = json_object_get(document, "api");
    const char *more = api_text(api, "waiting_for")[0] != '\0' ? api_text(api, "waiting_for")
                                                               : api_text(api, "error");
    _cleanup_buf_ struct buf out = buf_make(0);

    if (json_object_get(document, "installation") != NULL) {
        put_line(&out, "installation", "%s (%s)", api_text(document, "installation"),
                 api_text(document, "config"));
    }
    if (api_text(document, "missing_settings")[0] != '\0') {
        put_line(&out, "settings", "missing: there is no %s",
                 api_text(document, "missing_settings"));
    }
    if (is_stopped(document)) {
        put_line(&out, "state", "stopped: no daemon runs; `sudo space up` starts them");
        return cli_print(&out);
    }
    put_api(&out, document, api, more);
    print_daemons(&out, document);
    print_drains(&out, document);
    print_node(&out, document);
    return cli_print(&out);
}

int cmd_status(struct cli *cli, const struct args *args)
{
    struct report report = {.document = json_object(), .well = true};
    _cleanup_json_ json_t *owned = report.document;
    struct error err = {0};
    int printed;

    (void)args;
    if (owned == NULL || cli_connect(cli, &err) < 0) {
        return cli_fail(cli, &err);
    }
    if (cli->has_settings && args_get(args, "url") == NULL) {
        (void)json_object_set_new(owned, "installation", json_string(cli->settings.installation));
        (void)json_object_set_new(owned, "config", json_string(cli->config_path));
        (void)json_object_set_new(owned, "listen", json_string(cli->settings.api_listen));
        gather_daemons(cli, &report);
        if (geteuid() == 0) {
            gather_node(cli, &report);
        }
    }
    if (!cli->has_settings && strcmp(cli->config.url_source, "the default") == 0) {
        (void)json_object_set_new(owned, "missing_settings", json_string(cli->config_path));
    }
    gather_api(cli, &report);
    gather_nodes(cli, &report);
    (void)json_object_set_new(owned, "healthy", json_boolean(report.well));
    printed = cli->json ? cli_print_json(owned) : print_report(owned);
    return printed == EXIT_STATUS_DONE && !report.well ? EXIT_STATUS_REFUSED : printed;
}
