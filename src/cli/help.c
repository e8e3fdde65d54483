#include "cli/help.h"

#include <string.h>

#include "base/buf.h"
#include "cli/args.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/guess.h"

#define VERB_COLUMN   13
#define OPTION_COLUMN 28

static const char *const group_titles[VERB_GROUP_COUNT] = {
    [VERB_GROUP_INSTALLATION] = "The installation on this machine",
    [VERB_GROUP_SANDBOX] = "Sandboxes",
    [VERB_GROUP_PROCESS] = "Commands in sandboxes",
    [VERB_GROUP_NETWORK] = "Files and ports of sandboxes",
    [VERB_GROUP_ADMIN] = "More",
};

static const char exit_text[] =
    "0 done; 1 refused, or not well; 2 wrong usage; 3 the API cannot be reached; 130 interrupted.\n"
    "run, exec, shell, attach: the command's own; 128+n ended by signal n; 124 timed out; 125 "
    "SPACE failed.\n";

static bool is_last(const struct option_spec *s)
{
    return s->name == NULL && s->letter == 0;
}

static void put_option(struct buf *out, const struct option_spec *s)
{
    _cleanup_buf_ struct buf left = buf_make(0);

    if (s->letter != 0) {
        buf_printf(&left, "-%c, ", s->letter);
    } else {
        buf_put_str(&left, "    ");
    }
    buf_printf(&left, "--%s", s->name);
    if (s->value != NULL) {
        buf_printf(&left, " %s", s->value);
    }
    buf_printf(out, "  %-*s %s\n", OPTION_COLUMN, buf_str(&left), s->help);
}

static void put_options(struct buf *out, const char *title, const struct option_spec *options)
{
    bool any = false;

    for (const struct option_spec *s = options; !is_last(s); s++) {
        if (s->help == NULL) {
            continue;
        }
        if (!any) {
            buf_printf(out, "\n%s\n", title);
        }
        any = true;
        put_option(out, s);
    }
}

/* Each line of text behind a prefix. */
static void put_lines(struct buf *out, const char *prefix, const char *text)
{
    struct span rest = span_of_str(text);

    while (rest.n > 0) {
        size_t end = span_find(rest, 0, '\n');

        buf_put_str(out, prefix);
        buf_put(out, span_head(rest, end));
        buf_put_str(out, "\n");
        rest = span_skip(rest, end + 1);
    }
}

void help_put_overview(struct buf *out, const struct verb *verbs, const struct option_spec *globals)
{
    buf_put_str(out, "space: a microVM of its own for every task\n\n"
                     "usage: space VERB [OPTIONS] …\n");
    for (int group = 0; group < VERB_GROUP_COUNT; group++) {
        buf_printf(out, "\n%s\n", group_titles[group]);
        for (const struct verb *v = verbs; v->name != NULL; v++) {
            if (v->group == (enum verb_group)group) {
                buf_printf(out, "  %-*s %s\n", VERB_COLUMN, v->name, v->summary);
            }
        }
    }
    put_options(out, "Options of every verb", globals);
    buf_put_str(out, "\nExit status\n");
    put_lines(out, "  ", exit_text);
    buf_put_str(out, "\n`space VERB --help` tells more, with an example.\n");
}

void help_put_verb(struct buf *out, const struct verb *verb, const struct option_spec *globals)
{
    buf_printf(out, "usage: space %s%s%s\n\n%s\n", verb->name, verb->synopsis[0] != '\0' ? " " : "",
               verb->synopsis, verb->summary);
    if (verb->detail[0] != '\0') {
        buf_printf(out, "\n%s", verb->detail);
    }
    put_options(out, "Options", verb->options);
    put_options(out, "Options of every verb", globals);
    buf_put_str(out, "\nExample\n");
    put_lines(out, "  ", verb->example);
}

/* --- the man page ----------------------------------------------------------------------------- */

/* Text for roff: backslashes and dashes escaped, no line begins a request. Of comments without
 * their marks. */
static void put_roff(struct buf *out, struct span text, bool is_comment)
{
    bool line_start = true;

    for (size_t i = 0; i < text.n; i++) {
        uint8_t c = text.p[i];

        if (line_start && is_comment && c == '#') {
            i += i + 1 < text.n && text.p[i + 1] == ' ' ? 1 : 0;
            continue;
        }
        if (line_start && (c == '.' || c == '\'')) {
            buf_put_str(out, "\\&");
        }
        if (c == '\\') {
            buf_put_str(out, "\\e");
        } else if (c == '-') {
            buf_put_str(out, "\\-");
        } else {
            buf_put(out, span_make(&text.p[i], 1));
        }
        line_start = c == '\n';
    }
}

static void put_roff_str(struct buf *out, const char *text)
{
    put_roff(out, span_of_str(text), false);
}

static void put_man_options(struct buf *out, const struct option_spec *options)
{
    for (const struct option_spec *s = options; !is_last(s); s++) {
        if (s->help == NULL) {
            continue;
        }
        buf_put_str(out, ".TP\n");
        if (s->letter != 0) {
            buf_printf(out, "\\fB\\-%c\\fR, ", s->letter);
        }
        buf_put_str(out, "\\fB\\-\\-");
        put_roff_str(out, s->name);
        buf_put_str(out, "\\fR");
        if (s->value != NULL) {
            buf_put_str(out, " \\fI");
            put_roff_str(out, s->value);
            buf_put_str(out, "\\fR");
        }
        buf_put_str(out, "\n");
        put_roff_str(out, s->help);
        buf_put_str(out, "\n");
    }
}

