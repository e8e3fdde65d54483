/* Suspending against a fake VM, a fake agent, a fake worker and fake snapshots: what is done in
 * which order, and what a failure, a deletion or the VM's end at each step leaves. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "io/loop.h"
#include "node/agent.h"
#include "node/journal.h"
#include "node/node_private.h"
#include "node/sandbox_capture.h"
#include "node/vm.h"

struct vm {
    struct world *world;
    bool stopped;
    struct runtime_env env;
    bool ram_is_memfd;
    bool is_of_old; /* its record does not say what it was started under */
    vm_fn done;
    vm_result_fn saved;
    void *arg;
};

struct world {
    struct node node;
    struct node_parts parts;
    struct sandbox sb;
    struct vm vm;
    char dir[64];
    char log[400]; /* what was done, one word each */
    int journal_error;
    uint64_t written_id; /* in the journal */
    bool written_asleep;
    agent_done_fn agent_done;
    void *agent_arg;
    loop_fn work;
    loop_fn done;
    void *job;
    bool has_snapshot; /* `suspended/` */
    uint64_t tag;      /* its */
    int commit_error;
    int sync_error;
    uint64_t promised; /* of the room */
    struct snapshot_facts captured;
    bool captured_memfd;
};

static struct world *the_world; /* for the fakes that are told of nothing */

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

/* ---- fakes: the record ---- */

int sandbox_write_journal(struct sandbox *sb)
{
    struct world *w = the_world;
    char word[32];

    (void)snprintf(word, sizeof(word), "%s:%s", w->journal_error == 0 ? "journal" : "fails",
                   sandbox_state_name(sb->info.state));
    note(w, word);
    if (w->journal_error == 0) {
        w->written_id = sb->info.capture_id;
        w->written_asleep = sb->info.asleep;
    }
    return w->journal_error;
}

int sandbox_write_journal_as(struct sandbox *sb, enum sandbox_state state)
{
    enum sandbox_state before = sb->info.state;
    int r;

    sb->info.state = state;
    r = sandbox_write_journal(sb);
    sb->info.state = before;
    return r;
}

void sandbox_dir_path(const struct sandbox *sb, const char *file, char *out, size_t size)
{
    (void)sb;
    (void)snprintf(out, size, "%s/%s", the_world->dir, file);
}

int journal_sync(int dir_fd)
{
    (void)dir_fd;
    note(the_world, the_world->sync_error == 0 ? "sync" : "unsynced");
    return the_world->sync_error;
}

void sandbox_sleep_agent(struct sandbox *sb)
{
    (void)sb;
    note(the_world, "sleep");
}

void sandbox_end_vm(struct sandbox *sb, struct vm *vm)
{
    (void)sb;
    note(vm->world, "end");
}

void sandbox_change_vm(struct sandbox *sb, struct vm *vm)
{
    note(vm->world, "gone");
    sb->vm = NULL;
}

void sandbox_lose_agent(struct sandbox *sb, const char *reason)
{
    assert_true(sb->agent_told);
    note(the_world, reason);
}

/* ---- fakes: workers and snapshots ---- */

int loop_submit(struct loop *loop, loop_fn work, loop_fn done, void *arg, bool background)
{
    struct world *w = the_world;

    (void)loop;
    (void)background;
    assert_null(w->work);
    w->work = work;
    w->done = done;
    w->job = arg;
    return 0;
}

bool snapshot_exists(const char *dir)
{
    (void)dir;
    return the_world->has_snapshot;
}

bool snapshot_has_parts(const char *dir)
{
    (void)dir;
    return the_world->has_snapshot;
}

bool snapshot_has_tag(const char *dir, uint64_t tag)
{
    (void)dir;
    return tag != 0 && the_world->tag == tag;
}

int snapshot_tag(const char *dir, uint64_t tag)
{
    (void)dir;
    note(the_world, "tag");
    the_world->tag = tag;
    return 0;
}

int snapshot_disown(const char *dir)
{
    (void)dir;
    the_world->has_snapshot = false;
    return 0;
}

int snapshot_remove(const char *dir)
{
    note(the_world, "remove");
    return snapshot_disown(dir);
}

int snapshot_begin(const char *dir, struct error *err)
{
    (void)dir;
    (void)err;
    note(the_world, "begin");
    the_world->has_snapshot = false;
    return 0;
}

