/* Services while somebody in the guest exchanges a directory with a symbolic link under them, all
 * the time: what they are told to keep to a tree stays in it.
 *
 * tree/swap (a directory) and tree/link (a link to victim) change places by RENAME_EXCHANGE, so
 * both names are always there. Nothing in victim may change, and nothing of it may be told, but for
 * a path of the caller's own that leads there. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/fd.h"
#include "guest/service_rig.h"
#include "wire/tar.h"

#define ROUNDS      40U
#define INSIDE      "of the tree"
#define SECRET      "of the victim"
#define SECRET_NAME "the-victims-own"

static struct answer answer;

/* What may not change in victim: it, and all that is in it. */
struct victim {
    struct stat of[3];
};

struct race {
    struct service_rig *s;
    pid_t swapper;
    atomic_uint *swaps; /* shared with the swapper */
    struct victim before;
};

#define VICTIM_SECRET "victim/" SECRET_NAME

static const char *const victims[] = {"victim", "victim/f", VICTIM_SECRET};

static void look_at_victim(const struct service_rig *s, struct victim *ret)
{
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(lstat(service_rig_path(s, victims[i]), &ret->of[i]), 0);
    }
}

/* Nothing was written, removed, added, or given other attributes: each shows in a change time. */
static void check_victim(const struct race *race)
{
    struct victim now;

    look_at_victim(race->s, &now);
    for (size_t i = 0; i < 3; i++) {
        const struct stat *a = &race->before.of[i];
        const struct stat *b = &now.of[i];

        assert_int_equal(a->st_ino, b->st_ino);
        assert_int_equal(a->st_mode, b->st_mode);
        assert_int_equal(a->st_uid, b->st_uid);
        assert_int_equal(a->st_size, b->st_size);
        assert_int_equal(a->st_ctim.tv_sec, b->st_ctim.tv_sec);
        assert_int_equal(a->st_ctim.tv_nsec, b->st_ctim.tv_nsec);
    }
}

/* The directory of tree/swap and tree/link, whichever of the two it is; -1: neither is, or it
 * changed each time. */
