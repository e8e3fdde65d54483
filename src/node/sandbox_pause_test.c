/* Pause and wake against a fake VM and a fake agent: what is done in which order, what a failure at
 * each step leaves, and what a restart of the node makes of each state. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "node/agent.h"
#include "node/node_private.h"
#include "node/sandbox_private.h"
#include "node/sandbox_resume.h"
#include "node/vm.h"

struct vm {
    bool stopped;
    vm_fn done;
    void *arg;
};

struct world {
    struct node node;
    struct sandbox sb;
    struct vm vm;
    char log[200]; /* what was done, one word each */
    int journal_error;
    bool is_old_agent;
    agent_done_fn agent_done;
    void *agent_arg;
    enum waiter_kind waits_for;
};

static struct world *world_of(const struct vm *vm)
{
    return list_entry((struct vm *)(uintptr_t)vm, struct world, vm);
}

static void note(struct world *w, const char *word)
{
    size_t n = strlen(w->log);

    (void)snprintf(&w->log[n], sizeof(w->log) - n, "%s%s", n == 0 ? "" : " ", word);
}

static void expect(struct world *w, const char *log, enum sandbox_state state)
{
    assert_string_equal(w->log, log);
    assert_int_equal(w->sb.info.state, state);
    w->log[0] = '\0';
}

/* ---- fakes ---- */

const char *sandbox_state_name(enum sandbox_state state)
{
    static const char *const names[] = {"creating",   "running",   "pausing",  "paused", "waking",
                                        "suspending", "suspended", "deleting", "error",  "deleted"};

    return names[state];
}

int sandbox_write_journal(struct sandbox *sb)
{
    struct world *w = list_entry(sb, struct world, sb);
    char word[32];

    (void)snprintf(word, sizeof(word), "%s:%s", w->journal_error == 0 ? "journal" : "fails",
                   sandbox_state_name(sb->info.state));
    note(w, word);
    return w->journal_error;
}

void sandbox_set_state(struct sandbox *sb, enum sandbox_state state)
{
    sb->info.state = state;
}

void sandbox_touch(struct sandbox *sb)
{
    note(list_entry(sb, struct world, sb), "touch");
}

int sandbox_add_waiter(
    struct node *node, struct sandbox *sb, enum waiter_kind kind, sandbox_wait_fn fn, void *arg)
{
    (void)node;
    (void)fn;
    (void)arg;
    list_entry(sb, struct world, sb)->waits_for = kind;
    return 0;
}

int sandbox_begin_resume(struct sandbox *sb, struct error *err)
{
    struct world *w = list_entry(sb, struct world, sb);

    note(w, "resume");
    if (w->journal_error < 0) {
        return error_set_code(err, ERROR_STORAGE_FULL, NULL, "full");
    }
    sb->info.state = SANDBOX_STATE_WAKING;
    return 0;
}

struct agent *vm_agent(const struct vm *vm)
{
    return (struct agent *)(uintptr_t)vm;
}

static void command(struct vm *vm, const char *word, vm_fn done, void *arg)
{
    note(world_of(vm), word);
    vm->done = done;
    vm->arg = arg;
}

void vm_stop(struct vm *vm, vm_fn done, void *arg)
{
    vm->stopped = true;
    command(vm, "stop", done, arg);
}

void vm_cont(struct vm *vm, vm_fn done, void *arg)
{
    vm->stopped = false;
    command(vm, "cont", done, arg);
}

void vm_check(struct vm *vm, vm_fn done, void *arg)
{
    command(vm, "check", done, arg);
}

bool vm_is_stopped(const struct vm *vm)
{
    return vm->stopped;
}

static void ask(struct agent *agent, const char *word, agent_done_fn done, void *arg)
{
    struct world *w = world_of((struct vm *)(uintptr_t)agent);

    note(w, word);
    w->agent_done = done;
    w->agent_arg = arg;
}

void agent_silence(
    struct agent *agent, uint8_t flags, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    assert_int_equal(flags, 0);
    assert_true(deadline_ms > 0);
    ask(agent, "SILENCE", done, arg);
}

void agent_wake(struct agent *agent, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    assert_true(deadline_ms > 0);
    ask(agent, "WAKE", done, arg);
}

void agent_begin(
    struct agent *agent, bool known_silent, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    assert_false(known_silent);
    assert_true(deadline_ms > 0);
    ask(agent, "HELLO", done, arg);
}

void agent_expect_wake(struct agent *agent)
{
    note(world_of((struct vm *)(uintptr_t)agent), "expect-wake");
}

void agent_stand_still(struct agent *agent)
{
    note(world_of((struct vm *)(uintptr_t)agent), "still");
}

bool agent_takes_time(const struct agent *agent)
{
    return !world_of((const struct vm *)(uintptr_t)agent)->is_old_agent;
}

