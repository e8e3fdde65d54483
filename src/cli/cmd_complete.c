/* `space __complete -- WORDS…`: what the word under the cursor (the last one) may become, one
 * candidate a line. The completion files of the shells only call this. */
#include <dirent.h>
#include <limits.h>
#include <string.h>

#include "base/buf.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/rest.h"

#define COMPLETE_TIMEOUT_MS 1500

static void put_candidate(struct buf *out, const char *prefix, const char *text)
{
    if (strncmp(text, prefix, strlen(prefix)) == 0) {
        buf_printf(out, "%s\n", text);
    }
}

static void put_verbs(struct buf *out, const struct verb *verbs, const char *prefix)
{
    for (const struct verb *v = verbs; v->name != NULL; v++) {
        if (v->group != VERB_GROUP_COUNT) {
            put_candidate(out, prefix, v->name);
        }
    }
}

static void put_options(struct buf *out, const struct option_spec *options, const char *prefix)
{
    for (const struct option_spec *s = options; s->name != NULL || s->letter != 0; s++) {
        char text[64];

        if (s->help != NULL) {
            (void)snprintf(text, sizeof(text), "--%s", s->name);
            put_candidate(out, prefix, text);
        }
    }
}

/* Names (and ids of what has no name) from a list of the API; silence when it cannot be asked. */
static void put_names(struct cli *cli, struct buf *out, const char *path, const char *prefix)
{
    struct rest_request q = {.method = "GET", .path = path, .timeout_ms = COMPLETE_TIMEOUT_MS};
    _cleanup_json_ json_t *answer = NULL;
    const json_t *item;
    size_t i;

    if (cli_connect(cli, NULL) < 0 || rest_call(cli->rest, &q, &answer, NULL, NULL) < 0) {
        return;
    }
    json_array_foreach(json_object_get(answer, "items"), i, item) {
        const char *name = api_text(item, "name");

        put_candidate(out, prefix, name[0] != '\0' ? name : api_text(item, "id"));
    }
}

/* Files of this machine whose path begins so; directories end with a slash. */
static void put_local_files(struct buf *out, const char *prefix)
{
    const char *slash = strrchr(prefix, '/');
    int head = slash != NULL ? (int)(slash - prefix) + 1 : 0;
    char path[PATH_MAX];
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;

    if (snprintf(path, sizeof(path), "%.*s", head, prefix) >= (int)sizeof(path)) {
        return;
    }
    dir = opendir(head > 0 ? path : ".");
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.' && prefix[head] != '.') {
            continue; /* hidden, and not asked for */
        }
        if (strncmp(entry->d_name, &prefix[head], strlen(&prefix[head])) == 0) {
            buf_printf(out, "%s%s%s\n", path, entry->d_name, entry->d_type == DT_DIR ? "/" : "");
        }
    }
}

/* "NAME:" of each sandbox. */
static void put_sandbox_places(struct cli *cli, struct buf *out, const char *prefix)
{
    _cleanup_buf_ struct buf names = buf_make(0);
    struct span rest;

    put_names(cli, &names, "/v1/sandboxes?limit=1000&fields=id,name", prefix);
    rest = buf_span(&names);
    while (rest.n > 0) {
        struct span line = span_head(rest, span_find(rest, 0, '\n'));

        buf_printf(out, "%.*s:\n", (int)line.n, (const char *)line.p);
        rest = span_skip(rest, line.n + 1);
    }
}

static void put_words(struct cli *cli, struct buf *out, const struct verb *verb, const char *prefix)
{
    switch (verb->words) {
    case VERB_WORDS_SANDBOX:
        put_names(cli, out, "/v1/sandboxes?limit=1000&fields=id,name", prefix);
        break;
    case VERB_WORDS_TEMPLATE:
        put_names(cli, out, "/v1/templates?limit=1000", prefix);
        break;
    case VERB_WORDS_VERB:
        put_verbs(out, cli->verbs, prefix);
        break;
    case VERB_WORDS_COPY:
        put_local_files(out, prefix);
        put_sandbox_places(cli, out, prefix);
        break;
    case VERB_WORDS_OTHER:
        break;
    }
}

int cmd_complete(struct cli *cli, const struct args *args)
{
    _cleanup_buf_ struct buf out = buf_make(0);
    const char *last = args->command_count > 0 ? args->command[args->command_count - 1] : "";
    const struct verb *verb = NULL;

    for (size_t i = 0; i + 1 < args->command_count; i++) {
        if (strcmp(args->command[i], "--") == 0) {
            return EXIT_STATUS_DONE; /* a command of the guest: nothing is known about it */
        }
        if (verb == NULL && args->command[i][0] != '-') {
            verb = verb_find(cli->verbs, args->command[i]);
        }
    }
    if (last[0] == '-') {
        put_options(&out, verb != NULL ? verb->options : cli->globals, last);
        if (verb != NULL) {
            put_options(&out, cli->globals, last);
        }
    } else if (verb == NULL) {
        put_verbs(&out, cli->verbs, last);
    } else {
        put_words(cli, &out, verb, last);
    }
    return cli_print(&out);
}