int snapshot_capture(const char *dir,
                     const struct snapshot_facts *facts,
                     const struct snapshot_source *source,
                     struct snapshot_sizes *ret,
                     struct error *err)
{
    (void)dir;
    (void)err;
    note(the_world, "capture");
    the_world->captured = *facts;
    the_world->captured_memfd = source->ram_is_memfd;
    ret->promised_bytes = 4096;
    the_world->promised += 4096;
    return 0;
}

int snapshot_commit(const char *dir,
                    const struct snapshot_facts *facts,
                    const struct snapshot_sizes *sizes,
                    struct error *err)
{
    (void)dir;
    (void)facts;
    (void)sizes;
    note(the_world, "commit");
    if (the_world->commit_error < 0) {
        return error_set_code(err, ERROR_STORAGE_FULL, NULL, "full");
    }
    the_world->has_snapshot = true;
    return 0;
}

void snapshot_room_give_back(struct snapshot_room *room, uint64_t bytes)
{
    assert_ptr_equal(room, &the_world->node.parts->room);
    the_world->promised -= bytes;
}

/* ---- fakes: the VM and its agent ---- */

static void command(struct vm *vm, const char *word, vm_fn done, void *arg)
{
    note(vm->world, word);
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

const struct runtime_env *vm_environment(const struct vm *vm)
{
    return vm->is_of_old ? NULL : &vm->env;
}

bool vm_ram_is_memfd(const struct vm *vm)
{
    return vm->ram_is_memfd;
}

void vm_save(struct vm *vm, int state_fd, vm_result_fn done, void *arg)
{
    (void)state_fd;
    command(vm, "save", NULL, arg);
    vm->saved = done;
}

void vm_read_console(struct vm *vm, vm_fn done, void *arg)
{
    done(arg, vm);
}

static void ask(struct agent *agent, const char *word, agent_done_fn done, void *arg)
{
    struct world *w = ((struct vm *)(uintptr_t)agent)->world;

    note(w, word);
    w->agent_done = done;
    w->agent_arg = arg;
}

void agent_silence(
    struct agent *agent, uint8_t flags, int64_t deadline_ms, agent_done_fn done, void *arg)
{
    assert_int_equal(flags, AGENT_SILENCE_FREEZE | AGENT_SILENCE_SYNC);
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
    (void)known_silent;
    (void)deadline_ms;
    ask(agent, "HELLO", done, arg);
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
    vm_result_fn saved = w->vm.saved;

    w->vm.done = NULL;
    w->vm.saved = NULL;
    if (saved != NULL) {
        saved(w->vm.arg, &w->vm, NULL);
    } else if (done != NULL) {
        done(w->vm.arg, &w->vm);
    }
}

/* The worker does what it was given. */
static void work(struct world *w)
{
    loop_fn job = w->work;

    assert_non_null(job);
    w->work = NULL;
    job(w->job);
    w->done(w->job);
}

static void set_env(struct runtime_env *env, const char *version, const char *accelerator)
{
    (void)snprintf(env->vmm_version, sizeof(env->vmm_version), "%s", version);
    (void)snprintf(env->accelerator, sizeof(env->accelerator), "%s", accelerator);
}

static void begin(struct world *w, enum sandbox_state state)
{
    char path[96];

    memset(w, 0, sizeof(*w));
    the_world = w;
    (void)snprintf(w->dir, sizeof(w->dir), "/tmp/suspend-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    (void)snprintf(path, sizeof(path), "%s/disk.img", w->dir);
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_of_str("a disk"), 0600, false), 0);
    (void)snprintf(path, sizeof(path), "%s/ram", w->dir);
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_of_str("a base"), 0600, false), 0);
    w->node.parts = &w->parts;
    w->node.settings.node_silence_timeout_ms = 1000;
    w->parts.environment_known = true;
    list_init(&w->parts.captures_waiting);
    w->sb.node = &w->node;
    w->sb.dir_fd = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    w->sb.vm = &w->vm;
    w->sb.info.state = state;
    set_env(&w->parts.runtime.env, "10.0.2", "tcg");
    set_env(&w->vm.env, "7.2", "kvm"); /* it was adopted */
    w->vm.ram_is_memfd = true;
    w->vm.world = w;
    w->vm.stopped = state == SANDBOX_STATE_PAUSED;
}