/* ---- the other side's answers ---- */

static void answer_agent(struct world *w, int result)
{
    agent_done_fn done = w->agent_done;

    assert_non_null(done);
    w->agent_done = NULL;
    done(w->agent_arg, result);
}

static void answer_vm(struct world *w)
{
    vm_fn done = w->vm.done;

    w->vm.done = NULL;
    if (done != NULL) {
        done(w->vm.arg, &w->vm);
    }
}

static void begin(struct world *w, enum sandbox_state state)
{
    memset(w, 0, sizeof(*w));
    w->node.settings.node_silence_timeout_ms = 1000;
    w->sb.node = &w->node;
    w->sb.vm = &w->vm;
    w->sb.info.state = state;
    w->vm.stopped = state == SANDBOX_STATE_PAUSED;
}

static int pause_it(struct world *w, struct error *err)
{
    return sandbox_pause(&w->sb, &(struct sandbox_reason){"idle_timeout", "why"}, NULL, NULL, err);
}

/* ---- tests ---- */

static void test_each_step_is_written_before_it_is_taken(void **state)
{
    struct world w;
    struct error err = {0};

    (void)state;
    begin(&w, SANDBOX_STATE_RUNNING);
    assert_int_equal(pause_it(&w, &err), 0);
    assert_int_equal(w.waits_for, WAITER_PAUSED);
    expect(&w, "journal:pausing SILENCE", SANDBOX_STATE_PAUSING);
    assert_int_equal(pause_it(&w, &err), 0); /* joins it */
    expect(&w, "", SANDBOX_STATE_PAUSING);
    answer_agent(&w, 0);
    expect(&w, "stop", SANDBOX_STATE_PAUSING);
    answer_vm(&w);
    expect(&w, "journal:paused", SANDBOX_STATE_PAUSED);
    assert_string_equal(w.sb.info.reason_code, "idle_timeout");
    assert_true(w.sb.info.paused_at_ms > 0);
    assert_int_equal(pause_it(&w, &err), 0);
    expect(&w, "", SANDBOX_STATE_PAUSED);
    w.sb.paused_since_ms -= 5000;
    assert_in_range(sandbox_paused_ms(&w.sb), 5000, 9000);

    assert_int_equal(sandbox_wake(&w.sb, NULL, NULL, &err), 0);
    assert_int_equal(w.waits_for, WAITER_AWAKE);
    expect(&w, "journal:waking WAKE cont", SANDBOX_STATE_WAKING);
    assert_string_equal(w.sb.info.reason_code, "");
    assert_int_equal(sandbox_wake(&w.sb, NULL, NULL, &err), 0); /* joins it */
    expect(&w, "", SANDBOX_STATE_WAKING);
    answer_vm(&w);
    answer_agent(&w, 0);
    expect(&w, "touch journal:running", SANDBOX_STATE_RUNNING);
    assert_int_equal(w.sb.info.paused_at_ms, 0);
    assert_in_range(w.sb.info.paused_total_ms, 5000, 9000);
    assert_int_equal(sandbox_wake(&w.sb, NULL, NULL, &err), 0);
    expect(&w, "", SANDBOX_STATE_RUNNING);
}

static void test_other_states_refuse_and_name_themselves(void **state)
{
    static const struct {
        enum sandbox_state state;
        bool is_pause;
    } cases[] = {
        {SANDBOX_STATE_CREATING, true},    {SANDBOX_STATE_WAKING, true},
        {SANDBOX_STATE_DELETING, true},    {SANDBOX_STATE_ERROR, true},
        {SANDBOX_STATE_SUSPENDING, true},  {SANDBOX_STATE_SUSPENDED, true},
        {SANDBOX_STATE_SUSPENDING, false}, {SANDBOX_STATE_CREATING, false},
        {SANDBOX_STATE_PAUSING, false},    {SANDBOX_STATE_DELETING, false},
        {SANDBOX_STATE_ERROR, false},
    };
    struct world w;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error err = {0};

        begin(&w, cases[i].state);
        assert_true(
            (cases[i].is_pause ? pause_it(&w, &err) : sandbox_wake(&w.sb, NULL, NULL, &err)) < 0);
        assert_int_equal(err.code, ERROR_FAILED_PRECONDITION);
        assert_non_null(strstr(err.message, sandbox_state_name(cases[i].state)));
        expect(&w, "", cases[i].state);
    }
}

