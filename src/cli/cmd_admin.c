/* `space keys`. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/installation.h"
#include "cli/rest.h"
#include "cli/table.h"
#include "cli/text.h"

#define KEY_WORDS        "keys [ls | create [NAME] --out FILE | rm KEY…]"
#define PASSWD_TEXT_SIZE 16384U

/* Whose a new key file is to be. */
struct owner {
    bool is_given;
    uid_t uid;
    gid_t gid;
    char name[64];
};

static int list_keys(struct cli *cli)
{
    static const char *const heads[] = {"ID", "~NAME", "ROLE", "CREATED", "EXPIRES"};
    _cleanup_table_ struct table *table = table_new(heads, sizeof(heads) / sizeof(heads[0]));
    _cleanup_json_ json_t *list = NULL;
    struct error err = {0};
    const json_t *key;
    size_t i;

    if (table == NULL || cli_connect(cli, &err) < 0 ||
        api_list(cli, "/v1/keys", 0, &list, &err) < 0) {
        return cli_fail(cli, &err);
    }
    if (cli->json) {
        return cli_print_json(list);
    }
    json_array_foreach(json_object_get(list, "items"), i, key) {
        const char *expires = api_text(key, "expires_at");

        table_put(table, api_text(key, "id"));
        table_put(table, api_text(key, "name"));
        table_put(table, api_text(key, "role"));
        table_printf(table, "%.10s", api_text(key, "created_at"));
        table_printf(table, "%.10s", expires[0] != '\0' ? expires : "never");
    }
    return cli_print_table(cli, table);
}

/* --expires is a moment (RFC 3339) or a time from now (30d). */
static int put_expiry(json_t *body, const struct args *args, struct error *err)
{
    const char *text = args_get(args, "expires");
    char when[CLOCK_TEXT_SIZE];
    int64_t moment_ms;
    double seconds;

    if (text == NULL) {
        return 0;
    }
    if (clock_parse(text, &moment_ms) < 0) {
        if (text_parse_seconds(text, "expires", &seconds, err) < 0) {
            return -EINVAL;
        }
        moment_ms = clock_real_ms() + (int64_t)(seconds * 1000);
    }
    clock_format(moment_ms, when);
    return json_object_set_new(body, "expires_at", json_string(when));
}

/* The file is made before the key: a key that cannot be kept is not made. */
static int open_key_file(const char *path, struct error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

    if (fd >= 0) {
        return fd;
    }
    return errno == EEXIST
               ? error_set(err, EEXIST, "%.180s is there already; a key file is never overwritten",
                           path)
               : error_set(err, errno, "cannot make %.180s: %s", path, strerror(errno));
}

static int write_key(int fd, const char *key, struct error *err)
{
    _cleanup_buf_ struct buf line = buf_make(0);
    int r;

    buf_printf(&line, "%s\n", key);
    r = buf_error(&line);
    if (r == 0) {
        r = fd_write_all(fd, buf_span(&line));
    }
    if (r == 0 && fsync(fd) < 0 && errno != EINVAL && errno != EROFS) {
        r = -errno;
    }
    explicit_bzero(line.p, line.n);
    return r < 0 ? error_set(err, -r, "cannot write the key: %s", strerror(-r)) : 0;
}

/* --owner USER; else, under sudo, the user who called it: a file of root's would be of no use to
 * anybody. */
static int
find_owner(const struct cli *cli, const struct args *args, struct owner *ret, struct error *err)
{
    const char *word = args_get(args, "owner");
    _cleanup_free_ char *text = malloc(PASSWD_TEXT_SIZE);
    struct passwd entry;
    struct passwd *found = NULL;
    uint64_t uid = 0;

    if (text == NULL) {
        return error_set(err, ENOMEM, "out of memory");
    }
    if (word != NULL) {
        (void)getpwnam_r(word, &entry, text, PASSWD_TEXT_SIZE, &found);
    } else if (geteuid() == 0 && cli_env(cli, "SUDO_UID") != NULL &&
               span_parse_u64(span_of_str(cli_env(cli, "SUDO_UID")), UINT32_MAX - 1, &uid) == 0 &&
               uid != 0) {
        (void)getpwuid_r((uid_t)uid, &entry, text, PASSWD_TEXT_SIZE, &found);
    }
    if (found == NULL) {
        return word == NULL ? 0
                            : error_set_code(err, ERROR_INVALID_REQUEST, "--owner",
                                             "--owner: this machine has no user %.60s", word);
    }
    ret->is_given = true;
    ret->uid = found->pw_uid;
    ret->gid = found->pw_gid;
    (void)snprintf(ret->name, sizeof(ret->name), "%.60s", found->pw_name);
    return 0;
}

static int give_key_file(int fd, const struct owner *owner, struct error *err)
{
    if (!owner->is_given || fchown(fd, owner->uid, owner->gid) == 0) {
        return 0;
    }
    return error_set(err, errno, "cannot give the key file to %s: %s", owner->name,
                     errno == EPERM ? "only root can (sudo)" : strerror(errno));
}

/* What to do with the file, in words that hold in every directory. */
static void say_key_file(const char *out, const struct owner *owner, const json_t *key)
{
    _cleanup_free_ char *absolute = realpath(out, NULL);
    const char *path = absolute != NULL ? absolute : out;

    cli_note("%s (%s) is in %s, mode 0600%s%s; use it with --key-file %s,", api_text(key, "id"),
             api_text(key, "role"), path, owner->is_given ? ", owner " : "",
             owner->is_given ? owner->name : "", path);
    cli_note("       or write key_file = %s into ~/.config/space/config", path);
    if (!owner->is_given && geteuid() == 0) {
        cli_note("       only root can read it; --owner USER gives it to another");
    }
}