static void end(struct world *w)
{
    sandbox_free_suspend(&w->sb);
    assert_int_equal(w->promised, 0);
    (void)close(w->sb.dir_fd);
    assert_int_equal(dir_remove_tree(AT_FDCWD, w->dir), 0);
}

static int suspend(struct world *w, struct error *err)
{
    return sandbox_suspend(&w->sb, &(struct sandbox_reason){"idle_timeout", "why"}, NULL, NULL,
                           err);
}

/* Up to the capture, which a worker has then. */
static void suspend_to_the_capture(struct world *w)
{
    assert_int_equal(suspend(w, NULL), 0);
    answer_agent(w, 0);
    work(w);
    answer_vm(w);
    answer_vm(w);
    expect(w, "journal:suspending SILENCE begin stop save", SANDBOX_STATE_SUSPENDING);
}

static bool has_disk(const struct world *w)
{
    return faccessat(w->sb.dir_fd, "disk.img", F_OK, 0) == 0;
}

/* ---- tests ---- */

static void test_each_step_is_written_before_it_is_taken(void **state)
{
    struct world w;

    (void)state;
    begin(&w, SANDBOX_STATE_RUNNING);
    w.sb.change_err.code = ERROR_STORAGE_FULL; /* of an attempt before */
    suspend_to_the_capture(&w);
    assert_string_equal(w.sb.change_err.message, "");
    assert_int_equal(w.sb.change_err.code, (struct error){0}.code);
    work(&w);
    expect(&w, "capture tag commit journal:suspended", SANDBOX_STATE_SUSPENDING);
    assert_string_equal(w.captured.env.vmm_version, "7.2"); /* what its VM runs under */
    assert_string_equal(w.captured.env.accelerator, "kvm");
    assert_true(w.captured_memfd);
    assert_true(w.written_asleep);
    assert_non_null(w.sb.vm);
    assert_true(has_disk(&w));
    work(&w);
    expect(&w, "sync sleep end", SANDBOX_STATE_SUSPENDED);
    assert_true(w.sb.info.asleep);
    assert_null(w.sb.vm);
    assert_null(w.sb.capture);
    assert_false(has_disk(&w));
    end(&w);
}

/* The node finds out which accelerator works: only what depends on that waits. */
static void test_what_its_snapshot_is_bound_to_is_known_first(void **state)
{
    struct error err = {0};
    struct world w;

    (void)state;
    begin(&w, SANDBOX_STATE_RUNNING);
    w.parts.environment_known = false;
    w.vm.is_of_old = true;
    assert_true(suspend(&w, &err) < 0);
    assert_int_equal(err.code, ERROR_SERVICE_UNAVAILABLE);
    expect(&w, "", SANDBOX_STATE_RUNNING);
    w.vm.is_of_old = false;
    suspend_to_the_capture(&w);
    end(&w);
}

/* VM and disk are there until the record is on stable storage. */
static void test_what_cannot_be_synchronised_is_undone(void **state)
{
    struct world w;

    (void)state;
    begin(&w, SANDBOX_STATE_RUNNING);
    suspend_to_the_capture(&w);
    work(&w);
    expect(&w, "capture tag commit journal:suspended", SANDBOX_STATE_SUSPENDING);
    w.sync_error = -EIO;
    work(&w);
    answer_agent(&w, 0); /* WAKE */
    expect(&w, "unsynced journal:suspending WAKE cont journal:running", SANDBOX_STATE_RUNNING);
    assert_false(w.written_asleep);
    assert_false(w.sb.info.asleep);
    assert_non_null(w.sb.vm);
    assert_true(has_disk(&w));
    assert_int_equal(w.sb.change_err.code, ERROR_INTERNAL);
    end(&w);
}

/* A deletion, or the VM's end, while the record is synchronised. */
static void test_what_ends_meanwhile_is_left_alone(void **state)
{
    struct world w;

    (void)state;
    begin(&w, SANDBOX_STATE_RUNNING);
    suspend_to_the_capture(&w);
    work(&w);
    w.sb.info.state = SANDBOX_STATE_DELETING;
    w.sb.vm = NULL;
    w.log[0] = '\0';
    work(&w);
    expect(&w, "sync", SANDBOX_STATE_DELETING);
    assert_null(w.sb.capture);
    assert_int_equal(w.sb.jobs, 0);
    end(&w);
}

