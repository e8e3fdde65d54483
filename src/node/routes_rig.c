#include "node/routes_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/fd.h"

#define TIMEOUT_SECONDS 60
#define BODY_MAX        (256U * 1024U * 1024U)

void rig_program(const char *name, char out[512])
{
    char self[400];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    assert_true(n > 0);
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    (void)snprintf(out, 512, "%s/%s", self, name);
}

static bool is_up(const struct rig *rig)
{
    _cleanup_answer_ struct answer answer = {0};

    rig_ask(rig, "GET", "/n1/sandboxes", NULL, &answer);
    return answer.status == 200;
}

static const char *agent_program(const struct rig *rig)
{
    if (rig->agent_mode != NULL) {
        return "src/guest/fake-agent";
    }
    return rig->has_fake_services ? "src/node/fake-services" : "src/guest/space-init-host";
}

void rig_start(struct rig *rig)
{
    char program[512];
    char agent[512];
    char data[96];
    char run[96];
    char mode[64];

    rig_program("src/node/data-rig", program);
    rig_program(agent_program(rig), agent);
    (void)snprintf(mode, sizeof(mode), "agent_mode=%s",
                   rig->agent_mode != NULL ? rig->agent_mode : "");
    (void)snprintf(data, sizeof(data), "%s/data", rig->dir);
    (void)snprintf(run, sizeof(run), "%s/run", rig->dir);
    rig->pid = fork();
    assert_true(rig->pid >= 0);
    if (rig->pid == 0) {
        char log[96];
        int fd;

        (void)snprintf(log, sizeof(log), "%s/log", rig->dir);
        fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
        (void)dup2(fd, 2);
        (void)execl(program, program, agent, data, run, rig->spool_bytes, rig->max_processes,
                    rig->settings, rig->agent_mode != NULL ? mode : NULL, (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 2000; i++) {
        if (is_up(rig)) {
            return;
        }
        (void)usleep(10000);
    }
    fail_msg("the rig does not start");
}

/* Ends everything that earlier rigs and their agents started: orphans come to this process. */
static void reap_all(void)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    for (;;) {
        _cleanup_buf_ struct buf children = buf_make(65536);
        struct span rest;
        size_t end;
        uint64_t pid;

        if (file_read(AT_FDCWD, path, 65536, &children) < 0 || children.n == 0) {
            return;
        }
        rest = buf_span(&children);
        end = span_find(rest, 0, ' ');
        if (span_parse_u64(span_head(rest, end), INT32_MAX, &pid) < 0) {
            return;
        }
        (void)kill((pid_t)pid, SIGKILL);
        (void)waitpid((pid_t)pid, NULL, 0);
    }
}

/* Makes the directories and starts it. */
static void set_up(struct rig *rig)
{
    char path[96];

    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    assert_int_equal(atexit(reap_all), 0);
    reap_all();
    (void)snprintf(rig->dir, sizeof(rig->dir), "/tmp/routes-test-XXXXXX");
    assert_non_null(mkdtemp(rig->dir));
    (void)snprintf(path, sizeof(path), "%s/data", rig->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof(path), "%s/run", rig->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    rig_start(rig);
}

struct rig *rig_new(unsigned int spool_bytes, unsigned int max_processes)
{
    struct rig *rig = calloc(1, sizeof(*rig));

    assert_non_null(rig);
    (void)snprintf(rig->spool_bytes, sizeof(rig->spool_bytes), "%u", spool_bytes);
    (void)snprintf(rig->max_processes, sizeof(rig->max_processes), "%u", max_processes);
    set_up(rig);
    return rig;
}

static struct rig *new_with(bool has_fake_services, const char *agent_mode, const char *setting)
{
    struct rig *rig = calloc(1, sizeof(*rig));

    assert_non_null(rig);
    (void)snprintf(rig->spool_bytes, sizeof(rig->spool_bytes), "0");
    (void)snprintf(rig->max_processes, sizeof(rig->max_processes), "0");
    rig->has_fake_services = has_fake_services;
    rig->agent_mode = agent_mode;
    rig->settings = setting;
    set_up(rig);
    return rig;
}

struct rig *rig_new_fake(const char *setting)
{
    return new_with(true, NULL, setting);
}

struct rig *rig_new_lying(const char *mode, const char *setting)
{
    return new_with(false, mode, setting);
}

void rig_kill(struct rig *rig)
{
    (void)kill(rig->pid, SIGKILL);
    (void)waitpid(rig->pid, NULL, 0);
}

int rig_stop(struct rig *rig)
{
    int status = -1;

    (void)kill(rig->pid, SIGTERM);
    (void)waitpid(rig->pid, &status, 0);
    return status;
}

/* Deletes all sandboxes, whose agents end with them, and stops the rig. */
void rig_free(struct rig *rig)
{
    _cleanup_answer_ struct answer list = {0};
    const json_t *item;
    size_t i;
    int status;

    rig_ask(rig, "GET", "/n1/sandboxes", NULL, &list);
    json_array_foreach(json_object_get(list.json, "items"), i, item) {
        char path[64];

        (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s",
                       json_string_value(json_object_get(item, "id")));
        rig_expect(rig, "DELETE", path, NULL, 200);
    }
    status = rig_stop(rig);
    if (status != 0) {
        _cleanup_buf_ struct buf log = buf_make(0);
        char path[96];

        (void)snprintf(path, sizeof(path), "%s/log", rig->dir);
        (void)!file_read(AT_FDCWD, path, BODY_MAX, &log);
        fail_msg("the rig ended with status %d:\n%s", status, buf_str(&log));
    }
    reap_all();
    assert_int_equal(dir_remove_tree(AT_FDCWD, rig->dir), 0);
    free(rig);
}

/* ---- the client ---- */

void answer_done(struct answer *answer)
{
    buf_done(&answer->head);
    buf_done(&answer->body);
    json_decref(answer->json);
    answer->json = NULL;
}

static const json_t *find(const struct answer *answer, const char *path)
{
    const json_t *value = answer->json;
    struct span rest = span_of_str(path);

    while (rest.n > 0 && value != NULL) {
        size_t dot = span_find(rest, 0, '.');
        char key[64];

        assert_int_equal(span_copy_str(span_head(rest, dot), key, sizeof(key)), 0);
        value = json_object_get(value, key);
        rest = span_skip(rest, dot + 1);
    }
    return value;
}

const char *answer_text(const struct answer *answer, const char *path)
{
    const char *text = json_string_value(find(answer, path));

    return text != NULL ? text : "";
}

json_int_t answer_number(const struct answer *answer, const char *path)
{
    const json_t *value = find(answer, path);

    return json_is_integer(value) ? json_integer_value(value) : -1;
}

bool answer_has(const struct answer *answer, const char *line)
{
    return strstr(buf_str(&answer->head), line) != NULL;
}

static int connect_rig(const struct rig *rig)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = TIMEOUT_SECONDS};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/run/node.sock", rig->dir);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

static int
send_request(const struct rig *rig, struct span line, const char *headers, struct span body)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    int fd = connect_rig(rig);

    if (fd < 0) {
        return -1;
    }
    buf_put(&text, line);
    buf_printf(&text, "Host: x\r\n%s", headers);
    if (body.p != NULL) {
        buf_printf(&text, "Content-Length: %zu\r\n", body.n);
    }
    buf_put_str(&text, "\r\n");
    buf_put(&text, body);
    if (send(fd, text.p, text.n, MSG_NOSIGNAL) != (ssize_t)text.n) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

int rig_send(
    const struct rig *rig, const char *method, const char *path, struct span body, bool old)
{
    _cleanup_buf_ struct buf line = buf_make(0);

    buf_printf(&line, "%s %s HTTP/1.%d\r\n", method, path, old ? 0 : 1);
    return send_request(rig, buf_span(&line), "Connection: close\r\n", body);
}

int rig_send_with(const struct rig *rig,
                  const char *method,
                  const char *path,
                  const char *headers,
                  struct span body)
{
    _cleanup_buf_ struct buf line = buf_make(0);

    buf_printf(&line, "%s %s HTTP/1.1\r\n", method, path);
    return send_request(rig, buf_span(&line), headers, body);
}

int rig_send_upgrade(const struct rig *rig, const char *path)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    int fd = connect_rig(rig);

    buf_printf(&text,
               "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
               "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
               path);
    if (fd >= 0 && send(fd, text.p, text.n, MSG_NOSIGNAL) != (ssize_t)text.n) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

void rig_receive(int fd, struct answer *ret_answer)
{
    _cleanup_buf_ struct buf all = buf_make(BODY_MAX);
    const uint8_t *end;
    uint64_t status;

    ret_answer->head = buf_make(0);
    ret_answer->body = buf_make(0);
    if (fd < 0) {
        return;
    }
    if (fd_read_all(fd, &all) < 0) {
        buf_clear(&all); /* cut */
    }
    (void)close(fd);
    end = memmem(all.p, all.n, "\r\n\r\n", 4);
    if (end == NULL || all.n < 12 || span_parse_u64(span_make(&all.p[9], 3), 999, &status) < 0) {
        return;
    }
    ret_answer->status = (int)status;
    buf_put(&ret_answer->head, span_make(all.p, (size_t)(end - all.p) + 2));
    buf_put(&ret_answer->body, span_skip(buf_span(&all), (size_t)(end - all.p) + 4));
    ret_answer->json =
        json_loadb((const char *)ret_answer->body.p, ret_answer->body.n, JSON_DECODE_ANY, NULL);
}

void rig_ask(const struct rig *rig,
             const char *method,
             const char *path,
             const char *body,
             struct answer *ret_answer)
{
    struct span bytes = body != NULL ? span_of_str(body) : span_make(NULL, 0);

    rig_receive(rig_send(rig, method, path, bytes, true), ret_answer);
}

void rig_expect(
    const struct rig *rig, const char *method, const char *path, const char *body, int status)
{
    _cleanup_answer_ struct answer answer = {0};

    rig_ask(rig, method, path, body, &answer);
    if (answer.status != status) {
        fail_msg("%s %s: %d instead of %d: %s", method, path, answer.status, status,
                 buf_str(&answer.body));
    }
}

void rig_wait_state(const struct rig *rig, const char *id, const char *state)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", id);
    for (int i = 0; i < 2000; i++) {
        _cleanup_answer_ struct answer answer = {0};

        rig_ask(rig, "GET", path, NULL, &answer);
        if (strcmp(answer.status == 404 ? "deleted" : answer_text(&answer, "state"), state) == 0) {
            return;
        }
        (void)usleep(10000);
    }
    fail_msg("sandbox %s does not become %s", id, state);
}

