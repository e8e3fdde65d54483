/* tar-read and tar-write by an agent on this machine. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cmocka.h>

#include "guest/service_rig.h"
#include "wire/tar.h"

static struct answer answer;

static void put_entry(struct buf *b, struct tar_entry e, const char *content)
{
    e.size_bytes = strlen(content);
    e.mode = e.mode == 0 ? 0644 : e.mode;
    tar_entry_format(b, &e);
    buf_put_str(b, content);
    for (size_t n = tar_padding(e.size_bytes); n > 0; n--) {
        buf_put_u8(b, 0);
    }
}

#define FILE_ENTRY(path) ((struct tar_entry){.type = TAR_FILE, .name = span_of_str(path)})
#define LINK_ENTRY(t, path, to)                                                                    \
    ((struct tar_entry){.type = (t), .name = span_of_str(path), .target = span_of_str(to)})
#define KIND_ENTRY(t, path, m)                                                                     \
    ((struct tar_entry){.type = (t), .name = span_of_str(path), .mode = (m)})

static bool exists(const struct service_rig *s, const char *name)
{
    struct stat st;

    return lstat(service_rig_path(s, name), &st) == 0;
}

static mode_t mode_of(const struct service_rig *s, const char *name)
{
    struct stat st;

    assert_int_equal(lstat(service_rig_path(s, name), &st), 0);
    return st.st_mode;
}

/* Every kind of thing, odd names, holes and a deep path. */
static void make_tree(const struct service_rig *s)
{
    char deep[600];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(mkdir(service_rig_path(s, "t"), 0755), 0);
    assert_int_equal(mkdir(service_rig_path(s, "t/closed"), 0755), 0);
    service_rig_file(s, "t/closed/f", "inside");
    assert_int_equal(chmod(service_rig_path(s, "t/closed"), 0511), 0);
    service_rig_file(s, "t/new\nline\xff", "odd");
    service_rig_file(s, "t/large", "start");
    assert_int_equal(truncate(service_rig_path(s, "t/large"), 1000000), 0);
    assert_int_equal(chmod(service_rig_path(s, "t/large"), 0751), 0);
    assert_int_equal(link(service_rig_path(s, "t/large"), service_rig_path(s, "t/hard")), 0);
    assert_int_equal(symlink("/etc/passwd", service_rig_path(s, "t/soft")), 0);
    assert_int_equal(mkfifo(service_rig_path(s, "t/fifo"), 0600), 0);
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/t/socket", s->directory);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(close(fd), 0);
    (void)snprintf(deep, sizeof(deep), "t/%0120d", 1);
    assert_int_equal(mkdir(service_rig_path(s, deep), 0755), 0);
    (void)snprintf(deep, sizeof(deep), "t/%0120d/%0120d", 1, 2);
    service_rig_file(s, deep, "deep");
}

static void test_a_tree_goes_out_and_in_again(void **state)
{
    struct service_rig *s = *state;
    _cleanup_buf_ struct buf archive = buf_make(0);
    char command[512];
    struct stat large;
    struct stat hard;

    make_tree(s);
    service_rig_call(s, ARGS("tar-read", "t"), NO_INPUT, &answer);
    assert_int_equal(answer.body.length, SERVICE_LENGTH_UNKNOWN);
    assert_int_equal(answer.bytes.n % TAR_BLOCK_BYTES, 0);
    buf_put(&archive, answer.bytes);
    service_rig_call(s, ARGS("tar-write", "new/u"), buf_span(&archive), &answer);
    assert_true(answer.is_done);
    assert_int_equal(answer.done.count, 9);
    assert_false(exists(s, "new/u/socket"));
    (void)snprintf(command, sizeof(command),
                   "rm %s/t/socket && diff -r -x fifo --no-dereference %s/t %s", s->directory,
                   s->directory, service_rig_path(s, "new/u"));
    assert_int_equal(system(command), 0);
    assert_true(S_ISFIFO(mode_of(s, "new/u/fifo")));
    assert_int_equal(stat(service_rig_path(s, "new/u/large"), &large), 0);
    assert_int_equal(stat(service_rig_path(s, "new/u/hard"), &hard), 0);
    assert_int_equal(large.st_ino, hard.st_ino);
    assert_true(large.st_blocks < 64);
    assert_int_equal(large.st_mode & 07777, 0751);
    assert_int_equal(mode_of(s, "new/u/closed") & 07777, 0511);
    assert_int_equal(chmod(service_rig_path(s, "t/closed"), 0755), 0);
    assert_int_equal(chmod(service_rig_path(s, "new/u/closed"), 0755), 0);
}

