/* Creates, deletes, pauses, suspends and wakes at the node, and what they leave in the store.
 *
 * A job is one call to the node that must come to a definite end: it lives until the node gave an
 * answer, over lost connections and restarts of either program. Jobs without a call are parked:
 * their timer, or the next connection to the node (lifecycle_resume), sends them again; the node
 * takes a repetition for the same thing. The jobs of one sandbox go one after the other, in the
 * order in which they came; a delete overtakes and ends all others. */
#pragma once

#include <stdint.h>

#include "api/report.h"
#include "api/request.h"

struct api;
struct lifecycle;
struct operation;

struct lifecycle *lifecycle_new(struct api *api);
void lifecycle_free(struct lifecycle *lifecycle);
/* Parks a job for every operation that has not ended and every sandbox that waits without one. */
int lifecycle_load(struct api *api, struct error *err) _must_check_;
/* The node is there: sends what is parked. */
void lifecycle_resume(struct api *api);
/* The node does now what it has refused for a while: the same, and who is refused once more does
 * not wait for long. */
void lifecycle_hurry(struct api *api);

/* Sends a create whose sandbox and operation (id "" for none) are in the store. */
int lifecycle_create(struct api *api,
                     const char *sandbox_id,
                     const char *operation_id,
                     const char *body,
                     struct error *err) _must_check_;
/* Marks the sandbox as deleting in the store, with an operation of this key, and sends it. One that
 * is being deleted already gives the operation of that. */
int lifecycle_delete(struct api *api,
                     const struct sandbox *sandbox,
                     const char *operation_id,
                     const char *key_id,
                     char ret_operation_id[21],
                     struct error *err) _must_check_;
/* Deletes at the node what the store does not want (again): no operation, no record changes. */
void lifecycle_purge(struct api *api, const char *sandbox_id);

enum change_verb {
    CHANGE_PAUSE,
    CHANGE_SUSPEND,
    CHANGE_WAKE
};

struct change {
    enum change_verb verb;
    const char *operation_id;
    const char *key_id;
    const char *reason_code; /* for the sandbox's state_reason; "": none */
    const char *reason_message;
    bool spends_timeout; /* timeout_seconds is carried out by it: in one step with the operation */
};

/* A change with a new operation: done at once when it is so already, else begun, or put
 * behind the jobs before it. failed_precondition where the state does not allow it and nothing that
 * may change it is on its way. A wake of one in `error` boots its disk: for who asks for that
 * alone, no call that needs the guest does. */
int lifecycle_change(struct api *api,
                     const struct sandbox *sandbox,
                     const struct change *change,
                     struct error *err) _must_check_;

struct checkpoint;
struct create_spec;

#define FORK_MAX 100

struct fork {
    const struct create_spec *spec; /* how many; the checkpoint, and the variables over it */
    const struct sandbox *child;    /* what their records say, but for the id */
};

struct capture {
    const char *operation_id;
    const char *key_id;
    const char *checkpoint_id;
    const struct checkpoint *checkpoint; /* to be made; NULL: to roll back to checkpoint_id */
    const struct fork *fork;             /* for whose children it is made, or NULL */
};

/* A checkpoint, a rollback to one, or a fork, with a new operation: begun, or put behind the jobs
 * before it. Errors as of a change. The records of a fork's children are made with its operation,
 * `creating`; the sandbox itself is free again when the checkpoint is made. */
int lifecycle_capture(struct api *api,
                      const struct sandbox *sandbox,
                      const struct capture *capture,
                      struct error *err) _must_check_;
/* One that is `deleting` in the store is removed at the node, and then its record. */
void lifecycle_drop_checkpoint(struct api *api, const char *checkpoint_id);

struct template_order {
    const char *name;
    const char *version;
    const char *checkpoint_id;
    const char *operation_id;
    const char *key_id;
};

/* A template of a checkpoint, with a new operation; begun at once. */
int lifecycle_make_template(struct api *api, const struct template_order *order, struct error *err)
    _must_check_;

/* What the last job of a sandbox leaves it as, and the operation of a change. */
enum lifecycle_end {
    LIFECYCLE_END_OTHER, /* no job, or another one */
    LIFECYCLE_END_PAUSED,
    LIFECYCLE_END_SUSPENDED,
    LIFECYCLE_END_RUNNING,
};
enum lifecycle_end
lifecycle_end_of(const struct api *api, const char *sandbox_id, char ret_operation_id[21]);
/* The node says this of a sandbox that is busy: a failure is not forgotten. */
void lifecycle_note(struct api *api, const struct sandbox_report *report);
/* Whether a job of this sandbox has yet to end. */
bool lifecycle_is_busy(const struct api *api, const char *sandbox_id);
/* How many suspends have yet to end. */
int lifecycle_count_suspends(const struct api *api);

/* Answers rq by fn when the operation has ended or its wait is over. */
void operation_wait(struct request *rq, const char *operation_id, request_fn fn);
void operation_wait_for(struct request *rq,
                        const char *operation_id,
                        int64_t wait_ms,
                        request_fn fn);
/* Answers with the failed operation's own error, with what it was about. */
void operation_fail(struct request *rq, const struct operation *operation);
/* The operation has ended: those who wait for it are answered. */
void operation_notify(struct api *api, const char *operation_id);
