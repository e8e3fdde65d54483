#include "cli/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include <sys/ioctl.h>

#include "base/buf.h"
#include "base/fd.h"
#include "cli/hints.h"
#include "cli/rest.h"
#include "cli/table.h"
#include "cli/text.h"

const char *cli_env(const struct cli *cli, const char *name)
{
    size_t n = strlen(name);

    for (char **e = cli->envp; e != NULL && *e != NULL; e++) {
        if (strncmp(*e, name, n) == 0 && (*e)[n] == '=') {
            return &(*e)[n + 1];
        }
    }
    return NULL;
}

static size_t terminal_width(void)
{
    struct winsize size;

    if (isatty(STDOUT_FILENO) != 1) {
        return TABLE_UNLIMITED;
    }
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col < 20) {
        return 80;
    }
    return size.ws_col;
}

static int load_settings(struct cli *cli, struct error *err)
{
    const char *path = args_get(cli->args, "config");
    struct error why = {0};
    int r;

    if (path == NULL) {
        path = cli_env(cli, "SPACE_CONFIG");
    }
    cli->config_is_explicit = path != NULL && path[0] != '\0';
    if (!cli->config_is_explicit) {
        path = SETTINGS_DEFAULT_FILE;
    }
    if (span_copy_str(span_of_str(path), cli->config_path, sizeof(cli->config_path)) < 0) {
        return error_set(err, ENAMETOOLONG, "the path of the settings file is too long");
    }
    r = settings_load(&cli->settings, path, &why);
    cli->has_settings = r == 0;
    if (r < 0 && (cli->config_is_explicit || r != -ENOENT) && err != NULL) {
        *err = why;
        return r;
    }
    return 0;
}

int cli_init(struct cli *cli, const struct args *args, char **envp, struct error *err)
{
    const char *libexec;

    cli->args = args;
    cli->envp = envp;
    cli->json = args_has(args, "json");
    cli->out_is_terminal = isatty(STDOUT_FILENO) == 1;
    cli->err_is_terminal = isatty(STDERR_FILENO) == 1;
    cli->width = terminal_width();
    libexec = cli_env(cli, "SPACE_LIBEXEC");
    (void)snprintf(cli->libexec, sizeof(cli->libexec), "%s",
                   libexec != NULL ? libexec : SPACE_LIBEXECDIR);
    return load_settings(cli, err);
}

void cli_done(struct cli *cli)
{
    rest_free(TAKE(cli->rest));
    explicit_bzero(cli->config.key, sizeof(cli->config.key));
}

int cli_need_settings(const struct cli *cli, struct error *err)
{
    if (cli->has_settings) {
        return 0;
    }
    return error_set(err, ENOENT,
                     "no settings file %.120s: copy " SPACE_SHAREDIR "/space.conf there, or name "
                     "one with --config",
                     cli->config_path);
}

int cli_need_root(const char *what, struct error *err)
{
    return geteuid() == 0
               ? 0
               : error_set(err, EPERM, "space %s must run as root: sudo space %s", what, what);
}

int cli_connect(struct cli *cli, struct error *err)
{
    const char *base = cli_env(cli, "XDG_CONFIG_HOME");
    const char *home = cli_env(cli, "HOME");
    char user_file[4096];
    struct config_input in = {
        .url = args_get(cli->args, "url"),
        .key_file = args_get(cli->args, "key-file"),
        .env_url = cli_env(cli, "SPACE_URL"),
        .env_key = cli_env(cli, "SPACE_API_KEY"),
        .home = home,
        .settings = cli->has_settings ? &cli->settings : NULL,
    };

    if (cli->rest != NULL) {
        return 0;
    }
    if (base != NULL && base[0] == '/') {
        (void)snprintf(user_file, sizeof(user_file), "%s/space/config", base);
        in.user_file = user_file;
    } else if (home != NULL && home[0] == '/') {
        (void)snprintf(user_file, sizeof(user_file), "%s/.config/space/config", home);
        in.user_file = user_file;
    }
    /* A settings file that was named by hand says which installation is meant. */
    if (cli->config_is_explicit && args_get(cli->args, "config") != NULL) {
        in.env_url = NULL;
        in.user_file = NULL;
    }
    if (config_resolve(&in, &cli->config, err) < 0) {
        return -EINVAL;
    }
    return rest_new(&cli->config, -1, &cli->rest, err);
}

