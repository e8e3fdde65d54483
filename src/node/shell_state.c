#include "node/shell_state.h"

#include <string.h>

#include "base/buf.h"

/* Stand for what differs from command to command. None of it needs quoting. */
#define NAME  "\001"
#define NAMES "\002" /* of the client's own variables */
#define SAVE  "\003" /* save_text */

/* Writes the state. Runs at the end of the user's shell, whatever that has done to itself; it has
 * no single quotes, because it is also the text of a trap. The names of variables that are given to
 * every process, or cannot be set, are left out. */
static const char save_text[] =
    "{ set +euvxCf; } 2>/dev/null; unset -f builtin command compgen mapfile printf; umask 077; "
    "for __space_d in /var/tmp /tmp \"$HOME\"; do __space_d+=/.space-shell-$EUID; "
    "[[ -d $__space_d ]] || command -p mkdir -m 700 -- \"$__space_d\" 2>/dev/null; "
    "[[ -d $__space_d && -O $__space_d && ! -L $__space_d ]] && break; __space_d=; done; "
    "__space_t=$__space_d/t-" NAME "; declare -A __space_i=(); "
    /* What the process was given. */
    "mapfile -d \"\" -t __space_a </proc/$$/environ; "
    "for __space_n in \"${__space_a[@]}\"; do "
    "[[ ${__space_n%%=*} =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] && "
    "__space_i[${__space_n%%=*}]=${__space_n#*=}; done; "
    "if [[ -n $__space_d ]] && compgen -e >|\"$__space_t\" && "
    "mapfile -t __space_a <\"$__space_t\" && { "
    "printf \"cd -- %q 2>/dev/null\\n\" \"$PWD\"; "
    "for __space_n in \"${__space_a[@]}\"; do case $__space_n in "
    "_|PWD|SHLVL|SHELLOPTS|BASHOPTS|EUID|UID|PPID|__space_*) "
    "unset \"__space_i[$__space_n]\"; continue;; esac; "
    "[[ -v $__space_n ]] || continue; "
    "[[ \" " NAMES " \" != *\" $__space_n \"* && -v __space_i[$__space_n] && "
    "${__space_i[$__space_n]} == \"${!__space_n}\" ]] || "
    "printf \"export %s=%q\\n\" \"$__space_n\" \"${!__space_n}\"; "
    "unset \"__space_i[$__space_n]\"; done; "
    "for __space_n in \"${!__space_i[@]}\"; do printf \"unset -v %s\\n\" \"$__space_n\"; done; "
    "printf \"# end\\n\"; } >|\"$__space_t\" && "
    "command -p mv -f -- \"$__space_t\" \"${__space_t%/t-*}/s-" NAME "\"; then :; "
    "else printf \"space: the shell state " NAME " could not be kept\\n\" >&2; fi; __space_k=1";

/* `exit`, `set -e` and `set -u` come here: then the trap sees `eval` as the running command. A
 * signal shows whatever it interrupted. */
static const char trap_text[] =
    "trap '{ set +x; [[ -z ${__space_k-} && "
    "( $BASH_COMMAND == eval* || $BASH_COMMAND == exit* ) ]]; } 2>/dev/null && { " SAVE
    "; }' EXIT; ";

/* With a trap of its own for EXIT, the command's trap is the only one that runs after `exit`: so
 * that is a function then, which writes the state in a copy of the shell and changes nothing for
 * the trap. In POSIX mode no function can have this name. */
static const char exit_text[] =
    "[[ -o posix ]] || exit() { { local __space_s=$? __space_o=$-; set +x; } 2>/dev/null; "
    "if [[ -z ${__space_k-} && $BASHPID == \"$$\" ]]; then ( " SAVE " ); __space_k=1; fi; "
    "{ [[ $__space_o != *x* ]] || set -x; } 2>/dev/null; builtin exit \"${@-$__space_s}\"; }; ";

static const char keep_env_text[] =
    "__space_e=(); for __space_n in " NAMES "; do [[ -v $__space_n ]] && "
    "__space_e+=(\"$__space_n=${!__space_n}\"); done; ";
static const char keep_cwd_text[] = "__space_c=$PWD; ";
static const char load_text[] =
    "for __space_d in /var/tmp /tmp \"$HOME\"; do __space_d+=/.space-shell-$EUID; "
    "if [[ -O $__space_d && ! -L $__space_d && -f $__space_d/s-" NAME " ]]; then "
    ". \"$__space_d/s-" NAME "\"; break; fi; done; ";
