#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "base/buf.h"
#include "cli/api.h"
#include "cli/bundle.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/doctor.h"
#include "cli/installation.h"
#include "cli/rest.h"
#include "cli/text.h"

static const char *const status_names[] = {
    [DOCTOR_OK] = "ok",
    [DOCTOR_DEGRADED] = "degraded",
    [DOCTOR_MISSING] = "missing",
};

void doctor_put(struct doctor *d,
                const char *name,
                enum doctor_status status,
                const char *remedy,
                const char *format,
                ...)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    _cleanup_buf_ struct buf safe = buf_make(0);
    _cleanup_buf_ struct buf todo = buf_make(0);
    va_list args;

    va_start(args, format);
    buf_vprintf(&text, format, args);
    va_end(args);
    text_put_safe(&safe, buf_span(&text));
    /* "setup/…" names a script by where it is installed. */
    if (remedy != NULL && strncmp(remedy, "setup/", 6) == 0) {
        buf_printf(&todo, "%s/", d->cli->libexec);
    }
    buf_put_str(&todo, remedy != NULL ? remedy : "");
    d->missing += status == DOCTOR_MISSING ? 1 : 0;
    d->degraded += status == DOCTOR_DEGRADED ? 1 : 0;
    (void)json_array_append_new(
        d->checks, json_pack("{s:s, s:s, s:s, s:s?}", "name", name, "status", status_names[status],
                             "message", buf_str(&safe), "remedy",
                             status == DOCTOR_OK || remedy == NULL ? NULL : buf_str(&todo)));
}

void doctor_examine(struct doctor *d)
{
    d->checks = json_array();
    if (geteuid() == 0 && d->cli->has_settings &&
        installation_ask_node(d->cli, &d->node, NULL) < 0) {
        d->node = NULL; /* a check of its own says so */
    }
    doctor_check_machine(d);
    doctor_check_host_features(d);
    doctor_check_files(d);
    doctor_check_daemons(d);
}

void doctor_done(struct doctor *d)
{
    json_decref(TAKE(d->checks));
    json_decref(TAKE(d->node));
}

static json_t *make_document(const struct doctor *d)
{
    return json_pack("{s:s, s:O, s:i, s:i}", "version", SPACE_VERSION, "checks", d->checks,
                     "missing", (int)d->missing, "degraded", (int)d->degraded);
}

static int print_checks(const struct doctor *d)
{
    _cleanup_buf_ struct buf out = buf_make(0);
    const json_t *check;
    size_t i;

    json_array_foreach(d->checks, i, check) {
        const char *remedy = api_text(check, "remedy");

        buf_printf(&out, "%-9s %-18s %s\n", api_text(check, "status"), api_text(check, "name"),
                   api_text(check, "message"));
        if (remedy[0] != '\0') {
            buf_printf(&out, "%-9s %-18s remedy: %s\n", "", "", remedy);
        }
    }
    if (d->missing + d->degraded == 0) {
        buf_put_str(&out, "everything is well\n");
    } else {
        buf_printf(&out, "%u missing, %u degraded\n", d->missing, d->degraded);
    }
    return cli_print(&out);
}

int cmd_doctor(struct cli *cli, const struct args *args)
{
    const char *bundle = args_get(args, "bundle");
    _cleanup_(doctor_done) struct doctor d = {.cli = cli};
    _cleanup_json_ json_t *document = NULL;
    struct error err = {0};
    int printed;

    if (bundle != NULL &&
        (cli_need_settings(cli, &err) < 0 || bundle_check_place(bundle, &err) < 0)) {
        return cli_fail(cli, &err);
    }
    doctor_examine(&d);
    document = make_document(&d);
    printed = cli->json ? cli_print_json(document) : print_checks(&d);
    if (bundle != NULL) {
        if (bundle_write(cli, document, bundle, &err) < 0) {
            return cli_fail(cli, &err);
        }
        cli_note("wrote %s; look through it before you send it to anybody", bundle);
    }
    return printed == EXIT_STATUS_DONE && d.missing > 0 ? EXIT_STATUS_REFUSED : printed;
}
