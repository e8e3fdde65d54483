/* The context of one run of `space`: what was asked, where output goes, how to reach the API. */
#pragma once

#include <stdint.h>

#include <jansson.h>

#include "base/error.h"
#include "base/settings.h"
#include "base/span.h"
#include "cli/args.h"
#include "cli/config.h"

struct buf;
struct rest;
struct table;

enum exit_status {
    EXIT_STATUS_DONE = 0,
    EXIT_STATUS_REFUSED = 1,
    EXIT_STATUS_USAGE = 2,
    EXIT_STATUS_UNREACHABLE = 3,
    EXIT_STATUS_TIMED_OUT = 124, /* run, exec */
    EXIT_STATUS_OURS = 125,      /* run, exec: any failure of ours */
    EXIT_STATUS_INTERRUPTED = 130
};

struct cli {
    char **envp;
    const struct args *args;
    const struct verb *verbs;
    const struct option_spec *globals;
    bool json;
    bool out_is_terminal;
    bool err_is_terminal;
    size_t width; /* of the terminal on stdout; TABLE_UNLIMITED when it is none */

    char config_path[SETTINGS_PATH_SIZE];
    bool config_is_explicit; /* named by --config or SPACE_CONFIG */
    struct settings settings;
    bool has_settings;
    char libexec[SETTINGS_PATH_SIZE];

    struct config config;
    struct rest *rest; /* after cli_connect */
};

/* Reads options, environment and settings file. A missing default settings file is no error. */
int cli_init(struct cli *cli, const struct args *args, char **envp, struct error *err) _must_check_;
void cli_done(struct cli *cli);
/* A variable of the environment, or NULL. */
const char *cli_env(const struct cli *cli, const char *name);
/* For verbs that work on the installation of this machine: err when there are no settings. */
int cli_need_settings(const struct cli *cli, struct error *err) _must_check_;
int cli_need_root(const char *what, struct error *err) _must_check_;

/* Resolves address and key and opens the connection object (nothing is sent yet). */
int cli_connect(struct cli *cli, struct error *err) _must_check_;

/* Prints `space: CODE: message` and what to do about it; returns the exit status that fits. A field
 * that begins with "--" is an option at fault: wrong usage. */
int cli_fail(const struct cli *cli, const struct error *err);
/* The same for run, exec, shell and attach: every failure of ours is EXIT_STATUS_OURS, but wrong
 * usage and an interrupt. */
int cli_fail_ours(const struct cli *cli, const struct error *err);
/* Wrong usage: the sentence, and where the help is. Returns EXIT_STATUS_USAGE. */
int cli_fail_usage(const struct cli *cli, const struct error *err);
/* Writes text to standard output; returns the exit status. */
int cli_print(const struct buf *text);
int cli_print_json(const json_t *json);
/* One document of what a verb that takes `words` words was answered: for one word the answer itself
 * (nothing when there is none), for several a list of those that there are. */
int cli_print_answers(const json_t *answers, size_t words);
/* Prints a table, or err's failure. Returns the exit status. */
int cli_print_table(const struct cli *cli, const struct table *table);
/* One line on stderr, only when it is a terminal. */
void cli_progress(const struct cli *cli, const char *format, ...) _printf_(2, 3);
/* One line on stderr, always. */
void cli_note(const char *format, ...) _printf_(1, 2);
/* Each line of a text on stderr, behind a prefix. */
void cli_note_lines(const char *prefix, struct span text);
/* Asks "… [y/N]" on the terminal; false without one. */
bool cli_confirm(const struct cli *cli, const char *format, ...) _printf_(2, 3);
