#include "api/test_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "api/fake_node.h"
#include "api/program.h"
#include "base/clock.h"
#include "base/fd.h"

#define SELF     "/proc/self/exe"
#define READY_MS 30000

int rig_main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--api") == 0) {
        return program_main(argc - 1, &argv[1]);
    }
    if (argc == 4 && strcmp(argv[1], "--fake-node") == 0) {
        return fake_node_main(argv[2], argv[3]);
    }
    return -1;
}

void rig_sleep_ms(int ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000L};

    (void)nanosleep(&t, NULL);
}

static pid_t spawn(const struct rig *rig, const char *log, char *const argv[])
{
    char path[128];
    pid_t pid;

    (void)snprintf(path, sizeof(path), "%s/%s", rig->dir, log);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);

        (void)dup2(fd, STDOUT_FILENO);
        (void)dup2(fd, STDERR_FILENO);
        (void)execv(SELF, argv);
        _exit(127);
    }
    return pid;
}

static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t n = sizeof(address);
    _cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &n), 0);
    return ntohs(address.sin_port);
}

static void write_text(const struct rig *rig, const char *name, const char *text)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", rig->dir, name);
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_of_str(text), 0644, false), 0);
}

void rig_control(struct rig *rig, const char *text)
{
    write_text(rig, "control", text);
}

void rig_start_node(struct rig *rig)
{
    char socket_path[128];
    char control[128];
    char *const argv[] = {(char[]){"self"}, (char[]){"--fake-node"}, socket_path, control, NULL};

    (void)snprintf(socket_path, sizeof(socket_path), "%s/node.sock", rig->dir);
    (void)snprintf(control, sizeof(control), "%s/control", rig->dir);
    rig->node = spawn(rig, "node.log", argv);
}

void rig_wait_node(struct rig *rig)
{
    assert_int_equal(waitpid(rig->node, NULL, 0), rig->node);
    rig->node = 0;
}

void rig_stop_node(struct rig *rig)
{
    if (rig->node > 0) {
        (void)kill(rig->node, SIGKILL);
        rig_wait_node(rig);
    }
}

void rig_start_api(struct rig *rig)
{
    char *const argv[] = {(char[]){"self"},
                          (char[]){"--api"},
                          (char[]){"--config"},
                          rig->config,
                          (char[]){"--share"},
                          rig->dir,
                          NULL};

    rig->api = spawn(rig, "api.log", argv);
}

int rig_stop_api(struct rig *rig, int signal_number)
{
    int status = 0;

    if (rig->api > 0) {
        (void)kill(rig->api, signal_number);
        assert_int_equal(waitpid(rig->api, &status, 0), rig->api);
        rig->api = 0;
    }
    return status;
}

void rig_wait_ready(struct rig *rig)
{
    int64_t end = clock_monotonic_ms() + READY_MS;
    int status = 0;

    while (status != 200 && clock_monotonic_ms() < end) {
        _cleanup_answer_ struct answer a = {0};

        client_ask(rig->port, &(struct call){.method = "GET", .path = "/readyz"}, &a);
        status = a.status;
        if (status != 200) {
            rig_sleep_ms(20);
        }
    }
    assert_int_equal(status, 200);
}

int rig_make_key(struct rig *rig, const char *name, const char *role, const char *file)
{
    char name_text[64];
    char role_text[16];
    char out[160];
    int status;
    char *const argv[] = {(char[]){"self"},
                          (char[]){"--api"},
                          (char[]){"--config"},
                          rig->config,
                          (char[]){"--create-key"},
                          name_text,
                          (char[]){"--role"},
                          role_text,
                          (char[]){"--out"},
                          out,
                          NULL};

    (void)snprintf(name_text, sizeof(name_text), "%s", name);
    (void)snprintf(role_text, sizeof(role_text), "%s", role);
    (void)snprintf(out, sizeof(out), "%s/%s", rig->dir, file);
    assert_true(waitpid(spawn(rig, "key.log", argv), &status, 0) > 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void read_key(struct rig *rig)
{
    _cleanup_buf_ struct buf text = buf_make(128);
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/admin.key", rig->dir);
    assert_int_equal(file_read(AT_FDCWD, path, 128, &text), 0);
    assert_int_equal(text.n, 39);
    assert_int_equal(span_copy_str(span_head(buf_span(&text), 38), rig->key, sizeof(rig->key)), 0);
}

struct rig *rig_new(const char *settings)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    _cleanup_buf_ struct buf text = buf_make(0);

    assert_non_null(rig);
    (void)snprintf(rig->dir, sizeof(rig->dir), "/tmp/space-api-XXXXXX");
    assert_non_null(mkdtemp(rig->dir));
    assert_int_equal(chmod(rig->dir, 0755), 0);
    (void)snprintf(rig->config, sizeof(rig->config), "%s/space.conf", rig->dir);
    rig->port = free_port();
    buf_printf(&text,
               "data_dir = %s\nrun_dir = %s\nlog_dir = %s\napi.listen = 127.0.0.1:%d\n"
               "service_user = nobody\n%s",
               rig->dir, rig->dir, rig->dir, rig->port, settings);
    write_text(rig, "space.conf", buf_str(&text));
    write_text(rig, "openapi.json", "{\"openapi\": \"3.1.0\"}");
    rig_control(rig, "");
    {
        char store[96];

        (void)snprintf(store, sizeof(store), "%s/store", rig->dir);
        assert_int_equal(mkdir(store, 0777), 0);
        assert_int_equal(chmod(store, 0777), 0);
    }
    assert_int_equal(rig_make_key(rig, "admin", "admin", "admin.key"), 0);
    read_key(rig);
    rig_start_node(rig);
    rig_start_api(rig);
    rig_wait_ready(rig);
    return rig;
}

void rig_free(struct rig *rig)
{
    int status = rig_stop_api(rig, SIGTERM);

    rig_stop_node(rig);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        assert_int_equal(dir_remove_tree(AT_FDCWD, rig->dir), 0);
    } else {
        print_error("space-api ended with status %x: see %s\n", (unsigned int)status, rig->dir);
        free(rig);
        fail();
    }
    free(rig);
}

void rig_ask(struct rig *rig,
             const char *method,
             const char *path,
             const char *body,
             struct answer *ret_answer)
{
    struct call call = {.method = method, .path = path, .body = body, .key = rig->key};

    client_ask(rig->port, &call, ret_answer);
}

void rig_expect(struct rig *rig, int status, const char *method, const char *path, const char *body)
{
    _cleanup_answer_ struct answer a = {0};

    rig_ask(rig, method, path, body, &a);
    if (a.status != status) {
        fail_msg("%s %s %s: %d %s", method, path, body == NULL ? "" : body, a.status,
                 buf_str(&a.body));
    }
}

void rig_create(struct rig *rig, const char *body, char ret_id[21])
{
    _cleanup_answer_ struct answer a = {0};

    rig_ask(rig, "POST", "/v1/sandboxes", body, &a);
    if (a.status != 201) {
        fail_msg("create: %d %s", a.status, buf_str(&a.body));
    }
    assert_string_equal(answer_text(&a, "sandbox.state"), "running");
    (void)snprintf(ret_id, 21, "%s", answer_text(&a, "sandbox.id"));
}
