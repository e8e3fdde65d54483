/* space-api against a fake node, over real HTTP: the calls and their answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/test_rig.h"
#include "base/clock.h"

#define SB "/v1/sandboxes/%s"

static int setup(void **state)
{
    *state = rig_new("");
    return 0;
}

static int teardown(void **state)
{
    rig_free(*state);
    return 0;
}

static void sandbox_path(char out[160], const char *id, const char *rest)
{
    (void)snprintf(out, 160, "/v1/sandboxes/%s%s", id, rest);
}

static void expect_error(struct rig *rig, const struct call *call, int status, const char *code)
{
    _cleanup_answer_ struct answer a = {0};

    client_ask(rig->port, call, &a);
    if (a.status != status || strcmp(answer_text(&a, "error.code"), code) != 0 ||
        answer_text(&a, "error.request_id")[0] == '\0' ||
        answer_find(&a, "error.details") == NULL) {
        fail_msg("%s %s %s: %d %s", call->method, call->path, call->body == NULL ? "" : call->body,
                 a.status, buf_str(&a.body));
    }
}

/* ---- service, routing, authentication ---- */

static void test_service(void **state)
{
    static const char *const paths[] = {"/healthz", "/readyz", "/version", "/openapi.json"};
    struct rig *rig = *state;
    char value[256];

    for (int i = 0; i < 4; i++) {
        _cleanup_answer_ struct answer a = {0};

        client_ask(rig->port, &(struct call){.method = "GET", .path = paths[i]}, &a);
        assert_int_equal(a.status, 200);
        assert_non_null(a.json);
        answer_header(&a, "X-Request-Id", value);
        assert_int_equal(strlen(value), 20);
    }
}

static void test_routing(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    char value[256];

    expect_error(rig, &(struct call){"GET", "/nosuch", NULL, NULL, NULL}, 404, "not_found");
    expect_error(rig, &(struct call){"GET", "/v1/sandboxes/", NULL, rig->key, NULL}, 404,
                 "not_found");
    expect_error(rig, &(struct call){"GET", "/v1/sandboxes/%zz", NULL, rig->key, NULL}, 404,
                 "not_found");
    client_ask(rig->port, &(struct call){"PUT", "/v1/sandboxes", NULL, rig->key, NULL}, &a);
    assert_int_equal(a.status, 405);
    answer_header(&a, "Allow", value);
    assert_string_equal(value, "POST, GET");
}

static void test_request_id(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    char value[256];

    client_ask(rig->port,
               &(struct call){"GET", "/healthz", NULL, NULL, "X-Request-Id: my.id_1-2\r\n"}, &a);
    answer_header(&a, "X-Request-Id", value);
    assert_string_equal(value, "my.id_1-2");
    client_ask(rig->port, &(struct call){"GET", "/healthz", NULL, NULL, "X-Request-Id: a/b\r\n"},
               &b);
    answer_header(&b, "X-Request-Id", value);
    assert_string_not_equal(value, "a/b");
}

static void test_authentication(void **state)
{
    static const char *const bad[] = {"", "x", "space_", "space_00000000000000000000000000000000",
                                      "space_0000000000000000000000000000000L"};
    struct rig *rig = *state;

    expect_error(rig, &(struct call){"GET", "/v1/sandboxes", NULL, NULL, NULL}, 401,
                 "unauthorized");
    expect_error(
        rig, &(struct call){"GET", "/v1/sandboxes", NULL, NULL, "Authorization: Basic dTpw\r\n"},
        401, "unauthorized");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        expect_error(rig, &(struct call){"GET", "/v1/sandboxes", NULL, bad[i], NULL}, 401,
                     "unauthorized");
    }
}

static void make_key(struct rig *rig, const char *body, char ret_key[64], char ret_id[21])
{
    _cleanup_answer_ struct answer a = {0};

    rig_ask(rig, "POST", "/v1/keys", body, &a);
    assert_int_equal(a.status, 201);
    (void)snprintf(ret_key, 64, "%s", answer_text(&a, "key"));
    (void)snprintf(ret_id, 21, "%s", answer_text(&a, "id"));
    assert_int_equal(strlen(ret_key), 38);
}

