/* fake-services: an agent without a guest, for the tests of the host's end of services.
 *
 * Started as `fake-services --agent SOCKET`, like space-init. It speaks the protocol rightly, but
 * what a service does is said by its first argument: "/errno/13" fails with EACCES, "/zeros/SIZE"
 * is a file of zeroes, and "/lie/NAME" breaks the rules in the way of that name. Processes are not
 * started at all. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <sys/socket.h>
#include <sys/un.h>

#include "base/fd.h"
#include "base/reader.h"
#include "wire/agent_process.h"
#include "wire/service_record.h"

#define CHANNELS_MAX 64
#define ARGS_MAX     8
#define TICK_MS      5
#define CHUNK_BYTES  32000U

struct channel {
    uint32_t number; /* 0: free */
    char args[ARGS_MAX][512];
    uint64_t sent;
    uint64_t acked;
    uint64_t zeros; /* raw bytes that are still to be sent */
    bool endless;   /* changes without an end */
    bool exits;     /* EXITED follows the zeroes */
    uint64_t input;
    bool is_slow;
    bool echoes;
    uint64_t owed_ack;
    bool input_over;
};

struct fake {
    int fd;
    bool failed;
    struct channel channels[CHANNELS_MAX];
    unsigned int forgotten; /* FORGETs that came for files which are read or written */
    unsigned int watches;   /* that were started */
    unsigned int listings;
    unsigned int samples;
    uint64_t most_input; /* that came for one channel */
};

/* ---- frames ---- */

static void send_buf(struct fake *f, const struct buf *b)
{
    if (!f->failed && fd_write_all(f->fd, buf_span(b)) < 0) {
        f->failed = true;
    }
}

static void send_output(struct fake *f, struct channel *c, struct span bytes, bool end)
{
    do {
        _cleanup_buf_ struct buf b = buf_make(0);
        struct agent_output m = {
            .stream = AGENT_STDOUT, .offset = c->sent, .bytes = span_head(bytes, CHUNK_BYTES)};

        bytes = span_skip(bytes, m.bytes.n);
        m.end = end && bytes.n == 0;
        agent_output_format(&b, c->number, &m);
        c->sent += m.bytes.n;
        send_buf(f, &b);
    } while (bytes.n > 0);
}

static void send_records(struct fake *f, struct channel *c, const struct buf *records)
{
    if (records->n > 0) {
        send_output(f, c, buf_span(records), false);
    }
}

static void send_exited(struct fake *f, struct channel *c, uint8_t status)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_exited m = {
        .kind = AGENT_EXIT_CODE, .status = status, .stdout_end = c->sent, .duration_ns = 1};

    agent_exited_format(&b, c->number, &m);
    send_buf(f, &b);
    c->number = 0;
}

static void send_ack(struct fake *f, struct channel *c)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_stdin_ack m = {.offset = c->input};

    agent_stdin_ack_format(&b, c->number, &m);
    send_buf(f, &b);
}

/* ---- records ---- */

static void put_entry(struct buf *b, const char *path, uint8_t type, uint64_t size)
{
    struct service_entry m = {
        .path = span_of_str(path),
        .type = type,
        .size_bytes = size,
        .mode = 0640,
        .uid = 1000,
        .gid = 1000,
        .user = span_of_str("user"),
        .group = span_of_str("user"),
        .modified_ns = 1700000000123456789U,
    };

    if (type == SERVICE_ENTRY_SYMLINK) {
        m.symlink_target = span_of_str("target");
    }
    service_entry_format(b, &m);
}

static void put_done(struct buf *b, uint64_t count, bool more)
{
    service_done_format(b, &(struct service_done){count, more});
}

static void put_error(struct buf *b, uint32_t errnum, const char *path)
{
    service_error_format(b, &(struct service_error){errnum, span_of_str(path)});
}

static void put_body(struct buf *b, uint64_t offset, uint64_t length)
{
    service_body_format(b, &(struct service_body){offset, length});
}

