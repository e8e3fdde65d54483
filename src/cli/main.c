/* The program `space`: parses the command line, runs one verb, leaves with its exit status. */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "cli/cli.h"
#include "cli/help.h"
#include "cli/verbs.h"

/* --help and --version work without settings, and whatever else is on the line. */
static int print_early(const struct args *args)
{
    _cleanup_buf_ struct buf out = buf_make(0);

    if (args_has(args, "version")) {
        buf_put_str(&out, "space " SPACE_VERSION "\n");
    } else if (args->verb != NULL) {
        help_put_verb(&out, args->verb, cli_globals);
    } else {
        help_put_overview(&out, cli_verbs, cli_globals);
    }
    return cli_print(&out);
}

/* Whether a verb can do without the settings file being readable. */
static bool needs_no_settings(const struct verb *verb)
{
    static const char *const names[] = {"help", "__complete", "version", "doctor"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(verb->name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* --config names nothing that can be read; a file with a mistake in it is no wrong usage. */
static bool is_no_file(const struct error *err)
{
    return err->errnum == ENOENT || err->errnum == ENOTDIR || err->errnum == EISDIR ||
           err->errnum == EACCES || err->errnum == ENAMETOOLONG;
}

static int run(struct cli *cli, const struct args *args, char **envp)
{
    struct error err = {0};
    int status;

    if (cli_init(cli, args, envp, &err) < 0 && !needs_no_settings(args->verb)) {
        if (args_has(args, "config") && is_no_file(&err)) {
            return cli_fail_usage(cli, &err);
        }
        cli_note("space: %s", err.message);
        return EXIT_STATUS_REFUSED;
    }
    status = args->verb->run(cli, args);
    cli_done(cli);
    return status;
}

/* Else what is opened next, the connection to the API, takes the number of a closed one, and what
 * is printed goes there. Reading gives the end, writing EBADF, as if it were closed still. */
static void fill_standard_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) < 0) {
            return; /* nothing to fill them with */
        }
    }
}

int main(int argc, char **argv, char **envp)
{
    _cleanup_args_ struct args args = {0};
    _cleanup_free_ struct cli *cli = calloc(1, sizeof(*cli));
    struct error err = {0};

    fill_standard_descriptors();
    if (cli == NULL) {
        return EXIT_STATUS_REFUSED;
    }
    cli->verbs = cli_verbs;
    cli->globals = cli_globals;
    cli->args = &args;
    if (args_parse(&args, argc, argv, cli_verbs, cli_globals, &err) < 0) {
        return cli_fail_usage(cli, &err);
    }
    if (args_has(&args, "help") || args_has(&args, "version")) {
        return print_early(&args);
    }
    if (args.verb == NULL) {
        (void)error_set(&err, 22, "which verb?");
        return cli_fail_usage(cli, &err);
    }
    return run(cli, &args, envp);
}
