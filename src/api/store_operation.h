/* Operation records: what a lifecycle call started, and how it ended. */
#pragma once

#include <stdint.h>

#include "api/store.h"
#include "base/id.h"

enum operation_state {
    OPERATION_PENDING,
    OPERATION_RUNNING,
    OPERATION_SUCCEEDED,
    OPERATION_FAILED,
    OPERATION_STATE_COUNT,
};

#define OPERATION_TEMPLATE_SIZE 96

struct operation {
    int64_t seq;
    char id[ID_SIZE];
    char kind[16];            /* create, delete, pause, suspend, wake, checkpoint, rollback, fork,
                                 template */
    char sandbox_id[ID_SIZE]; /* "": none */
    char checkpoint_id[ID_SIZE];                 /* "": none */
    char template_made[OPERATION_TEMPLATE_SIZE]; /* NAME@VERSION; "": none */
    char key_id[ID_SIZE];
    enum operation_state state;
    bool boots; /* a wake that was asked for in `error` */
    int64_t created_at;
    int64_t finished_at; /* 0: not yet */
    char *error;         /* JSON object, or NULL */
    char *result;        /* JSON object, or NULL */
};

struct operation_filter {
    int64_t before_seq;
    const char *sandbox_id;
    const char *kind;
    unsigned int states; /* bit per enum operation_state; 0: all */
    int64_t limit;
};

typedef int (*operation_visit_fn)(void *arg, const struct operation *operation);

const char *operation_state_name(enum operation_state state);
int operation_state_find(const char *name, enum operation_state *ret_state);
void operation_done(struct operation *operation);
#define _cleanup_operation_ _cleanup_(operation_done)

int store_operation_insert(struct store *store, const struct operation *o, struct error *err)
    _must_check_;
/* 1, 0 or -errno. */
int store_operation_get(struct store *store,
                        const char *id,
                        struct operation *ret_operation,
                        struct error *err) _must_check_;
/* The newest operation of this kind on a sandbox (kind NULL: of any kind): 1, 0 or -errno. */
int store_operation_find(struct store *store,
                         const char *sandbox_id,
                         const char *kind,
                         struct operation *ret_operation,
                         struct error *err) _must_check_;
/* It is no longer pending but running. */
int store_operation_run(struct store *store, const char *id, struct error *err) _must_check_;
/* What it gives when it succeeds: a JSON object. */
int store_operation_set_result(struct store *store,
                               const char *id,
                               const char *result,
                               struct error *err) _must_check_;
/* Ends it unless it has ended: 1 when it did, 0, -errno. error NULL: succeeded. */
int store_operation_finish(struct store *store,
                           const char *id,
                           const char *error,
                           int64_t now,
                           struct error *err) _must_check_;
int store_operation_list(struct store *store,
                         const struct operation_filter *filter,
                         operation_visit_fn visit,
                         void *arg,
                         struct error *err) _must_check_;
/* All that have not ended, oldest first. */
int store_operation_each_open(struct store *store,
                              operation_visit_fn visit,
                              void *arg,
                              struct error *err) _must_check_;
/* Forgets up to 500 finished ones from before `before`. Returns how many. */
int store_operation_prune(struct store *store, int64_t before, struct error *err) _must_check_;
