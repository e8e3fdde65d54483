/* Command line of `space`: verbs and options as tables, and the parser over them. Help text, man
 * page and completions are made from the same tables.
 *
 * Options may stand anywhere before `--`, as `--name VALUE`, `--name=VALUE`, `-n VALUE`, `-nVALUE`,
 * and flags of one letter together (`-dj`). What follows `--` is a command and is not looked at. */
#pragma once

#include "base/error.h"

struct args;
struct cli;

struct option_spec {
    const char *name;  /* without the dashes; NULL: the option has a letter alone */
    char letter;       /* 0: the option has a name alone */
    const char *value; /* what the help calls its value; NULL: a flag */
    const char *help;  /* NULL: accepted by the parser but not shown */
};

enum verb_command {
    VERB_COMMAND_NONE,   /* the verb takes no command */
    VERB_COMMAND_DASHES, /* only after `--` */
    VERB_COMMAND_REST    /* after `--`, or all that follows the last word the verb takes */
};

enum verb_group {
    VERB_GROUP_INSTALLATION,
    VERB_GROUP_SANDBOX,
    VERB_GROUP_PROCESS,
    VERB_GROUP_NETWORK,
    VERB_GROUP_ADMIN,
    VERB_GROUP_COUNT
};

/* What a word of the verb is, for completions. */
enum verb_words {
    VERB_WORDS_OTHER,
    VERB_WORDS_SANDBOX,
    VERB_WORDS_TEMPLATE,
    VERB_WORDS_VERB,
    VERB_WORDS_COPY /* a local file, or a sandbox with ":" */
};

struct verb {
    const char *name;
    enum verb_group group;
    const char *synopsis;              /* after "space NAME" */
    const char *summary;               /* one line */
    const char *detail;                /* paragraphs, each ended by a newline */
    const char *example;               /* command lines, each ended by a newline */
    const struct option_spec *options; /* ended by an all-zero row */
    unsigned int min_words;
    unsigned int max_words;
    enum verb_command command;
    enum verb_words words;
    int (*run)(struct cli *cli, const struct args *args); /* returns the exit status */
};

struct arg_value {
    const struct option_spec *spec;
    const char *value; /* "" for a flag */
};

struct args {
    const struct verb *verb; /* NULL: none was given */
    struct arg_value *values;
    size_t value_count;
    const char **words;
    size_t word_count;
    char **command; /* points into argv */
    size_t command_count;
    bool has_command; /* `--` was there, or words past the last */
};

#define _cleanup_args_ _cleanup_(args_done)

/* Parses argv (argv[0] is the program). `verbs` ends with a row without a name; `globals` are
 * options of every verb. On wrong usage returns -EINVAL with a sentence and a hint in err; `verb`
 * of what was parsed so far is set. The strings stay argv's. */
int args_parse(struct args *args,
               int argc,
               char **argv,
               const struct verb *verbs,
               const struct option_spec *globals,
               struct error *err) _must_check_;
void args_done(struct args *args);

bool args_has(const struct args *args, const char *name);
/* The last value given, or NULL. */
const char *args_get(const struct args *args, const char *name);
/* The index-th value of a repeated option, or NULL past the end. */
const char *args_get_nth(const struct args *args, const char *name, size_t index);
/* A word, or NULL past the end. */
const char *args_word(const struct args *args, size_t index);

const struct verb *verb_find(const struct verb *verbs, const char *name);
/* The option with this long name or letter among two tables (either may be NULL), or NULL. */
const struct option_spec *option_find(const struct option_spec *first,
                                      const struct option_spec *second,
                                      const char *name,
                                      size_t name_length);
