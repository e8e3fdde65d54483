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
#define SANDBOXES           "/v1/sandboxes?limit=1000&fields=id,name"
#define CHECKPOINTS         "/v1/checkpoints?limit=1000&fields=id,name"

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

    put_names(cli, &names, SANDBOXES, prefix);
    rest = buf_span(&names);
    while (rest.n > 0) {
        struct span line = span_head(rest, span_find(rest, 0, '\n'));

        buf_printf(out, "%.*s:\n", (int)line.n, (const char *)line.p);
        rest = span_skip(rest, line.n + 1);
    }
}

static void put_list(struct buf *out, const char *const *words, const char *prefix)
{
    for (; *words != NULL; words++) {
        put_candidate(out, prefix, *words);
    }
}

/* The value of an option, where its values are known. */
static bool
put_option_value(struct cli *cli, struct buf *out, const char *option, const char *prefix)
{
    static const char *const states[] = {"creating",   "running",   "pausing", "paused",   "waking",
                                         "suspending", "suspended", "error",   "deleting", NULL};

    if (strcmp(option, "--state") == 0) {
        put_list(out, states, prefix);
        return true;
    }
    if (strcmp(option, "--checkpoint") == 0) {
        put_names(cli, out, CHECKPOINTS, prefix);
        return true;
    }
    return false;
}

/* Words of verbs that have verbs of their own: `given` are those after the verb, the last one is
 * being typed. */
static bool put_inner_words(
    struct cli *cli, struct buf *out, const char *verb, char *const *given, size_t count)
{
    static const struct {
        const char *verb;
        const char *inner[5];
        const char *sandbox; /* which of them take a sandbox */
        const char *list;    /* what the others take */
    } verbs[] = {
        {"checkpoint", {"create", "ls", "rm"}, "create ls", CHECKPOINTS},
        {"keys", {"ls", "create", "rm"}, "", "/v1/keys?limit=1000"},
        {"node", {"ls", "drain", "undrain"}, "", "/v1/nodes?limit=1000"},
    };
    const char *prefix = given[count - 1];

    if (strcmp(verb, "rollback") == 0 && count > 1) {
        put_names(cli, out, CHECKPOINTS, prefix);
        return true;
    }
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(verb, verbs[i].verb) != 0) {
            continue;
        }
        if (count == 1) {
            put_list(out, verbs[i].inner, prefix);
        } else if (verbs[i].sandbox[0] != '\0' && strstr(verbs[i].sandbox, given[0]) != NULL) {
            put_names(cli, out, SANDBOXES, prefix);
        } else if (strcmp(verb, "keys") != 0 || strcmp(given[0], "rm") == 0) {
            put_names(cli, out, verbs[i].list, prefix);
        }
        return true;
    }
    return false;
}

static void put_words(struct cli *cli, struct buf *out, const struct verb *verb, const char *prefix)
{
    switch (verb->words) {
    case VERB_WORDS_SANDBOX:
        put_names(cli, out, SANDBOXES, prefix);
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
    const char *before = args->command_count > 1 ? args->command[args->command_count - 2] : "";
    const struct verb *verb = NULL;
    size_t after = 0; /* the first word behind the verb */

    for (size_t i = 0; i + 1 < args->command_count; i++) {
        if (strcmp(args->command[i], "--") == 0) {
            return EXIT_STATUS_DONE; /* a command of the guest: nothing is known about it */
        }
        if (verb == NULL && args->command[i][0] != '-') {
            verb = verb_find(cli->verbs, args->command[i]);
            after = i + 1;
        }
    }
    if (last[0] == '-') {
        put_options(&out, verb != NULL ? verb->options : cli->globals, last);
        if (verb != NULL) {
            put_options(&out, cli->globals, last);
        }
    } else if (verb == NULL) {
        put_verbs(&out, cli->verbs, last);
    } else if (!put_option_value(cli, &out, before, last) &&
               !put_inner_words(cli, &out, verb->name, &args->command[after],
                                args->command_count - after)) {
        put_words(cli, &out, verb, last);
    }
    return cli_print(&out);
}
