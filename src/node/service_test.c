/* Services over a real connection to an agent that does what it is told: their ends, their time,
 * and what a new conversation does to them. */
#include "node/service.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "io/loop.h"
#include "node/agent.h"
#include "node/data.h"
#include "node/node.h"
#include "node/sandbox.h"
#include "node/services.h"

#define LIMIT_MS 20000
#define IDLE_MS  50

/* What a sandbox is here. */
struct sandbox {
    struct agent *agent;
    unsigned int touched;
};

struct agent *sandbox_agent(const struct sandbox *sb)
{
    return sb->agent;
}

int64_t sandbox_paused_ms(const struct sandbox *sb)
{
    (void)sb;
    return 0;
}

int64_t sandbox_timer_delay(const struct sandbox *sb, int64_t left_ms)
{
    (void)sb;
    return left_ms;
}

void sandbox_touch(struct sandbox *sb)
{
    sb->touched++;
}

struct bench {
    struct node node;
    struct data data;
    struct sandbox sandbox;
    struct services services;
    struct loop_timer *limit;
    pid_t pid;
    char dir[64];
    char socket[96];
    /* of the service under test */
    struct service *service;
    size_t bytes;
    bool holds; /* bytes are not taken */
    size_t entries;
    bool closes; /* at the first record */
    bool ended;
    enum service_end_kind kind;
    bool failed; /* the agent */
    bool begun;
};

static void start_agent(struct bench *b)
{
    char self[400];
    char path[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    assert_true(n > 0);
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    (void)snprintf(path, sizeof(path), "%s/src/node/fake-services", self);
    b->pid = fork();
    assert_true(b->pid >= 0);
    if (b->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)execl(path, path, "--agent", b->socket, (char *)NULL);
        _exit(127);
    }
}

static void
on_failed(void *arg, struct agent *agent, enum agent_failure failure, const char *message)
{
    struct bench *b = arg;

    (void)agent;
    (void)failure;
    (void)message;
    b->failed = true;
    loop_stop(b->node.loop);
}

static void stop(void *arg)
{
    struct bench *b = arg;

    loop_stop(b->node.loop);
}

static void on_limit(void *arg)
{
    (void)arg;
    fail_msg("it takes too long");
}

static void on_begun(void *arg, int result)
{
    struct bench *b = arg;

    b->begun = result == 0;
    loop_stop(b->node.loop);
}

static void run(struct bench *b)
{
    loop_timer_start(b->limit, LIMIT_MS);
    assert_int_equal(loop_run(b->node.loop), 0);
    loop_timer_stop(b->limit);
}

static void begin(struct bench *b)
{
    b->begun = false;
    agent_begin(b->sandbox.agent, false, LIMIT_MS, on_begun, b);
    while (!b->begun) {
        run(b);
    }
}

