/* Unpacking what a hostile guest may send: whatever the archive says, nothing outside of the top
 * changes. */
#include "cli/unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <sys/stat.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"
#include "cli/pack.h"

#define ROOM 262144

struct fixture {
    char base[64];
    int base_fd;
    int top_fd;
    struct archive *writer;
    uint8_t bytes[ROOM];
    size_t used;
    struct unpack unpack;
    struct error err;
};

static void write_text(int dir_fd, const char *name, const char *text, mode_t mode)
{
    assert_int_equal(file_write_atomic(dir_fd, name, span_of_str(text), mode, false), 0);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    if (f == NULL) {
        return -1;
    }
    (void)snprintf(f->base, sizeof(f->base), "/tmp/unpack-test-XXXXXX");
    if (mkdtemp(f->base) == NULL) {
        free(f);
        return -1;
    }
    f->base_fd = open(f->base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    write_text(f->base_fd, "secret", "outside", 0600);
    assert_int_equal(mkdirat(f->base_fd, "elsewhere", 0755), 0);
    assert_int_equal(mkdirat(f->base_fd, "top", 0755), 0);
    f->top_fd = openat(f->base_fd, "top", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    f->writer = archive_write_new();
    assert_int_equal(archive_write_set_format_pax(f->writer), ARCHIVE_OK);
    assert_int_equal(archive_write_open_memory(f->writer, f->bytes, ROOM, &f->used), ARCHIVE_OK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    int r;

    (void)archive_write_free(f->writer);
    (void)close(f->top_fd);
    (void)close(f->base_fd);
    r = dir_remove_tree(AT_FDCWD, f->base);
    free(f);
    return r;
}

struct item {
    const char *name;
    unsigned int type;
    unsigned int mode;
    const char *text; /* content, or the target of a link */
    bool is_hardlink;
};

static void add(struct fixture *f, const struct item *item)
{
    struct archive_entry *e = archive_entry_new();

    archive_entry_set_pathname(e, item->name);
    archive_entry_set_filetype(e, item->type);
    archive_entry_set_perm(e, (mode_t)item->mode);
    archive_entry_set_mtime(e, 1000000000, 5);
    if (item->is_hardlink) {
        archive_entry_set_hardlink(e, item->text);
    } else if (item->type == AE_IFLNK) {
        archive_entry_set_symlink(e, item->text);
    } else if (item->type == AE_IFREG) {
        archive_entry_set_size(e, (int64_t)strlen(item->text));
    }
    assert_int_equal(archive_write_header(f->writer, e), ARCHIVE_OK);
    if (item->type == AE_IFREG && !item->is_hardlink) {
        assert_true(archive_write_data(f->writer, item->text, strlen(item->text)) >= 0);
    }
    archive_entry_free(e);
}

static void add_file(struct fixture *f, const char *name, const char *text)
{
    add(f, &(struct item){.name = name, .type = AE_IFREG, .mode = 0644, .text = text});
}

static void add_link(struct fixture *f, const char *name, const char *target)
{
    add(f, &(struct item){.name = name, .type = AE_IFLNK, .mode = 0777, .text = target});
}

static void add_hardlink(struct fixture *f, const char *name, const char *target)
{
    add(f, &(struct item){
               .name = name, .type = AE_IFREG, .mode = 0644, .text = target, .is_hardlink = true});
}

static void add_directory(struct fixture *f, const char *name, unsigned int mode)
{
    add(f, &(struct item){.name = name, .type = AE_IFDIR, .mode = mode});
}

static int unpack(struct fixture *f)
{
    struct archive *reader = unpack_new_reader();
    int r;

    assert_int_equal(archive_write_close(f->writer), ARCHIVE_OK);
    assert_int_equal(archive_read_open_memory(reader, f->bytes, f->used), ARCHIVE_OK);
    f->unpack.top_fd = f->top_fd;
    r = unpack_all(&f->unpack, reader, &f->err);
    (void)archive_read_free(reader);
    return r;
}

static void assert_text(int dir_fd, const char *name, const char *want)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    assert_int_equal(file_read(dir_fd, name, ROOM, &text), 0);
    assert_string_equal(buf_str(&text), want);
}

/* Nothing but what setup made lies beside the top, and it is as it was. */
static void assert_outside_is_untouched(const struct fixture *f)
{
    _cleanup_closedir_ DIR *dir = opendir(f->base);
    _cleanup_closedir_ DIR *elsewhere = NULL;
    const struct dirent *entry;
    int count = 0;
    char path[128];

    while ((entry = readdir(dir)) != NULL) {
        count++;
    }
    assert_int_equal(count, 5); /* . .. secret elsewhere top */
    assert_text(f->base_fd, "secret", "outside");
    (void)snprintf(path, sizeof(path), "%s/elsewhere", f->base);
    elsewhere = opendir(path);
    count = 0;
    while ((entry = readdir(elsewhere)) != NULL) {
        count++;
    }
    assert_int_equal(count, 2);
}

/* No temporary name is left in the top. */
static int count_top(const struct fixture *f)
{
    char path[128];
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    int count = 0;

    (void)snprintf(path, sizeof(path), "%s/top", f->base);
    dir = opendir(path);
    while ((entry = readdir(dir)) != NULL) {
        assert_true(strncmp(entry->d_name, ".space-", 7) != 0);
        count++;
    }
    return count - 2;
}

static void test_a_tree_comes_out_as_it_went_in(void **state)
{
    struct fixture *f = *state;
    struct stat st;
    char target[64] = "";

    add_directory(f, "./", 0755);
    add_directory(f, "d/", 0555);
    add_file(f, "d/a", "content");
    add(f, &(struct item){.name = "d/run", .type = AE_IFREG, .mode = 06755, .text = "x"});
    add_link(f, "d/link", "../../secret");
    add_hardlink(f, "d/hard", "d/a");
    add_directory(f, "d/empty", 01777);
    add_file(f, "z/without/parents", "made");
    assert_int_equal(unpack(f), 0);
    assert_text(f->top_fd, "d/a", "content");
    assert_text(f->top_fd, "d/hard", "content");
    assert_text(f->top_fd, "z/without/parents", "made");
    assert_int_equal(fstatat(f->top_fd, "d/run", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0755); /* no set-user-id, no set-group-id */
    assert_int_equal(st.st_mtim.tv_sec, 1000000000);
    assert_int_equal(fstatat(f->top_fd, "d", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0555);
    assert_int_equal(st.st_mtim.tv_sec, 1000000000);
    assert_int_equal(fstatat(f->top_fd, "d/empty", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0777);
    assert_true(readlinkat(f->top_fd, "d/link", target, sizeof(target) - 1) > 0);
    assert_string_equal(target, "../../secret");
    assert_int_equal(f->unpack.count.files, 5);
    assert_int_equal(fchmodat(f->top_fd, "d", 0755, 0), 0);
    assert_int_equal(count_top(f), 2);
    assert_outside_is_untouched(f);
}

static void test_names_that_lead_out_are_refused(void **state)
{
    static const char *const names[] = {"/tmp/x", "../x", "a/../../x", "..", "a/..", "//x"};
    struct fixture *f = *state;

    add_file(f, names[f->unpack.count.files % 6], "x"); /* each in a run of its own, below */
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char checked[COPY_NAME_SIZE];

        assert_int_equal(copy_name_check(names[i], checked), -EPERM);
    }
    assert_int_equal(unpack(f), -EPERM);
    assert_int_equal(count_top(f), 0);
    assert_outside_is_untouched(f);
}

static void test_a_link_is_not_walked_through(void **state)
{
    struct fixture *f = *state;

    add_link(f, "out", "../elsewhere");
    add_file(f, "out/planted", "x");
    assert_int_equal(unpack(f), -ELOOP);
    assert_non_null(strstr(f->err.message, "out/planted"));
    assert_outside_is_untouched(f);
}

static void test_a_link_is_no_directory(void **state)
{
    struct fixture *f = *state;

    add_link(f, "out", "../elsewhere");
    add_directory(f, "out", 0777);
    add_file(f, "out/planted", "x");
    assert_int_equal(unpack(f), -ENOTDIR);
    assert_outside_is_untouched(f);
}

static void test_a_link_that_was_there_is_replaced_and_not_followed(void **state)
{
    struct fixture *f = *state;
    struct stat st;

    assert_int_equal(symlinkat("../secret", f->top_fd, "file"), 0);
    add_file(f, "file", "new");
    assert_int_equal(unpack(f), 0);
    assert_text(f->top_fd, "file", "new");
    assert_int_equal(fstatat(f->top_fd, "file", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_true(S_ISREG(st.st_mode));
    assert_outside_is_untouched(f);
}

static void test_a_link_made_by_the_archive_is_replaced_too(void **state)
{
    struct fixture *f = *state;

    add_link(f, "file", "../secret");
    add_file(f, "file", "new");
    assert_int_equal(unpack(f), 0);
    assert_text(f->top_fd, "file", "new");
    assert_outside_is_untouched(f);
}

static void test_hard_links_lead_only_to_what_came_along(void **state)
{
    struct fixture *f = *state;

    write_text(f->top_fd, "mine", "of the user", 0644);
    add_hardlink(f, "theirs", "mine");
    assert_int_equal(unpack(f), -EPERM);
    assert_int_equal(count_top(f), 1);
    assert_outside_is_untouched(f);
}

static void test_hard_links_do_not_lead_out(void **state)
{
    struct fixture *f = *state;

    add_hardlink(f, "x", "../secret");
    assert_int_equal(unpack(f), -EPERM);
    assert_outside_is_untouched(f);
}

static void test_hard_links_to_links_are_refused(void **state)
{
    struct fixture *f = *state;

    add_link(f, "link", "../secret");
    add_hardlink(f, "x", "link");
    add_file(f, "x", "overwritten");
    assert_int_equal(unpack(f), -EPERM);
    assert_outside_is_untouched(f);
}

static void test_special_files_are_left_out(void **state)
{
    struct fixture *f = *state;

    add(f, &(struct item){.name = "pipe", .type = AE_IFIFO, .mode = 0666});
    add(f, &(struct item){.name = "disk", .type = AE_IFBLK, .mode = 0666});
    add(f, &(struct item){.name = "null", .type = AE_IFCHR, .mode = 0666});
    add_file(f, "after", "x");
    assert_int_equal(unpack(f), 0);
    assert_int_equal(count_top(f), 1);
    assert_int_equal(f->unpack.count.left_out, 3);
    assert_string_equal(f->unpack.count.first_left_out, "pipe");
}

static void test_a_directory_is_not_replaced(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(mkdirat(f->top_fd, "d", 0755), 0);
    add_link(f, "d", "../elsewhere");
    assert_int_equal(unpack(f), -EISDIR);
    assert_int_equal(count_top(f), 1);
    assert_outside_is_untouched(f);
}

static void test_the_top_is_a_directory(void **state)
{
    struct fixture *f = *state;

    add_link(f, ".", "../elsewhere");
    assert_int_equal(unpack(f), -EPERM);
    assert_outside_is_untouched(f);
}

static void test_a_cut_archive_is_an_error_and_leaves_no_half_file(void **state)
{
    struct fixture *f = *state;
    char *big = calloc(1, 100001);

    assert_non_null(big);
    memset(big, 'x', 100000);
    add_file(f, "whole", "x");
    add_file(f, "half", big);
    free(big);
    assert_int_equal(archive_write_close(f->writer), ARCHIVE_OK);
    f->used = 40000;
    {
        struct archive *reader = unpack_new_reader();

        assert_int_equal(archive_read_open_memory(reader, f->bytes, f->used), ARCHIVE_OK);
        f->unpack.top_fd = f->top_fd;
        assert_int_equal(unpack_all(&f->unpack, reader, &f->err), -EBADMSG);
        (void)archive_read_free(reader);
    }
    assert_int_equal(count_top(f), 1);
}

static int stop_at_once(void *arg, const struct unpack_count *count)
{
    (void)arg;
    (void)count;
    return -EINTR;
}

static void test_it_can_be_stopped(void **state)
{
    struct fixture *f = *state;

    add_file(f, "a", "x");
    add_file(f, "b", "x");
    f->unpack.on_progress = stop_at_once;
    assert_int_equal(unpack(f), -EINTR);
    assert_int_equal(count_top(f), 1);
}

/* What pack makes, unpack takes. */
static void test_pack_and_unpack(void **state)
{
    struct fixture *f = *state;
    _cleanup_pack_ struct pack *p = NULL;
    struct archive *reader = unpack_new_reader();
    char path[128];
    size_t used = 0;
    ssize_t n;

    assert_int_equal(mkdirat(f->base_fd, "elsewhere/sub", 0700), 0);
    write_text(f->base_fd, "elsewhere/sub/a\nb", "odd", 0640);
    write_text(f->base_fd, "elsewhere/sub/\xc3\xa4", "utf-8", 0600);
    assert_int_equal(symlinkat("nowhere", f->base_fd, "elsewhere/dangling"), 0);
    assert_int_equal(mkfifoat(f->base_fd, "elsewhere/pipe", 0600), 0);
    (void)snprintf(path, sizeof(path), "%s/elsewhere", f->base);
    assert_int_equal(pack_new(path, "as", &p, &f->err), 0);
    while ((n = pack_read(p, &f->bytes[used], 1000, &f->err)) > 0) {
        used += (size_t)n;
    }
    assert_int_equal(n, 0);
    assert_int_equal(pack_get_count(p)->left_out, 1);
    assert_string_equal(pack_get_count(p)->first_left_out, "as/pipe");
    assert_int_equal(archive_read_open_memory(reader, f->bytes, used), ARCHIVE_OK);
    f->unpack.top_fd = f->top_fd;
    assert_int_equal(unpack_all(&f->unpack, reader, &f->err), 0);
    (void)archive_read_free(reader);
    assert_text(f->top_fd, "as/sub/a\nb", "odd");
    assert_text(f->top_fd, "as/sub/\xc3\xa4", "utf-8");
    assert_int_equal(f->unpack.count.left_out, 0);
}

static void test_places(void **state)
{
    struct copy_place p;
    char base[NAME_MAX + 1];

    (void)state;
    copy_place_parse("box-1:/home/a:b", &p);
    assert_true(p.is_remote);
    assert_string_equal(p.sandbox, "box-1");
    assert_string_equal(p.path, "/home/a:b");
    copy_place_parse("box:", &p);
    assert_string_equal(p.path, ".");
    copy_place_parse("./a:b", &p);
    assert_false(p.is_remote);
    copy_place_parse("/a:b", &p);
    assert_false(p.is_remote);
    copy_place_parse(":x", &p);
    assert_false(p.is_remote);
    copy_place_parse("-", &p);
    assert_true(p.is_stream && !p.is_remote);
    assert_int_equal(copy_name_base("/a/b/c//", base), 0);
    assert_string_equal(base, "c");
    assert_int_equal(copy_name_base("a/.", base), 0);
    assert_string_equal(base, "");
    assert_int_equal(copy_name_base("/", base), 0);
    assert_string_equal(base, "");
    assert_true(copy_name_is_directory("a/"));
}

static void test_names(void **state)
{
    char name[COPY_NAME_SIZE];
    char *longest = calloc(1, 2 * NAME_MAX);

    (void)state;
    assert_int_equal(copy_name_check("./a//b/./c/", name), 0);
    assert_string_equal(name, "a/b/c");
    assert_int_equal(copy_name_check("./", name), 0);
    assert_string_equal(name, "");
    assert_int_equal(copy_name_check("..a/...", name), 0);
    assert_int_equal(copy_name_check("", name), -EBADMSG);
    assert_int_equal(copy_name_check(NULL, name), -EBADMSG);
    memset(longest, 'x', NAME_MAX + 1);
    assert_int_equal(copy_name_check(longest, name), -ENAMETOOLONG);
    free(longest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define WITH_FIXTURE(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
        WITH_FIXTURE(test_a_tree_comes_out_as_it_went_in),
        WITH_FIXTURE(test_names_that_lead_out_are_refused),
        WITH_FIXTURE(test_a_link_is_not_walked_through),
        WITH_FIXTURE(test_a_link_is_no_directory),
        WITH_FIXTURE(test_a_link_that_was_there_is_replaced_and_not_followed),
        WITH_FIXTURE(test_a_link_made_by_the_archive_is_replaced_too),
        WITH_FIXTURE(test_hard_links_lead_only_to_what_came_along),
        WITH_FIXTURE(test_hard_links_do_not_lead_out),
        WITH_FIXTURE(test_hard_links_to_links_are_refused),
        WITH_FIXTURE(test_special_files_are_left_out),
        WITH_FIXTURE(test_a_directory_is_not_replaced),
        WITH_FIXTURE(test_the_top_is_a_directory),
        WITH_FIXTURE(test_a_cut_archive_is_an_error_and_leaves_no_half_file),
        WITH_FIXTURE(test_it_can_be_stopped),
        WITH_FIXTURE(test_pack_and_unpack),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_names),
    };

    (void)setlocale(LC_CTYPE, "C.UTF-8");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
