/* `space cp SANDBOX:PATH -`: a tar archive on standard output, in which names begin with the last
 * one of PATH, as docker cp gives it. It is made anew from what the guest sends, by the rules of
 * unpack.h: whoever unpacks it gets no names that lead out, no devices, no set-user-id bits. */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/copy.h"
#include "cli/unpack.h"

#define MODE_MASK 0777U

struct output {
    struct copy *copy;
    struct archive *writer;
    const char *prefix; /* "" for none */
    int failed;         /* of writing */
    uint64_t files;
    uint64_t bytes;
    uint64_t left_out;
    char first_left_out[256];
};

static la_ssize_t on_write(struct archive *a, void *arg, const void *bytes, size_t n)
{
    struct output *o = arg;

    o->failed = copy_write_out(o->copy, span_make(bytes, n));
    if (o->failed < 0) {
        archive_set_error(a, -o->failed, "%s", strerror(-o->failed));
        return -1;
    }
    return (la_ssize_t)n;
}

static int open_writer(struct output *o, struct error *err)
{
    o->writer = archive_write_new();
    if (o->writer == NULL || archive_write_set_format_pax_restricted(o->writer) != ARCHIVE_OK ||
        archive_write_open(o->writer, o, NULL, on_write, NULL) != ARCHIVE_OK) {
        return error_set(err, ENOMEM, "out of memory");
    }
    return 0;
}

static int fail_write(const struct output *o, struct error *err)
{
    if (o->failed < 0) {
        return error_set(err, -o->failed, "cannot write the archive: %s", strerror(-o->failed));
    }
    return error_set(err, EIO, "cannot make the archive: %.200s", archive_error_string(o->writer));
}

/* The name below the prefix; 1 when the entry is to be left out. */
static int
place_name(const struct output *o, const char *given, char ret[COPY_NAME_SIZE], struct error *err)
{
    char name[COPY_NAME_SIZE];
    int r = copy_name_check(given, name);

    if (r < 0) {
        return error_set(err, -r, "the archive has an entry with a forbidden name: %.160s",
                         given != NULL ? given : "(none)");
    }
    if (o->prefix[0] == '\0') {
        (void)snprintf(ret, COPY_NAME_SIZE, "%s", name[0] != '\0' ? name : ".");
        return 0;
    }
    if (name[0] == '\0') {
        (void)snprintf(ret, COPY_NAME_SIZE, "%s", o->prefix);
        return 0;
    }
    return copy_join(o->prefix, name, ret, err);
}

static int copy_content(struct output *o, struct archive *reader, struct error *err)
{
    for (;;) {
        const void *bytes;
        size_t n;
        la_int64_t offset;
        int r = archive_read_data_block(reader, &bytes, &n, &offset);

        if (r == ARCHIVE_EOF) {
            return 0;
        }
        if (r < ARCHIVE_WARN) {
            return error_set(err, EBADMSG, "the archive is damaged: %.200s",
                             archive_error_string(reader));
        }
        if (archive_write_data(o->writer, bytes, n) < 0) {
            return fail_write(o, err);
        }
        o->bytes += n;
        progress_show(&o->copy->progress, o->bytes, o->files);
    }
}

static int
pass_entry(struct output *o, struct archive *reader, struct archive_entry *e, struct error *err)
{
    unsigned int type = archive_entry_filetype(e);
    const char *link = archive_entry_hardlink(e);
    char name[COPY_NAME_SIZE];
    char target[COPY_NAME_SIZE];
    int r = place_name(o, archive_entry_pathname(e), name, err);

    if (r == 0 && link != NULL) {
        r = place_name(o, link, target, err);
    }
    if (r < 0) {
        return r;
    }
    if (link == NULL && type != AE_IFREG && type != AE_IFDIR && type != AE_IFLNK) {
        if (o->left_out++ == 0) {
            (void)snprintf(o->first_left_out, sizeof(o->first_left_out), "%.255s", name);
        }
        return 0;
    }
    archive_entry_copy_pathname(e, name);
    if (link != NULL) {
        archive_entry_copy_hardlink(e, target);
    }
    archive_entry_set_perm(e, archive_entry_perm(e) & MODE_MASK);
    archive_entry_sparse_clear(e);
    archive_entry_xattr_clear(e);
    o->files++;
    if (archive_write_header(o->writer, e) < ARCHIVE_WARN) {
        return fail_write(o, err);
    }
    return type == AE_IFREG && link == NULL ? copy_content(o, reader, err) : 0;
}

static int pass_archive(struct output *o, struct archive *reader, struct error *err)
{
    for (;;) {
        struct archive_entry *e;
        int r = archive_read_next_header(reader, &e);

        if (r == ARCHIVE_EOF) {
            return 0;
        }
        if (r < ARCHIVE_WARN) {
            return error_set(err, EBADMSG, "the archive is damaged: %.200s",
                             archive_error_string(reader));
        }
        r = pass_entry(o, reader, e, err);
        if (r < 0) {
            return r;
        }
    }
}

