/* Standard input of a process: takes STDIN frames, writes them to its pipe or terminal, and says
 * how far it got. */
#pragma once

#include "guest/source.h"
#include "wire/agent_process.h"

struct channel;

enum input_kind {
    INPUT_PIPE,
    INPUT_TTY,
    INPUT_SOCKET
};

struct input {
    struct source source; /* the write end; -1 when closed or never opened */
    int epoll_fd;
    bool watched;   /* in the epoll set: only once a write did not fit */
    bool is_held;   /* there is no write end yet: all is kept */
    uint8_t kind;   /* enum input_kind */
    bool end;       /* the end of input was received */
    uint8_t *bytes; /* a ring, allocated while something waits */
    size_t room;    /* of the ring: grows up to AGENT_STDIN_WINDOW */
    size_t first;
    size_t waiting;
    uint64_t consumed; /* written to the process; the rest of what was received waits */
    uint64_t acknowledged;
    bool end_acknowledged;
};

void input_init(struct input *in, int epoll_fd);
/* Takes the non-blocking write end, and writes what waited for it. */
void input_open(struct input *in, int fd, enum input_kind kind);
/* The write end comes later: keeps what arrives until then. */
void input_hold(struct input *in);
/* Ends it: what waits is dropped. */
void input_close(struct input *in);
/* Whether nothing can be put into it any more. */
bool input_is_closed(const struct input *in);
/* A STDIN frame. -EMSGSIZE when it is beyond the window, -EBADMSG when it leaves a gap (both are
 * ignored), -ENOMEM: it is lost, and the host does not know. */
int input_put(struct input *in, const struct agent_stdin *m) _must_check_;
/* Whether the host should be told how far it is; then fills ret and counts it as told. */
bool input_take_ack(struct input *in, struct agent_stdin_ack *ret);
/* A new conversation: what was not consumed will be sent again. */
void input_rewind(struct input *in);
