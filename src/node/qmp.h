/* A QMP connection to one VMM: commands in order, answers by id, events.
 *
 * The other end may be compromised: lines are bounded and parsed strictly (qmp_parse.h), an answer
 * must belong to a command that waits, and the first violation or the end of the stream fails the
 * connection once. All on the loop thread. */
#pragma once

#include <jansson.h>

#include "base/cleanup.h"

struct error;
struct loop;
struct qmp;

struct qmp_callbacks {
    /* Greeted and negotiated: commands may be sent. */
    void (*on_ready)(void *arg);
    void (*on_event)(void *arg, const char *name, const json_t *data);
    /* The connection is dead; outstanding commands have heard their error before. qmp_free is
     * allowed. */
    void (*on_failed)(void *arg, const char *message);
};

/* body: the returned value, borrowed; NULL when err is set. */
typedef void (*qmp_reply_fn)(void *arg, const json_t *body, const struct error *err);

/* NULL for lack of memory. */
struct qmp *qmp_new(struct loop *loop, const struct qmp_callbacks *callbacks, void *arg);
/* Connects to the listening unix socket at path; while its backlog is full, of a VMM that does not
 * run just now, it is tried again. 0 or -errno. */
int qmp_connect(struct qmp *qmp, const char *path) _must_check_;
/* Closes and frees; outstanding commands are forgotten without a call. NULL is fine. */
void qmp_free(struct qmp *qmp);
/* Sends a command. args is stolen (NULL: none); fd (-1: none) travels with it and stays the
 * caller's; fn may be NULL. Failures to send come by on_failed, later. */
void qmp_send(
    struct qmp *qmp, const char *command, json_t *args, int fd, qmp_reply_fn fn, void *arg);
