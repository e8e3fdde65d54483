#include "node/signal_name.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "io/json_request.h"

int signal_number(const char *name)
{
    if (strncmp(name, "SIG", 3) != 0) {
        return 0;
    }
    for (int i = 1; i < NSIG; i++) {
        const char *short_name = sigabbrev_np(i);

        if (short_name != NULL && strcmp(short_name, &name[3]) == 0) {
            return i;
        }
    }
    return 0;
}

void signal_name(int signal, char out[SIGNAL_NAME_SIZE])
{
    const char *short_name = sigabbrev_np(signal);

    if (short_name != NULL) {
        (void)snprintf(out, SIGNAL_NAME_SIZE, "SIG%s", short_name);
    } else {
        (void)snprintf(out, SIGNAL_NAME_SIZE, "SIG%d",
                       signal); /* the real-time signals have no names */
    }
}

void signal_read(struct json_fields *f, int *ret_signal, enum agent_scope *ret_scope)
{
    static const char *const scopes[] = {"group", "process", "tree", NULL};
    const char *name;

    json_fields_require(f, "signal");
    name = json_fields_string(f, "signal", 1, 16, NULL);
    *ret_scope = (enum agent_scope)json_fields_choice(f, "scope", scopes, 0);
    if (name == NULL || f->error != 0) {
        return;
    }
    *ret_signal = signal_number(name);
    if (*ret_signal == 0) {
        json_fields_fail(f, "signal", "must be a signal's name such as SIGTERM, got %.16s", name);
    }
}
