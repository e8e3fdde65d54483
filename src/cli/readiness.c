#include "cli/readiness.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/clock.h"
#include "cli/api.h"
#include "cli/child.h"
#include "cli/cli.h"
#include "cli/installation.h"
#include "cli/rest.h"

#define ASK_TIMEOUT_MS 5000
#define FIRST_PAUSE_MS 20
#define LAST_PAUSE_MS  250
#define DEATHS_LIMIT   4 /* of one daemon, while we wait */
#define LOG_TAIL_LINES "12"
#define LOG_TIMEOUT_MS 10000
#define WAITING_TEXT   200

static int split_listen(const char *listen_text, char *host, size_t host_size, char port[8])
{
    const char *colon = strrchr(listen_text, ':');
    struct span name;

    if (colon == NULL) {
        return -EINVAL;
    }
    name = span_make(listen_text, (size_t)(colon - listen_text));
    if (name.n >= 2 && name.p[0] == '[' && name.p[name.n - 1] == ']') {
        name = span_skip(span_head(name, name.n - 1), 1);
    }
    return span_copy_str(name, host, host_size) < 0 ||
                   span_copy_str(span_of_str(colon + 1), port, 8) < 0
               ? -EINVAL
               : 0;
}

static int try_bind(const struct addrinfo *a)
{
    _cleanup_close_ int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    int on = 1;

    if (fd < 0) {
        return -errno;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    /* Listening is what tells: a socket bound with SO_REUSEADDR may share a port until then. */
    if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, 1) < 0) {
        return -errno;
    }
    return 0;
}

int readiness_check_port(const struct settings *s, struct error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char host[128];
    char port[8];
    int r;

    if (split_listen(s->api_listen, host, sizeof(host), port) < 0 ||
        getaddrinfo(host[0] != '\0' ? host : NULL, port, &hints, &found) != 0) {
        return error_set(err, EINVAL, "api.listen = %.100s is no ADDRESS:PORT", s->api_listen);
    }
    r = try_bind(found);
    freeaddrinfo(found);
    if (r == -EADDRINUSE) {
        return error_set(
            err, EADDRINUSE,
            "%.100s is taken by another program or installation (ss -ltnp shows which): "
            "stop it, or set another api.listen",
            s->api_listen);
    }
    return r < 0 ? error_set(err, -r, "cannot listen on %.100s: %s", s->api_listen, strerror(-r))
                 : 0;
}

/* "node, adoption" from details.waiting_for, a string or a list of them. */
static void take_waiting_for(const json_t *last_error, char *out)
{
    const json_t *waiting = json_object_get(json_object_get(last_error, "details"), "waiting_for");
    _cleanup_buf_ struct buf text = buf_make(WAITING_TEXT - 1);
    const json_t *item;
    size_t i;

    if (json_is_string(waiting)) {
        buf_put_str(&text, json_string_value(waiting));
    }
    json_array_foreach(waiting, i, item) {
        buf_printf(&text, "%s%s", i > 0 ? ", " : "",
                   json_is_string(item) ? json_string_value(item) : "?");
    }
    (void)snprintf(out, WAITING_TEXT, "%s", buf_str(&text));
}

int readiness_ask(struct cli *cli, const char *url, char ret_waiting_for[200], struct error *err)
{
    struct rest_request q = {.method = "GET", .path = "/readyz", .timeout_ms = ASK_TIMEOUT_MS};
    struct config config = {0};
    _cleanup_rest_ struct rest *rest = NULL;
    struct error why = {0};
    int r;

    (void)snprintf(config.url, sizeof(config.url), "%s", url);
    if (cli->has_settings) {
        (void)snprintf(config.ca_file, sizeof(config.ca_file), "%s",
                       cli->settings.api_tls_certificate);
    }
    r = rest_new(&config, -1, &rest, err);
    if (r < 0) {
        return r;
    }
    r = rest_call(rest, &q, NULL, NULL, &why);
    if (r == -EREMOTEIO && why.code == ERROR_SERVICE_UNAVAILABLE) {
        if (ret_waiting_for != NULL) {
            take_waiting_for(rest_last_error(rest), ret_waiting_for);
        }
        return -EAGAIN;
    }
    if (r < 0 && err != NULL) {
        *err = why;
    }
    return r;
}

/* What a line says, without its time: a daemon that keeps dying says the same each time. */
static struct span without_time(struct span line)
{
    return span_skip(line, span_find(line, 0, ' '));
}

/* How many lines of `rest` say the same. */
static unsigned int count_same(struct span rest, struct span line)
{
    unsigned int count = 0;

    while (rest.n > 0) {
        struct span other = span_head(rest, span_find(rest, 0, '\n'));

        count += span_equals(without_time(other), without_time(line)) ? 1 : 0;
        rest = span_skip(rest, other.n + 1);
    }
    return count;
}

