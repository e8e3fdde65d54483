/* `space ps`, `signal`, `kill`. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/rest.h"
#include "cli/table.h"
#include "cli/text.h"

static void put_argv(struct table *table, const json_t *argv)
{
    _cleanup_buf_ struct buf line = buf_make(0);
    const json_t *word;
    size_t i;

    json_array_foreach(argv, i, word) {
        const char *text = json_string_value(word);

        buf_put_str(&line, i > 0 ? " " : "");
        text_put_shell_word(&line, text != NULL ? text : "?");
    }
    table_put(table, buf_str(&line));
}

static void put_outcome(struct table *table, const json_t *process)
{
    const json_t *code = json_object_get(process, "exit_code");
    const char *signal = json_string_value(json_object_get(process, "signal"));

    if (json_is_true(json_object_get(process, "timed_out"))) {
        table_put(table, "timed out");
    } else if (json_is_true(json_object_get(process, "out_of_memory"))) {
        table_put(table, "out of memory");
    } else if (json_is_integer(code)) {
        table_printf(table, "%" JSON_INTEGER_FORMAT, json_integer_value(code));
    } else {
        table_put(table, signal);
    }
}

static int print_processes(const struct cli *cli, const json_t *items)
{
    static const char *const heads[] = {"ID", "PID", "STATE", "EXIT", "AGE", "~COMMAND", "SESSION"};
    _cleanup_table_ struct table *table = table_new(heads, sizeof(heads) / sizeof(heads[0]));
    const json_t *process;
    size_t i;

    if (table == NULL) {
        return EXIT_STATUS_REFUSED;
    }
    json_array_foreach(items, i, process) {
        char age[TEXT_SHORT_SIZE] = "-";
        int64_t then_ms;

        if (clock_parse(api_text(process, "started_at"), &then_ms) == 0) {
            text_format_age(clock_real_ms() - then_ms, age);
        }
        table_put(table, api_text(process, "id"));
        table_printf(table, "%" PRId64, api_number(process, "pid"));
        table_put(table, api_text(process, "state"));
        put_outcome(table, process);
        table_put(table, age);
        put_argv(table, json_object_get(process, "argv"));
        table_put(table, api_text(process, "session_id"));
    }
    return cli_print_table(cli, table);
}

int cmd_ps(struct cli *cli, const struct args *args)
{
    _cleanup_json_ json_t *list = NULL;
    struct error err = {0};
    char id[ID_SIZE];
    char path[REST_REQUEST_SIZE];

    if (cli_connect(cli, &err) < 0 || api_find_sandbox(cli, args_word(args, 0), id, &err) < 0) {
        return cli_fail(cli, &err);
    }
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/processes", id);
    if (api_list(cli, path, 0, &list, &err) < 0) {
        return cli_fail(cli, &err);
    }
    return cli->json ? cli_print_json(list) : print_processes(cli, json_object_get(list, "items"));
}

/* What a signal or a kill is for. */
struct target {
    const char *sandbox; /* an id or a name; NULL: whichever has the process */
    const char *process;
};

/* POST …/processes/{process}/{verb}; the answer goes to the end of `answers`. */
static int send_to_process(struct cli *cli,
                           const struct target *target,
                           const char *verb,
                           const json_t *body,
                           json_t *answers)
{
    _cleanup_json_ json_t *answer = NULL;
    struct error err = {0};
    char sandbox[ID_SIZE];
    char path[REST_REQUEST_SIZE];

    if (api_find_process(cli, target->sandbox, target->process, sandbox, &err) < 0) {
        return cli_fail(cli, &err);
    }
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/processes/%s/%s", sandbox, target->process,
                   verb);
    if (api_send(cli, "POST", path, body, &answer, &err) < 0) {
        return cli_fail(cli, &err);
    }
    (void)json_array_append(answers, answer);
    return EXIT_STATUS_DONE;
}

/* SIGTERM from "TERM", "SIGTERM", "term" or "15". */
static int signal_name(const char *word, char ret_name[16], struct error *err)
{
    char upper[16];
    uint64_t number;
    size_t n = strlen(word);

    if (span_parse_u64(span_of_str(word), 64, &number) < 0) {
        if (n >= sizeof(upper)) {
            return error_set(err, EINVAL, "unknown signal %.30s", word);
        }
        for (size_t i = 0; i <= n; i++) {
            upper[i] = (char)(word[i] >= 'a' && word[i] <= 'z' ? word[i] - 32 : word[i]);
        }
        number = (uint64_t)signal_number(upper);
    }
    if (number == 0 || sigabbrev_np((int)number) == NULL) {
        return error_set(err, EINVAL, "unknown signal %.30s; one is named like SIGTERM", word);
    }
    (void)snprintf(ret_name, 16, "SIG%s", sigabbrev_np((int)number));
    return 0;
}

int cmd_signal(struct cli *cli, const struct args *args)
{
    const char *scope = args_get(args, "scope");
    const struct target target = {args->word_count == 3 ? args_word(args, 0) : NULL,
                                  args_word(args, args->word_count - 2)};
    _cleanup_json_ json_t *answers = json_array();
    _cleanup_json_ json_t *body = NULL;
    struct error err = {0};
    char name[16];
    int status;

    if (signal_name(args_word(args, args->word_count - 1), name, &err) < 0) {
        return cli_fail_usage(cli, &err);
    }
    body = scope != NULL ? json_pack("{s:s, s:s}", "signal", name, "scope", scope)
                         : json_pack("{s:s}", "signal", name);
    if (cli_connect(cli, &err) < 0) {
        return cli_fail(cli, &err);
    }
    status = send_to_process(cli, &target, "signal", body, answers);
    if (cli->json) {
        (void)cli_print_answers(answers, 1);
    }
    return status;
}

int cmd_kill(struct cli *cli, const struct args *args)
{
    _cleanup_json_ json_t *answers = json_array();
    _cleanup_json_ json_t *body = json_object();
    const char *sandbox = id_is_valid(args_word(args, 0), "pr") ? NULL : args_word(args, 0);
    size_t first = sandbox != NULL ? 1 : 0;
    struct error err = {0};
    int status = EXIT_STATUS_DONE;

    if (sandbox != NULL && args->word_count == 1) {
        (void)error_set(&err, EINVAL, "which process? `space ps %.60s` shows them", sandbox);
        return cli_fail_usage(cli, &err);
    }
    if (cli_connect(cli, &err) < 0) {
        return cli_fail(cli, &err);
    }
    for (size_t i = first; i < args->word_count; i++) {
        const struct target target = {sandbox, args->words[i]};
        int r = send_to_process(cli, &target, "kill", body, answers);

        status = r != EXIT_STATUS_DONE ? r : status;
    }
    if (cli->json) {
        (void)cli_print_answers(answers, args->word_count - first);
    }
    return status;
}
