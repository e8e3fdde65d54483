/* file-read and file-write, and how services end, by an agent on this machine. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>

#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/service_path.h"
#include "guest/service_rig.h"

static struct answer answer;

static void read_range(struct service_rig *s, const char *range, const char *expected)
{
    service_rig_call(s, ARGS("file-read", "f", range), NO_INPUT, &answer);
    assert_int_equal(answer.n_entries, 1);
    assert_true(answer.has_body);
    assert_int_equal(answer.body.length, strlen(expected));
    assert_true(span_equals_str(answer.bytes, expected));
}

static void test_read_ranges(void **state)
{
    struct service_rig *s = *state;

    service_rig_file(s, "f", "0123456789");
    read_range(s, "", "0123456789");
    assert_int_equal(answer.entries[0].size_bytes, 10);
    read_range(s, "0-", "0123456789");
    read_range(s, "3-5", "345");
    assert_int_equal(answer.body.offset, 3);
    read_range(s, "8-99999999999", "89");
    read_range(s, "-3", "789");
    assert_int_equal(answer.body.offset, 7);
    read_range(s, "-30", "0123456789");
    read_range(s, "9-9", "9");
    service_rig_fails(s, ARGS("file-read", "f", "10-"), ERANGE);
    service_rig_fails(s, ARGS("file-read", "f", "-0"), ERANGE);
    service_rig_fails(s, ARGS("file-read", "f", "5-4"), EINVAL);
    service_rig_fails(s, ARGS("file-read", "f", "-"), EINVAL);
    service_rig_fails(s, ARGS("file-read", "f", "x-1"), EINVAL);
    service_rig_fails(s, ARGS("file-read", "f", "1-2-3"), EINVAL);
    service_rig_file(s, "f", "");
    read_range(s, "", "");
    service_rig_fails(s, ARGS("file-read", "f", "0-"), ERANGE);
}

static void test_read_only_regular_files(void **state)
{
    struct service_rig *s = *state;

    service_rig_file(s, "f", "text");
    assert_int_equal(symlink("f", service_rig_path(s, "link")), 0);
    service_rig_call(s, ARGS("file-read", "link", ""), NO_INPUT, &answer);
    assert_true(span_equals_str(answer.bytes, "text"));
    assert_int_equal(answer.entries[0].type, SERVICE_ENTRY_FILE);
    assert_int_equal(mkfifo(service_rig_path(s, "fifo"), 0600), 0);
    service_rig_fails(s, ARGS("file-read", "fifo", ""), EINVAL);
    service_rig_fails(s, ARGS("file-read", "/dev/zero", ""), EINVAL);
    service_rig_fails(s, ARGS("file-read", ".", ""), EISDIR);
    service_rig_fails(s, ARGS("file-read", "none", ""), ENOENT);
    service_rig_call(s, ARGS("file-read", "/proc/self/status", ""), NO_INPUT, &answer);
    assert_int_equal(answer.body.length, SERVICE_LENGTH_UNKNOWN);
    assert_int_equal(memcmp(answer.bytes.p, "Name:", 5), 0);
}

/* A page long, says stat, and read until its end all the same. */
static void test_files_of_sysfs_have_no_size(void **state)
{
    struct service_rig *s = *state;
    const char *path = "/sys/devices/system/cpu/online";

    if (access(path, R_OK) < 0) {
        skip();
    }
    service_rig_call(s, ARGS("file-read", path, ""), NO_INPUT, &answer);
    assert_int_equal(answer.entries[0].size_bytes, 0);
    assert_int_equal(answer.body.length, SERVICE_LENGTH_UNKNOWN);
    assert_int_equal(answer.bytes.p[0], '0');
    service_rig_fails(s, ARGS("file-read", path, "0-"), ERANGE);
    assert_int_equal(answer.entries[0].size_bytes, 0);
}

static pid_t start_writer(const char *path)
{
    pid_t pid = fork();

    if (pid == 0) {
        _cleanup_close_ int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);

        while (getppid() != 1 && write(fd, "x", 1) == 1) {
        }
        _exit(1);
    }
    assert_true(pid > 0);
    return pid;
}

