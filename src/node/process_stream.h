/* What goes into a process and who reads what comes out of it. */
#pragma once

#include "node/process.h"

/* ---- stdin (process_stdin.c) ---- */

/* Offset after the last byte taken. */
static inline uint64_t process_input_end(const struct process *p)
{
    return p->input_base + p->input.n;
}
/* How many bytes process_put_input takes now. */
size_t process_input_room(const struct process *p);
/* With eof nothing comes after them; on a terminal that is one more byte, 0x04. */
void process_put_input(struct process *p, struct span bytes, bool eof);
void process_pump_input(struct process *p);
void process_on_input_ack(struct process *p, uint64_t offset, bool closed);
/* The guest starts over from this offset. */
void process_restart_input(struct process *p, uint64_t offset);

/* ---- readers and `block` (process_readers.c) ---- */

/* Embedded in an attached reader, which the process keeps in a list. */
struct process_reader {
    struct list link;
    struct order_position had; /* it has everything before */
};

/* Acknowledges to the guest what is kept, unless the writer is to be held back: with `block`, while
 * spool_bytes are unread by the furthest attached reader (or, when none is attached, by those that
 * were). */
void process_acknowledge(struct process *p);
/* limit_exceeded when the sandbox has as many as it may. The caller has set `had` and made `link`
 * an item of no list. */
int process_add_reader(struct process *p, struct process_reader *reader, struct error *err)
    _must_check_;
/* The reader has everything before this position. */
void process_move_reader(struct process *p,
                         struct process_reader *reader,
                         const struct order_position *had);
/* Fine for one that is not attached. */
void process_remove_reader(struct process *p, struct process_reader *reader);
/* Whether a reader with so much unread waits for more, GATHER_MS at most (gather.h). A writer who
 * waits for readers is not held up by that. */
bool process_gathers(const struct process *p, uint64_t unread);
/* GET output has given out a stream up to this offset. */
void process_note_stream_read(struct process *p, unsigned int stream, uint64_t offset);
