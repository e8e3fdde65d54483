/* `space watch`: changes below a path, one line each, as they happen. */
#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/event_stream.h"
#include "cli/rest.h"
#include "cli/text.h"

struct watch {
    struct cli *cli;
    int printed; /* exit status of the last print */
    bool ended;  /* the directory is gone, or the watch failed: `reason` */
    char reason[200];
    bool lost; /* said that the connection is gone */
};

static void put_path(struct buf *line, const json_t *data, const char *key)
{
    text_put_safe(line, span_of_str(api_text(data, key)));
}

/* "created   /home/user/a", "moved     /home/user/a -> /home/user/b"; directories end with "/". */
static void put_change(struct buf *line, const char *kind, const json_t *data)
{
    buf_printf(line, "%-9s ", kind);
    if (strcmp(kind, "overflow") == 0) {
        buf_put_str(line, "changes came too fast or were lost: look at the directory anew\n");
        return;
    }
    if (strcmp(kind, "moved") == 0) {
        put_path(line, data, "from");
        buf_put_str(line, " -> ");
    }
    put_path(line, data, "path");
    buf_put_str(line, json_is_true(json_object_get(data, "is_directory")) ? "/\n" : "\n");
}

static void put_json(struct buf *line, const char *kind, const json_t *data)
{
    _cleanup_json_ json_t *document = json_pack("{s:s}", "event", kind);
    char *text;

    if (json_object_update(document, (json_t *)(uintptr_t)data) < 0) {
        return;
    }
    text = json_dumps(document, JSON_COMPACT);
    buf_printf(line, "%s\n", text != NULL ? text : "{}");
    free(text);
}

static bool is_change(const char *kind)
{
    static const char *const kinds[] = {"created", "modified", "deleted", "moved", "overflow"};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(kind, kinds[i]) == 0) {
            return true;
        }
    }
    return false;
}

static int on_event(void *arg, const struct sse_event *event)
{
    struct watch *w = arg;
    _cleanup_buf_ struct buf line = buf_make(0);
    _cleanup_json_ json_t *data =
        json_loadb((const char *)event->data.p, event->data.n, JSON_ALLOW_NUL, NULL);

    if (!json_is_object(data)) {
        return -EBADMSG;
    }
    if (strcmp(event->name, "error") == 0) {
        const char *message = api_text(data, "message");

        w->ended = true;
        (void)snprintf(w->reason, sizeof(w->reason), "%s",
                       message[0] != '\0' ? message : "the watch has ended");
        return -ECANCELED;
    }
    if (strcmp(event->name, "watching") == 0) {
        cli_progress(w->cli, "watching; Ctrl-C ends it");
    }
    if (!is_change(event->name)) {
        return 0; /* of later versions */
    }
    if (w->cli->json) {
        put_json(&line, event->name, data);
    } else {
        put_change(&line, event->name, data);
    }
    w->printed = cli_print(&line);
    return w->printed == EXIT_STATUS_DONE ? 0 : -EPIPE;
}

/* A broken connection is worth a word: what happens meanwhile comes late. */
static void tell_lost(struct watch *w, const struct event_stream *s)
{
    bool lost = event_stream_lost_since(s) != 0 && !s->open;

    if (lost && !w->lost) {
        cli_progress(w->cli, "connection lost; trying again …");
    }
    w->lost = lost;
}

static int follow_changes(struct watch *w, const char *path, struct error *err)
{
    _cleanup_(event_stream_done) struct event_stream s;
    int r;

    event_stream_init(&s, w->cli->rest, path, on_event, w);
    while ((r = event_stream_step(&s, clock_monotonic_ms(), err)) == 0) {
        tell_lost(w, &s);
        (void)rest_poll(w->cli->rest, NULL, 0, event_stream_wait_ms(&s, clock_monotonic_ms()));
    }
    return r;
}

int cmd_watch(struct cli *cli, const struct args *args)
{
    struct watch w = {.cli = cli};
    _cleanup_buf_ struct buf path = buf_make(0);
    struct error err = {0};
    char id[ID_SIZE];
    int r;

    if (cli_connect(cli, &err) < 0 || api_find_sandbox(cli, args_word(args, 0), id, &err) < 0) {
        return cli_fail(cli, &err);
    }
    buf_printf(&path, "/v1/sandboxes/%s/files/watch", id);
    rest_put_query(&path, "path", args_word(args, 1) != NULL ? args_word(args, 1) : ".");
    rest_put_query(&path, "recursive", args_has(args, "flat") ? "false" : "true");
    if (args_get(args, "user") != NULL) {
        rest_put_query(&path, "user", args_get(args, "user"));
    }
    r = follow_changes(&w, buf_str(&path), &err);
    if (w.ended) {
        cli_note("space: %s", w.reason);
        return EXIT_STATUS_REFUSED;
    }
    return r == -EPIPE ? w.printed : cli_fail(cli, &err);
}
