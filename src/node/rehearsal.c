#include "node/rehearsal.h"

#include "base/clock.h"
#include "base/log.h"

#define COMMANDS_MAX 32U
#define ARGS_MAX     16U

static void run_next(struct rehearsal *r);

static void on_ended(void *arg, int result)
{
    struct rehearsal *r = arg;

    if (result < 0) {
        return; /* its VM goes, and it has perhaps gone already */
    }
    log_debug("rehearsed", "step=%zu result=%d", r->next, result);
    run_next(r); /* a program that the template lacks is no failure */
}

/* Fills argv from a JSON array of strings. False when it is not one. */
static bool fill_argv(const json_t *command, const char *argv[ARGS_MAX + 1])
{
    size_t n = json_array_size(command);

    if (n == 0 || n > ARGS_MAX) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        argv[i] = json_string_value(json_array_get(command, i));
        if (argv[i] == NULL) {
            return false;
        }
    }
    argv[n] = NULL;
    return true;
}

static void run_next(struct rehearsal *r)
{
    const char *argv[ARGS_MAX + 1];

    while (r->next < json_array_size(r->commands) && r->next < COMMANDS_MAX &&
           (r->all_ms == 0 || clock_monotonic_ms() < r->until_ms)) {
        const json_t *command = json_array_get(r->commands, r->next++);

        if (fill_argv(command, argv)) {
            agent_rehearse(r->agent, argv, r->user, r->command_ms, on_ended, r);
            return;
        }
    }
    r->done(r->arg);
}

void rehearsal_start(struct rehearsal *r,
                     struct agent *agent,
                     const char *volume,
                     const struct template_info *template_info)
{
    r->agent = agent;
    r->commands = template_prime_list(volume, template_info->name, template_info->version);
    r->next = 0;
    r->until_ms = clock_monotonic_ms() + r->all_ms;
    r->user = template_info->user;
    run_next(r);
}

void rehearsal_stop(struct rehearsal *r)
{
    json_decref(r->commands);
    r->commands = NULL;
}
