/* watch, by an agent on this machine. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <sys/stat.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/service_rig.h"

#define WAIT_MS 10000

static struct answer answer;

/* "created d/", "moved a b", one per line: names below the rig's directory, a slash behind those of
 * directories. */
static void put_change(const struct service_rig *s, const struct service_change *c, struct buf *b)
{
    static const char *const kinds[] = {"?", "created", "modified", "deleted", "moved", "overflow"};
    size_t prefix = strlen(s->directory) + 1;

    buf_put_str(b, kinds[c->kind]);
    if (c->from.n > 0) {
        buf_put_str(b, " ");
        buf_put(b, span_skip(c->from, prefix));
    }
    buf_put_str(b, " ");
    buf_put(b, span_skip(c->path, prefix));
    buf_put_str(b, c->is_directory ? "/\n" : "\n");
}

static const char *changes(struct service_rig *s, uint32_t channel, struct buf *b)
{
    service_rig_read(s, channel, &answer);
    buf_clear(b);
    for (size_t i = 0; i < answer.n_changes; i++) {
        put_change(s, &answer.changes[i], b);
    }
    return buf_str(b);
}

static uint32_t begin(struct service_rig *s, const char *path, const char *recursive)
{
    uint32_t channel = service_rig_begin(s, ARGS("watch", path, recursive), false);

    do {
        (void)rig_step(&s->rig, 100);
        service_rig_read(s, channel, &answer);
    } while (!answer.is_done && !answer.has_error);
    return channel;
}

/* Waits until the changes contain this line. */
static void wait_for(struct service_rig *s, uint32_t channel, const char *line)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    int64_t until = clock_monotonic_ms() + WAIT_MS;

    while (strstr(changes(s, channel, &b), line) == NULL) {
        if (clock_monotonic_ms() >= until) {
            fail_msg("no '%s' in:\n%s", line, buf_str(&b));
        }
        (void)rig_step(&s->rig, 100);
    }
}

static void expect_once(struct service_rig *s, uint32_t channel, const char *line)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    const char *found = strstr(changes(s, channel, &b), line);

    assert_non_null(found);
    if (strstr(found + 1, line) != NULL) {
        fail_msg("'%s' twice in:\n%s", line, buf_str(&b));
    }
}

static void expect_none(struct service_rig *s, uint32_t channel, const char *text)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    assert_null(strstr(changes(s, channel, &b), text));
}

/* A last change, behind which nothing is to come any more. */
static void finish(struct service_rig *s, uint32_t channel)
{
    service_rig_file(s, "w/finish", "");
    wait_for(s, channel, "created w/finish\n");
}

static void make_directory(const struct service_rig *s, const char *name)
{
    assert_int_equal(mkdir(service_rig_path(s, name), 0755), 0);
}

static void move(const struct service_rig *s, const char *from, const char *to)
{
    assert_int_equal(rename(service_rig_path(s, from), service_rig_path(s, to)), 0);
}

static void test_files_come_change_and_go(void **state)
{
    struct service_rig *s = *state;
    uint32_t channel;

    make_directory(s, "w");
    service_rig_file(s, "w/old", "x");
    channel = begin(s, "w", "");
    assert_int_equal(answer.done.count, 1);
    service_rig_file(s, "w/new\n\xff", "");
    wait_for(s, channel, "created w/new\n\xff\n");
    service_rig_file(s, "w/old", "changed");
    wait_for(s, channel, "modified w/old\n");
    move(s, "w/old", "w/renamed");
    wait_for(s, channel, "moved w/old w/renamed\n");
    assert_int_equal(chmod(service_rig_path(s, "w/renamed"), 0600), 0);
    wait_for(s, channel, "modified w/renamed\n");
    move(s, "w/renamed", "outside");
    wait_for(s, channel, "deleted w/renamed\n");
    move(s, "outside", "w/back");
    wait_for(s, channel, "created w/back\n");
    assert_int_equal(unlink(service_rig_path(s, "w/back")), 0);
    wait_for(s, channel, "deleted w/back\n");
    make_directory(s, "w/d");
    service_rig_file(s, "w/d/unseen", "");
    finish(s, channel);
    expect_once(s, channel, "created w/d/\n");
    expect_none(s, channel, "unseen");
}

