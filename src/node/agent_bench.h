/* For tests: the host end of the agent protocol with a program behind it that plays the guest, the
 * real agent or one that lies, and a note of all that happened. */
#pragma once

#include <sys/types.h>

#include "base/buf.h"
#include "io/loop.h"
#include "node/agent_hold.h"
#include "node/agent_private.h"

#define SHORT_MS 700
#define LIMIT_MS 20000

struct bench {
    struct loop *loop;
    struct agent *agent;
    struct agent_channel *channel;
    struct loop_timer *limit;
    pid_t pid;
    char dir[64];
    char socket[96];
    bool acknowledging;
    bool silence_after; /* ask for silence once the process has ended */
    /* what was seen */
    bool begun;
    bool identified;
    int identity_result;
    bool started;
    int start_errnum;
    bool exited;
    struct agent_exited exit;
    struct buf output;
    uint64_t skipped;
    bool silenced;
    bool failed;
    enum agent_failure failure;
    char message[200];
};

extern const struct agent_channel_ops bench_ops;

/* program is of the build's src/guest; first its argument before the socket. Connected. */
struct bench *bench_new(const char *program, const char *first);
void bench_free(struct bench *b);
void bench_reconnect(struct bench *b);
/* START of a shell command, which becomes b->channel. */
void bench_queue_start(struct bench *b, const char *shell);
/* HELLO, IDENTITY and that. */
void bench_queue_all(struct bench *b, const char *shell, bool known_silent);
/* Until something stops the loop, LIMIT_MS at most. */
void bench_run(struct bench *b);
void bench_on_begun(void *arg, int result);
/* Stops the loop; the result is start_errnum. */
void bench_on_result(void *arg, int result);
