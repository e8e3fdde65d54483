/* `space cp` into a sandbox. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "cli/api.h"
#include "cli/attach.h"
#include "cli/cli.h"
#include "cli/copy.h"
#include "cli/pack.h"

#define MODE_MASK 07777U

/* Where a body comes from; one of them is set. */
struct upload {
    struct copy *copy;
    struct pack *pack;
    int fd; /* -1: none */
    uint64_t sent;
    bool stdin_waits; /* there was nothing to read */
    struct error err;
};

static ssize_t read_pack(void *arg, void *to, size_t room)
{
    struct upload *u = arg;
    ssize_t n = pack_read(u->pack, to, room, &u->err);
    const struct pack_count *count = pack_get_count(u->pack);

    progress_show(&u->copy->progress, count->bytes, count->files);
    return n < 0 ? -EIO : n;
}

static ssize_t read_file(void *arg, void *to, size_t room)
{
    struct upload *u = arg;
    ssize_t n;

    do {
        n = read(u->fd, to, room);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        (void)error_set(&u->err, errno, "cannot read: %s", strerror(errno));
        return -EIO;
    }
    u->sent += (uint64_t)n;
    progress_show(&u->copy->progress, u->sent, 0);
    return n;
}

/* Standard input may be slow: then the transfer waits, and signals are seen. */
static ssize_t read_stdin(void *arg, void *to, size_t room)
{
    struct upload *u = arg;
    struct pollfd fd = {.fd = u->fd, .events = POLLIN};

    if (poll(&fd, 1, 0) <= 0) {
        u->stdin_waits = true;
        return REST_READ_LATER;
    }
    return read_file(arg, to, room);
}

/* As copy_wait, for a body from standard input. */
static int wait_with_stdin(struct upload *u, struct rest_transfer *t, struct error *err)
{
    while (!t->done) {
        struct pollfd fds[2] = {{.fd = u->copy->signal_fd, .events = POLLIN},
                                {.fd = u->fd, .events = POLLIN}};

        (void)rest_poll(u->copy->cli->rest, fds, u->stdin_waits ? 2 : 1, -1);
        if (attach_read_signal(u->copy->signal_fd) != 0) {
            return error_set(err, EINTR, "interrupted");
        }
        if (u->stdin_waits && fds[1].revents != 0) {
            u->stdin_waits = false;
            rest_resume(t);
        }
    }
    return 0;
}

static int keep_answer(struct copy *c, const struct rest_transfer *t)
{
    json_decref(c->answer);
    c->answer = json_loadb((const char *)t->body.p, t->body.n, JSON_ALLOW_NUL, NULL);
    return 0;
}

static int send_body(struct upload *u, struct rest_request *q, struct error *err)
{
    struct copy *c = u->copy;
    struct rest_transfer t;
    int r = rest_start(c->cli->rest, &t, q, err);

    if (r < 0) {
        return r;
    }
    r = q->on_read == read_stdin ? wait_with_stdin(u, &t, err) : copy_wait(c, &t, err);
    if (r == 0) {
        r = rest_result(c->cli->rest, &t, err);
    }
    if (r == -ENOTCONN && u->err.errnum != 0) { /* our own end of it failed */
        *err = u->err;
        r = -u->err.errnum;
    }
    if (r == 0) {
        r = keep_answer(c, &t);
    }
    rest_finish(c->cli->rest, &t);
    return r;
}

