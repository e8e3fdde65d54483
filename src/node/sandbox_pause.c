/* Pausing and waking: the VM stands still with its memory resident.
 *
 * Each step is written down before it is taken, so that a restart finds a definite state:
 *
 *   journal    steps behind it                     after a restart
 *   pausing    SILENCE, stop                       made to run again
 *   paused     none                                stays paused
 *   waking     cont, HELLO if adopted, WAKE        made to run
 *   running    none                                runs
 *
 * Nothing is frozen or synchronised: memory stays where it is. WAKE brings the wall clock. What was
 * asked of the guest meanwhile (frames, transfers, commands) waits in the agent's queues; limits of
 * time are counted without the pause (sandbox_paused_ms). A VMM that dies in any of these states
 * makes the sandbox an error, a deletion may come at any time. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "node/agent.h"
#include "node/node_private.h"
#include "node/sandbox_private.h"
#include "node/sandbox_resume.h"
#include "node/vm.h"

/* As long as a START may take: a guest that is busy is no reason to end it. */
#define ANSWER_MS 60000

/* While a sandbox is paused its timers look again this often. */
#define RESTING_LOOK_MS 200

bool sandbox_is_resting(const struct sandbox *sb)
{
    return sb->info.state == SANDBOX_STATE_PAUSING || sb->info.state == SANDBOX_STATE_PAUSED ||
           sb->info.state == SANDBOX_STATE_WAKING || sb->info.state == SANDBOX_STATE_SUSPENDING ||
           sb->info.state == SANDBOX_STATE_SUSPENDED;
}

int64_t sandbox_paused_ms(const struct sandbox *sb)
{
    int64_t now = sb->info.paused_at_ms == 0 ? 0 : clock_monotonic_ms() - sb->paused_since_ms;

    return sb->info.paused_total_ms + now;
}

int64_t sandbox_timer_delay(const struct sandbox *sb, int64_t left_ms)
{
    return sandbox_is_resting(sb) && left_ms < RESTING_LOOK_MS ? RESTING_LOOK_MS : left_ms;
}

void sandbox_set_reason(struct sandbox *sb, const struct sandbox_reason *reason)
{
    (void)snprintf(sb->info.reason_code, sizeof(sb->info.reason_code), "%s", reason->code);
    (void)snprintf(sb->info.reason_message, sizeof(sb->info.reason_message), "%s", reason->message);
}

/* The record is written before anybody hears of the state. */
int sandbox_enter(struct sandbox *sb, enum sandbox_state state)
{
    enum sandbox_state before = sb->info.state;
    int r;

    sb->info.state = state;
    r = sandbox_write_journal(sb);
    sb->info.state = before;
    if (r == 0) {
        sandbox_set_state(sb, state);
    }
    return r;
}

void sandbox_begin_rest(struct sandbox *sb)
{
    sb->info.paused_at_ms = clock_real_ms();
    sb->paused_since_ms = clock_monotonic_ms();
}

void sandbox_continue_rest(struct sandbox *sb)
{
    int64_t lasted = clock_real_ms() - sb->info.paused_at_ms;

    sb->paused_since_ms = clock_monotonic_ms() - (lasted > 0 ? lasted : 0);
}

void sandbox_end_rest(struct sandbox *sb)
{
    sb->info.paused_total_ms = sandbox_paused_ms(sb);
    sb->info.paused_at_ms = 0;
}

void sandbox_tell_idle(struct sandbox *sb)
{
    if (sb->jobs == 0 && !sb->settling && sb->when_idle != NULL) {
        TAKE(sb->when_idle)(sb);
    }
}

int sandbox_refuse(const struct sandbox *sb, const char *verb, struct error *err)
{
    const char *state = sandbox_state_name(sb->info.state);

    (void)error_set_code(err, ERROR_FAILED_PRECONDITION, state, "a sandbox that is %s cannot %s",
                         state, verb);
    return -EBUSY;
}

int sandbox_fail_journal(struct error *err, int r)
{
    return error_set_code(err, r == -ENOSPC ? ERROR_STORAGE_FULL : ERROR_INTERNAL, NULL,
                          "the sandbox's journal cannot be written: %s", strerror(-r));
}

