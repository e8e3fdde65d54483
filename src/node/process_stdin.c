/* Standard input of a process: bytes are kept until the guest has consumed them, so that a new
 * conversation with the agent, or a client's retry at an offset, neither loses nor repeats any. */
#include "node/agent.h"
#include "node/process_private.h"
#include "node/process_stream.h"

/* Taken and not yet consumed: twice the protocol's window, so that the pipe never runs dry. */
#define INPUT_QUEUE_MAX  (128U * 1024U)
#define TTY_END_OF_INPUT 0x04U

size_t process_input_room(const struct process *p)
{
    return p->input.n >= INPUT_QUEUE_MAX ? 0 : INPUT_QUEUE_MAX - p->input.n;
}

void process_put_input(struct process *p, struct span bytes, bool eof)
{
    if (p->input_eof || p->input_closed) {
        return;
    }
    process_send_size(p); /* it was set before this was typed */
    buf_put(&p->input, bytes);
    if (p->tty.on && eof) {
        buf_put_u8(&p->input, TTY_END_OF_INPUT); /* the terminal stays open */
    } else {
        p->input_eof = eof;
    }
    process_pump_input(p);
}

void process_pump_input(struct process *p)
{
    uint64_t waiting;
    size_t room;

    if (p->channel == NULL || !p->has_stdin || p->input_closed || p->eof_sent ||
        p->state != PROCESS_STATE_RUNNING) {
        return;
    }
    waiting = process_input_end(p) - p->input_sent;
    room = agent_channel_stdin_room(p->channel, (size_t)waiting);
    if (waiting > 0 && room > 0) {
        struct span next = span_skip(buf_span(&p->input), (size_t)(p->input_sent - p->input_base));
        bool last = p->input_eof && next.n <= room;

        next = span_head(next, room);
        if (agent_channel_send_stdin(p->channel, next, last)) {
            p->input_sent += next.n;
            p->eof_sent = last;
        }
    } else if (waiting == 0 && p->input_eof) {
        p->eof_sent = agent_channel_send_stdin(p->channel, span_make(NULL, 0), true);
    }
}

/* What came with the command is not needed on disk any more. */
static void drop_saved_input(struct process *p)
{
    if (p->input_saved && p->input.n == 0 && p->input_eof) {
        p->input_saved = false;
        process_remove_input(p);
    }
}

void process_on_input_ack(struct process *p, uint64_t offset, bool closed)
{
    if (offset > p->input_base && offset <= process_input_end(p)) {
        buf_consume(&p->input, (size_t)(offset - p->input_base));
        p->input_base = offset;
    }
    if (closed && !p->input_closed) {
        p->input_closed = true;
        p->input_base = process_input_end(p);
        p->input_sent = p->input_base;
        buf_clear(&p->input);
    }
    if (p->input.n == 0 && p->input.room > INPUT_QUEUE_MAX) {
        buf_done(&p->input);
        p->input = buf_make(0);
    }
    drop_saved_input(p);
    process_pump_input(p);
    process_notify(p, PROCESS_EVENT_STDIN);
}

void process_restart_input(struct process *p, uint64_t offset)
{
    if (offset > process_input_end(p) || offset < p->input_base) {
        /* Bytes that only an earlier run of this program held: their sender was never told that
         * they arrived, and sends them again at this offset. */
        buf_clear(&p->input);
        p->input_base = offset;
    } else {
        buf_consume(&p->input, (size_t)(offset - p->input_base));
        p->input_base = offset;
    }
    p->input_sent = p->input_base;
    p->eof_sent = false;
    process_pump_input(p);
}