static void test_roles(void **state)
{
    struct rig *rig = *state;
    char key[64];
    char id[21];
    char path[160];
    char expires[CLOCK_TEXT_SIZE];
    char body[160];

    make_key(rig, "{\"name\": \"r\", \"role\": \"read\"}", key, id);
    expect_error(rig, &(struct call){"POST", "/v1/sandboxes", "{}", key, NULL}, 403, "forbidden");
    expect_error(rig, &(struct call){"GET", "/v1/keys", NULL, key, NULL}, 403, "forbidden");
    {
        _cleanup_answer_ struct answer a = {0};

        client_ask(rig->port, &(struct call){"GET", "/v1/templates", NULL, key, NULL}, &a);
        assert_int_equal(a.status, 200);
    }
    make_key(rig, "{\"name\": \"m\", \"role\": \"member\"}", key, id);
    expect_error(rig, &(struct call){"POST", "/v1/keys", "{}", key, NULL}, 403, "forbidden");
    (void)snprintf(path, sizeof(path), "/v1/keys/%s", id);
    rig_expect(rig, 200, "DELETE", path, NULL);
    rig_expect(rig, 404, "DELETE", path, NULL);
    expect_error(rig, &(struct call){"GET", "/v1/templates", NULL, key, NULL}, 401, "unauthorized");
    clock_format(clock_real_ms() + 300, expires);
    (void)snprintf(body, sizeof(body),
                   "{\"name\": \"e\", \"role\": \"read\", \"expires_at\": \"%s\"}", expires);
    make_key(rig, body, key, id);
    rig_sleep_ms(350);
    expect_error(rig, &(struct call){"GET", "/v1/templates", NULL, key, NULL}, 401, "unauthorized");
}

/* ---- sandboxes ---- */

static void test_lifecycle(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    char id[21];
    char path[160];

    rig_create(rig, "{\"template\": \"base\", \"name\": \"one\", \"env\": {\"A\": \"secret\"}}",
               id);
    sandbox_path(path, id, "");
    rig_ask(rig, "GET", path, NULL, &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_text(&a, "env_names.0"), "A");
    assert_string_equal(answer_text(&a, "template_version"), "tm00000000000000000a");
    assert_null(strstr(buf_str(&a.body), "secret"));
    rig_ask(rig, "POST", "/v1/sandboxes", "{\"template\": \"base\", \"name\": \"one\"}", &b);
    assert_int_equal(b.status, 409);
    assert_string_equal(answer_text(&b, "error.details.sandbox_id"), id);
    rig_expect(rig, 200, "DELETE", path, NULL);
    rig_expect(rig, 404, "GET", path, NULL);
    rig_expect(rig, 404, "DELETE", path, NULL);
}

static void test_create_without_wait(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_answer_ struct answer c = {0};
    char path[160];

    rig_control(rig, "delay_ms 300\n");
    rig_ask(rig, "POST", "/v1/sandboxes?wait=0", "{\"template\": \"base\"}", &a);
    assert_int_equal(a.status, 202);
    assert_string_equal(answer_text(&a, "operation.state"), "running");
    (void)snprintf(path, sizeof(path), "/v1/operations/%s", answer_text(&a, "operation.id"));
    rig_ask(rig, "GET", path, NULL, &b);
    assert_int_equal(b.status, 202);
    (void)snprintf(path, sizeof(path), "/v1/operations/%s?wait=10",
                   answer_text(&a, "operation.id"));
    rig_ask(rig, "GET", path, NULL, &c);
    assert_int_equal(c.status, 200);
    assert_string_equal(answer_text(&c, "state"), "succeeded");
    rig_control(rig, "");
}

