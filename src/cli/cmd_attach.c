/* `space attach`: back to a command that runs. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cli/api.h"
#include "cli/attach.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/interactive.h"
#include "cli/rest.h"
#include "cli/text.h"

#define MAX_TAIL_BYTES     1073741824U
#define DEFAULT_TAIL_BYTES 4096U
#define PROBE_MS           3000

/* Where the output of a session ends now: events near its end begin with their offset. */
struct end_probe {
    bool found;
    uint64_t offset;
};

static int probe_output(void *arg, enum follow_stream stream, struct span bytes)
{
    struct end_probe *probe = arg;

    (void)bytes;
    probe->found = probe->found || stream == FOLLOW_STDOUT;
    return 0;
}

static void probe_gap(void *arg, enum follow_stream stream, uint64_t bytes)
{
    (void)arg;
    (void)stream;
    (void)bytes;
}

/* A session that has written nothing has no event: then it is 0 after a moment. */
static int find_end(struct cli *cli, const char *session, uint64_t *ret_offset, struct error *err)
{
    static const struct follow_sink sink = {probe_output, probe_gap};
    _cleanup_(follow_done) struct follow f;
    struct end_probe probe = {0};
    int64_t end_ms = clock_monotonic_ms() + PROBE_MS;
    int r = 0;

    follow_init(&f, cli->rest, session, 1, &sink, &probe);
    while (!probe.found && (r = follow_step(&f, clock_monotonic_ms(), err)) == 0 &&
           clock_monotonic_ms() < end_ms) {
        int wait_ms = follow_wait_ms(&f, clock_monotonic_ms());

        (void)rest_poll(cli->rest, NULL, 0, wait_ms < 0 || wait_ms > PROBE_MS ? PROBE_MS : wait_ms);
    }
    *ret_offset = f.offset[FOLLOW_STDOUT];
    return r < 0 ? r : 0;
}

/* How much of its input the command has had; without one, nothing is forwarded. */
static int find_input_offset(struct attach *a, struct error *err)
{
    _cleanup_json_ json_t *answer = NULL;
    char path[REST_REQUEST_SIZE];
    int r;

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/processes/%s/stdin", a->sandbox_id,
                   a->process_id);
    r = api_send(a->cli, "POST", path, NULL, &answer, err);
    if (r == 0) {
        a->input_offset = (uint64_t)api_number(answer, "offset");
    }
    return r;
}

static int find_process(struct attach *a, bool *ret_tty, struct error *err)
{
    const struct args *args = a->cli->args;
    const char *word = args_word(args, args->word_count - 1);
    _cleanup_json_ json_t *process = NULL;
    char path[REST_REQUEST_SIZE];
    int r = api_find_process(a->cli, args->word_count == 2 ? args_word(args, 0) : NULL, word,
                             a->sandbox_id, err);

    if (r < 0) {
        return r;
    }
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/processes/%s", a->sandbox_id, word);
    r = api_get(a->cli, path, &process, err);
    if (r < 0) {
        return r;
    }
    (void)snprintf(a->process_id, sizeof(a->process_id), "%s", word);
    *ret_tty = json_is_object(json_object_get(process, "tty"));
    r = span_copy_str(span_of_str(api_text(process, "session_id")), a->session_id, ID_SIZE);
    return r < 0 ? error_set(err, EBADMSG, "process %s has no session", word) : 0;
}

static int run(struct attach *a, struct error *err)
{
    uint64_t offset = 0;
    bool has_tty = false;
    int r = find_process(a, &has_tty, err);

    if (r == 0 && !has_tty) {
        r = a->forward_input ? find_input_offset(a, err) : 0;
        return r < 0 ? r : attach_run(a, err);
    }
    if (r == 0) {
        r = find_end(a->cli, a->session_id, &offset, err);
    }
    if (r < 0) {
        return r;
    }
    a->forward_input = isatty(STDIN_FILENO) == 1 || a->forward_input;
    return interactive_run(a, offset, err);
}

int cmd_attach(struct cli *cli, const struct args *args)
{
    const char *tail = args_get(args, "tail");
    struct attach a = {.cli = cli,
                       .forward_input = args_has(args, "interactive"),
                       .tail_bytes = DEFAULT_TAIL_BYTES};
    _cleanup_close_ int signal_fd = -1;
    struct error err = {0};
    int status;

    if (tail != NULL && text_parse_count(tail, "tail", MAX_TAIL_BYTES, &a.tail_bytes, &err) < 0) {
        return cli_fail_usage(cli, &err);
    }
    if (cli_connect(cli, &err) < 0) {
        return cli_fail_ours(cli, &err);
    }
    signal_fd = attach_take_signals(&err);
    if (signal_fd < 0) {
        return cli_fail_ours(cli, &err);
    }
    a.signal_fd = signal_fd;
    rest_set_signal_fd(cli->rest, signal_fd);
    status = run(&a, &err);
    rest_set_signal_fd(cli->rest, -1);
    return status < 0 ? cli_fail_ours(cli, &err) : status;
}