static int send_file(struct copy *c, const char *local, const char *remote, struct error *err)
{
    _cleanup_close_ int fd = open(local, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    _cleanup_buf_ struct buf path = buf_make(0);
    struct upload u = {.copy = c, .fd = fd};
    struct rest_request q = {.method = "PUT",
                             .on_read = read_file,
                             .content_type = "application/octet-stream",
                             .arg = &u};
    char mode[8];
    struct stat st;
    int r;

    if (fd < 0 || fstat(fd, &st) < 0) {
        return error_set(err, errno, "cannot read %.200s: %s", local, strerror(errno));
    }
    (void)snprintf(mode, sizeof(mode), "%04o", st.st_mode & MODE_MASK);
    copy_put_path(c, "", remote, &path);
    rest_put_query(&path, "mode", mode);
    q.path = buf_str(&path);
    q.read_length = st.st_size;
    progress_init(&c->progress, c->cli, local, (uint64_t)st.st_size);
    r = send_body(&u, &q, err);
    if (r == 0) {
        progress_done(&c->progress, u.sent, 0);
    }
    return r;
}

static int send_tar(struct upload *u, const char *remote, struct error *err)
{
    _cleanup_buf_ struct buf path = buf_make(0);
    struct rest_request q = {.method = "PUT",
                             .on_read = u->pack != NULL ? read_pack : read_stdin,
                             .read_length = -1,
                             .content_type = "application/x-tar",
                             .arg = u};

    copy_put_path(u->copy, "/tar", remote, &path);
    q.path = buf_str(&path);
    return send_body(u, &q, err);
}

static int send_tree(
    struct copy *c, const char *local, const char *name, const char *remote, struct error *err)
{
    _cleanup_pack_ struct pack *pack = NULL;
    struct upload u = {.copy = c, .fd = -1};
    const struct pack_count *count;
    int r = pack_new(local, name, &pack, err);

    if (r < 0) {
        return r;
    }
    u.pack = pack;
    progress_init(&c->progress, c->cli, local, 0);
    r = send_tar(&u, remote, err);
    count = pack_get_count(pack);
    if (r < 0) {
        return r;
    }
    copy_tell_left_out(c, count->left_out, count->first_left_out,
                       "it cannot be read, or it is no file, directory or link");
    if (count->changed > 0) {
        c->incomplete++;
        cli_note("space: a file changed while it was copied; copy it again");
    }
    progress_done(&c->progress, count->bytes, count->files);
    return 0;
}

/* What the target is: a link to a directory counts as one. */
static int target_kind(struct copy *c, const char *remote, enum copy_kind *ret, struct error *err)
{
    _cleanup_json_ json_t *entry = NULL;
    _cleanup_json_ json_t *behind = NULL;
    char inside[COPY_NAME_SIZE];
    enum copy_kind kind;
    struct error ignored = {0};
    int r = copy_stat(c, remote, ret, &entry, err);

    if (r == 0 && *ret == COPY_SYMLINK && copy_join(remote, ".", inside, &ignored) == 0 &&
        copy_stat(c, inside, &kind, &behind, &ignored) == 0 && kind == COPY_DIRECTORY) {
        *ret = COPY_DIRECTORY;
    }
    return r;
}

/* A tree, or a link: its last name is the target's own when the target is no directory. */
static int send_other(struct copy *c,
                      const char *local,
                      const char *remote,
                      enum copy_kind target,
                      const struct stat *st,
                      struct error *err)
{
    char base[NAME_MAX + 1];
    char parent[COPY_NAME_SIZE];
    char *slash;

    if (S_ISDIR(st->st_mode)) {
        if (target != COPY_DIRECTORY && target != COPY_MISSING) {
            return error_set(err, ENOTDIR, "%.200s is a file in the sandbox", remote);
        }
        base[0] = '\0';
        if (target == COPY_DIRECTORY && copy_name_base(local, base) < 0) {
            return error_set(err, ENAMETOOLONG, "the name is too long");
        }
        return send_tree(c, local, base, remote, err);
    }
    if (target == COPY_DIRECTORY) {
        return copy_name_base(local, base) < 0
                   ? error_set(err, ENAMETOOLONG, "the name is too long")
                   : send_tree(c, local, base, remote, err);
    }
    if (copy_name_base(remote, base) < 0 || base[0] == '\0' ||
        snprintf(parent, sizeof(parent), "%s", remote) >= (int)sizeof(parent)) {
        return error_set(err, EINVAL, "%.200s is no name for a link", remote);
    }
    slash = strrchr(parent, '/');
    if (slash != NULL) {
        slash[slash == parent ? 1 : 0] = '\0';
    }
    return send_tree(c, local, base, slash != NULL ? parent : ".", err);
}

int copy_up(struct copy *c, const char *local, const char *remote, struct error *err)
{
    char target[COPY_NAME_SIZE];
    char base[NAME_MAX + 1];
    enum copy_kind kind;
    struct stat st;
    int r;

    if (lstat(local, &st) < 0) {
        return error_set(err, errno, "%.200s: %s", local, strerror(errno));
    }
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode) && !S_ISLNK(st.st_mode)) {
        return error_set(err, EINVAL, "%.200s is no file, directory or link", local);
    }
    r = target_kind(c, remote, &kind, err);
    if (r < 0) {
        return r;
    }
    if (!S_ISREG(st.st_mode)) {
        return send_other(c, local, remote, kind, &st, err);
    }
    if (kind == COPY_MISSING && copy_name_is_directory(remote)) {
        return error_set(err, ENOENT, "there is no directory %.200s in the sandbox", remote);
    }
    if (kind != COPY_DIRECTORY) {
        return send_file(c, local, remote, err);
    }
    if (copy_name_base(local, base) < 0 || copy_join(remote, base, target, err) < 0) {
        return error_set(err, ENAMETOOLONG, "the name is too long");
    }
    return send_file(c, local, target, err);
}

int copy_up_stream(struct copy *c, const char *remote, struct error *err)
{
    struct upload u = {.copy = c, .fd = STDIN_FILENO};
    int r;

    progress_init(&c->progress, c->cli, "standard input", 0);
    r = send_tar(&u, remote, err);
    if (r == 0) {
        progress_done(&c->progress, u.sent, 0);
    }
    return r;
}