static void test_refused_create(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer list = {0};
    char value[256];
    char path[160];

    rig_control(rig, "fail capacity_unavailable\n");
    rig_ask(rig, "POST", "/v1/sandboxes", "{\"template\": \"base\", \"name\": \"full\"}", &a);
    assert_int_equal(a.status, 503);
    assert_string_equal(answer_text(&a, "error.code"), "capacity_unavailable");
    assert_int_equal(strlen(answer_text(&a, "error.details.operation_id")), 20);
    answer_header(&a, "Retry-After", value);
    assert_true(value[0] >= '1');
    (void)snprintf(path, sizeof(path), "/v1/operations/%s",
                   answer_text(&a, "error.details.operation_id"));
    rig_control(rig, "");
    rig_expect(rig, 200, "GET", path, NULL);
    rig_ask(rig, "GET", "/v1/sandboxes?name=full", NULL, &list);
    assert_null(answer_find(&list, "items.0"));
}

static void test_failed_create(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    char path[160];

    rig_control(rig, "fail deadline_exceeded\n");
    rig_ask(rig, "POST", "/v1/sandboxes", "{\"template\": \"base\"}", &a);
    assert_int_equal(a.status, 504);
    rig_control(rig, "");
    sandbox_path(path, answer_text(&a, "error.details.sandbox_id"), "");
    rig_ask(rig, "GET", path, NULL, &b);
    assert_string_equal(answer_text(&b, "state"), "error");
    assert_string_equal(answer_text(&b, "state_reason.code"), "deadline_exceeded");
    sandbox_path(path, answer_text(&a, "error.details.sandbox_id"), "/run");
    expect_error(rig, &(struct call){"POST", path, "{\"argv\": [\"true\"]}", rig->key, NULL}, 409,
                 "failed_precondition");
    sandbox_path(path, answer_text(&a, "error.details.sandbox_id"), "");
    rig_expect(rig, 200, "DELETE", path, NULL);
}

static void test_delete_wins(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    char path[160];

    rig_control(rig, "delay_ms 3000\n");
    rig_ask(rig, "POST", "/v1/sandboxes?wait=0", "{\"template\": \"base\"}", &a);
    sandbox_path(path, answer_text(&a, "sandbox.id"), "");
    rig_expect(rig, 200, "DELETE", path, NULL);
    rig_control(rig, "");
    (void)snprintf(path, sizeof(path), "/v1/operations/%s?wait=10",
                   answer_text(&a, "operation.id"));
    rig_ask(rig, "GET", path, NULL, &b);
    assert_int_equal(b.status, 200);
    assert_string_equal(answer_text(&b, "state"), "failed");
    assert_string_equal(answer_text(&b, "error.code"), "conflict");
}

static void test_delete_is_repeated(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    char id[21];
    char path[160];

    rig_create(rig, "{\"template\": \"base\"}", id);
    rig_control(rig, "delete_fail 1\n");
    sandbox_path(path, id, "?wait=0.2");
    rig_ask(rig, "DELETE", path, NULL, &a);
    assert_int_equal(a.status, 202);
    assert_string_equal(answer_text(&a, "sandbox.state"), "deleting");
    rig_control(rig, "");
    (void)snprintf(path, sizeof(path), "/v1/operations/%s?wait=10",
                   answer_text(&a, "operation.id"));
    rig_ask(rig, "GET", path, NULL, &b);
    assert_int_equal(b.status, 200);
    assert_string_equal(answer_text(&b, "state"), "succeeded");
}

static void test_patch(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    char id[21];
    char path[160];

    rig_create(rig,
               "{\"template\": \"base\", \"metadata\": {\"a\": \"1\", \"b\": \"2\"},"
               " \"env\": {\"A\": \"1\", \"B\": \"2\"}}",
               id);
    sandbox_path(path, id, "");
    rig_ask(rig, "PATCH", path,
            "{\"name\": \"patched\", \"metadata\": {\"b\": null, \"c\": \"3\"},"
            " \"env\": {\"A\": null, \"C\": \"3\"}, \"lifecycle\": {\"timeout_seconds\": 600}}",
            &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_text(&a, "name"), "patched");
    assert_null(answer_find(&a, "metadata.b"));
    assert_string_equal(answer_text(&a, "metadata.c"), "3");
    assert_string_equal(answer_text(&a, "env_names.0"), "B");
    assert_string_equal(answer_text(&a, "env_names.1"), "C");
    assert_int_equal(strlen(answer_text(&a, "expires_at")), 24);
    rig_expect(rig, 400, "PATCH", path, "{\"state\": \"running\"}");
    rig_expect(rig, 200, "DELETE", path, NULL);
}

