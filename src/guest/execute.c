/* Executes the host's frames. Every function gets a frame whose head was checked; a payload that
 * does not parse ends the conversation (-EBADMSG), since then the two ends disagree. */
#include <errno.h>

#include <sys/ioctl.h>

#include "guest/agent.h"
#include "guest/connection.h"
#include "guest/service_start.h"
#include "guest/write_file.h"

static void report_processes(struct agent *a)
{
    struct list *it;
    struct list *next;
    uint32_t count = 0;

    list_foreach(it, next, &a->channels.all)
    {
        struct channel *c = list_entry(it, struct channel, in_all);
        struct agent_process m;

        c->flowing = false;
        c->end_sent = false;
        kept_rewind(&c->streams[0].kept);
        kept_rewind(&c->streams[1].kept);
        if (c->forgotten) {
            continue;
        }
        input_rewind(&c->input);
        channel_describe(c, &m);
        agent_process_format(&a->tx, c->number, &m);
        count++;
    }
    agent_process_end_format(&a->tx, count);
}

static bool has_processes(const struct agent *a)
{
    for (struct list *it = a->channels.all.next; it != &a->channels.all; it = it->next) {
        if (!list_entry(it, struct channel, in_all)->forgotten) {
            return true;
        }
    }
    return false;
}

static int on_hello(struct agent *a, const struct agent_frame *f)
{
    struct agent_welcome welcome = {.version = AGENT_VERSION, .epoch = a->identity.epoch};
    struct agent_hello hello;

    if (agent_hello_parse(f, &hello) < 0) {
        return -EBADMSG;
    }
    services_stop(a);
    memcpy(welcome.nonce, hello.nonce, sizeof(welcome.nonce));
    memcpy(welcome.boot_id, a->identity.boot_id, sizeof(welcome.boot_id));
    welcome.flags =
        (uint16_t)(AGENT_WELCOME_TIME | (a->identity.ever_confirmed ? AGENT_WELCOME_IDENTITY : 0) |
                   (has_processes(a) ? AGENT_WELCOME_PROCESSES : 0) |
                   (a->voice == AGENT_FROZEN_SILENT ? AGENT_WELCOME_SILENT : 0));
    /* What was not sent yet belongs to the old conversation. */
    buf_clear(&a->tx);
    for (int i = 0; i < AGENT_ASSEMBLIES; i++) {
        a->assemblies[i].channel = 0;
        buf_clear(&a->assemblies[i].joined);
    }
    agent_break_silence(a);
    a->conversing = true;
    agent_welcome_format(&a->tx, &welcome);
    report_processes(a);
    return 0;
}

static int on_identity(struct agent *a, const struct agent_frame *f)
{
    struct agent_identity_ok answer;
    struct agent_identity m;
    bool again;

    if (agent_identity_parse(f, &m) < 0) {
        return -EBADMSG;
    }
    again = a->identity.confirmed && m.epoch == a->identity.epoch;
    identity_apply(&a->identity, &m, &answer);
    if (a->identity.confirmed) {
        if (!again) {
            identity_tell(&a->identity);
        }
        agent_thaw(a);
    }
    agent_identity_ok_format(&a->tx, &answer);
    return 0;
}

static struct assembly *assembly_find(struct agent *a, uint32_t channel)
{
    for (int i = 0; i < AGENT_ASSEMBLIES; i++) {
        if (a->assemblies[i].channel == channel) {
            return &a->assemblies[i];
        }
    }
    return NULL;
}

static int on_start(struct agent *a, const struct agent_frame *f)
{
    bool more = (f->flags & AGENT_START_MORE) != 0;
    struct assembly *s = assembly_find(a, f->channel);

    if (f->channel == 0 || (f->flags & ~AGENT_START_MORE) != 0) {
        return -EBADMSG;
    }
    if (s == NULL && !more) {
        agent_start_process(a, f->channel, f->payload);
        return 0;
    }
    if (s == NULL) {
        s = assembly_find(a, 0);
        if (s == NULL) {
            return -EBADMSG;
        }
        s->channel = f->channel;
    }
    buf_put(&s->joined, f->payload);
    if (buf_error(&s->joined) == -EMSGSIZE) {
        return -EBADMSG;
    }
    if (!more) {
        agent_start_process(a, f->channel,
                            buf_error(&s->joined) == 0 ? buf_span(&s->joined) : span_make(NULL, 0));
        s->channel = 0;
        buf_done(&s->joined);
    }
    return 0;
}

static int on_stdin(struct agent *a, const struct agent_frame *f)
{
    struct channel *c = channels_find(&a->channels, f->channel);
    struct agent_stdin m;
    int r;

    if (agent_stdin_parse(f, &m) < 0) {
        return -EBADMSG;
    }
    if (c == NULL || c->forgotten) {
        return 0;
    }
    r = input_put(&c->input, &m);
    if (r == -ENOMEM) {
        return -EBADMSG; /* the host sends it again from what was consumed, after a new hello */
    }
    if (r < 0) {
        /* Refused: the host learns from the acknowledgement where to go on. */
        c->input.acknowledged = 0;
        c->input.end_acknowledged = false;
    }
    a->key_taken = a->key_taken || c->input.kind == INPUT_TTY;
    agent_tell_input(c);
    connection_on_input(c);
    return 0;
}

static struct stream *stream_of(struct channel *c, uint8_t number)
{
    return &c->streams[number == AGENT_STDOUT ? 0 : 1];
}