static const char give_env_text[] = "(( ${#__space_e[@]} )) && export \"${__space_e[@]}\"; ";
static const char give_cwd_text[] = "cd -- \"$__space_c\"; ";
/* All on the first line, so that the line numbers of the command's messages are right. A command
 * that ends with a trap of its own for EXIT comes out of eval. */
static const char run_text[] =
    "unset -v __space_c __space_d __space_e __space_n; BASH_EXECUTION_STRING=$1; "
    "eval \"set --; $1\"; { __space_s=$?; set +x; } 2>/dev/null; " SAVE "; builtin exit $__space_s";

static bool is_letter(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

/* Whether a shell can set the variable; what it cannot set goes to programs as it is. */
static bool is_settable(const char *name)
{
    static const char *const fixed[] = {"_",         "BASHOPTS", "BASH_VERSINFO", "EUID", "PPID",
                                        "SHELLOPTS", "UID"};

    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++) {
        if (strcmp(name, fixed[i]) == 0) {
            return false;
        }
    }
    if (!is_letter(name[0]) || strncmp(name, "__space_", 8) == 0) {
        return false;
    }
    for (; *name != '\0'; name++) {
        if (!is_letter(*name) && (*name < '0' || *name > '9')) {
            return false;
        }
    }
    return true;
}

static void put_names(json_t *env, struct buf *out)
{
    const char *name;
    const json_t *value;
    bool first = true;

    json_object_foreach(env, name, value) {
        if (is_settable(name)) {
            buf_put_str(out, first ? "" : " ");
            buf_put_str(out, name);
            first = false;
        }
    }
}

static void put_plain(const char *text, const char *name, const char *names, struct buf *out)
{
    for (; *text != '\0'; text++) {
        if (*text == NAME[0]) {
            buf_put_str(out, name);
        } else if (*text == NAMES[0]) {
            buf_put_str(out, names);
        } else {
            buf_put_u8(out, (uint8_t)*text);
        }
    }
}

static void put_text(const char *text, const char *name, const char *names, struct buf *out)
{
    const char *save = strchr(text, SAVE[0]);
    _cleanup_buf_ struct buf before = buf_make(0);

    if (save == NULL) {
        put_plain(text, name, names, out);
        return;
    }
    buf_put(&before, span_make(text, (size_t)(save - text)));
    put_plain(buf_str(&before), name, names, out);
    put_plain(save_text, name, names, out);
    put_plain(&save[1], name, names, out);
}

/* A function can be seen (`type`, `declare -F`): it is there only where it may be needed. */
static bool may_exit_with_a_trap(const char *command)
{
    return strstr(command, "trap") != NULL && strstr(command, "exit") != NULL;
}

static void put_wrapper(const struct shell_state_command *command, struct buf *out)
{
    _cleanup_buf_ struct buf names = buf_make(0);
    bool has_env;

    put_names(command->env, &names);
    has_env = names.n > 0;
    put_text(trap_text, command->name, buf_str(&names), out);
    if (may_exit_with_a_trap(command->command)) {
        put_text(exit_text, command->name, buf_str(&names), out);
    }
    if (has_env) {
        put_text(keep_env_text, command->name, buf_str(&names), out);
    }
    buf_put_str(out, command->has_cwd ? keep_cwd_text : "");
    put_text(load_text, command->name, buf_str(&names), out);
    buf_put_str(out, has_env ? give_env_text : "");
    buf_put_str(out, command->has_cwd ? give_cwd_text : "");
    put_text(run_text, command->name, buf_str(&names), out);
    if (buf_error(&names) != 0) {
        out->error = buf_error(&names);
    }
}

uint32_t shell_state_format(const struct shell_state_command *command, struct buf *raw)
{
    _cleanup_buf_ struct buf wrapper = buf_make(0);

    put_wrapper(command, &wrapper);
    if (buf_error(&wrapper) != 0) {
        raw->error = buf_error(&wrapper);
    }
    buf_put_block(raw, span_of_str("/bin/bash"));
    buf_put_block(raw, span_of_str("-c"));
    buf_put_block(raw, buf_span(&wrapper));
    buf_put_block(raw, span_of_str("/bin/bash"));
    buf_put_block(raw, span_of_str(command->command));
    return 5;
}

size_t shell_state_overhead(const char *name, json_t *env)
{
    static const char longest_text[] = "trap exit";
    const struct shell_state_command longest = {name, longest_text, env, true};
    _cleanup_buf_ struct buf raw = buf_make(0);

    (void)shell_state_format(&longest, &raw);
    return raw.n - strlen(longest_text);
}
