/* Limits, many clients at once, start and stop of space-api. Each test has an installation of its
 * own. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "api/test_rig.h"
#include "base/clock.h"
#include "base/fd.h"

#if defined(__SANITIZE_ADDRESS__)
#define UNDER_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ADDRESS_SANITIZER
#endif
#endif
#ifdef UNDER_ADDRESS_SANITIZER
#define KEPT_KIB 600000 /* it keeps what was freed */
#else
#define KEPT_KIB 60000
#endif

static void test_concurrency(void **state)
{
    struct rig *rig = rig_new("api.key_concurrency = 3\n");
    struct call call = {"POST", "/v1/sandboxes", "{\"template\": \"base\"}", rig->key, NULL};
    _cleanup_answer_ struct answer over = {0};
    char value[256];
    int fds[3];

    (void)state;
    rig_control(rig, "delay_ms 500\n");
    for (int i = 0; i < 3; i++) {
        fds[i] = client_connect(rig->port);
        client_send(fds[i], &call);
    }
    rig_sleep_ms(150);
    client_ask(rig->port, &call, &over);
    assert_int_equal(over.status, 429);
    assert_string_equal(answer_text(&over, "error.code"), "rate_limited");
    assert_string_equal(answer_text(&over, "error.details.limit"), "concurrency");
    answer_header(&over, "Retry-After", value);
    assert_string_equal(value, "1");
    for (int i = 0; i < 3; i++) {
        _cleanup_answer_ struct answer a = {0};

        client_read(fds[i], &a);
        assert_int_equal(a.status, 201);
        (void)close(fds[i]);
    }
    rig_expect(rig, 200, "GET", "/v1/sandboxes", NULL);
    rig_free(rig);
}

static void test_rate(void **state)
{
    struct rig *rig = rig_new("api.key_rate = 2\napi.key_burst = 5\n");
    char value[256];
    int good = 0;

    (void)state;
    for (int i = 0; i < 8; i++) {
        _cleanup_answer_ struct answer a = {0};

        rig_ask(rig, "GET", "/v1/operations", NULL, &a);
        answer_header(&a, "RateLimit-Limit", value);
        assert_string_equal(value, "5");
        if (a.status == 200) {
            good++;
        } else {
            assert_int_equal(a.status, 429);
            answer_header(&a, "RateLimit-Remaining", value);
            assert_string_equal(value, "0");
        }
    }
    assert_in_range(good, 5, 6);
    rig_sleep_ms(600);
    rig_expect(rig, 200, "GET", "/v1/operations", NULL);
    rig_free(rig);
}

static void test_streams(void **state)
{
    struct rig *rig = rig_new("api.key_streams = 2\napi.key_concurrency = 1\n");
    _cleanup_answer_ struct answer over = {0};
    char id[21];
    char path[160];
    int fds[2];

    (void)state;
    rig_create(rig, "{\"template\": \"base\"}", id);
    (void)snprintf(path, sizeof(path), "/v1/sessions/se%.8s0000000000/events", &id[2]);
    for (int i = 0; i < 2; i++) {
        fds[i] = client_connect(rig->port);
        client_send(fds[i], &(struct call){"GET", path, NULL, rig->key, NULL});
    }
    rig_sleep_ms(150);
    rig_ask(rig, "GET", path, NULL, &over);
    assert_int_equal(over.status, 429);
    assert_string_equal(answer_text(&over, "error.details.limit"), "streams");
    rig_expect(rig, 200, "GET", "/v1/operations", NULL);
    (void)close(fds[0]);
    (void)close(fds[1]);
    rig_free(rig);
}