/* The record of its wake may be lost yet. */
static void test_a_snapshot_stays_until_its_wake_is_synchronised(void **state)
{
    struct world w;
    struct error err = {0};

    (void)state;
    begin(&w, SANDBOX_STATE_RUNNING);
    w.has_snapshot = true;
    w.sync_error = -EIO;
    sandbox_drop_snapshot(&w.sb);
    work(&w);
    expect(&w, "unsynced", SANDBOX_STATE_RUNNING);
    assert_true(w.has_snapshot);
    assert_true(suspend(&w, &err) < 0);
    assert_int_equal(err.code, ERROR_SERVICE_UNAVAILABLE);
    w.sync_error = 0;
    work(&w);
    expect(&w, "sync remove", SANDBOX_STATE_RUNNING);
    assert_false(w.has_snapshot);
    assert_int_equal(suspend(&w, NULL), 0);
    end(&w);
}

/* What an earlier wake has not removed yet must never pass for what is to come. */
static void test_an_earlier_snapshot_does_not_count(void **state)
{
    struct world w;

    (void)state;
    begin(&w, SANDBOX_STATE_RUNNING);
    w.has_snapshot = true;
    w.tag = w.sb.info.capture_id = 7;
    assert_int_equal(suspend(&w, NULL), 0);
    expect(&w, "journal:suspending SILENCE", SANDBOX_STATE_SUSPENDING);
    assert_true(w.written_id != 0 && w.written_id != 7);
    assert_true(w.has_snapshot);
    assert_false(sandbox_has_snapshot(&w.sb));
    answer_agent(&w, 0);
    work(&w);
    expect(&w, "sync remove begin stop", SANDBOX_STATE_SUSPENDING);
    answer_vm(&w);
    answer_vm(&w);
    work(&w);
    assert_true(w.tag == w.written_id);
    assert_true(sandbox_has_snapshot(&w.sb));
    end(&w);
}

/* The journal of the wake is not on stable storage yet: after a power cut the one before it would
 * look for its snapshot. */
static void test_a_suspend_right_after_a_wake(void **state)
{
    struct world w;

    (void)state;
    begin(&w, SANDBOX_STATE_RUNNING);
    w.has_snapshot = true;
    sandbox_drop_snapshot(&w.sb);
    assert_int_equal(suspend(&w, NULL), 0);
    expect(&w, "journal:suspending", SANDBOX_STATE_SUSPENDING);
    assert_true(w.has_snapshot);
    work(&w);
    expect(&w, "sync remove SILENCE", SANDBOX_STATE_SUSPENDING);
    end(&w);

    /* Nothing was removed before, and cannot be: it runs on, and the snapshot stays. */
    begin(&w, SANDBOX_STATE_RUNNING);
    w.has_snapshot = true;
    w.sync_error = -EIO;
    assert_int_equal(suspend(&w, NULL), 0);
    answer_agent(&w, 0);
    work(&w);
    expect(&w, "journal:suspending SILENCE unsynced WAKE", SANDBOX_STATE_SUSPENDING);
    assert_true(w.has_snapshot);
    answer_agent(&w, 0);
    expect(&w, "journal:running", SANDBOX_STATE_RUNNING);
    assert_non_null(strstr(w.sb.change_err.message, "earlier snapshot"));
    work(&w);
    expect(&w, "unsynced", SANDBOX_STATE_RUNNING);
    assert_true(w.has_snapshot);
    end(&w);
}