/* Asks the API for a key; as root on the installation's machine and without a key, asks the
 * program that owns the store. */
static int make_key(struct cli *cli, const json_t *body, json_t **ret, struct error *err)
{
    int r = cli_connect(cli, err);

    if (r < 0) {
        return r;
    }
    if (cli->config.key[0] == '\0' && geteuid() == 0 && cli->has_settings &&
        args_get(cli->args, "url") == NULL) {
        return installation_create_key(cli, body, ret, err);
    }
    return api_send(cli, "POST", "/v1/keys", body, ret, err);
}

static int create_key(struct cli *cli, const struct args *args)
{
    const char *role = args_get(args, "role");
    const char *out = args_get(args, "out");
    const char *name = args_word(args, 1);
    _cleanup_json_ json_t *body = json_pack("{s:s, s:s}", "name", name != NULL ? name : "cli",
                                            "role", role != NULL ? role : "member");
    _cleanup_json_ json_t *answer = NULL;
    _cleanup_close_ int fd = -1;
    struct owner owner = {0};
    struct error err = {0};

    if (out == NULL) {
        (void)error_set(&err, EINVAL, "where to? --out FILE (a key is shown once, never again)");
        return cli_fail_usage(cli, &err);
    }
    if (args->word_count > 2 || body == NULL || put_expiry(body, args, &err) < 0) {
        if (err.errnum == 0) {
            (void)error_set(&err, EINVAL, "unexpected argument: space " KEY_WORDS);
        }
        return cli_fail_usage(cli, &err);
    }
    if (find_owner(cli, args, &owner, &err) < 0) {
        return cli_fail(cli, &err);
    }
    fd = open_key_file(out, &err);
    if (fd < 0) {
        return cli_fail(cli, &err);
    }
    if (give_key_file(fd, &owner, &err) < 0 || make_key(cli, body, &answer, &err) < 0 ||
        write_key(fd, api_text(answer, "key"), &err) < 0) {
        (void)unlink(out);
        return cli_fail(cli, &err);
    }
    if (cli->json) {
        (void)json_object_del(answer, "key");
        return cli_print_json(answer);
    }
    say_key_file(out, &owner, answer);
    return EXIT_STATUS_DONE;
}

/* A key by id or by its name, when only one has it. */
static int find_key(struct cli *cli, const char *word, char ret_id[ID_SIZE], struct error *err)
{
    _cleanup_json_ json_t *list = NULL;
    const json_t *key;
    size_t found = 0;
    size_t i;
    int r;

    if (id_is_valid(word, "ky")) {
        return span_copy_str(span_of_str(word), ret_id, ID_SIZE);
    }
    r = api_list(cli, "/v1/keys", 0, &list, err);
    if (r < 0) {
        return r;
    }
    json_array_foreach(json_object_get(list, "items"), i, key) {
        if (strcmp(api_text(key, "name"), word) == 0) {
            (void)snprintf(ret_id, ID_SIZE, "%.20s", api_text(key, "id"));
            found++;
        }
    }
    if (found != 1) {
        return found == 0
                   ? error_set_code(err, ERROR_NOT_FOUND, "key",
                                    "no key is called %.60s (space keys shows them)", word)
                   : error_set_code(err, ERROR_CONFLICT, "key",
                                    "%zu keys are called %.60s; name one by its id", found, word);
    }
    return 0;
}

static int remove_keys(struct cli *cli, const struct args *args)
{
    _cleanup_json_ json_t *answers = json_array();
    struct error err = {0};
    int status = EXIT_STATUS_DONE;

    if (args->word_count < 2) {
        (void)error_set(&err, EINVAL, "which key? space keys rm KEY…");
        return cli_fail_usage(cli, &err);
    }
    if (cli_connect(cli, &err) < 0) {
        return cli_fail(cli, &err);
    }
    for (size_t i = 1; i < args->word_count; i++) {
        _cleanup_json_ json_t *answer = NULL;
        char path[REST_REQUEST_SIZE];
        char id[ID_SIZE];

        if (find_key(cli, args->words[i], id, &err) < 0) {
            status = cli_fail(cli, &err);
            continue;
        }
        (void)snprintf(path, sizeof(path), "/v1/keys/%s", id);
        if (api_send(cli, "DELETE", path, NULL, &answer, &err) < 0) {
            status = cli_fail(cli, &err);
            continue;
        }
        (void)json_array_append(answers, answer);
        if (!cli->json) {
            cli_progress(cli, "revoked %s", id);
        }
    }
    if (cli->json) {
        (void)cli_print_answers(answers, args->word_count - 1);
    }
    return status;
}

int cmd_keys(struct cli *cli, const struct args *args)
{
    const char *what = args_word(args, 0);
    struct error err = {0};

    if (what == NULL || (strcmp(what, "ls") == 0 && args->word_count == 1)) {
        return list_keys(cli);
    }
    if (strcmp(what, "create") == 0) {
        return create_key(cli, args);
    }
    if (strcmp(what, "rm") == 0) {
        return remove_keys(cli, args);
    }
    (void)error_set(&err, EINVAL, "unexpected argument %.60s: space " KEY_WORDS, what);
    return cli_fail_usage(cli, &err);
}