static void test_a_journal_that_cannot_be_written(void **state)
{
    struct world w;
    struct error err = {0};

    (void)state;
    begin(&w, SANDBOX_STATE_RUNNING);
    w.journal_error = -ENOSPC;
    assert_true(pause_it(&w, &err) < 0);
    assert_int_equal(err.code, ERROR_STORAGE_FULL);
    expect(&w, "fails:pausing", SANDBOX_STATE_RUNNING);
    assert_string_equal(w.sb.info.reason_code, "");

    begin(&w, SANDBOX_STATE_PAUSED);
    (void)snprintf(w.sb.info.reason_code, sizeof(w.sb.info.reason_code), "timeout");
    w.journal_error = -EIO;
    assert_true(sandbox_wake(&w.sb, NULL, NULL, &err) < 0);
    assert_int_equal(err.code, ERROR_INTERNAL);
    expect(&w, "fails:waking", SANDBOX_STATE_PAUSED);
    assert_string_equal(w.sb.info.reason_code, "timeout");
    assert_true(w.vm.stopped);

    /* Behind the first step it goes on: a restart would take it back or finish it. */
    begin(&w, SANDBOX_STATE_RUNNING);
    assert_int_equal(pause_it(&w, &err), 0);
    answer_agent(&w, 0);
    w.journal_error = -EIO;
    answer_vm(&w);
    expect(&w, "journal:pausing SILENCE stop fails:paused", SANDBOX_STATE_PAUSED);
}

static void test_a_guest_that_refuses_runs_on(void **state)
{
    struct world w;
    struct error err = {0};

    (void)state;
    begin(&w, SANDBOX_STATE_RUNNING);
    assert_int_equal(pause_it(&w, &err), 0);
    answer_agent(&w, EBUSY);
    expect(&w, "journal:pausing SILENCE journal:running", SANDBOX_STATE_RUNNING);
    assert_string_equal(w.sb.info.reason_code, "");
    assert_non_null(strstr(w.sb.change_err.message, "silent"));
    assert_int_equal(w.sb.change_err.code, ERROR_INTERNAL);

    begin(&w, SANDBOX_STATE_RUNNING);
    assert_int_equal(pause_it(&w, &err), 0);
    answer_agent(&w, ETIMEDOUT);
    expect(&w, "journal:pausing SILENCE journal:running", SANDBOX_STATE_RUNNING);
    assert_int_equal(w.sb.change_err.code, ERROR_DEADLINE_EXCEEDED);

    begin(&w, SANDBOX_STATE_RUNNING);
    w.is_old_agent = true;
    assert_int_equal(pause_it(&w, &err), 0);
    answer_agent(&w, 0);
    answer_agent(&w, 0);
    expect(&w, "journal:pausing SILENCE WAKE journal:running", SANDBOX_STATE_RUNNING);
    assert_int_equal(w.sb.change_err.code, ERROR_FAILED_PRECONDITION);
}

/* Whatever answers then finds a sandbox that is being deleted, or has failed. */
/* Its checkpoint found it busy: what it was asked then is not answered yet. */
static void test_a_guest_that_is_busy_is_paused_again(void **state)
{
    struct world w;
    struct error err = {0};

    (void)state;
    begin(&w, SANDBOX_STATE_PAUSING);
    sandbox_set_reason(&w.sb, &(struct sandbox_reason){"idle_timeout", ""});
    sandbox_pause_loud(&w.sb);
    expect(&w, "stop", SANDBOX_STATE_PAUSING);
    answer_vm(&w);
    expect(&w, "still journal:paused", SANDBOX_STATE_PAUSED);
    assert_string_equal(w.sb.info.reason_code, "idle_timeout");
    assert_true(w.sb.info.paused_at_ms > 0);
    assert_int_equal(sandbox_wake(&w.sb, NULL, NULL, &err), 0);
    expect(&w, "journal:waking WAKE cont", SANDBOX_STATE_WAKING);

    begin(&w, SANDBOX_STATE_PAUSING);
    sandbox_pause_loud(&w.sb);
    w.sb.info.state = SANDBOX_STATE_DELETING;
    answer_vm(&w);
    expect(&w, "stop", SANDBOX_STATE_DELETING);
}

static void test_a_deletion_overtakes(void **state)
{
    static const enum sandbox_state ends[] = {SANDBOX_STATE_DELETING, SANDBOX_STATE_ERROR};
    struct world w;
    struct error err = {0};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        begin(&w, SANDBOX_STATE_RUNNING);
        assert_int_equal(pause_it(&w, &err), 0);
        w.sb.info.state = ends[i];
        answer_agent(&w, 0);
        expect(&w, "journal:pausing SILENCE", ends[i]);

        begin(&w, SANDBOX_STATE_RUNNING);
        assert_int_equal(pause_it(&w, &err), 0);
        answer_agent(&w, 0);
        w.sb.info.state = ends[i];
        answer_vm(&w);
        expect(&w, "journal:pausing SILENCE stop", ends[i]);

        begin(&w, SANDBOX_STATE_PAUSED);
        assert_int_equal(sandbox_wake(&w.sb, NULL, NULL, &err), 0);
        w.sb.info.state = ends[i];
        answer_agent(&w, -ECANCELED);
        expect(&w, "journal:waking WAKE cont", ends[i]);
    }
}

