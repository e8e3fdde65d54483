#include "api/route.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The next segment of a path, without its slash; *rest moves on. */
static struct span next_segment(struct span *rest)
{
    struct span after = span_skip(*rest, 1);
    struct span segment = span_head(after, span_find(after, 0, '/'));

    *rest = span_skip(after, segment.n);
    return segment;
}

/* Whether path has the form of pattern; fills params as far as it goes. */
static bool
match_path(const char *pattern, const char *path, char params[REQUEST_PARAMS][REQUEST_PARAM_SIZE])
{
    struct span pattern_rest = span_of_str(pattern);
    struct span path_rest = span_of_str(path);
    size_t count = 0;

    while (pattern_rest.n > 0 && path_rest.n > 0) {
        struct span want = next_segment(&pattern_rest);
        struct span have = next_segment(&path_rest);

        if (!span_equals_str(want, "{}")) {
            if (!span_equals(want, have)) {
                return false;
            }
            continue;
        }
        if (have.n == 0 || have.n >= REQUEST_PARAM_SIZE || count == REQUEST_PARAMS ||
            percent_decode(have, false, params[count]) <= 0) {
            return false;
        }
        count++;
    }
    return pattern_rest.n == 0 && path_rest.n == 0;
}

static void add_method(char *allow, size_t size, const char *method)
{
    size_t n = strlen(allow);

    (void)snprintf(&allow[n], size - n, "%s%s", n == 0 ? "" : ", ", method);
}

int route_find(const struct route *table,
               const char *method,
               const char *path,
               struct route_match *ret_match)
{
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;

    memset(ret_match, 0, sizeof(*ret_match));
    for (const struct route *route = table; route->method != NULL; route++) {
        char params[REQUEST_PARAMS][REQUEST_PARAM_SIZE] = {{0}};

        if (!match_path(route->path, path, params)) {
            continue;
        }
        if (strcmp(route->method, wanted) == 0) {
            memcpy(ret_match->params, params, sizeof(params));
            ret_match->route = route;
            return 1;
        }
        add_method(ret_match->allow, sizeof(ret_match->allow), route->method);
    }
    return ret_match->allow[0] == '\0' ? 0 : -ENOTSUP;
}

bool route_find_methods(const struct route *table,
                        const char *path,
                        unsigned int flags,
                        char ret_methods[ROUTE_METHODS_SIZE])
{
    ret_methods[0] = '\0';
    for (const struct route *route = table; route->method != NULL; route++) {
        char params[REQUEST_PARAMS][REQUEST_PARAM_SIZE];

        if ((route->flags & flags) != 0 && match_path(route->path, path, params)) {
            add_method(ret_methods, ROUTE_METHODS_SIZE, route->method);
        }
    }
    return ret_methods[0] != '\0';
}