static void put_change(struct buf *b, uint8_t kind, const char *path, const char *from)
{
    service_change_format(b, &(struct service_change){.kind = kind,
                                                      .path = span_of_str(path),
                                                      .from = span_of_str(from)});
}

/* The number behind a prefix of the first argument. */
static bool number_of(const struct channel *c, const char *prefix, uint64_t *ret)
{
    size_t n = strlen(prefix);

    return strncmp(c->args[1], prefix, n) == 0 &&
           span_parse_u64(span_of_str(&c->args[1][n]), UINT64_MAX, ret) == 0;
}

/* ---- lies, which any service may tell ---- */

static bool lie(struct fake *f, struct channel *c, const char *name)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    const uint8_t garbage[] = {200, 1, 2, 3, 4, 5};

    if (strcmp(name, "garbage") == 0) {
        buf_put(&b, span_make(garbage, sizeof(garbage)));
    } else if (strcmp(name, "two-entries") == 0) {
        put_entry(&b, "/a", SERVICE_ENTRY_FILE, 1);
        put_entry(&b, "/a", SERVICE_ENTRY_FILE, 1);
    } else if (strcmp(name, "no-entry") == 0) {
        put_body(&b, 0, 5);
        buf_put_str(&b, "hello");
    } else if (strcmp(name, "no-entry-done") == 0) {
        put_done(&b, 1, false);
    } else if (strcmp(name, "behind-done") == 0) {
        put_entry(&b, "/a", SERVICE_ENTRY_FILE, 1);
        put_done(&b, 1, false);
        put_done(&b, 1, false);
    } else if (strcmp(name, "other-offset") == 0) {
        put_entry(&b, "/a", SERVICE_ENTRY_FILE, 10);
        put_body(&b, 5, 5);
    } else if (strcmp(name, "other-length") == 0) {
        put_entry(&b, "/a", SERVICE_ENTRY_FILE, 10);
        put_body(&b, 0, 11);
    } else if (strcmp(name, "too-long") == 0) {
        put_entry(&b, "/a", SERVICE_ENTRY_FILE, 5);
        put_body(&b, 0, 5);
        buf_put_str(&b, "hello world");
    } else if (strcmp(name, "listener") == 0) {
        service_listener_format(&b, &(struct service_listener){.port = 1, .family = 4});
    } else if (strcmp(name, "early-change") == 0) {
        put_change(&b, SERVICE_CHANGE_CREATED, "/a", "");
    } else if (strcmp(name, "cut") == 0) {
        send_exited(f, c, 0);
        return true;
    } else {
        return strcmp(name, "silent") == 0;
    }
    send_records(f, c, &b);
    return true;
}

/* ---- the services ---- */

static void serve_stat(struct fake *f, struct channel *c)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    const char *path = c->args[1];
    uint64_t size = 7;

    if (strcmp(path, "/forgotten") == 0) {
        size = f->forgotten;
    } else if (strcmp(path, "/watches") == 0) {
        size = f->watches;
    } else if (strcmp(path, "/most-input") == 0) {
        size = f->most_input;
    }
    if (strcmp(path, "link") == 0) {
        put_entry(&b, "/home/link", SERVICE_ENTRY_SYMLINK, 6);
    } else if (path[0] == '/') {
        put_entry(&b, path, SERVICE_ENTRY_FILE, size);
    } else {
        put_entry(&b, "/home/relative", SERVICE_ENTRY_DIRECTORY, 4096);
    }
    put_done(&b, 1, false);
    send_records(f, c, &b);
}

