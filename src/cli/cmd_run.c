/* `space run` and `space exec`: a command in a sandbox, live. */
#include <errno.h>
#include <poll.h>
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
#include "cli/tty.h"

#define CREATE_WAIT   "60"
#define NAME_SIZE     64
#define RUN_NAME_TAIL 8

#define DELETE_FOR_MS   30000
#define DELETE_PAUSE_MS 500

/* The exit status that an answer of run stands for. */
static int collected_status(const json_t *answer)
{
    const json_t *code = json_object_get(answer, "exit_code");

    if (json_is_true(json_object_get(answer, "timed_out"))) {
        return EXIT_STATUS_TIMED_OUT;
    }
    if (json_is_integer(code)) {
        return (int)(json_integer_value(code) & 0xff);
    }
    return 128 + signal_number(api_text(answer, "signal"));
}

/* One call that answers when the command has ended; its answer is printed as it is. */
static int run_collected(struct cli *cli, const char *path, const json_t *body)
{
    _cleanup_json_ json_t *answer = NULL;
    struct error err = {0};
    int printed;

    if (api_send(cli, "POST", path, body, &answer, &err) < 0) {
        return cli_fail_ours(cli, &err);
    }
    printed = cli_print_json(answer);
    return printed == EXIT_STATUS_DONE ? collected_status(answer) : EXIT_STATUS_OURS;
}

struct terminal {
    bool wanted;
    bool detach;
};

/* -t and -d; -t with -i needs a terminal on this side too, as with docker. */
static int get_terminal(const struct args *args, struct terminal *ret, struct error *err)
{
    *ret = (struct terminal){args_has(args, "tty"), args_has(args, "detach")};
    if (!ret->wanted) {
        return 0;
    }
    if (args_has(args, "json") && !ret->detach) {
        return error_set(err, EINVAL, "--json answers at the end and takes no -t");
    }
    if (args_has(args, "interactive") && !ret->detach && isatty(STDIN_FILENO) != 1) {
        return error_set(err, EINVAL,
                         "standard input is no terminal; -i without -t forwards it as it is");
    }
    return 0;
}

/* The body's terminal, or what its standard input is. */
static int put_terminal(const struct attach *a, json_t *body, const struct terminal *t)
{
    struct tty_size size = tty_get_size();
    char term[TTY_TERM_SIZE];

    if (!t->wanted) {
        return json_object_set_new(body, "stdin",
                                   json_string(a->forward_input ? "open" : "closed"));
    }
    tty_get_term(cli_env(a->cli, "TERM"), term);
    return json_object_set_new(
        body, "tty",
        json_pack("{s:i, s:i, s:s}", "cols", (int)size.cols, "rows", (int)size.rows, "term", term));
}

/* Starts the command and stays with it. Returns the exit status, or negative with err. */
static int
start_and_attach(struct attach *a, json_t *body, const struct terminal *t, struct error *err)
{
    _cleanup_json_ json_t *answer = NULL;
    _cleanup_buf_ struct buf out = buf_make(0);
    char path[REST_REQUEST_SIZE];
    const char *process;
    const char *session;
    int r;

    if (put_terminal(a, body, t) < 0) {
        return error_set(err, ENOMEM, "out of memory");
    }
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/commands", a->sandbox_id);
    r = api_send(a->cli, "POST", path, body, &answer, err);
    if (r < 0) {
        return r;
    }
    process = api_text(json_object_get(answer, "process"), "id");
    session = api_text(json_object_get(answer, "session"), "id");
    if (!id_is_valid(process, "pr") || !id_is_valid(session, "se")) {
        return error_set(err, EBADMSG, "the answer names no process and session");
    }
    if (t->detach) {
        buf_printf(&out, "%s\n", process);
        return a->cli->json ? cli_print_json(answer) : cli_print(&out);
    }
    (void)snprintf(a->process_id, sizeof(a->process_id), "%s", process);
    (void)snprintf(a->session_id, sizeof(a->session_id), "%s", session);
    a->limit_s = json_number_value(json_object_get(body, "timeout_seconds"));
    return t->wanted ? interactive_run(a, 0, err) : attach_run(a, err);
}