static void test_list(void **state)
{
    struct rig *rig = *state;
    char ids[5][21];
    char path[256];
    _cleanup_answer_ struct answer one = {0};
    _cleanup_answer_ struct answer two = {0};
    _cleanup_answer_ struct answer three = {0};
    _cleanup_answer_ struct answer four = {0};

    for (int i = 0; i < 5; i++) {
        rig_create(rig, "{\"template\": \"base\", \"metadata\": {\"set\": \"five\"}}", ids[i]);
    }
    rig_ask(rig, "GET", "/v1/sandboxes?metadata.set=five&limit=2&fields=id,state", NULL, &one);
    assert_int_equal(one.status, 200);
    assert_string_equal(answer_text(&one, "items.0.id"), ids[4]);
    assert_string_equal(answer_text(&one, "items.1.id"), ids[3]);
    assert_int_equal(json_object_size(answer_find(&one, "items.0")), 2);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes?metadata.set=five&limit=3&cursor=%s",
                   answer_text(&one, "next_cursor"));
    rig_ask(rig, "GET", path, NULL, &two);
    assert_string_equal(answer_text(&two, "items.0.id"), ids[2]);
    assert_string_equal(answer_text(&two, "items.2.id"), ids[0]);
    assert_true(json_is_null(answer_find(&two, "next_cursor")));
    (void)snprintf(path, sizeof(path), "/v1/operations?cursor=%s",
                   answer_text(&one, "next_cursor"));
    rig_ask(rig, "GET", path, NULL, &three);
    assert_int_equal(three.status, 400);
    assert_string_equal(answer_text(&three, "error.details.field"), "cursor");
    rig_ask(rig, "GET", "/v1/sandboxes?metadata.set=five&state=error&state=creating", NULL, &four);
    assert_null(answer_find(&four, "items.0"));
    for (int i = 0; i < 5; i++) {
        sandbox_path(path, ids[i], "");
        rig_expect(rig, 200, "DELETE", path, NULL);
    }
}

static void test_expiry(void **state)
{
    struct rig *rig = *state;
    int64_t began = clock_monotonic_ms();
    int64_t now = began;
    int status = 200;
    char id[21];
    char path[160];

    rig_create(rig, "{\"template\": \"base\", \"lifecycle\": {\"timeout_seconds\": 1.5}}", id);
    sandbox_path(path, id, "");
    while (status == 200 && now < began + 8000) {
        _cleanup_answer_ struct answer a = {0};

        rig_ask(rig, "GET", path, NULL, &a);
        status = a.status;
        now = clock_monotonic_ms();
        rig_sleep_ms(10);
    }
    assert_int_equal(status, 404);
    assert_in_range(now - began, 1500, 2600);
}

/* ---- commands ---- */

