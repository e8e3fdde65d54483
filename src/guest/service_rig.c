#include "guest/service_rig.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <sys/stat.h>

#include <cmocka.h>

#include "base/fd.h"

#define CHANNELS_USED 60U
#define PATHS         8U
#define PATH_BYTES    4200U

int service_rig_set_up(void **state)
{
    struct service_rig *s = calloc(1, sizeof(*s));

    if (s == NULL) {
        return -1;
    }
    (void)snprintf(s->directory, sizeof(s->directory), "/tmp/space-service-test.%d", (int)getpid());
    assert_int_equal(dir_remove_tree(AT_FDCWD, s->directory), 0);
    assert_int_equal(mkdir(s->directory, 0755), 0);
    rig_start(&s->rig);
    rig_begin(&s->rig);
    *state = s;
    return 0;
}

int service_rig_tear_down(void **state)
{
    struct service_rig *s = *state;

    rig_stop(&s->rig);
    assert_int_equal(dir_remove_tree(AT_FDCWD, s->directory), 0);
    free(s);
    return 0;
}

const char *service_rig_path(const struct service_rig *s, const char *name)
{
    static char paths[PATHS][PATH_BYTES];
    static size_t next;
    char *path = paths[next++ % PATHS];

    (void)snprintf(path, PATH_BYTES, "%s/%s", s->directory, name);
    return path;
}

void service_rig_file(const struct service_rig *s, const char *name, const char *text)
{
    _cleanup_close_ int fd =
        open(service_rig_path(s, name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, span_of_str(text)), 0);
}

bool service_rig_file_is(const struct service_rig *s, const char *name, struct span content)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    return file_read(AT_FDCWD, service_rig_path(s, name), 1U << 30U, &text) == 0 &&
           span_equals(buf_span(&text), content);
}

static void reset_channel(struct rig *r, uint32_t channel)
{
    struct rig_channel *c = &r->channels[channel];
    struct buf output[2] = {c->output[0], c->output[1]};

    if (c->started) {
        rig_forget(r, channel);
    }
    buf_clear(&output[0]);
    buf_clear(&output[1]);
    *c = (struct rig_channel){.output = {output[0], output[1]}};
}

uint32_t service_rig_begin(struct service_rig *s, const char *const *argv, bool with_input)
{
    uint32_t channel = s->last_channel % CHANNELS_USED + 1;
    _cleanup_buf_ struct buf b = buf_make(0);
    _cleanup_buf_ struct buf raw = buf_make(0);
    struct agent_start m = {.flags = AGENT_START_SERVICE, .cwd = span_of_str(s->directory)};

    s->last_channel = channel;
    reset_channel(&s->rig, channel);
    for (; argv[m.argv.count] != NULL; m.argv.count++) {
        buf_put_block(&raw, span_of_str(argv[m.argv.count]));
    }
    m.argv.raw = buf_span(&raw);
    m.flags |= with_input ? AGENT_START_STDIN : 0;
    agent_start_format(&b, channel, &m);
    rig_send(&s->rig, &b);
    return channel;
}

/* Two services in a row may fall on one channel: only one record of each kind of end is wanted. */
static void read_record(const struct service_record *m, struct answer *a)
{
    int r = -1;

    assert_false(a->is_done && m->type != SERVICE_RECORD_CHANGE && m->type != SERVICE_RECORD_ERROR);
    switch ((enum service_record_type)m->type) {
    case SERVICE_RECORD_ENTRY:
        assert_true(a->n_entries < ANSWER_RECORDS);
        r = service_entry_parse(m->payload, &a->entries[a->n_entries++]);
        break;
    case SERVICE_RECORD_ERROR:
        r = service_error_parse(m->payload, &a->error);
        a->has_error = true;
        break;
    case SERVICE_RECORD_BODY:
        r = service_body_parse(m->payload, &a->body);
        a->has_body = true;
        break;
    case SERVICE_RECORD_DONE:
        r = service_done_parse(m->payload, &a->done);
        a->is_done = true;
        break;
    case SERVICE_RECORD_CHANGE:
        assert_true(a->n_changes < ANSWER_RECORDS);
        r = service_change_parse(m->payload, &a->changes[a->n_changes++]);
        break;
    case SERVICE_RECORD_LISTENER:
        assert_true(a->n_listeners < 64);
        r = service_listener_parse(m->payload, &a->listeners[a->n_listeners++]);
        break;
    case SERVICE_RECORD_SAMPLE:
        r = service_sample_parse(m->payload, &a->sample);
        a->has_sample = true;
        break;
    }
    assert_int_equal(r, 0);
}

void service_rig_read(struct service_rig *s, uint32_t channel, struct answer *ret)
{
    struct span rest = buf_span(&s->rig.channels[channel].output[0]);
    struct service_record m;

    memset(ret, 0, sizeof(*ret));
    while (rest.n > 0 && !ret->has_body && !ret->has_error) {
        int used = service_record_next(rest, &m);

        assert_true(used >= 0);
        if (used == 0) {
            return;
        }
        read_record(&m, ret);
        rest = span_skip(rest, (size_t)used);
    }
    ret->bytes = rest;
    assert_true(ret->has_body || rest.n == 0);
}

const struct rig_channel *service_rig_channel(const struct service_rig *s, uint32_t channel)
{
    return &s->rig.channels[channel];
}

void service_rig_feed(struct service_rig *s, uint32_t channel, struct span input, bool end)
{
    struct rig *r = &s->rig;
    const struct rig_channel *c = &r->channels[channel];
    uint64_t sent = 0;
    bool is_ended = !end;

    while (!c->ended && !c->stdin_closed && (sent < input.n || !is_ended)) {
        uint64_t room = c->stdin_acked + AGENT_STDIN_WINDOW - sent;
        struct span part = span_skip(input, (size_t)sent);

        part = span_head(part, AGENT_STDIN_DATA_MAX);
        part = span_head(part, (size_t)room);
        if (part.n == 0 && (sent < input.n || is_ended)) {
            (void)rig_step(r, 100);
            continue;
        }
        sent += part.n;
        is_ended = is_ended || sent == input.n;
        rig_stdin(r, channel, sent - part.n, part, end && sent == input.n);
        (void)rig_step(r, 0);
    }
}

void service_rig_call(struct service_rig *s,
                      const char *const *argv,
                      struct span input,
                      struct answer *ret)
{
    uint32_t channel = service_rig_begin(s, argv, input.n > 0);
    const struct rig_channel *c = &s->rig.channels[channel];

    if (input.n > 0) {
        service_rig_feed(s, channel, input, true);
    }
    rig_wait_end(&s->rig, channel);
    assert_false(c->failed);
    assert_int_equal(c->exit.kind, AGENT_EXIT_CODE);
    assert_int_equal(c->output[1].n, 0);
    service_rig_read(s, channel, ret);
}

void service_rig_fails(struct service_rig *s, const char *const *argv, int errnum)
{
    _cleanup_free_ struct answer *a = malloc(sizeof(*a));

    assert_non_null(a);
    service_rig_call(s, argv, NO_INPUT, a);
    assert_true(a->has_error);
    assert_false(a->is_done);
    assert_int_equal(a->error.errnum, errnum);
}
