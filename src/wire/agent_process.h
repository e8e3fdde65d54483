/* Payloads of the agent protocol that belong to one process (a channel), for both directions.
 *
 * The conventions of agent_message.h: X_parse gives 0 or -EBADMSG, X_format appends one frame. */
#pragma once

#include "wire/agent_message.h"

/* ---- start of a process ---- */

#define AGENT_START_MORE 1U /* in the frame head: the payload goes on in the next START frame */

#define AGENT_START_TTY       1U
#define AGENT_START_STDIN     2U /* stdin is fed by STDIN frames until their end; else /dev/null */
#define AGENT_START_REHEARSAL 4U
#define AGENT_START_SERVICE   8U /* argv names a service of the agent (section 7) */

struct agent_start {
    uint32_t flags; /* AGENT_START_TTY … */
    struct agent_strings argv;
    struct agent_strings env;
    struct span cwd;
    struct span user;
    uint64_t timeout_ms;
    uint16_t cols;
    uint16_t rows;
    struct span term;
};

enum agent_start_what {
    AGENT_WHAT_CWD = 1,
    AGENT_WHAT_USER = 2,
    AGENT_WHAT_EXEC = 3,
    AGENT_WHAT_RESOURCES = 4,
    AGENT_WHAT_TTY = 5,
};

struct agent_start_failed {
    uint32_t errnum;
    uint8_t what; /* enum agent_start_what */
};

/* Parses the joined payloads of a START. */
int agent_start_parse(struct span joined, struct agent_start *ret) _must_check_;
/* Appends as many START frames as it takes. Fields over their limits make b fail: -EMSGSIZE. */
void agent_start_format(struct buf *b, uint32_t channel, const struct agent_start *m);

struct agent_started {
    uint32_t pid;
    struct span cwd; /* where it began, when START's cwd was not absolute; else empty and absent */
};

int agent_started_parse(const struct agent_frame *f, struct agent_started *ret) _must_check_;
void agent_started_format(struct buf *b, uint32_t channel, const struct agent_started *m);
int agent_start_failed_parse(const struct agent_frame *f, struct agent_start_failed *ret)
    _must_check_;
void agent_start_failed_format(struct buf *b, uint32_t channel, const struct agent_start_failed *m);

/* ---- streams ---- */

#define AGENT_STDIN_END        1U /* STDIN: end of input after these bytes */
#define AGENT_STDIN_ACK_CLOSED 1U /* STDIN_ACK: the pipe is closed, the rest is discarded */
#define AGENT_OUTPUT_END       1U /* OUTPUT: no more of this stream comes (services only) */

#define AGENT_STDOUT 1U
#define AGENT_STDERR 2U

struct agent_stdin {
    uint64_t offset;
    struct span bytes; /* may be empty with `end` */
    bool end;
};

struct agent_stdin_ack {
    uint64_t offset;
    bool closed;
};

struct agent_output {
    uint8_t stream; /* AGENT_STDOUT or AGENT_STDERR */
    uint64_t offset;
    struct span bytes; /* may be empty with `end` */
    bool end;          /* services only */
};

struct agent_output_ack {
    uint8_t stream;
    uint64_t offset;
};

struct agent_resume_from {
    uint64_t stdout_offset;
    uint64_t stderr_offset;
};

int agent_stdin_parse(const struct agent_frame *f, struct agent_stdin *ret) _must_check_;
void agent_stdin_format(struct buf *b, uint32_t channel, const struct agent_stdin *m);
int agent_stdin_ack_parse(const struct agent_frame *f, struct agent_stdin_ack *ret) _must_check_;
void agent_stdin_ack_format(struct buf *b, uint32_t channel, const struct agent_stdin_ack *m);
int agent_output_parse(const struct agent_frame *f, struct agent_output *ret) _must_check_;
void agent_output_format(struct buf *b, uint32_t channel, const struct agent_output *m);
int agent_output_ack_parse(const struct agent_frame *f, struct agent_output_ack *ret) _must_check_;
void agent_output_ack_format(struct buf *b, uint32_t channel, const struct agent_output_ack *m);
int agent_resume_from_parse(const struct agent_frame *f, struct agent_resume_from *ret)
    _must_check_;
void agent_resume_from_format(struct buf *b, uint32_t channel, const struct agent_resume_from *m);

/* ---- control and ends of processes ---- */

enum agent_scope {
    AGENT_SCOPE_GROUP = 0,
    AGENT_SCOPE_PROCESS = 1,
    AGENT_SCOPE_TREE = 2
};

struct agent_signal {
    uint32_t id;
    uint8_t signal; /* 1 to 64 */
    uint8_t scope;  /* enum agent_scope */
};

/* Comes on the channel of the request it answers. */
struct agent_result {
    uint32_t id;
    uint32_t errnum; /* 0: done */
};

enum agent_exit_kind {
    AGENT_EXIT_CODE = 0,
    AGENT_EXIT_SIGNAL = 1
};

#define AGENT_EXITED_PIPE_HELD     1U
#define AGENT_EXITED_TIMED_OUT     2U
#define AGENT_EXITED_OUT_OF_MEMORY 4U /* the kernel ended something of it for want of memory */
#define AGENT_EXITED_FLAGS         7U /* all of them */

struct agent_exited {
    uint8_t kind; /* enum agent_exit_kind */
    uint8_t status;
    uint16_t flags; /* AGENT_EXITED_ */
    uint64_t stdout_end;
    uint64_t stderr_end;
    uint64_t duration_ns;
};

struct agent_process {
    uint32_t pid;
    bool exited;
    uint64_t stdout_start; /* the first byte that the agent still keeps */
    uint64_t stdout_end;   /* one past the last one it has read */
    uint64_t stderr_start;
    uint64_t stderr_end;
    uint64_t stdin_offset;    /* bytes consumed; send again from here */
    struct agent_exited exit; /* when exited */
    struct span cwd;          /* as in agent_started */
};

struct agent_resize {
    uint16_t cols;
    uint16_t rows;
};

int agent_signal_parse(const struct agent_frame *f, struct agent_signal *ret) _must_check_;
void agent_signal_format(struct buf *b, uint32_t channel, const struct agent_signal *m);
int agent_result_parse(const struct agent_frame *f, struct agent_result *ret) _must_check_;
void agent_result_format(struct buf *b, uint32_t channel, const struct agent_result *m);
int agent_exited_parse(const struct agent_frame *f, struct agent_exited *ret) _must_check_;
void agent_exited_format(struct buf *b, uint32_t channel, const struct agent_exited *m);
int agent_process_parse(const struct agent_frame *f, struct agent_process *ret) _must_check_;
void agent_process_format(struct buf *b, uint32_t channel, const struct agent_process *m);
int agent_process_end_parse(const struct agent_frame *f, uint32_t *ret_count) _must_check_;
void agent_process_end_format(struct buf *b, uint32_t count);
int agent_forget_parse(const struct agent_frame *f) _must_check_;
void agent_forget_format(struct buf *b, uint32_t channel);
int agent_resize_parse(const struct agent_frame *f, struct agent_resize *ret) _must_check_;
void agent_resize_format(struct buf *b, uint32_t channel, const struct agent_resize *m);
