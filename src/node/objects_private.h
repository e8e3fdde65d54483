/* Shared by objects.c (what is wanted, and its turn) and objects_files.c (files of owners). */
#pragma once

#include <jansson.h>

#include "base/list.h"
#include "node/id_table.h"
#include "node/node_private.h"
#include "node/object_claim.h"
#include "node/object_place.h"
#include "node/objects.h"
#include "node/objects_job.h"

#define OBJECTS_PATH_SIZE  560
#define OBJECTS_WHERE_SIZE (SETTINGS_PATH_SIZE + 260)
#define OBJECTS_FILES_MAX  4000U
#define OBJECTS_FETCHES    2U
#define OBJECTS_BATCH      100U
#define OBJECTS_RETRY_MS   1000
#define OBJECTS_RETRY_MAX  300000

enum objects_want {
    OBJECTS_KEEP,
    OBJECTS_FORGET
};

struct objects_entry {
    struct list link;
    struct id_entry by_owner; /* while it waits, not in a batch */
    char owner[ID_SIZE];
    enum objects_want want;
};

/* The files of an owner, opened; what is to be done with its result. */
struct objects_put {
    struct node *node;
    char owner[ID_SIZE];
    char dir[OBJECTS_PATH_SIZE];      /* of the owner */
    char snapshot[OBJECTS_PATH_SIZE]; /* the snapshot in it */
    char template_disk[OBJECTS_PATH_SIZE];
    char images[OBJECTS_PATH_SIZE];
    int snapshot_fd; /* of the snapshot that is stored, wherever it is by now; -1 */
    bool is_checkpoint;
    json_t *request;
    int *fds;
    unsigned int fd_count;
    char manifest[OBJECTS_NAME_SIZE];
    char base[OBJECTS_NAME_SIZE];
    char store[OBJECT_CLAIM_ID_SIZE]; /* where it is */
    bool store_is_known;              /* and that is written down */
    int result;
};

struct objects_get {
    struct list link; /* of objects->fetches */
    struct node *node;
    objects_fn fn;
    void *arg;
    char owner[ID_SIZE];
    char manifest[OBJECTS_NAME_SIZE];
    char dir[OBJECTS_PATH_SIZE];
    char template_disk[OBJECTS_PATH_SIZE];
    char images[OBJECTS_PATH_SIZE];
    unsigned int uid;
    struct objects_job *job;
    json_t *request;
    int dir_fd;
    char base[OBJECTS_NAME_SIZE];
    char store[OBJECT_CLAIM_ID_SIZE];
    bool store_is_known;
    bool begun;
    int result;
    struct error err;
};

/* For a job; borrowed. */
struct objects_fds {
    const int *fds;
    unsigned int count;
};

struct objects {
    struct node *node;
    struct object_place place;
    char dir[SETTINGS_PATH_SIZE + 16];   /* of a directory store; "": a bucket */
    char where[OBJECTS_WHERE_SIZE];      /* the same, or bucket and server: as it is written down */
    char store_id[OBJECT_CLAIM_ID_SIZE]; /* of a directory that was used; "" */
    bool known;                          /* what is written down is this place */
    uint64_t volume_device;
    struct list given_up; /* jobs that hang in a store that does not answer */
    char program[NODE_PATH_SIZE];
    unsigned int uid;
    struct list entries; /* in the order in which they came */
    struct id_table by_owner;
    unsigned int keep_count;
    unsigned int forget_count;
    struct objects_put *put; /* under way */
    struct list batch;       /* entries that are being forgotten */
    struct objects_job *job; /* of put, batch or sweep */
    bool busy;               /* a worker, or the job, or a sweep */
    bool obsolete;           /* what is being stored is not wanted any more */
    bool started;
    bool sweep_wanted;
    bool is_full;       /* the next sweep keeps nothing for its age */
    int64_t garbage_ms; /* when the last of it came about; 0: never */
    int64_t sweep_due_ms;
    int64_t sweep_delay_ms; /* of the next try; 0: the last one succeeded */
    struct loop_timer *timer;
    int64_t delay_ms; /* of the next try; 0: nothing failed */
    int64_t retry_at_ms;
    int64_t failing_since_ms;
    struct error problem;
    struct list fetches;
    unsigned int fetching;
    bool dropping_images;    /* no fetch begins: it might count on one of them */
    uint64_t last_raw_bytes; /* of the last one stored */
    uint64_t last_stored_bytes;
};

/* objects.c */
/* Whoever's turn it is; not from inside. */
void objects_go_on(struct objects *o);

/* objects_fetch.c */
/* Those that wait begin, as many as may. */
void objects_next_fetch(struct objects *o);

/* objects_place.c */
bool objects_is_bucket(const struct objects *o);
/* By the settings, and what was written down. Never looks into a directory store. */
int objects_find_place(struct objects *o, struct error *err) _must_check_;
/* Which store a job had; true when that is written down already. */
bool objects_take_store(const struct objects *o,
                        const json_t *result,
                        char out[OBJECT_CLAIM_ID_SIZE]);
/* Writes it down: on a worker, before anything counts on it. */
int objects_work_note_store(const struct objects *o, const char *id) _must_check_;
void objects_set_store(struct objects *o, const char *id);
/* NULL with err. */
struct objects_job *objects_start_job(struct objects *o,
                                      json_t *request,
                                      const struct objects_fds *fds,
                                      objects_job_fn fn,
                                      void *arg,
                                      struct error *err);
/* Of OBJECTS_PATH_SIZE. */
void objects_template_path(const struct objects *o,
                           const char *name,
                           const char *version,
                           char *out);
/* In the background; here, when there is no room in the queue. */
void objects_submit(struct objects *o, void (*work)(void *arg), void (*done)(void *arg), void *arg);
/* False when the result does not have one. */
bool objects_take_name(const json_t *result, const char *key, char out[OBJECTS_NAME_SIZE]);

/* objects_files.c; work_* run on workers. */
void objects_put_free(struct objects_put *put);
/* Opens what is to be stored and makes the request. -ENOENT: there is no snapshot any more. */
int objects_work_open(struct objects_put *put) _must_check_;
/* It is stored: its directory says so. -ENOENT as above, or another one is in its place. */
int objects_work_mark(struct objects_put *put) _must_check_;
void objects_get_free(struct objects_get *get);
int objects_work_prepare(struct objects_get *get) _must_check_;
/* What was fetched becomes root's. */
int objects_work_take(struct objects_get *get) _must_check_;
/* Images that nothing uses any more; no fetch may be under way. */
void objects_drop_images(const char *images);
