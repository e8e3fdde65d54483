/* Inside the host end of the agent protocol: shared by the agent_*.c files only.
 *
 * States of the conversation (deadline; exits):
 *   closed      no stream;                         -> idle by connect or attach
 *   idle        a stream, or one that is tried for, nothing said; -> greeting by agent_begin
 *   greeting    HELLO sent (begin's deadline);     -> reporting at WELCOME
 *   reporting   PROCESS frames (begin's deadline); -> ready, or held, at PROCESS_END
 *   held        IDENTITY only (agent_hold.h);      -> ready by agent_release
 *   ready       everything;                        -> silent, greeting by a new agent_begin
 *   silent      SILENCE was answered;              -> ready by agent_wake, greeting by agent_begin
 *   failed      stream closed;                     -> freed
 * What is queued outside `ready` is sent when `ready` comes; idle or silent times move deadlines.
 */
#pragma once

#include <sys/un.h>

#include "base/buf.h"
#include "base/list.h"
#include "node/agent.h"
#include "node/agent_input.h"

enum agent_state {
    AGENT_STATE_CLOSED,
    AGENT_STATE_IDLE,
    AGENT_STATE_GREETING,
    AGENT_STATE_REPORTING,
    AGENT_STATE_HELD,
    AGENT_STATE_READY,
    AGENT_STATE_SILENT,
    AGENT_STATE_FAILED
};
struct loop_timer;
struct loop_watch;
/* Bytes that wait for a guest which does not read: one that takes nothing of more ends. */
#define AGENT_QUEUE_MAX       (4U * 1024U * 1024U)
#define AGENT_START_WAIT_MS   60000
#define AGENT_STUCK_MS        60000 /* for a guest that takes nothing of such a queue */
#define AGENT_ACK_BATCH       65536U
#define AGENT_ACK_DELAY_MS    50
#define AGENT_SILENT_RETRY_MS 2000 /* before padding a stream whose position is known */
#define AGENT_STREAMS         2U

struct agent_request {
    struct list link;
    uint32_t id;
    uint8_t type;
    bool repeat;        /* may be sent again in a new conversation */
    bool sent;          /* in this conversation */
    bool tried;         /* ever */
    unsigned int parts; /* WRITE_FILE is several frames with one id, each answered */
    unsigned int answered;
    int64_t deadline_ms;
    uint64_t epoch; /* IDENTITY */
    struct buf frame;
    agent_done_fn done;
    agent_identity_fn identity_done; /* IDENTITY only */
    void *arg;
};

enum agent_channel_phase {
    AGENT_CHANNEL_STARTING,
    AGENT_CHANNEL_ADOPTED, /* known from before, not reported yet */
    AGENT_CHANNEL_RUNNING,
    AGENT_CHANNEL_EXITED
};

struct agent_channel {
    struct agent *agent;
    uint32_t number;
    enum agent_channel_phase phase;
    const struct agent_channel_ops *ops;
    void *arg;
    struct buf start; /* the START frames, until it was answered */
    bool start_sent;  /* in this conversation */
    bool is_service;
    bool tried;        /* START was sent ever */
    bool output_ended; /* of a service */
    bool reported;     /* in this conversation */
    char *cwd;         /* where the process began, as the guest says; NULL: not said */
    uint32_t pid;      /* as reported */
    int64_t start_deadline_ms;
    uint64_t received[AGENT_STREAMS]; /* next expected offset */
    uint64_t kept[AGENT_STREAMS];     /* to be acknowledged */
    uint64_t acked[AGENT_STREAMS];    /* said to the guest */
    uint64_t stdin_sent;
    uint64_t stdin_acked;
    bool stdin_ended;
    bool stdin_closed;
    bool stdin_waits; /* for the queue, not for the guest's acknowledgement */
    bool exit_told;   /* on_exited was called */
};

struct agent {
    struct loop *loop;
    struct agent_callbacks callbacks;
    void *arg;
    enum agent_state state;
    int fd;
    struct loop_watch *watch;
    struct sockaddr_un address;
    struct loop_timer *connect_timer; /* of a backlog that was full; NULL: never needed */
    struct loop_timer *flush_timer;   /* at the next turn: write what is queued, tell a failure */
    struct loop_timer *hello_timer;
    struct loop_timer *deadline_timer;
    struct loop_timer *ack_timer;
    struct buf out;
    size_t out_start;
    struct agent_input input;
    int64_t stuck_ms; /* since when nothing of a queue above AGENT_QUEUE_MAX was taken; 0: no */
    struct buf in;    /* the begin of a frame whose rest has not come */

