/* The journal of one sandbox: `journal.json` in its directory, replaced before each step.
 *
 * It says what must be adopted, finished or undone after the daemon was killed. A write is a
 * temporary file and a rename, which survives a kill -9; what must survive a power cut as well is
 * synchronised later by a worker (a power cut ends the VM anyway). */
#pragma once

#include <sys/types.h>

#include "node/runtime.h"
#include "node/sandbox.h"

#define JOURNAL_FILE     "journal.json"
#define JOURNAL_ENV_FILE "env.json" /* need not be there */
#define JOURNAL_FORMAT   1

#define JOURNAL_BINARY_SIZE 256

/* The VMM that runs it. slot 0: none. */
struct journal_vm {
    unsigned int slot;
    unsigned int netns;
    pid_t pid;
    uint64_t start_time;
    char boot_id[40];
    char binary[JOURNAL_BINARY_SIZE];
    /* What it was started under; driver "": a journal of an earlier release does not say. */
    struct runtime_env env;
    bool ram_is_memfd;
};

struct journal {
    struct sandbox_info info;
    struct journal_vm vm;
};

/* 0 or -errno. */
int journal_write(int dir_fd, const struct journal *journal) _must_check_;
/* One that may be needed, on stable storage but not in place: blocks. 0 or -errno. */
int journal_prepare(int dir_fd, const struct journal *journal) _must_check_;
/* It replaces the one in place, which needs no room; or goes. 0 or -errno. */
int journal_take_prepared(int dir_fd) _must_check_;
void journal_drop_prepared(int dir_fd);
/* 0, -ENOENT, or -EBADMSG for a damaged one. */
int journal_read(int dir_fd, struct journal *ret) _must_check_;
/* Makes it and the variables beside it (JOURNAL_ENV_FILE) survive a power cut; blocks. 0 or -errno:
 * then nothing that they make superfluous may go. */
int journal_sync(int dir_fd) _must_check_;
