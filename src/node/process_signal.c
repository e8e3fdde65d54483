/* Signals to processes, those that wait for their start included. */
#include "node/process_signal.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "node/process_private.h"
#include "node/sandbox.h"

/* What a process that runs nothing yet does about a signal. 0 or an errno. */
static int signal_waiting(struct process *p, int signal)
{
    switch (signal) {
    case SIGCHLD:
    case SIGCONT:
    case SIGURG:
    case SIGWINCH:
        return 0;
    case SIGSTOP:
    case SIGTSTP:
    case SIGTTIN:
    case SIGTTOU:
        return ECHILD;
    default:
        p->signal = signal;
        process_end(p, PROCESS_STATE_EXITED);
        return 0;
    }
}

void process_signal(struct process *p,
                    int signal,
                    enum agent_scope scope,
                    void (*done)(void *arg, int result),
                    void *arg)
{
    struct agent *agent = sandbox_agent(p->table->sandbox);

    if (p->state == PROCESS_STATE_EXITED && p->channel == NULL && p->pid != 0 && agent != NULL &&
        signal == SIGKILL && scope == AGENT_SCOPE_TREE) {
        agent_signal_left(agent, p->channel_number, SIGKILL, done, arg);
    } else if (p->state == PROCESS_STATE_LOST || (process_is_ended(p) && p->channel == NULL)) {
        done(arg, ESRCH);
    } else if (p->channel != NULL) {
        sandbox_touch(p->table->sandbox);
        agent_channel_signal(p->channel, (unsigned int)signal, scope, done, arg);
    } else if (p->state == PROCESS_STATE_STARTING) {
        done(arg, signal_waiting(p, signal));
    } else {
        done(arg, ENOTCONN);
    }
}

void process_signal_error(const struct process *p, int result, struct error *err)
{
    const char *why = strerrordesc_np(result);

    switch (result) {
    case ESRCH:
        (void)error_set_code(err, ERROR_FAILED_PRECONDITION,
                             p != NULL && p->state == PROCESS_STATE_LOST ? "lost" : "exited",
                             "the process has ended already");
        break;
    case ECHILD:
        (void)error_set_code(err, ERROR_FAILED_PRECONDITION, "starting",
                             "the process has not been started yet");
        break;
    case ENOTCONN:
        (void)error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                             "the sandbox's agent is not connected");
        break;
    case -ECANCELED:
        (void)error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                             "the connection to the sandbox's agent was lost; whether the signal "
                             "was delivered is not known");
        break;
    default:
        (void)error_set_code(err, ERROR_CONFLICT, NULL, "the signal cannot be sent: %s",
                             why != NULL ? why : "?");
        err->errnum = result;
        break;
    }
}