static void test_quotas(void **state)
{
    struct rig *rig = rig_new("quota.sandboxes = 2\nquota.vcpus = 3\nquota.memory_mib = 1024\n");
    static const struct {
        const char *body;
        const char *limit;
    } cases[] = {
        {"{\"template\": \"base\", \"vcpus\": 3}", "vcpus"},
        {"{\"template\": \"base\", \"memory_mib\": 640}", "memory_mib"},
    };
    _cleanup_answer_ struct answer over = {0};
    char id[21];
    char path[160];

    (void)state;
    rig_create(rig, "{\"template\": \"base\"}", id);
    for (int i = 0; i < 2; i++) {
        _cleanup_answer_ struct answer a = {0};

        rig_ask(rig, "POST", "/v1/sandboxes", cases[i].body, &a);
        assert_int_equal(a.status, 409);
        assert_string_equal(answer_text(&a, "error.code"), "limit_exceeded");
        assert_string_equal(answer_text(&a, "error.details.limit"), cases[i].limit);
    }
    rig_create(rig, "{\"template\": \"base\"}", id);
    rig_ask(rig, "POST", "/v1/run", "{\"template\": \"base\", \"argv\": [\"true\"]}", &over);
    assert_int_equal(over.status, 409);
    assert_string_equal(answer_text(&over, "error.details.limit"), "sandboxes");
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", id);
    rig_expect(rig, 200, "DELETE", path, NULL);
    rig_create(rig, "{\"template\": \"base\"}", id);
    rig_free(rig);
}

/* A client that goes away frees its place at once, whatever the node still does. */
static void test_a_client_that_goes(void **state)
{
    struct rig *rig = rig_new("api.key_concurrency = 1\n");
    _cleanup_answer_ struct answer busy = {0};
    char id[21];
    char path[160];
    int fd;

    (void)state;
    rig_create(rig, "{\"template\": \"base\"}", id);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/run", id);
    fd = client_connect(rig->port);
    client_send(fd, &(struct call){"POST", path, "{\"argv\": [\"sleep\"], \"timeout_seconds\": 30}",
                                   rig->key, NULL});
    rig_sleep_ms(150);
    rig_ask(rig, "GET", "/v1/operations", NULL, &busy);
    assert_int_equal(busy.status, 429);
    (void)close(fd);
    rig_sleep_ms(150);
    rig_expect(rig, 200, "GET", "/v1/operations", NULL);
    rig_free(rig);
}

static void test_revoking_ends_requests(void **state)
{
    struct rig *rig = rig_new("");
    _cleanup_answer_ struct answer key = {0};
    _cleanup_answer_ struct answer cut = {0};
    char path[160];
    int fd = client_connect(rig->port);

    (void)state;
    rig_ask(rig, "POST", "/v1/keys", "{\"name\": \"k\", \"role\": \"member\"}", &key);
    rig_control(rig, "delay_ms 5000\n");
    client_send(fd, &(struct call){"POST", "/v1/sandboxes", "{\"template\": \"base\"}",
                                   answer_text(&key, "key"), NULL});
    rig_sleep_ms(150);
    (void)snprintf(path, sizeof(path), "/v1/keys/%s", answer_text(&key, "id"));
    rig_expect(rig, 200, "DELETE", path, NULL);
    client_read(fd, &cut);
    assert_int_equal(cut.status, 401);
    (void)close(fd);
    rig_free(rig);
}

#define HUGE_RUNS 12
#define HUGE_BODY "{\"template\": \"base\", \"argv\": [\"huge\"], \"max_output_bytes\": 16777216}"

static uint64_t anonymous_kib(pid_t pid)
{
    _cleanup_buf_ struct buf status = buf_make(0);
    const char *found;
    char path[64];
    uint64_t kib = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
    assert_int_equal(file_read(AT_FDCWD, path, 65536, &status), 0);
    found = strstr(buf_str(&status), "Pss_Anon:");
    assert_non_null(found);
    found = &found[strlen("Pss_Anon:")];
    found += strspn(found, " ");
    assert_int_equal(span_parse_u64(span_make(found, strspn(found, "0123456789")), 1U << 30U, &kib),
                     0);
    return kib;
}

/* Clients that do not read: the answers of all have begun when this returns. */
static void start_unread(const struct rig *rig, const struct call *call, int fds[HUGE_RUNS])
{
    char first;

    for (int i = 0; i < HUGE_RUNS; i++) {
        fds[i] = client_connect(rig->port);
        client_send(fds[i], call);
    }
    for (int i = 0; i < HUGE_RUNS; i++) {
        assert_int_equal(recv(fds[i], &first, 1, MSG_PEEK), 1);
    }
}

static void expect_huge(const struct answer *answer)
{
    assert_int_equal(answer->status, 200);
    assert_false(answer->cut);
    assert_true(json_string_length(answer_find(answer, "stdout")) > 10000000);
    assert_null(strstr(answer_text(answer, "stdout"), "with less output"));
    assert_int_equal(strncmp(answer_text(answer, "sandbox_id"), "sb", 2), 0);
}