/* The size is in the path; the range in the second argument. */
static void serve_read(struct fake *f, struct channel *c)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct span range = span_of_str(c->args[2]);
    size_t dash = span_find(range, 0, '-');
    uint64_t size = 0;
    uint64_t first = 0;
    uint64_t last = 0;
    bool is_short = number_of(c, "/short/", &size);

    if (number_of(c, "/unknown/", &size)) {
        put_entry(&b, c->args[1], SERVICE_ENTRY_FILE, 4096);
        put_body(&b, 0, SERVICE_LENGTH_UNKNOWN);
        send_records(f, c, &b);
        c->zeros = size;
        c->exits = true;
        return;
    }
    if (!is_short && !number_of(c, "/zeros/", &size)) {
        put_error(&b, ENOENT, c->args[1]);
        send_records(f, c, &b);
        return;
    }
    put_entry(&b, c->args[1], SERVICE_ENTRY_FILE, size);
    c->zeros = size;
    if (range.n > 0) {
        bool suffix = dash == 0;

        (void)!span_parse_u64(span_head(range, dash), UINT64_MAX, &first);
        if (span_parse_u64(span_skip(range, dash + 1), UINT64_MAX, &last) < 0 || last >= size) {
            last = suffix ? last : size - 1;
        }
        if (suffix) {
            first = last < size ? size - last : 0;
            last = size - 1;
        }
        if (first >= size) {
            put_error(&b, ERANGE, c->args[1]);
            send_records(f, c, &b);
            c->zeros = 0;
            return;
        }
        c->zeros = last - first + 1;
    }
    put_body(&b, first, c->zeros);
    if (is_short) {
        c->zeros /= 2;
        c->exits = true;
    }
    send_records(f, c, &b);
}

static void serve_list(struct fake *f, struct channel *c)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    bool has_long_names = strcmp(c->args[1], "/long-names") == 0;
    uint64_t limit = 0;
    uint64_t count = 0;
    char path[2000];

    (void)!span_parse_u64(span_of_str(c->args[3]), 1000, &limit);
    if (c->args[4][0] != '\0') {
        put_entry(&b, "/last", SERVICE_ENTRY_FILE, 1);
        put_done(&b, 1, false);
        send_records(f, c, &b);
        return;
    }
    while (count < limit + (strcmp(c->args[1], "/lie/too-many") == 0 ? 1 : 0)) {
        (void)snprintf(path, sizeof(path), "/d/%s%0*llu", count == 0 ? "\xff" : "",
                       has_long_names ? 1900 : 4, (unsigned long long)count);
        put_entry(&b, path, SERVICE_ENTRY_FILE, count);
        count++;
        if (b.n > 100000) { /* the window is 256 KiB, and acknowledged at once */
            send_records(f, c, &b);
            buf_clear(&b);
            if (has_long_names) {
                break;
            }
        }
    }
    if (!has_long_names) {
        put_done(&b, count, true);
    }
    c->endless = has_long_names;
    send_records(f, c, &b);
}

static void serve_watch(struct fake *f, struct channel *c)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    uint64_t count = 0;
    char path[64];

    f->watches++;
    put_done(&b, 0, false);
    if (number_of(c, "/changes/", &count)) {
        for (uint64_t i = 1; i <= count; i++) {
            (void)snprintf(path, sizeof(path), "/changes/%llu", (unsigned long long)i);
            put_change(&b, SERVICE_CHANGE_CREATED, path, "");
        }
    } else if (strcmp(c->args[1], "/moves") == 0) {
        put_change(&b, SERVICE_CHANGE_MOVED, "/moves/b\xff", "/moves/a");
        put_change(&b, SERVICE_CHANGE_OVERFLOW, "", "");
        put_change(&b, SERVICE_CHANGE_DELETED, "/moves", "");
        put_error(&b, ENOENT, "/moves");
    } else if (strcmp(c->args[1], "/done-twice") == 0) {
        put_done(&b, 0, false);
    } else if (strcmp(c->args[1], "/cut-once") == 0 && f->watches == 1) {
        send_records(f, c, &b);
        send_exited(f, c, 1);
        return;
    } else if (strcmp(c->args[1], "/flood") == 0) {
        c->endless = true;
    }
    send_records(f, c, &b);
}

