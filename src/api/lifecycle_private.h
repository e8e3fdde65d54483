/* Jobs of the lifecycle, for the lifecycle_*.c files.
 *
 * Those of one sandbox are in the order in which they came. The first one is at work (its call is
 * on its way, or it is parked); the others wait for it, their operations are pending. */
#pragma once

#include "api/api.h"
#include "api/lifecycle.h"
#include "api/report.h"
#include "api/store_operation.h"
#include "base/list.h"

struct http_call;
struct http_call_request;
struct loop_timer;

/* What is on its way from the object store to the node, for the job. */
enum job_fetch {
    JOB_FETCH_NONE,
    JOB_FETCH_SANDBOX,
    JOB_FETCH_CHECKPOINT,
};

enum job_kind {
    JOB_CREATE,
    JOB_DELETE,
    JOB_PURGE, /* a delete that no record waits for */
    JOB_PAUSE,
    JOB_SUSPEND,
    JOB_WAKE,
    JOB_CHECKPOINT,
    JOB_ROLLBACK,
    JOB_FORK,     /* until its checkpoint is made; then its children's creates go on */
    JOB_DROP,     /* of a checkpoint, whose id is in sandbox_id */
    JOB_TEMPLATE, /* makes one; its version is in sandbox_id */
    JOB_UNMAKE,   /* one that nobody waits for any more */
};

struct job {
    struct list link;      /* of all, oldest first */
    struct list hash_link; /* of those whose ids have the same hash */
    struct api *api;
    enum job_kind kind;
    char sandbox_id[ID_SIZE];
    char operation_id[ID_SIZE]; /* "" for none */
    char checkpoint_id[ID_SIZE];
    char fork_id[ID_SIZE]; /* of a create: the operation of the fork that it is a child of, or "" */
    char template_name[SANDBOX_NAME_SIZE];
    char key_id[ID_SIZE];   /* of who makes a template */
    struct http_call *call; /* NULL: parked, or waiting */
    struct loop_timer *timer;
    int64_t delay_ms;
    int64_t give_up_ms; /* monotonic; not of a delete */
    bool is_begun;      /* a change: the record says that it is at work; a fork's child: its
                           checkpoint is made */
    bool is_over;       /* a fork's child that is not to be made: it ends at its next turn */
    bool boots;         /* a wake that was asked for in `error`, whose reason it keeps until then */
    char reason_code[32];
    char reason_message[160];
    struct sandbox_loss loss;
    enum job_fetch fetch;
    bool has_fetched;     /* or has tried */
    json_t *fetch_answer; /* of a failure */
};

/* lifecycle.c */
struct job *
job_new(struct api *api, enum job_kind kind, const char *sandbox_id, const char *operation_id);
void job_free(struct job *job);
/* After a start: of the operation. One that has waited so far has only what is left of its time. */
void job_load(struct job *job, const struct operation *o);
struct list *lifecycle_jobs(struct api *api); /* all, by link */
/* It pauses, suspends or wakes. */
bool job_is_change(const struct job *job);
struct job *job_find(const struct api *api, const char *sandbox_id);
struct job *job_find_last(const struct api *api, const char *sandbox_id);
int job_count(const struct api *api, const char *sandbox_id);
bool job_is_first(const struct job *job);
/* body: of a create, NULL: the one kept in the store. */
void job_send(struct job *job, const char *body);
/* Writes down that it is at work: its operation, and what `mark` changes, in one step. */
typedef int (*job_mark_fn)(const struct job *job, struct error *err);
int job_write_begin(struct job *job, job_mark_fn mark, struct error *err) _must_check_;
/* What the node told meanwhile: that the VM has ended. For the inside of the transaction that ends
 * the job, after the node's record of the answer, if there is one. */
int job_write_loss(const struct job *job, struct error *err) _must_check_;
/* Tries again later. */
void job_park(struct job *job);
/* Ends the job, tells those who wait, begins the next one. */
void job_end(struct job *job);