/* Results that nobody reads are not kept in memory, and cost nobody else any output. */
static void test_unread_runs(void **state)
{
    struct rig *rig = rig_new("");
    struct call call = {"POST", "/v1/run", HUGE_BODY, rig->key, NULL};
    _cleanup_answer_ struct answer other = {0};
    _cleanup_answer_ struct answer late = {0};
    _cleanup_answer_ struct answer list = {0};
    uint64_t before = anonymous_kib(rig->api);
    int fds[HUGE_RUNS];

    (void)state;
    start_unread(rig, &call, fds);
    client_ask(rig->port, &call, &other);
    expect_huge(&other);
    assert_true(anonymous_kib(rig->api) < before + KEPT_KIB);
    /* Their sandboxes are gone by the records: nobody holds one by not reading. */
    rig_ask(rig, "GET", "/v1/sandboxes", NULL, &list);
    assert_int_equal(json_array_size(answer_find(&list, "items")), 0);
    client_read(fds[0], &late);
    expect_huge(&late);
    for (int i = 0; i < HUGE_RUNS; i++) {
        (void)close(fds[i]);
    }
    rig_free(rig);
}

/* Repetitions that nobody reads, of an answer that was kept. */
static void test_unread_repetitions(void **state)
{
    struct rig *rig = rig_new("");
    struct call call = {"POST", "/v1/run", HUGE_BODY, rig->key, "Idempotency-Key: unread\r\n"};
    _cleanup_answer_ struct answer first = {0};
    _cleanup_answer_ struct answer late = {0};
    char value[256];
    uint64_t before;
    int fds[HUGE_RUNS];

    (void)state;
    client_ask(rig->port, &call, &first);
    expect_huge(&first);
    before = anonymous_kib(rig->api);
    start_unread(rig, &call, fds);
    assert_true(anonymous_kib(rig->api) < before + KEPT_KIB); /* of one, and SQLite's */
    client_read(fds[HUGE_RUNS - 1], &late);
    expect_huge(&late);
    answer_header(&late, "Idempotency-Replayed", value);
    assert_string_equal(value, "true");
    assert_string_equal(answer_text(&late, "process_id"), answer_text(&first, "process_id"));
    for (int i = 0; i < HUGE_RUNS; i++) {
        (void)close(fds[i]);
    }
    rig_free(rig);
}

/* The first client reads nothing and goes: its run goes on, and who repeats it gets the answer. */
static void test_an_unread_run_is_repeated(void **state)
{
    struct rig *rig = rig_new("");
    struct call call = {"POST", "/v1/run", HUGE_BODY, rig->key, "Idempotency-Key: goes\r\n"};
    _cleanup_answer_ struct answer again = {0};
    char value[256];
    char first;
    int fd = client_connect(rig->port);

    (void)state;
    client_send(fd, &call);
    assert_int_equal(recv(fd, &first, 1, MSG_PEEK), 1);
    (void)close(fd);
    client_ask(rig->port, &call, &again);
    expect_huge(&again);
    answer_header(&again, "Idempotency-Replayed", value);
    assert_string_equal(value, "true");
    rig_free(rig);
}

static void test_many_clients(void **state)
{
    struct rig *rig = rig_new("");
    struct call call = {"POST", "/v1/run", "{\"template\": \"base\", \"argv\": [\"true\"]}",
                        rig->key, NULL};
    _cleanup_answer_ struct answer list = {0};
    int fds[200];
    int slow[20];
    int64_t began;

    (void)state;
    /* Twenty who never end their head do not disturb the two hundred. */
    for (int i = 0; i < 20; i++) {
        slow[i] = client_connect(rig->port);
        client_send_text(slow[i], "GET /healthz HT");
    }
    began = clock_monotonic_ms();
    for (int i = 0; i < 200; i++) {
        fds[i] = client_connect(rig->port);
        client_send(fds[i], &call);
        if (i % 20 == 0) {
            client_send_text(slow[i / 20], "T");
        }
    }
    for (int i = 0; i < 200; i++) {
        _cleanup_answer_ struct answer a = {0};

        client_read(fds[i], &a);
        assert_int_equal(a.status, 200);
        (void)close(fds[i]);
    }
    print_message("200 runs at once: %d ms\n", (int)(clock_monotonic_ms() - began));
    for (int i = 0; i < 20; i++) {
        (void)close(slow[i]);
    }
    rig_ask(rig, "GET", "/v1/sandboxes", NULL, &list);
    assert_int_equal(json_array_size(answer_find(&list, "items")), 0);
    rig_free(rig);
}

