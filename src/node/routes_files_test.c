/* The node's routes for files, against an agent whose services do what they are told. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/socket.h>

#include <cmocka.h>

#include "base/fd.h"
#include "node/routes_rig.h"
#include "wire/agent_limits.h"

#define STALLED "/zeros/1000000000"

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    f->rig = rig_new_fake("node.max_transfers=2");
    rig_make_sandbox(f->rig, f->sandbox);
    *state = f;
    return 0;
}

static void path_of(const struct fixture *f, const char *rest, char out[400])
{
    (void)snprintf(out, 400, "/n1/sandboxes/%s/files%s", f->sandbox, rest);
}

static int send_file(const struct fixture *f,
                     const char *method,
                     const char *rest,
                     const char *headers,
                     struct span body)
{
    char path[400];

    path_of(f, rest, path);
    return rig_send_with(f->rig, method, path, headers, body);
}

static void ask(const struct fixture *f,
                const char *method,
                const char *rest,
                const char *headers,
                const char *body,
                struct answer *answer)
{
    _cleanup_buf_ struct buf all = buf_make(0);

    buf_printf(&all, "Connection: close\r\n%s", headers);
    rig_receive(send_file(f, method, rest, buf_str(&all),
                          body != NULL ? span_of_str(body) : span_make(NULL, 0)),
                answer);
}

static json_int_t size_of(const struct fixture *f, const char *path)
{
    _cleanup_answer_ struct answer answer = {0};
    char rest[100];

    (void)snprintf(rest, sizeof(rest), "/stat?path=%s", path);
    ask(f, "GET", rest, "", NULL, &answer);
    assert_int_equal(answer.status, 200);
    return answer_number(&answer, "size_bytes");
}

static void wait_forgotten(const struct fixture *f, json_int_t at_least)
{
    for (int i = 0; i < 1000 && size_of(f, "/forgotten") < at_least; i++) {
        (void)usleep(5000);
    }
    assert_true(size_of(f, "/forgotten") >= at_least);
}

/* ---- entries and errors ---- */

static void test_entries(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer file = {0};
    _cleanup_answer_ struct answer link = {0};
    _cleanup_answer_ struct answer odd = {0};

    ask(f, "GET", "/stat?path=/etc/hosts", "", NULL, &file);
    assert_int_equal(file.status, 200);
    assert_string_equal(answer_text(&file, "path"), "/etc/hosts");
    assert_string_equal(answer_text(&file, "name"), "hosts");
    assert_string_equal(answer_text(&file, "type"), "file");
    assert_string_equal(answer_text(&file, "mode"), "0640");
    assert_string_equal(answer_text(&file, "modified_at"), "2023-11-14T22:13:20.123Z");
    assert_true(json_is_null(json_object_get(file.json, "symlink_target")));
    assert_true(json_is_null(json_object_get(file.json, "name_base64")));
    ask(f, "GET", "/stat?path=link&user=me", "", NULL, &link);
    assert_string_equal(answer_text(&link, "symlink_target"), "target");
    ask(f, "GET", "/stat?path=/a%2F%FFb", "", NULL, &odd);
    assert_string_equal(answer_text(&odd, "path"), "/a/\xef\xbf\xbd"
                                                   "b");
    assert_string_equal(answer_text(&odd, "name_base64"), "/2I=");
}

