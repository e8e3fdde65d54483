#include "cli/args.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "cli/guess.h"

struct parser {
    struct args *args;
    int argc;
    char **argv;
    int next;
    const struct verb *verbs;
    const struct option_spec *globals;
    struct error *err;
};

static bool is_last(const struct option_spec *spec)
{
    return spec->name == NULL && spec->letter == 0;
}

const struct verb *verb_find(const struct verb *verbs, const char *name)
{
    for (const struct verb *v = verbs; v->name != NULL; v++) {
        if (strcmp(v->name, name) == 0) {
            return v;
        }
    }
    return NULL;
}

static const struct option_spec *
option_find_in(const struct option_spec *table, const char *name, size_t n)
{
    for (const struct option_spec *s = table; s != NULL && !is_last(s); s++) {
        if (s->name != NULL && strlen(s->name) == n && memcmp(s->name, name, n) == 0) {
            return s;
        }
    }
    return NULL;
}

const struct option_spec *option_find(const struct option_spec *first,
                                      const struct option_spec *second,
                                      const char *name,
                                      size_t name_length)
{
    const struct option_spec *found = option_find_in(first, name, name_length);

    return found != NULL ? found : option_find_in(second, name, name_length);
}

static const struct option_spec *option_find_letter(const struct option_spec *table, char letter)
{
    for (const struct option_spec *s = table; s != NULL && !is_last(s); s++) {
        if (s->letter == letter) {
            return s;
        }
    }
    return NULL;
}

static void
guess_option(const struct option_spec *table, const char *name, size_t n, const char **best)
{
    size_t distance = SIZE_MAX;

    for (const struct option_spec *s = table; s != NULL && !is_last(s); s++) {
        size_t d = s->name == NULL || s->help == NULL ? SIZE_MAX : guess_distance(s->name, name, n);

        if (d < distance) {
            distance = d;
            *best = s->name;
        }
    }
}

static int unknown_option(const struct parser *p, const char *name, size_t n)
{
    const struct verb *verb = p->args->verb;
    const char *guess = NULL;

    guess_option(p->globals, name, n, &guess);
    if (verb != NULL) {
        guess_option(verb->options, name, n, &guess);
    }
    if (guess != NULL) {
        return error_set(p->err, EINVAL, "unknown option --%.*s; did you mean --%s?", (int)n, name,
                         guess);
    }
    return error_set(p->err, EINVAL, "unknown option --%.*s", (int)(n < 60 ? n : 60), name);
}

static int unknown_verb(const struct parser *p, const char *name)
{
    size_t n = strlen(name);
    size_t distance = SIZE_MAX;
    const char *synonym = guess_synonym(name);
    const char *guess = NULL;

    if (synonym != NULL) {
        return error_set(p->err, EINVAL, "unknown verb %.60s; did you mean %s?", name, synonym);
    }
    for (const struct verb *v = p->verbs; v->name != NULL; v++) {
        size_t d = v->group == VERB_GROUP_COUNT ? SIZE_MAX : guess_distance(v->name, name, n);

        if (d < distance) {
            distance = d;
            guess = v->name;
        }
    }
    if (guess != NULL) {
        return error_set(p->err, EINVAL, "unknown verb %.60s; did you mean %s?", name, guess);
    }
    return error_set(p->err, EINVAL, "unknown verb %.60s", name);
}

static void put_value(struct args *args, const struct option_spec *spec, const char *value)
{
    args->values[args->value_count++] = (struct arg_value){spec, value};
}

static int take_value(struct parser *p, const struct option_spec *spec, const char *shown)
{
    if (p->next >= p->argc) {
        return error_set(p->err, EINVAL, "%s needs a value (%s)", shown, spec->value);
    }
    put_value(p->args, spec, p->argv[p->next++]);
    return 0;
}

static int parse_long(struct parser *p, const char *text)
{
    const char *name = &text[2];
    const char *equals = strchr(name, '=');
    size_t n = equals != NULL ? (size_t)(equals - name) : strlen(name);
    const struct verb *verb = p->args->verb;
    const struct option_spec *spec =
        option_find(verb != NULL ? verb->options : NULL, p->globals, name, n);

    if (spec == NULL) {
        return unknown_option(p, name, n);
    }
    if (spec->value == NULL) {
        if (equals != NULL) {
            return error_set(p->err, EINVAL, "--%s takes no value", spec->name);
        }
        put_value(p->args, spec, "");
        return 0;
    }
    if (equals != NULL) {
        put_value(p->args, spec, equals + 1);
        return 0;
    }
    return take_value(p, spec, text);
}

