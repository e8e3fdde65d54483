/* What a node keeps on disk, with each allocation and each system call failing once: every failure
 * is told, nothing is lost that was there before, and nothing is leaked. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fault_rig.h"
#include "base/fd.h"
#include "base/settings.h"
#include "io/loop.h"
#include "node/journal.h"
#include "node/spool.h"

#define SESSION "se0123456789abcdefgh"
#define PIECES  40U

struct place {
    char path[64];
    int fd;
    uint64_t epoch; /* that the journal in place has, as far as is known */
};

/* The journal needs only the names of the states; the rest of sandbox.c is not linked. */
const char *sandbox_state_name(enum sandbox_state state)
{
    static const char *const names[] = {"creating",   "running",   "pausing",  "paused", "waking",
                                        "suspending", "suspended", "deleting", "error",  "deleted"};

    return names[state];
}

static int set_up(void **state)
{
    struct place *p = calloc(1, sizeof(*p));

    assert_non_null(p);
    (void)snprintf(p->path, sizeof(p->path), "/tmp/faults-test-XXXXXX");
    assert_non_null(mkdtemp(p->path));
    p->fd = open(p->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct place *p = *state;

    (void)close(p->fd);
    assert_int_equal(dir_remove_tree(AT_FDCWD, p->path), 0);
    free(p);
    return 0;
}

/* ---- the journal ---- */

static struct journal make_journal(uint64_t epoch)
{
    struct journal j = {
        .info = {.state = SANDBOX_STATE_RUNNING, .vcpus = 1, .memory_mib = 512, .disk_mib = 4096},
        .vm = {.slot = 7, .netns = 9, .pid = 4242, .start_time = 123456789},
    };

    j.info.identity_epoch = epoch;
    (void)snprintf(j.info.id, sizeof(j.info.id), "sb0123456789abcdefgh");
    (void)snprintf(j.info.template_name, sizeof(j.info.template_name), "base");
    (void)snprintf(j.info.template_version, sizeof(j.info.template_version),
                   "tm0123456789abcdefgh");
    (void)snprintf(j.info.hostname, sizeof(j.info.hostname), "box");
    (void)snprintf(j.info.user, sizeof(j.info.user), "user");
    (void)snprintf(j.vm.boot_id, sizeof(j.vm.boot_id), "96409886-dc78-457e-87eb-3293eaeae76d");
    (void)snprintf(j.vm.binary, sizeof(j.vm.binary), "/usr/bin/a-vmm");
    return j;
}

/* Afterwards the old one is there, or, when the call said so, the new one. */
static void write_journal(void *arg)
{
    struct place *p = arg;
    struct journal out = {.vm = {0}};
    struct journal in = make_journal(p->epoch + 1);
    int r = journal_write(p->fd, &in);

    (void)fault_disarm();
    assert_int_equal(journal_read(p->fd, &out), 0);
    assert_int_equal(out.info.identity_epoch, r == 0 ? p->epoch + 1 : p->epoch);
    p->epoch = out.info.identity_epoch;
}

static void test_journal_write(void **state)
{
    struct place *p = *state;
    struct journal first = make_journal(0);

    assert_int_equal(journal_write(p->fd, &first), 0);
    assert_true(fault_each(write_journal, p) > 3);
}

static void prepare_journal(void *arg)
{
    struct place *p = arg;
    struct journal out = {.vm = {0}};
    struct journal in = make_journal(p->epoch + 1);
    int prepared = journal_prepare(p->fd, &in);
    int taken = prepared == 0 ? journal_take_prepared(p->fd) : -ECANCELED;

    (void)fault_disarm();
    if (taken != 0) {
        journal_drop_prepared(p->fd);
    }
    assert_int_equal(journal_read(p->fd, &out), 0);
    assert_int_equal(out.info.identity_epoch, taken == 0 ? p->epoch + 1 : p->epoch);
    p->epoch = out.info.identity_epoch;
}

static void test_journal_prepare(void **state)
{
    struct place *p = *state;
    struct journal first = make_journal(0);

    assert_int_equal(journal_write(p->fd, &first), 0);
    assert_true(fault_each(prepare_journal, p) > 3);
}

/* A record that cannot be read now is not taken for one that is damaged or not there. */
static void read_journal(void *arg)
{
    struct place *p = arg;
    struct journal out = {.vm = {0}};
    int r = journal_read(p->fd, &out);

    if (fault_disarm()) {
        assert_true(r == 0 || (r != -ENOENT && r < 0));
    } else {
        assert_int_equal(r, 0);
        assert_int_equal(out.info.identity_epoch, 5);
    }
}

static void test_journal_read(void **state)
{
    struct place *p = *state;
    struct journal first = make_journal(5);

    assert_int_equal(journal_write(p->fd, &first), 0);
    assert_true(fault_each(read_journal, p) > 2);
}

static void sync_journal(void *arg)
{
    struct place *p = arg;
    int r = journal_sync(p->fd);

    /* A failure that is not told would let go of what the record makes superfluous. */
    assert_true(fault_disarm() ? r < 0 : r == 0);
}

static void test_journal_sync(void **state)
{
    struct place *p = *state;
    struct journal first = make_journal(5);

    assert_int_equal(journal_write(p->fd, &first), 0);
    assert_true(fault_each(sync_journal, p) > 1);
}

/* ---- output ---- */

/* Whatever fails: what the spool says it keeps can be read when the failure is over, byte by byte.
 */
static void write_spool(void *arg)
{
    struct place *p = arg;
    const struct spool_limits limits = {.max_bytes = 1U << 20U, .head_keep = 65536};
    struct spool_store store;
    struct spool *spool;
    uint8_t piece[1000];

    spool_store_init(&store);
    spool = spool_new(&store, p->fd, SESSION, &limits);
    for (unsigned int i = 0; spool != NULL && i < PIECES; i++) {
        memset(piece, (int)('a' + i % 26), sizeof(piece));
        spool_append(spool, 1 - i % 2, span_make(piece, sizeof(piece)));
        if (i % 8 == 7) {
            (void)spool_flush(spool);
        }
    }
    (void)fault_disarm();
    if (spool != NULL) {
        struct order_position at = *spool_start(spool);
        struct spool_run run = {0, 1};

        while (run.bytes > 0) {
            _cleanup_buf_ struct buf bytes = buf_make(0);

            assert_int_equal(spool_find_run(spool, &at, &run), 0);
            assert_int_equal(
                spool_read(spool, run.stream, at.at[run.stream], (size_t)run.bytes, &bytes), 0);
            assert_int_equal(bytes.n, run.bytes);
            for (size_t i = 0; i < bytes.n; i++) {
                uint64_t number = (at.at[run.stream] + i) / sizeof(piece) * 2 + 1 - run.stream;

                assert_int_equal(bytes.p[i], 'a' + number % 26);
            }
            at.at[run.stream] += run.bytes;
        }
        spool_remove(spool);
        spool_free(spool);
    }
    assert_int_equal(store.memory_bytes, 0);
    assert_int_equal(store.open_count, 0);
}

static void test_spool(void **state)
{
    assert_true(fault_each(write_spool, *state) > 20);
}

/* ---- the rest of what starts ---- */

static void load_settings(void *arg)
{
    const struct place *p = arg;
    char path[96];
    struct settings s;
    struct error err = {0};
    int r;

    (void)snprintf(path, sizeof(path), "%s/space.conf", p->path);
    settings_init(&s);
    r = settings_load(&s, path, &err);
    assert_true(fault_disarm() ? r < 0 && err.message[0] != '\0' : r == 0);
}

static void test_settings(void **state)
{
    const struct place *p = *state;

    assert_int_equal(file_write_atomic(p->fd, "space.conf", span_of_str("node.max_processes = 7\n"),
                                       0600, false),
                     0);
    assert_true(fault_each(load_settings, *state) > 1);
}

static void count(void *arg)
{
    ++*(unsigned int *)arg;
}

static void use_loop(void *arg)
{
    struct loop *loop = loop_new(2);
    unsigned int worked = 0;
    unsigned int done = 0;

    (void)arg;
    if (loop != NULL) {
        struct loop_timer *timer = loop_timer_new(loop, count, &done);
        bool submitted = loop_submit(loop, count, count, &worked, false) == 0;

        loop_finish_work(loop);
        assert_int_equal(worked, submitted ? 2 : 0);
        loop_timer_free(timer);
        loop_free(loop);
    }
    if (!fault_disarm()) {
        assert_non_null(loop);
    }
}

static void test_loop(void **state)
{
    assert_true(fault_each(use_loop, *state) > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_journal_write, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_journal_prepare, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_journal_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_journal_sync, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_spool, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_settings, set_up, tear_down),
        cmocka_unit_test(test_loop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