/* What the journal says (adopt.c makes `waking` of a pause that was cut off), and what the VMM. */
static void test_a_restart_makes_the_record_true(void **state)
{
    static const struct {
        enum sandbox_state state;
        bool stopped;
        const char *log;
    } cases[] = {
        {SANDBOX_STATE_RUNNING, false, "check"},     {SANDBOX_STATE_PAUSED, true, "check"},
        {SANDBOX_STATE_PAUSED, false, "check stop"}, {SANDBOX_STATE_WAKING, true, "check cont"},
        {SANDBOX_STATE_WAKING, false, "check"},
    };
    struct world w;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        begin(&w, cases[i].state);
        w.sb.settling = true;
        w.vm.stopped = cases[i].stopped;
        sandbox_settle_adopted(&w.sb);
        answer_vm(&w);
        expect(&w, cases[i].log, cases[i].state);
        assert_false(w.sb.settling);
    }
    begin(&w, SANDBOX_STATE_WAKING);
    sandbox_finish_wake(&w.sb); /* the guest has answered HELLO */
    answer_agent(&w, 0);
    expect(&w, "WAKE touch journal:running", SANDBOX_STATE_RUNNING);
}

static void test_verbs_while_the_vmm_is_asked(void **state)
{
    struct world w;
    struct error err = {0};

    (void)state;
    begin(&w, SANDBOX_STATE_PAUSED);
    w.sb.settling = true;
    w.sb.greet_wanted = true;
    sandbox_settle_adopted(&w.sb);
    assert_int_equal(sandbox_wake(&w.sb, NULL, NULL, &err), 0);
    expect(&w, "check journal:waking", SANDBOX_STATE_WAKING);
    answer_vm(&w);
    expect(&w, "expect-wake HELLO cont", SANDBOX_STATE_WAKING);
    answer_agent(&w, 0);
    answer_agent(&w, 0);
    expect(&w, "WAKE touch journal:running", SANDBOX_STATE_RUNNING);

    begin(&w, SANDBOX_STATE_RUNNING);
    w.sb.settling = true;
    sandbox_settle_adopted(&w.sb);
    assert_int_equal(pause_it(&w, &err), 0);
    answer_agent(&w, 0);
    expect(&w, "check journal:pausing SILENCE", SANDBOX_STATE_PAUSING);
    answer_vm(&w);
    expect(&w, "stop", SANDBOX_STATE_PAUSING);
    answer_vm(&w);
    expect(&w, "journal:paused", SANDBOX_STATE_PAUSED);
}

/* A suspended one has no VM: its wake is another file's. */
static void test_a_suspended_one_is_resumed(void **state)
{
    struct world w;
    struct error err = {0};

    (void)state;
    begin(&w, SANDBOX_STATE_SUSPENDED);
    w.sb.vm = NULL;
    assert_int_equal(sandbox_wake(&w.sb, NULL, NULL, &err), 0);
    assert_int_equal(w.waits_for, WAITER_AWAKE);
    expect(&w, "resume", SANDBOX_STATE_WAKING);

    begin(&w, SANDBOX_STATE_SUSPENDED);
    w.sb.vm = NULL;
    w.journal_error = -ENOSPC;
    assert_true(sandbox_wake(&w.sb, NULL, NULL, &err) < 0);
    assert_int_equal(err.code, ERROR_STORAGE_FULL);
    expect(&w, "resume", SANDBOX_STATE_SUSPENDED);
}

static void test_timers_rest_with_their_sandbox(void **state)
{
    struct world w;

    (void)state;
    begin(&w, SANDBOX_STATE_RUNNING);
    assert_int_equal(sandbox_timer_delay(&w.sb, 7), 7);
    w.sb.info.state = SANDBOX_STATE_PAUSED;
    assert_true(sandbox_timer_delay(&w.sb, 7) > 7);
    assert_int_equal(sandbox_timer_delay(&w.sb, 60000), 60000);
    w.sb.info.paused_total_ms = 40;
    assert_int_equal(sandbox_paused_ms(&w.sb), 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_step_is_written_before_it_is_taken),
        cmocka_unit_test(test_other_states_refuse_and_name_themselves),
        cmocka_unit_test(test_a_journal_that_cannot_be_written),
        cmocka_unit_test(test_a_guest_that_refuses_runs_on),
        cmocka_unit_test(test_a_guest_that_is_busy_is_paused_again),
        cmocka_unit_test(test_a_deletion_overtakes),
        cmocka_unit_test(test_a_restart_makes_the_record_true),
        cmocka_unit_test(test_verbs_while_the_vmm_is_asked),
        cmocka_unit_test(test_a_suspended_one_is_resumed),
        cmocka_unit_test(test_timers_rest_with_their_sandbox),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