/* From the list: looking at one sandbox is asking who is attached to it. */
static void find_active(const struct rig *rig, const char *id, char ret_active[CLOCK_TEXT_SIZE])
{
    _cleanup_answer_ struct answer answer = {0};
    const json_t *item;
    size_t i;

    rig_ask(rig, "GET", "/n1/sandboxes", NULL, &answer);
    json_array_foreach(json_object_get(answer.json, "items"), i, item) {
        if (strcmp(json_string_value(json_object_get(item, "id")), id) == 0) {
            (void)snprintf(ret_active, CLOCK_TEXT_SIZE, "%s",
                           json_string_value(json_object_get(item, "active_at")));
            return;
        }
    }
    fail_msg("no sandbox %s", id);
}

void rig_read_active(const struct rig *rig, const char *id, char ret_active[CLOCK_TEXT_SIZE])
{
    char now[CLOCK_TEXT_SIZE];

    find_active(rig, id, ret_active);
    do {
        clock_format(clock_real_ms(), now);
    } while (strcmp(now, ret_active) <= 0);
}

void rig_wait_active(const struct rig *rig, const char *id, const char *active)
{
    char last[CLOCK_TEXT_SIZE];

    for (int i = 0; i < 1000; i++) {
        find_active(rig, id, last);
        if (strcmp(last, active) > 0) {
            return;
        }
        (void)usleep(10000);
    }
    fail_msg("nothing was activity after %s", active);
}

