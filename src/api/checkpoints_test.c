/* Checkpoints and rollbacks: records, operations, their order, deaths of space-api, against a fake
 * node. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/store_operation.h"
#include "api/test_rig.h"
#include "base/clock.h"
#include "base/fd.h"

#define PATH_SIZE 200

static int set_up(void **state)
{
    *state = rig_new("");
    return 0;
}

static int set_up_eager(void **state)
{
    *state = rig_new("api.unknown_checkpoint_seconds = 0\n");
    return 0;
}

static int set_up_patient(void **state)
{
    *state = rig_new("api.unknown_checkpoint_seconds = 4\n");
    return 0;
}

static int tear_down(void **state)
{
    rig_free(*state);
    return 0;
}

static void keep(char id[21], const struct answer *a, const char *where)
{
    (void)snprintf(id, 21, "%s", answer_text(a, where));
    assert_int_equal(strlen(id), 20);
}

static void ask(struct rig *rig,
                const char *method,
                const char *start,
                const char *id,
                const char *end,
                const char *body,
                struct answer *ret)
{
    char path[PATH_SIZE];

    (void)snprintf(path, sizeof(path), "%s%s%s", start, id, end);
    rig_ask(rig, method, path, body, ret);
}

static void take(struct rig *rig, const char *sandbox, const char *body, char ret_id[21])
{
    _cleanup_answer_ struct answer a = {0};

    ask(rig, "POST", "/v1/sandboxes/", sandbox, "/checkpoints", body, &a);
    assert_int_equal(a.status, 201);
    assert_string_equal(answer_text(&a, "operation.kind"), "checkpoint");
    assert_string_equal(answer_text(&a, "operation.state"), "succeeded");
    assert_string_equal(answer_text(&a, "operation.result.sandbox_id"), sandbox);
    assert_string_equal(answer_text(&a, "sandbox.state"), "running");
    keep(ret_id, &a, "operation.result.id");
}

/* Until the fake node has heard a call that begins so. */
static void await_node(const struct rig *rig, const char *call, const char *id)
{
    int64_t until = clock_monotonic_ms() + 10000;
    bool heard = false;
    char file[96];
    char line[80];

    (void)snprintf(file, sizeof(file), "%s/node.log", rig->dir);
    (void)snprintf(line, sizeof(line), "%.40s%.20s", call, id);
    while (!heard) {
        _cleanup_buf_ struct buf log = buf_make(0);

        assert_true(clock_monotonic_ms() < until);
        heard =
            file_read(AT_FDCWD, file, 1U << 24, &log) == 0 && strstr(buf_str(&log), line) != NULL;
        rig_sleep_ms(heard ? 0 : 2);
    }
}

/* `path` of the list of all gives these two, "" for none. */
static void assert_listed(struct rig *rig, const char *path, const char *first, const char *second)
{
    _cleanup_answer_ struct answer list = {0};

    rig_ask(rig, "GET", path, NULL, &list);
    assert_int_equal(list.status, 200);
    assert_int_equal(json_array_size(answer_find(&list, "items")),
                     (first[0] != '\0') + (second[0] != '\0'));
    assert_string_equal(answer_text(&list, "items.0.id"), first);
    assert_string_equal(answer_text(&list, "items.1.id"), second);
}

static void
check_filters(struct rig *rig, const char *sandbox, const char *first, const char *second)
{
    char path[PATH_SIZE];

    assert_listed(rig, "/v1/checkpoints", second, first);
    assert_listed(rig, "/v1/checkpoints?name=one", first, "");
    assert_listed(rig, "/v1/checkpoints?name=two", "", "");
    (void)snprintf(path, sizeof(path), "/v1/checkpoints?sandbox_id=%s", sandbox);
    assert_listed(rig, path, second, first);
    assert_listed(rig, "/v1/checkpoints?sandbox_id=sb000000000000000000", "", "");
    rig_expect(rig, 400, "GET", "/v1/checkpoints?nosuch=1", NULL);
}

