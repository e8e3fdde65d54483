/* Every verb in every state: the table of docs/api.md, each cell of it, against a fake node that
 * holds a sandbox in the state that is asked for. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/test_rig.h"
#include "base/clock.h"
#include "base/fd.h"

#define HELD_MS "2500"

enum verb {
    PAUSE,
    SUSPEND,
    WAKE,
    FORK,
    CHECKPOINT,
    ROLLBACK,
    DELETE,
    RUN, /* a call that needs the guest */
    READ,
    VERBS
};

/* As in the path, where it has one. */
static const char *const verb_names[VERBS] = {"pause",    "suspend", "wake", "fork", "checkpoints",
                                              "rollback", "delete",  "run",  "read"};

/* What becomes of the verb's operation, or of the call. */
enum outcome {
    DONE,    /* it succeeds */
    REFUSED, /* failed_precondition at once */
    IN_VAIN, /* failed_precondition when its turn has come */
    NOT_FOUND,
};

struct cell {
    enum outcome outcome;
    const char *leaves; /* the state afterwards; NULL: as it was, or what it was on the way to */
};

struct row {
    const char *state;
    const char *first; /* done before */
    const char *held;  /* under way: a verb, "create", "delete", or NULL */
    const char *rests; /* the state that it comes to by itself */
    const char *named; /* in details.state of what is refused */
    struct cell cells[VERBS];
};

#define CHANGES                                                                                    \
    {DONE, "paused"}, {DONE, "suspended"},                                                         \
    {                                                                                              \
        DONE, "running"                                                                            \
    }
/* A fork and a checkpoint: it is what it was, or what it was on its way to. */
#define COPIES                                                                                     \
    {DONE, NULL},                                                                                  \
    {                                                                                              \
        DONE, NULL                                                                                 \
    }
/* Of a checkpoint of its own, as all of these are: it runs there. */
#define ROLLS                                                                                      \
    {                                                                                              \
        DONE, "running"                                                                            \
    }
#define GOES                                                                                       \
    {                                                                                              \
        DONE, "gone"                                                                               \
    }
#define WORKS                                                                                      \
    {                                                                                              \
        DONE, "running"                                                                            \
    }
#define READS                                                                                      \
    {                                                                                              \
        DONE, NULL                                                                                 \
    }
#define NO                                                                                         \
    {                                                                                              \
        REFUSED, NULL                                                                              \
    }
#define NOTHING                                                                                    \
    {                                                                                              \
        NOT_FOUND, NULL                                                                            \
    }

/* Those whose creates fail come first: nothing else is on its way to the fake node then. */
static const struct row rows[] = {
    {"error",
     "lose",
     NULL,
     "error",
     "error",
     {NO, NO, {DONE, "running"}, NO, NO, NO, GOES, NO, READS}},
    /* It has never run: there is no disk, and no checkpoint. */
    {"error", "fail", NULL, "error", "error", {NO, NO, NO, NO, NO, NOTHING, GOES, NO, READS}},
    /* Nor has this one a checkpoint yet. */
    {"creating",
     NULL,
     "create",
     "running",
     "creating",
     {CHANGES, COPIES, NOTHING, GOES, NO, READS}},
    {"running", NULL, NULL, "running", "", {CHANGES, COPIES, ROLLS, GOES, WORKS, READS}},
    {"pausing", NULL, "pause", "paused", "", {CHANGES, COPIES, ROLLS, GOES, WORKS, READS}},
    {"paused", "pause", NULL, "paused", "", {CHANGES, COPIES, ROLLS, GOES, WORKS, READS}},
    {"suspending",
     NULL,
     "suspend",
     "suspended",
     "suspended",
     {{IN_VAIN, NULL}, {DONE, "suspended"}, {DONE, "running"}, COPIES, ROLLS, GOES, WORKS, READS}},
    {"suspended",
     "suspend",
     NULL,
     "suspended",
     "suspended",
     {NO, {DONE, "suspended"}, {DONE, "running"}, COPIES, ROLLS, GOES, WORKS, READS}},
    {"waking", "pause", "wake", "running", "", {CHANGES, COPIES, ROLLS, GOES, WORKS, READS}},
    {"waking", "suspend", "wake", "running", "", {CHANGES, COPIES, ROLLS, GOES, WORKS, READS}},
    {"deleting", NULL, "delete", "gone", "deleting", {NO, NO, NO, NO, NO, NO, GOES, NO, READS}},
    {"gone",
     "delete",
     NULL,
     "gone",
     "",
     {NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING}},
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

/* One cell's sandbox. */
struct probe {
    const struct row *row;
    enum verb verb;
    char id[21];
    char held[21];       /* the operation that is under way */
    char made[21];       /* that of the verb */
    char checkpoint[21]; /* what a rollback goes back to */
};

static int set_up(void **state)
{
    *state = rig_new("");
    return 0;
}

static int tear_down(void **state)
{
    rig_free(*state);
    return 0;
}

static void keep_id(char id[21], const struct answer *a, const char *where)
{
    (void)snprintf(id, 21, "%s", answer_text(a, where));
    assert_int_equal(strlen(id), 20);
}

/* Asks for a change or a deletion. */
static void ask_change(
    struct rig *rig, const struct probe *p, const char *verb, const char *query, struct answer *ret)
{
    bool deletes = strcmp(verb, "delete") == 0;
    bool rolls = strcmp(verb, "rollback") == 0;
    char path[160];
    char body[64];

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s%s%s%s", p->id, deletes ? "" : "/",
                   deletes ? "" : verb, query);
    (void)snprintf(body, sizeof(body), "{\"checkpoint_id\": \"%s\"}", p->checkpoint);
    rig_ask(rig, deletes ? "DELETE" : "POST", path, rolls ? body : NULL, ret);
}

