/* Test support: a sandbox of the fake node with an application on a port, and requests whose Host
 * the test decides. */
#pragma once

#include "api/port_app.h"
#include "api/test_rig.h"

#define PORTS_DOMAIN "space.localhost"
#define PORTS_HELLO  "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\nhello"

struct ports_fixture {
    struct rig *rig;
    struct port_app *app;
    char id[21];
    char host[96]; /* of the application's port */
    char path[96]; /* of its proxy: "/v1/sandboxes/…/proxy" */
    char auth[96]; /* a header line with the key */
};

struct ports_web {
    const char *method; /* NULL: GET */
    const char *host;
    const char *target;  /* NULL: / */
    const char *headers; /* lines, or NULL */
    const char *more;    /* further lines, or NULL */
    const char *body;    /* NULL: none */
};

/* For cmocka: *state is the fixture. */
int ports_set_up(void **state);
int ports_tear_down(void **state);
/* Sends a request; its answer is to be read from the descriptor. */
int ports_open_web(const struct ports_fixture *f, const struct ports_web *web);
void ports_ask(const struct ports_fixture *f,
               const struct ports_web *web,
               struct answer *ret_answer);
/* The answer has this status, and this X-Space-Error ("" for none). */
void ports_expect(const struct ports_fixture *f,
                  const struct ports_web *web,
                  int status,
                  const char *code);
bool buf_contains(const struct buf *text, const char *what);
/* `scope`: further members of the body, beginning with a comma. */
void ports_make_token(struct ports_fixture *f, const char *scope, char out[256]);
/* One for the application's port. */
void ports_make_port_token(struct ports_fixture *f, char out[256]);
void ports_set_public(struct ports_fixture *f, bool is_public);
/* Reads from a descriptor until `what` has come. */
void ports_read_until(int fd, const char *what, struct buf *out);
/* Whether the peer ends or cuts the connection in time. */
bool ports_is_ended(int fd);