/* An upload is one change, and its way there is nobody's business. */
static void test_uploads_are_seen_once(void **state)
{
    struct service_rig *s = *state;
    _cleanup_buf_ struct buf b = buf_make(0);
    uint32_t channel;

    make_directory(s, "w");
    channel = begin(s, "w", "recursive");
    for (int i = 0; i < 2; i++) {
        struct answer written = {0};

        service_rig_call(s, ARGS("file-write", "w/up", "", "", ""), span_of_str("content"),
                         &written);
        assert_true(written.is_done);
        assert_int_equal(written.done.count, i == 0 ? 1 : 0);
    }
    service_rig_file(s, "w/#12", "a name like another");
    finish(s, channel);
    assert_string_equal(changes(s, channel, &b), "created w/up\nmodified w/up\ncreated w/#12\n"
                                                 "modified w/#12\ncreated w/finish\n");
}

static void test_new_directories_are_watched(void **state)
{
    struct service_rig *s = *state;
    uint32_t channel;

    make_directory(s, "w");
    make_directory(s, "w/a");
    make_directory(s, "w/a/b");
    channel = begin(s, "w", "recursive");
    assert_int_equal(answer.done.count, 3);
    service_rig_file(s, "w/a/b/f", "");
    wait_for(s, channel, "created w/a/b/f\n");
    /* Made and filled at once. */
    make_directory(s, "w/n");
    make_directory(s, "w/n/m");
    service_rig_file(s, "w/n/m/f", "");
    service_rig_file(s, "w/n/g", "");
    wait_for(s, channel, "created w/n/m/f\n");
    wait_for(s, channel, "created w/n/g\n");
    service_rig_file(s, "w/n/m/later", "");
    wait_for(s, channel, "created w/n/m/later\n");
    finish(s, channel);
    expect_once(s, channel, "created w/n/\n");
    expect_once(s, channel, "created w/n/m/\n");
    expect_once(s, channel, "created w/n/m/f\n");
    expect_once(s, channel, "created w/n/g\n");
}

static void test_moved_directories_take_their_names_along(void **state)
{
    struct service_rig *s = *state;
    uint32_t channel;

    make_directory(s, "w");
    make_directory(s, "w/a");
    make_directory(s, "w/a/b");
    make_directory(s, "w/c");
    make_directory(s, "out");
    make_directory(s, "out/x");
    service_rig_file(s, "out/x/f", "");
    channel = begin(s, "w", "recursive");
    move(s, "w/a", "w/c/a");
    wait_for(s, channel, "moved w/a w/c/a/\n");
    service_rig_file(s, "w/c/a/b/f", "");
    wait_for(s, channel, "created w/c/a/b/f\n");
    move(s, "w/c/a/b", "out/b");
    wait_for(s, channel, "deleted w/c/a/b/\n");
    service_rig_file(s, "out/b/unseen", "");
    move(s, "out/x", "w/x");
    wait_for(s, channel, "created w/x/\n");
    wait_for(s, channel, "created w/x/f\n");
    service_rig_file(s, "w/x/g", "");
    wait_for(s, channel, "created w/x/g\n");
    make_directory(s, "w/empty");
    wait_for(s, channel, "created w/empty/\n");
    move(s, "w/x", "w/empty"); /* over it */
    wait_for(s, channel, "moved w/x w/empty/\n");
    service_rig_file(s, "w/empty/h", "");
    wait_for(s, channel, "created w/empty/h\n");
    finish(s, channel);
    expect_none(s, channel, "unseen");
}

static void test_links_are_not_followed(void **state)
{
    struct service_rig *s = *state;
    uint32_t channel;

    make_directory(s, "w");
    make_directory(s, "out");
    assert_int_equal(symlink("../out", service_rig_path(s, "w/link")), 0);
    channel = begin(s, "w", "recursive");
    assert_int_equal(answer.done.count, 1);
    service_rig_file(s, "out/unseen", "");
    assert_int_equal(symlink("../out", service_rig_path(s, "w/link2")), 0);
    wait_for(s, channel, "created w/link2\n");
    service_rig_file(s, "out/unseen2", "");
    finish(s, channel);
    expect_none(s, channel, "unseen");
}