    /* the conversation */
    uint8_t nonce[AGENT_NONCE_BYTES];
    bool known_silent; /* what is queued goes out behind HELLO */
    bool hold;         /* between agent_hold and agent_release */
    bool synchronised;
    bool hushed;        /* SILENCE was sent: nothing may follow it */
    bool stands_still;  /* hushed without it: what was sent is not answered either */
    bool wake_expected; /* the next conversation begins with WAKE */
    bool ack_timer_set;
    bool adopted_closed; /* channels numbered by an earlier run were closed: late frames may come */
    bool reports_known;  /* a conversation of ours has been complete: no unknown process exists */
    bool spares_unknown; /* not all records could be read: whom none names was not given up */
    int64_t begin_deadline_ms; /* 0: none */
    agent_done_fn begin_done;
    void *begin_arg;
    struct agent_welcome welcome;
    uint32_t report_count;

    uint32_t next_id;
    struct list requests;
    int64_t start_wait_ms;           /* AGENT_START_WAIT_MS, less in tests */
    int64_t stuck_wait_ms;           /* AGENT_STUCK_MS, less in tests */
    int64_t quiet_since_ms;          /* 0: neither idle nor silent */
    struct buf held;                 /* frames for the end of a silence that no record repeats */
    int64_t next_deadline_ms;        /* what deadline_timer is set to; 0: not set */
    struct agent_channel **channels; /* sorted by number */
    size_t channel_count;
    size_t channel_room;
    uint32_t first_channel;
    uint32_t next_channel;
    struct list rehearsals;
    int64_t late_window_ms;  /* frames for channels that were closed here are ignored, but only */
    unsigned int late_count; /* so many */
    enum agent_failure failure;
    char failure_message[200];
    unsigned int busy; /* callbacks are on the stack: agent_free only marks it */
    bool dying;
};

void agent_fail(struct agent *agent, enum agent_failure failure, const char *format, ...)
    _printf_(3, 4);
/* agent.c */
void agent_close_stream(struct agent *agent);
/* Around anything that calls the owner back. agent_leave returns false when the agent is gone. */
void agent_enter(struct agent *agent);
bool agent_leave(struct agent *agent);
void agent_schedule_flush(struct agent *agent); /* writes what is in `out` at the next turn */
/* True when frames other than HELLO may be queued for writing now. */
bool agent_can_send(const struct agent *agent);
void agent_watch_deadline(struct agent *agent, int64_t deadline_ms); /* checks run then */

/* agent_sync.c */
void agent_on_hello_timer(void *arg);
void agent_on_welcome(struct agent *agent, const struct agent_frame *frame);
void agent_on_report(struct agent *agent, const struct agent_frame *frame);
void agent_on_report_end(struct agent *agent, const struct agent_frame *frame);
void agent_end_begin(struct agent *agent, int result);

/* agent_receive.c */
/* Takes whole frames from the stream and hands them on; returns the bytes used. */
size_t agent_receive(struct agent *agent, struct span bytes);

/* agent_request.c */
void agent_on_answer(struct agent *agent, const struct agent_frame *frame);
/* A new conversation: what may be is sent again, the rest cancelled; signals behind STARTs. */
void agent_resend_requests(struct agent *agent, bool signals);
void agent_forget_sent_requests(struct agent *agent);
/* In a held conversation: IDENTITY, when it is not on its way. */
void agent_resend_identity(struct agent *agent);
void agent_cancel_requests(struct agent *agent);
/* The first deadline after now, 0 when there is none; -1 when one has passed (agent failed). */
int64_t agent_check_requests(struct agent *agent, int64_t now_ms);

/* agent_channel.c */
struct agent_channel *agent_channel_find(struct agent *agent, uint32_t number);
void agent_channel_remove(struct agent_channel *channel);
void agent_channel_send_start(struct agent_channel *channel);
void agent_channel_set_cwd(struct agent_channel *channel, struct span cwd);
void agent_channel_send_acks(struct agent_channel *channel);
void agent_on_ack_timer(void *arg);
void agent_on_channel_frame(struct agent *agent, const struct agent_frame *frame);
void agent_detach_channels(struct agent *agent);
void agent_wake_channels(struct agent *agent); /* after WAKE: what was held back goes out */
int64_t agent_check_channels(struct agent *agent, int64_t now_ms);
/* Whether a number may be of a channel closed before; the agent fails when not, or after many. */
void agent_on_late_frame(struct agent *agent, const struct agent_frame *frame);
void agent_cancel_rehearsals(struct agent *agent); /* agent_rehearse.c */