static void test_made_listed_read_and_removed(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer list = {0};
    _cleanup_answer_ struct answer one = {0};
    _cleanup_answer_ struct answer removed = {0};
    _cleanup_answer_ struct answer gone = {0};
    char sandbox[21];
    char first[21];
    char second[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    take(rig, sandbox, "{\"name\": \"one\"}", first);
    take(rig, sandbox, "{\"memory\": false}", second);
    ask(rig, "GET", "/v1/sandboxes/", sandbox, "/checkpoints", NULL, &list);
    assert_int_equal(list.status, 200);
    assert_string_equal(answer_text(&list, "items.0.id"), second);
    assert_string_equal(answer_text(&list, "items.1.id"), first);
    assert_string_equal(answer_text(&list, "items.1.name"), "one");
    check_filters(rig, sandbox, first, second);
    ask(rig, "GET", "/v1/checkpoints/", second, "", NULL, &one);
    assert_int_equal(one.status, 200);
    assert_non_null(strstr(buf_str(&one.body), "\"memory\":false"));
    assert_non_null(strstr(buf_str(&one.body), "\"size_bytes\":4711"));
    ask(rig, "DELETE", "/v1/checkpoints/", second, "", NULL, &removed);
    assert_int_equal(removed.status, 200);
    await_node(rig, "DELETE /n1/checkpoints/", second);
    ask(rig, "GET", "/v1/checkpoints/", second, "", NULL, &gone);
    assert_int_equal(gone.status, 404);
    assert_string_equal(answer_text(&gone, "error.details.resource"), "checkpoint");
}

static void test_outlives_its_sandbox_and_makes_others(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer list = {0};
    _cleanup_answer_ struct answer made = {0};
    char body[PATH_SIZE];
    char sandbox[21];
    char id[21];
    char path[PATH_SIZE];

    rig_create(rig, "{\"template\": \"base\", \"memory_mib\": 1024, \"env\": {\"A\": \"1\"}}",
               sandbox);
    take(rig, sandbox, NULL, id);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", sandbox);
    rig_expect(rig, 200, "DELETE", path, NULL);
    ask(rig, "GET", "/v1/sandboxes/", sandbox, "/checkpoints", NULL, &list);
    assert_string_equal(answer_text(&list, "items.0.id"), id);
    (void)snprintf(body, sizeof(body), "{\"checkpoint_id\": \"%s\", \"env\": {\"B\": \"2\"}}", id);
    rig_ask(rig, "POST", "/v1/sandboxes", body, &made);
    assert_int_equal(made.status, 201);
    assert_string_equal(answer_text(&made, "sandbox.parent_id"), sandbox);
    assert_string_equal(answer_text(&made, "sandbox.template"), "base");
    assert_non_null(strstr(buf_str(&made.body), "\"env_names\":[\"B\",\"A\"]"));
    (void)snprintf(body, sizeof(body), "{\"checkpoint_id\": \"%s\", \"template\": \"base\"}", id);
    rig_expect(rig, 400, "POST", "/v1/sandboxes", body);
    (void)snprintf(body, sizeof(body), "{\"checkpoint_id\": \"%s\", \"vcpus\": 1}", id);
    rig_expect(rig, 400, "POST", "/v1/sandboxes", body);
    rig_expect(rig, 404, "POST", "/v1/sandboxes", "{\"checkpoint_id\": \"ck000000000000000000\"}");
    rig_expect(rig, 400, "POST", "/v1/sandboxes", "{\"checkpoint_id\": \"nothing\"}");
    rig_expect(rig, 400, "POST", "/v1/run",
               "{\"checkpoint_id\": \"ck000000000000000000\", \"argv\": [\"true\"]}");
}

static void test_rolls_back_to_its_own_only(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    _cleanup_answer_ struct answer c = {0};
    char body[PATH_SIZE];
    char sandbox[21];
    char other[21];
    char id[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    rig_create(rig, "{\"template\": \"base\"}", other);
    take(rig, sandbox, NULL, id);
    (void)snprintf(body, sizeof(body), "{\"checkpoint_id\": \"%s\"}", id);
    ask(rig, "POST", "/v1/sandboxes/", sandbox, "/rollback", body, &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_text(&a, "sandbox.state"), "running");
    assert_string_equal(answer_text(&a, "operation.kind"), "rollback");
    ask(rig, "POST", "/v1/sandboxes/", other, "/rollback", body, &b);
    assert_int_equal(b.status, 409);
    assert_string_equal(answer_text(&b, "error.code"), "failed_precondition");
    rig_control(rig, "change_fail internal\n");
    ask(rig, "POST", "/v1/sandboxes/", sandbox, "/rollback", body, &c);
    assert_int_equal(c.status, 500);
    rig_control(rig, "");
    rig_expect(rig, 404, "POST", "/v1/sandboxes/sb000000000000000000/rollback", body);
}

/* A failure leaves nothing, and the node is told so too. */
static void test_one_that_fails_is_no_checkpoint(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer list = {0};
    char sandbox[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    rig_control(rig, "change_fail storage_full\n");
    ask(rig, "POST", "/v1/sandboxes/", sandbox, "/checkpoints", NULL, &a);
    assert_int_equal(a.status, 507);
    rig_control(rig, "");
    ask(rig, "GET", "/v1/sandboxes/", sandbox, "/checkpoints", NULL, &list);
    assert_non_null(strstr(buf_str(&list.body), "\"items\":[]"));
    await_node(rig, "DELETE /n1/checkpoints/", "ck");
}

/* The feed tells of it before the answer comes: that of a checkpoint, made or not, has no word
 * about its sandbox. */
static void test_a_sandbox_that_fails_meanwhile(void **state)
{
    static const char *const controls[] = {"lose 1\n", "lose 1\nchange_fail conflict\n"};
    static const char *const verbs[] = {"/checkpoints", "/fork"};
    struct rig *rig = *state;

    for (size_t i = 0; i < 4; i++) {
        _cleanup_answer_ struct answer a = {0};
        _cleanup_answer_ struct answer s = {0};
        char sandbox[21];

        rig_create(rig, "{\"template\": \"base\"}", sandbox);
        rig_control(rig, controls[i % 2]);
        ask(rig, "POST", "/v1/sandboxes/", sandbox, verbs[i / 2], "{}", &a);
        rig_control(rig, "");
        assert_int_equal(a.status, i % 2 == 0 ? 201 : 409);
        ask(rig, "GET", "/v1/sandboxes/", sandbox, "", NULL, &s);
        assert_string_equal(answer_text(&s, "state"), "error");
        assert_string_equal(answer_text(&s, "state_reason.code"), "vmm_crashed");
    }
}

/* Whatever was acknowledged comes to its end; what waits for it goes on after it. */
static void test_survives_the_death_of_the_api(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer made = {0};
    _cleanup_answer_ struct answer paused = {0};
    _cleanup_answer_ struct answer end = {0};
    _cleanup_answer_ struct answer list = {0};
    _cleanup_answer_ struct answer s = {0};
    char sandbox[21];
    char operation[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    rig_control(rig, "change_delay_ms 2000\n");
    ask(rig, "POST", "/v1/sandboxes/", sandbox, "/checkpoints?wait=0", NULL, &made);
    assert_int_equal(made.status, 202);
    ask(rig, "POST", "/v1/sandboxes/", sandbox, "/pause?wait=0", NULL, &paused);
    assert_string_equal(answer_text(&paused, "operation.state"), "pending");
    (void)rig_stop_api(rig, SIGKILL);
    rig_control(rig, "");
    rig_start_api(rig);
    rig_wait_ready(rig);
    keep(operation, &paused, "operation.id");
    ask(rig, "GET", "/v1/operations/", operation, "?wait=10", NULL, &end);
    assert_string_equal(answer_text(&end, "state"), "succeeded");
    ask(rig, "GET", "/v1/sandboxes/", sandbox, "/checkpoints", NULL, &list);
    assert_int_equal(strlen(answer_text(&list, "items.0.id")), 20);
    ask(rig, "GET", "/v1/sandboxes/", sandbox, "", NULL, &s);
    assert_string_equal(answer_text(&s, "state"), "paused");
}

static void test_a_delete_ends_it(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer made = {0};
    _cleanup_answer_ struct answer end = {0};
    char sandbox[21];
    char operation[21];
    char path[PATH_SIZE];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    rig_control(rig, "change_delay_ms 2000\n");
    ask(rig, "POST", "/v1/sandboxes/", sandbox, "/checkpoints?wait=0", NULL, &made);
    keep(operation, &made, "operation.id");
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", sandbox);
    await_node(rig, "PUT /n1/checkpoints/", "ck");
    rig_expect(rig, 200, "DELETE", path, NULL);
    ask(rig, "GET", "/v1/operations/", operation, "", NULL, &end);
    assert_string_equal(answer_text(&end, "state"), "failed");
    assert_string_equal(answer_text(&end, "error.code"), "conflict");
    await_node(rig, "DELETE /n1/checkpoints/", "ck");
}

static void test_one_in_use_is_kept(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer made = {0};
    _cleanup_answer_ struct answer end = {0};
    char body[PATH_SIZE];
    char path[PATH_SIZE];
    char sandbox[21];
    char operation[21];
    char id[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    take(rig, sandbox, NULL, id);
    rig_control(rig, "delay_ms 1500\n");
    (void)snprintf(body, sizeof(body), "{\"checkpoint_id\": \"%s\"}", id);
    rig_ask(rig, "POST", "/v1/sandboxes?wait=0", body, &made);
    assert_int_equal(made.status, 202);
    (void)snprintf(path, sizeof(path), "/v1/checkpoints/%s", id);
    rig_expect(rig, 409, "DELETE", path, NULL);
    keep(operation, &made, "operation.id");
    ask(rig, "GET", "/v1/operations/", operation, "?wait=10", NULL, &end);
    assert_string_equal(answer_text(&end, "state"), "succeeded");
    rig_expect(rig, 200, "DELETE", path, NULL);
    rig_expect(rig, 404, "DELETE", path, NULL);
}

/* The fake node says that it has these, after a restart of space-api. */
static void restart_with(struct rig *rig, const char *list)
{
    char path[96];

    (void)snprintf(path, sizeof(path), "%s/control.checkpoints", rig->dir);
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_of_str(list), 0644, false), 0);
    (void)rig_stop_api(rig, SIGKILL);
    rig_start_api(rig);
    rig_wait_ready(rig);
}

static void await_status(struct rig *rig, const char *id, int status)
{
    int64_t until = clock_monotonic_ms() + 10000;
    int seen = 0;

    while (seen != status) {
        _cleanup_answer_ struct answer a = {0};

        assert_true(clock_monotonic_ms() < until);
        ask(rig, "GET", "/v1/checkpoints/", id, "", NULL, &a);
        seen = a.status;
        rig_sleep_ms(seen == status ? 0 : 2);
    }
}

/* After a restore of the store, or of the volume, one of them has what the other has not. */
static void test_store_and_node_are_compared(void **state)
{
    struct rig *rig = *state;
    _cleanup_buf_ struct buf log = buf_make(0);
    char sandbox[21];
    char here[21];
    char gone[21];
    char list[600];
    char path[96];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    take(rig, sandbox, NULL, here);
    take(rig, sandbox, NULL, gone);
    (void)snprintf(list, sizeof(list),
                   "{\"items\": [{\"id\": \"%s\", \"state\": \"ready\"},"
                   "{\"id\": \"ckmakingmakingmaking\", \"state\": \"making\"},"
                   "{\"id\": \"ckyoungyoungyoungyou\", \"state\": \"ready\","
                   " \"created_at\": \"2099-01-01T00:00:00.000Z\"},"
                   "{\"id\": \"ckstrangestrangestra\", \"state\": \"ready\","
                   " \"created_at\": \"2026-01-01T00:00:00.000Z\"}]}",
                   here);
    restart_with(rig, list);
    await_node(rig, "DELETE /n1/checkpoints/", "ckstrangestrangestra");
    await_status(rig, gone, 404);
    await_status(rig, here, 200);
    assert_listed(rig, "/v1/checkpoints", here, "");
    (void)snprintf(path, sizeof(path), "%s/node.log", rig->dir);
    assert_int_equal(file_read(AT_FDCWD, path, 1U << 24, &log), 0);
    assert_null(strstr(buf_str(&log), "DELETE /n1/checkpoints/ckm"));
    assert_null(strstr(buf_str(&log), "DELETE /n1/checkpoints/cky"));

    (void)snprintf(list, sizeof(list),
                   "{\"items\": [{\"id\": \"%s\", \"state\": \"ready\"},"
                   "{\"id\": \"%s\", \"state\": \"ready\"}]}",
                   here, gone);
    restart_with(rig, list);
    await_status(rig, gone, 200);
    restart_with(rig, "nonsense"); /* no answer of a list: nothing is lost by it */
    assert_listed(rig, "/v1/checkpoints", gone, here);

    (void)snprintf(list, sizeof(list), "{\"items\": [{\"id\": \"%s\", \"state\": \"ready\"}]}",
                   here);
    restart_with(rig, list);
    await_status(rig, gone, 404);
    (void)snprintf(path, sizeof(path), "/v1/checkpoints/%s", gone);
    rig_expect(rig, 200, "DELETE", path, NULL); /* lost as it is */
    rig_expect(rig, 404, "DELETE", path, NULL);
    restart_with(rig, "nonsense");
    await_status(rig, gone, 404);
}

static bool has_heard(const struct rig *rig, const char *file, const char *text)
{
    _cleanup_buf_ struct buf log = buf_make(0);
    char path[96];

    (void)snprintf(path, sizeof(path), "%s/%s", rig->dir, file);
    assert_int_equal(file_read(AT_FDCWD, path, 1U << 24, &log), 0);
    return strstr(buf_str(&log), text) != NULL;
}

/* The store may be an older one than that which knows it. */
static void find_unknown(struct rig *rig)
{
    char sandbox[21];
    char gone[21];

    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    take(rig, sandbox, NULL, gone);
    restart_with(rig, "{\"items\": [{\"id\": \"ckstrangestrangestra\", \"state\": \"ready\","
                      " \"created_at\": \"2026-01-01T00:00:00.000Z\"}]}");
    await_status(rig, gone, 404); /* the lists were compared */
    assert_true(has_heard(rig, "api.log", "checkpoint unknown"));
    rig_create(rig, "{\"template\": \"base\"}", sandbox);
    assert_false(has_heard(rig, "node.log", "DELETE /n1/checkpoints/"));
}

static void test_unknown_ones_stay_for_a_day(void **state)
{
    find_unknown(*state);
    find_unknown(*state);
}

static void test_unknown_ones_go_in_the_end(void **state)
{
    struct rig *rig = *state;
    int64_t since = clock_monotonic_ms();

    find_unknown(rig);
    await_node(rig, "DELETE /n1/checkpoints/", "ckstrangestrangestra");
    assert_true(clock_monotonic_ms() - since >= 4000);
}

/* space-api was killed before it told the node. */
static void test_templates_that_were_given_up_are_removed(void **state)
{
    static const char *const ends[][3] = {
        {"op00000000000000000a", "tm00000000000000000a", "{\"code\":\"deadline_exceeded\"}"},
        {"op00000000000000000b", "tm00000000000000000b", "{\"code\":\"internal\"}"},
        {"op00000000000000000c", "tm00000000000000000c", NULL},
    };
    struct rig *rig = *state;
    _cleanup_buf_ struct buf log = buf_make(0);
    struct store *store = NULL;
    struct error err = {0};
    char path[160];

    (void)rig_stop_api(rig, SIGKILL);
    (void)snprintf(path, sizeof(path), "%s/store/space.db", rig->dir);
    assert_int_equal(store_open(path, &store, &err), 0);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        struct operation o = {
            .kind = "template", .state = OPERATION_RUNNING, .created_at = clock_real_ms()};

        (void)snprintf(o.id, sizeof(o.id), "%.20s", ends[i][0]);
        (void)snprintf(o.template_made, sizeof(o.template_made), "tools@%s", ends[i][1]);
        assert_int_equal(store_operation_insert(store, &o, &err), 0);
        assert_int_equal(store_operation_finish(store, o.id, ends[i][2], clock_real_ms(), &err), 1);
    }
    store_close(store);
    rig_start_api(rig);
    await_node(rig, "POST /n1/templates/remove", "");
    rig_wait_ready(rig);
    rig_expect(rig, 200, "GET", "/v1/operations", NULL);
    (void)snprintf(path, sizeof(path), "%s/node.log", rig->dir);
    assert_int_equal(file_read(AT_FDCWD, path, 1U << 24, &log), 0);
    assert_null(strstr(strstr(buf_str(&log), "/n1/templates/remove") + 1, "/n1/templates/remove"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_made_listed_read_and_removed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_outlives_its_sandbox_and_makes_others, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rolls_back_to_its_own_only, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_one_that_fails_is_no_checkpoint, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_sandbox_that_fails_meanwhile, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_survives_the_death_of_the_api, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_delete_ends_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_one_in_use_is_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_store_and_node_are_compared, set_up_eager, tear_down),
        cmocka_unit_test_setup_teardown(test_unknown_ones_stay_for_a_day, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_unknown_ones_go_in_the_end, set_up_patient, tear_down),
        cmocka_unit_test_setup_teardown(test_templates_that_were_given_up_are_removed, set_up,
                                        tear_down),
    };
    int r = rig_main(argc, argv);

    return r >= 0 ? r : cmocka_run_group_tests(tests, NULL, NULL);
}