static void test_errors_of_the_guest(void **state)
{
    static const struct {
        int errnum;
        int status;
        const char *code;
        const char *name;
    } cases[] = {
        {ENOENT, 404, "not_found", "ENOENT"},
        {EACCES, 403, "forbidden", "EACCES"},
        {EPERM, 403, "forbidden", "EPERM"},
        {ENOSPC, 507, "storage_full", "ENOSPC"},
        {EDQUOT, 507, "storage_full", "EDQUOT"},
        {EISDIR, 409, "conflict", "EISDIR"},
        {ENOTDIR, 409, "conflict", "ENOTDIR"},
        {EEXIST, 409, "conflict", "EEXIST"},
        {ENOTEMPTY, 409, "conflict", "ENOTEMPTY"},
        {EROFS, 409, "conflict", "EROFS"},
        {ENAMETOOLONG, 409, "conflict", "ENAMETOOLONG"},
    };
    const struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        static const char *const whats[] = {"GET", "PUT", "DELETE"};

        for (size_t k = 0; k < 3; k++) {
            _cleanup_answer_ struct answer answer = {0};
            char rest[64];

            (void)snprintf(rest, sizeof(rest), "?path=/errno/%d", cases[i].errnum);
            ask(f, whats[k], rest, "", k == 1 ? "content" : NULL, &answer);
            assert_int_equal(answer.status, cases[i].status);
            assert_string_equal(answer_text(&answer, "error.code"), cases[i].code);
            assert_string_equal(answer_text(&answer, "error.details.errno"), cases[i].name);
        }
    }
}

static void expect_field(const struct fixture *f,
                         const char *method,
                         const char *rest,
                         const char *body,
                         const char *field)
{
    _cleanup_answer_ struct answer answer = {0};

    ask(f, method, rest, "", body, &answer);
    if (answer.status != 400 || strcmp(answer_text(&answer, "error.details.field"), field) != 0) {
        fail_msg("%s %s %s: %d %s", method, rest, body != NULL ? body : "", answer.status,
                 buf_str(&answer.body));
    }
}

static void test_bad_requests(void **state)
{
    const struct fixture *f = *state;

    expect_field(f, "GET", "", NULL, "path");
    expect_field(f, "GET", "?path=", NULL, "path");
    expect_field(f, "GET", "?path=a%00b", NULL, "path");
    expect_field(f, "GET", "?path=a&path=b", NULL, "path");
    expect_field(f, "GET", "?path=a&user=nobody-here", NULL, "user");
    expect_field(f, "GET", "?path=a&what=1", NULL, "what");
    expect_field(f, "PUT", "?path=a&mode=999", "x", "mode");
    expect_field(f, "PUT", "?path=a&mode=17777", "x", "mode");
    expect_field(f, "PUT", "?path=a&parents=maybe", "x", "parents");
    expect_field(f, "DELETE", "?path=a&recursive=1", NULL, "recursive");
    expect_field(f, "GET", "/list?path=a&depth=0", NULL, "depth");
    expect_field(f, "GET", "/list?path=a&limit=1001", NULL, "limit");
    expect_field(f, "GET", "/list?path=a&cursor=!!", NULL, "cursor");
    expect_field(f, "GET", "/list?path=a&cursor=YQ%3D%3D", NULL, "cursor");
    expect_field(f, "GET", "/tar?path=a&exclude=", NULL, "exclude");
    expect_field(f, "POST", "/mkdir", "{}", "path");
    expect_field(f, "POST", "/mkdir", "{\"path\": 7}", "path");
    expect_field(f, "POST", "/mkdir", "{\"path\": \"\"}", "path");
    expect_field(f, "POST", "/mkdir", "{\"path\": \"a\", \"path_base64\": \"YQ==\"}", "path");
    expect_field(f, "POST", "/mkdir", "{\"path_base64\": \"YQ\"}", "path_base64");
    expect_field(f, "POST", "/mkdir", "{\"path_base64\": \"YQBi\"}", "path");
    expect_field(f, "POST", "/mkdir", "{\"path\": \"a\", \"x\": 1}", "x");
    expect_field(f, "POST", "/move", "{\"from\": \"a\"}", "to");
    expect_field(f, "POST", "/chmod", "{\"path\": \"a\", \"mode\": \"rw\"}", "mode");
    expect_field(f, "POST", "/chmod", "{\"path\": \"a\"}", "mode");
    expect_field(f, "POST", "/chmod", "{\"path\": \"a\", \"mode\": \"7\", \"recursive\": 1}",
                 "recursive");
    expect_field(f, "POST", "/chown", "{\"path\": \"a\"}", "owner");
    expect_field(f, "POST", "/chown", "{\"path\": \"a\", \"owner\": null}", "owner");
}