static void test_slow_head_is_closed(void **state)
{
    struct rig *rig = rig_new("api.header_timeout_ms = 300\napi.idle_timeout_ms = 500\n");
    _cleanup_answer_ struct answer a = {0};
    int64_t began = clock_monotonic_ms();
    int fd = client_connect(rig->port);

    (void)state;
    client_send_text(fd, "GET /healthz HTTP/1.1\r\nHo");
    client_read(fd, &a);
    assert_in_range(clock_monotonic_ms() - began, 200, 3000);
    assert_true(a.status == 0 || (a.status >= 400 && a.json != NULL));
    (void)close(fd);
    rig_free(rig);
}

static void test_terminate(void **state)
{
    struct rig *rig = rig_new("");
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer cut = {0};
    int64_t began;
    int status;
    char id[21];
    char path[160];
    int fd;
    int stream;

    (void)state;
    rig_create(rig, "{\"template\": \"base\"}", id);
    (void)snprintf(path, sizeof(path), "/v1/sessions/se%.8s0000000000/events", &id[2]);
    stream = client_connect(rig->port);
    client_send(stream, &(struct call){"GET", path, NULL, rig->key, NULL});
    rig_control(rig, "delay_ms 700\n");
    fd = client_connect(rig->port);
    client_send(
        fd, &(struct call){"POST", "/v1/sandboxes", "{\"template\": \"base\"}", rig->key, NULL});
    rig_sleep_ms(150);
    began = clock_monotonic_ms();
    status = rig_stop_api(rig, SIGTERM);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_in_range(clock_monotonic_ms() - began, 300, 5000);
    client_read(fd, &a);
    assert_int_equal(a.status, 201); /* what was begun is finished */
    client_read(stream, &cut);
    assert_true(cut.cut);
    (void)close(fd);
    (void)close(stream);
    assert_int_equal(client_connect(rig->port), -1);
    rig_start_api(rig);
    rig_wait_ready(rig);
    rig_free(rig);
}

/* Starts a second space-api with this configuration and returns its exit status and its words. */
static int start_again(struct rig *rig, char ret_log[4096])
{
    _cleanup_buf_ struct buf log = buf_make(1U << 20);
    char path[128];
    pid_t first = rig->api;
    int status;

    (void)snprintf(path, sizeof(path), "%s/api.log", rig->dir);
    (void)unlink(path);
    rig_start_api(rig);
    assert_int_equal(waitpid(rig->api, &status, 0), rig->api);
    rig->api = first;
    assert_int_equal(file_read(AT_FDCWD, path, 1U << 20, &log), 0);
    (void)snprintf(ret_log, 4096, "%s", buf_str(&log));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_a_taken_port(void **state)
{
    struct rig *rig = rig_new("");
    char log[4096];
    char port[16];

    (void)state;
    assert_int_equal(start_again(rig, log), 1);
    (void)snprintf(port, sizeof(port), "%d", rig->port);
    assert_non_null(strstr(log, port));
    assert_non_null(strstr(log, "api.listen"));
    rig_free(rig);
}

static void test_a_bad_store(void **state)
{
    struct rig *rig = rig_new("");
    char path[128];
    char log[4096];
    int fd;

    (void)state;
    (void)rig_stop_api(rig, SIGTERM);
    (void)snprintf(path, sizeof(path), "%s/store/space.db", rig->dir);
    fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_int_equal(
        fd_write_all(fd, span_of_str("not a database, but long enough to be looked at, "
                                     "which takes a hundred bytes or some more.")),
        0);
    (void)close(fd);
    assert_int_equal(start_again(rig, log), 1);
    assert_non_null(strstr(log, "space.db"));
    (void)unlink(path);
    assert_int_equal(start_again(rig, log), 1); /* what the node has would be unknown, and go */
    assert_non_null(strstr(log, "space.db is lost or empty"));
    (void)snprintf(path, sizeof(path), "%s/store/space.db-reserve", rig->dir);
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof(path), "%s/admin.key", rig->dir);
    (void)unlink(path);
    rig_start_api(rig);
    rig_wait_ready(rig);
    rig_free(rig);
}

