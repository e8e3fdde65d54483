/* `space cp`: what its directions share. */
#pragma once

#include <jansson.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/id.h"
#include "cli/copy_name.h"
#include "cli/progress.h"
#include "cli/rest.h"

struct archive;
struct cli;

enum copy_kind {
    COPY_MISSING,
    COPY_FILE,
    COPY_DIRECTORY,
    COPY_SYMLINK,
    COPY_OTHER
};

struct copy {
    struct cli *cli;
    int signal_fd;
    char sandbox_id[ID_SIZE];
    const char *user; /* NULL: the template's */
    struct progress progress;
    json_t *answer;          /* of the API, for --json; NULL: none */
    unsigned int incomplete; /* things that were left out, and said */
};

/* Appends `/v1/sandboxes/ID/files` + rest with `path` and the user. */
void copy_put_path(const struct copy *c, const char *rest, const char *path, struct buf *out);
/* GET …/files/stat. COPY_MISSING is no error; ret_entry is NULL then. Of a link, the link itself.
 */
int copy_stat(struct copy *c,
              const char *path,
              enum copy_kind *ret_kind,
              json_t **ret_entry,
              struct error *err) _must_check_;
/* Runs the transfer to its end. -EINTR when a signal came. */
int copy_wait(struct copy *c, struct rest_transfer *t, struct error *err) _must_check_;
/* Writes to our standard output, without being deaf to signals. 0, -EINTR, -EPIPE, … */
int copy_write_out(const struct copy *c, struct span bytes) _must_check_;
/* Says what was left out of a copy, if anything was. */
void copy_tell_left_out(struct copy *c, uint64_t count, const char *first, const char *why);
/* `directory` joined with one component. */
int copy_join(const char *directory, const char *base, char ret[COPY_NAME_SIZE], struct error *err)
    _must_check_;

/* A streamed answer as something that libarchive reads. */
struct copy_source {
    struct copy *copy;
    struct rest_request request;
    struct rest_transfer transfer;
    bool started;
    struct buf path;
    struct buf pending;
    struct buf given; /* to the reader, valid until it asks again */
    struct error err; /* what broke it */
};

int copy_source_start(struct copy_source *s, struct copy *c, const char *rest, const char *path)
    _must_check_;
void copy_source_done(struct copy_source *s);
/* The next bytes, in s->given: 1, 0 at the end, negative with s->err. */
int copy_source_next(struct copy_source *s) _must_check_;
/* A tar reader over it; NULL with s->err. */
struct archive *copy_source_open(struct copy_source *s);

/* The directions. 0, or negative with err. */
int copy_up(struct copy *c, const char *local, const char *remote, struct error *err) _must_check_;
int copy_up_stream(struct copy *c, const char *remote, struct error *err) _must_check_;
int copy_down(struct copy *c, const char *remote, const char *local, struct error *err)
    _must_check_;
int copy_down_stream(struct copy *c, const char *remote, struct error *err) _must_check_;