static void test_commands(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer run = {0};
    _cleanup_answer_ struct answer big = {0};
    _cleanup_answer_ struct answer started = {0};
    _cleanup_answer_ struct answer list = {0};
    char id[21];
    char path[160];

    rig_create(rig, "{\"template\": \"base\"}", id);
    sandbox_path(path, id, "/run");
    rig_ask(rig, "POST", path, "{\"argv\": [\"true\"]}", &run);
    assert_int_equal(run.status, 200);
    assert_memory_equal(&answer_text(&run, "process_id")[2], &id[2], 8);
    rig_ask(rig, "POST", path, "{\"argv\": [\"big\"]}", &big);
    assert_int_equal(big.status, 200);
    assert_true(json_string_length(answer_find(&big, "stdout")) > 2000000);
    rig_expect(rig, 400, "POST", path, "{\"argv\": [\"true\"], \"process_id\": \"x\"}");
    rig_expect(rig, 400, "POST", path, "{}");
    sandbox_path(path, id, "/commands");
    rig_ask(rig, "POST", path, "{\"argv\": [\"cat\"]}", &started);
    assert_int_equal(started.status, 201);
    assert_memory_equal(&answer_text(&started, "session.id")[2], &id[2], 8);
    assert_memory_equal(answer_text(&started, "session.token"), "spt_", 4);
    assert_int_equal(strlen(answer_text(&started, "session.token_expires_at")), 24);
    sandbox_path(path, id, "/processes?limit=2&fields=id");
    rig_ask(rig, "GET", path, NULL, &list);
    assert_string_equal(answer_text(&list, "items.1.id"), "b");
    assert_int_equal(strlen(answer_text(&list, "next_cursor")), 40);
    sandbox_path(path, id, "/processes/prxxxxxxxxxxxxxxxxxx");
    expect_error(rig, &(struct call){"GET", path, NULL, rig->key, NULL}, 404, "not_found");
    sandbox_path(path, id, "/console");
    rig_expect(rig, 200, "GET", path, NULL);
    sandbox_path(path, id, "");
    rig_expect(rig, 200, "DELETE", path, NULL);
    (void)snprintf(path, sizeof(path), "/v1/sessions/%s/events",
                   answer_text(&started, "session.id"));
    expect_error(rig, &(struct call){"GET", path, NULL, rig->key, NULL}, 410, "gone");
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/processes/pr%.8s0000000000/result", id,
                   &id[2]);
    expect_error(rig, &(struct call){"GET", path, NULL, rig->key, NULL}, 410, "gone");
    path[strlen(path) - strlen("/result")] = '\0'; /* the record went with the sandbox */
    expect_error(rig, &(struct call){"GET", path, NULL, rig->key, NULL}, 404, "not_found");
}

static void test_upload(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    char id[21];
    char head[512];
    char piece[65536];
    int fd;

    rig_create(rig, "{\"template\": \"base\"}", id);
    fd = client_connect(rig->port);
    (void)snprintf(head, sizeof(head),
                   "POST /v1/sandboxes/%s/processes/pr%.8s0000000000/stdin?eof=true HTTP/1.1\r\n"
                   "Host: a\r\nConnection: close\r\nAuthorization: Bearer %s\r\n"
                   "Content-Length: %d\r\n\r\n",
                   id, &id[2], rig->key, 320 * 65536);
    client_send_text(fd, head);
    memset(piece, 'y', sizeof(piece));
    for (int i = 0; i < 320; i++) {
        assert_int_equal(write(fd, piece, sizeof(piece)), sizeof(piece));
    }
    client_read(fd, &a);
    assert_int_equal(a.status, 200);
    assert_int_equal(json_integer_value(answer_find(&a, "offset")), 320 * 65536);
    (void)close(fd);
}

static void test_output(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer slow = {0};
    char id[21];
    char path[160];
    char value[256];
    int fd;

    rig_create(rig, "{\"template\": \"base\"}", id);
    (void)snprintf(path, sizeof(path), "/v1/sessions/se%.8s0000000000/output", &id[2]);
    fd = client_connect(rig->port);
    client_send(fd, &(struct call){"GET", path, NULL, rig->key, NULL});
    /* One reader that stops for a while holds up no other, and loses nothing. */
    rig_ask(rig, "GET", path, NULL, &a);
    assert_int_equal(a.body.n, 33554432);
    answer_header(&a, "X-Space-End", value);
    assert_string_equal(value, "true");
    client_read(fd, &slow);
    assert_int_equal(slow.body.n, 33554432);
    (void)close(fd);
    (void)snprintf(path, sizeof(path), "/v1/sessions/se%.8s0000000000/output?nosuch=1", &id[2]);
    rig_expect(rig, 400, "GET", path, NULL);
}