static void test_key_files(void **state)
{
    struct rig *rig = rig_new("");
    _cleanup_buf_ struct buf text = buf_make(256);
    struct stat st;
    char path[128];
    char key[64];

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/second.key", rig->dir);
    assert_int_equal(rig_make_key(rig, "second", "read", "second.key"), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(st.st_uid, getuid());
    assert_int_equal(rig_make_key(rig, "second", "read", "second.key"), 1);
    assert_int_equal(rig_make_key(rig, "third", "god", "third.key"), 1);
    assert_int_equal(file_read(AT_FDCWD, path, 256, &text), 0);
    assert_int_equal(span_copy_str(span_head(buf_span(&text), 38), key, sizeof(key)), 0);
    {
        _cleanup_answer_ struct answer a = {0};

        /* The daemon that runs knows it at once. */
        client_ask(rig->port, &(struct call){"GET", "/v1/sandboxes", NULL, key, NULL}, &a);
        assert_int_equal(a.status, 200);
    }
    rig_free(rig);
}

static void test_the_log_has_no_secrets(void **state)
{
    struct rig *rig = rig_new("log_level = debug\n");
    _cleanup_buf_ struct buf log = buf_make(1U << 20);
    char path[128];
    char id[21];

    (void)state;
    rig_create(rig, "{\"template\": \"base\", \"env\": {\"TOKEN\": \"hush-4711\"}}", id);
    rig_expect(rig, 400, "POST", "/v1/sandboxes", "{\"env\": {\"TOKEN\": \"hush-4711\"}}");
    (void)snprintf(path, sizeof(path), "%s/api.log", rig->dir);
    assert_int_equal(file_read(AT_FDCWD, path, 1U << 20, &log), 0);
    assert_non_null(strstr(buf_str(&log), "route=/v1/sandboxes"));
    assert_null(strstr(buf_str(&log), "hush-4711"));
    assert_null(strstr(buf_str(&log), rig->key));
    rig_free(rig);
}

/* ---- operations of one sandbox that wait for each other ---- */

/* Asks for a verb and does not wait. `ret_operation` may be NULL. */
static void ask_verb(
    struct rig *rig, const char *id, const char *verb, char ret_operation[21], struct answer *ret)
{
    char path[96];

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/%s?wait=0", id, verb);
    rig_ask(rig, "POST", path, NULL, ret);
    if (ret_operation != NULL) {
        assert_int_equal(ret->status, 202);
        (void)snprintf(ret_operation, 21, "%s", answer_text(ret, "operation.id"));
    }
}

/* Waits for its end. */
static void end_of(struct rig *rig, const char *operation, struct answer *ret)
{
    char path[96];

    (void)snprintf(path, sizeof(path), "/v1/operations/%s?wait=20", operation);
    rig_ask(rig, "GET", path, NULL, ret);
    assert_int_equal(ret->status, 200);
}

static int64_t time_of(const struct answer *a, const char *where)
{
    int64_t ms = 0;

    assert_int_equal(clock_parse(answer_text(a, where), &ms), 0);
    return ms;
}

static void assert_late(const struct answer *a)
{
    assert_string_equal(answer_text(a, "state"), "failed");
    assert_string_equal(answer_text(a, "error.code"), "deadline_exceeded");
}

/* What waits fails when its time is over; what the node is at work on goes on. */
static void test_a_turn_that_does_not_come(void **state)
{
    struct rig *rig = rig_new("api.operation_timeout_seconds = 1\n");
    _cleanup_answer_ struct answer held = {0};
    _cleanup_answer_ struct answer waits = {0};
    _cleanup_answer_ struct answer late = {0};
    _cleanup_answer_ struct answer still = {0};
    _cleanup_answer_ struct answer done = {0};
    _cleanup_answer_ struct answer record = {0};
    char first[21];
    char second[21];
    char path[96];
    char id[21];

    (void)state;
    rig_create(rig, "{\"template\": \"base\"}", id);
    rig_control(rig, "change_delay_ms 4000\n");
    ask_verb(rig, id, "pause", first, &held);
    ask_verb(rig, id, "wake", second, &waits);
    assert_string_equal(answer_text(&waits, "operation.state"), "pending");
    end_of(rig, second, &late);
    assert_late(&late);
    assert_in_range(time_of(&late, "finished_at") - time_of(&late, "created_at"), 1000, 2500);
    (void)snprintf(path, sizeof(path), "/v1/operations/%s", first);
    rig_ask(rig, "GET", path, NULL, &still);
    assert_string_equal(answer_text(&still, "state"), "running");
    end_of(rig, first, &done);
    assert_string_equal(answer_text(&done, "state"), "succeeded");
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", id);
    rig_ask(rig, "GET", path, NULL, &record);
    assert_string_equal(answer_text(&record, "state"), "paused");
    rig_free(rig);
}

/* Its time is that of the call, whatever becomes of space-api meanwhile. */
static void test_a_turn_that_does_not_come_over_a_restart(void **state)
{
    struct rig *rig = rig_new("api.operation_timeout_seconds = 5\n");
    _cleanup_answer_ struct answer held = {0};
    _cleanup_answer_ struct answer waits = {0};
    _cleanup_answer_ struct answer late = {0};
    char second[21];
    char id[21];
    int64_t created;
    int64_t killed;

    (void)state;
    rig_create(rig, "{\"template\": \"base\"}", id);
    rig_control(rig, "change_delay_ms 30000\n");
    ask_verb(rig, id, "pause", NULL, &held);
    ask_verb(rig, id, "wake", second, &waits);
    created = time_of(&waits, "operation.created_at");
    while (clock_real_ms() < created + 4000) {
        rig_sleep_ms(20);
    }
    killed = clock_real_ms();
    (void)rig_stop_api(rig, SIGKILL);
    rig_start_api(rig);
    rig_wait_ready(rig);
    end_of(rig, second, &late);
    assert_late(&late);
    assert_in_range(time_of(&late, "finished_at"), created + 5000, killed + 4999);
    rig_free(rig);
}

/* The one at work and 63 that wait; a delete is always taken, and ends them. */
static void test_many_that_wait(void **state)
{
    struct rig *rig = rig_new("");
    _cleanup_answer_ struct answer over = {0};
    _cleanup_answer_ struct answer capture = {0};
    _cleanup_answer_ struct answer last = {0};
    char operation[21];
    char path[96];
    char id[21];

    (void)state;
    rig_create(rig, "{\"template\": \"base\"}", id);
    rig_control(rig, "change_delay_ms 60000\n");
    for (int i = 0; i < 64; i++) {
        _cleanup_answer_ struct answer a = {0};

        ask_verb(rig, id, i % 2 == 0 ? "pause" : "wake", operation, &a);
        assert_string_equal(answer_text(&a, "operation.state"), i == 0 ? "running" : "pending");
    }
    ask_verb(rig, id, "pause", NULL, &over);
    assert_int_equal(over.status, 409);
    assert_string_equal(answer_text(&over, "error.code"), "limit_exceeded");
    assert_string_equal(answer_text(&over, "error.details.limit"), "operations");
    ask_verb(rig, id, "checkpoints", NULL, &capture);
    assert_int_equal(capture.status, 409);
    assert_string_equal(answer_text(&capture, "error.code"), "limit_exceeded");
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", id);
    rig_expect(rig, 200, "DELETE", path, NULL);
    end_of(rig, operation, &last);
    assert_string_equal(answer_text(&last, "error.code"), "conflict");
    rig_free(rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_concurrency),
        cmocka_unit_test(test_rate),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_quotas),
        cmocka_unit_test(test_a_client_that_goes),
        cmocka_unit_test(test_revoking_ends_requests),
        cmocka_unit_test(test_unread_runs),
        cmocka_unit_test(test_unread_repetitions),
        cmocka_unit_test(test_an_unread_run_is_repeated),
        cmocka_unit_test(test_many_clients),
        cmocka_unit_test(test_slow_head_is_closed),
        cmocka_unit_test(test_terminate),
        cmocka_unit_test(test_a_taken_port),
        cmocka_unit_test(test_a_bad_store),
        cmocka_unit_test(test_key_files),
        cmocka_unit_test(test_the_log_has_no_secrets),
        cmocka_unit_test(test_a_turn_that_does_not_come),
        cmocka_unit_test(test_a_turn_that_does_not_come_over_a_restart),
        cmocka_unit_test(test_many_that_wait),
    };
    int status = rig_main(argc, argv);

    if (status >= 0) {
        return status;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