static int
exec_streamed(struct cli *cli, const char *sandbox_id, json_t *body, const struct terminal *t)
{
    struct attach a = {.cli = cli, .forward_input = args_has(cli->args, "interactive")};
    struct error err = {0};
    _cleanup_close_ int signal_fd = -1;
    int status;

    if (!t->detach) {
        signal_fd = attach_take_signals(&err);
        if (signal_fd < 0) {
            return cli_fail_ours(cli, &err);
        }
    }
    a.signal_fd = signal_fd;
    rest_set_signal_fd(cli->rest, signal_fd);
    (void)snprintf(a.sandbox_id, sizeof(a.sandbox_id), "%s", sandbox_id);
    status = start_and_attach(&a, body, t, &err);
    rest_set_signal_fd(cli->rest, -1);
    return status < 0 ? cli_fail_ours(cli, &err) : status;
}

/* The login shell of the user, as ssh gives it: with a terminal where there is one on this side. */
int cmd_shell(struct cli *cli, const struct args *args)
{
    static const char login[] = "exec \"${SHELL:-/bin/sh}\" -l";
    _cleanup_json_ json_t *body = json_object();
    struct attach a = {.cli = cli, .forward_input = true};
    struct terminal terminal = {.wanted = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1};
    _cleanup_close_ int signal_fd = -1;
    struct error err = {0};
    int status;

    if (api_put_command(body, args, &err) < 0 ||
        json_object_set_new(body, "argv", json_pack("[s, s, s]", "/bin/sh", "-c", login)) < 0) {
        return cli_fail_usage(cli, &err);
    }
    if (cli_connect(cli, &err) < 0 ||
        api_find_sandbox(cli, args_word(args, 0), a.sandbox_id, &err) < 0) {
        return cli_fail_ours(cli, &err);
    }
    signal_fd = attach_take_signals(&err);
    if (signal_fd < 0) {
        return cli_fail_ours(cli, &err);
    }
    a.signal_fd = signal_fd;
    rest_set_signal_fd(cli->rest, signal_fd);
    status = start_and_attach(&a, body, &terminal, &err);
    rest_set_signal_fd(cli->rest, -1);
    return status < 0 ? cli_fail_ours(cli, &err) : status;
}

