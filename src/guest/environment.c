#include "guest/environment.h"

#include <errno.h>
#include <string.h>

#include "guest/users.h"

#define DEFAULT_PATH  "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define DEFAULT_COUNT 7U /* PATH, LANG, HOME, USER, LOGNAME, SHELL, TERM */

/* Copies texts one after the other into memory that was measured before. */
struct packer {
    char *at;
};

static char *pack(struct packer *p, struct span a, struct span b)
{
    char *start = p->at;

    if (a.n > 0) {
        memcpy(p->at, a.p, a.n);
    }
    if (b.n > 0) {
        memcpy(&p->at[a.n], b.p, b.n);
    }
    p->at[a.n + b.n] = '\0';
    p->at += a.n + b.n + 1;
    return start;
}

static size_t name_length(const char *setting)
{
    return (size_t)(strchrnul(setting, '=') - setting) + 1;
}

/* Adds a setting, in place of an earlier one of that name. */
static size_t put_setting(char **envp, size_t n, char *setting)
{
    size_t length = name_length(setting);

    for (size_t i = 0; i < n; i++) {
        if (strncmp(envp[i], setting, length) == 0) {
            envp[i] = setting;
            return n;
        }
    }
    envp[n] = setting;
    return n + 1;
}

static size_t
put_usual(struct packer *p, char **envp, const struct agent_start *start, const struct user *user)
{
    const struct span none = span_make(NULL, 0);
    size_t n = 0;

    envp[n++] = pack(p, span_of_str("PATH=" DEFAULT_PATH), none);
    envp[n++] = pack(p, span_of_str("LANG=C.UTF-8"), none);
    envp[n++] = pack(p, span_of_str("HOME="), span_of_str(user->home));
    envp[n++] = pack(p, span_of_str("USER="), span_of_str(user->name));
    envp[n++] = pack(p, span_of_str("LOGNAME="), span_of_str(user->name));
    envp[n++] = pack(p, span_of_str("SHELL="), span_of_str(user->shell));
    if ((start->flags & AGENT_START_TTY) != 0) {
        envp[n++] = pack(p, span_of_str("TERM="),
                         start->term.n > 0 ? start->term : span_of_str("xterm-256color"));
    }
    return n;
}

static size_t put_list(struct packer *p, char **envp, size_t n, const struct agent_strings *list)
{
    struct span rest = list->raw;
    struct span s;

    while (agent_strings_next(&rest, &s)) {
        n = put_setting(envp, n, pack(p, s, span_make(NULL, 0)));
    }
    return n;
}

int environment_build(struct environment *e,
                      const struct agent_start *start,
                      const struct user *user,
                      const struct agent_strings *identity_env)
{
    size_t pointers =
        (size_t)start->argv.count + start->env.count + identity_env->count + DEFAULT_COUNT + 2;
    /* A string's length field is longer than its NUL, so the raw sizes are enough. */
    size_t text = start->argv.raw.n + start->env.raw.n + identity_env->raw.n + start->term.n +
                  sizeof(DEFAULT_PATH) + 5 * sizeof(user->name) + 128;
    struct packer p;
    struct span rest = start->argv.raw;
    struct span s;
    size_t n = 0;

    e->memory = malloc(pointers * sizeof(char *) + text);
    if (e->memory == NULL) {
        return -ENOMEM;
    }
    e->argv = e->memory;
    e->envp = &e->argv[start->argv.count + 1];
    p.at = (char *)&e->argv[pointers];
    while (agent_strings_next(&rest, &s)) {
        e->argv[n++] = pack(&p, s, span_make(NULL, 0));
    }
    e->argv[n] = NULL;
    n = put_usual(&p, e->envp, start, user);
    n = put_list(&p, e->envp, n, identity_env);
    n = put_list(&p, e->envp, n, &start->env);
    e->envp[n] = NULL;
    e->path_list = DEFAULT_PATH;
    for (size_t i = 0; i < n; i++) {
        if (strncmp(e->envp[i], "PATH=", 5) == 0) {
            e->path_list = &e->envp[i][5];
        }
    }
    return 0;
}

void environment_done(struct environment *e)
{
    free(e->memory);
    e->memory = NULL;
}
