/* The host end of the agent protocol around a silence of the guest: what waits for its end, and
 * what becomes of a guest that does not fall silent. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "node/agent_bench.h"

/* fake-agent's `busy`, and a SILENCE that is given up meanwhile. */
#define BUSY_MS 1000
#define LATE_MS 600

static void on_signalled(void *arg, int result)
{
    struct bench *b = arg;

    b->identity_result = result;
}

/* A command is under way; what is asked in the silence waits, beyond its deadline too. */
static void test_silence_holds_and_wake_goes_on(void **state)
{
    struct bench *b = bench_new("space-init-host", "--agent");

    (void)state;
    bench_queue_all(b, "trap 'echo woken' USR1; while :; do sleep 0.05; done", false);
    b->agent->start_wait_ms = LIMIT_MS;
    agent_ping(b->agent, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    assert_true(b->started);
    agent_silence(b->agent, 0, LIMIT_MS, bench_on_result, b);
    /* Behind SILENCE nothing may be sent. */
    b->agent->start_wait_ms = SHORT_MS / 2;
    agent_channel_signal(b->channel, SIGUSR1, AGENT_SCOPE_GROUP, on_signalled, b);
    agent_channel_resize(b->channel, 80, 24);
    assert_false(agent_channel_send_stdin(b->channel, span_make(NULL, 0), true));
    bench_run(b);
    assert_int_equal(b->start_errnum, 0);
    assert_false(agent_channel_send_stdin(b->channel, span_make(NULL, 0), true));
    b->identity_result = -1;
    loop_timer_start(b->limit, SHORT_MS);
    assert_int_equal(loop_run(b->loop), 0);
    assert_false(b->failed);
    assert_int_equal(b->identity_result, -1);
    agent_wake(b->agent, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    assert_int_equal(b->start_errnum, 0);
    agent_ping(b->agent, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    assert_false(b->failed);
    assert_int_equal(b->identity_result, 0);
    assert_true(agent_is_ready(b->agent));
    agent_channel_signal(b->channel, SIGKILL, AGENT_SCOPE_GROUP, on_signalled, b);
    bench_run(b); /* it would live on */
    assert_true(b->exited);
    agent_channel_close(b->channel);
    bench_free(b);
}

static void on_begun_wake(void *arg, int result)
{
    struct bench *b = arg;

    bench_on_begun(arg, result);
    agent_wake(b->agent, LIMIT_MS, on_signalled, b);
}

/* Silenced by an earlier run of this program: the guest takes no command before WAKE. */
static void test_held_commands_wait_for_wake(void **state)
{
    struct bench *b = bench_new("space-init-host", "--agent");

    (void)state;
    b->agent->start_wait_ms = LIMIT_MS;
    bench_queue_all(b, "true", false);
    bench_run(b);
    assert_true(b->exited);
    agent_channel_close(b->channel);
    agent_silence(b->agent, 0, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    assert_int_equal(b->start_errnum, 0);
    b->exited = false;
    b->identity_result = -1;
    bench_reconnect(b);
    agent_expect_wake(b->agent);
    agent_begin(b->agent, false, LIMIT_MS, on_begun_wake, b);
    bench_queue_start(b, "echo held");
    bench_run(b);
    assert_int_equal(b->start_errnum, 0);
    assert_int_equal(b->identity_result, 0);
    assert_true(b->exited);
    assert_string_equal(buf_str(&b->output), "held\n");
    agent_channel_close(b->channel);
    bench_free(b);
}

/* SILENCE is asked for before the greeting has ended, and more behind it. */
static void test_nothing_overtakes_a_queued_silence(void **state)
{
    struct bench *b = bench_new("space-init-host", "--agent");

    (void)state;
    bench_queue_all(b, "echo first; sleep 60", false);
    agent_ping(b->agent, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    assert_true(b->started);
    b->identity_result = -1;
    b->start_errnum = -1;
    bench_reconnect(b);
    agent_begin(b->agent, false, LIMIT_MS, bench_on_begun, b);
    agent_silence(b->agent, 0, LIMIT_MS, bench_on_result, b);
    agent_channel_signal(b->channel, SIGKILL, AGENT_SCOPE_GROUP, on_signalled, b);
    bench_run(b);
    assert_int_equal(b->start_errnum, 0);
    loop_timer_start(b->limit, SHORT_MS / 2);
    assert_int_equal(loop_run(b->loop), 0);
    assert_false(b->failed);
    assert_int_equal(b->identity_result, -1);
    agent_wake(b->agent, LIMIT_MS, bench_on_result, b);
    bench_run(b); /* the wake */
    bench_run(b); /* the end of the process */
    assert_false(b->failed);
    assert_int_equal(b->identity_result, 0);
    assert_true(b->exited);
    bench_free(b);
}

static void on_new_identity(void *arg, int result, const struct agent_identity_ok *answer)
{
    struct bench *b = arg;

    (void)answer;
    b->identity_result = result;
    loop_stop(b->loop);
}

/* After a restore the processes run from the identity on; what they say waits for the release. */
static void check_hold(bool known_silent)
{
    static const uint8_t entropy[AGENT_ENTROPY_BYTES];
    struct bench *b = bench_new("space-init-host", "--agent");
    struct agent_identity identity = {
        .epoch = 8,
        .entropy = span_make(entropy, sizeof(entropy)),
        .hostname = span_of_str("test"),
    };
    size_t before;

    b->agent->start_wait_ms = LIMIT_MS;
    b->acknowledging = true;
    bench_queue_all(b, "i=0; while [ $i -lt 60 ]; do echo line; i=$((i+1)); sleep 0.02; done",
                    false);
    agent_ping(b->agent, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    agent_silence(b->agent, 0, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    before = b->output.n;
    bench_reconnect(b);
    agent_hold(b->agent);
    b->begun = false;
    agent_begin(b->agent, known_silent, LIMIT_MS, bench_on_begun, b);
    b->identity_result = -1;
    agent_identify(b->agent, &identity, LIMIT_MS, on_new_identity, b);
    bench_run(b);
    assert_int_equal(b->identity_result, 0);
    loop_timer_start(b->limit, SHORT_MS / 2);
    assert_int_equal(loop_run(b->loop), 0);
    assert_false(b->failed);
    assert_false(b->begun);
    assert_false(agent_is_ready(b->agent));
    assert_int_equal(b->output.n, before);
    assert_int_equal(agent_channel_stdin_room(b->channel, 1), 0);
    agent_release(b->agent);
    assert_true(b->begun);
    bench_run(b);
    assert_false(b->failed);
    assert_true(b->exited);
    assert_int_equal(b->output.n, 60 * 5);
    agent_channel_close(b->channel);
    bench_free(b);
}

/* A guest that does not answer SILENCE in time is not ended, and neither is it for what waited
 * behind that. */
static void check_late_silence(const char *mode, unsigned int times)
{
    struct bench *b = bench_new("fake-agent", mode);

    bench_queue_all(b, "true", false);
    bench_run(b);
    assert_true(b->exited);
    agent_channel_close(b->channel);
    b->exited = false;
    buf_clear(&b->output);
    b->agent->start_wait_ms = BUSY_MS - LATE_MS;
    agent_silence(b->agent, AGENT_SILENCE_FREEZE, LATE_MS, bench_on_result, b);
    bench_queue_start(b, "true");
    for (unsigned int i = 0; i < times; i++) {
        b->start_errnum = -1;
        bench_run(b);
        assert_false(b->failed);
        assert_int_equal(b->start_errnum, ETIMEDOUT);
        if (i + 1 < times) {
            agent_silence(b->agent, 0, 1, bench_on_result, b); /* it cannot be sent */
        }
    }
    assert_true(agent_is_ready(b->agent));
    bench_run(b);
    assert_false(b->failed);
    assert_true(b->exited);
    assert_string_equal(buf_str(&b->output), "fake\n");
    agent_ping(b->agent, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    assert_false(b->failed);
    assert_int_equal(b->start_errnum, 0);
    bench_free(b);
}

static void test_a_busy_guest_is_woken_behind_its_silence(void **state)
{
    (void)state;
    check_late_silence("no-silence", 1);
    check_late_silence("busy", 1);
    check_late_silence("busy", 3);
}

/* It reads nothing at all: what it was never sent fails alone, when its time is over. */
static void test_what_waits_for_a_busy_guest_fails_alone(void **state)
{
    struct bench *b = bench_new("fake-agent", "good");

    (void)state;
    bench_queue_all(b, "true", false);
    bench_run(b);
    assert_true(b->exited);
    agent_channel_close(b->channel);
    assert_int_equal(kill(b->pid, SIGSTOP), 0);
    b->agent->start_wait_ms = SHORT_MS / 4;
    agent_silence(b->agent, AGENT_SILENCE_FREEZE, 1, bench_on_result, b);
    bench_queue_start(b, "true");
    b->identity_result = -1;
    agent_channel_signal(b->channel, SIGKILL, AGENT_SCOPE_GROUP, on_signalled, b);
    bench_run(b);
    assert_int_equal(b->start_errnum, ETIMEDOUT);
    b->start_errnum = -1;
    bench_run(b); /* until the START is given up */
    assert_false(b->failed);
    assert_int_equal(b->start_errnum, ETIMEDOUT);
    assert_null(b->channel);
    assert_int_equal(b->identity_result, ETIMEDOUT);
    assert_int_equal(kill(b->pid, SIGCONT), 0);
    agent_ping(b->agent, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    assert_false(b->failed);
    assert_int_equal(b->start_errnum, 0);
    bench_free(b);
}

/* The guest is as busy for that. */
static void test_what_was_sent_before_fails_alone(void **state)
{
    struct bench *b = bench_new("fake-agent", "good");

    (void)state;
    bench_queue_all(b, "true", false);
    bench_run(b);
    assert_true(b->exited);
    agent_channel_close(b->channel);
    b->exited = false;
    assert_int_equal(kill(b->pid, SIGSTOP), 0);
    b->identity_result = -1;
    agent_ping(b->agent, SHORT_MS / 4, on_signalled, b);
    b->agent->start_wait_ms = SHORT_MS / 2;
    bench_queue_start(b, "true");
    agent_silence(b->agent, AGENT_SILENCE_FREEZE, 1, bench_on_result, b);
    bench_run(b);
    assert_int_equal(b->start_errnum, ETIMEDOUT);
    b->start_errnum = -1;
    bench_run(b); /* until the START is given up */
    assert_false(b->failed);
    assert_int_equal(b->start_errnum, ETIMEDOUT);
    assert_null(b->channel);
    assert_int_equal(b->identity_result, ETIMEDOUT);
    assert_int_equal(kill(b->pid, SIGCONT), 0);
    agent_ping(b->agent, LIMIT_MS, bench_on_result, b);
    bench_run(b); /* late answers come before this one */
    assert_false(b->failed);
    assert_int_equal(b->start_errnum, 0);
    assert_false(b->exited);
    bench_free(b);
}

/* Whose time is not over. */
static void test_a_silence_outlasts_what_was_sent_before(void **state)
{
    struct bench *b = bench_new("fake-agent", "good");

    (void)state;
    bench_queue_all(b, "true", false);
    bench_run(b);
    assert_true(b->exited);
    agent_channel_close(b->channel);
    assert_int_equal(kill(b->pid, SIGSTOP), 0);
    agent_ping(b->agent, SHORT_MS / 4, bench_on_result, b);
    agent_silence(b->agent, 0, LIMIT_MS, on_signalled, b);
    b->identity_result = -1;
    b->start_errnum = -1;
    bench_run(b);
    assert_false(b->failed);
    assert_int_equal(b->start_errnum, ETIMEDOUT);
    assert_int_equal(b->identity_result, -1);
    assert_int_equal(kill(b->pid, SIGCONT), 0);
    agent_wake(b->agent, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    assert_false(b->failed);
    assert_int_equal(b->start_errnum, 0);
    bench_free(b);
}

/* Nobody knows of it: it shall not go on where its caller has heard that it did not start. */
static void test_a_command_that_was_given_up_is_killed(void **state)
{
    struct bench *b = bench_new("space-init-host", "--agent");
    int64_t until = clock_monotonic_ms() + LIMIT_MS;
    uint32_t number;

    (void)state;
    bench_queue_all(b, "true", false);
    bench_run(b);
    assert_true(b->exited);
    agent_channel_close(b->channel);
    assert_int_equal(kill(b->pid, SIGSTOP), 0);
    b->agent->start_wait_ms = SHORT_MS / 2;
    bench_queue_start(b, "while :; do sleep 0.05; done");
    number = b->agent->next_channel - 1;
    agent_silence(b->agent, 0, 1, bench_on_result, b);
    bench_run(b);
    bench_run(b);
    assert_null(b->channel);
    b->agent->start_wait_ms = LIMIT_MS;
    assert_int_equal(kill(b->pid, SIGCONT), 0);
    b->start_errnum = 0;
    while (b->start_errnum == 0 && !b->failed && clock_monotonic_ms() < until) {
        agent_signal_left(b->agent, number, SIGCONT, bench_on_result, b);
        bench_run(b);
    }
    assert_false(b->failed);
    assert_int_equal(b->start_errnum, ESRCH);
    bench_free(b);
}

/* The node was killed behind that: what the guest reports then is all that is known of it. */
static void test_a_command_that_nobody_knows_is_killed(void **state)
{
    struct bench *b = bench_new("space-init-host", "--agent");
    int64_t until = clock_monotonic_ms() + LIMIT_MS;
    uint32_t number;

    (void)state;
    b->agent->start_wait_ms = LIMIT_MS;
    bench_queue_all(b, "while :; do sleep 0.05; done", false);
    agent_ping(b->agent, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    assert_true(b->started);
    number = b->channel->number;
    agent_channel_abandon(TAKE(b->channel)); /* without a word to the guest */
    bench_reconnect(b);
    b->begun = false;
    agent_begin(b->agent, false, LIMIT_MS, bench_on_begun, b);
    do {
        agent_signal_left(b->agent, number, SIGCONT, bench_on_result, b);
        bench_run(b);
    } while (b->start_errnum == 0 && !b->failed && clock_monotonic_ms() < until);
    assert_false(b->failed);
    assert_true(b->begun);
    assert_int_equal(b->start_errnum, ESRCH);
    bench_free(b);
}

/* What an ended one left running is its user's: only its record is over. */
static void test_what_an_unknown_command_left_stays(void **state)
{
    struct bench *b = bench_new("space-init-host", "--agent");
    uint64_t pid;

    (void)state;
    b->agent->start_wait_ms = LIMIT_MS;
    bench_queue_all(b, "sleep 60 </dev/null >/dev/null 2>&1 & printf $!", false);
    bench_run(b);
    assert_true(b->exited);
    assert_int_equal(span_parse_u64(buf_span(&b->output), INT32_MAX, &pid), 0);
    agent_channel_abandon(TAKE(b->channel));
    bench_reconnect(b);
    agent_begin(b->agent, false, LIMIT_MS, bench_on_begun, b);
    for (int i = 0; i < 2; i++) { /* the second answer comes behind all that the first began */
        agent_ping(b->agent, LIMIT_MS, bench_on_result, b);
        bench_run(b);
    }
    assert_false(b->failed);
    assert_int_equal(kill((pid_t)pid, 0), 0);
    assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
    bench_free(b);
}

/* Its VM is stopped all the same: no time runs out, of what was sent neither, until it is woken. */
static void test_a_busy_guest_stands_still(void **state)
{
    struct bench *b = bench_new("fake-agent", "good");

    (void)state;
    bench_queue_all(b, "true", false);
    bench_run(b);
    assert_true(b->exited);
    agent_channel_close(b->channel);
    b->exited = false;
    assert_int_equal(kill(b->pid, SIGSTOP), 0);
    b->identity_result = -1;
    agent_ping(b->agent, SHORT_MS, on_signalled, b); /* sent before */
    agent_silence(b->agent, AGENT_SILENCE_FREEZE, 1, bench_on_result, b);
    bench_run(b);
    assert_int_equal(b->start_errnum, ETIMEDOUT);
    agent_stand_still(b->agent);
    b->agent->start_wait_ms = SHORT_MS / 4;
    bench_queue_start(b, "true");
    loop_timer_start(b->limit, 2 * SHORT_MS);
    assert_int_equal(loop_run(b->loop), 0);
    assert_false(b->failed);
    assert_non_null(b->channel);
    assert_int_equal(b->identity_result, -1);
    agent_wake(b->agent, LIMIT_MS, bench_on_result, b);
    b->start_errnum = -1;
    assert_int_equal(kill(b->pid, SIGCONT), 0);
    bench_run(b);
    assert_false(b->failed);
    assert_int_equal(b->start_errnum, 0);
    assert_int_equal(b->identity_result, 0);
    bench_run(b);
    assert_false(b->failed);
    assert_true(b->exited);
    bench_free(b);
}

static void test_agent_without_the_time(void **state)
{
    struct bench *b = bench_new("fake-agent", "good");

    (void)state;
    bench_queue_all(b, "true", false);
    bench_run(b);
    assert_true(b->exited);
    assert_false(agent_takes_time(b->agent));
    agent_silence(b->agent, 0, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    assert_int_equal(b->start_errnum, 0);
    b->start_errnum = -1;
    agent_wake(b->agent, LIMIT_MS, bench_on_result, b);
    bench_run(b);
    assert_false(b->failed);
    assert_int_equal(b->start_errnum, 0);
    bench_free(b);
}

static void test_a_held_conversation_takes_nothing(void **state)
{
    (void)state;
    check_hold(true);
    check_hold(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_silence_holds_and_wake_goes_on),
        cmocka_unit_test(test_held_commands_wait_for_wake),
        cmocka_unit_test(test_nothing_overtakes_a_queued_silence),
        cmocka_unit_test(test_a_busy_guest_is_woken_behind_its_silence),
        cmocka_unit_test(test_what_waits_for_a_busy_guest_fails_alone),
        cmocka_unit_test(test_what_was_sent_before_fails_alone),
        cmocka_unit_test(test_a_silence_outlasts_what_was_sent_before),
        cmocka_unit_test(test_a_command_that_was_given_up_is_killed),
        cmocka_unit_test(test_a_command_that_nobody_knows_is_killed),
        cmocka_unit_test(test_what_an_unknown_command_left_stays),
        cmocka_unit_test(test_a_busy_guest_stands_still),
        cmocka_unit_test(test_agent_without_the_time),
        cmocka_unit_test(test_a_held_conversation_takes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