/* A guest that is busy, or a process that cannot be frozen, may be done with it later. */
void sandbox_fail_silence(struct error *err, int result)
{
    if (result == ETIMEDOUT) {
        (void)error_set_code(err, ERROR_DEADLINE_EXCEEDED, "guest_busy",
                             "the guest did not fall silent in time; it runs on as before");
    } else {
        (void)error_set(err, result, "the guest could not fall silent: %s", strerror(result));
    }
}

/* ---- pause ---- */

static void on_stopped(void *arg, struct vm *vm)
{
    struct sandbox *sb = arg;

    (void)vm;
    if (sb->info.state != SANDBOX_STATE_PAUSING) {
        return;
    }
    sandbox_begin_rest(sb);
    if (sandbox_enter(sb, SANDBOX_STATE_PAUSED) < 0) {
        /* It is, all the same; a restart would wake it. */
        sandbox_set_state(sb, SANDBOX_STATE_PAUSED);
    }
}

static void on_stopped_loud(void *arg, struct vm *vm)
{
    const struct sandbox *sb = arg;

    if (sb->info.state == SANDBOX_STATE_PAUSING) {
        agent_stand_still(vm_agent(vm));
    }
    on_stopped(arg, vm);
}

void sandbox_pause_loud(struct sandbox *sb)
{
    vm_stop(sb->vm, on_stopped_loud, sb);
}

/* It runs as before; change_err says why. */
static void give_up_pause(struct sandbox *sb)
{
    sandbox_set_reason(sb, &(struct sandbox_reason){"", ""});
    if (sandbox_enter(sb, SANDBOX_STATE_RUNNING) < 0) {
        sandbox_set_state(sb, SANDBOX_STATE_RUNNING); /* as a restart would have it */
    }
}

/* The guest's agent is of 0.1.0: its clock would stand still for good. */
static void on_spoke_again(void *arg, int result)
{
    struct sandbox *sb = arg;

    if (result < 0 || sb->info.state != SANDBOX_STATE_PAUSING) {
        return;
    }
    (void)error_set_code(&sb->change_err, ERROR_FAILED_PRECONDITION,
                         sandbox_state_name(SANDBOX_STATE_RUNNING),
                         "this sandbox was made by a release that had no pause, and cannot be "
                         "paused: make it again");
    give_up_pause(sb);
}

static void on_silent(void *arg, int result)
{
    struct sandbox *sb = arg;

    if (result < 0 || sb->info.state != SANDBOX_STATE_PAUSING) {
        return; /* the VM's end tells, or the deletion goes on */
    }
    if (result > 0) {
        sandbox_fail_silence(&sb->change_err, result);
        give_up_pause(sb);
        return;
    }
    if (!agent_takes_time(vm_agent(sb->vm))) {
        agent_wake(vm_agent(sb->vm), ANSWER_MS, on_spoke_again, sb);
    } else if (sb->settling) {
        sb->stop_wanted = true;
    } else {
        vm_stop(sb->vm, on_stopped, sb);
    }
}

int sandbox_pause(struct sandbox *sb,
                  const struct sandbox_reason *reason,
                  sandbox_wait_fn fn,
                  void *arg,
                  struct error *err)
{
    bool begins = sb->info.state == SANDBOX_STATE_RUNNING && sb->vm != NULL;
    int r = 0;

    if (!begins && sb->info.state != SANDBOX_STATE_PAUSING &&
        sb->info.state != SANDBOX_STATE_PAUSED) {
        return sandbox_refuse(sb, "be paused", err);
    }
    if (begins) {
        sb->change_err = (struct error){0};
        sandbox_set_reason(sb, reason);
        r = sandbox_enter(sb, SANDBOX_STATE_PAUSING);
        if (r < 0) {
            sandbox_set_reason(sb, &(struct sandbox_reason){"", ""});
            return sandbox_fail_journal(err, r);
        }
        agent_silence(vm_agent(sb->vm), 0, (int64_t)sb->node->settings.node_silence_timeout_ms,
                      on_silent, sb);
    }
    r = sandbox_add_waiter(sb->node, sb, WAITER_PAUSED, fn, arg);
    return r < 0 ? error_set(err, -r, "out of memory") : 0;
}

/* ---- wake ---- */

