#include "cli/config.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <sys/stat.h>

#include "base/buf.h"
#include "base/fd.h"

#define CONFIG_FILE_LIMIT 65536U

struct user_file {
    char url[CONFIG_URL_SIZE];
    char key[CONFIG_KEY_SIZE];
    char key_file[SETTINGS_PATH_SIZE];
    char ca_file[SETTINGS_PATH_SIZE];
};

static struct span trim(struct span s)
{
    while (s.n > 0 && (s.p[0] == ' ' || s.p[0] == '\t')) {
        s = span_skip(s, 1);
    }
    while (s.n > 0 && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t' || s.p[s.n - 1] == '\r')) {
        s = span_head(s, s.n - 1);
    }
    return s;
}

static struct span trim_slashes(struct span s)
{
    while (s.n > 0 && s.p[s.n - 1] == '/') {
        s = span_head(s, s.n - 1);
    }
    return s;
}

/* The next line that is neither blank nor a comment; empty at the end. */
static struct span next_line(struct span *rest)
{
    while (rest->n > 0) {
        size_t end = span_find(*rest, 0, '\n');
        struct span line = trim(span_head(*rest, end));

        *rest = span_skip(*rest, end + 1);
        if (line.n > 0 && line.p[0] != '#') {
            return line;
        }
    }
    return span_make(NULL, 0);
}

/* Reads a file and tells whether others than its owner may read it. */
static int read_private(const char *path, struct buf *ret, bool *ret_open)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0) {
        return -errno;
    }
    *ret_open = S_ISREG(st.st_mode) && (st.st_mode & 077) != 0;
    return fd_read_all(fd, ret);
}

static int refuse_open_file(const char *path, struct error *err)
{
    return error_set(err, EPERM, "%.180s holds a key and others may read it: chmod 600 it", path);
}

static bool is_key_text(struct span key)
{
    for (size_t i = 0; i < key.n; i++) {
        if (key.p[i] <= 0x20 || key.p[i] >= 0x7f) {
            return false;
        }
    }
    return key.n > 0 && key.n < CONFIG_KEY_SIZE;
}

int config_read_key_file(const char *path, char ret_key[CONFIG_KEY_SIZE], struct error *err)
{
    _cleanup_buf_ struct buf text = buf_make(CONFIG_FILE_LIMIT);
    struct span rest;
    struct span key;
    bool open_to_others = false;
    int r = read_private(path, &text, &open_to_others);

    if (r < 0) {
        return error_set(err, -r, "cannot read the key file %.150s: %s", path, strerror(-r));
    }
    if (open_to_others) {
        return refuse_open_file(path, err);
    }
    rest = buf_span(&text);
    key = next_line(&rest);
    if (!is_key_text(key)) {
        return error_set(err, EBADMSG, "%.200s does not hold an API key", path);
    }
    return span_copy_str(key, ret_key, CONFIG_KEY_SIZE);
}

static int set_user_value(struct user_file *file, struct span name, struct span value)
{
    if (span_equals_str(name, "url")) {
        return span_copy_str(trim_slashes(value), file->url, sizeof(file->url));
    }
    if (span_equals_str(name, "key")) {
        return is_key_text(value) ? span_copy_str(value, file->key, sizeof(file->key)) : -EBADMSG;
    }
    if (span_equals_str(name, "key_file")) {
        return span_copy_str(value, file->key_file, sizeof(file->key_file));
    }
    if (span_equals_str(name, "ca_file")) {
        return span_copy_str(value, file->ca_file, sizeof(file->ca_file));
    }
    return -ENOENT;
}

