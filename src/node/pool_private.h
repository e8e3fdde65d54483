/* Shared by pool.c (what is wanted and who gets it) and pool_entry.c (the life of one VM in it). */
#pragma once

#include "base/list.h"
#include "node/pool.h"
#include "node/rehearsal.h"

#define POOL_TEMPLATES_MAX 16U

enum entry_state {
    ENTRY_STATE_STARTING, /* spawning */
    ENTRY_STATE_PREPARED, /* waits, nothing loaded */
    ENTRY_STATE_LOADING,
    ENTRY_STATE_PRIMING,
    ENTRY_STATE_WARM,
};

struct pool_entry {
    struct list link;
    struct pool *pool;
    enum entry_state state;
    bool want_warm; /* go on after spawning; else stay prepared */
    struct base *base;
    struct vm *vm;
    struct pool_request *request; /* who gets it when it is loaded, or NULL */
    struct rehearsal rehearsal;
    int64_t started_ms;
};

struct pool_request {
    struct list link;
    struct pool *pool;
    struct base_key key;
    pool_fn fn;
    void *arg;
    struct pool_entry *entry; /* that works for it */
    struct loop_timer *timer;
    bool base_wanted; /* base_get is under way */
    bool cancelled;
    bool starting; /* counted in pool->spawning */
    struct base *base;
};

/* One template that is kept warm. */
struct pool_line {
    char name[SANDBOX_TEMPLATE_SIZE];
    unsigned int target; /* UINT_MAX: by memory */
    bool known;          /* key holds the current version */
    struct base_key key;
    int64_t retry_at_ms;
    int64_t backoff_ms;
    bool base_wanted;
    struct base *base; /* with a reference */
};

struct pool {
    struct node *node;
    struct list entries;
    struct list requests;
    struct pool_line lines[POOL_TEMPLATES_MAX];
    unsigned int line_count;
    unsigned int spawning; /* cold VMs on their way up */
    unsigned int spawning_max;
    bool started;
    bool serve_queued;
    int64_t yields_until_ms; /* nothing is made ahead before */
    struct loop_timer *tick;
};

/* pool_entry.c */
/* Takes base's reference over. NULL with err. */
struct pool_entry *entry_start(struct pool *pool,
                               struct base *base,
                               bool want_warm,
                               struct pool_request *request,
                               struct error *err);
/* Loads a prepared one for a request. */
void entry_load(struct pool_entry *entry);
/* Removes the record; the VM is the caller's. */
struct vm *entry_take_vm(struct pool_entry *entry);
/* Ends the VM and removes the record. */
void entry_drop(struct pool_entry *entry);
/* pool.c */
void pool_entry_failed(struct pool_entry *entry, const char *code, const char *message);
void pool_entry_loaded(struct pool_entry *entry);
void pool_entry_waits(struct pool_entry *entry); /* prepared or warm now */
