/* A request about a guest's files: one call that is one service of the guest's agent.
 *
 * The handler reads its arguments into a struct file_call and starts it: it waits for its turn at
 * the gate, the service runs as the user of the request, and its end is the answer. Lives in the
 * exchange's memory; whatever way the request ends, its service ends with it. */
#pragma once

#include <jansson.h>

#include "base/buf.h"
#include "node/file_query.h"
#include "node/gate.h"
#include "node/routes.h"
#include "node/service.h"

/* The guest may be silent for so long: over a transfer, and over one step without news (the
 * deletion of a tree, the last sync of a file). */
#define FILE_TRANSFER_IDLE_MS 120000
#define FILE_STEP_MAX_MS      600000

struct file_call {
    struct call *call;
    char user[FILE_USER_SIZE];
    struct service_args args;
    struct service_spec spec;
    struct service_callbacks callbacks;
    void *state; /* the handler's own */
    /* The service came to its end: answer. end is SERVICE_END_DONE. */
    void (*on_done)(struct file_call *f, const struct service_end *end);
    /* NULL, or: looks at another end first; true when it has answered. */
    bool (*on_failed)(struct file_call *f, const struct service_end *end);
    struct gate_ticket ticket;
    struct service *service; /* NULL before and after it */
    json_t *entry;           /* the ENTRY that came */

    /* The body of the answer (file_stream.c). */
    size_t owed; /* of the guest's bytes, not taken by the connection yet */
    /* The body of the request. */
    struct buf pending; /* what the guest has no room for yet */
    bool body_begun;
    bool body_paused;
    bool body_ended;
    bool end_sent;
};

/* A new one for this service, with a callback that takes the ENTRY. NULL: answered. */
struct file_call *file_call_new(struct call *call, const char *service);
/* Starts it, at one of the sandbox's two gates. Everything that fails from here is answered. */
void file_call_start(struct file_call *f, bool is_transfer);
/* Opens the service (again, with new arguments). */
void file_call_open(struct file_call *f);
/* Answers with the ENTRY that came. */
void file_call_answer_entry(struct file_call *f, int status);
/* Frees what the call has: the on_close of every call, or called by the handler's own. */
void file_call_on_close(struct call *call, bool complete);
/* Ends the service, if there is one; the call is the handler's to answer. */
void file_call_close(struct file_call *f);

/* Reads `user` and `path` of the query, which may have these parameters (NULL-terminated names),
 * and adds the path to the arguments. */
int file_call_read_query(struct file_call *f, const char *const *names, struct error *err)
    _must_check_;

/* ---- streams (file_stream.c) ---- */
/* The bytes of the service are the body of the answer, which has begun. */
void file_call_write(struct file_call *f, struct span bytes);
/* The body of the request is the service's input: a callback for on_room. */
void file_call_on_room(void *arg);
