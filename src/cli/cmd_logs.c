/* `space logs`: the output of a session. With --follow it is the event stream to its end; without,
 * what the spool holds now, stdout then stderr, read as bytes. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/rest.h"
#include "cli/text.h"

#define SPOOL_STEP_BYTES 1048576U
#define MAX_TAIL_BYTES   1073741824U

static int write_output(void *arg, enum follow_stream stream, struct span bytes)
{
    (void)arg;
    return fd_write_all(stream == FOLLOW_STDOUT ? STDOUT_FILENO : STDERR_FILENO, bytes);
}

static void note_gap(void *arg, enum follow_stream stream, uint64_t bytes)
{
    (void)arg;
    cli_note("space: %" PRIu64 " bytes of %s are no longer there", bytes,
             stream == FOLLOW_STDOUT ? "stdout" : "stderr");
}

static int follow_session(struct cli *cli, const char *session, uint64_t tail, struct error *err)
{
    static const struct follow_sink sink = {write_output, note_gap};
    _cleanup_(follow_done) struct follow f;
    int r;

    follow_init(&f, cli->rest, session, tail, &sink, NULL);
    while ((r = follow_step(&f, clock_monotonic_ms(), err)) == 0) {
        (void)rest_poll(cli->rest, NULL, 0, follow_wait_ms(&f, clock_monotonic_ms()));
    }
    if (r > 0 && f.end == FOLLOW_END_LOST) {
        cli_note("space: the process was lost: %s", f.lost_reason);
    }
    return r < 0 ? r : 0;
}

/* Where the retained part of a stream begins: events start with the gap before it. */
struct start_probe {
    enum follow_stream stream;
    bool found;
    int64_t offset;
};

static int probe_output(void *arg, enum follow_stream stream, struct span bytes)
{
    struct start_probe *probe = arg;

    (void)bytes;
    probe->found = probe->found || stream == probe->stream;
    return 0;
}

static void probe_gap(void *arg, enum follow_stream stream, uint64_t bytes)
{
    struct start_probe *probe = arg;

    if (stream == probe->stream && !probe->found) {
        probe->found = true;
        probe->offset = (int64_t)bytes;
    }
}

static int
find_start(struct cli *cli, const char *session, struct start_probe *probe, struct error *err)
{
    static const struct follow_sink sink = {probe_output, probe_gap};
    _cleanup_(follow_done) struct follow f;
    int r = 0;

    follow_init(&f, cli->rest, session, 0, &sink, probe);
    while (!probe->found && (r = follow_step(&f, clock_monotonic_ms(), err)) == 0) {
        (void)rest_poll(cli->rest, NULL, 0, follow_wait_ms(&f, clock_monotonic_ms()));
    }
    return r < 0 ? r : 0;
}

struct spool_reader {
    struct cli *cli;
    const char *session;
    enum follow_stream stream;
    int64_t offset;
    uint64_t tail;   /* 0: all */
    struct buf kept; /* the last `tail` bytes and what came since it was last cut */
    int failed;
};

static int out_fd(const struct spool_reader *reader)
{
    return reader->stream == FOLLOW_STDOUT ? STDOUT_FILENO : STDERR_FILENO;
}

static int take_spool(void *arg, struct span piece)
{
    struct spool_reader *reader = arg;

    if (reader->tail == 0) {
        reader->failed = fd_write_all(out_fd(reader), piece);
        return reader->failed;
    }
    buf_put(&reader->kept, piece);
    if (reader->kept.n > 2 * reader->tail) {
        buf_consume(&reader->kept, reader->kept.n - (size_t)reader->tail);
    }
    reader->failed = buf_error(&reader->kept);
    return reader->failed;
}

