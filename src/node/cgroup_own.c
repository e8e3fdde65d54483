#include "node/cgroup_own.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/fd.h"

#define PATH_SIZE 1024
#define FILE_MAX  65536U
/* v1 has no word for "none", but a number near the largest. */
#define NO_LIMIT (1ULL << 62U)

struct files {
    const char *limit;
    const char *usage;
    const char *cached[2]; /* in memory.stat, the groups below included */
};

static const struct files v1_files = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
static const struct files v2_files = {
    "memory.max", "memory.current", {"inactive_file", "active_file"}};

static struct span take_line(struct span *rest)
{
    size_t end = span_find(*rest, 0, '\n');
    struct span line = span_head(*rest, end);

    *rest = span_skip(*rest, end + 1);
    return line;
}

static void read_file(const char *dir, const char *name, struct buf *ret)
{
    char path[PATH_SIZE + 64];

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (file_read(AT_FDCWD, path, FILE_MAX, ret) < 0) {
        buf_clear(ret);
    }
}

/* False: it is not there, or says "max". */
static bool read_number(const char *dir, const char *name, uint64_t *ret)
{
    _cleanup_buf_ struct buf text = buf_make(FILE_MAX);
    struct span rest;

    read_file(dir, name, &text);
    rest = buf_span(&text);
    return span_parse_u64(take_line(&rest), UINT64_MAX, ret) == 0;
}

static uint64_t find_number(struct span text, const char *key)
{
    while (text.n > 0) {
        struct span line = take_line(&text);
        size_t blank = span_find(line, 0, ' ');
        uint64_t value;

        if (span_equals_str(span_head(line, blank), key) &&
            span_parse_u64(span_skip(line, blank + 1), UINT64_MAX, &value) == 0) {
            return value;
        }
    }
    return 0;
}

static uint64_t room_of(const char *dir, const struct files *files)
{
    _cleanup_buf_ struct buf stat = buf_make(FILE_MAX);
    uint64_t limit;
    uint64_t usage;

    if (!read_number(dir, files->limit, &limit) || limit >= NO_LIMIT ||
        !read_number(dir, files->usage, &usage)) {
        return UINT64_MAX;
    }
    read_file(dir, "memory.stat", &stat);
    for (size_t i = 0; i < sizeof(files->cached) / sizeof(files->cached[0]); i++) {
        uint64_t cached = find_number(buf_span(&stat), files->cached[i]);

        usage = usage > cached ? usage - cached : 0;
    }
    return limit > usage ? limit - usage : 0;
}

/* The group itself, what is above it, and the top, which is a container's own group inside it. */
static uint64_t room_up_from(const char *top, struct span group, const struct files *files)
{
    uint64_t room = UINT64_MAX;
    char path[PATH_SIZE];
    size_t top_length = strlen(top);
    int n = snprintf(path, sizeof(path), "%s%.*s", top, (int)group.n, (const char *)group.p);

    if (n < 0 || (size_t)n >= sizeof(path)) {
        return UINT64_MAX;
    }
    for (;;) {
        uint64_t one = room_of(path, files);
        char *slash = strrchr(path, '/');

        room = one < room ? one : room;
        if (strlen(path) <= top_length || slash == NULL || slash < &path[top_length]) {
            return room;
        }
        *slash = '\0';
    }
}

/* "4:memory:/path" and "0::/path": the controllers, and the path. */
static bool split(struct span line, struct span *ret_controllers, struct span *ret_group)
{
    size_t first = span_find(line, 0, ':');
    size_t second = span_find(line, first + 1, ':');

    if (second >= line.n) {
        return false;
    }
    *ret_controllers = span_skip(span_head(line, second), first + 1);
    *ret_group = span_skip(line, second + 1);
    return ret_group->n > 0 && ret_group->p[0] == '/';
}

static bool has_memory(struct span controllers)
{
    while (controllers.n > 0) {
        size_t end = span_find(controllers, 0, ',');

        if (span_equals_str(span_head(controllers, end), "memory")) {
            return true;
        }
        controllers = span_skip(controllers, end + 1);
    }
    return false;
}

uint64_t cgroup_own_room(const char *root, struct span self)
{
    uint64_t room = UINT64_MAX;
    char top[PATH_SIZE / 2];

    while (self.n > 0) {
        struct span controllers;
        struct span group;
        bool is_v1;
        uint64_t one;

        if (!split(take_line(&self), &controllers, &group)) {
            continue;
        }
        is_v1 = has_memory(controllers);
        if (!is_v1 && controllers.n > 0) {
            continue;
        }
        (void)snprintf(top, sizeof(top), "%s%s", root, is_v1 ? "/memory" : "");
        one = room_up_from(top, group, is_v1 ? &v1_files : &v2_files);
        room = one < room ? one : room;
    }
    return room;
}