static int parse_letters(struct parser *p, const char *text)
{
    const struct verb *verb = p->args->verb;

    for (const char *c = &text[1]; *c != '\0'; c++) {
        const struct option_spec *spec =
            option_find_letter(verb != NULL ? verb->options : NULL, *c);
        char shown[3] = {'-', *c, '\0'};

        if (spec == NULL) {
            spec = option_find_letter(p->globals, *c);
        }
        if (spec == NULL) {
            return error_set(p->err, EINVAL, "unknown option -%c", *c);
        }
        if (spec->value != NULL && c[1] == '\0') {
            return take_value(p, spec, shown);
        }
        put_value(p->args, spec, spec->value != NULL ? &c[1] : "");
        if (spec->value != NULL) {
            return 0;
        }
    }
    return 0;
}

/* A word that is no option. 1 when the rest of the line is a command. */
static int parse_word(struct parser *p, const char *word)
{
    struct args *args = p->args;
    const struct verb *verb = args->verb;

    if (verb == NULL) {
        args->verb = verb_find(p->verbs, word);
        return args->verb != NULL ? 0 : unknown_verb(p, word);
    }
    if (args->word_count < verb->max_words) {
        args->words[args->word_count++] = word;
        return 0;
    }
    if (verb->command == VERB_COMMAND_REST) {
        p->next--;
        return 1;
    }
    if (verb->command == VERB_COMMAND_DASHES) {
        return error_set(p->err, EINVAL, "put -- before the command: … -- %.60s", word);
    }
    return error_set(p->err, EINVAL, "unexpected argument %.60s", word);
}

static int parse_all(struct parser *p)
{
    while (p->next < p->argc) {
        const char *text = p->argv[p->next++];
        int r;

        if (strcmp(text, "--") == 0) {
            p->args->has_command = true;
            break;
        }
        if (text[0] == '-' && text[1] == '-') {
            r = parse_long(p, text);
        } else if (text[0] == '-' && text[1] != '\0') {
            r = parse_letters(p, text);
        } else {
            r = parse_word(p, text);
        }
        if (r < 0) {
            return r;
        }
        if (r > 0) {
            p->args->has_command = true;
            break;
        }
    }
    p->args->command = &p->argv[p->next];
    p->args->command_count = (size_t)(p->argc - p->next);
    return 0;
}

static int check_counts(const struct parser *p)
{
    const struct args *args = p->args;
    const struct verb *verb = args->verb;

    if (verb == NULL || args_has(args, "help")) {
        return 0;
    }
    if (args->word_count < verb->min_words) {
        return error_set(p->err, EINVAL, "something is missing: space %s %s", verb->name,
                         verb->synopsis);
    }
    if (verb->command == VERB_COMMAND_NONE && args->has_command) {
        return error_set(p->err, EINVAL, "%s takes no command", verb->name);
    }
    if (verb->command != VERB_COMMAND_NONE && args->command_count == 0) {
        return error_set(p->err, EINVAL, "which command? space %s %s", verb->name, verb->synopsis);
    }
    return 0;
}

int args_parse(struct args *args,
               int argc,
               char **argv,
               const struct verb *verbs,
               const struct option_spec *globals,
               struct error *err)
{
    struct parser p = {args, argc, argv, 1, verbs, globals, err};
    size_t room = 1;
    int r;

    *args = (struct args){0};
    for (int i = 1; i < argc; i++) {
        room += strlen(argv[i]) + 1; /* letters may stand together */
    }
    args->values = calloc(room, sizeof(args->values[0]));
    args->words = calloc((size_t)argc + 1, sizeof(args->words[0]));
    if (args->values == NULL || args->words == NULL) {
        return error_set(err, ENOMEM, "out of memory");
    }
    r = parse_all(&p);
    return r < 0 ? r : check_counts(&p);
}

void args_done(struct args *args)
{
    free(args->values);
    free(args->words);
    *args = (struct args){0};
}

const char *args_get_nth(const struct args *args, const char *name, size_t index)
{
    for (size_t i = 0; i < args->value_count; i++) {
        const struct option_spec *spec = args->values[i].spec;

        if (spec->name != NULL && strcmp(spec->name, name) == 0 && index-- == 0) {
            return args->values[i].value;
        }
    }
    return NULL;
}

const char *args_get(const struct args *args, const char *name)
{
    const char *last = NULL;
    const char *value;

    for (size_t i = 0; (value = args_get_nth(args, name, i)) != NULL; i++) {
        last = value;
    }
    return last;
}

bool args_has(const struct args *args, const char *name)
{
    return args_get_nth(args, name, 0) != NULL;
}

const char *args_word(const struct args *args, size_t index)
{
    return index < args->word_count ? args->words[index] : NULL;
}
