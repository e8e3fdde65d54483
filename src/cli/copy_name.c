#include "cli/copy_name.h"

#include <errno.h>
#include <string.h>

#include "base/span.h"

#define SANDBOX_NAME_CHARS "abcdefghijklmnopqrstuvwxyz0123456789-"

void copy_place_parse(const char *word, struct copy_place *ret)
{
    struct span all = span_of_str(word);
    size_t colon = span_find(all, 0, ':');

    *ret = (struct copy_place){.path = word, .is_stream = strcmp(word, "-") == 0};
    if (colon == 0 || colon >= all.n || colon >= sizeof(ret->sandbox) ||
        strspn(word, SANDBOX_NAME_CHARS) != colon) {
        return;
    }
    (void)snprintf(ret->sandbox, sizeof(ret->sandbox), "%.*s", (int)colon, word);
    ret->is_remote = true;
    ret->path = word[colon + 1] != '\0' ? &word[colon + 1] : ".";
}

/* The next component; empty at the end. */
static struct span next_component(struct span *rest)
{
    struct span component;

    while (rest->n > 0 && rest->p[0] == '/') {
        *rest = span_skip(*rest, 1);
    }
    component = span_head(*rest, span_find(*rest, 0, '/'));
    *rest = span_skip(*rest, component.n);
    return component;
}

int copy_name_check(const char *name, char ret[COPY_NAME_SIZE])
{
    char out[COPY_NAME_SIZE] = "";
    struct span rest = span_of_str(name != NULL ? name : "");
    struct span component;
    size_t n = 0;

    if (rest.n == 0) {
        return -EBADMSG;
    }
    if (rest.p[0] == '/') {
        return -EPERM;
    }
    while ((component = next_component(&rest)).n > 0) {
        if (span_equals_str(component, ".")) {
            continue;
        }
        if (span_equals_str(component, "..")) {
            return -EPERM;
        }
        if (component.n > NAME_MAX || n + 1 + component.n >= sizeof(out)) {
            return -ENAMETOOLONG;
        }
        if (n > 0) {
            out[n++] = '/';
        }
        memcpy(&out[n], component.p, component.n);
        n += component.n;
        out[n] = '\0';
    }
    memcpy(ret, out, n + 1);
    return 0;
}

int copy_name_base(const char *path, char ret[NAME_MAX + 1])
{
    struct span rest = span_of_str(path);
    struct span last = span_make(NULL, 0);
    struct span component;

    while ((component = next_component(&rest)).n > 0) {
        last = component;
    }
    if (span_equals_str(last, ".") || span_equals_str(last, "..")) {
        last = span_make(NULL, 0);
    }
    return span_copy_str(last, ret, NAME_MAX + 1) < 0 ? -ENAMETOOLONG : 0;
}

bool copy_name_is_directory(const char *path)
{
    size_t n = strlen(path);

    return n > 0 && path[n - 1] == '/';
}