static int open_directory(const struct service_rig *s)
{
    int fd = -1;

    for (int i = 0; fd < 0 && i < 1000; i++) {
        fd = open(service_rig_path(s, i % 2 == 0 ? "tree/swap" : "tree/link"),
                  O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
    return fd;
}

/* What the swapper may find in the middle of being removed is made again. */
static void make_tree(const struct service_rig *s, const char *target)
{
    (void)mkdir(service_rig_path(s, "tree"), 0755);
    (void)mkdir(service_rig_path(s, "tree/swap"), 0755);
    (void)symlink(target, service_rig_path(s, "tree/link"));
    for (unsigned int i = 0; i < 8; i++) {
        char name[32];
        int fd;

        /* Through the directory, whichever name it has: O_NOFOLLOW and the exchange make it so. */
        (void)snprintf(name, sizeof(name), "f%u", i);
        fd = open_directory(s);
        if (fd >= 0) {
            int file = openat(fd, i == 0 ? "f" : name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

            (void)!write(file, INSIDE, strlen(INSIDE));
            (void)close(file);
            (void)close(fd);
        }
    }
}

static void start(struct race *race, struct service_rig *s, const char *target)
{
    char a[128];
    char b[128];

    *race = (struct race){.s = s};
    race->swaps =
        mmap(NULL, sizeof(*race->swaps), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(race->swaps, MAP_FAILED);
    assert_int_equal(mkdir(service_rig_path(s, "victim"), 0755), 0);
    service_rig_file(s, "victim/f", SECRET);
    service_rig_file(s, "victim/" SECRET_NAME, SECRET);
    make_tree(s, target);
    look_at_victim(s, &race->before);
    (void)snprintf(a, sizeof(a), "%s/tree/swap", s->directory);
    (void)snprintf(b, sizeof(b), "%s/tree/link", s->directory);
    race->swapper = fork();
    assert_true(race->swapper >= 0);
    if (race->swapper == 0) { /* ends with the test, however that ends */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)alarm(300);
    }
    while (race->swapper == 0) {
        if (renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0) {
            atomic_fetch_add(race->swaps, 1);
        }
    }
}

static void stop(struct race *race)
{
    unsigned int swaps = atomic_load(race->swaps);

    assert_int_equal(kill(race->swapper, SIGKILL), 0);
    assert_int_equal(waitpid(race->swapper, NULL, 0), race->swapper);
    assert_int_equal(munmap(race->swaps, sizeof(*race->swaps)), 0);
    assert_true(swaps > ROUNDS);
    check_victim(race);
}

/* A round of the race's own: at least one exchange since the last. */
static void wait_for_swap(const struct race *race, unsigned int *seen)
{
    for (int i = 0; atomic_load(race->swaps) == *seen && i < 100000; i++) {
        (void)usleep(10);
    }
    *seen = atomic_load(race->swaps);
}

/* Calls it again and again, with links of both kinds; the answers may be errors. */
static void
run_race(struct service_rig *s, const char *const *argv, struct span input, const char *marks)
{
    char absolute[128];

    (void)snprintf(absolute, sizeof(absolute), "%s/victim", s->directory);
    for (size_t kind = 0; kind < 2; kind++) {
        const char *target = kind == 0 ? "../victim" : absolute;
        unsigned int seen = 0;
        struct race race;

        start(&race, s, target);
        for (unsigned int i = 0; i < ROUNDS; i++) {
            wait_for_swap(&race, &seen);
            service_rig_call(s, argv, input, &answer);
            for (size_t k = 0; marks != NULL && k < answer.n_entries; k++) {
                assert_null(memmem(answer.entries[k].path.p, answer.entries[k].path.n, marks,
                                   strlen(marks)));
            }
            if (answer.bytes.n > 0) {
                assert_null(memmem(answer.bytes.p, answer.bytes.n, SECRET, strlen(SECRET)));
            }
            check_victim(&race);
            make_tree(s, target);
        }
        stop(&race);
        assert_int_equal(dir_remove_tree(AT_FDCWD, service_rig_path(s, "tree")), 0);
        assert_int_equal(dir_remove_tree(AT_FDCWD, service_rig_path(s, "victim")), 0);
    }
}

static void test_delete(void **state)
{
    run_race(*state, ARGS("file-delete", "tree", "recursive"), NO_INPUT, NULL);
}

static void test_set_mode(void **state)
{
    run_race(*state, ARGS("file-set-mode", "tree", "0700", "recursive"), NO_INPUT, NULL);
}

static void test_set_owner(void **state)
{
    if (getuid() != 0) {
        skip();
    }
    run_race(*state, ARGS("file-set-owner", "tree", "12345", "recursive"), NO_INPUT, NULL);
}

static void test_list(void **state)
{
    run_race(*state, ARGS("file-list", "tree", "8", "1000", ""), NO_INPUT, SECRET_NAME);
}

static void test_archive_out(void **state)
{
    run_race(*state, ARGS("tar-read", "tree"), NO_INPUT, NULL);
}

static void put_entry(struct buf *b, struct tar_entry e, const char *content)
{
    e.size_bytes = strlen(content);
    tar_entry_format(b, &e);
    buf_put_str(b, content);
    for (size_t n = tar_padding(e.size_bytes); n > 0; n--) {
        buf_put_u8(b, 0);
    }
}

#define ENTRY(t, path, m) ((struct tar_entry){.type = (t), .name = span_of_str(path), .mode = (m)})

static void test_archive_in(void **state)
{
    _cleanup_buf_ struct buf archive = buf_make(0);
    struct tar_entry hard = ENTRY(TAR_HARD_LINK, "swap/hard", 0644);

    hard.target = span_of_str("swap/f");
    put_entry(&archive, ENTRY(TAR_DIRECTORY, "swap", 0711), "");
    put_entry(&archive, ENTRY(TAR_FILE, "swap/f", 0600), "new");
    put_entry(&archive, ENTRY(TAR_FILE, "swap/more/g", 0600), "new");
    put_entry(&archive, hard, "");
    put_entry(&archive, ENTRY(TAR_FILE, "link/f", 0600), "new");
    for (unsigned int i = 0; i < 2 * TAR_BLOCK_BYTES; i++) {
        buf_put_u8(&archive, 0);
    }
    run_race(*state, ARGS("tar-write", "tree"), buf_span(&archive), NULL);
}

/* Whether a directory holds a whole upload or none, and nothing half-made. */
static bool
has_whole_upload(const struct service_rig *s, const char *directory, const char *content)
{
    _cleanup_closedir_ DIR *dir = opendir(service_rig_path(s, directory));
    const struct dirent *entry;
    bool found = false;
    char name[300];

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        assert_int_not_equal(strncmp(entry->d_name, ".space-", 7), 0);
        if (strcmp(entry->d_name, "up") == 0) {
            (void)snprintf(name, sizeof(name), "%s/up", directory);
            assert_true(service_rig_file_is(s, name, span_of_str(content)));
            found = true;
        }
    }
    return found;
}

/* The path of an upload or a download may lead over a link, and the kernel judges what the user may
 * do there. Here: all of it happens in the one directory that the path led to at first. */
static void test_content(void **state)
{
    static const char upload[] = "an upload";
    struct service_rig *s = *state;
    unsigned int seen = 0;
    bool real = false;
    bool linked = false;
    struct race race;

    start(&race, s, "../victim");
    for (unsigned int i = 0; (i < ROUNDS || !real || !linked) && i < 50 * ROUNDS; i++) {
        wait_for_swap(&race, &seen);
        service_rig_call(s, ARGS("file-write", "tree/swap/up", "", "", ""), span_of_str(upload),
                         &answer);
        assert_true(answer.is_done);
        service_rig_call(s, ARGS("file-read", "tree/swap/f", ""), NO_INPUT, &answer);
        assert_true(span_equals_str(answer.bytes, INSIDE) || span_equals_str(answer.bytes, SECRET));
        linked = has_whole_upload(s, "victim", upload);
        real = real || span_equals_str(answer.bytes, INSIDE);
    }
    assert_true(real && linked);
    look_at_victim(s, &race.before); /* it was written to, through the link */
    stop(&race);
    /* The exchange is over: whichever name is the directory. */
    real = has_whole_upload(s, "tree/swap", upload) && has_whole_upload(s, "tree/link", upload);
    assert_true(real);
}

static bool tree_has_file(const struct service_rig *s)
{
    _cleanup_close_ int fd = open_directory(s);
    struct stat st;

    assert_true(fd >= 0);
    return fstatat(fd, "f", &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* The path of what is moved may lead over a link, as that of a download: what was taken is gone
 * there, and there alone. */
static void race_move(struct service_rig *s, const char *to)
{
    unsigned int seen = 0;
    bool real = false;
    bool linked = false;
    struct race race;

    start(&race, s, "../victim");
    for (unsigned int i = 0; (i < ROUNDS || !real || !linked) && i < 50 * ROUNDS; i++) {
        bool is_inside;

        wait_for_swap(&race, &seen);
        service_rig_call(s, ARGS("file-move", "tree/swap/f", to, "replace"), NO_INPUT, &answer);
        assert_false(answer.has_error);
        is_inside = service_rig_file_is(s, to, span_of_str(INSIDE));
        assert_int_equal(tree_has_file(s), !is_inside);
        if (is_inside) {
            real = true;
            make_tree(s, "../victim");
            assert_true(tree_has_file(s));
        } else {
            linked = true;
            assert_true(service_rig_file_is(s, to, span_of_str(SECRET)));
            assert_int_equal(access(service_rig_path(s, "victim/f"), F_OK), -1);
            service_rig_file(s, "victim/f", SECRET);
            look_at_victim(s, &race.before);
        }
        check_victim(&race);
    }
    assert_true(real && linked);
    stop(&race);
}

static void test_move(void **state)
{
    race_move(*state, "moved");
}

static void test_move_to_another_filesystem(void **state)
{
    struct service_rig *s = *state;
    char other[128];

    (void)snprintf(other, sizeof(other), "%s", service_rig_path(s, "other"));
    assert_int_equal(mkdir(other, 0755), 0);
    if (mount("other", other, "tmpfs", 0, "size=4m") < 0) {
        skip();
    }
    race_move(s, "other/moved");
    assert_int_equal(umount2(other, MNT_DETACH), 0);
}

/* The name itself is a directory or a link: either is moved as it is. */
static void test_move_of_the_name(void **state)
{
    struct service_rig *s = *state;
    unsigned int seen = 0;
    bool directory = false;
    bool link = false;
    struct race race;

    start(&race, s, "../victim");
    for (unsigned int i = 0; (i < ROUNDS || !directory || !link) && i < 50 * ROUNDS; i++) {
        struct stat st;

        wait_for_swap(&race, &seen);
        service_rig_call(s, ARGS("file-move", "tree/swap", "tree/away", ""), NO_INPUT, &answer);
        assert_false(answer.has_error);
        assert_int_equal(lstat(service_rig_path(s, "tree/away"), &st), 0);
        directory = directory || S_ISDIR(st.st_mode);
        link = link || S_ISLNK(st.st_mode);
        assert_int_equal(rename(service_rig_path(s, "tree/away"), service_rig_path(s, "tree/swap")),
                         0);
        check_victim(&race);
    }
    assert_true(directory && link);
    stop(&race);
}

int main(void)
{
#define SERVICE_TEST(f)                                                                            \
    cmocka_unit_test_setup_teardown(f, service_rig_set_up, service_rig_tear_down)
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_delete),
        SERVICE_TEST(test_set_mode),
        SERVICE_TEST(test_set_owner),
        SERVICE_TEST(test_list),
        SERVICE_TEST(test_archive_out),
        SERVICE_TEST(test_archive_in),
        SERVICE_TEST(test_content),
        SERVICE_TEST(test_move),
        SERVICE_TEST(test_move_to_another_filesystem),
        SERVICE_TEST(test_move_of_the_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