static void test_changes(void **state)
{
    static const char *const posts[][2] = {
        {"/mkdir", "{\"path\": \"a\", \"mode\": \"0700\"}"},
        {"/mkdir", "{\"path_base64\": \"/w==\"}"},
        {"/move", "{\"from\": \"a\", \"to\": \"b\", \"replace\": false}"},
        {"/chmod", "{\"path\": \"a\", \"mode\": \"07777\", \"recursive\": true}"},
        {"/chown", "{\"path\": \"a\", \"owner\": \"user:group\", \"user\": \"root\"}"},
    };
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer gone = {0};

    for (size_t i = 0; i < sizeof(posts) / sizeof(posts[0]); i++) {
        _cleanup_answer_ struct answer answer = {0};

        ask(f, "POST", posts[i][0], "", posts[i][1], &answer);
        assert_int_equal(answer.status, 200);
        assert_string_equal(answer_text(&answer, "path"), "/changed");
    }
    ask(f, "DELETE", "?path=a&recursive=true", "", NULL, &gone);
    assert_int_equal(gone.status, 200);
    assert_int_equal(answer_number(&gone, "deleted"), 3);
}

/* ---- content ---- */

static void expect_content(
    const struct fixture *f, const char *headers, int status, size_t bytes, const char *header_line)
{
    _cleanup_answer_ struct answer answer = {0};

    ask(f, "GET", "?path=/zeros/1000", headers, NULL, &answer);
    assert_int_equal(answer.status, status);
    assert_true(answer_has(&answer, header_line));
    if (status < 300) {
        assert_int_equal(answer.body.n, bytes);
    }
}

static void test_content_and_ranges(void **state)
{
    const struct fixture *f = *state;

    expect_content(f, "", 200, 1000, "Accept-Ranges: bytes");
    expect_content(f, "", 200, 1000, "Content-Type: application/octet-stream");
    expect_content(f, "", 200, 1000, "Last-Modified: Tue, 14 Nov 2023 22:13:20 GMT");
    expect_content(f, "Range: bytes=0-4\r\n", 206, 5, "Content-Range: bytes 0-4/1000");
    expect_content(f, "Range: bytes=990-\r\n", 206, 10, "Content-Range: bytes 990-999/1000");
    expect_content(f, "Range: bytes=-3\r\n", 206, 3, "Content-Range: bytes 997-999/1000");
    expect_content(f, "Range: bytes=-5000\r\n", 206, 1000, "Content-Range: bytes 0-999/1000");
    expect_content(f, "Range: bytes=1000-\r\n", 416, 0, "Content-Range: bytes */1000");
    expect_content(f, "Range: bytes=5-4\r\n", 200, 1000, "Content-Length: 1000");
    expect_content(f, "Range: bytes=0-1,4-5\r\n", 200, 1000, "Content-Length: 1000");
    expect_content(f, "Range: lines=1-2\r\n", 200, 1000, "Content-Length: 1000");
    expect_content(f, "If-None-Match: \"3e8-17979cfe3d85cd15\"\r\n", 304, 0, "ETag: \"3e8-");
    expect_content(f, "If-None-Match: \"other\"\r\n", 200, 1000, "ETag: \"3e8-");
    expect_content(f, "Range: bytes=0-4\r\nIf-Range: \"3e8-17979cfe3d85cd15\"\r\n", 206, 5,
                   "Content-Range: bytes 0-4/1000");
    expect_content(f, "Range: bytes=0-4\r\nIf-Range: \"other\"\r\n", 200, 1000,
                   "Content-Length: 1000");
}