/* One step of a spool: 1 when there may be more, 0 at its end. */
static int read_step(struct spool_reader *reader, struct error *err)
{
    char path[REST_REQUEST_SIZE];
    struct rest_request q = {.method = "GET", .path = path, .on_data = take_spool, .arg = reader};
    struct rest *rest = reader->cli->rest;
    struct rest_transfer t;
    uint64_t next = 0;
    int r;

    (void)snprintf(path, sizeof(path),
                   "/v1/sessions/%s/output?stream=%s&offset=%" PRId64 "&limit=%u", reader->session,
                   reader->stream == FOLLOW_STDOUT ? "stdout" : "stderr", reader->offset,
                   SPOOL_STEP_BYTES);
    r = rest_start(rest, &t, &q, err);
    if (r < 0) {
        return r;
    }
    while (!t.done) {
        (void)rest_poll(rest, NULL, 0, -1);
    }
    r = reader->failed != 0
            ? error_set(err, -reader->failed, "cannot write: %s", strerror(-reader->failed))
            : rest_result(rest, &t, err);
    if (r == 0 && span_parse_u64(span_of_str(t.next_offset), INT64_MAX, &next) == 0 &&
        (int64_t)next > reader->offset) {
        reader->offset = (int64_t)next;
        r = 1;
    }
    rest_finish(rest, &t);
    return r;
}

static int dump_stream(struct spool_reader *reader, struct error *err)
{
    struct start_probe probe = {.stream = reader->stream};
    struct error why = {0};
    int r = read_step(reader, &why);

    if (r < 0 && why.code == ERROR_GONE) {
        r = find_start(reader->cli, reader->session, &probe, err);
        if (r < 0) {
            return r;
        }
        note_gap(NULL, reader->stream, (uint64_t)probe.offset);
        reader->offset = probe.offset;
        r = read_step(reader, &why);
    }
    while (r > 0) {
        r = read_step(reader, &why);
    }
    if (r < 0) {
        *err = why;
        return r;
    }
    if (reader->kept.n > reader->tail) {
        buf_consume(&reader->kept, reader->kept.n - (size_t)reader->tail);
    }
    return fd_write_all(out_fd(reader), buf_span(&reader->kept));
}

static int dump_session(struct cli *cli, const char *session, uint64_t tail, struct error *err)
{
    int r = 0;

    for (int stream = FOLLOW_STDOUT; stream <= FOLLOW_STDERR && r == 0; stream++) {
        struct spool_reader reader = {.cli = cli,
                                      .session = session,
                                      .stream = (enum follow_stream)stream,
                                      .tail = tail,
                                      .kept = buf_make(0)};

        r = dump_stream(&reader, err);
        buf_done(&reader.kept);
    }
    return r;
}

static int find_session(struct cli *cli,
                        const struct args *args,
                        char ret_session[ID_SIZE],
                        bool *ret_lost,
                        struct error *err)
{
    const char *word = args_word(args, args->word_count - 1);
    _cleanup_json_ json_t *process = NULL;
    char sandbox[ID_SIZE];
    char path[REST_REQUEST_SIZE];
    int r;

    if (id_is_valid(word, "se")) {
        return span_copy_str(span_of_str(word), ret_session, ID_SIZE);
    }
    r = api_find_process(cli, args->word_count == 2 ? args_word(args, 0) : NULL, word, sandbox,
                         err);
    if (r < 0) {
        return r;
    }
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/processes/%s", sandbox, word);
    r = api_get(cli, path, &process, err);
    if (r < 0) {
        return r;
    }
    *ret_lost = strcmp(api_text(process, "state"), "lost") == 0;
    r = span_copy_str(span_of_str(api_text(process, "session_id")), ret_session, ID_SIZE);
    return r < 0 ? error_set(err, EBADMSG, "process %s has no session", word) : 0;
}

int cmd_logs(struct cli *cli, const struct args *args)
{
    const char *tail_text = args_get(args, "tail");
    struct error err = {0};
    char session[ID_SIZE];
    uint64_t tail = 0;
    bool lost = false;
    int r;

    if (tail_text != NULL && text_parse_count(tail_text, "tail", MAX_TAIL_BYTES, &tail, &err) < 0) {
        return cli_fail_usage(cli, &err);
    }
    if (cli_connect(cli, &err) < 0 || find_session(cli, args, session, &lost, &err) < 0) {
        return cli_fail(cli, &err);
    }
    r = args_has(args, "follow") ? follow_session(cli, session, tail, &err)
                                 : dump_session(cli, session, tail, &err);
    if (r == 0 && lost && !args_has(args, "follow")) {
        cli_note("space: the process was lost with its guest; this is what it had said");
    }
    if (r == -EPIPE) {
        return EXIT_STATUS_DONE;
    }
    return r < 0 ? cli_fail(cli, &err) : EXIT_STATUS_DONE;
}