/* ENTRY and BODY tell of one moment of a log that is being written. */
static void test_a_file_that_grows_has_one_size(void **state)
{
    static const char *const ranges[] = {"", "0-", "-1"};
    struct service_rig *s = *state;
    pid_t writer;

    service_rig_file(s, "log", "x");
    writer = start_writer(service_rig_path(s, "log"));
    for (int i = 0; i < 300; i++) {
        service_rig_call(s, ARGS("file-read", "log", ranges[i % 3]), NO_INPUT, &answer);
        assert_false(answer.has_error);
        assert_int_equal(answer.body.offset + answer.body.length, answer.entries[0].size_bytes);
        assert_int_equal(answer.bytes.n, answer.body.length);
        if (answer.body.length > 100000) {
            assert_int_equal(truncate(service_rig_path(s, "log"), 1), 0);
        }
    }
    assert_int_equal(kill(writer, SIGKILL), 0);
    assert_int_equal(waitpid(writer, NULL, 0), writer);
}

static void fill_random(struct service_rig *s, struct buf *b, size_t n)
{
    uint8_t *to = buf_reserve(b, n);

    assert_non_null(to);
    for (size_t i = 0; i < n; i++) {
        to[i] = (uint8_t)rig_random(&s->rig, 256);
    }
    buf_commit(b, n);
}

static void write_call(struct service_rig *s, const char *const *argv, struct span content)
{
    service_rig_call(s, argv, content, &answer);
    assert_false(answer.has_error);
    assert_true(answer.is_done);
    assert_int_equal(answer.entries[0].size_bytes, content.n);
}

static void test_write_and_read_much(void **state)
{
    struct service_rig *s = *state;
    _cleanup_buf_ struct buf content = buf_make(0);

    fill_random(s, &content, 5000001);
    memset(&content.p[1000000], 0, 2000000); /* a hole */
    write_call(s, ARGS("file-write", "new/dir/f", "", "parents", "5000001"), buf_span(&content));
    assert_true(service_rig_file_is(s, "new/dir/f", buf_span(&content)));
    service_rig_call(s, ARGS("file-read", "new/dir/f", ""), NO_INPUT, &answer);
    assert_true(span_equals(answer.bytes, buf_span(&content)));
}

static struct stat stat_of(const struct service_rig *s, const char *name)
{
    struct stat st;

    assert_int_equal(lstat(service_rig_path(s, name), &st), 0);
    return st;
}

static void test_zeros_become_holes(void **state)
{
    struct service_rig *s = *state;
    _cleanup_buf_ struct buf content = buf_make(0);
    uint8_t *to = buf_reserve(&content, 8388608);

    assert_non_null(to);
    memset(to, 0, 8388608);
    to[4000000] = 1;
    buf_commit(&content, 8388608);
    write_call(s, ARGS("file-write", "f", "", "", ""), buf_span(&content));
    assert_true(service_rig_file_is(s, "f", buf_span(&content)));
    assert_true(stat_of(s, "f").st_blocks < 1024);
}

static void test_write_keeps_or_sets_the_mode(void **state)
{
    struct service_rig *s = *state;
    struct span x = span_of_str("x");

    write_call(s, ARGS("file-write", "f", "", "", ""), x);
    assert_int_equal(answer.done.count, 1);
    assert_int_equal(stat_of(s, "f").st_mode & 07777, 0644);
    assert_int_equal(chmod(service_rig_path(s, "f"), 0640), 0);
    write_call(s, ARGS("file-write", "f", "", "", ""), x);
    assert_int_equal(answer.done.count, 0);
    assert_int_equal(stat_of(s, "f").st_mode & 07777, 0640);
    write_call(s, ARGS("file-write", "f", "4755", "", ""), x);
    assert_int_equal(stat_of(s, "f").st_mode & 07777, 04755);
    if (getuid() == 0) {
        assert_int_equal(chown(service_rig_path(s, "f"), 12345, 54321), 0);
        assert_int_equal(chmod(service_rig_path(s, "f"), 02711), 0);
        write_call(s, ARGS("file-write", "f", "", "", ""), x);
        assert_int_equal(stat_of(s, "f").st_uid, 12345);
        assert_int_equal(stat_of(s, "f").st_gid, 54321);
        assert_int_equal(stat_of(s, "f").st_mode & 07777, 02711);
    }
}