int cmd_exec(struct cli *cli, const struct args *args)
{
    _cleanup_json_ json_t *body = json_object();
    struct error err = {0};
    struct terminal terminal;
    char id[ID_SIZE];
    char path[REST_REQUEST_SIZE];

    if (get_terminal(args, &terminal, &err) < 0 || api_put_command(body, args, &err) < 0) {
        return cli_fail_usage(cli, &err);
    }
    if (cli_connect(cli, &err) < 0 || api_find_sandbox(cli, args_word(args, 0), id, &err) < 0) {
        return cli_fail_ours(cli, &err);
    }
    if (cli->json && !terminal.detach) {
        (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/run", id);
        return run_collected(cli, path, body);
    }
    return exec_streamed(cli, id, body, &terminal);
}

/* One attempt; `word` is an id, or a name when the answer of the create is missing. */
static int try_delete(struct cli *cli, const char *word, struct error *err)
{
    char id[ID_SIZE];
    char path[REST_REQUEST_SIZE];
    int r = api_find_sandbox(cli, word, id, err);

    if (r == 0) {
        (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s?wait=0", id);
        r = api_send(cli, "DELETE", path, NULL, NULL, err);
    }
    return r < 0 && err->code == ERROR_NOT_FOUND ? 0 : r;
}

/* A signal ends the waiting. */
static bool pause_delete(int signal_fd)
{
    struct pollfd fd = {.fd = signal_fd, .events = POLLIN};

    return poll(&fd, 1, DELETE_PAUSE_MS) == 0;
}

/* An API that is restarted in the middle of a run must not leave a sandbox behind. */
static void delete_sandbox(struct cli *cli, const char *word, int signal_fd)
{
    int64_t end_ms = clock_monotonic_ms() + DELETE_FOR_MS;
    struct error err = {0};
    bool told = false;
    int r;

    rest_set_signal_fd(cli->rest, signal_fd);
    while ((r = try_delete(cli, word, &err)) < 0 &&
           (r == -ENOTCONN || error_code_is_retryable(err.code)) && clock_monotonic_ms() < end_ms) {
        if (!told) {
            cli_note("space: sandbox %s cannot be deleted yet (%s); trying for %d s …", word,
                     err.message, DELETE_FOR_MS / 1000);
        }
        told = true;
        if (!pause_delete(signal_fd)) {
            break;
        }
        err = (struct error){0};
    }
    rest_set_signal_fd(cli->rest, -1);
    if (r < 0) {
        cli_note("space: sandbox %s may be left: %s; `space rm %s` removes it", word, err.message,
                 word);
    } else if (told) {
        cli_note("space: sandbox %s is deleted", word);
    }
}

static int
create_for_run(struct cli *cli, const json_t *body, char ret_id[ID_SIZE], struct error *err)
{
    _cleanup_json_ json_t *answer = NULL;
    const char *id;
    int r;

    cli_progress(cli, "creating sandbox %s …", api_text(body, "name"));
    r = api_send(cli, "POST", "/v1/sandboxes?wait=" CREATE_WAIT, body, &answer, err);
    if (r < 0) {
        return r;
    }
    id = api_text(json_object_get(answer, "sandbox"), "id");
    if (!id_is_valid(id, "sb")) {
        return error_set(err, EBADMSG, "the answer names no sandbox");
    }
    (void)snprintf(ret_id, ID_SIZE, "%s", id);
    return api_wait_operation(cli, answer, err);
}

/* Whether a create that failed may have made the sandbox all the same. */
static bool may_exist(const struct cli *cli, const struct error *err)
{
    return (err->errnum == EINTR || err->errnum == ENOTCONN || err->errnum == EBADMSG) &&
           rest_may_have_arrived(cli->rest);
}

static int run_streamed(struct cli *cli, json_t *create, json_t *command, const struct terminal *t)
{
    struct attach a = {.cli = cli, .forward_input = args_has(cli->args, "interactive")};
    struct error err = {0};
    _cleanup_close_ int signal_fd = attach_take_signals(&err);
    int status = signal_fd;
    bool unsure = false;

    if (status >= 0) {
        a.signal_fd = signal_fd;
        rest_set_signal_fd(cli->rest, signal_fd);
        status = create_for_run(cli, create, a.sandbox_id, &err);
        unsure = status < 0 && may_exist(cli, &err);
    }
    if (status == 0) {
        status = start_and_attach(&a, command, t, &err);
    }
    rest_set_signal_fd(cli->rest, -1);
    if (status < 0) {
        status = cli_fail_ours(cli, &err);
    }
    if (args_has(cli->args, "keep") && a.sandbox_id[0] != '\0') {
        cli_progress(cli, "kept: %s (%s)", api_text(create, "name"), a.sandbox_id);
    } else if (a.sandbox_id[0] != '\0') {
        delete_sandbox(cli, a.sandbox_id, signal_fd);
    } else if (unsure) {
        delete_sandbox(cli, api_text(create, "name"), signal_fd);
    }
    return status;
}

/* A name of its own tells people where a sandbox came from, and lets an interrupted create be
 * found again. */
static int put_run_name(json_t *create)
{
    char id[ID_SIZE];
    char name[NAME_SIZE];

    if (json_object_get(create, "name") != NULL) {
        return 0;
    }
    if (id_make("rn", id) < 0) {
        return -EIO;
    }
    (void)snprintf(name, sizeof(name), "run-%.*s", RUN_NAME_TAIL, &id[2]);
    return json_object_set_new(create, "name", json_string(name));
}

int cmd_run(struct cli *cli, const struct args *args)
{
    const char *template_name = args_word(args, 0) != NULL ? args_word(args, 0) : "base";
    struct error err = {0};
    _cleanup_json_ json_t *create = api_create_body(args, template_name, &err);
    _cleanup_json_ json_t *command = json_object();
    struct terminal terminal;

    if (create == NULL || get_terminal(args, &terminal, &err) < 0 ||
        api_put_command(command, args, &err) < 0) {
        return cli_fail_usage(cli, &err);
    }
    if (cli->json && args_has(args, "interactive")) {
        (void)error_set(&err, EINVAL, "--json answers at the end and takes no -i");
        return cli_fail_usage(cli, &err);
    }
    if (cli_connect(cli, &err) < 0) {
        return cli_fail_ours(cli, &err);
    }
    if (cli->json) {
        if (json_object_update(create, command) < 0 ||
            (args_has(args, "keep") && json_object_set_new(create, "keep", json_true()) < 0)) {
            return EXIT_STATUS_OURS;
        }
        return run_collected(cli, "/v1/run", create);
    }
    (void)json_object_del(command, "env"); /* the sandbox has it */
    return put_run_name(create) < 0 ? EXIT_STATUS_OURS
                                    : run_streamed(cli, create, command, &terminal);
}