/* lifecycle_create.c */
void job_on_create_done(struct job *job, struct http_call *call);
/* It is there: `record` is the sandbox as JSON. */
void job_on_created(struct job *job, const char *record);
void job_fail_create(struct job *job, const json_t *envelope, const struct error *why);
void job_give_up_create(struct job *job);

/* lifecycle_change.c: pause, suspend and wake */
/* "pause", "suspend" or "wake". */
const char *job_change_verb(const struct job *job);
/* It is the first one now: does nothing, fails, or is sent. May end the job. */
void job_start_change(struct job *job);
void job_on_change_done(struct job *job, struct http_call *call);
void job_give_up_change(struct job *job);
const char *job_change_body(const struct job *job, struct buf *text);
void job_keep_reason(struct job *job, const char *code, const char *message);

/* lifecycle_checkpoint.c: checkpoint, rollback and the checkpoint of a fork; as above */
bool job_is_capture(const struct job *job);
/* A checkpoint or a fork: what it makes at the node is removed when it fails. */
bool job_makes_checkpoint(const struct job *job);
void job_start_capture(struct job *job);
void job_on_capture_done(struct job *job, struct http_call *call);
void job_give_up_capture(struct job *job);
/* Free it; NULL without memory, or when the record cannot be read. */
char *job_capture_body(const struct job *job);
void job_finish_drop(struct job *job);
int lifecycle_load_drops(struct api *api, struct error *err) _must_check_;

/* lifecycle_fork.c. The first four are for the inside of a transaction. */
/* The children's records, and their jobs, which wait: fork_forget takes those back. */
int fork_insert(const struct job *job, const struct fork *fork, struct error *err) _must_check_;
/* Its checkpoint is made. */
int fork_captured(const struct job *job, struct error *err) _must_check_;
/* It came to nothing: neither do its children. */
int fork_fail(const struct job *job, struct error *err) _must_check_;
/* A child has come to its end; the last one ends the fork. error NULL: it runs. Of a create that is
 * no child: nothing. */
int fork_end_child(const struct job *child, const char *error, struct error *err) _must_check_;
void fork_forget(struct api *api, const char *operation_id);
/* After fork_captured: the children's creates are sent. */
void fork_release(struct api *api, const char *operation_id);
/* After fork_fail: the children's jobs end, each at its next turn. */
void fork_abandon(struct api *api, const char *operation_id);
/* After fork_captured and fork_end_child: if the fork has ended, those who wait are told, and its
 * checkpoint goes. "": nothing. */
void fork_tell(struct api *api, const char *operation_id);
/* A child whose turn has not come. */
bool fork_is_waiting(const struct job *job);
/* After a start: what of it has yet to end. */
int fork_load(struct api *api, const struct operation *o) _must_check_;
/* lifecycle_fetch.c */
/* The node does not have what the job needs. True when the object store has it: then it is asked
 * for, and the job goes on with the answer. */
bool job_try_fetch(struct job *job, const json_t *envelope);
void job_send_fetch(struct job *job);
void job_on_fetched(struct job *job, struct http_call *call);
void job_start_call(struct job *job, struct http_call_request *request);

/* lifecycle_template.c */
void job_on_template_done(struct job *job, struct http_call *call);
void job_on_unmake_done(struct job *job, struct http_call *call);
void job_give_up_template(struct job *job);
/* Free it; NULL without memory. */
char *job_template_body(const struct job *job);
int lifecycle_load_template(struct api *api, const struct operation *o) _must_check_;
/* Those that were given up: whether the node made them all the same is not known. */
int lifecycle_load_unmakes(struct api *api, struct error *err) _must_check_;

#define JOB_CREATE_TIMEOUT_MS 600000
/* Changes and captures of one sandbox: the one at work, and those that wait. */
#define JOBS_MAX 64