static void test_write_follows_links_and_leaves_others(void **state)
{
    struct service_rig *s = *state;
    struct span x = span_of_str("new");

    assert_int_equal(mkdir(service_rig_path(s, "d"), 0755), 0);
    service_rig_file(s, "d/f", "old");
    assert_int_equal(symlink("d/l2", service_rig_path(s, "l1")), 0);
    assert_int_equal(symlink("f", service_rig_path(s, "d/l2")), 0);
    write_call(s, ARGS("file-write", "l1", "", "", ""), x);
    assert_true(service_rig_file_is(s, "d/f", x));
    assert_true(S_ISLNK(stat_of(s, "l1").st_mode));
    assert_int_equal(symlink("d/missing", service_rig_path(s, "dangling")), 0);
    write_call(s, ARGS("file-write", "dangling", "", "", ""), x);
    assert_true(service_rig_file_is(s, "d/missing", x));
    assert_int_equal(symlink("loop", service_rig_path(s, "loop")), 0);
    service_rig_fails(s, ARGS("file-write", "loop", "", "", ""), ELOOP);
    assert_int_equal(mkfifo(service_rig_path(s, "fifo"), 0600), 0);
    service_rig_fails(s, ARGS("file-write", "fifo", "", "", ""), EEXIST);
    service_rig_fails(s, ARGS("file-write", "d", "", "", ""), EISDIR);
    service_rig_fails(s, ARGS("file-write", "d/", "", "", ""), EISDIR);
    service_rig_fails(s, ARGS("file-write", ".", "", "", ""), EISDIR);
    service_rig_fails(s, ARGS("file-write", "no/f", "", "", ""), ENOENT);
    service_rig_fails(s, ARGS("file-write", "d/f/x", "", "parents", ""), ENOTDIR);
    service_rig_fails(s, ARGS("file-write", "/proc/none", "", "", ""), ENOENT);
}

static size_t entries_of(const struct service_rig *s, const char *name)
{
    _cleanup_closedir_ DIR *dir = opendir(service_rig_path(s, name));
    size_t n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL) {
        n++;
    }
    return n - 2;
}

/* Begins an upload and waits until some of it arrived. */
static uint32_t begin_upload(struct service_rig *s, const char *name)
{
    _cleanup_buf_ struct buf part = buf_make(0);
    uint32_t channel = service_rig_begin(s, ARGS("file-write", name, "", "parents", ""), true);

    fill_random(s, &part, 300000);
    service_rig_feed(s, channel, buf_span(&part), false);
    while (s->rig.channels[channel].stdin_acked < part.n) {
        (void)rig_step(&s->rig, 100);
    }
    return channel;
}

static void wait_until_gone(uint32_t pid)
{
    for (int i = 0; i < 5000 && kill((pid_t)pid, 0) == 0; i++) {
        (void)usleep(1000);
    }
    assert_int_equal(kill((pid_t)pid, 0), -1);
}

/* As in /tmp: a link that somebody else has put there redirects no upload. */
static void test_write_follows_no_planted_link(void **state)
{
    struct service_rig *s = *state;
    const char *link = service_rig_path(s, "shared/link");

    assert_int_equal(mkdir(service_rig_path(s, "shared"), 0700), 0);
    service_rig_file(s, "target", "old");
    assert_int_equal(symlink("../target", link), 0);
    assert_int_equal(lchown(link, 12345, 12345), 0);
    assert_int_equal(chmod(service_rig_path(s, "shared"), 01777), 0);
    service_rig_call(s, ARGS("file-write", "shared/link", "", "", ""), span_of_str("new"), &answer);
    assert_true(answer.has_error);
    assert_int_equal(answer.error.errnum, EACCES);
    assert_true(service_rig_file_is(s, "target", span_of_str("old")));
    /* One's own is followed, and so is one of the directory's owner, and any elsewhere. */
    for (unsigned int i = 0; i < 3; i++) {
        char content[] = {(char)('a' + (int)i), '\0'};

        assert_int_equal(lchown(link, i == 0 ? 0 : 12345, 0), 0);
        assert_int_equal(chown(service_rig_path(s, "shared"), i == 1 ? 12345 : 0, 0), 0);
        assert_int_equal(chmod(service_rig_path(s, "shared"), i == 2 ? 0777 : 01777), 0);
        service_rig_call(s, ARGS("file-write", "shared/link", "", "", ""), span_of_str(content),
                         &answer);
        assert_true(answer.is_done);
        assert_true(service_rig_file_is(s, "target", span_of_str(content)));
    }
}