static void take_checkpoint(struct rig *rig, struct probe *p)
{
    _cleanup_answer_ struct answer a = {0};

    ask_change(rig, p, "checkpoints", "", &a);
    assert_int_equal(a.status, 201);
    keep_id(p->checkpoint, &a, "operation.result.id");
}

static void create(struct rig *rig, struct probe *p)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    const char *first = p->row->first;
    bool fails = first != NULL && strcmp(first, "fail") == 0;
    bool is_lost = first != NULL && strcmp(first, "lose") == 0;

    rig_control(rig, fails ? "fail internal\n" : "");
    rig_ask(rig, "POST", "/v1/sandboxes", "{\"template\": \"base\"}", &a);
    rig_control(rig, "");
    assert_int_equal(a.status, fails ? 500 : 201);
    keep_id(p->id, &a, fails ? "error.details.sandbox_id" : "sandbox.id");
    if (p->verb == ROLLBACK && !fails) {
        take_checkpoint(rig, p);
    }
    rig_control(rig, is_lost ? "lose 1\n" : "");
    if (first != NULL && !fails) {
        ask_change(rig, p, is_lost ? "pause" : first, "", &b);
        assert_int_equal(b.status, 200);
    }
    rig_control(rig, "");
}

/* Until the fake node has the call, and with it how long it takes. */
static void await_call(const struct rig *rig, const struct probe *p)
{
    const char *held = p->row->held;
    bool creates = strcmp(held, "create") == 0;
    bool deletes = strcmp(held, "delete") == 0;
    int64_t until = clock_monotonic_ms() + 10000;
    bool is_there = false;
    char line[80];
    char path[96];

    (void)snprintf(line, sizeof(line), "%s /n1/sandboxes/%s%s%s?",
                   creates   ? "PUT"
                   : deletes ? "DELETE"
                             : "POST",
                   p->id, creates || deletes ? "" : "/", creates || deletes ? "" : held);
    (void)snprintf(path, sizeof(path), "%s/node.log", rig->dir);
    while (!is_there && clock_monotonic_ms() < until) {
        _cleanup_buf_ struct buf log = buf_make(0);

        is_there =
            file_read(AT_FDCWD, path, 1U << 24, &log) == 0 && strstr(buf_str(&log), line) != NULL;
        rig_sleep_ms(is_there ? 0 : 2);
    }
    assert_true(is_there);
}

/* What is under way stays so for HELD_MS. */
static void hold(struct rig *rig, struct probe *p)
{
    _cleanup_answer_ struct answer a = {0};

    if (p->row->held == NULL) {
        return;
    }
    if (strcmp(p->row->held, "create") == 0) {
        rig_ask(rig, "POST", "/v1/sandboxes?wait=0", "{\"template\": \"base\"}", &a);
        keep_id(p->id, &a, "sandbox.id");
    } else {
        ask_change(rig, p, p->row->held, "?wait=0", &a);
    }
    assert_int_equal(a.status, 202);
    assert_string_equal(answer_text(&a, "sandbox.state"), p->row->state);
    keep_id(p->held, &a, "operation.id");
    await_call(rig, p);
}