static void test_head(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer full = {0};
    _cleanup_answer_ struct answer empty = {0};
    _cleanup_answer_ struct answer missing = {0};

    ask(f, "HEAD", "?path=/zeros/1000", "Range: bytes=0-4\r\n", NULL, &full);
    assert_int_equal(full.status, 200);
    assert_true(answer_has(&full, "Content-Length: 1000"));
    assert_int_equal(full.body.n, 0);
    ask(f, "HEAD", "?path=/zeros/0", "", NULL, &empty);
    assert_int_equal(empty.status, 200);
    assert_true(answer_has(&empty, "Content-Length: 0"));
    ask(f, "HEAD", "?path=/errno/2", "", NULL, &missing);
    assert_int_equal(missing.status, 404);
}

static void test_long_and_empty_content(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer large = {0};
    _cleanup_answer_ struct answer empty = {0};

    ask(f, "GET", "?path=/zeros/20000000", "", NULL, &large);
    assert_int_equal(large.status, 200);
    assert_int_equal(large.body.n, 20000000);
    ask(f, "GET", "?path=/zeros/0", "", NULL, &empty);
    assert_int_equal(empty.status, 200);
    assert_int_equal(empty.body.n, 0);
}

/* Fewer bytes than announced: never a proper end. */
static void test_content_that_shrinks_is_cut(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer answer = {0};
    _cleanup_answer_ struct answer chunked = {0};

    ask(f, "GET", "?path=/short/1000000", "", NULL, &answer);
    assert_int_equal(answer.status, 200);
    assert_true(answer_has(&answer, "Content-Length: 1000000"));
    assert_true(answer.body.n <= 500000);
    ask(f, "GET", "/tar?path=/zeros/1000", "", NULL, &chunked);
    assert_int_equal(chunked.status, 200);
    assert_true(answer_has(&chunked, "Content-Type: application/x-tar"));
    assert_memory_equal(&chunked.body.p[chunked.body.n - 5], "0\r\n\r\n", 5);
}

static size_t rss_kib(pid_t pid)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    char path[64];
    const char *line;

    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    assert_int_equal(file_read(-100, path, 65536, &text), 0);
    line = strstr(buf_str(&text), "RssAnon:");
    assert_non_null(line);
    return (size_t)strtoul(&line[8], NULL, 10); /* NOLINT(cert-err34-c) */
}

static void test_slow_readers_cost_little(void **state)
{
    const struct fixture *f = *state;
    size_t before = rss_kib(f->rig->pid);
    int lazy[2];
    char byte;

    for (int i = 0; i < 2; i++) {
        lazy[i] = send_file(f, "GET", "?path=" STALLED, "", span_make(NULL, 0));
        assert_int_equal(recv(lazy[i], &byte, 1, 0), 1);
    }
    (void)size_of(f, "/a"); /* other calls go on */
    assert_true(rss_kib(f->rig->pid) < before + 4096);
    for (int i = 0; i < 2; i++) {
        (void)close(lazy[i]);
    }
    wait_forgotten(f, 2); /* the guest is told */
}

/* ---- uploads ---- */

static void test_uploads(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer fresh = {0};
    _cleanup_answer_ struct answer old = {0};
    _cleanup_answer_ struct answer chunked = {0};
    _cleanup_answer_ struct answer tar = {0};
    static const char body[] = "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";

    ask(f, "PUT", "?path=/new", "", "content", &fresh);
    assert_int_equal(fresh.status, 201);
    assert_int_equal(answer_number(&fresh, "size_bytes"), 7);
    ask(f, "PUT", "?path=/old&mode=0755&parents=false", "", "", &old);
    assert_int_equal(old.status, 200);
    assert_int_equal(answer_number(&old, "size_bytes"), 0);
    {
        int fd =
            send_file(f, "PUT", "?path=/new", "Connection: close\r\nTransfer-Encoding: chunked\r\n",
                      span_make(NULL, 0));

        assert_int_equal(fd_write_all(fd, span_of_str(body)), 0);
        rig_receive(fd, &chunked);
    }
    assert_int_equal(chunked.status, 201);
    assert_int_equal(answer_number(&chunked, "size_bytes"), 11);
    ask(f, "PUT", "/tar?path=/into", "", "archive", &tar);
    assert_int_equal(tar.status, 200);
    assert_int_equal(answer_number(&tar, "entries"), 1);
}