static void test_a_wrong_size_leaves_nothing(void **state)
{
    struct service_rig *s = *state;

    service_rig_file(s, "f", "old");
    service_rig_call(s, ARGS("file-write", "f", "", "", "4"), span_of_str("new"), &answer);
    assert_int_equal(answer.error.errnum, EPIPE);
    service_rig_call(s, ARGS("file-write", "f", "", "", "2"), span_of_str("new"), &answer);
    assert_int_equal(answer.error.errnum, EPIPE);
    service_rig_call(s, ARGS("file-write", "a/b/c", "", "parents", "2"), span_of_str("new"),
                     &answer);
    assert_int_equal(answer.error.errnum, EPIPE);
    assert_true(service_rig_file_is(s, "f", span_of_str("old")));
    assert_int_equal(entries_of(s, "."), 1);
}

static void test_a_forgotten_upload_is_cut_off(void **state)
{
    struct service_rig *s = *state;
    uint32_t channel;
    uint32_t pid;

    service_rig_file(s, "f", "old");
    channel = begin_upload(s, "f");
    pid = s->rig.channels[channel].pid;
    rig_forget(&s->rig, channel);
    s->rig.channels[channel].started = false;
    wait_until_gone(pid);
    assert_true(service_rig_file_is(s, "f", span_of_str("old")));
    assert_int_equal(entries_of(s, "."), 1);
    assert_true(rig_is_answering(&s->rig, 1000));
}

static void test_hello_ends_all_services(void **state)
{
    struct service_rig *s = *state;
    uint32_t pids[3];

    for (size_t i = 0; i < 3; i++) {
        char name[] = {(char)('a' + i), '\0'};

        pids[i] = s->rig.channels[begin_upload(s, name)].pid;
    }
    rig_shell(&s->rig, 62, "sleep 30", 0, 0);
    rig_until(&s->rig, &s->rig.channels[62].started);
    rig_disconnect(&s->rig);
    rig_connect(&s->rig);
    rig_hello(&s->rig, false);
    for (uint32_t i = 1; i <= 3; i++) {
        assert_false(s->rig.channels[i].reported);
        wait_until_gone(pids[i - 1]);
        s->rig.channels[i].started = false;
    }
    assert_true(s->rig.channels[62].reported);
    assert_int_equal(entries_of(s, "."), 0);
    rig_resume(&s->rig);
    s->last_channel = 0; /* the numbers are free */
    service_rig_call(s, ARGS("file-stat", "."), NO_INPUT, &answer);
    assert_true(answer.is_done);
    assert_int_equal(rig_signal(&s->rig, 62, SIGKILL, AGENT_SCOPE_TREE), 0);
}

static void test_a_service_takes_no_signals_and_has_no_timeout(void **state)
{
    struct service_rig *s = *state;
    uint32_t channel = begin_upload(s, "f");

    assert_int_equal(rig_signal(&s->rig, channel, SIGKILL, AGENT_SCOPE_TREE), EPERM);
    assert_int_equal(rig_signal(&s->rig, channel, SIGTERM, AGENT_SCOPE_GROUP), EPERM);
    assert_int_equal(kill((pid_t)s->rig.channels[channel].pid, 0), 0);
}

