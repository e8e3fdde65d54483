#include "cli/copy.h"

#include <archive.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "cli/api.h"
#include "cli/attach.h"
#include "cli/cli.h"
#include "cli/unpack.h"

#define PENDING_LIMIT (1024U * 1024U)

void copy_put_path(const struct copy *c, const char *rest, const char *path, struct buf *out)
{
    buf_printf(out, "/v1/sandboxes/%s/files%s", c->sandbox_id, rest);
    rest_put_query(out, "path", path);
    if (c->user != NULL) {
        rest_put_query(out, "user", c->user);
    }
}

static enum copy_kind kind_of(const json_t *entry)
{
    const char *type = api_text(entry, "type");

    return strcmp(type, "file") == 0        ? COPY_FILE
           : strcmp(type, "directory") == 0 ? COPY_DIRECTORY
           : strcmp(type, "symlink") == 0   ? COPY_SYMLINK
                                            : COPY_OTHER;
}

/* Whether a refusal says that the path is missing, not the sandbox. */
static bool is_missing(const struct copy *c, const struct error *err)
{
    const json_t *details = json_object_get(rest_last_error(c->cli->rest), "details");
    const char *name = api_text(details, "errno");

    return err->code == ERROR_NOT_FOUND &&
           (strcmp(name, "ENOENT") == 0 || strcmp(api_text(details, "resource"), "file") == 0);
}

int copy_stat(struct copy *c,
              const char *path,
              enum copy_kind *ret_kind,
              json_t **ret_entry,
              struct error *err)
{
    _cleanup_buf_ struct buf url = buf_make(0);
    struct error why = {0};
    json_t *entry = NULL;
    int r;

    copy_put_path(c, "/stat", path, &url);
    r = api_get(c->cli, buf_str(&url), &entry, &why);
    if (r < 0 && is_missing(c, &why)) {
        *ret_kind = COPY_MISSING;
        *ret_entry = NULL;
        return 0;
    }
    if (r < 0) {
        *err = why;
        return r;
    }
    *ret_kind = kind_of(entry);
    *ret_entry = entry;
    return 0;
}

int copy_wait(struct copy *c, struct rest_transfer *t, struct error *err)
{
    while (!t->done) {
        struct pollfd fd = {.fd = c->signal_fd, .events = POLLIN};

        (void)rest_poll(c->cli->rest, &fd, 1, -1);
        if (attach_read_signal(c->signal_fd) != 0) {
            return error_set(err, EINTR, "interrupted");
        }
    }
    return 0;
}

int copy_write_out(const struct copy *c, struct span bytes)
{
    while (bytes.n > 0) {
        struct pollfd fds[2] = {{.fd = STDOUT_FILENO, .events = POLLOUT},
                                {.fd = c->signal_fd, .events = POLLIN}};
        ssize_t n;

        if (poll(fds, 2, -1) < 0 && errno != EINTR) {
            return -errno;
        }
        if (attach_read_signal(c->signal_fd) != 0) {
            return -EINTR;
        }
        if (fds[0].revents == 0) {
            continue;
        }
        n = write(STDOUT_FILENO, bytes.p, bytes.n < PIPE_BUF ? bytes.n : PIPE_BUF);
        if (n < 0 && errno != EINTR && errno != EAGAIN) {
            return -errno;
        }
        bytes = span_skip(bytes, n > 0 ? (size_t)n : 0);
    }
    return 0;
}

void copy_tell_left_out(struct copy *c, uint64_t count, const char *first, const char *why)
{
    if (count == 0) {
        return;
    }
    progress_clear(&c->progress);
    c->incomplete++;
    if (count == 1) {
        cli_note("space: left out %s: %s", first, why);
    } else {
        cli_note("space: left out %llu entries, the first is %s: %s", (unsigned long long)count,
                 first, why);
    }
}

int copy_join(const char *directory, const char *base, char ret[COPY_NAME_SIZE], struct error *err)
{
    const char *slash = copy_name_is_directory(directory) ? "" : "/";

    if (snprintf(ret, COPY_NAME_SIZE, "%s%s%s", directory, slash, base) >= COPY_NAME_SIZE) {
        return error_set(err, ENAMETOOLONG, "the path is too long");
    }
    return 0;
}

/* ---- a streamed answer ---- */

static int on_data(void *arg, struct span piece)
{
    struct copy_source *s = arg;

    if (s->pending.n >= PENDING_LIMIT) {
        return REST_PAUSE;
    }
    buf_put(&s->pending, piece);
    return buf_error(&s->pending);
}

int copy_source_start(struct copy_source *s, struct copy *c, const char *rest, const char *path)
{
    *s = (struct copy_source){
        .copy = c, .path = buf_make(0), .pending = buf_make(0), .given = buf_make(0)};
    copy_put_path(c, rest, path, &s->path);
    s->request = (struct rest_request){
        .method = "GET", .path = buf_str(&s->path), .on_data = on_data, .arg = s};
    if (rest_start(c->cli->rest, &s->transfer, &s->request, &s->err) < 0) {
        return -s->err.errnum;
    }
    s->started = true;
    return 0;
}

void copy_source_done(struct copy_source *s)
{
    if (s->started) {
        rest_finish(s->copy->cli->rest, &s->transfer);
    }
    buf_done(&s->path);
    buf_done(&s->pending);
    buf_done(&s->given);
}

int copy_source_next(struct copy_source *s)
{
    struct buf swap;

    while (s->pending.n == 0) {
        struct pollfd fd = {.fd = s->copy->signal_fd, .events = POLLIN};

        if (s->transfer.done) {
            return rest_result(s->copy->cli->rest, &s->transfer, &s->err);
        }
        rest_resume(&s->transfer);
        (void)rest_poll(s->copy->cli->rest, &fd, 1, s->pending.n > 0 ? 0 : -1);
        if (attach_read_signal(s->copy->signal_fd) != 0) {
            return error_set(&s->err, EINTR, "interrupted");
        }
    }
    swap = s->given;
    s->given = s->pending;
    s->pending = swap;
    buf_clear(&s->pending);
    return 1;
}

static la_ssize_t on_archive_read(struct archive *a, void *arg, const void **ret_bytes)
{
    struct copy_source *s = arg;
    int r = copy_source_next(s);

    if (r < 0) {
        archive_set_error(a, -r, "%s", s->err.message);
        return -1;
    }
    *ret_bytes = s->given.p;
    return r == 0 ? 0 : (la_ssize_t)s->given.n;
}

struct archive *copy_source_open(struct copy_source *s)
{
    struct archive *a = unpack_new_reader();

    if (a == NULL) {
        (void)error_set(&s->err, ENOMEM, "out of memory");
        return NULL;
    }
    if (archive_read_open(a, s, NULL, on_archive_read, NULL) != ARCHIVE_OK) {
        if (s->err.errnum == 0) {
            (void)error_set(&s->err, EBADMSG, "the archive is damaged: %.200s",
                            archive_error_string(a));
        }
        (void)archive_read_free(a);
        return NULL;
    }
    return a;
}