static void check_refusal(const struct probe *p, const struct answer *a)
{
    if (p->row->cells[p->verb].outcome == NOT_FOUND) {
        assert_int_equal(a->status, 404);
        return;
    }
    assert_int_equal(a->status, 409);
    assert_string_equal(answer_text(a, "error.code"), "failed_precondition");
    assert_string_equal(answer_text(a, "error.details.state"), p->row->named);
}

static void call_guest(struct rig *rig, const struct probe *p, struct answer *ret)
{
    char path[80];

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/run", p->id);
    rig_ask(rig, "POST", path, "{\"argv\": [\"true\"]}", ret);
}

/* The record, and something that the node tells of it. */
static void read_it(struct rig *rig, const struct probe *p, struct answer *ret)
{
    char path[80];

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", p->id);
    rig_ask(rig, "GET", path, NULL, ret);
    if (ret->status == 200) {
        assert_string_equal(answer_text(ret, "state"), p->row->state);
    }
}

static void act(struct rig *rig, struct probe *p)
{
    const struct cell *cell = &p->row->cells[p->verb];
    _cleanup_answer_ struct answer a = {0};

    print_message("%s when %s\n", verb_names[p->verb], p->row->state);
    if (p->verb == RUN) {
        call_guest(rig, p, &a);
    } else if (p->verb == READ) {
        read_it(rig, p, &a);
    } else {
        ask_change(rig, p, verb_names[p->verb], "?wait=0", &a);
    }
    if (cell->outcome == REFUSED || cell->outcome == NOT_FOUND) {
        check_refusal(p, &a);
    } else if (p->verb >= RUN) {
        assert_int_equal(a.status, 200);
    } else {
        assert_in_range(a.status, 200, 202);
        keep_id(p->made, &a, "operation.id");
    }
}

/* Waits for its end. */
static void end_of(struct rig *rig, const char *operation, struct answer *ret)
{
    char path[80];

    (void)snprintf(path, sizeof(path), "/v1/operations/%s?wait=10", operation);
    rig_ask(rig, "GET", path, NULL, ret);
    assert_int_equal(ret->status, 200);
}

static void check_held(struct rig *rig, const struct probe *p)
{
    bool is_ended = p->verb == DELETE && strcmp(p->row->held, "delete") != 0;
    _cleanup_answer_ struct answer a = {0};

    end_of(rig, p->held, &a);
    assert_string_equal(answer_text(&a, "state"), is_ended ? "failed" : "succeeded");
    if (is_ended) {
        assert_string_equal(answer_text(&a, "error.code"), "conflict");
    } else if (p->verb == DELETE) {
        assert_string_equal(p->made, p->held); /* the same deletion */
    }
}

static void check_end(struct rig *rig, const struct probe *p)
{
    const struct cell *cell = &p->row->cells[p->verb];
    const char *leaves = cell->leaves != NULL ? cell->leaves : p->row->rests;
    _cleanup_answer_ struct answer a = {0};
    char path[80];

    print_message("%s when %s: its end\n", verb_names[p->verb], p->row->state);
    if (p->held[0] != '\0') {
        check_held(rig, p);
    }
    if (p->made[0] != '\0') {
        _cleanup_answer_ struct answer b = {0};

        end_of(rig, p->made, &b);
        assert_string_equal(answer_text(&b, "state"),
                            cell->outcome == DONE ? "succeeded" : "failed");
        if (cell->outcome == IN_VAIN) {
            assert_string_equal(answer_text(&b, "error.code"), "failed_precondition");
            assert_string_equal(answer_text(&b, "error.details.state"), p->row->named);
        }
    }
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", p->id);
    rig_ask(rig, "GET", path, NULL, &a);
    if (strcmp(leaves, "gone") == 0) {
        assert_int_equal(a.status, 404);
    } else {
        assert_string_equal(answer_text(&a, "state"), leaves);
    }
}

static bool is_made_late(const struct probe *p)
{
    return p->row->held != NULL && strcmp(p->row->held, "create") == 0;
}

/* A call that waits until the guest runs. */
static bool is_blocking(const struct probe *p)
{
    return p->verb == RUN && p->row->cells[RUN].outcome == DONE;
}