static void test_a_killed_upload_says_so(void **state)
{
    struct service_rig *s = *state;
    uint32_t channel = begin_upload(s, "f");

    assert_int_equal(kill((pid_t)s->rig.channels[channel].pid, SIGKILL), 0);
    rig_wait_end(&s->rig, channel);
    assert_int_equal(s->rig.channels[channel].exit.kind, AGENT_EXIT_SIGNAL);
    assert_int_equal(s->rig.channels[channel].output[0].n, 0);
    assert_int_equal(entries_of(s, "."), 0);
}

/* Whether the hidden name of "f" is there after f was written. */
static bool stays(struct service_rig *s)
{
    char name[PATH_HIDDEN_BYTES];
    struct stat st;

    path_hidden_of("f", name);
    write_call(s, ARGS("file-write", "f", "", "", ""), span_of_str("new"));
    assert_true(service_rig_file_is(s, "f", span_of_str("new")));
    return lstat(service_rig_path(s, name), &st) == 0;
}

static void test_what_a_killed_upload_left_goes(void **state)
{
    struct service_rig *s = *state;
    _cleanup_close_ int fd = -1;
    char name[PATH_HIDDEN_BYTES];
    char path[128];

    path_hidden_of("f", name);
    assert_true(path_is_hidden(name));
    (void)snprintf(path, sizeof(path), "%s", service_rig_path(s, name));
    service_rig_file(s, name, "half");
    assert_false(stays(s));
    assert_int_equal(entries_of(s, "."), 1);
    /* Now there is something to replace. */
    service_rig_file(s, name, "half");
    assert_false(stays(s));
    assert_int_equal(entries_of(s, "."), 1);
    /* In use. */
    service_rig_file(s, name, "half");
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    assert_true(stays(s));
    assert_int_equal(entries_of(s, "."), 2);
    assert_int_equal(flock(fd, LOCK_UN), 0);
    /* With a second name it is somebody's file. */
    assert_int_equal(link(path, service_rig_path(s, "second")), 0);
    assert_true(stays(s));
    assert_int_equal(unlink(path), 0);
    /* What is no plain file is none of ours. */
    assert_int_equal(symlink("second", path), 0);
    assert_true(stays(s));
    assert_true(service_rig_file_is(s, "second", span_of_str("half")));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_true(stays(s));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_true(stays(s));
    assert_int_equal(entries_of(s, "."), 3);
    if (getuid() == 0) {
        assert_int_equal(rmdir(path), 0);
        service_rig_file(s, name, "half");
        assert_int_equal(chown(path, 12345, 12345), 0);
        assert_true(stays(s));
    }
}

/* With a mount namespace of its own, for those who may have one. */
static int private_set_up(void **state)
{
    if (unshare(CLONE_NEWNS) == 0) {
        (void)mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    }
    return service_rig_set_up(state);
}

/* No room: the error comes while the host still sends. */
static void test_a_full_disk_leaves_the_old_file(void **state)
{
    struct service_rig *s = *state;
    _cleanup_buf_ struct buf content = buf_make(0);
    const char *small = service_rig_path(s, "small");

    assert_int_equal(mkdir(small, 0755), 0);
    if (mount("small", small, "tmpfs", 0, "size=1m") < 0) {
        skip();
    }
    service_rig_file(s, "small/f", "old");
    fill_random(s, &content, 4000000);
    service_rig_call(s, ARGS("file-write", "small/f", "", "", ""), buf_span(&content), &answer);
    assert_int_equal(answer.error.errnum, ENOSPC);
    service_rig_call(s, ARGS("file-write", "small/sub/f", "", "parents", ""), buf_span(&content),
                     &answer);
    assert_int_equal(answer.error.errnum, ENOSPC);
    assert_true(service_rig_file_is(s, "small/f", span_of_str("old")));
    assert_int_equal(entries_of(s, "small"), 1);
    assert_int_equal(umount2(small, MNT_DETACH), 0);
}

static void moved(struct service_rig *s, const char *from, const char *to, const char *flag)
{
    service_rig_call(s, ARGS("file-move", from, to, flag), NO_INPUT, &answer);
    assert_false(answer.has_error);
    assert_true(span_equals_str(answer.entries[0].path, service_rig_path(s, to)));
}

