/* `space cp`: files and trees between this machine and a sandbox. */
#include <errno.h>
#include <locale.h>
#include <string.h>

#include "cli/api.h"
#include "cli/attach.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/copy.h"

static int
run(struct copy *c, const struct copy_place *from, const struct copy_place *to, struct error *err)
{
    if (from->is_remote) {
        return to->is_stream ? copy_down_stream(c, from->path, err)
                             : copy_down(c, from->path, to->path, err);
    }
    return from->is_stream ? copy_up_stream(c, to->path, err)
                           : copy_up(c, from->path, to->path, err);
}

static int check_places(const struct cli *cli,
                        const struct copy_place *from,
                        const struct copy_place *to,
                        struct error *err)
{
    if (from->is_remote && to->is_remote) {
        return error_set(err, EINVAL,
                         "one of the two is on this machine; from sandbox to sandbox: "
                         "space cp A:PATH - | space cp - B:PATH");
    }
    if (!from->is_remote && !to->is_remote) {
        return error_set(err, EINVAL, "one of the two is in a sandbox: SANDBOX:PATH");
    }
    if (from->is_stream && isatty(STDIN_FILENO) == 1) {
        return error_set(err, EINVAL, "standard input is a terminal; - reads a tar archive");
    }
    if (to->is_stream && (cli->out_is_terminal || cli->json)) {
        return error_set(err, EINVAL,
                         "- writes a tar archive: send standard output to a file or pipe%s",
                         cli->json ? ", without --json" : "");
    }
    return 0;
}

static int finish(struct copy *c, int r, const struct error *err)
{
    int status = c->incomplete > 0 ? EXIT_STATUS_REFUSED : EXIT_STATUS_DONE;

    progress_clear(&c->progress);
    if (r == -EPIPE) {
        return EXIT_STATUS_REFUSED; /* nobody reads the archive any more */
    }
    if (r < 0) {
        return cli_fail(c->cli, err);
    }
    if (c->cli->json) {
        json_t *nothing = json_object();
        int printed = cli_print_json(c->answer != NULL ? c->answer : nothing);

        json_decref(nothing);
        return printed != EXIT_STATUS_DONE ? printed : status;
    }
    return status;
}

int cmd_cp(struct cli *cli, const struct args *args)
{
    struct copy c = {.cli = cli, .user = args_get(args, "user"), .progress = {.cli = cli}};
    _cleanup_close_ int signal_fd = -1;
    struct copy_place from;
    struct copy_place to;
    struct error err = {0};
    int status;
    int r;

    /* Names are UTF-8 in archives, whatever this terminal's language is. */
    (void)setlocale(LC_CTYPE, "C.UTF-8");
    copy_place_parse(args_word(args, 0), &from);
    copy_place_parse(args_word(args, 1), &to);
    if (check_places(cli, &from, &to, &err) < 0) {
        return cli_fail_usage(cli, &err);
    }
    if (cli_connect(cli, &err) < 0 ||
        api_find_sandbox(cli, from.is_remote ? from.sandbox : to.sandbox, c.sandbox_id, &err) < 0) {
        return cli_fail(cli, &err);
    }
    signal_fd = attach_take_signals(&err);
    if (signal_fd < 0) {
        return cli_fail(cli, &err);
    }
    c.signal_fd = signal_fd;
    rest_set_signal_fd(cli->rest, signal_fd);
    r = run(&c, &from, &to, &err);
    rest_set_signal_fd(cli->rest, -1);
    status = finish(&c, r, &err);
    json_decref(c.answer);
    return status;
}
