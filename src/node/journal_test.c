#include "node/journal.h"

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
#include "base/fd.h"

struct place {
    char path[64];
    int fd;
};

/* The journal needs only the names of the states; the rest of sandbox.c is not linked. */
const char *sandbox_state_name(enum sandbox_state state)
{
    static const char *const names[] = {"creating",   "running",   "pausing",  "paused", "waking",
                                        "suspending", "suspended", "deleting", "error",  "deleted"};

    _Static_assert(sizeof(names) / sizeof(names[0]) == SANDBOX_STATE_COUNT, "one each");

    return names[state];
}

static int set_up(void **state)
{
    struct place *p = calloc(1, sizeof(*p));

    (void)snprintf(p->path, sizeof(p->path), "/tmp/journal-test-XXXXXX");
    if (mkdtemp(p->path) == NULL) {
        return -1;
    }
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

static struct journal make_journal(void)
{
    struct journal j = {
        .info = {.state = SANDBOX_STATE_RUNNING,
                 .vcpus = 2,
                 .memory_mib = 1024,
                 .disk_mib = 8192,
                 .created_at_ms = 1795977597123,
                 .running_at_ms = 1795977598123,
                 .active_at_ms = 1795977599123,
                 .identity_epoch = 3,
                 .identity_done = 255,
                 .identity_confirmed_at_ms = 1795977598123},
        .vm = {.slot = 7, .netns = 9, .pid = 4242, .start_time = 123456789},
    };

    (void)snprintf(j.info.id, sizeof(j.info.id), "sb0123456789abcdefgh");
    (void)snprintf(j.info.template_name, sizeof(j.info.template_name), "base");
    (void)snprintf(j.info.template_version, sizeof(j.info.template_version),
                   "tm0123456789abcdefgh");
    (void)snprintf(j.info.hostname, sizeof(j.info.hostname), "box");
    (void)snprintf(j.info.user, sizeof(j.info.user), "user");
    (void)snprintf(j.vm.boot_id, sizeof(j.vm.boot_id), "96409886-dc78-457e-87eb-3293eaeae76d");
    (void)snprintf(j.vm.binary, sizeof(j.vm.binary), "/usr/bin/a-vmm");
    (void)snprintf(j.vm.env.driver, sizeof(j.vm.env.driver), "a driver");
    (void)snprintf(j.vm.env.vmm_version, sizeof(j.vm.env.vmm_version), "10.0.2 (Debian 1:10)");
    (void)snprintf(j.vm.env.accelerator, sizeof(j.vm.env.accelerator), "kvm");
    (void)snprintf(j.vm.env.cpu_model, sizeof(j.vm.env.cpu_model), "host");
    (void)snprintf(j.vm.env.kernel, sizeof(j.vm.env.kernel), "6.1.0-44-cloud-amd64");
    (void)snprintf(j.vm.env.guest_id, sizeof(j.vm.env.guest_id), "0123456789ab-cdef01234567");
    j.vm.env.tsc_khz = 2300123;
    j.vm.ram_is_memfd = true;
    return j;
}

static void test_round_trip(void **state)
{
    const struct place *p = *state;
    struct journal in = make_journal();
    struct journal out;

    memset(&out, 0, sizeof(out));
    assert_int_equal(journal_write(p->fd, &in), 0);
    assert_int_equal(journal_read(p->fd, &out), 0);
    assert_string_equal(out.info.id, in.info.id);
    assert_int_equal(out.info.state, in.info.state);
    assert_string_equal(out.info.template_version, in.info.template_version);
    assert_int_equal(out.info.memory_mib, 1024);
    assert_int_equal(out.info.identity_done, 255);
    assert_int_equal(out.info.created_at_ms, in.info.created_at_ms);
    assert_int_equal(out.vm.slot, 7);
    assert_int_equal(out.vm.netns, 9);
    assert_int_equal(out.vm.pid, 4242);
    assert_int_equal(out.vm.start_time, 123456789);
    assert_string_equal(out.vm.boot_id, in.vm.boot_id);
    in.vm.slot = 0;
    assert_int_equal(journal_write(p->fd, &in), 0);
    assert_int_equal(journal_read(p->fd, &out), 0);
    assert_int_equal(out.vm.slot, 0);
}

/* What its snapshots are bound to, whatever this program starts after its next start. */
static void test_the_environment_is_kept(void **state)
{
    const struct place *p = *state;
    struct journal in = make_journal();
    struct journal out;

    assert_int_equal(journal_write(p->fd, &in), 0);
    assert_int_equal(journal_read(p->fd, &out), 0);
    assert_memory_equal(&out.vm.env, &in.vm.env, sizeof(in.vm.env));
    assert_true(out.vm.ram_is_memfd);
    in.vm.ram_is_memfd = false;
    assert_int_equal(journal_write(p->fd, &in), 0);
    assert_int_equal(journal_read(p->fd, &out), 0);
    assert_false(out.vm.ram_is_memfd);
    in.vm.env.driver[0] = '\0'; /* not known: as an earlier release wrote it */
    assert_int_equal(journal_write(p->fd, &in), 0);
    assert_int_equal(journal_read(p->fd, &out), 0);
    assert_int_equal(out.vm.slot, 7);
    assert_string_equal(out.vm.env.driver, "");
    assert_string_equal(out.vm.env.accelerator, "");
}

static void test_sleep_is_kept(void **state)
{
    const struct place *p = *state;
    struct journal in = make_journal();
    struct journal out;

    in.info.state = SANDBOX_STATE_SUSPENDED;
    in.info.asleep = true;
    in.info.capture_id = INT64_MAX;
    for (size_t i = 0; i < sizeof(in.info.machine_id); i++) {
        in.info.machine_id[i] = (uint8_t)(i * 17);
    }
    assert_int_equal(journal_write(p->fd, &in), 0);
    assert_int_equal(journal_read(p->fd, &out), 0);
    assert_int_equal(out.info.state, SANDBOX_STATE_SUSPENDED);
    assert_true(out.info.asleep);
    assert_true(out.info.capture_id == INT64_MAX);
    assert_memory_equal(out.info.machine_id, in.info.machine_id, sizeof(in.info.machine_id));
}

/* Nothing may rely on a record that has not reached the disk: every failure is told. */
static void test_sync_tells_what_failed(void **state)
{
    const struct place *p = *state;
    const struct journal j = make_journal();
    _cleanup_close_ int path_only = open(p->path, O_PATH | O_DIRECTORY | O_CLOEXEC);

    assert_int_equal(journal_sync(p->fd), -ENOENT);
    assert_int_equal(journal_write(p->fd, &j), 0);
    assert_int_equal(journal_sync(p->fd), 0); /* there need be no variables */
    assert_int_equal(journal_sync(path_only), -EBADF);
    assert_int_equal(symlinkat("nowhere", p->fd, JOURNAL_ENV_FILE), 0);
    assert_int_equal(journal_sync(p->fd), -ELOOP);
    assert_int_equal(unlinkat(p->fd, JOURNAL_ENV_FILE, 0), 0);
    assert_int_equal(file_write_atomic(p->fd, JOURNAL_ENV_FILE, span_of_str("{}"), 0600, false), 0);
    assert_int_equal(journal_sync(p->fd), 0);
}

/* It is none until it is taken, and then the one. */
static void test_a_prepared_one_is_taken(void **state)
{
    const struct place *p = *state;
    struct journal in = make_journal();
    struct journal out;

    assert_int_equal(journal_write(p->fd, &in), 0);
    assert_int_equal(journal_take_prepared(p->fd), -ENOENT);
    in.info.state = SANDBOX_STATE_WAKING;
    assert_int_equal(journal_prepare(p->fd, &in), 0);
    assert_int_equal(journal_read(p->fd, &out), 0);
    assert_int_equal(out.info.state, SANDBOX_STATE_RUNNING);
    assert_int_equal(journal_take_prepared(p->fd), 0);
    assert_int_equal(journal_read(p->fd, &out), 0);
    assert_int_equal(out.info.state, SANDBOX_STATE_WAKING);
    assert_int_equal(journal_prepare(p->fd, &in), 0);
    journal_drop_prepared(p->fd);
    assert_int_equal(journal_take_prepared(p->fd), -ENOENT);
}

static void write_text(const struct place *p, const char *text)
{
    assert_int_equal(file_write_atomic(p->fd, JOURNAL_FILE, span_of_str(text), 0600, false), 0);
}

static void test_missing_and_damaged(void **state)
{
    const struct place *p = *state;
    struct journal out;

    assert_int_equal(journal_read(p->fd, &out), -ENOENT);
    write_text(p, "");
    assert_int_equal(journal_read(p->fd, &out), -EBADMSG);
    write_text(p, "{\"format\": 1, \"id\": \"sb");
    assert_int_equal(journal_read(p->fd, &out), -EBADMSG);
    write_text(p, "{\"format\": 1, \"id\": \"sb0123456789abcdefgh\"}");
    assert_int_equal(journal_read(p->fd, &out), -EBADMSG);
}

/* Replaces one member of a good journal and expects it to be refused. */
static void refuse(const struct place *p, const char *from, const char *to)
{
    struct journal in = make_journal();
    _cleanup_buf_ struct buf text = buf_make(16384);
    _cleanup_buf_ struct buf bad = buf_make(16384);
    struct journal out;
    const char *at;

    assert_int_equal(journal_write(p->fd, &in), 0);
    assert_int_equal(file_read(p->fd, JOURNAL_FILE, 16384, &text), 0);
    at = strstr(buf_str(&text), from);
    assert_non_null(at);
    buf_put(&bad, span_make(buf_str(&text), (size_t)(at - buf_str(&text))));
    buf_put_str(&bad, to);
    buf_put_str(&bad, at + strlen(from));
    write_text(p, buf_str(&bad));
    assert_int_equal(journal_read(p->fd, &out), -EBADMSG);
}

static void test_bad_members(void **state)
{
    const struct place *p = *state;

    refuse(p, "\"format\":1", "\"format\":2");
    refuse(p, "\"running\"", "\"flying\"");
    refuse(p, "\"id\":\"sb0", "\"id\":\"xx0");
    refuse(p, "\"paused_total_ms\":0", "\"paused_total_ms\":-1");
    refuse(p, "\"vcpus\":2", "\"vcpus\":99");
    refuse(p, "\"pid\":4242", "\"pid\":1");
    refuse(p, "\"slot\":7", "\"slot\":0");
    refuse(p, "\"slot\":7", "\"slot\":-7");
    refuse(p, "\"start_time\":123456789", "\"start_time\":\"1\"");
    refuse(p, "\"accelerator\":\"kvm\"", "\"accelerator\":\"more than it can be\"");
    refuse(p, "\"driver\":\"a driver\"", "\"driver\":\"\"");
    refuse(p, "\"clock_khz\":2300123", "\"clock_khz\":-1");
    refuse(p, "\"ram_is_memfd\":true", "\"ram_is_memfd\":1");
    refuse(p, "\"ram_is_memfd\":true", "\"else\":true");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_environment_is_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_sleep_is_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_sync_tells_what_failed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_prepared_one_is_taken, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_missing_and_damaged, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_members, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