/* Copied where rename() does not reach; old and new name are never without the file. */
static void test_move_to_another_filesystem(void **state)
{
    struct service_rig *s = *state;
    _cleanup_buf_ struct buf content = buf_make(0);
    const struct timespec times[2] = {{.tv_sec = 1000000, .tv_nsec = 7}, {.tv_sec = 2000000}};
    char other[128];

    (void)snprintf(other, sizeof(other), "%s", service_rig_path(s, "other"));
    assert_int_equal(mkdir(other, 0755), 0);
    if (mount("other", other, "tmpfs", 0, "size=4m") < 0) {
        skip();
    }
    fill_random(s, &content, 1000001);
    memset(&content.p[300000], 0, 500000);
    write_call(s, ARGS("file-write", "f", "4750", "", ""), buf_span(&content));
    assert_int_equal(chown(service_rig_path(s, "f"), 12345, 54321), 0);
    assert_int_equal(chmod(service_rig_path(s, "f"), 04750), 0);
    assert_int_equal(utimensat(AT_FDCWD, service_rig_path(s, "f"), times, 0), 0);
    moved(s, "f", "other/g", "");
    assert_true(service_rig_file_is(s, "other/g", buf_span(&content)));
    assert_int_equal(stat_of(s, "other/g").st_mode & 07777, 04750);
    assert_int_equal(stat_of(s, "other/g").st_uid, 12345);
    assert_int_equal(stat_of(s, "other/g").st_mtim.tv_sec, 2000000);
    assert_true(stat_of(s, "other/g").st_blocks < 1200);
    assert_int_equal(entries_of(s, "."), 1);
    service_rig_file(s, "f", "new");
    service_rig_fails(s, ARGS("file-move", "f", "other/g", ""), EEXIST);
    service_rig_fails(s, ARGS("file-move", "f", "other/none/g", "replace"), ENOENT);
    service_rig_fails(s, ARGS("file-move", "f", "other/g/", "replace"), ENOTDIR);
    assert_true(service_rig_file_is(s, "other/g", buf_span(&content)));
    moved(s, "f", "other/g", "replace");
    assert_true(service_rig_file_is(s, "other/g", span_of_str("new")));
    moved(s, "other/g", "f", "");
    assert_int_equal(entries_of(s, "other"), 0);
    /* A link goes as it is, and what it leads to stays. */
    assert_int_equal(symlink("f", service_rig_path(s, "l")), 0);
    moved(s, "l", "other/l", "");
    assert_int_equal(answer.entries[0].type, SERVICE_ENTRY_SYMLINK);
    assert_int_equal(symlink("elsewhere", service_rig_path(s, "l")), 0);
    moved(s, "l", "other/l", "replace");
    assert_true(span_equals_str(answer.entries[0].symlink_target, "elsewhere"));
    assert_true(service_rig_file_is(s, "f", span_of_str("new")));
    assert_int_equal(entries_of(s, "other"), 1);
    /* What is not moved so. */
    assert_int_equal(mkdir(service_rig_path(s, "d"), 0755), 0);
    service_rig_fails(s, ARGS("file-move", "d", "other/d", ""), EXDEV);
    service_rig_fails(s, ARGS("file-move", "f", "other", "replace"), EISDIR);
    assert_int_equal(mkdir(service_rig_path(s, "other/d"), 0755), 0);
    service_rig_fails(s, ARGS("file-move", "f", "other/d", "replace"), EISDIR);
    /* No room. */
    buf_clear(&content);
    fill_random(s, &content, 5000000);
    write_call(s, ARGS("file-write", "f", "", "", ""), buf_span(&content));
    service_rig_fails(s, ARGS("file-move", "f", "other/f", ""), ENOSPC);
    assert_true(service_rig_file_is(s, "f", buf_span(&content)));
    assert_int_equal(entries_of(s, "other"), 2);
    assert_int_equal(umount2(other, MNT_DETACH), 0);
}