int cli_fail(const struct cli *cli, const struct error *err)
{
    const json_t *last = cli->rest != NULL ? rest_last_error(cli->rest) : NULL;
    const char *code = json_string_value(json_object_get(last, "code"));

    if (err->errnum == EINTR) {
        return EXIT_STATUS_INTERRUPTED;
    }
    if (err->code == ERROR_INVALID_REQUEST && strncmp(err->field, "--", 2) == 0) {
        return cli_fail_usage(cli, err);
    }
    if (err->errnum == EREMOTEIO) {
        cli_note("space: %s: %s", code != NULL ? code : error_code_name(err->code), err->message);
    } else if (err->errnum == ENOTCONN) {
        cli_note("space: unreachable: %s", err->message);
    } else if (err->code != ERROR_NONE && err->code != ERROR_INTERNAL) {
        cli_note("space: %s: %s", error_code_name(err->code), err->message);
    } else {
        cli_note("space: %s", err->message);
    }
    hints_print(cli, err);
    return err->errnum == ENOTCONN ? EXIT_STATUS_UNREACHABLE : EXIT_STATUS_REFUSED;
}

int cli_fail_ours(const struct cli *cli, const struct error *err)
{
    int status = cli_fail(cli, err);

    return status == EXIT_STATUS_INTERRUPTED || status == EXIT_STATUS_USAGE ? status
                                                                            : EXIT_STATUS_OURS;
}

int cli_fail_usage(const struct cli *cli, const struct error *err)
{
    const struct verb *verb = cli->args->verb;

    cli_note("space: %s", err->message);
    if (verb != NULL) {
        cli_note("       see `space %s --help`", verb->name);
    } else {
        cli_note("       see `space help`");
    }
    return EXIT_STATUS_USAGE;
}

int cli_print(const struct buf *text)
{
    int r = buf_error(text);

    if (r == 0) {
        r = fd_write_all(STDOUT_FILENO, buf_span(text));
    }
    if (r < 0 && r != -EPIPE) {
        cli_note("space: cannot write the answer: %s", strerror(-r));
    }
    return r < 0 ? EXIT_STATUS_REFUSED : EXIT_STATUS_DONE;
}

int cli_print_json(const json_t *json)
{
    _cleanup_free_ char *text = json_dumps(json, JSON_INDENT(2) | JSON_ENCODE_ANY);
    _cleanup_buf_ struct buf out = buf_make(0);

    if (text == NULL) {
        cli_note("space: out of memory");
        return EXIT_STATUS_REFUSED;
    }
    buf_put_str(&out, text);
    buf_put_str(&out, "\n");
    return cli_print(&out);
}

int cli_print_answers(const json_t *answers, size_t words)
{
    _cleanup_json_ json_t *document = NULL;

    if (words == 1) {
        const json_t *only = json_array_get(answers, 0);

        return only == NULL ? EXIT_STATUS_DONE : cli_print_json(only);
    }
    document = json_pack("{s:O, s:n}", "items", answers, "next_cursor");
    return cli_print_json(document);
}

int cli_print_table(const struct cli *cli, const struct table *table)
{
    _cleanup_buf_ struct buf out = buf_make(0);

    if (table_format(table, cli->width, &out) < 0) {
        cli_note("space: out of memory");
        return EXIT_STATUS_REFUSED;
    }
    return cli_print(&out);
}

static void note(const char *format, va_list args) _printf_(1, 0);

/* One line, made safe: messages may quote what came from a server or a guest. */
static void note(const char *format, va_list args)
{
    _cleanup_buf_ struct buf raw = buf_make(0);
    _cleanup_buf_ struct buf line = buf_make(0);

    buf_vprintf(&raw, format, args);
    text_put_safe(&line, buf_span(&raw));
    buf_put_str(&line, "\n");
    if (fd_write_all(STDERR_FILENO, buf_span(&line)) < 0) {
        return; /* there is nowhere left to say it */
    }
}

void cli_note(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    note(format, args);
    va_end(args);
}

void cli_note_lines(const char *prefix, struct span text)
{
    while (text.n > 0) {
        struct span line = span_head(text, span_find(text, 0, '\n'));

        cli_note("%s%.*s", prefix, (int)line.n, (const char *)line.p);
        text = span_skip(text, line.n + 1);
    }
}

void cli_progress(const struct cli *cli, const char *format, ...)
{
    va_list args;

    if (!cli->err_is_terminal) {
        return;
    }
    va_start(args, format);
    note(format, args);
    va_end(args);
}

bool cli_confirm(const struct cli *cli, const char *format, ...)
{
    _cleanup_buf_ struct buf raw = buf_make(0);
    _cleanup_buf_ struct buf line = buf_make(0);
    char answer[8] = "";
    va_list args;

    if (!cli->err_is_terminal || isatty(STDIN_FILENO) != 1) {
        return false;
    }
    va_start(args, format);
    buf_vprintf(&raw, format, args);
    va_end(args);
    text_put_safe(&line, buf_span(&raw));
    buf_put_str(&line, " [y/N] ");
    return fd_write_all(STDERR_FILENO, buf_span(&line)) == 0 &&
           read(STDIN_FILENO, answer, sizeof(answer) - 1) > 0 &&
           (answer[0] == 'y' || answer[0] == 'Y');
}