static void serve_ports(struct fake *f, struct channel *c)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    service_listener_format(
        &b,
        &(struct service_listener){.port = 8080, .family = 4, .address = {127, 0, 0, 1}, .pid = 1});
    service_listener_format(
        &b, &(struct service_listener){.port = 9090, .family = 6, .address = {[15] = 1}});
    if (++f->listings > 3) { /* only after a few listings */
        service_listener_format(
            &b, &(struct service_listener){.port = 7070, .family = 4, .address = {10, 0, 0, 1}});
    }
    put_done(&b, 2, false);
    send_records(f, c, &b);
}

static void serve_connect(struct fake *f, struct channel *c)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    uint64_t port = 0;

    (void)!span_parse_u64(span_of_str(c->args[1]), 65535, &port);
    if (port == 9) {
        put_error(&b, ECONNREFUSED, "");
        send_records(f, c, &b);
        return;
    }
    put_body(&b, 0, SERVICE_LENGTH_UNKNOWN);
    send_records(f, c, &b);
    c->echoes = port == 7;
    if (port == 10) {
        send_exited(f, c, 1);
    } else if (port == 11) {
        send_output(f, c, span_of_str("bye"), true);
    } else if (port == 19) {
        c->zeros = UINT64_MAX;
    }
}

static void serve_metrics(struct fake *f, struct channel *c)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct service_sample m = {1, 512U << 20, 100U << 20, 4ULL << 30, 1ULL << 30, 12};

    if (f->samples++ % 2 == 1) {
        m.memory_used_bytes = UINT64_MAX;
    }
    service_sample_format(&b, &m);
    put_done(&b, 1, false);
    send_records(f, c, &b);
}

/* One answer for all that only change something. */
static void serve_change(struct fake *f, struct channel *c)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    if (strcmp(c->args[0], "file-delete") != 0) {
        put_entry(&b, "/changed", SERVICE_ENTRY_DIRECTORY, 0);
    }
    put_done(&b, 3, false);
    send_records(f, c, &b);
}

static void serve(struct fake *f, struct channel *c)
{
    static const struct {
        const char *name;
        void (*fn)(struct fake *f, struct channel *c);
    } services[] = {
        {"file-stat", serve_stat},  {"file-read", serve_read}, {"file-list", serve_list},
        {"watch", serve_watch},     {"ports", serve_ports},    {"connect", serve_connect},
        {"metrics", serve_metrics},
    };
    _cleanup_buf_ struct buf b = buf_make(0);
    uint64_t errnum;

    if (strncmp(c->args[1], "/lie/", 5) == 0 && lie(f, c, &c->args[1][5])) {
        return;
    }
    if (number_of(c, "/errno/", &errnum)) {
        put_error(&b, (uint32_t)errnum, c->args[1]);
        send_records(f, c, &b);
        return;
    }
    for (size_t i = 0; i < sizeof(services) / sizeof(services[0]); i++) {
        if (strcmp(c->args[0], services[i].name) == 0) {
            services[i].fn(f, c);
            return;
        }
    }
    if (strcmp(c->args[0], "tar-read") == 0) {
        put_body(&b, 0, SERVICE_LENGTH_UNKNOWN);
        (void)!number_of(c, "/zeros/", &c->zeros);
        c->exits = true;
        send_records(f, c, &b);
    } else if (strcmp(c->args[0], "file-write") == 0 || strcmp(c->args[0], "tar-write") == 0) {
        c->is_slow = strcmp(c->args[1], "/slow") == 0;
    } else {
        serve_change(f, c);
    }
}

/* ---- what the host sends ---- */

static struct channel *find(struct fake *f, uint32_t number)
{
    for (size_t i = 0; i < CHANNELS_MAX; i++) {
        if (f->channels[i].number == number) {
            return &f->channels[i];
        }
    }
    return NULL;
}

