/* Checks of what runs: daemons, their age, the port, readiness. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/doctor.h"
#include "cli/installation.h"
#include "cli/nodes.h"
#include "cli/readiness.h"
#include "cli/rest.h"

static bool check_daemon(struct doctor *d, enum daemon_id id)
{
    struct proc_ref ref;
    const char *stale;

    if (installation_find_daemon(d->cli, id, &ref) < 0) {
        doctor_put(d, daemon_name(id), DOCTOR_MISSING, "space up starts it", "not running");
        return false;
    }
    stale = installation_stale_reason(d->cli, id, &ref);
    if (stale != NULL) {
        doctor_put(d, daemon_name(id), DOCTOR_DEGRADED, "space up restarts it",
                   "running, pid %d, but stale: %s", (int)ref.pid, stale);
    } else {
        doctor_put(d, daemon_name(id), DOCTOR_OK, NULL, "running, pid %d", (int)ref.pid);
    }
    return true;
}

static void check_port(struct doctor *d, bool api_runs)
{
    struct error err = {0};

    if (api_runs) {
        return;
    }
    if (readiness_check_port(&d->cli->settings, &err) == 0) {
        doctor_put(d, "port", DOCTOR_OK, NULL, "%s is free", d->cli->settings.api_listen);
    } else if (err.errnum == EADDRINUSE) {
        doctor_put(d, "port", DOCTOR_MISSING,
                   "ss -ltnp shows which: stop it, or set another api.listen",
                   "%s is taken by another program or installation", d->cli->settings.api_listen);
    } else {
        doctor_put(d, "port", DOCTOR_MISSING, "correct api.listen", "%s", err.message);
    }
}

static void check_listen(struct doctor *d)
{
    const struct settings *s = &d->cli->settings;

    if (config_is_unprotected(s)) {
        doctor_put(d, "listen", DOCTOR_DEGRADED,
                   "set api.tls_certificate and api.tls_key, or api.listen = 127.0.0.1:PORT",
                   "%s without TLS: keys and output can be read on the way", s->api_listen);
    } else {
        doctor_put(d, "listen", DOCTOR_OK, NULL, "%s%s", s->api_listen,
                   s->api_tls_certificate[0] != '\0' ? " with TLS" : ", this machine only");
    }
}

static void check_ready(struct doctor *d)
{
    char url[CONFIG_URL_SIZE];
    char waiting[200] = "";
    struct error err = {0};
    int r = config_installation_url(&d->cli->settings, url, &err);

    if (r == 0) {
        r = readiness_ask(d->cli, url, waiting, &err);
    }
    if (r == 0) {
        doctor_put(d, "readiness", DOCTOR_OK, NULL, "%s is ready", url);
    } else if (r == -EAGAIN) {
        doctor_put(d, "readiness", DOCTOR_DEGRADED, "wait a moment; the logs tell what goes on",
                   "%s waits for %s", url, waiting[0] != '\0' ? waiting : "something");
    } else {
        doctor_put(d, "readiness", DOCTOR_MISSING, "space up", "%s", err.message);
    }
}

static void check_node_answers(struct doctor *d)
{
    struct error err = {0};
    json_t *node = NULL;

    if (d->node != NULL || geteuid() != 0) {
        return;
    }
    if (installation_ask_node(d->cli, &node, &err) < 0) {
        doctor_put(d, "node", DOCTOR_MISSING, "the log of space-node tells why", "%s", err.message);
    }
    json_decref(node);
}

/* What waits, and why. */
static void check_objects(struct doctor *d)
{
    const json_t *objects = json_object_get(d->node, "objects");
    const char *problem = api_text(objects, "problem");

    if (d->node == NULL) {
        return;
    }
    if (!json_is_object(objects)) {
        doctor_put(d, "objects", DOCTOR_OK, NULL,
                   "no object store: what is suspended is on the disk of this machine only");
    } else if (problem[0] != '\0') {
        doctor_put(d, "objects", DOCTOR_DEGRADED,
                   "make the store reachable, or room in it, or correct objects.* in the settings; "
                   "what waits is stored then",
                   "%" PRId64 " snapshot(s) to store and %" PRId64 " to remove wait since %s: %s",
                   api_number(objects, "waiting"), api_number(objects, "removals"),
                   api_text(objects, "problem_since"), problem);
    } else {
        doctor_put(d, "objects", DOCTOR_OK, NULL, "%s, %" PRId64 " snapshot(s) to store",
                   api_text(objects, "store"), api_number(objects, "waiting"));
    }
}

/* Silence when the API does not tell: that is what readiness and admin key are checked for. */
static void check_drain(struct doctor *d)
{
    _cleanup_json_ json_t *nodes = NULL;
    const json_t *node;
    size_t i;

    if (nodes_ask_here(d->cli, &nodes, NULL) < 0) {
        return;
    }
    json_array_foreach(nodes, i, node) {
        _cleanup_buf_ struct buf text = buf_make(0);

        if (nodes_put_drain(&text, node)) {
            doctor_put(d, "drain", DOCTOR_DEGRADED,
                       "space node undrain, when the maintenance is over", "%s", buf_str(&text));
        } else {
            doctor_put(d, "drain", DOCTOR_OK, NULL, "node %s is not drained",
                       api_text(node, "name"));
        }
    }
}

void doctor_check_daemons(struct doctor *d)
{
    bool node_runs;
    bool api_runs;

    if (!d->cli->has_settings) {
        return;
    }
    if (!installation_uses_systemd(d->cli)) {
        (void)check_daemon(d, DAEMON_SUPERVISOR);
    }
    node_runs = check_daemon(d, DAEMON_NODE);
    api_runs = check_daemon(d, DAEMON_API);
    check_port(d, api_runs);
    check_listen(d);
    if (node_runs) {
        check_node_answers(d);
        check_objects(d);
    }
    if (api_runs) {
        check_ready(d);
        check_drain(d);
    }
}