static int pass_tree(struct output *o, struct copy_source *s, struct error *err)
{
    struct archive *reader = copy_source_open(s);
    int r = reader != NULL ? pass_archive(o, reader, err) : -EIO;

    while (r == 0 && (r = copy_source_next(s)) > 0) {
        r = 0; /* the connection's own end is to be seen */
    }
    if (s->err.errnum != 0) {
        *err = s->err;
        r = -s->err.errnum;
    }
    if (reader != NULL) {
        (void)archive_read_free(reader);
    }
    return r;
}

static int pass_bytes(struct output *o, struct copy_source *s, struct error *err)
{
    int r;

    while ((r = copy_source_next(s)) > 0) {
        if (archive_write_data(o->writer, s->given.p, s->given.n) < 0) {
            return fail_write(o, err);
        }
        o->bytes += s->given.n;
        progress_show(&o->copy->progress, o->bytes, 0);
    }
    if (r < 0) {
        *err = s->err;
    }
    return r;
}

/* The head of an archive that has a single entry. */
static int put_single(struct output *o, const json_t *entry, enum copy_kind kind, struct error *err)
{
    struct archive_entry *e = archive_entry_new();
    const char *mode = api_text(entry, "mode");
    unsigned int bits = 0;
    int64_t ms;
    int r;

    if (e == NULL) {
        return error_set(err, ENOMEM, "out of memory");
    }
    for (const char *c = mode; *c >= '0' && *c <= '7' && bits <= MODE_MASK * 8; c++) {
        bits = bits * 8 + (unsigned int)(*c - '0');
    }
    archive_entry_copy_pathname(e, o->prefix);
    archive_entry_set_filetype(e, kind == COPY_FILE ? AE_IFREG : AE_IFLNK);
    archive_entry_set_perm(e, bits & MODE_MASK);
    archive_entry_set_size(e, kind == COPY_FILE ? api_number(entry, "size_bytes") : 0);
    if (kind == COPY_SYMLINK) {
        archive_entry_copy_symlink(e, api_text(entry, "symlink_target"));
    }
    if (clock_parse(api_text(entry, "modified_at"), &ms) == 0) {
        archive_entry_set_mtime(e, ms / 1000, ms % 1000 * 1000000);
    }
    o->files++;
    r = archive_write_header(o->writer, e) < ARCHIVE_WARN ? fail_write(o, err) : 0;
    archive_entry_free(e);
    return r;
}

static int pass(struct output *o,
                const char *remote,
                const json_t *entry,
                enum copy_kind kind,
                struct error *err)
{
    struct copy_source s;
    int r = kind == COPY_DIRECTORY ? 0 : put_single(o, entry, kind, err);

    if (r < 0 || kind == COPY_SYMLINK) {
        return r;
    }
    r = copy_source_start(&s, o->copy, kind == COPY_DIRECTORY ? "/tar" : "", remote);
    if (r < 0) {
        *err = s.err;
    } else {
        r = kind == COPY_DIRECTORY ? pass_tree(o, &s, err) : pass_bytes(o, &s, err);
    }
    copy_source_done(&s);
    return r;
}

int copy_down_stream(struct copy *c, const char *remote, struct error *err)
{
    _cleanup_json_ json_t *entry = NULL;
    char base[NAME_MAX + 1];
    struct output o = {.copy = c, .prefix = base};
    enum copy_kind kind;
    int r = copy_stat(c, remote, &kind, &entry, err);

    if (r < 0) {
        return r;
    }
    if (kind == COPY_MISSING || kind == COPY_OTHER) {
        return error_set_code(err, kind == COPY_MISSING ? ERROR_NOT_FOUND : ERROR_CONFLICT, "file",
                              kind == COPY_MISSING ? "there is no %.200s in the sandbox"
                                                   : "%.200s is no file, directory or link",
                              remote);
    }
    if (copy_name_base(remote, base) < 0) {
        return error_set(err, ENAMETOOLONG, "the name is too long");
    }
    progress_init(&c->progress, c->cli, remote,
                  kind == COPY_FILE ? (uint64_t)api_number(entry, "size_bytes") : 0);
    r = open_writer(&o, err);
    if (r == 0) {
        r = pass(&o, remote, entry, kind, err);
    }
    if (r == 0 && archive_write_close(o.writer) < ARCHIVE_WARN) {
        r = fail_write(&o, err);
    }
    if (r < 0) {
        (void)archive_write_fail(o.writer); /* no proper end behind a broken archive */
    }
    (void)archive_write_free(o.writer);
    copy_tell_left_out(c, o.left_out, o.first_left_out, "it is a device, pipe or socket");
    if (r == 0) {
        progress_done(&c->progress, o.bytes, o.files);
    }
    return r;
}
