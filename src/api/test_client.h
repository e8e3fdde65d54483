/* Test support: a blocking HTTP client, one connection per request, that fails the running cmocka
 * test when the server is not heard of in time. */
#pragma once

#include <jansson.h>

#include "base/buf.h"

struct answer {
    int status; /* 0: the connection ended without one */
    struct buf head;
    struct buf body;
    json_t *json; /* NULL when the body is none */
    bool cut;     /* the body ended before its end */
};

struct call {
    const char *method;
    const char *path;
    const char *body;    /* NULL: none */
    const char *key;     /* NULL: no Authorization */
    const char *headers; /* further lines, each with CR LF; NULL: none */
};

#define _cleanup_answer_ _cleanup_(answer_done)

void answer_done(struct answer *answer);
int client_connect(int port);
/* Sends a request; the answer is to be read from the descriptor. */
void client_send(int fd, const struct call *call);
void client_send_text(int fd, const char *text);
void client_read(int fd, struct answer *ret_answer);
void client_ask(int port, const struct call *call, struct answer *ret_answer);
/* The value of a header into out, "" when it is not there. */
void answer_header(const struct answer *answer, const char *name, char out[256]);
/* A text of the JSON answer by a path such as "sandbox.state"; "" when it is none. */
const char *answer_text(const struct answer *answer, const char *path);
const json_t *answer_find(const struct answer *answer, const char *path);