static void on_start(struct fake *f, const struct agent_frame *frame)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct channel *c = find(f, 0);
    struct agent_start start;
    struct span rest;
    struct span text;

    if (agent_start_parse(frame->payload, &start) < 0 || c == NULL) {
        f->failed = true;
        return;
    }
    *c = (struct channel){.number = frame->channel};
    rest = start.argv.raw;
    for (int i = 0; i < ARGS_MAX && agent_strings_next(&rest, &text); i++) {
        (void)!span_copy_str(text, c->args[i], sizeof(c->args[i]));
    }
    if (strcmp(c->args[1], "/never") == 0) {
        return;
    }
    if (span_equals_str(start.user, "nobody-here") || strcmp(c->args[1], "/full") == 0) {
        bool is_user = !span_equals_str(start.user, "root");

        agent_start_failed_format(
            &b, c->number,
            &(struct agent_start_failed){is_user ? ENOENT : EAGAIN,
                                         is_user ? AGENT_WHAT_USER : AGENT_WHAT_RESOURCES});
        send_buf(f, &b);
        c->number = 0;
        return;
    }
    agent_started_format(&b, c->number, &(struct agent_started){0});
    send_buf(f, &b);
    serve(f, c);
}

static void finish_upload(struct fake *f, struct channel *c)
{
    _cleanup_buf_ struct buf b = buf_make(0);

    if (strcmp(c->args[0], "tar-write") != 0) {
        put_entry(&b, c->args[1], SERVICE_ENTRY_FILE, c->input);
    }
    put_done(&b, strcmp(c->args[1], "/old") == 0 ? 0 : 1, false);
    send_records(f, c, &b);
}

static void on_stdin(struct fake *f, const struct agent_frame *frame)
{
    struct channel *c = find(f, frame->channel);
    struct agent_stdin m;

    if (c == NULL) {
        return;
    }
    if (agent_stdin_parse(frame, &m) < 0 || m.offset != c->input + c->owed_ack) {
        f->failed = true;
        return;
    }
    c->input_over = m.end;
    if (m.offset + m.bytes.n > f->most_input) {
        f->most_input = m.offset + m.bytes.n;
    }
    if (strncmp(c->args[1], "/lie/silent", 11) == 0) {
        c->owed_ack += m.bytes.n;
        return;
    }
    if (c->echoes && m.bytes.n > 0) {
        send_output(f, c, m.bytes, false);
    }
    c->owed_ack += m.bytes.n;
    if (c->is_slow) {
        return;
    }
    c->input += c->owed_ack;
    c->owed_ack = 0;
    send_ack(f, c);
    if (c->input_over && strcmp(c->args[0], "connect") == 0) {
        send_exited(f, c, 0);
    } else if (c->input_over) {
        finish_upload(f, c);
    }
}

/* What moves without being asked: zeroes as the window allows, changes, slow uploads. */
static void tick(struct fake *f, struct channel *c)
{
    static const uint8_t zeros[CHUNK_BYTES];
    _cleanup_buf_ struct buf b = buf_make(0);

    while (c->zeros > 0 && c->sent - c->acked + CHUNK_BYTES <= AGENT_WINDOW && !f->failed) {
        size_t n = c->zeros < CHUNK_BYTES ? (size_t)c->zeros : CHUNK_BYTES;

        send_output(f, c, span_make(zeros, n), false);
        c->zeros -= n;
        if (c->zeros == 0 && c->exits) {
            send_exited(f, c, strncmp(c->args[1], "/short/", 7) == 0 ? 1 : 0);
            return;
        }
    }
    if (c->is_slow && c->owed_ack > 0) {
        uint64_t n = c->owed_ack < 65536 ? c->owed_ack : 65536;

        c->owed_ack -= n;
        c->input += n;
        send_ack(f, c);
        if (c->input_over && c->owed_ack == 0) {
            finish_upload(f, c);
        }
    }
    while (c->endless && c->sent - c->acked + 8192U <= AGENT_WINDOW && !f->failed) {
        buf_clear(&b);
        while (b.n < 4000) {
            if (strcmp(c->args[0], "watch") == 0) {
                put_change(&b, SERVICE_CHANGE_MODIFIED, "/flood/x", "");
            } else {
                char path[2000];

                (void)snprintf(path, sizeof(path), "/d/%01900d", 7);
                put_entry(&b, path, SERVICE_ENTRY_FILE, 1);
            }
        }
        send_records(f, c, &b);
    }
}

