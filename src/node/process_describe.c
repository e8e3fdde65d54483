/* A process as the API shows it. */
#include <string.h>

#include "base/clock.h"
#include "node/process.h"
#include "node/signal_name.h"

static json_t *time_text(int64_t real_ms)
{
    char text[CLOCK_TEXT_SIZE];

    if (real_ms == 0) {
        return json_null();
    }
    clock_format(real_ms, text);
    return json_string(text);
}

json_t *process_describe(const struct process *p)
{
    char name[16];
    json_t *tty = json_null();

    if (p->tty.on) {
        tty = json_pack("{s:i, s:i, s:s}", "cols", (int)p->tty.cols, "rows", (int)p->tty.rows,
                        "term", p->tty.term);
    }
    signal_name(p->signal, name);
    return json_pack("{s:s, s:o, s:O, s:s?, s:s, s:o, s:s, s:o, s:s?, s:b, s:b, s:s, s:o, s:o}",
                     "id", p->id, "pid", p->pid != 0 ? json_integer(p->pid) : json_null(), "argv",
                     p->argv, "cwd", p->cwd, "user", p->user, "tty", tty, "state",
                     process_state_name(p->state), "exit_code",
                     p->exit_code >= 0 ? json_integer(p->exit_code) : json_null(), "signal",
                     p->signal != 0 ? name : NULL, "timed_out", p->timed_out, "out_of_memory",
                     p->out_of_memory, "session_id", p->session_id, "started_at",
                     time_text(p->started_at_ms), "exited_at", time_text(p->exited_at_ms));
}
