#include "cli/hints.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cli/api.h"
#include "cli/cli.h"
#include "cli/rest.h"

#define ERRNO_MAX  4096
#define KEY_PREFIX "space_" /* of an API key; a token has another one */

static const json_t *refusal_details(const struct cli *cli)
{
    return json_object_get(cli->rest != NULL ? rest_last_error(cli->rest) : NULL, "details");
}

/* Whether a sentence has the text of this errno in it already. */
static bool says_errno(const char *message, const char *name)
{
    for (int i = 1; i < ERRNO_MAX; i++) {
        const char *known = strerrorname_np(i);

        if (known != NULL && strcmp(known, name) == 0) {
            return strstr(message, strerrordesc_np(i)) != NULL;
        }
    }
    return false;
}

/* What was given on the command line and is in another unit, or under another name, in the API;
 * NULL when the field is none of these. */
static const char *option_of_field(const struct cli *cli, const char *field)
{
    static const char *const names[][2] = {
        {"memory_mib", "memory"},
        {"disk_mib", "disk"},
        {"lifecycle.timeout_seconds", "lifetime"},
        {"lifecycle.idle_timeout_seconds", "idle-timeout"},
        {"lifecycle.keep_suspended_seconds", "keep-suspended"},
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(field, names[i][0]) == 0 && args_get(cli->args, names[i][1]) != NULL) {
            return names[i][1];
        }
    }
    return NULL;
}

/* The details of a refusal that a person can use: which object, which errno. */
static void print_details(const struct cli *cli, const struct error *err)
{
    const json_t *last = cli->rest != NULL ? rest_last_error(cli->rest) : NULL;
    const char *sandbox = api_text(refusal_details(cli), "sandbox_id");
    const char *errno_name = api_text(refusal_details(cli), "errno");
    const char *option;

    if (err->errnum != EREMOTEIO) {
        return;
    }
    option = option_of_field(cli, api_text(refusal_details(cli), "field"));
    if (option != NULL) {
        cli_note("       option --%s", option);
    }
    /* After not_found nothing was made: the id would lead to nothing. */
    if (sandbox[0] != '\0' && err->code != ERROR_NOT_FOUND &&
        strstr(err->message, sandbox) == NULL) {
        cli_note("       sandbox %s", sandbox);
    }
    if (errno_name[0] != '\0' && !says_errno(err->message, errno_name)) {
        cli_note("       errno %s", errno_name);
    }
    if (strcmp(api_text(last, "code"), "internal") == 0) {
        cli_note("       request %s", api_text(last, "request_id"));
    }
}

static const char *no_key_remedy(const struct cli *cli)
{
    if (cli->config.key_problem[0] != '\0') {
        cli_note("       no API key: %s", cli->config.key_problem);
    } else {
        cli_note("       no API key");
    }
    if (!cli->has_settings && strcmp(cli->config.url_source, "the default") == 0) {
        cli_note("       there is no settings file %s, which would name the installation's own key",
                 cli->config_path);
    }
    cli_note("       on the machine of the installation `sudo space keys create NAME --out FILE` "
             "makes one");
    return "then use --key-file FILE, or write key_file = FILE into ~/.config/space/config; or set "
           "SPACE_API_KEY";
}

/* The user in the sandbox, or the role of the key. */
static const char *forbidden_remedy(const struct cli *cli)
{
    const struct verb *verb = cli->args->verb;
    const char *user = args_get(cli->args, "user");

    if (api_text(refusal_details(cli), "errno")[0] == '\0') {
        return strncmp(cli->config.key, KEY_PREFIX, sizeof(KEY_PREFIX) - 1) == 0
                   ? "an administrator makes keys of other roles: `space keys create --role ROLE "
                     "--out FILE`"
                   : "use an API key instead of a token";
    }
    if (verb == NULL || option_find(verb->options, NULL, "user", strlen("user")) == NULL ||
        (user != NULL && strcmp(user, "root") == 0)) {
        return NULL;
    }
    return "the user in the sandbox may not do that; -u root does it as root of the sandbox";
}

static const char *busy_remedy(const struct cli *cli, const struct error *err)
{
    if (strcmp(api_text(refusal_details(cli), "reason"), "node_drained") == 0) {
        return "`space node undrain`, with an admin key, ends that when the maintenance is over";
    }
    return err->code == ERROR_CAPACITY_UNAVAILABLE
               ? "delete or suspend sandboxes (space rm, space suspend), or ask for less memory"
               : "try again in a moment; `space status` shows what is not ready";
}

/* One that a wake would start again; a wake that was refused for it has said why. */
static const char *precondition_remedy(const struct cli *cli)
{
    const struct verb *verb = cli->args->verb;

    if (strcmp(api_text(refusal_details(cli), "state"), "error") != 0 ||
        (verb != NULL && strcmp(verb->name, "wake") == 0)) {
        return NULL;
    }
    return "`space wake SANDBOX` starts it again from its disk, where it is kept; what ran is lost";
}

static const char *find_remedy(const struct cli *cli, const struct error *err)
{
    const char *resource = api_text(refusal_details(cli), "resource");

    if (err->code == ERROR_UNAUTHORIZED) {
        return cli->config.key[0] == '\0'
                   ? no_key_remedy(cli)
                   : "the key is unknown, expired or revoked: an administrator makes one with "
                     "`space keys create --out FILE`";
    }
    if (err->code == ERROR_FORBIDDEN) {
        return forbidden_remedy(cli);
    }
    if (err->code == ERROR_NOT_FOUND && strcmp(resource, "template") == 0) {
        return "`space templates` lists what there is";
    }
    if (err->code == ERROR_CAPACITY_UNAVAILABLE || err->code == ERROR_RATE_LIMITED ||
        err->code == ERROR_SERVICE_UNAVAILABLE) {
        return busy_remedy(cli, err);
    }
    if (err->code == ERROR_FAILED_PRECONDITION) {
        return precondition_remedy(cli);
    }
    if (err->code == ERROR_STORAGE_FULL) {
        return "free space on the data volume: space status, space rm";
    }
    if (err->code == ERROR_INTERNAL && err->errnum == EREMOTEIO) {
        return "the daemons' logs tell more; `space doctor --bundle FILE` packs them";
    }
    return NULL;
}

void hints_print(const struct cli *cli, const struct error *err)
{
    const char *remedy;

    if (err->errnum == ENOTCONN && cli->rest != NULL && rest_distrusts(cli->rest)) {
        cli_note(
            "       address from %s; where the certificate is right, name the one that signed it: "
            "ca_file = FILE in ~/.config/space/config",
            cli->config.url_source);
        return;
    }
    if (err->errnum == ENOTCONN && !cli->has_settings &&
        strcmp(cli->config.url_source, "the default") == 0) {
        cli_note(
            "       address from the default: there is no settings file %s; --url or SPACE_URL "
            "names an API elsewhere",
            cli->config_path);
        return;
    }
    if (err->errnum == ENOTCONN) {
        cli_note("       address from %s; on its machine, `space status` tells what runs and "
                 "`space up` starts it",
                 cli->config.url_source);
        return;
    }
    print_details(cli, err);
    remedy = find_remedy(cli, err);
    if (remedy != NULL) {
        cli_note("       %s", remedy);
    }
}
