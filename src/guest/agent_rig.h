/* For tests: a host's end that drives an agent in a child process over a Unix socket, with real
 * programs of this machine. Every failure ends the test. */
#pragma once

#include <sys/types.h>

#include "wire/agent_process.h"

#define RIG_CHANNELS 64U

struct rig_channel {
    bool started;
    uint32_t pid;
    char cwd[256];
    bool failed;
    struct agent_start_failed failure;
    struct buf output[2];
    uint64_t acked[2];
    bool output_ended; /* of a service, while it goes on */
    bool ended;
    struct agent_exited exit;
    uint64_t stdin_acked;
    bool stdin_closed;
    bool reported; /* by PROCESS in the last hello */
    struct agent_process process;
};

struct rig {
    char path[64];
    pid_t pid;
    int fd;
    struct agent_reader reader;
    struct rig_channel channels[RIG_CHANNELS];
    bool ack;           /* acknowledge all output at once */
    bool ignore_others; /* frames of channels beyond RIG_CHANNELS are no failure */
    uint32_t results;
    struct agent_result last_result;
    struct agent_identity_ok identity_ok;
    struct agent_welcome welcome;
    uint32_t pongs;
    uint64_t bytes; /* received, of any kind */
    uint32_t seed;
};

/* Starts the agent and connects; the conversation is not begun. */
void rig_start(struct rig *r);
/* Ends the agent, which must exit by itself and cleanly. */
void rig_stop(struct rig *r);
/* A number below limit, the same at every run. */
uint32_t rig_random(struct rig *r, uint32_t limit);

void rig_connect(struct rig *r);
void rig_disconnect(struct rig *r);
void rig_send(struct rig *r, const struct buf *b);
/* Puts a HELLO with a new nonce, which is from now on the one that counts. */
void rig_put_hello(struct rig *r, struct buf *b);
void rig_put_identity(struct buf *b, uint64_t epoch);
/* HELLO (after zero bytes when flush is set) until PROCESS_END. */
void rig_hello(struct rig *r, bool flush);
/* RESUME_FROM for each channel that was reported. */
void rig_resume(struct rig *r);
/* Hello and identity. */
void rig_begin(struct rig *r);
void rig_identity(struct rig *r, uint64_t epoch);

/* Reads and notes what comes within timeout_ms (one read). False when nothing came. */
bool rig_step(struct rig *r, int timeout_ms);
/* Steps until *flag is set, ten seconds at most. */
void rig_until(struct rig *r, const bool *flag);

/* START of a shell command. */
void rig_shell(
    struct rig *r, uint32_t channel, const char *command, uint32_t flags, uint64_t timeout_ms);
/* START of a program without arguments, in a directory, as a user. */
void rig_program(
    struct rig *r, uint32_t channel, const char *program, const char *cwd, const char *user);
void rig_wait_end(struct rig *r, uint32_t channel);
void rig_forget(struct rig *r, uint32_t channel);
void rig_acknowledge(struct rig *r, uint32_t channel, uint8_t stream, uint64_t offset);
void rig_stdin(struct rig *r, uint32_t channel, uint64_t offset, struct span bytes, bool end);
/* Sends SIGNAL; returns the errno of its RESULT. */
int rig_signal(struct rig *r, uint32_t channel, int signal, enum agent_scope scope);
/* Sends SILENCE, WAKE or RESET; returns the errno of its RESULT. */
int rig_request(struct rig *r, uint8_t type, uint8_t flags);
/* Whether a PING is answered within timeout_ms. */
bool rig_is_answering(struct rig *r, int timeout_ms);
