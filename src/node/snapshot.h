/* Snapshots: a directory with everything that a VM needs to go on where it was.
 *
 *   ram            the base image, another name of its file: no eviction or rebuild takes it away
 *   memory         the pages that differ from it (ram_layer.h)
 *   state          the devices
 *   disk.img       a clone of the disk
 *   snapshot.json  sizes, checksums, environment; written last
 *
 * A cold one has only `ram`, `disk.img` and, written last, `cold` with their lengths: no guest that
 * goes on, but a disk to boot from.
 *
 * Made in `<dir>.new`, synchronised, renamed: a directory with its final name is complete. Always
 * the whole difference to the base, so nothing refers to an earlier snapshot. Everything here
 * blocks: workers. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/id.h"
#include "node/ram_layer.h"
#include "node/runtime.h"

struct ram_stage;
struct snapshot_room;

#define SNAPSHOT_PATH_SIZE 480
#define SNAPSHOT_FORMAT    1
#define SNAPSHOT_STATE_MAX (16U * 1024U * 1024U)

/* Written down, and compared before a VM is started. */
struct snapshot_facts {
    char template_version[ID_SIZE];
    unsigned int vcpus;
    unsigned int memory_mib;
    struct runtime_env env;
};

/* What is captured. */
struct snapshot_source {
    int proc_fd;          /* of the VMM; stopped */
    bool ram_is_memfd;    /* the VMM maps a memory file, not the image */
    int state_fd;         /* a memory file with the devices */
    const char *ram_path; /* the base image */
    const char *disk_path;
    uint64_t reserve_mib; /* of free space, not to be used */
    struct snapshot_room *room;
    struct ram_stage *stage; /* to copy the memory into, or NULL */
};

struct snapshot_sizes {
    uint64_t memory_bytes;
    uint64_t state_bytes;
    uint64_t disk_bytes; /* length, shared extents included */
    uint64_t data_pages;
    uint64_t zero_pages;
    uint64_t own_pages;      /* looked at */
    uint64_t promised_bytes; /* of the room: to be given back after the commit */
    bool is_staged;          /* the memory is in source->stage, and snapshot_write is due */
    int64_t disk_us;         /* what the clone took, and the memory */
    int64_t memory_us;
};

/* Removes what an interrupted capture left, and makes the directory to work in. */
int snapshot_begin(const char *dir, struct error *err) _must_check_;
/* Inside the window in which the VM stands still: memory, devices, disk. storage_full when there is
 * no room; with a stage snapshot_write finds that out. */
int snapshot_capture(const char *dir,
                     const struct snapshot_facts *facts,
                     const struct snapshot_source *source,
                     struct snapshot_sizes *ret,
                     struct error *err) _must_check_;
/* The VM may go on: the memory that is in the stage becomes the file. storage_full as above. */
int snapshot_write(const char *dir,
                   const struct snapshot_facts *facts,
                   const struct snapshot_source *source,
                   struct snapshot_sizes *sizes,
                   struct error *err) _must_check_;
/* Afterwards: onto stable storage, and in place. */
int snapshot_commit(const char *dir,
                    const struct snapshot_facts *facts,
                    const struct snapshot_sizes *sizes,
                    struct error *err) _must_check_;
/* Of a cold one: the disk, inside the window; then onto stable storage, and in place. */
int snapshot_capture_cold(const char *dir,
                          const struct snapshot_source *source,
                          struct snapshot_sizes *ret,
                          struct error *err) _must_check_;
int snapshot_commit_cold(const char *dir, struct error *err) _must_check_;
bool snapshot_is_cold(const char *dir);
/* `<into>.new` becomes another one with the same content, of which only the disk is new, and that a
 * clone: snapshot_settle, perhaps after more was put into it, gives it its name. storage_full when
 * less than reserve_mib is left. */
int snapshot_copy(const char *from, const char *into, uint64_t reserve_mib, struct error *err)
    _must_check_;
/* `<dir>.new` is complete and gets its name. 0 or -errno. */
int snapshot_settle(const char *dir) _must_check_;
/* Removes it, whole or half-made. 0 or -errno. */
int snapshot_remove(const char *dir) _must_check_;
/* Takes its name away, so that it is none any more; no worker needed, and none in the way. 0, also
 * when there is none, or -errno. */
int snapshot_disown(const char *dir) _must_check_;
/* Whether anything of one is there, whole or not. */
bool snapshot_has_parts(const char *dir);
/* Whether a complete one is there. */
bool snapshot_exists(const char *dir);
/* Names the capture that makes `<dir>.new`, not zero; goes with none of its copies. 0 or -errno. */
int snapshot_tag(const char *dir, uint64_t tag) _must_check_;
bool snapshot_has_tag(const char *dir, uint64_t tag);

/* Reads and checks everything but the bytes of the disk and the base. failed_precondition (state
 * "environment") names the part of the environment that differs. */
int snapshot_check(const char *dir, const struct snapshot_facts *want, struct error *err)
    _must_check_;
/* Of a cold one: that base and disk have their lengths. */
int snapshot_check_cold(const char *dir, const struct snapshot_facts *want, struct error *err)
    _must_check_;
/* Writes its memory into a VMM that maps `ram` and has loaded nothing yet. */
int snapshot_fill(const char *dir,
                  const struct snapshot_facts *want,
                  int proc_fd,
                  bool ram_is_memfd,
                  struct error *err) _must_check_;
