/* For sandbox_suspend_test.c: what a suspend calls and the test takes no notice of. */
#include <errno.h>
#include <fcntl.h>

#include "io/loop.h"
#include "node/agent.h"
#include "node/node_private.h"
#include "node/ram_stage.h"
#include "node/sandbox_capture.h"
#include "node/sandbox_fetch.h"
#include "node/sandbox_resume.h"
#include "node/vm.h"

struct loop_timer {
    int unused; /* capture_gate_test.c has one that ends */
};

struct loop_timer *loop_timer_new(struct loop *loop, loop_fn fn, void *arg)
{
    static struct loop_timer timer;

    (void)loop;
    (void)fn;
    (void)arg;
    return &timer;
}

void loop_timer_start(struct loop_timer *timer, int64_t delay_ms)
{
    (void)timer;
    (void)delay_ms;
}

void loop_timer_stop(struct loop_timer *timer)
{
    (void)timer;
}

void loop_timer_free(struct loop_timer *timer)
{
    (void)timer;
}

const char *sandbox_state_name(enum sandbox_state state)
{
    static const char *const names[] = {"creating",   "running",   "pausing",  "paused", "waking",
                                        "suspending", "suspended", "deleting", "error",  "deleted"};

    return names[state];
}

struct ram_stage *ram_stage_new(int proc_fd, int image_fd, bool is_memfd, uint64_t reserve_mib)
{
    (void)reserve_mib;
    (void)proc_fd;
    (void)image_fd;
    (void)is_memfd;
    return NULL;
}

void ram_stage_free(struct ram_stage *stage)
{
    (void)stage;
}

void sandbox_touch(struct sandbox *sb)
{
    (void)sb;
}

int sandbox_add_waiter(
    struct node *node, struct sandbox *sb, enum waiter_kind kind, sandbox_wait_fn fn, void *arg)
{
    (void)node;
    (void)sb;
    (void)kind;
    (void)fn;
    (void)arg;
    return 0;
}

int sandbox_begin_resume(struct sandbox *sb, struct error *err)
{
    (void)sb;
    return error_set(err, EIO, "not here");
}

void sandbox_free_resume(struct sandbox *sb)
{
    (void)sb;
}

void sandbox_save_console(struct sandbox *sb)
{
    (void)sb;
}

bool node_is_ready(const struct node *node)
{
    (void)node;
    return true;
}

int node_check_start(const struct node *node, struct error *err)
{
    return node->parts->environment_known
               ? 0
               : error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL, "not known yet");
}

int snapshot_capture_cold(const char *dir,
                          const struct snapshot_source *source,
                          struct snapshot_sizes *ret,
                          struct error *err)
{
    (void)dir;
    (void)source;
    (void)ret;
    return error_set(err, EIO, "not here");
}

void checkpoint_fail(struct checkpoint *ck, const struct error *err)
{
    (void)ck;
    (void)err;
}

int sandbox_checkpoint_prepare(struct sandbox_capture *c)
{
    (void)c;
    return 0;
}

void sandbox_checkpoint_captured(struct sandbox *sb)
{
    (void)sb;
}

void sandbox_checkpoint_resume(struct sandbox *sb, bool stopped, bool was_paused)
{
    (void)sb;
    (void)stopped;
    (void)was_paused;
}

void sandbox_checkpoint_go_on(struct sandbox *sb, bool was_paused)
{
    (void)sb;
    (void)was_paused;
}

void vm_set_deadline(struct vm *vm, int64_t timeout_ms, const char *code, const char *message)
{
    (void)vm;
    (void)timeout_ms;
    (void)code;
    (void)message;
}

int vm_open_process(const struct vm *vm)
{
    (void)vm;
    return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

bool agent_takes_time(const struct agent *agent)
{
    (void)agent;
    return true;
}

void agent_stand_still(struct agent *agent)
{
    (void)agent;
}

void agent_expect_wake(struct agent *agent)
{
    (void)agent;
}

void sandbox_keep_objects(struct sandbox *sb)
{
    (void)sb;
}

void sandbox_forget_objects(struct sandbox *sb)
{
    (void)sb;
}

void sandbox_set_state(struct sandbox *sb, enum sandbox_state state)
{
    sb->info.state = state;
}

void sandbox_end_job(struct sandbox *sb)
{
    sb->jobs--;
    sandbox_tell_idle(sb);
}

bool snapshot_is_cold(const char *dir)
{
    (void)dir;
    return false;
}

struct agent *vm_agent(const struct vm *vm)
{
    return (struct agent *)(uintptr_t)vm;
}
