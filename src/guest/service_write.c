/* file-write: the content goes into a file without a name, which gets the target's name when all of
 * it is there (replace.h). So a failed, cut or killed upload leaves the old file as it was. */
#include <errno.h>
#include <fcntl.h>

#include "base/fd.h"
#include "guest/replace.h"
#include "guest/sparse.h"

#define NEW_MODE    0644
#define SET_ID_BITS 06000U
#define COPY_BYTES  262144U

struct upload {
    struct replacement new;
    uint64_t size_bytes;
    uint64_t limit_bytes; /* more is too much */
};

/* What is there may be replaced: a regular file that the user might also write. */
static int check_old(struct upload *u)
{
    const struct replacement *n = &u->new;
    int r = replacement_look(&u->new);

    if (r < 0 || !n->exists) {
        return r;
    }
    if (S_ISDIR(n->old.st_mode)) {
        return -EISDIR;
    }
    if (!S_ISREG(n->old.st_mode)) {
        return -EEXIST;
    }
    return faccessat(n->place.fd, n->place.name, W_OK, AT_EACCESS) < 0 ? -errno : 0;
}

static int take_content(struct upload *u)
{
    _cleanup_free_ uint8_t *bytes = malloc(COPY_BYTES);

    if (bytes == NULL) {
        return -ENOMEM;
    }
    for (;;) {
        ssize_t n = read(SERVICE_IN, bytes, COPY_BYTES);
        int r = n < 0 && errno != EINTR ? -errno : 0;

        if (n == 0) {
            /* A hole at the end is only a length. */
            return ftruncate(u->new.fd, (off_t)u->size_bytes) < 0 ? -errno : 0;
        }
        if (n > 0 && (uint64_t)n > u->limit_bytes - u->size_bytes) {
            r = -EPIPE;
        } else if (n > 0) {
            r = sparse_write(u->new.fd, u->size_bytes, span_make(bytes, (size_t)n));
            u->size_bytes += (uint64_t)n;
        }
        if (r < 0) {
            return r;
        }
    }
}

/* Owner before mode: a change of owner takes bits of the mode away. */
static int set_attributes(const struct replacement *n, const mode_t *mode)
{
    mode_t wanted = mode != NULL ? *mode : NEW_MODE;
    struct stat st;

    if (n->exists && fchown(n->fd, n->old.st_uid, n->old.st_gid) < 0) {
        (void)fchown(n->fd, (uid_t)-1, n->old.st_gid);
    }
    if (mode == NULL && n->exists) {
        wanted = n->old.st_mode & 07777;
        /* What another owner's programs may do is not for this one's. */
        if (fstat(n->fd, &st) < 0 || st.st_uid != n->old.st_uid || st.st_gid != n->old.st_gid) {
            wanted &= ~(mode_t)SET_ID_BITS;
        }
    }
    return fchmod(n->fd, wanted) < 0 ? -errno : 0;
}

static void upload_done(struct upload *u)
{
    replacement_done(&u->new);
}

struct write_request {
    const char *path;
    const mode_t *mode; /* NULL: as before */
    bool has_size;
    uint64_t size_bytes; /* INT64_MAX without */
};

/* 1 when the file is new, 0 when it replaced one. */
static int write_file(struct service *s, const struct write_request *q)
{
    _cleanup_(upload_done) struct upload u = {.new = REPLACEMENT_NONE,
                                              .limit_bytes = q->size_bytes};
    _cleanup_buf_ struct buf absolute = buf_make(0);
    int r = place_open_following(q->path, &u.new.place);

    if (r == 0) {
        r = check_old(&u);
    }
    if (r == 0) {
        r = path_put_absolute(&absolute, q->path);
    }
    if (r == 0) {
        r = replacement_open(&u.new);
    }
    if (r == 0) {
        r = take_content(&u);
    }
    if (r == 0 && q->has_size && q->size_bytes != u.size_bytes) {
        r = -EPIPE;
    }
    if (r == 0) {
        r = set_attributes(&u.new, q->mode);
    }
    if (r == 0) {
        r = replacement_finish(&u.new, true);
    }
    if (r == 0) {
        r = path_put_entry(s, buf_span(&absolute), u.new.fd);
    }
    return r < 0 ? r : !u.new.exists;
}

int service_file_write(struct service *s)
{
    struct write_request q = {.path = service_arg(s, 0), .size_bytes = INT64_MAX};
    int parents = service_arg_flag(s, 2, "parents");
    mode_t mode = 0;
    size_t made = 0;
    int r = s->argc == 4 && parents >= 0 ? 0 : -EINVAL;

    if (r == 0 && service_arg(s, 1)[0] != '\0') {
        r = service_arg_mode(s, 1, &mode);
        q.mode = &mode;
    }
    q.has_size = service_arg(s, 3)[0] != '\0';
    if (r == 0 && q.has_size &&
        span_parse_u64(span_of_str(service_arg(s, 3)), INT64_MAX, &q.size_bytes) < 0) {
        r = -EINVAL;
    }
    if (r == 0 && parents > 0) {
        r = path_make_parents(q.path, &made);
    }
    if (r == 0) {
        r = write_file(s, &q);
    }
    if (r < 0) {
        path_remove_parents(q.path, made);
        return service_fail(s, r, q.path);
    }
    service_put_done(s, (uint64_t)r, false);
    return 0;
}