static int read_user_file(const char *path, struct user_file *file, struct error *err)
{
    _cleanup_buf_ struct buf text = buf_make(CONFIG_FILE_LIMIT);
    struct span rest;
    struct span line;
    bool open_to_others = false;
    int r = read_private(path, &text, &open_to_others);

    if (r == -ENOENT || r == -ENOTDIR) {
        return 0;
    }
    if (r < 0) {
        return error_set(err, -r, "cannot read %.200s: %s", path, strerror(-r));
    }
    rest = buf_span(&text);
    while ((line = next_line(&rest)).n > 0) {
        size_t equals = span_find(line, 0, '=');

        if (equals == line.n || set_user_value(file, trim(span_head(line, equals)),
                                               trim(span_skip(line, equals + 1))) < 0) {
            return error_set(err, EINVAL, "%.180s: lines are url, key, key_file or ca_file = value",
                             path);
        }
    }
    return file->key[0] != '\0' && open_to_others ? refuse_open_file(path, err) : 0;
}

/* ~/ is the home directory; a relative path of the user's file is relative to where that file is,
 * wherever `space` runs. */
static int resolve_path(const struct config_input *in,
                        const char *base_file,
                        char path[SETTINGS_PATH_SIZE],
                        struct error *err)
{
    const char *slash = base_file != NULL ? strrchr(base_file, '/') : NULL;
    char given[SETTINGS_PATH_SIZE];
    int n = 0;

    (void)snprintf(given, sizeof(given), "%s", path);
    if (strncmp(given, "~/", 2) == 0) {
        if (in->home == NULL || in->home[0] != '/') {
            return error_set(err, EINVAL, "%.150s: HOME does not say where ~ is", given);
        }
        n = snprintf(path, SETTINGS_PATH_SIZE, "%s/%s", in->home, &given[2]);
    } else if (given[0] != '/' && given[0] != '\0' && slash != NULL) {
        n = snprintf(path, SETTINGS_PATH_SIZE, "%.*s/%s", (int)(slash - base_file), base_file,
                     given);
    }
    return n >= SETTINGS_PATH_SIZE
               ? error_set(err, ENAMETOOLONG, "%.150s: the path is too long", given)
               : 0;
}

int config_installation_url(const struct settings *s,
                            char ret_url[CONFIG_URL_SIZE],
                            struct error *err)
{
    struct span listen = span_of_str(s->api_listen);
    const char *colon = strrchr(s->api_listen, ':');
    const char *scheme = s->api_tls_certificate[0] != '\0' ? "https" : "http";
    char host[128];

    if (colon == NULL ||
        span_copy_str(span_head(listen, (size_t)(colon - s->api_listen)), host, sizeof(host)) < 0) {
        return error_set(err, EINVAL, "api.listen must be ADDRESS:PORT, got %.100s", s->api_listen);
    }
    if (host[0] == '\0' || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "*") == 0) {
        (void)snprintf(host, sizeof(host), "127.0.0.1");
    } else if (strcmp(host, "[::]") == 0) {
        (void)snprintf(host, sizeof(host), "[::1]");
    }
    (void)snprintf(ret_url, CONFIG_URL_SIZE, "%s://%s%s", scheme, host, colon);
    return 0;
}

bool config_is_unprotected(const struct settings *s)
{
    return s->api_tls_certificate[0] == '\0' && strncmp(s->api_listen, "127.", 4) != 0 &&
           strncmp(s->api_listen, "[::1]:", 6) != 0 &&
           strncmp(s->api_listen, "localhost:", 10) != 0;
}

static int set_url(struct config *c, const char *url, const char *source, struct error *err)
{
    if ((strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0) ||
        span_copy_str(trim_slashes(span_of_str(url)), c->url, sizeof(c->url)) < 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, source,
                              "%s: the address must be http://… or https://…, got %.100s", source,
                              url);
    }
    (void)snprintf(c->url_source, sizeof(c->url_source), "%s", source);
    return 0;
}

static int choose_url(const struct config_input *in,
                      const struct user_file *file,
                      const char *installation_url,
                      struct config *c,
                      struct error *err)
{
    if (in->url != NULL) {
        return set_url(c, in->url, "--url", err);
    }
    if (in->env_url != NULL && in->env_url[0] != '\0') {
        return set_url(c, in->env_url, "SPACE_URL", err);
    }
    if (file->url[0] != '\0') {
        return set_url(c, file->url, in->user_file, err);
    }
    if (installation_url[0] != '\0') {
        return set_url(c, installation_url, "the settings file", err);
    }
    return set_url(c, "http://127.0.0.1:8700", "the default", err);
}