/* Each line once, where it stands last. */
static void note_distinct_lines(struct span text)
{
    struct span rest = text;

    while (rest.n > 0) {
        struct span line = span_head(rest, span_find(rest, 0, '\n'));
        unsigned int count;

        rest = span_skip(rest, line.n + 1);
        if (count_same(rest, line) > 0) {
            continue;
        }
        count = count_same(text, line);
        if (count > 1) {
            cli_note("  | %.*s (%u times)", (int)line.n, (const char *)line.p, count);
        } else {
            cli_note("  | %.*s", (int)line.n, (const char *)line.p);
        }
    }
}

/* The end of a daemon's log, on stderr. */
static void print_log_end(const struct cli *cli, enum daemon_id id)
{
    char path[INSTALLATION_PATH_SIZE];
    const char *const tail[] = {"tail", "-n", LOG_TAIL_LINES, "--", path, NULL};
    const char *const journal[] = {"journalctl", "--no-pager",    "-n", LOG_TAIL_LINES,
                                   "-u",         daemon_name(id), NULL};
    _cleanup_buf_ struct buf text = buf_make(65536);
    struct child_options o = {.output = &text, .quiet = true, .timeout_ms = LOG_TIMEOUT_MS};

    daemon_log_path(&cli->settings, id, path);
    if (child_run(installation_uses_systemd(cli) ? journal : tail, &o, NULL) != 0 || text.n == 0) {
        return;
    }
    cli_note("the end of the log of %s (%s):", daemon_name(id), path);
    note_distinct_lines(buf_span(&text));
}

struct watch {
    struct proc_ref last;
    int starts;
};

/* True when the daemon runs now; counts how often it was started. */
static bool watch_daemon(const struct cli *cli, enum daemon_id id, struct watch *w)
{
    struct proc_ref now;

    if (installation_last_start(cli, id, &now) == 0 &&
        (now.pid != w->last.pid || now.start_time != w->last.start_time)) {
        w->last = now;
        w->starts++;
    }
    return installation_find_daemon(cli, id, &now) == 0;
}

/* What space-node cannot be without, and the step that makes it. */
static void note_missing_steps(const struct cli *cli)
{
    char path[INSTALLATION_PATH_SIZE];

    (void)snprintf(path, sizeof(path), "%s/guest/vmlinuz", cli->settings.data_dir);
    if (access(path, F_OK) < 0) {
        cli_note("there is no guest kernel: %s/setup/guest fetches it", cli->libexec);
    }
    (void)snprintf(path, sizeof(path), "%s/volume/templates", cli->settings.data_dir);
    if (access(path, F_OK) < 0) {
        cli_note("there is no template: %s/setup/template base builds it", cli->libexec);
    }
}

/* `culprit` is the daemon that does not stay up; DAEMON_COUNT: none in particular. */
static int
give_up(const struct cli *cli, enum daemon_id culprit, const char *why, struct error *err)
{
    for (int id = DAEMON_NODE; id <= DAEMON_API; id++) {
        if (culprit == DAEMON_COUNT || culprit == (enum daemon_id)id) {
            print_log_end(cli, (enum daemon_id)id);
        }
    }
    note_missing_steps(cli);
    return error_set(err, ETIMEDOUT,
                     "%s; `space doctor` checks the machine; what was started is tried "
                     "again until `space down` stops it",
                     why);
}

int readiness_wait(struct cli *cli, const char *url, int64_t wait_ms, struct error *err)
{
    int64_t end_ms = clock_monotonic_ms() + wait_ms;
    int pause_ms = FIRST_PAUSE_MS;
    struct watch watches[2] = {0};
    char shown[WAITING_TEXT] = "";
    char waiting[WAITING_TEXT] = "";
    char why[WAITING_TEXT + 64];

    for (;;) {
        bool running = watch_daemon(cli, DAEMON_NODE, &watches[0]);
        int r;

        running = watch_daemon(cli, DAEMON_API, &watches[1]) && running;
        (void)snprintf(waiting, sizeof(waiting), "the daemons");
        r = running ? readiness_ask(cli, url, waiting, NULL) : -EAGAIN;
        if (r == 0) {
            return 0;
        }
        for (int i = 0; i < 2; i++) {
            if (watches[i].starts > DEATHS_LIMIT) {
                (void)snprintf(why, sizeof(why), "%s does not stay up",
                               daemon_name((enum daemon_id)i));
                return give_up(cli, (enum daemon_id)i, why, err);
            }
        }
        if (clock_monotonic_ms() >= end_ms) {
            (void)snprintf(why, sizeof(why), "not ready in time: waiting for %s", waiting);
            return give_up(cli, DAEMON_COUNT, why, err);
        }
        if (strcmp(waiting, shown) != 0) {
            cli_progress(cli, "waiting for %s …", waiting);
            (void)snprintf(shown, sizeof(shown), "%s", waiting);
        }
        (void)poll(NULL, 0, pause_ms);
        pause_ms = pause_ms * 2 < LAST_PAUSE_MS ? pause_ms * 2 : LAST_PAUSE_MS;
    }
}