static void on_awake(void *arg, int result)
{
    struct sandbox *sb = arg;

    if (result < 0 || sb->info.state != SANDBOX_STATE_WAKING) {
        return; /* the VM's end tells, or the deletion goes on */
    }
    if (result > 0) {
        log_warning("clock_not_set", "sandbox=%s error=%s", sb->info.id, strerror(result));
    }
    sandbox_end_rest(sb);
    sandbox_touch(sb);
    if (sandbox_enter(sb, SANDBOX_STATE_RUNNING) < 0) {
        sandbox_set_state(sb, SANDBOX_STATE_RUNNING); /* as a restart would have it */
    }
}

static void on_still_awake(void *arg, int result)
{
    (void)arg;
    (void)result;
}

/* One that runs may have read the SILENCE of a suspend that was given up. */
void sandbox_finish_wake(struct sandbox *sb)
{
    if (sb->info.state == SANDBOX_STATE_WAKING && sb->vm != NULL) {
        agent_wake(vm_agent(sb->vm), ANSWER_MS, on_awake, sb);
    } else if (sb->vm != NULL) {
        agent_wake(vm_agent(sb->vm), ANSWER_MS, on_still_awake, sb);
    }
}

static void on_greeted(void *arg, int result)
{
    struct sandbox *sb = arg;

    if (result == 0 && sb->vm != NULL) {
        agent_wake(vm_agent(sb->vm), ANSWER_MS, sb->continued, sb);
    }
}

/* The frame is on its way when the guest continues. */
void sandbox_continue(struct sandbox *sb, void (*done)(void *arg, int result))
{
    struct agent *agent = vm_agent(sb->vm);

    sb->continued = done;
    if (sb->greet_wanted) {
        sb->greet_wanted = false;
        agent_expect_wake(agent);
        agent_begin(agent, false, ANSWER_MS, on_greeted, sb);
    } else {
        agent_wake(agent, ANSWER_MS, done, sb);
    }
    if (sb->vm != NULL) {
        vm_cont(sb->vm, NULL, NULL);
    }
}

int sandbox_wake(struct sandbox *sb, sandbox_wait_fn fn, void *arg, struct error *err)
{
    bool begins = sb->info.state == SANDBOX_STATE_PAUSED && sb->vm != NULL;
    int r = 0;

    if (sb->info.state == SANDBOX_STATE_SUSPENDED) {
        r = sandbox_begin_resume(sb, err);
        if (r < 0) {
            return r;
        }
    } else if (!begins && sb->info.state != SANDBOX_STATE_WAKING &&
               sb->info.state != SANDBOX_STATE_RUNNING) {
        return sandbox_refuse(sb, "be woken", err);
    }
    if (begins) {
        const struct sandbox_info before = sb->info;

        sb->change_err = (struct error){0};
        sandbox_set_reason(sb, &(struct sandbox_reason){"", ""});
        r = sandbox_enter(sb, SANDBOX_STATE_WAKING);
        if (r < 0) {
            sb->info = before;
            return sandbox_fail_journal(err, r);
        }
        if (!sb->settling) {
            sandbox_continue(sb, on_awake);
        }
    }
    r = sandbox_add_waiter(sb->node, sb, WAITER_AWAKE, fn, arg);
    return r < 0 ? error_set(err, -r, "out of memory") : 0;
}

/* ---- after a restart of this program ---- */

static void on_checked(void *arg, struct vm *vm)
{
    struct sandbox *sb = arg;
    bool stopped = vm_is_stopped(vm);

    sb->settling = false;
    if (sb->info.state == SANDBOX_STATE_PAUSED && !stopped) {
        vm_stop(vm, NULL, NULL);
    } else if (sb->info.state == SANDBOX_STATE_WAKING && sb->greet_wanted) {
        sandbox_continue(sb, on_awake); /* it was woken meanwhile */
    } else if (sb->stop_wanted) {
        vm_stop(vm, on_stopped, sb);
    } else if (sb->info.state != SANDBOX_STATE_PAUSED && stopped && !sb->greet_wanted) {
        vm_cont(vm, NULL, NULL); /* one that wants a greeting stays, or continues with that */
    }
    sandbox_tell_idle(sb);
}

void sandbox_settle_adopted(struct sandbox *sb)
{
    vm_check(sb->vm, on_checked, sb);
}
