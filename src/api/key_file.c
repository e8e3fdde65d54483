#include "api/key_file.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <sys/stat.h>

#include <jansson.h>

#include "api/key_text.h"
#include "api/record_json.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "io/json_request.h"

#define PATH_MAX_BYTES 1024

static int fill(const struct key_order *order, struct key_record *key, struct error *err)
{
    size_t n = strlen(order->name);

    memset(key, 0, sizeof(*key));
    key->role = KEY_ROLE_ADMIN;
    key->created_at = clock_real_ms();
    if (n == 0 || n > KEY_NAME_SIZE - 2) {
        return error_set(err, EINVAL, "a key's name has 1 to %d characters", KEY_NAME_SIZE - 2);
    }
    if (order->role != NULL && key_role_find(order->role, &key->role) < 0) {
        return error_set(err, EINVAL, "the role is admin, member or read, not %.40s", order->role);
    }
    if (order->expires_at != NULL && (clock_parse(order->expires_at, &key->expires_at) < 0 ||
                                      key->expires_at <= key->created_at)) {
        return error_set(err, EINVAL, "--expires-at is a coming RFC 3339 time, not %.60s",
                         order->expires_at);
    }
    (void)snprintf(key->name, sizeof(key->name), "%s", order->name);
    return id_make("ky", key->id);
}

/* Root acts as the service user while the store is open, so that its files stay that user's. */
static int act_as(const char *user, struct error *err)
{
    struct passwd entry;
    struct passwd *found = NULL;
    char text[4096];

    if (geteuid() != 0) {
        return 0;
    }
    (void)getpwnam_r(user, &entry, text, sizeof(text), &found);
    if (found == NULL) {
        return error_set(err, ENOENT, "there is no user %.60s: make it, or set service_user", user);
    }
    if (setgroups(1, &entry.pw_gid) < 0 || setegid(entry.pw_gid) < 0 || seteuid(entry.pw_uid) < 0) {
        return error_set(err, errno, "cannot act as %.60s: %s", user, strerror(errno));
    }
    return 0;
}

static int act_as_self(struct error *err)
{
    if (geteuid() != getuid() && (seteuid(getuid()) < 0 || setegid(getgid()) < 0)) {
        return error_set(err, errno, "cannot go back to the own user: %s", strerror(errno));
    }
    return 0;
}

static int with_store(const struct settings *settings,
                      const struct key_record *key,
                      bool revoke,
                      struct error *err)
{
    char path[SETTINGS_PATH_SIZE + 32];
    struct store *store = NULL;
    int r;

    (void)snprintf(path, sizeof(path), "%s/store/space.db", settings->data_dir);
    (void)umask(0077);
    r = store_open(path, &store, err);
    if (r == 0) {
        r = revoke ? store_key_revoke(store, key->id, clock_real_ms(), err)
                   : store_key_insert(store, key, err);
    }
    store_close(store);
    return r < 0 ? r : 0;
}

static int store_key(const struct settings *settings,
                     const struct key_record *key,
                     bool revoke,
                     struct error *err)
{
    struct error ignored;
    int r = act_as(settings->service_user, err);

    if (r == 0) {
        r = with_store(settings, key, revoke, err);
    }
    return act_as_self(r < 0 ? &ignored : err) < 0 ? -EPERM : r;
}

/* A whole file under a temporary name. */
static int write_file(const char *path, const char *text, struct error *err)
{
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    int r = fd < 0 ? -errno : 0;

    if (r == 0) {
        r = fd_write_all(fd, span_of_str(text));
    }
    if (r == 0) {
        r = fd_write_all(fd, span_of_str("\n"));
    }
    if (r == 0 && fsync(fd) < 0) {
        r = -errno;
    }
    return r < 0 ? error_set(err, -r, "cannot write %.200s: %s", path, strerror(-r)) : 0;
}

/* The file appears complete or not at all, and never over another one: link() refuses that. */
static int make_file(const struct settings *settings,
                     const struct key_record *key,
                     const char *out,
                     const char *text,
                     struct error *err)
{
    char temporary[PATH_MAX_BYTES];
    struct error ignored;
    int r;

    if (access(out, F_OK) == 0) {
        return error_set(err, EEXIST, "%.200s exists: remove it or name another file", out);
    }
    if (snprintf(temporary, sizeof(temporary), "%s.%s", out, key->id) >= (int)sizeof(temporary)) {
        return error_set(err, ENAMETOOLONG, "the file's name is too long");
    }
    r = write_file(temporary, text, err);
    if (r == 0) {
        r = store_key(settings, key, false, err);
    }
    if (r == 0 && link(temporary, out) < 0) {
        r = error_set(err, errno, "cannot make %.200s: %s", out, strerror(errno));
        (void)store_key(settings, key, true, &ignored);
    }
    (void)unlink(temporary);
    return r;
}

static int print_key(const struct settings *settings,
                     const struct key_record *key,
                     const char *text,
                     struct error *err)
{
    _cleanup_json_ json_t *answer = key_json(key);
    _cleanup_buf_ struct buf out = buf_make(0);
    int r;

    if (isatty(STDOUT_FILENO) != 0) {
        return error_set(err, EINVAL, "a key is not shown on a terminal: use --out FILE");
    }
    if (json_object_set_new(answer, "key", json_string(text)) < 0) {
        return error_set(err, ENOMEM, "no memory");
    }
    json_write(answer, &out);
    buf_put_str(&out, "\n");
    r = buf_error(&out);
    r = r < 0 ? error_set(err, -r, "no memory") : store_key(settings, key, false, err);
    if (r == 0) {
        r = fd_write_all(STDOUT_FILENO, buf_span(&out));
    }
    if (out.p != NULL) {
        explicit_bzero(out.p, out.n);
    }
    return r;
}

int key_file_make(const struct settings *settings, const struct key_order *order, struct error *err)
{
    struct key_record key;
    char text[KEY_TEXT_SIZE] = "";
    int r = fill(order, &key, err);

    if (r == 0) {
        r = key_text_make(text);
        if (r < 0) {
            (void)error_set(err, -r, "no random bytes");
        }
    }
    if (r == 0) {
        key_text_hash(text, key.hash);
        r = order->out != NULL ? make_file(settings, &key, order->out, text, err)
                               : print_key(settings, &key, text, err);
    }
    explicit_bzero(text, sizeof(text));
    return r;
}
