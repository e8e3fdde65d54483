/* `space pause`, `suspend`, `wake`. */
#include <stdio.h>

#include "base/buf.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/rest.h"

struct change {
    const char *verb;
    const char *done; /* "paused" */
};

static int
change_one(struct cli *cli, const struct change *change, const char *word, json_t *answers)
{
    _cleanup_json_ json_t *answer = NULL;
    struct error err = {0};
    char id[ID_SIZE];
    char path[REST_REQUEST_SIZE];

    if (api_find_sandbox(cli, word, id, &err) < 0) {
        return cli_fail(cli, &err);
    }
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/%s?wait=60", id, change->verb);
    if (api_send(cli, "POST", path, NULL, &answer, &err) < 0 ||
        api_wait_operation(cli, answer, &err) < 0) {
        return cli_fail(cli, &err);
    }
    (void)json_array_append(answers, answer);
    if (!cli->json) {
        cli_progress(cli, "%s %s", change->done, id);
    }
    return EXIT_STATUS_DONE;
}

/* Every word is tried, whatever became of the ones before it. */
static int change_all(struct cli *cli, const struct args *args, const struct change *change)
{
    _cleanup_json_ json_t *answers = json_array();
    struct error err = {0};
    int status = EXIT_STATUS_DONE;

    if (cli_connect(cli, &err) < 0) {
        return cli_fail(cli, &err);
    }
    for (size_t i = 0; i < args->word_count; i++) {
        int r = change_one(cli, change, args->words[i], answers);

        status = r != EXIT_STATUS_DONE ? r : status;
    }
    if (cli->json) {
        (void)cli_print_answers(answers, args->word_count);
    }
    return status;
}

int cmd_pause(struct cli *cli, const struct args *args)
{
    return change_all(cli, args, &(const struct change){"pause", "paused"});
}

int cmd_suspend(struct cli *cli, const struct args *args)
{
    return change_all(cli, args, &(const struct change){"suspend", "suspended"});
}

int cmd_wake(struct cli *cli, const struct args *args)
{
    return change_all(cli, args, &(const struct change){"wake", "woken"});
}