static void test_the_end_of_the_top_ends_it(void **state)
{
    struct service_rig *s = *state;
    uint32_t channel;

    make_directory(s, "w");
    make_directory(s, "w/d");
    channel = begin(s, "w", "recursive");
    assert_int_equal(dir_remove_tree(AT_FDCWD, service_rig_path(s, "w")), 0);
    rig_wait_end(&s->rig, channel);
    service_rig_read(s, channel, &answer);
    assert_int_equal(answer.error.errnum, ENOENT);
    make_directory(s, "w");
    channel = begin(s, "w/.", "");
    move(s, "w", "v");
    rig_wait_end(&s->rig, channel);
    service_rig_read(s, channel, &answer);
    assert_int_equal(answer.error.errnum, ENOENT);
    service_rig_fails(s, ARGS("watch", "none", "recursive"), ENOENT);
    service_rig_file(s, "f", "");
    service_rig_fails(s, ARGS("watch", "f", ""), ENOTDIR);
    service_rig_fails(s, ARGS("watch", "v", "deep"), EINVAL);
}

/* Whether a change of this kind came (0: any), of this path (NULL: any), in an answer of any
 * length.
 */
static bool has_change(const struct buf *output, uint8_t kind, const char *path)
{
    struct span rest = buf_span(output);
    struct service_record m;
    int used;

    for (; (used = service_record_next(rest, &m)) > 0; rest = span_skip(rest, (size_t)used)) {
        struct service_change c;

        if (m.type == SERVICE_RECORD_CHANGE && service_change_parse(m.payload, &c) == 0 &&
            (kind == 0 || c.kind == kind) && (path == NULL || span_equals_str(c.path, path))) {
            return true;
        }
    }
    return false;
}

/* While the host takes nothing, the kernel's queue runs over; then all is well again. */
static void test_overflow_is_told_and_overcome(void **state)
{
    struct service_rig *s = *state;
    int64_t until = clock_monotonic_ms() + 3 * WAIT_MS;
    const struct buf *output;
    uint32_t channel;

    make_directory(s, "w");
    service_rig_file(s, "w/a", "");
    channel = begin(s, "w", "recursive");
    output = &s->rig.channels[channel].output[0];
    s->rig.ack = false;
    for (int i = 0; i < 20000; i++) {
        move(s, "w/a", "w/b");
        move(s, "w/b", "w/a");
    }
    make_directory(s, "w/kept");
    s->rig.ack = true;
    rig_acknowledge(&s->rig, channel, AGENT_STDOUT, output->n);
    while (!has_change(output, SERVICE_CHANGE_OVERFLOW, NULL)) {
        assert_true(clock_monotonic_ms() < until);
        (void)rig_step(&s->rig, 200);
    }
    /* Once the new watches are there. */
    while (!has_change(output, 0, service_rig_path(s, "w/kept/f"))) {
        assert_true(clock_monotonic_ms() < until);
        service_rig_file(s, "w/kept/f", "again");
        (void)rig_step(&s->rig, 200);
    }
}

/* A program that writes all the time makes few changes of it. */
static void test_a_flood_of_writes_is_gathered(void **state)
{
    struct service_rig *s = *state;
    uint32_t channel;
    int fds[2];

    make_directory(s, "w");
    channel = begin(s, "w", "");
    for (int i = 0; i < 2; i++) {
        fds[i] =
            open(service_rig_path(s, i == 0 ? "w/a" : "w/b"), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        assert_true(fds[i] >= 0);
    }
    for (int i = 0; i < 5000; i++) {
        assert_int_equal(write(fds[i % 2], "x", 1), 1);
    }
    assert_int_equal(close(fds[0]), 0);
    assert_int_equal(close(fds[1]), 0);
    finish(s, channel);
    service_rig_read(s, channel, &answer);
    assert_true(answer.n_changes < 500);
}

int main(void)
{
#define SERVICE_TEST(f)                                                                            \
    cmocka_unit_test_setup_teardown(f, service_rig_set_up, service_rig_tear_down)
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_files_come_change_and_go),
        SERVICE_TEST(test_uploads_are_seen_once),
        SERVICE_TEST(test_new_directories_are_watched),
        SERVICE_TEST(test_moved_directories_take_their_names_along),
        SERVICE_TEST(test_links_are_not_followed),
        SERVICE_TEST(test_the_end_of_the_top_ends_it),
        SERVICE_TEST(test_overflow_is_told_and_overcome),
        SERVICE_TEST(test_a_flood_of_writes_is_gathered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