static void test_revoking_cuts_streams(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    char key[64];
    char key_id[21];
    char id[21];
    char path[160];
    int64_t began;
    int fd;

    make_key(rig, "{\"name\": \"s\", \"role\": \"member\"}", key, key_id);
    rig_create(rig, "{\"template\": \"base\"}", id);
    (void)snprintf(path, sizeof(path), "/v1/sessions/se%.8s0000000000/events", &id[2]);
    fd = client_connect(rig->port);
    client_send(fd, &(struct call){"GET", path, NULL, key, NULL});
    rig_sleep_ms(200);
    (void)snprintf(path, sizeof(path), "/v1/keys/%s", key_id);
    began = clock_monotonic_ms();
    rig_expect(rig, 200, "DELETE", path, NULL);
    client_read(fd, &a);
    assert_in_range(clock_monotonic_ms() - began, 0, 1000);
    assert_int_equal(a.status, 200);
    assert_true(a.cut);
    assert_non_null(strstr(buf_str(&a.body), "event: output"));
    (void)close(fd);
}

static void test_run_once(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer kept = {0};
    _cleanup_answer_ struct answer refused = {0};
    char path[160];

    rig_ask(rig, "POST", "/v1/run", "{\"template\": \"base\", \"argv\": [\"true\"]}", &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_text(&a, "stdout"), "true 0\n");
    sandbox_path(path, answer_text(&a, "sandbox_id"), "");
    rig_expect(rig, 404, "GET", path, NULL);
    rig_ask(rig, "POST", "/v1/run",
            "{\"template\": \"base\", \"argv\": [\"true\"], \"keep\": true,"
            " \"files\": [{\"path\": \"a\", \"text\": \"x\"}]}",
            &kept);
    assert_int_equal(kept.status, 200);
    sandbox_path(path, answer_text(&kept, "sandbox_id"), "");
    rig_expect(rig, 200, "GET", path, NULL);
    rig_expect(rig, 200, "DELETE", path, NULL);
    rig_control(rig, "fail invalid_request\n");
    rig_ask(rig, "POST", "/v1/run", "{\"template\": \"base\", \"argv\": []}", &refused);
    rig_control(rig, "");
    assert_int_equal(refused.status, 400);
    assert_string_equal(answer_text(&refused, "error.details.field"), "argv");
}

/* ---- bad input ---- */