/* GNU tar reads what we write, and we read what it writes. */
static void test_with_another_tar(void **state)
{
    struct service_rig *s = *state;
    _cleanup_buf_ struct buf archive = buf_make(0);
    char command[1024];

    make_tree(s);
    service_rig_call(s, ARGS("tar-read", "t"), NO_INPUT, &answer);
    {
        int fd = open(service_rig_path(s, "ours.tar"), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

        assert_int_equal(write(fd, answer.bytes.p, answer.bytes.n), answer.bytes.n);
        assert_int_equal(close(fd), 0);
    }
    (void)snprintf(command, sizeof(command),
                   "cd %s && rm t/socket && mkdir x && tar xf ours.tar -C x && "
                   "diff -r -x fifo --no-dereference t x && tar cf theirs.tar -C t .",
                   s->directory);
    assert_int_equal(system(command), 0);
    {
        int fd = open(service_rig_path(s, "theirs.tar"), O_RDONLY | O_CLOEXEC);
        uint8_t *to = buf_reserve(&archive, 4000000);

        assert_non_null(to);
        buf_commit(&archive, (size_t)read(fd, to, 4000000));
        assert_int_equal(close(fd), 0);
    }
    service_rig_call(s, ARGS("tar-write", "y"), buf_span(&archive), &answer);
    assert_true(answer.is_done);
    (void)snprintf(command, sizeof(command), "cd %s && diff -r -x fifo --no-dereference t y",
                   s->directory);
    assert_int_equal(system(command), 0);
    (void)snprintf(command, sizeof(command), "chmod 755 %s/*/closed", s->directory);
    assert_int_equal(system(command), 0);
}

static void test_left_out(void **state)
{
    struct service_rig *s = *state;
    _cleanup_buf_ struct buf names = buf_make(0);
    struct tar_parser p;
    struct span rest;

    assert_int_equal(mkdir(service_rig_path(s, "node_modules"), 0755), 0);
    service_rig_file(s, "node_modules/x", "");
    assert_int_equal(mkdir(service_rig_path(s, "src"), 0755), 0);
    service_rig_file(s, "src/a.o", "");
    service_rig_file(s, "src/a.c", "");
    service_rig_call(s, ARGS("tar-read", ".", "node_modules", "src/*.o"), NO_INPUT, &answer);
    tar_parser_init(&p);
    for (rest = answer.bytes; rest.n > 0;) {
        struct tar_entry e;
        struct span content;
        int r = tar_parser_next(&p, &rest, &e, &content);

        assert_true(r >= 0);
        if (r == TAR_ENTRY) {
            buf_put(&names, e.name);
            buf_put_str(&names, " ");
        }
    }
    assert_int_equal(tar_parser_finish(&p), 0);
    tar_parser_done(&p);
    assert_string_equal(buf_str(&names), "src/ src/a.c ");
    service_rig_fails(s, ARGS("tar-read", "none"), ENOENT);
    service_rig_fails(s, ARGS("tar-read", "src/a.c"), ENOTDIR);
}

static void expect_refused(struct service_rig *s, struct buf *archive, int errnum, const char *name)
{
    tar_end_format(archive);
    service_rig_call(s, ARGS("tar-write", "in"), buf_span(archive), &answer);
    assert_true(answer.has_error);
    assert_int_equal(answer.error.errnum, errnum);
    assert_true(span_equals_str(answer.error.path, name));
    buf_clear(archive);
}

static void test_nothing_leads_out(void **state)
{
    struct service_rig *s = *state;
    _cleanup_buf_ struct buf b = buf_make(0);

    service_rig_file(s, "victim", "safe");
    assert_int_equal(mkdir(service_rig_path(s, "in"), 0755), 0);
    put_entry(&b, FILE_ENTRY("/tmp/absolute"), "x");
    expect_refused(s, &b, EPERM, "/tmp/absolute");
    put_entry(&b, FILE_ENTRY("a/../../victim"), "x");
    expect_refused(s, &b, EPERM, "a/../../victim");
    put_entry(&b, LINK_ENTRY(TAR_SYMLINK, "up", ".."), "");
    put_entry(&b, FILE_ENTRY("up/victim"), "x");
    expect_refused(s, &b, EPERM, "up/victim");
    put_entry(&b, LINK_ENTRY(TAR_SYMLINK, "root", "/"), "");
    put_entry(&b, FILE_ENTRY("root/tmp/x"), "x");
    expect_refused(s, &b, EPERM, "root/tmp/x");
    put_entry(&b, KIND_ENTRY(TAR_DIRECTORY, "up/new/", 0755), "");
    expect_refused(s, &b, EPERM, "up/new/");
    put_entry(&b, LINK_ENTRY(TAR_HARD_LINK, "h", "../victim"), "");
    expect_refused(s, &b, EPERM, "h");
    put_entry(&b, LINK_ENTRY(TAR_HARD_LINK, "h", "up/victim"), "");
    expect_refused(s, &b, EPERM, "h");
    put_entry(&b, LINK_ENTRY(TAR_HARD_LINK, "h", "none"), "");
    expect_refused(s, &b, ENOENT, "h");
    put_entry(&b, KIND_ENTRY(TAR_BLOCK_DEVICE, "disk", 0600), "");
    expect_refused(s, &b, EPERM, "disk");
    put_entry(&b, KIND_ENTRY(TAR_CHARACTER_DEVICE, "d/null", 0600), "");
    expect_refused(s, &b, EPERM, "d/null");
    put_entry(&b, FILE_ENTRY("."), "x");
    expect_refused(s, &b, EPERM, ".");
    /* A file over a link replaces the link. */
    assert_int_equal(symlink("../victim", service_rig_path(s, "in/file")), 0);
    put_entry(&b, FILE_ENTRY("file"), "new");
    tar_end_format(&b);
    service_rig_call(s, ARGS("tar-write", "in"), buf_span(&b), &answer);
    assert_true(answer.is_done);
    assert_true(service_rig_file_is(s, "in/file", span_of_str("new")));
    assert_true(service_rig_file_is(s, "victim", span_of_str("safe")));
}

static void test_what_is_there(void **state)
{
    struct service_rig *s = *state;
    _cleanup_buf_ struct buf b = buf_make(0);

    assert_int_equal(mkdir(service_rig_path(s, "in"), 0700), 0);
    assert_int_equal(mkdir(service_rig_path(s, "in/d"), 0700), 0);
    assert_int_equal(mkdir(service_rig_path(s, "in/real"), 0755), 0);
    assert_int_equal(symlink("real", service_rig_path(s, "in/lib")), 0);
    service_rig_file(s, "in/f", "old");
    put_entry(&b, KIND_ENTRY(TAR_DIRECTORY, "./", 0777), "");
    put_entry(&b, KIND_ENTRY(TAR_DIRECTORY, "./d/", 0777), "");
    put_entry(&b, KIND_ENTRY(TAR_DIRECTORY, "lib/", 0777), "");
    put_entry(&b, FILE_ENTRY("lib/x"), "through");
    put_entry(&b, KIND_ENTRY(TAR_FILE, "f", 06755), "new");
    put_entry(&b, FILE_ENTRY("deep/er/file"), "parents");
    put_entry(&b, KIND_ENTRY(TAR_DIRECTORY, "ro/", 0555), "");
    put_entry(&b, FILE_ENTRY("ro/in"), "x");
    tar_end_format(&b);
    service_rig_call(s, ARGS("tar-write", "in"), buf_span(&b), &answer);
    assert_true(answer.is_done);
    assert_int_equal(answer.done.count, 8);
    assert_int_equal(mode_of(s, "in") & 07777, 0700);
    assert_int_equal(mode_of(s, "in/d") & 07777, 0700);
    assert_true(S_ISLNK(mode_of(s, "in/lib")));
    assert_true(service_rig_file_is(s, "in/real/x", span_of_str("through")));
    assert_int_equal(mode_of(s, "in/f") & 07777, 0755);
    assert_true(service_rig_file_is(s, "in/f", span_of_str("new")));
    assert_true(service_rig_file_is(s, "in/deep/er/file", span_of_str("parents")));
    assert_int_equal(mode_of(s, "in/ro") & 07777, 0555);
    assert_int_equal(chmod(service_rig_path(s, "in/ro"), 0755), 0);
    buf_clear(&b);
    put_entry(&b, FILE_ENTRY("d"), "over a directory");
    expect_refused(s, &b, EISDIR, "d");
}

static void test_cut_and_bad_archives(void **state)
{
    struct service_rig *s = *state;
    _cleanup_buf_ struct buf b = buf_make(0);

    put_entry(&b, FILE_ENTRY("whole"), "x");
    put_entry(&b, FILE_ENTRY("cut"), "yyyyyyyyyy");
    service_rig_call(s, ARGS("tar-write", "in"), span_make(b.p, b.n - 508), &answer);
    assert_int_equal(answer.error.errnum, EBADMSG);
    assert_true(exists(s, "in/whole"));
    assert_false(exists(s, "in/cut"));
    buf_clear(&b);
    put_entry(&b, KIND_ENTRY('S', "sparse", 0644), "x");
    service_rig_call(s, ARGS("tar-write", "in"), buf_span(&b), &answer);
    assert_int_equal(answer.error.errnum, EBADMSG);
    service_rig_call(s, ARGS("tar-write", "in"), span_of_str("no archive"), &answer);
    assert_int_equal(answer.error.errnum, EBADMSG);
    service_rig_file(s, "f", "");
    buf_clear(&b);
    tar_end_format(&b);
    service_rig_call(s, ARGS("tar-write", "f"), buf_span(&b), &answer);
    assert_int_equal(answer.error.errnum, ENOTDIR);
    service_rig_call(s, ARGS("tar-write", "in"), buf_span(&b), &answer);
    assert_int_equal(answer.done.count, 0);
}

int main(void)
{
#define SERVICE_TEST(f)                                                                            \
    cmocka_unit_test_setup_teardown(f, service_rig_set_up, service_rig_tear_down)
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_a_tree_goes_out_and_in_again),
        SERVICE_TEST(test_with_another_tar),
        SERVICE_TEST(test_left_out),
        SERVICE_TEST(test_nothing_leads_out),
        SERVICE_TEST(test_what_is_there),
        SERVICE_TEST(test_cut_and_bad_archives),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
