/* Host end of the agent protocol (docs/agent-protocol.md): one connected byte stream per guest.
 *
 * The guest is hostile: every frame is checked against what this side asked for, memory per agent
 * is bounded, and each awaited answer has a deadline. The first violation, timeout or end of the
 * stream drops the connection and is told once by on_failed; the agent then only waits to be
 * freed. Nothing calls back from inside a function of this header, except agent_free's
 * cancellations.
 *
 * What is sent is queued and written at the end of the loop turn in one write, so HELLO, IDENTITY,
 * files and a START queued in one turn travel together. A quiet connection is kept over a stop of
 * the VM; bytes written while it is stopped arrive at `cont`. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "wire/agent_message.h"
#include "wire/agent_process.h"

struct agent;
struct agent_channel;
struct loop;

enum agent_failure {
    AGENT_FAILURE_PROTOCOL, /* the guest broke the protocol: "agent_protocol" */
    AGENT_FAILURE_TIMEOUT,  /* no answer in time: "agent_timeout" */
    AGENT_FAILURE_CLOSED,   /* the stream ended or failed: usually the VMM died: "agent_closed" */
};

struct agent_callbacks {
    /* The connection is gone for good. `message` is a sentence for the sandbox's reason. May free
     * the agent. */
    void (*on_failed)(void *arg,
                      struct agent *agent,
                      enum agent_failure failure,
                      const char *message);
};

/* The answer to a request: 0, or an errno from the guest, or -ECANCELED when the agent failed or
 * was freed before. Comes exactly once. */
typedef void (*agent_done_fn)(void *arg, int result);

/* "agent_protocol" and so on. */
const char *agent_failure_code(enum agent_failure failure);

/* ---- connection ---- */
/* Not connected yet. NULL for lack of memory. */
struct agent *agent_new(struct loop *loop, const struct agent_callbacks *callbacks, void *arg);
/* Closes and frees at once. Outstanding requests hear -ECANCELED, channels on_detached. */
void agent_free(struct agent *agent);
/* Connects to a listening unix socket (the path may be up to 107 bytes) or takes a connected
 * stream socket over (agent_attach). May be called again after agent_disconnect. 0 or -errno.
 * A full backlog (the VMM stands still) is tried again; agent_begin's deadline counts. */
int agent_connect(struct agent *agent, const char *path) _must_check_;
int agent_attach(struct agent *agent, int fd) _must_check_;
/* Closes the stream and forgets what was queued; channels and requests stay and are resumed by the
 * next conversation. */
void agent_disconnect(struct agent *agent);

/* Begins a conversation: HELLO, WELCOME, the processes' reports. `done` hears 0 when all reports
 * were read; on_failed comes when that takes longer than deadline_ms.
 * `known_silent`: this guest fell silent under this host's eyes and was captured or stopped then,
 * so its position in the stream is known: what is queued behind goes out at once instead of after
 * WELCOME, and the resynchronisation with padding begins late (2 s instead of 100 ms). */
void agent_begin(
    struct agent *agent, bool known_silent, int64_t deadline_ms, agent_done_fn done, void *arg);
/* Writes what is queued now instead of at the end of the turn: for a guest that is about to
 * continue, and shall find it at once. */
void agent_flush(struct agent *agent);
/* True between the end of the reports and silence, failure or disconnection. */
bool agent_is_ready(const struct agent *agent);
/* Valid after agent_begin's done: what the last WELCOME said. */
const struct agent_welcome *agent_last_welcome(const struct agent *agent);

/* ---- requests: each is failed with AGENT_FAILURE_TIMEOUT after deadline_ms ---- */

/* Queues IDENTITY; identity->id is filled in here, spans are copied. ret_done hears the bits of
 * IDENTITY_OK; result is 0 only when all of them were done, else the first failure's errno. */
typedef void (*agent_identity_fn)(void *arg, int result, const struct agent_identity_ok *answer);
void agent_identify(struct agent *agent,
                    const struct agent_identity *identity,
                    int64_t deadline_ms,
                    agent_identity_fn done,
                    void *arg);
/* Runs a command as a rehearsal: output is thrown away. result 0: it ended (whatever its status),
 * positive: the errno with which it could not be started. argv and env are NULL-terminated, env
 * and user may be NULL. timeout_ms is the command's own. */
void agent_rehearse(struct agent *agent,
                    const char *const *argv,
                    const char *user,
                    int64_t timeout_ms,
                    agent_done_fn done,
                    void *arg);
void agent_reset(struct agent *agent, int64_t deadline_ms, agent_done_fn done, void *arg);
/* SILENCE with AGENT_SILENCE_* flags. From its answer on nothing is written until agent_begin or
 * agent_wake, and until then no deadline passes but that of the WAKE. ETIMEDOUT: it was too busy,
 * runs on, and will read a WAKE behind it; what waits for that may be told ETIMEDOUT too. */
void agent_silence(
    struct agent *agent, uint8_t flags, int64_t deadline_ms, agent_done_fn done, void *arg);
