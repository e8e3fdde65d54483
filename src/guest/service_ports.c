/* ports: what listens, one record per port and address, with the process where the user may know.
 */
#include <errno.h>
#include <fcntl.h>

#include "guest/listeners.h"
#include "guest/service.h"

#define LISTENERS_MAX 4096U
#define LINK_BYTES    64U
#define PREFIX        "socket:["

static int compare(const void *a, const void *b)
{
    const struct service_listener *x = &((const struct listener *)a)->record;
    const struct service_listener *y = &((const struct listener *)b)->record;

    if (x->port != y->port) {
        return x->port < y->port ? -1 : 1;
    }
    if (x->family != y->family) {
        return x->family < y->family ? -1 : 1;
    }
    return memcmp(x->address, y->address, sizeof(x->address));
}

/* Several sockets may share a port and address: the first stands for all. */
static size_t drop_doubles(struct listener *all, size_t n)
{
    size_t kept = 0;

    for (size_t i = 0; i < n; i++) {
        if (kept == 0 || compare(&all[kept - 1], &all[i]) != 0) {
            all[kept++] = all[i];
        }
    }
    return kept;
}

static struct listener *find_inode(struct listener *all, size_t n, uint64_t inode)
{
    for (size_t i = 0; i < n; i++) {
        if (all[i].inode == inode) {
            return &all[i];
        }
    }
    return NULL;
}

/* "socket:[N]". False when the link is something else. */
static bool parse_link(struct span link, uint64_t *ret_inode)
{
    size_t n = sizeof(PREFIX) - 1;

    if (link.n <= n + 1 || !span_equals_str(span_head(link, n), PREFIX) ||
        link.p[link.n - 1] != ']') {
        return false;
    }
    return span_parse_u64(span_head(span_skip(link, n), link.n - n - 1), UINT64_MAX, ret_inode) ==
           0;
}

/* Notes a process with those of the sockets that it holds. Returns how many were new. */
static size_t look_into(int proc_fd, const char *name, struct listener *all, size_t n)
{
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    char path[300];
    uint64_t pid;
    size_t found = 0;
    int fd;

    if (span_parse_u64(span_of_str(name), INT32_MAX, &pid) < 0) {
        return 0;
    }
    (void)snprintf(path, sizeof(path), "%s/fd", name);
    fd = openat(proc_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        cleanup_close(&fd);
        return 0;
    }
    while ((entry = readdir(dir)) != NULL) {
        char link[LINK_BYTES];
        ssize_t size = readlinkat(dirfd(dir), entry->d_name, link, sizeof(link));
        struct listener *l;
        uint64_t inode;

        if (size <= 0 || !parse_link(span_make(link, (size_t)size), &inode)) {
            continue;
        }
        l = find_inode(all, n, inode);
        if (l != NULL && l->record.pid == 0) {
            l->record.pid = (uint32_t)pid;
            found++;
        }
    }
    return found;
}

static void find_processes(struct listener *all, size_t n)
{
    _cleanup_closedir_ DIR *proc = opendir("/proc");
    const struct dirent *entry;
    size_t missing = n;

    while (missing > 0 && proc != NULL && (entry = readdir(proc)) != NULL) {
        missing -= look_into(dirfd(proc), entry->d_name, all, n);
    }
}

int service_ports(struct service *s)
{
    _cleanup_free_ struct listener *all = calloc(LISTENERS_MAX, sizeof(*all));
    size_t n;

    if (all == NULL) {
        return -ENOMEM;
    }
    n = listeners_read(0, all, LISTENERS_MAX);
    qsort(all, n, sizeof(*all), compare);
    n = drop_doubles(all, n);
    find_processes(all, n);
    for (size_t i = 0; i < n; i++) {
        service_listener_format(&s->out, &all[i].record);
    }
    service_put_done(s, n, false);
    return 0;
}