/* The guest takes it slowly, and every byte once: the agent checks the offsets. */
static void test_slow_upload(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf body = buf_make(0);
    _cleanup_answer_ struct answer answer = {0};

    memset(buf_reserve(&body, 3000001), 'x', 3000001);
    buf_commit(&body, 3000001);
    rig_receive(send_file(f, "PUT", "?path=/slow", "Connection: close\r\n", buf_span(&body)),
                &answer);
    assert_int_equal(answer.status, 201);
    assert_int_equal(answer_number(&answer, "size_bytes"), 3000001);
}

/* The rest never comes: the guest hears FORGET, and not all is read ahead. */
static void test_upload_that_is_cut(void **state)
{
    const struct fixture *f = *state;
    int fd = send_file(f, "PUT", "?path=/new", "Content-Length: 1000\r\n", span_make(NULL, 0));

    assert_int_equal(fd_write_all(fd, span_of_str("only this")), 0);
    while (size_of(f, "/most-input") != 9) {
    }
    (void)close(fd);
    wait_forgotten(f, 1);
}

static void test_upload_to_a_guest_that_does_not_read(void **state)
{
    const struct fixture *f = *state;
    _cleanup_buf_ struct buf body = buf_make(0);
    size_t before = rss_kib(f->rig->pid);
    size_t sent = 0;
    int fd = send_file(f, "PUT", "?path=/lie/silent", "Content-Length: 100000000\r\n",
                       span_make(NULL, 0));

    memset(buf_reserve(&body, 65536), 'x', 65536);
    buf_commit(&body, 65536);
    for (int idle = 0; idle < 20;) {
        ssize_t n = send(fd, body.p, body.n, MSG_DONTWAIT | MSG_NOSIGNAL);

        sent += n > 0 ? (size_t)n : 0;
        idle = n > 0 ? 0 : idle + 1;
        (void)usleep(5000);
    }
    assert_true(sent >= 262144 && sent < 4000000);
    assert_true(rss_kib(f->rig->pid) < before + 4096);
    assert_int_equal(size_of(f, "/most-input"), AGENT_STDIN_WINDOW);
    (void)close(fd);
}

/* ---- lists ---- */

static void test_lists(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer first = {0};
    _cleanup_answer_ struct answer second = {0};
    _cleanup_answer_ struct answer long_names = {0};
    char rest[400];
    const json_t *items;

    ask(f, "GET", "/list?path=/d&limit=1000", "", NULL, &first);
    assert_int_equal(first.status, 200);
    items = json_object_get(first.json, "items");
    assert_int_equal(json_array_size(items), 1000);
    assert_string_equal(json_string_value(json_object_get(json_array_get(items, 0), "name_base64")),
                        "/zAwMDA=");
    assert_string_equal(answer_text(&first, "next_cursor"), "L2QvMDk5OQ==");
    ask(f, "GET", "/list?path=/d&cursor=L2QvMDk5OQ%3D%3D", "", NULL, &second);
    assert_int_equal(json_array_size(json_object_get(second.json, "items")), 1);
    assert_true(json_is_null(json_object_get(second.json, "next_cursor")));
    (void)snprintf(rest, sizeof(rest), "/list?path=/long-names&limit=1000");
    ask(f, "GET", rest, "", NULL, &long_names);
    assert_int_equal(long_names.status, 200);
    assert_true(long_names.body.n < 1200000);
    assert_true(strlen(answer_text(&long_names, "next_cursor")) > 1900);
}

/* ---- lies, ends and limits ---- */

