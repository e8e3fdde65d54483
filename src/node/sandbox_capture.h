/* A capture under way, of a suspend (sandbox_suspend.c) or of a checkpoint (sandbox_checkpoint.c):
 * both fall silent, stand still and are written down in the same way, and differ in what follows.
 */
#pragma once

#include <jansson.h>

#include "node/checkpoint.h"
#include "node/sandbox_private.h"
#include "node/snapshot.h"

/* As long as a START may take: a guest that is busy is no reason to end it. */
#define CAPTURE_ANSWER_MS 60000

struct sandbox_capture {
    struct sandbox *sb;
    struct node *node;
    struct list turn; /* capture_gate.h */
    struct loop_timer *patience;
    bool is_urgent;
    bool is_silent;
    bool has_place;
    void (*go)(struct sandbox *sb);
    enum sandbox_state state;      /* of the sandbox meanwhile */
    struct checkpoint *checkpoint; /* NULL: a suspend */
    struct checkpoint_info info;   /* of the checkpoint */
    json_t *env;
    bool disk_only;
    char building[SNAPSHOT_PATH_SIZE]; /* of a checkpoint: `<ck>.new` */
    char dir[SNAPSHOT_PATH_SIZE];
    char ram_path[SNAPSHOT_PATH_SIZE];
    char base_ram_path[SNAPSHOT_PATH_SIZE];
    char disk_path[SNAPSHOT_PATH_SIZE];
    char sessions_path[SNAPSHOT_PATH_SIZE];
    struct snapshot_facts facts;
    struct snapshot_source source;
    struct snapshot_sizes sizes;
    uint64_t id;   /* of a suspend */
    bool is_clear; /* of a suspend: what is under that name is its own */
    bool was_paused;
    bool stopped;
    bool busy;     /* a worker has it */
    bool vm_ended; /* meanwhile, by itself, and why */
    char end_code[32];
    char end_message[320];
    int64_t begun_ms;
    int64_t stopped_ms;
    int64_t captured_ms;
    int result;
    struct error err;
};

/* ---- sandbox_suspend.c ---- */
/* service_unavailable while it is not known what a snapshot of it would be bound to. */
int sandbox_check_capture(const struct sandbox *sb, struct error *err) _must_check_;
/* NULL: no memory. Becomes sb->capture. */
struct sandbox_capture *sandbox_capture_new(struct sandbox *sb);
void sandbox_capture_free(struct sandbox_capture *c);
/* The state is written down: SILENCE and what follows, when no worker is in the directory. */
void sandbox_capture_start(struct sandbox *sb);
/* Runs work on a worker; the sandbox's directory stays until it has ended. */
void sandbox_submit(struct sandbox *sb,
                    void (*work)(void *arg),
                    void (*done)(void *arg),
                    void *arg);

/* ---- capture_sync.c ---- */
/* On a worker: output and disk onto stable storage. 0 or -errno. */
int sandbox_capture_sync(const struct sandbox_capture *c) _must_check_;

/* ---- sandbox_drop.c ---- */
/* On a worker: removes a snapshot that the journal in place does not need. The one on the disk may
 * need it still, so it is replaced there first. 0 or -errno: then it is there as before. */
int sandbox_clear_snapshot(const struct sandbox *sb, const char *dir) _must_check_;

/* ---- sandbox_checkpoint.c ---- */
/* On a worker, before the stop: `<ck>.new` with the sessions of now. */
int sandbox_checkpoint_prepare(struct sandbox_capture *c);
/* It is captured; the guest goes on. */
void sandbox_checkpoint_captured(struct sandbox *sb);
/* The silent guest goes on, or stays paused if it was. */
void sandbox_checkpoint_resume(struct sandbox *sb, bool stopped, bool was_paused);
/* The same for one that did not fall silent. */
void sandbox_checkpoint_go_on(struct sandbox *sb, bool was_paused);