/* From the silence on, so that limits of time do not run out in it. */
static void test_the_time_of_a_capture_is_paused(void **state)
{
    struct world w;

    (void)state;
    begin(&w, SANDBOX_STATE_RUNNING);
    assert_int_equal(suspend(&w, NULL), 0);
    assert_true(w.sb.info.paused_at_ms != 0);
    w.sb.paused_since_ms -= 70000;
    answer_agent(&w, 0);
    work(&w);
    answer_vm(&w);
    answer_vm(&w);
    w.commit_error = -ENOSPC;
    work(&w);
    assert_in_range(sandbox_paused_ms(&w.sb), 70000, 75000);
    answer_agent(&w, 0); /* WAKE */
    expect(&w,
           "journal:suspending SILENCE begin stop save capture tag commit remove WAKE cont "
           "journal:running",
           SANDBOX_STATE_RUNNING);
    assert_int_equal(w.sb.info.paused_at_ms, 0);
    assert_in_range(w.sb.info.paused_total_ms, 70000, 75000);
    assert_int_equal(w.sb.change_err.code, ERROR_STORAGE_FULL);
    end(&w);

    begin(&w, SANDBOX_STATE_RUNNING);
    assert_int_equal(suspend(&w, NULL), 0);
    w.sb.paused_since_ms -= 70000;
    answer_agent(&w, EBUSY);
    expect(&w, "journal:suspending SILENCE journal:running", SANDBOX_STATE_RUNNING);
    assert_in_range(w.sb.info.paused_total_ms, 70000, 75000);
    end(&w);
}

/* Somebody may try again. */
static void test_a_guest_that_is_busy_runs_on(void **state)
{
    struct world w;

    (void)state;
    begin(&w, SANDBOX_STATE_RUNNING);
    assert_int_equal(suspend(&w, NULL), 0);
    answer_agent(&w, ETIMEDOUT);
    expect(&w, "journal:suspending SILENCE journal:running", SANDBOX_STATE_RUNNING);
    assert_int_equal(w.sb.change_err.code, ERROR_DEADLINE_EXCEEDED);
    assert_string_equal(w.sb.change_err.field, "guest_busy");
    assert_non_null(w.sb.vm);
    assert_int_equal(suspend(&w, NULL), 0);
    end(&w);
}

/* After a restart of this program. */
static void test_it_waits_for_what_the_vmm_says(void **state)
{
    struct world w;

    (void)state;
    begin(&w, SANDBOX_STATE_RUNNING);
    w.sb.settling = true;
    assert_int_equal(suspend(&w, NULL), 0); /* before the VMM is connected */
    expect(&w, "journal:suspending", SANDBOX_STATE_SUSPENDING);
    sandbox_settle_adopted(&w.sb);
    expect(&w, "check", SANDBOX_STATE_SUSPENDING);
    answer_vm(&w);
    expect(&w, "SILENCE", SANDBOX_STATE_SUSPENDING);
    end(&w);

    begin(&w, SANDBOX_STATE_PAUSED);
    w.sb.settling = true;
    w.sb.greet_wanted = true;
    sandbox_settle_adopted(&w.sb);
    assert_int_equal(suspend(&w, NULL), 0);
    expect(&w, "check journal:suspending", SANDBOX_STATE_SUSPENDING);
    answer_vm(&w);
    expect(&w, "HELLO cont", SANDBOX_STATE_SUSPENDING);
    answer_agent(&w, 0);
    answer_agent(&w, 0);
    expect(&w, "WAKE SILENCE", SANDBOX_STATE_SUSPENDING);
    end(&w);
}

/* With all of it written down it needs none any more. */
static void test_a_vm_that_ends_in_its_capture(void **state)
{
    struct world w;

    (void)state;
    begin(&w, SANDBOX_STATE_RUNNING);
    suspend_to_the_capture(&w);
    assert_true(sandbox_outlive_vm(&w.sb, &w.vm, "out_of_memory", "it used more"));
    expect(&w, "sleep gone", SANDBOX_STATE_SUSPENDING);
    work(&w);
    expect(&w, "capture tag commit journal:suspended", SANDBOX_STATE_SUSPENDING);
    work(&w);
    expect(&w, "sync sleep", SANDBOX_STATE_SUSPENDED);
    assert_true(w.sb.info.asleep && w.has_snapshot && w.sb.capture == NULL);
    assert_string_equal(w.sb.info.reason_code, "idle_timeout");
    end(&w);

    begin(&w, SANDBOX_STATE_RUNNING);
    suspend_to_the_capture(&w);
    assert_true(sandbox_outlive_vm(&w.sb, &w.vm, "out_of_memory", "it used more"));
    w.journal_error = -EIO; /* a restart finds the snapshot all the same */
    work(&w);
    assert_int_equal(w.sb.info.state, SANDBOX_STATE_SUSPENDED);
    end(&w);

    begin(&w, SANDBOX_STATE_RUNNING);
    suspend_to_the_capture(&w);
    assert_true(sandbox_outlive_vm(&w.sb, &w.vm, "out_of_memory", "it used more"));
    w.log[0] = '\0';
    w.commit_error = -ENOSPC;
    work(&w);
    expect(&w, "capture tag commit remove crashed journal:error", SANDBOX_STATE_ERROR);
    assert_false(w.sb.info.asleep || w.has_snapshot);
    assert_null(w.sb.capture);
    assert_string_equal(w.sb.info.reason_code, "out_of_memory");
    assert_string_equal(w.sb.info.reason_message, "it used more");
    end(&w);
}

