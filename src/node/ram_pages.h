/* The guest's memory inside a VMM: which pages are its own, reading and writing them.
 *
 * A VMM maps the base image privately, so that a page which was ever written is anonymous. The VMM
 * is reached through a descriptor of its /proc directory, which never refers to a later process
 * of the same number, as a pid would while a worker uses it: writes go through its `mem`; reads
 * take the pid, three times as fast, and are thrown away if it is gone afterwards. A VMM that a
 * guest has taken over can lie about its mappings: it then spoils its own snapshot and nothing
 * else. Blocks: workers. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <sys/types.h>

#include "base/error.h"
#include "base/span.h"

#define RAM_PARTS_MAX 64U

struct ram_part {
    uint64_t address;
    uint64_t offset; /* in the guest's memory */
    uint64_t bytes;
};

struct ram_view {
    int proc_fd; /* borrowed */
    pid_t pid;
    int mem_fd;
    int pagemap_fd;
    uint64_t ram_bytes;
    bool no_scan; /* as on kernels before 6.7; for tests */
    unsigned int count;
    struct ram_part parts[RAM_PARTS_MAX]; /* ascending, all of the memory */
};

/* One line of /proc/PID/maps. 0, -EBADMSG. */
struct ram_mapping {
    uint64_t start;
    uint64_t end;
    uint64_t offset;
    uint64_t inode;
    bool is_private; /* and writable */
    struct span name;
};
int ram_mapping_parse(struct span line, struct ram_mapping *ret) _must_check_;

/* Finds the mapping of the image. proc_fd stays open as long as the view; image_fd is the base's
 * file; with `is_memfd` the VMM maps a
 * memory file that holds the same. 0 or -errno with err. */
int ram_view_open(int proc_fd, int image_fd, bool is_memfd, struct ram_view *ret, struct error *err)
    _must_check_;
void ram_view_close(struct ram_view *view);

/* Calls fn with each run of own pages, ascending; stops at its first -errno. */
typedef int (*ram_pages_fn)(void *arg, uint32_t first, uint32_t pages);
int ram_view_each(const struct ram_view *view, ram_pages_fn fn, void *arg) _must_check_;
/* Whole pages; 0 or -errno. -ESRCH: the VMM is gone. */
int ram_view_read(const struct ram_view *view, uint32_t first, uint32_t pages, uint8_t *out)
    _must_check_;
int ram_view_write(const struct ram_view *view, uint32_t first, uint32_t pages, const uint8_t *in)
    _must_check_;