void agent_stand_still(struct agent *agent); /* its VM was stopped without: the same till WAKE */
void agent_expect_wake(struct agent *agent); /* before agent_begin: what is queued waits for it */
bool agent_takes_time(const struct agent *agent); /* its WAKE sets the clock: not in 0.1.0 */
/* WAKE with the time of now; what was queued leaves. */
void agent_wake(struct agent *agent, int64_t deadline_ms, agent_done_fn done, void *arg);
/* POWEROFF: result 0 when the guest said yes; the stream ends soon after. */
void agent_power_off(struct agent *agent, int64_t deadline_ms, agent_done_fn done, void *arg);
void agent_ping(struct agent *agent, int64_t deadline_ms, agent_done_fn done, void *arg);
/* Writes a whole file (at most 1 MiB; parents are made). May be queued before WELCOME as well. */
struct agent_file {
    const char *path;
    struct span content;
    uint32_t mode;
    uint32_t uid;
    uint32_t gid;
};
void agent_put_file(struct agent *agent,
                    const struct agent_file *file,
                    int64_t deadline_ms,
                    agent_done_fn done,
                    void *arg);

/* ---- channels: one process each; used by process.c and the rehearsal ---- */

struct agent_channel_ops {
    /* It runs. Comes again after each new conversation: the guest consumed stdin up to
     * stdin_offset and dropped the rest, which is to be sent again. */
    void (*on_started)(void *arg, uint32_t pid, uint64_t stdin_offset);
    /* The channel is closed after the call. */
    void (*on_start_failed)(void *arg, const struct agent_start_failed *failure);
    /* Adopted channels: an earlier run acknowledged these bytes and lost them. May be NULL. */
    void (*on_skipped)(void *arg, unsigned int stream, uint64_t bytes);
    /* Exactly the next bytes of the stream. Acknowledge with agent_channel_ack once kept. */
    void (*on_output)(void *arg, unsigned int stream, uint64_t offset, struct span bytes);
    void (*on_stdin_ack)(void *arg, uint64_t offset, bool closed);
    /* After all output. The guest keeps the process until agent_channel_close. */
    void (*on_exited)(void *arg, const struct agent_exited *exited);
    /* The guest does not know the process any more: no status will come. Closes the channel. */
    void (*on_lost)(void *arg);
    /* The agent failed or is being freed: no word about the process. Closes the channel. */
    void (*on_detached)(void *arg);
    /* A service's stream 1 is complete, while the service goes on. May be NULL. */
    void (*on_output_end)(void *arg);
};

/* The identity of a channel over restarts of this program. */
struct agent_channel_state {
    uint32_t channel;
    uint64_t stdout_offset; /* kept on this side: output is wanted from here */
    uint64_t stderr_offset;
};

/* Opens a channel and queues START. NULL when start is over the limits or memory is short (err
 * filled). 60 s without STARTED or START_FAILED are an AGENT_FAILURE_TIMEOUT, except for a service
 * (AGENT_START_SERVICE): its owner keeps the time. A service is never resumed: on_lost comes when a
 * new conversation begins after its START was sent. */
struct agent_channel *agent_channel_start(struct agent *agent,
                                          const struct agent_start *start,
                                          const struct agent_channel_ops *ops,
                                          void *arg,
                                          struct error *err);
/* The guest broke the rules of what it sends inside a channel ("a list without an end"): fails the
 * agent. Owners hear of it at the next turn, never from inside. */
void agent_violate(struct agent *agent, const char *what);
/* Attaches to a process started by an earlier run of this program: before agent_begin. on_started
 * comes with the guest's report, or on_lost when there is none. NULL for lack of memory. */
struct agent_channel *agent_channel_adopt(struct agent *agent,
                                          const struct agent_channel_state *state,
                                          const struct agent_channel_ops *ops,
                                          void *arg);
/* The number that the next agent_channel_start will use. */
uint32_t agent_next_channel(const struct agent *agent);
/* Where the process began, as the guest says, when START did not; "" when that is not known. */
const char *agent_channel_cwd(const struct agent_channel *channel);
/* Everything of this stream before `offset` is kept: sent in batches (64 KiB, or 50 ms). */
void agent_channel_ack(struct agent_channel *channel, unsigned int stream, uint64_t offset);
/* How many of so many bytes of stdin may be sent now; on_stdin_ack comes where not all. */
size_t agent_channel_stdin_room(struct agent_channel *channel, size_t wanted);
/* Sends stdin at the channel's own offset, at most the room asked for just before; `end` after it.
 * It is kept until acknowledged. false: not sent, on_stdin_ack comes when it can be. */
bool agent_channel_send_stdin(struct agent_channel *channel, struct span bytes, bool end)
    _must_check_;
/* Gives the process's terminal a new size; what is said before on_started, or while there is no
 * conversation, is lost. */
void agent_channel_resize(struct agent_channel *channel, uint16_t cols, uint16_t rows);
/* Signals; done hears 0 or an errno (ESRCH). A reconnection meanwhile gives -ECANCELED. */
void agent_channel_signal(struct agent_channel *channel,
                          unsigned int signal,
                          enum agent_scope scope,
                          agent_done_fn done,
                          void *arg);
/* Signals what an exited process, whose channel was closed, has left behind in the guest: ESRCH
 * when nothing of it runs any more. */
void agent_signal_left(
    struct agent *agent, uint32_t channel, unsigned int signal, agent_done_fn done, void *arg);
/* FORGET, if the guest knows the process; frees the channel. No callback comes after it. */
void agent_channel_close(struct agent_channel *channel);
/* Frees the channel and says nothing to the guest, which keeps the process for a later adoption. */
void agent_channel_abandon(struct agent_channel *channel);