static void expect_lie(const struct fixture *f, const char *method, const char *rest)
{
    _cleanup_answer_ struct answer answer = {0};
    struct fixture mine = {.rig = f->rig};
    char path[64];

    rig_make_sandbox(f->rig, mine.sandbox);
    ask(&mine, method, rest, "", strcmp(method, "PUT") == 0 ? "body" : NULL, &answer);
    if (answer.status == 200 && strstr(rest, "too-long") == NULL &&
        strstr(rest, "behind") == NULL && strstr(rest, "twice") == NULL) {
        fail_msg("%s %s: %s", method, rest, buf_str(&answer.body));
    }
    rig_wait_state(f->rig, mine.sandbox, "error");
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", mine.sandbox);
    rig_expect(f->rig, "DELETE", path, NULL, 200);
}

static void test_lies_end_the_sandbox(void **state)
{
    static const char *const lies[][2] = {
        {"GET", "?path=/lie/garbage"},
        {"GET", "?path=/lie/two-entries"},
        {"GET", "?path=/lie/no-entry"},
        {"GET", "?path=/lie/too-long"},
        {"GET", "?path=/lie/listener"},
        {"GET", "/stat?path=/lie/two-entries"},
        {"GET", "/stat?path=/lie/behind-done"},
        {"GET", "/stat?path=/lie/no-entry"},
        {"GET", "/list?path=/lie/too-many"},
        {"GET", "/list?path=/lie/listener"},
        {"GET", "/tar?path=/lie/other-length"},
        {"PUT", "?path=/lie/garbage"},
        {"GET", "/watch?path=/lie/early-change"},
        {"GET", "/watch?path=/lie/listener"},
        {"GET", "/watch?path=/done-twice"},
    };

    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        expect_lie(*state, lies[i][0], lies[i][1]);
    }
}

/* An agent of an older build, whose two looks at a file that is written found two sizes. */
static void test_a_file_that_changes_ends_the_call_alone(void **state)
{
    static const char *const paths[] = {"?path=/lie/other-offset", "?path=/lie/other-length"};
    static const char *const ranges[] = {"", "Range: bytes=5-\r\n", "Range: bytes=-3\r\n",
                                         "Range: bytes=20-30\r\n"};
    const struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        for (size_t k = 0; k < sizeof(ranges) / sizeof(ranges[0]); k++) {
            _cleanup_answer_ struct answer answer = {0};

            if (i == 0 && k == 1) {
                continue; /* that offset is the one that is asked for */
            }
            ask(f, "GET", paths[i], ranges[k], NULL, &answer);
            assert_int_equal(answer.status, 502);
            assert_string_equal(answer_text(&answer, "error.code"), "bad_gateway");
            (void)size_of(f, "/a");
        }
    }
}

/* As the files of sysfs: a page long, says stat, whatever they hold. */
static void test_content_of_no_known_length(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer answer = {0};

    ask(f, "GET", "?path=/unknown/5", "", NULL, &answer);
    assert_int_equal(answer.status, 200);
    assert_true(answer_has(&answer, "Transfer-Encoding: chunked"));
    assert_memory_equal(&answer.body.p[answer.body.n - 5], "0\r\n\r\n", 5);
    (void)size_of(f, "/a");
}

/* No answer at all is no violation: the child may have died. */
static void test_services_that_end_without_an_answer(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer cut = {0};
    _cleanup_answer_ struct answer done = {0};
    _cleanup_answer_ struct answer full = {0};

    ask(f, "GET", "?path=/lie/cut", "", NULL, &cut);
    assert_int_equal(cut.status, 503);
    ask(f, "GET", "/stat?path=/lie/no-entry-done", "", NULL, &done);
    assert_int_equal(done.status, 500);
    ask(f, "GET", "?path=/full", "", NULL, &full);
    assert_int_equal(full.status, 503);
    assert_string_equal(answer_text(&full, "error.code"), "service_unavailable");
    (void)size_of(f, "/a");
}

/* The agent has confirmed the identity, and never says that it has the file: a restart of the node
 * must find a creation that is not over. */