static int on_output_ack(struct agent *a, const struct agent_frame *f)
{
    struct channel *c = channels_find(&a->channels, f->channel);
    struct agent_output_ack m;
    struct stream *s;

    if (agent_output_ack_parse(f, &m) < 0) {
        return -EBADMSG;
    }
    if (c == NULL || c->forgotten || !c->flowing) {
        return 0;
    }
    s = stream_of(c, m.stream);
    if (kept_acknowledge(&s->kept, &a->pool, m.offset) < 0) {
        return -EBADMSG;
    }
    if (s->starved) {
        s->starved = false;
        stream_activate(s);
    }
    return 0;
}

static int on_resume_from(struct agent *a, const struct agent_frame *f)
{
    struct channel *c = channels_find(&a->channels, f->channel);
    struct agent_resume_from m;

    if (agent_resume_from_parse(f, &m) < 0) {
        return -EBADMSG;
    }
    if (c == NULL || c->forgotten || c->flowing) {
        return 0;
    }
    kept_resume(&c->streams[0].kept, &a->pool, m.stdout_offset);
    kept_resume(&c->streams[1].kept, &a->pool, m.stderr_offset);
    c->flowing = true;
    stream_activate(&c->streams[0]);
    stream_activate(&c->streams[1]);
    channel_send_end(c);
    return 0;
}

static int on_signal(struct agent *a, const struct agent_frame *f)
{
    struct channel *c = channels_find(&a->channels, f->channel);
    struct agent_signal m;
    int r = -ESRCH;

    if (agent_signal_parse(f, &m) < 0) {
        return -EBADMSG;
    }
    if (c != NULL && c->is_service) {
        r = -EPERM; /* FORGET ends it */
    } else if (c != NULL && (!c->forgotten || m.scope == AGENT_SCOPE_TREE)) {
        /* What a forgotten process left behind can still be ended. */
        r = channel_signal(c, m.signal, (enum agent_scope)m.scope);
    }
    agent_result(a, f->channel, m.id, r);
    return 0;
}

static int on_forget(struct agent *a, const struct agent_frame *f)
{
    struct channel *c = channels_find(&a->channels, f->channel);

    if (agent_forget_parse(f) < 0) {
        return -EBADMSG;
    }
    if (c != NULL && !c->forgotten) {
        channel_forget(c);
    }
    return 0;
}

static int on_resize(struct agent *a, const struct agent_frame *f)
{
    struct channel *c = channels_find(&a->channels, f->channel);
    struct agent_resize m;

    if (agent_resize_parse(f, &m) < 0) {
        return -EBADMSG;
    }
    if (c != NULL && c->tty_fd >= 0) {
        const struct winsize size = {.ws_row = m.rows, .ws_col = m.cols};

        (void)ioctl(c->tty_fd, TIOCSWINSZ, &size);
    }
    return 0;
}

static int on_write_file(struct agent *a, const struct agent_frame *f)
{
    struct agent_write_file m;

    if (agent_write_file_parse(f, &m) < 0) {
        return -EBADMSG;
    }
    agent_result(a, 0, m.id, write_file_part(&m));
    return 0;
}

/* The requests that carry only an id. */
static int on_id(struct agent *a, const struct agent_frame *f)
{
    uint32_t id;

    if (agent_id_parse(f, &id) < 0) {
        return -EBADMSG;
    }
    if (f->type == AGENT_PING) {
        agent_id_format(&a->tx, AGENT_PONG, 0, id);
    } else if (f->type == AGENT_SILENCE) {
        agent_begin_silence(a, id, f->flags);
    } else if (f->type == AGENT_RESET) {
        agent_result(a, 0, id, agent_reset(a));
    } else {
        agent_result(a, 0, id, 0);
        (void)agent_flush(a);
        agent_power_off(a);
    }
    return 0;
}

static int on_wake(struct agent *a, const struct agent_frame *f)
{
    struct agent_wake m;

    if (agent_wake_parse(f, &m) < 0) {
        return -EBADMSG;
    }
    agent_wake(a, &m);
    return 0;
}

static int (*const handlers[AGENT_TYPE_COUNT])(struct agent *, const struct agent_frame *) = {
    [AGENT_HELLO] = on_hello,
    [AGENT_IDENTITY] = on_identity,
    [AGENT_START] = on_start,
    [AGENT_STDIN] = on_stdin,
    [AGENT_OUTPUT_ACK] = on_output_ack,
    [AGENT_SIGNAL] = on_signal,
    [AGENT_FORGET] = on_forget,
    [AGENT_RESUME_FROM] = on_resume_from,
    [AGENT_SILENCE] = on_id,
    [AGENT_WAKE] = on_wake,
    [AGENT_POWEROFF] = on_id,
    [AGENT_PING] = on_id,
    [AGENT_RESET] = on_id,
    [AGENT_RESIZE] = on_resize,
    [AGENT_WRITE_FILE] = on_write_file,
};

int agent_execute(struct agent *a, const struct agent_frame *f)
{
    if (f->type >= AGENT_TYPE_COUNT || handlers[f->type] == NULL) {
        return -EBADMSG;
    }
    if (a->voice == AGENT_FROZEN_SILENT && f->type != AGENT_HELLO && f->type != AGENT_WAKE) {
        return -EBADMSG;
    }
    return handlers[f->type](a, f);
}

void agent_speak_again(struct agent *a)
{
    struct list *it;
    struct list *next;

    list_foreach(it, next, &a->channels.all)
    {
        struct channel *c = list_entry(it, struct channel, in_all);

        for (int i = 0; i < 2; i++) {
            if (kept_has_unsent(&c->streams[i].kept)) {
                stream_activate(&c->streams[i]);
            }
        }
        agent_tell_input(c);
        channel_send_end(c);
    }
}