static void test_bad_input(void **state)
{
    static const struct {
        const char *method;
        const char *path;
        const char *body;
        const char *field;
    } cases[] = {
        {"POST", "/v1/sandboxes", "", "body"},
        {"POST", "/v1/sandboxes", "{", "body"},
        {"POST", "/v1/sandboxes", "[]", "body"},
        {"POST", "/v1/sandboxes", "{\"template\": \"base\"} x", "body"},
        {"POST", "/v1/sandboxes", "{}", "template"},
        {"POST", "/v1/sandboxes", "{\"template\": \"../x\"}", "template"},
        {"POST", "/v1/sandboxes", "{\"template\": \"base@x\"}", "template"},
        {"POST", "/v1/sandboxes", "{\"template\": \"base\", \"vcpus\": 9}", "vcpus"},
        {"POST", "/v1/sandboxes", "{\"template\": \"base\", \"memory_mib\": 200}", "memory_mib"},
        {"POST", "/v1/sandboxes", "{\"template\": \"base\", \"disk_mib\": 10}", "disk_mib"},
        {"POST", "/v1/sandboxes", "{\"template\": \"base\", \"name\": \"A\"}", "name"},
        {"POST", "/v1/sandboxes", "{\"template\": \"base\", \"env\": {\"1\": \"\"}}", "env"},
        {"POST", "/v1/sandboxes", "{\"template\": \"base\", \"metadata\": {\"a\": 1}}", "metadata"},
        {"POST", "/v1/sandboxes",
         "{\"template\": \"base\", \"lifecycle\": {\"idle_action\": \"hibernate\"}}",
         "lifecycle.idle_action"},
        {"POST", "/v1/sandboxes",
         "{\"template\": \"base\", \"lifecycle\": {\"timeout_seconds\": 0}}",
         "lifecycle.timeout_seconds"},
        {"POST", "/v1/sandboxes", "{\"template\": \"base\", \"nosuch\": 1}", "nosuch"},
        {"POST", "/v1/sandboxes?wait=301", "{\"template\": \"base\"}", "wait"},
        {"POST", "/v1/sandboxes?wait=1e9", "{\"template\": \"base\"}", "wait"},
        {"POST", "/v1/sandboxes?nosuch=1", "{\"template\": \"base\"}", "nosuch"},
        {"GET", "/v1/sandboxes", "{}", "body"},
        {"GET", "/v1/sandboxes?limit=0", NULL, "limit"},
        {"GET", "/v1/sandboxes?limit=1&limit=2", NULL, "limit"},
        {"GET", "/v1/sandboxes?limit=%zz", NULL, "limit"},
        {"GET", "/v1/sandboxes?cursor=x", NULL, "cursor"},
        {"GET", "/v1/sandboxes?fields=id,x", NULL, "fields"},
        {"GET", "/v1/sandboxes?state=x", NULL, "state"},
        {"GET", "/v1/sandboxes?created_after=x", NULL, "created_after"},
        {"GET", "/v1/operations?kind=x", NULL, "kind"},
        {"GET", "/v1/operations?=x", NULL, "query"},
        {"POST", "/v1/keys", "{\"name\": \"a\"}", "role"},
        {"POST", "/v1/keys", "{\"name\": \"a\", \"role\": \"god\"}", "role"},
        {"POST", "/v1/run", "{\"argv\": [\"true\"]}", "template"},
        {"POST", "/v1/run", "{\"template\": \"base\", \"keep\": 1}", "keep"},
        {"POST", "/v1/run", "{\"template\": \"base\", \"tty\": {}}", "tty"},
    };
    struct rig *rig = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_answer_ struct answer a = {0};

        rig_ask(rig, cases[i].method, cases[i].path, cases[i].body, &a);
        if (a.status != 400 ||
            strcmp(answer_text(&a, "error.details.field"), cases[i].field) != 0) {
            fail_msg("%s %s %s: %d %s", cases[i].method, cases[i].path,
                     cases[i].body == NULL ? "" : cases[i].body, a.status, buf_str(&a.body));
        }
    }
    expect_error(rig,
                 &(struct call){"POST", "/v1/sandboxes", "{\"template\": \"x\"}", rig->key, NULL},
                 404, "not_found");
    expect_error(rig,
                 &(struct call){"POST", "/v1/sandboxes", "{\"template\": \"base\"}", rig->key,
                                "Idempotency-Key: \r\n"},
                 400, "invalid_request");
}

static void test_body_limit(void **state)
{
    struct rig *rig = *state;
    size_t n = 9U << 20;
    char *body = malloc(n + 1);

    assert_non_null(body);
    memset(body, ' ', n);
    body[n] = '\0';
    expect_error(rig, &(struct call){"POST", "/v1/sandboxes", body, rig->key, NULL}, 413,
                 "payload_too_large");
    free(body);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_service),
        cmocka_unit_test(test_routing),
        cmocka_unit_test(test_request_id),
        cmocka_unit_test(test_authentication),
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_lifecycle),
        cmocka_unit_test(test_create_without_wait),
        cmocka_unit_test(test_refused_create),
        cmocka_unit_test(test_failed_create),
        cmocka_unit_test(test_delete_wins),
        cmocka_unit_test(test_delete_is_repeated),
        cmocka_unit_test(test_patch),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_expiry),
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_upload),
        cmocka_unit_test(test_output),
        cmocka_unit_test(test_revoking_cuts_streams),
        cmocka_unit_test(test_run_once),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_body_limit),
    };
    int status = rig_main(argc, argv);

    if (status >= 0) {
        return status;
    }
    return cmocka_run_group_tests(tests, setup, teardown);
}