static void test_a_sandbox_without_its_files_does_not_run(void **state)
{
    static const char body[] =
        "{\"template\": \"base\", \"files\": [{\"path\": \"/a\", \"text\": \"x\"}]}";
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer put = {0};
    char id[ID_SIZE];
    char path[64];
    int fd;

    assert_int_equal(id_make("sb", id), 0);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", id);
    fd = rig_send(f->rig, "PUT", path, span_of_str(body), false);
    rig_wait_state(f->rig, id, "creating");
    for (int i = 0; i < 100; i++) {
        _cleanup_answer_ struct answer answer = {0};

        rig_ask(f->rig, "GET", path, NULL, &answer);
        assert_string_equal(answer_text(&answer, "state"), "creating");
    }
    rig_expect(f->rig, "DELETE", path, NULL, 200);
    rig_receive(fd, &put);
    assert_true(put.status >= 400);
}

static void test_transfers_wait_for_their_turn(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer third = {0};
    int held[2];
    int waiting;
    char byte;

    for (int i = 0; i < 2; i++) {
        held[i] = send_file(f, "GET", "?path=" STALLED, "", span_make(NULL, 0));
        assert_int_equal(recv(held[i], &byte, 1, 0), 1);
    }
    waiting = send_file(f, "GET", "?path=/zeros/5", "Connection: close\r\n", span_make(NULL, 0));
    (void)size_of(f, "/a");
    assert_int_equal(recv(waiting, &byte, 1, MSG_DONTWAIT), -1);
    (void)close(held[0]);
    rig_receive(waiting, &third);
    assert_int_equal(third.status, 200);
    (void)close(held[1]);
}

static void test_a_deleted_sandbox_ends_all(void **state)
{
    const struct fixture *f = *state;
    _cleanup_answer_ struct answer cut = {0};
    _cleanup_answer_ struct answer waiting = {0};
    _cleanup_answer_ struct answer never = {0};
    int fds[4];
    char path[64];
    char byte;

    for (int i = 0; i < 2; i++) {
        fds[i] = send_file(f, "GET", "?path=" STALLED, "", span_make(NULL, 0));
        assert_int_equal(recv(fds[i], &byte, 1, 0), 1);
    }
    fds[2] = send_file(f, "GET", "?path=/zeros/5", "Connection: close\r\n", span_make(NULL, 0));
    fds[3] = send_file(f, "GET", "/stat?path=/never", "Connection: close\r\n", span_make(NULL, 0));
    (void)size_of(f, "/a");
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", f->sandbox);
    rig_expect(f->rig, "DELETE", path, NULL, 200);
    rig_receive(fds[0], &cut);
    assert_true(cut.body.n < 1000000000);
    (void)close(fds[1]);
    rig_receive(fds[2], &waiting);
    assert_true(waiting.status == 409 || waiting.status == 404);
    rig_receive(fds[3], &never);
    assert_int_equal(never.status, 409);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define FILE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, fixture_tear_down)
        FILE_TEST(test_entries),
        FILE_TEST(test_errors_of_the_guest),
        FILE_TEST(test_bad_requests),
        FILE_TEST(test_changes),
        FILE_TEST(test_content_and_ranges),
        FILE_TEST(test_head),
        FILE_TEST(test_long_and_empty_content),
        FILE_TEST(test_content_that_shrinks_is_cut),
        FILE_TEST(test_content_of_no_known_length),
        FILE_TEST(test_a_sandbox_without_its_files_does_not_run),
        FILE_TEST(test_a_file_that_changes_ends_the_call_alone),
        FILE_TEST(test_slow_readers_cost_little),
        FILE_TEST(test_uploads),
        FILE_TEST(test_slow_upload),
        FILE_TEST(test_upload_that_is_cut),
        FILE_TEST(test_upload_to_a_guest_that_does_not_read),
        FILE_TEST(test_lists),
        FILE_TEST(test_lies_end_the_sandbox),
        FILE_TEST(test_services_that_end_without_an_answer),
        FILE_TEST(test_transfers_wait_for_their_turn),
        FILE_TEST(test_a_deleted_sandbox_ends_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