static void put_man_verb(struct buf *out, const struct verb *v)
{
    buf_printf(out, ".SS space %s ", v->name);
    put_roff_str(out, v->synopsis);
    buf_put_str(out, "\n");
    put_roff_str(out, v->summary);
    buf_put_str(out, ".\n");
    if (v->detail[0] != '\0') {
        buf_put_str(out, ".PP\n");
        put_roff_str(out, v->detail);
    }
    put_man_options(out, v->options);
    buf_put_str(out, ".PP\nExample:\n.PP\n.nf\n.RS\n");
    put_roff_str(out, v->example);
    buf_put_str(out, ".RE\n.fi\n");
}

void help_put_man(struct buf *out, const struct verb *verbs, const struct option_spec *globals)
{
    buf_put_str(out, ".TH SPACE 1 \"\" \"SPACE " SPACE_VERSION "\" \"User commands\"\n"
                     ".SH NAME\nspace \\- a microVM of its own for every task\n"
                     ".SH SYNOPSIS\n\\fBspace\\fR \\fIVERB\\fR [\\fIOPTIONS\\fR] ...\n"
                     ".SH OPTIONS OF EVERY VERB\n");
    put_man_options(out, globals);
    for (int group = 0; group < VERB_GROUP_COUNT; group++) {
        buf_put_str(out, ".SH ");
        put_roff_str(out, group_titles[group]);
        buf_put_str(out, "\n");
        for (const struct verb *v = verbs; v->name != NULL; v++) {
            if (v->group == (enum verb_group)group) {
                put_man_verb(out, v);
            }
        }
    }
    buf_put_str(out, ".SH EXIT STATUS\n");
    put_roff_str(out, exit_text);
    buf_put_str(out, ".SH ENVIRONMENT\n"
                     ".TP\n\\fBSPACE_URL\\fR\naddress of the API\n"
                     ".TP\n\\fBSPACE_API_KEY\\fR\nthe API key\n"
                     ".TP\n\\fBSPACE_CONFIG\\fR\nsettings file of the installation\n"
                     ".TP\n\\fBSPACE_LIBEXEC\\fR\ndirectory of the daemons and set\\-up scripts\n"
                     ".SH FILES\n"
                     ".TP\n\\fI~/.config/space/config\\fR\n"
                     "lines \\fIurl\\fR, \\fIkey\\fR, \\fIkey_file\\fR, \\fIca_file\\fR = value; "
                     "mode 0600 when it holds a key\n"
                     ".TP\n\\fI" SETTINGS_DEFAULT_FILE "\\fR\nsettings of the installation: see "
                     "\\fBspace.conf\\fR(5)\n");
}

/* One paragraph of the commented file: what its comment says of the key under it. */
static void put_man_setting(struct buf *out, struct span paragraph)
{
    size_t at = 0;
    struct span key;

    while (at < paragraph.n && paragraph.p[at] == '#') {
        at = span_find(paragraph, at, '\n') + 1;
    }
    key = span_skip(paragraph, at);
    key = span_head(key, span_find(key, 0, '\n'));
    if (key.n == 0) {
        return; /* the file's own head */
    }
    buf_put_str(out, ".TP\n\\fB");
    put_roff(out, key, false);
    buf_put_str(out, "\\fR\n");
    put_roff(out, span_head(paragraph, at), true);
}

void help_put_man_settings(struct buf *out)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    struct settings s;
    struct span rest;

    settings_init(&s);
    settings_format(&s, &text);
    buf_put_str(out,
                ".TH SPACE.CONF 5 \"\" \"SPACE " SPACE_VERSION "\" \"File formats\"\n"
                ".SH NAME\nspace.conf \\- settings of an installation of SPACE\n"
                ".SH SYNOPSIS\n\\fI" SETTINGS_DEFAULT_FILE "\\fR\n"
                ".SH DESCRIPTION\nLines \\fIkey = value\\fR; those that begin with # are comments. "
                "A key that stands nowhere has the default given here; an unknown key, one that is "
                "set twice or a value out of range is refused with its line.\n"
                "\\fBspace up\\fR and a restart of the daemons apply a change.\n"
                ".SH KEYS AND DEFAULTS\n");
    rest = buf_span(&text);
    while (rest.n > 0) {
        size_t n = 0;

        while (n < rest.n && !(rest.p[n] == '\n' && n + 1 < rest.n && rest.p[n + 1] == '\n')) {
            n++;
        }
        put_man_setting(out, span_head(rest, n));
        rest = span_skip(rest, n + 2);
    }
    buf_put_str(out, ".SH SEE ALSO\n\\fBspace\\fR(1)\n");
}

/* --- the verb --------------------------------------------------------------------------------- */

int cmd_help(struct cli *cli, const struct args *args)
{
    const char *word = args_word(args, 0);
    const struct verb *verb = word != NULL ? verb_find(cli->verbs, word) : NULL;
    _cleanup_buf_ struct buf out = buf_make(0);

    if (word != NULL && verb == NULL) {
        const char *synonym = guess_synonym(word);

        cli_note("space: there is no verb %.60s%s%s", word, synonym != NULL ? "; see " : "",
                 synonym != NULL ? synonym : "");
        cli_note("       `space help` lists them");
        return EXIT_STATUS_USAGE;
    }
    if (args_has(args, "man")) {
        help_put_man(&out, cli->verbs, cli->globals);
    } else if (args_has(args, "man-settings")) {
        help_put_man_settings(&out);
    } else if (verb != NULL) {
        help_put_verb(&out, verb, cli->globals);
    } else {
        help_put_overview(&out, cli->verbs, cli->globals);
    }
    return cli_print(&out);
}