/* A key of the user's file: with the file's address, or with the default when it names none. */
static int user_file_key(const struct config_input *in,
                         const struct user_file *file,
                         struct config *c,
                         struct error *err)
{
    bool same_address = file->url[0] == '\0' ? in->url == NULL && in->env_url == NULL
                                             : strcmp(file->url, c->url) == 0;

    if (file->key[0] == '\0' && file->key_file[0] == '\0') {
        return 0;
    }
    if (!same_address) {
        (void)snprintf(
            c->key_problem, sizeof(c->key_problem),
            "the one in %.100s is sent only to the address that the file names (%.100s); "
            "for this one write url = %.100s into it",
            in->user_file, file->url[0] != '\0' ? file->url : "none", c->url);
        return 0;
    }
    if (file->key[0] != '\0') {
        (void)snprintf(c->key, sizeof(c->key), "%s", file->key);
        return 0;
    }
    return config_read_key_file(file->key_file, c->key, err);
}

static int option_key(const struct config_input *in, struct config *c, struct error *err)
{
    char path[SETTINGS_PATH_SIZE];
    struct error why = {0};

    if (span_copy_str(span_of_str(in->key_file), path, sizeof(path)) < 0) {
        (void)error_set(&why, ENAMETOOLONG, "%.150s: the path is too long", in->key_file);
    } else if (resolve_path(in, NULL, path, &why) == 0 &&
               config_read_key_file(path, c->key, &why) == 0) {
        return 0;
    }
    return error_set_code(err, ERROR_INVALID_REQUEST, "--key-file", "%s", why.message);
}

static int choose_key(const struct config_input *in,
                      const struct user_file *file,
                      const char *installation_url,
                      struct config *c,
                      struct error *err)
{
    struct error why = {0};
    int r;

    if (in->key_file != NULL) {
        return option_key(in, c, err);
    }
    if (in->env_key != NULL && in->env_key[0] != '\0') {
        struct span key = span_of_str(in->env_key);

        return is_key_text(key) ? span_copy_str(key, c->key, sizeof(c->key))
                                : error_set(err, EBADMSG, "SPACE_API_KEY does not hold an API key");
    }
    r = user_file_key(in, file, c, err);
    if (r < 0 || c->key[0] != '\0') {
        return r;
    }
    if (in->settings != NULL && strcmp(installation_url, c->url) == 0 &&
        config_read_key_file(in->settings->admin_key_file, c->key, &why) < 0 &&
        c->key_problem[0] == '\0') {
        (void)snprintf(c->key_problem, sizeof(c->key_problem), "%.190s", why.message);
    }
    return 0;
}

int config_resolve(const struct config_input *in, struct config *ret, struct error *err)
{
    _cleanup_free_ struct user_file *file = calloc(1, sizeof(*file));
    char installation_url[CONFIG_URL_SIZE] = "";
    struct config c = {0};

    if (file == NULL) {
        return error_set(err, ENOMEM, "out of memory");
    }
    if ((in->user_file != NULL && (read_user_file(in->user_file, file, err) < 0 ||
                                   resolve_path(in, in->user_file, file->key_file, err) < 0 ||
                                   resolve_path(in, in->user_file, file->ca_file, err) < 0)) ||
        (in->settings != NULL &&
         config_installation_url(in->settings, installation_url, err) < 0) ||
        choose_url(in, file, installation_url, &c, err) < 0 ||
        choose_key(in, file, installation_url, &c, err) < 0) {
        return -EINVAL;
    }
    if (file->ca_file[0] != '\0') {
        (void)snprintf(c.ca_file, sizeof(c.ca_file), "%s", file->ca_file);
    } else if (in->settings != NULL && strcmp(installation_url, c.url) == 0) {
        (void)snprintf(c.ca_file, sizeof(c.ca_file), "%s", in->settings->api_tls_certificate);
    }
    *ret = c;
    return 0;
}