/* In any other step there is nothing to wait for, and nothing is kept. */
static void test_a_vm_that_ends_before_it(void **state)
{
    struct world w;

    (void)state;
    for (int step = 0; step < 3; step++) {
        begin(&w, SANDBOX_STATE_RUNNING);
        assert_int_equal(suspend(&w, NULL), 0);
        if (step > 0) {
            answer_agent(&w, 0);
        }
        if (step > 1) {
            work(&w);
            answer_vm(&w);
        }
        assert_false(sandbox_outlive_vm(&w.sb, &w.vm, "vmm_crashed", "it ended"));
        w.sb.info.state = SANDBOX_STATE_ERROR;
        sandbox_lose_capture(&w.sb);
        if (w.work != NULL) {
            work(&w);
        }
        assert_null(w.sb.capture);
        end(&w);
    }
}

/* Rules may want hundreds at once; what waits runs, and goes when it is deleted. */
static void test_few_are_captured_at_once(void **state)
{
    static struct world all[6];
    struct node_parts *parts = &all[0].parts;

    (void)state;
    for (size_t i = 0; i < 6; i++) {
        begin(&all[i], SANDBOX_STATE_RUNNING);
        all[i].node.parts = parts;
        assert_int_equal(sandbox_suspend(&all[i].sb,
                                         &(struct sandbox_reason){i == 5 ? "" : "idle_timeout", ""},
                                         NULL, NULL, NULL),
                         0);
        expect(&all[i], i < 2 ? "journal:suspending SILENCE" : "journal:suspending",
               SANDBOX_STATE_SUSPENDING);
        assert_int_equal(all[i].sb.info.paused_at_ms != 0, i < 2);
    }
    all[2].sb.info.state = SANDBOX_STATE_DELETING;
    sandbox_lose_capture(&all[2].sb);
    the_world = &all[0];
    answer_agent(&all[0], EBUSY);
    expect(&all[5], "SILENCE", SANDBOX_STATE_SUSPENDING); /* somebody has asked for that one */
    all[1].sb.info.state = SANDBOX_STATE_DELETING;
    sandbox_lose_capture(&all[1].sb);
    expect(&all[2], "", SANDBOX_STATE_DELETING);
    expect(&all[3], "SILENCE", SANDBOX_STATE_SUSPENDING);
    expect(&all[4], "", SANDBOX_STATE_SUSPENDING);
    for (size_t i = 0; i < 6; i++) {
        end(&all[i]);
    }
    assert_int_equal(parts->captures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_step_is_written_before_it_is_taken),
        cmocka_unit_test(test_what_its_snapshot_is_bound_to_is_known_first),
        cmocka_unit_test(test_what_cannot_be_synchronised_is_undone),
        cmocka_unit_test(test_what_ends_meanwhile_is_left_alone),
        cmocka_unit_test(test_a_snapshot_stays_until_its_wake_is_synchronised),
        cmocka_unit_test(test_an_earlier_snapshot_does_not_count),
        cmocka_unit_test(test_a_suspend_right_after_a_wake),
        cmocka_unit_test(test_the_time_of_a_capture_is_paused),
        cmocka_unit_test(test_a_guest_that_is_busy_runs_on),
        cmocka_unit_test(test_it_waits_for_what_the_vmm_says),
        cmocka_unit_test(test_a_vm_that_ends_in_its_capture),
        cmocka_unit_test(test_a_vm_that_ends_before_it),
        cmocka_unit_test(test_few_are_captured_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