/* ---- commands ---- */

void rig_make_sandbox(const struct rig *rig, char id[ID_SIZE])
{
    char path[64];

    assert_int_equal(id_make("sb", id), 0);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", id);
    rig_expect(rig, "PUT", path, "{\"template\": \"base\"}", 200);
}

void rig_command(const struct rig *rig,
                 const char *sandbox,
                 const char *what,
                 const char *fields,
                 struct answer *ret_answer)
{
    _cleanup_buf_ struct buf body = buf_make(0);
    char process[ID_SIZE];
    char session[ID_SIZE];
    char path[80];

    assert_int_equal(id_make_within("pr", sandbox, process), 0);
    assert_int_equal(id_make_within("se", sandbox, session), 0);
    buf_printf(&body, "{\"process_id\": \"%s\", \"session_id\": \"%s\", %s}", process, session,
               fields);
    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/%s", sandbox, what);
    rig_ask(rig, "POST", path, buf_str(&body), ret_answer);
}

void rig_read_output(const struct rig *rig,
                     const char *sandbox,
                     const char *session,
                     const char *query,
                     struct answer *ret_answer)
{
    char path[200];

    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/sessions/%s/output?%s", sandbox, session,
                   query);
    rig_ask(rig, "GET", path, NULL, ret_answer);
}

