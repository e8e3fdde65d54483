#include "api/ports_rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#define SPEC "{\"template\": \"base\"}"

int ports_set_up(void **state)
{
    struct ports_fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    f->rig = rig_new("");
    f->app = port_app_new();
    rig_create(f->rig, SPEC, f->id);
    (void)snprintf(f->host, sizeof(f->host), "%u-%s." PORTS_DOMAIN, port_app_port(f->app), f->id);
    (void)snprintf(f->path, sizeof(f->path), "/v1/sandboxes/%s/ports/%u/proxy", f->id,
                   port_app_port(f->app));
    (void)snprintf(f->auth, sizeof(f->auth), "X-Space-Token: %s\r\n", f->rig->key);
    *state = f;
    return 0;
}

int ports_tear_down(void **state)
{
    struct ports_fixture *f = *state;

    rig_free(f->rig);
    port_app_free(f->app);
    free(f);
    return 0;
}

int ports_open_web(const struct ports_fixture *f, const struct ports_web *web)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    int fd = client_connect(f->rig->port);

    assert_true(fd >= 0);
    buf_printf(&text, "%s %s HTTP/1.1\r\nHost: %s\r\n%s%s",
               web->method == NULL ? "GET" : web->method, web->target == NULL ? "/" : web->target,
               web->host, web->headers == NULL ? "" : web->headers,
               web->more == NULL ? "" : web->more);
    if (web->body != NULL) {
        buf_printf(&text, "Content-Length: %zu\r\n", strlen(web->body));
    }
    buf_printf(&text, "\r\n%s", web->body == NULL ? "" : web->body);
    client_send_text(fd, buf_str(&text));
    return fd;
}

void ports_ask(const struct ports_fixture *f,
               const struct ports_web *web,
               struct answer *ret_answer)
{
    struct ports_web closing = *web;
    _cleanup_buf_ struct buf more = buf_make(0);
    int fd;

    buf_printf(&more, "Connection: close\r\n%s", web->more == NULL ? "" : web->more);
    closing.more = buf_str(&more);
    fd = ports_open_web(f, &closing);
    client_read(fd, ret_answer);
    (void)close(fd);
}

void ports_expect(const struct ports_fixture *f,
                  const struct ports_web *web,
                  int status,
                  const char *code)
{
    _cleanup_answer_ struct answer a = {0};
    char header[256];

    ports_ask(f, web, &a);
    answer_header(&a, "X-Space-Error", header);
    if (a.status != status || strcmp(header, code) != 0) {
        fail_msg("%s %s: %d %s: %s", web->host, web->target, a.status, header, buf_str(&a.body));
    }
}

bool buf_contains(const struct buf *text, const char *what)
{
    return strstr(buf_str(text), what) != NULL;
}

void ports_make_token(struct ports_fixture *f, const char *scope, char out[256])
{
    _cleanup_answer_ struct answer a = {0};
    char body[256];

    (void)snprintf(body, sizeof(body), "{\"sandbox_id\": \"%s\"%s}", f->id, scope);
    rig_ask(f->rig, "POST", "/v1/tokens", body, &a);
    if (a.status != 201) {
        fail_msg("%s: %d %s", body, a.status, buf_str(&a.body));
    }
    (void)snprintf(out, 256, "%s", answer_text(&a, "token"));
}

void ports_make_port_token(struct ports_fixture *f, char out[256])
{
    char scope[64];

    (void)snprintf(scope, sizeof(scope), ", \"port\": %u, \"access\": \"write\"",
                   port_app_port(f->app));
    ports_make_token(f, scope, out);
}

void ports_set_public(struct ports_fixture *f, bool is_public)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/ports/%u", f->id, port_app_port(f->app));
    rig_expect(f->rig, 200, "PUT", path, is_public ? "{\"public\": true}" : "{\"public\": false}");
}

void ports_read_until(int fd, const char *what, struct buf *out)
{
    while (!buf_contains(out, what)) {
        uint8_t *to = buf_reserve(out, 65536);
        ssize_t n = read(fd, to, 65536);

        if (n <= 0) {
            fail_msg("ended before %s: %s", what, buf_str(out));
        }
        buf_commit(out, (size_t)n);
    }
}

bool ports_is_ended(int fd)
{
    uint8_t piece[65536];
    ssize_t n;

    while ((n = read(fd, piece, sizeof(piece))) > 0) {
    }
    return n == 0 || errno == ECONNRESET;
}