static void on_forget(struct fake *f, struct channel *c)
{
    if (strcmp(c->args[0], "file-read") == 0 || strcmp(c->args[0], "file-write") == 0) {
        f->forgotten++;
    }
    c->number = 0;
}

static void on_hello(struct fake *f, const struct agent_frame *frame)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_welcome m = {.version = AGENT_VERSION};
    struct agent_hello hello;

    memset(f->channels, 0, sizeof(f->channels));
    if (agent_hello_parse(frame, &hello) == 0) {
        memcpy(m.nonce, hello.nonce, sizeof(m.nonce));
        agent_welcome_format(&b, &m);
        agent_process_end_format(&b, 0);
        send_buf(f, &b);
    }
}

static void on_identity(struct fake *f, const struct agent_frame *frame)
{
    _cleanup_buf_ struct buf b = buf_make(0);
    struct agent_identity_ok m = {.done = AGENT_IDENTITY_ALL};
    struct agent_identity identity;

    if (agent_identity_parse(frame, &identity) == 0) {
        m.id = identity.id;
        m.epoch = identity.epoch;
        agent_identity_ok_format(&b, &m);
        send_buf(f, &b);
    }
}

static void on_frame(struct fake *f, const struct agent_frame *frame)
{
    struct channel *c = frame->channel != 0 ? find(f, frame->channel) : NULL;
    struct agent_output_ack ack;

    if (frame->type == AGENT_HELLO) {
        on_hello(f, frame);
    } else if (frame->type == AGENT_IDENTITY) {
        on_identity(f, frame);
    } else if (frame->type == AGENT_START) {
        on_start(f, frame);
    } else if (frame->type == AGENT_STDIN) {
        on_stdin(f, frame);
    } else if (frame->type == AGENT_OUTPUT_ACK && c != NULL &&
               agent_output_ack_parse(frame, &ack) == 0) {
        c->acked = ack.offset;
    } else if (frame->type == AGENT_FORGET && c != NULL) {
        on_forget(f, c);
    }
}

static void serve_host(int fd)
{
    struct fake f = {.fd = fd};
    struct agent_reader reader;

    if (agent_reader_init(&reader, AGENT_HELLO, true) < 0) {
        return;
    }
    while (!f.failed) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        struct agent_frame frame;
        size_t room;

        if (poll(&p, 1, TICK_MS) > 0) {
            uint8_t *to = agent_reader_space(&reader, &room);
            ssize_t n = read(fd, to, room);

            if (n <= 0) {
                break;
            }
            agent_reader_commit(&reader, (size_t)n);
        }
        while (!f.failed && agent_reader_next(&reader, &frame) > 0) {
            on_frame(&f, &frame);
        }
        for (size_t i = 0; i < CHANNELS_MAX; i++) {
            if (f.channels[i].number != 0) {
                tick(&f, &f.channels[i]);
            }
        }
    }
    agent_reader_done(&reader);
}

int main(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (argc != 3 || fd < 0 ||
        span_copy_str(span_of_str(argv[2]), address.sun_path, sizeof(address.sun_path)) < 0) {
        return 2;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)unlink(argv[2]);
    if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 4) < 0) {
        return 1;
    }
    for (;;) {
        _cleanup_close_ int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);

        if (peer >= 0) {
            serve_host(peer);
        }
    }
}