/* The verbs of one row, each on a sandbox of its own; those that block are left for later. */
static void act_row(struct rig *rig, const struct row *row, struct probe probes[VERBS])
{
    for (enum verb verb = PAUSE; verb < VERBS; verb++) {
        probes[verb] = (struct probe){
            .row = row, .verb = verb, .checkpoint = "ck000000000000000000" /* no such one */};
        if (!is_made_late(&probes[verb])) {
            create(rig, &probes[verb]);
        }
    }
    rig_control(rig,
                "delay_ms " HELD_MS "\nchange_delay_ms " HELD_MS "\ndelete_delay_ms " HELD_MS "\n");
    for (enum verb verb = PAUSE; verb < VERBS; verb++) {
        hold(rig, &probes[verb]);
    }
    rig_control(rig, "");
    for (enum verb verb = PAUSE; verb < VERBS; verb++) {
        if (!is_blocking(&probes[verb])) {
            act(rig, &probes[verb]);
        }
    }
}

/* The ends come last, so that the times in which they are held pass together. */
static void test_verbs(void **state)
{
    struct probe probes[ROWS][VERBS];
    struct rig *rig = *state;

    for (size_t i = 0; i < ROWS; i++) {
        act_row(rig, &rows[i], probes[i]);
    }
    for (size_t i = 0; i < ROWS; i++) {
        if (is_blocking(&probes[i][RUN])) {
            act(rig, &probes[i][RUN]);
        }
        for (enum verb verb = PAUSE; verb < VERBS; verb++) {
            check_end(rig, &probes[i][verb]);
        }
    }
}

/* A call that comes while it is on its way waits for that. */
static void test_calls_that_wait(void **state)
{
    struct rig *rig = *state;

    for (size_t i = 0; i < ROWS; i++) {
        struct probe p = {.row = &rows[i], .verb = RUN};

        if (p.row->held == NULL || p.row->cells[RUN].outcome != DONE) {
            continue;
        }
        create(rig, &p);
        rig_control(rig, "change_delay_ms 300\n");
        hold(rig, &p);
        rig_control(rig, "");
        act(rig, &p);
        check_end(rig, &p);
    }
}

static void check_failure(struct rig *rig, const char *id, const char *call, const char *code)
{
    _cleanup_answer_ struct answer a = {0};
    _cleanup_answer_ struct answer b = {0};
    char path[80];

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/%s", id, call);
    rig_ask(rig, "POST", path, strcmp(call, "run") == 0 ? "{\"argv\": [\"true\"]}" : NULL, &a);
    assert_int_equal(a.status, strcmp(code, "storage_full") == 0 ? 507 : 503);
    assert_string_equal(answer_text(&a, "error.code"), code);
    end_of(rig, answer_text(&a, "error.details.operation_id"), &b);
    assert_string_equal(answer_text(&b, "state"), "failed");
    assert_string_equal(answer_text(&b, "error.code"), code);
}

static void check_state(struct rig *rig, const char *id, const char *state, const char *durability)
{
    _cleanup_answer_ struct answer a = {0};
    char path[80];

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", id);
    rig_ask(rig, "GET", path, NULL, &a);
    assert_string_equal(answer_text(&a, "state"), state);
    assert_string_equal(answer_text(&a, "durability"), durability);
}

static const struct row *find_row(const char *state)
{
    size_t i = 0;

    while (i < ROWS - 1 && strcmp(rows[i].state, state) != 0) {
        i++;
    }
    return &rows[i];
}

/* No room for the snapshot: it runs on. No memory to wake: it stays, and the next call tries again.
 */
static void test_failures_leave_it_as_it_was(void **state)
{
    struct rig *rig = *state;
    _cleanup_answer_ struct answer a = {0};
    struct probe p = {.row = find_row("running")};

    create(rig, &p);
    rig_control(rig, "change_fail storage_full\n");
    check_failure(rig, p.id, "suspend", "storage_full");
    check_state(rig, p.id, "running", "");
    rig_control(rig, "");
    ask_change(rig, &p, "suspend", "", &a);
    check_state(rig, p.id, "suspended", "local");
    rig_control(rig, "change_fail capacity_unavailable\n");
    check_failure(rig, p.id, "wake", "capacity_unavailable");
    check_failure(rig, p.id, "run", "capacity_unavailable");
    check_state(rig, p.id, "suspended", "local");
    rig_control(rig, "");
    p.verb = RUN;
    act(rig, &p);
    check_state(rig, p.id, "running", "");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verbs),
        cmocka_unit_test(test_calls_that_wait),
        cmocka_unit_test(test_failures_leave_it_as_it_was),
    };
    int r = rig_main(argc, argv);

    return r >= 0 ? r : cmocka_run_group_tests(tests, set_up, tear_down);
}