static void test_a_cut_download_says_so(void **state)
{
    struct service_rig *s = *state;
    uint32_t channel;

    service_rig_file(s, "f", "x");
    assert_int_equal(truncate(service_rig_path(s, "f"), 40000000), 0);
    s->rig.ack = false;
    channel = service_rig_begin(s, ARGS("file-read", "f", ""), false);
    while (s->rig.channels[channel].output[0].n < AGENT_WINDOW) {
        (void)rig_step(&s->rig, 100);
    }
    assert_int_equal(truncate(service_rig_path(s, "f"), 1), 0);
    s->rig.ack = true;
    rig_acknowledge(&s->rig, channel, AGENT_STDOUT, s->rig.channels[channel].output[0].n);
    rig_wait_end(&s->rig, channel);
    assert_int_equal(s->rig.channels[channel].exit.status, 1);
}

static void test_services_are_limited(void **state)
{
    struct service_rig *s = *state;
    _cleanup_buf_ struct buf b = buf_make(0);
    _cleanup_buf_ struct buf raw = buf_make(0);
    struct agent_start m = {.flags = AGENT_START_SERVICE | AGENT_START_STDIN};

    buf_put_block(&raw, span_of_str("file-write"));
    buf_put_block(&raw, span_of_str(service_rig_path(s, "f")));
    for (int i = 0; i < 3; i++) {
        buf_put_block(&raw, span_of_str(""));
    }
    m.argv = (struct agent_strings){5, buf_span(&raw)};
    for (uint32_t i = 0; i < AGENT_SERVICES_MAX; i++) {
        /* Started and not looked at: those beyond the rig's channels are forgotten by hello. */
        agent_start_format(&b, i < 1 ? 1 : RIG_CHANNELS + i, &m);
    }
    s->rig.ignore_others = true;
    rig_send(&s->rig, &b);
    buf_clear(&b);
    agent_start_format(&b, 2, &m);
    rig_send(&s->rig, &b);
    for (int i = 0; i < 600 && !s->rig.channels[2].failed; i++) {
        (void)rig_step(&s->rig, 100); /* hundreds of forks may take their time */
    }
    assert_int_equal(s->rig.channels[2].failure.errnum, EAGAIN);
    rig_hello(&s->rig, false);
    s->rig.channels[1].started = false;
    for (int i = 0; i < 5000 && !answer.is_done; i++) {
        uint32_t channel = service_rig_begin(s, ARGS("file-stat", "."), false);
        struct rig_channel *c = &s->rig.channels[channel];

        while (!c->failed && !c->ended) {
            (void)rig_step(&s->rig, 100);
        }
        service_rig_read(s, channel, &answer);
    }
    assert_true(answer.is_done);
}

int main(void)
{
#define SERVICE_TEST(f)                                                                            \
    cmocka_unit_test_setup_teardown(f, service_rig_set_up, service_rig_tear_down)
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_read_ranges),
        SERVICE_TEST(test_read_only_regular_files),
        SERVICE_TEST(test_files_of_sysfs_have_no_size),
        SERVICE_TEST(test_a_file_that_grows_has_one_size),
        SERVICE_TEST(test_write_and_read_much),
        SERVICE_TEST(test_zeros_become_holes),
        SERVICE_TEST(test_write_keeps_or_sets_the_mode),
        SERVICE_TEST(test_write_follows_links_and_leaves_others),
        SERVICE_TEST(test_write_follows_no_planted_link),
        SERVICE_TEST(test_a_wrong_size_leaves_nothing),
        SERVICE_TEST(test_a_forgotten_upload_is_cut_off),
        SERVICE_TEST(test_hello_ends_all_services),
        SERVICE_TEST(test_a_service_takes_no_signals_and_has_no_timeout),
        SERVICE_TEST(test_a_killed_upload_says_so),
        SERVICE_TEST(test_what_a_killed_upload_left_goes),
        cmocka_unit_test_setup_teardown(test_a_full_disk_leaves_the_old_file, private_set_up,
                                        service_rig_tear_down),
        cmocka_unit_test_setup_teardown(test_move_to_another_filesystem, private_set_up,
                                        service_rig_tear_down),
        SERVICE_TEST(test_a_cut_download_says_so),
        SERVICE_TEST(test_services_are_limited),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
