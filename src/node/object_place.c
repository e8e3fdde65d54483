#include "node/object_place.h"

#include <errno.h>
#include <string.h>

static bool is_plain(const char *text, const char *more)
{
    static const char *const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                     "0123456789";

    for (size_t i = 0; text[i] != '\0'; i++) {
        if (strchr(plain, text[i]) == NULL && strchr(more, text[i]) == NULL) {
            return false;
        }
    }
    return true;
}

static int refuse(struct error *err, const char *why)
{
    return error_set_code(err, ERROR_FAILED_PRECONDITION, "object_store", "%s", why);
}

int object_place_parse(const char *text, struct object_place *ret, struct error *err)
{
    static const char scheme[] = "s3://";
    struct span rest = span_of_str(text);
    size_t slash;

    ret->dir_fd = -1;
    if (text[0] == '/') {
        return 0;
    }
    if (strncmp(text, scheme, sizeof(scheme) - 1) != 0) {
        return refuse(err, "the object store is no directory and no s3://BUCKET/PREFIX");
    }
    rest = span_skip(rest, sizeof(scheme) - 1);
    slash = span_find(rest, 0, '/');
    if (slash == 0 || span_copy_str(span_head(rest, slash), ret->bucket, sizeof(ret->bucket)) < 0 ||
        !is_plain(ret->bucket, ".-")) {
        return refuse(err, "the object store's bucket is no name of a bucket");
    }
    rest = span_skip(rest, slash + 1);
    if (rest.n > 0 && rest.p[rest.n - 1] == '/') {
        rest = span_head(rest, rest.n - 1);
    }
    if (span_copy_str(rest, ret->prefix, sizeof(ret->prefix)) < 0 ||
        !is_plain(ret->prefix, "/._-") || ret->prefix[0] == '/' ||
        strstr(ret->prefix, "//") != NULL || strstr(ret->prefix, "..") != NULL) {
        return refuse(err, "the object store's prefix has letters, digits, '/', '.', '_' and '-'");
    }
    return 0;
}

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

static bool take_key(struct object_place *place, struct span name, struct span value)
{
    char *to = NULL;
    size_t size = 0;

    if (span_equals_str(name, "access_key")) {
        to = place->access_key;
        size = sizeof(place->access_key);
    } else if (span_equals_str(name, "secret_key")) {
        to = place->secret_key;
        size = sizeof(place->secret_key);
    } else if (span_equals_str(name, "session_token")) {
        to = place->session_token;
        size = sizeof(place->session_token);
    }
    return to != NULL && value.n > 0 && span_copy_str(value, to, size) == 0 &&
           is_plain(to, "/+=._-~");
}

/* Never says what stands there. */
int object_place_parse_keys(struct object_place *place, struct span text, struct error *err)
{
    while (text.n > 0) {
        size_t end = span_find(text, 0, '\n');
        struct span line = trim(span_head(text, end));
        size_t equals = span_find(line, 0, '=');

        text = span_skip(text, end + 1);
        if (line.n == 0 || line.p[0] == '#') {
            continue;
        }
        if (equals == line.n ||
            !take_key(place, trim(span_head(line, equals)), trim(span_skip(line, equals + 1)))) {
            return refuse(err, "the file with the object store's keys has a line that is not one "
                               "of access_key, secret_key and session_token = VALUE");
        }
    }
    return place->access_key[0] == '\0' || place->secret_key[0] == '\0'
               ? refuse(err, "the file with the object store's keys lacks access_key or secret_key")
               : 0;
}
