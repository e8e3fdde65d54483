/* A service of the guest's agent, host side (docs/agent-protocol.md, section 7): a file read or
 * written, a list, a watch, a connection to a port.
 *
 * Cuts the records off the guest's stream, hands them and the raw bytes on, and tells exactly one
 * end. The guest is hostile: records that are malformed, unasked for or out of place, bytes beyond
 * what was announced and anything behind an end are a violation, which ends the sandbox. Memory per
 * service is one record; raw bytes that were not acknowledged are at most AGENT_WINDOW, wherever
 * the owner keeps them. Nothing calls back from inside a function of this header. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "wire/agent_process.h"
#include "wire/service_record.h"

struct service;
struct services;

enum service_end_kind {
    SERVICE_END_DONE,    /* complete: DONE, all announced bytes, or status 0 behind raw bytes */
    SERVICE_END_ERROR,   /* the guest's ERROR */
    SERVICE_END_REFUSED, /* it could not be started */
    SERVICE_END_CUT,     /* no answer: the agent or the sandbox is gone, or lied */
    SERVICE_END_TIMEOUT  /* the guest did nothing for too long */
};

struct service_end {
    enum service_end_kind kind;
    int errnum;                 /* ERROR, REFUSED */
    enum agent_start_what what; /* REFUSED */
    struct span path;           /* ERROR; valid in the call */
    uint64_t count;             /* DONE */
    bool more;
};

/* All but on_ended may be NULL. A text that is returned says what was wrong with a record or body
 * ("a size that changes"): a violation. */
struct service_callbacks {
    /* ENTRY, CHANGE, LISTENER, SAMPLE, and DONE of a service that goes on. */
    const char *(*on_record)(void *arg, const struct service_record *record);
    /* Raw bytes follow. */
    const char *(*on_body)(void *arg, const struct service_body *body);
    /* Each is to be given back by service_take. */
    void (*on_bytes)(void *arg, struct span bytes);
    /* No more bytes come, while input is taken still (connect). */
    void (*on_bytes_end)(void *arg);
    /* It has started, or took input: service_room may have grown. */
    void (*on_room)(void *arg);
    /* Once; the service is freed after it. Not after service_close. */
    void (*on_ended)(void *arg, const struct service_end *end);
};

/* A service's name and arguments. */
struct service_args {
    struct buf raw;
    uint32_t count;
};

void service_args_init(struct service_args *args, const char *name);
void service_args_add(struct service_args *args, struct span text);
void service_args_add_str(struct service_args *args, const char *text);
void service_args_done(struct service_args *args);

struct service_spec {
    const struct service_args *args;
    const char *user;
    bool has_input;
    bool goes_on;     /* DONE is not its end (watch) */
    bool is_tolerant; /* nonsense of the guest ends the service, not the sandbox */
    bool is_activity; /* bytes that move are activity of the sandbox */
    int64_t idle_ms;  /* see service_set_idle */
};

/* Starts a service of a running sandbox. NULL with err when that cannot be: service_unavailable,
 * invalid_request for arguments over the limits, internal without memory. */
struct service *service_open(struct services *services,
                             const struct service_spec *spec,
                             const struct service_callbacks *callbacks,
                             void *arg,
                             struct error *err);
/* Ends it (in the guest too) and frees it; on_ended does not come. NULL is fine. */
void service_close(struct service *service);
/* Raw bytes that the owner got are out of its hands: the guest may send as many again. */
void service_take(struct service *service, size_t bytes);
/* How many of so many bytes of input may be sent now; on_room comes where not all. */
size_t service_room(const struct service *service, size_t wanted);
/* Whether input that is sent is thrown away by the guest. */
bool service_input_is_closed(const struct service *service);
/* At most service_room bytes; `end` after them. false: not sent, on_room comes when it can be. */
bool service_send(struct service *service, struct span bytes, bool end) _must_check_;
/* The guest may do nothing for so long, while nobody else is to be waited for: no taking of bytes,
 * no input. 0: for ever, once it has started. 60 s
 * limit the start in any case. */
void service_set_idle(struct service *service, int64_t idle_ms);

/* ---- for services.c ---- */
/* Ends all of them: on_ended with SERVICE_END_CUT comes for each, from inside. */
void service_cut_all(struct services *services);