static int set_up(void **state)
{
    static const struct agent_callbacks callbacks = {on_failed};
    struct bench *b = calloc(1, sizeof(*b));
    int r = -1;

    assert_non_null(b);
    (void)snprintf(b->dir, sizeof(b->dir), "/tmp/service-test-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    (void)snprintf(b->socket, sizeof(b->socket), "%s/agent", b->dir);
    b->node.loop = loop_new(0);
    b->data.node = &b->node;
    b->services.data = &b->data;
    b->services.sandbox = &b->sandbox;
    list_init(&b->services.open);
    b->limit = loop_timer_new(b->node.loop, on_limit, b);
    b->sandbox.agent = agent_new(b->node.loop, &callbacks, b);
    assert_non_null(b->sandbox.agent);
    start_agent(b);
    for (int i = 0; i < 1000 && r < 0; i++) {
        r = agent_connect(b->sandbox.agent, b->socket);
        if (r < 0) {
            (void)usleep(10000);
        }
    }
    assert_int_equal(r, 0);
    begin(b);
    *state = b;
    return 0;
}

static int tear_down(void **state)
{
    struct bench *b = *state;

    agent_free(b->sandbox.agent);
    assert_true(list_is_empty(&b->services.open));
    loop_timer_free(b->limit);
    loop_free(b->node.loop);
    (void)kill(b->pid, SIGKILL);
    (void)waitpid(b->pid, NULL, 0);
    (void)unlink(b->socket);
    (void)rmdir(b->dir);
    free(b);
    return 0;
}

/* ---- the owner ---- */

static const char *on_record(void *arg, const struct service_record *record)
{
    struct bench *b = arg;

    (void)record;
    b->entries++;
    if (b->closes) {
        service_close(TAKE(b->service));
        loop_stop(b->node.loop);
    }
    return NULL;
}

static const char *on_body(void *arg, const struct service_body *body)
{
    (void)arg;
    (void)body;
    return NULL;
}

static void on_bytes(void *arg, struct span bytes)
{
    struct bench *b = arg;

    b->bytes += bytes.n;
    if (!b->holds) {
        service_take(b->service, bytes.n);
    } else if (b->bytes == AGENT_WINDOW / 32000 * 32000) {
        loop_stop(b->node.loop); /* as much as the window allows */
    }
}

static void on_ended(void *arg, const struct service_end *end)
{
    struct bench *b = arg;

    b->service = NULL;
    b->ended = true;
    b->kind = end->kind;
    loop_stop(b->node.loop);
}

static void open_service(struct bench *b, const char *name, const char *path, int64_t idle_ms)
{
    static const struct service_callbacks callbacks = {
        .on_record = on_record,
        .on_body = on_body,
        .on_bytes = on_bytes,
        .on_ended = on_ended,
    };
    struct service_args args;
    struct service_spec spec = {
        .args = &args,
        .user = "root",
        .has_input = strcmp(name, "file-write") == 0,
        .is_activity = true,
        .is_tolerant = strcmp(path, "/lie/garbage") == 0,
        .idle_ms = idle_ms,
    };

    service_args_init(&args, name);
    service_args_add_str(&args, path);
    service_args_add_str(&args, "");
    b->service = service_open(&b->services, &spec, &callbacks, b, NULL);
    service_args_done(&args);
    assert_non_null(b->service);
}

static void wait_end(struct bench *b, enum service_end_kind kind)
{
    while (!b->ended) {
        run(b);
    }
    assert_int_equal(b->kind, kind);
    assert_true(list_is_empty(&b->services.open));
}

/* ---- tests ---- */

static void test_done(void **state)
{
    struct bench *b = *state;

    open_service(b, "file-read", "/zeros/1000000", IDLE_MS * 100);
    wait_end(b, SERVICE_END_DONE);
    assert_int_equal(b->entries, 1);
    assert_int_equal(b->bytes, 1000000);
    assert_true(b->sandbox.touched > 0);
}

static void test_closed_from_inside(void **state)
{
    struct bench *b = *state;

    b->closes = true;
    open_service(b, "file-read", "/zeros/1000000", 0);
    run(b);
    assert_null(b->service);
    assert_true(list_is_empty(&b->services.open));
    assert_false(b->ended);
}

static void test_a_silent_guest_is_given_up(void **state)
{
    struct bench *b = *state;

    open_service(b, "file-stat", "/lie/silent", IDLE_MS);
    wait_end(b, SERVICE_END_TIMEOUT);
}

/* Input that the guest does not take is the guest's fault; input that does not come is not. */
static void test_whose_turn_it_is(void **state)
{
    static const uint8_t bytes[1000];
    struct bench *b = *state;
    struct loop_timer *timer = loop_timer_new(b->node.loop, stop, b);

    open_service(b, "file-write", "/lie/silent", IDLE_MS);
    loop_timer_start(timer, IDLE_MS * 6);
    run(b);
    assert_false(b->ended);
    assert_int_equal(service_room(b->service, sizeof(bytes)), sizeof(bytes));
    assert_true(service_send(b->service, span_make(bytes, sizeof(bytes)), false));
    wait_end(b, SERVICE_END_TIMEOUT);
    loop_timer_free(timer);
}

/* The owner holds bytes back: the window fills, and the guest waits as long as it takes. */
static void test_bytes_that_are_held(void **state)
{
    struct bench *b = *state;
    struct loop_timer *timer = loop_timer_new(b->node.loop, stop, b);

    b->holds = true;
    open_service(b, "file-read", "/zeros/1000000", IDLE_MS);
    run(b);
    loop_timer_start(timer, IDLE_MS * 6);
    run(b);
    assert_false(b->ended);
    assert_true(b->bytes <= AGENT_WINDOW);
    b->holds = false;
    service_take(b->service, b->bytes);
    wait_end(b, SERVICE_END_DONE);
    assert_int_equal(b->bytes, 1000000);
    loop_timer_free(timer);
}

static void test_a_new_conversation_cuts(void **state)
{
    struct bench *b = *state;

    open_service(b, "file-stat", "/lie/silent", 0);
    begin(b);
    wait_end(b, SERVICE_END_CUT);
    b->ended = false;
    open_service(b, "file-stat", "/a", 0); /* and another one works */
    wait_end(b, SERVICE_END_DONE);
}

static void test_lies(void **state)
{
    struct bench *b = *state;

    open_service(b, "metrics", "/lie/garbage", 0); /* tolerant */
    wait_end(b, SERVICE_END_CUT);
    b->ended = false;
    open_service(b, "file-stat", "/lie/behind-done", 0);
    wait_end(b, SERVICE_END_DONE);
    while (!b->failed) {
        run(b);
    }
}

static void test_the_agent_goes(void **state)
{
    struct bench *b = *state;

    open_service(b, "file-stat", "/lie/silent", 0);
    (void)kill(b->pid, SIGKILL);
    wait_end(b, SERVICE_END_CUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define SERVICE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        SERVICE_TEST(test_done),
        SERVICE_TEST(test_closed_from_inside),
        SERVICE_TEST(test_a_silent_guest_is_given_up),
        SERVICE_TEST(test_whose_turn_it_is),
        SERVICE_TEST(test_bytes_that_are_held),
        SERVICE_TEST(test_a_new_conversation_cuts),
        SERVICE_TEST(test_lies),
        SERVICE_TEST(test_the_agent_goes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