int fixture_set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    f->rig = rig_new(0, 16);
    rig_make_sandbox(f->rig, f->sandbox);
    *state = f;
    return 0;
}

int fixture_tear_down(void **state)
{
    struct fixture *f = *state;

    rig_free(f->rig);
    free(f);
    return 0;
}

void fixture_start(const struct fixture *f, const char *fields, struct started *ret)
{
    _cleanup_answer_ struct answer answer = {0};

    rig_command(f->rig, f->sandbox, "commands", fields, &answer);
    if (answer.status != 201) {
        fail_msg("%s: %s", fields, buf_str(&answer.body));
    }
    (void)snprintf(ret->process, ID_SIZE, "%s", answer_text(&answer, "process.id"));
    (void)snprintf(ret->session, ID_SIZE, "%s", answer_text(&answer, "process.session_id"));
    (void)snprintf(ret->base, sizeof(ret->base), "/n1/sandboxes/%s/processes/%s", f->sandbox,
                   ret->process);
}

void fixture_ask(const struct fixture *f,
                 const struct started *p,
                 const char *method,
                 const char *rest,
                 const char *body,
                 struct answer *ret_answer)
{
    char path[300];

    (void)snprintf(path, sizeof(path), "%s%s", p->base, rest);
    rig_ask(f->rig, method, path, body, ret_answer);
}

uint64_t rig_anonymous_kib(const struct rig *rig)
{
    _cleanup_buf_ struct buf status = buf_make(0);
    const char *rss;
    char path[64];
    uint64_t kib = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)rig->pid);
    assert_int_equal(file_read(AT_FDCWD, path, 65536, &status), 0);
    rss = strstr(buf_str(&status), "Pss_Anon:");
    assert_non_null(rss);
    rss += strlen("Pss_Anon:");
    rss += strspn(rss, " ");
    assert_int_equal(span_parse_u64(span_make(rss, strspn(rss, "0123456789")), 1U << 30U, &kib), 0);
    return kib;
}
