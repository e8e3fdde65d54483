/* The memory of one snapshot: the pages that differ from the base image under it, as a file.
 *
 * Block 0 is the head, then come the stored pages, then the index: which pages each run holds, and
 * a checksum (XXH3, 128 bits) of its bytes. Runs are in order and do not overlap; pages that became
 * all zero are runs without bytes. Head and index have checksums of their own, and the file ends
 * where the head says: what is damaged, cut off, or was made for another base or environment is
 * refused before a byte of it reaches a VM. Checksums find damage; they keep no attacker out: the
 * file is root's. docs/vm-lifecycle.md has the format. Everything here blocks: workers. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/span.h"

#define RAM_PAGE_BYTES      4096U
#define RAM_RUN_PAGES_MAX   256U
#define RAM_BYTES_MAX       (1ULL << 40U)
#define RAM_LAYER_SUM_BYTES 16U
#define RAM_LAYER_VERSION   1U
#define RAM_RUN_BYTES       32U /* in the index */

/* XXH3 of 128 bits, big-endian as its authors print it. */
struct ram_sum {
    uint8_t bytes[RAM_LAYER_SUM_BYTES];
};

struct ram_sum ram_sum_of(struct span bytes);
bool ram_sum_equals(const struct ram_sum *a, const struct ram_sum *b);

/* What a layer belongs to. */
struct ram_layer_place {
    uint64_t ram_bytes;
    struct ram_sum binding; /* of base image and environment */
};

struct ram_run {
    uint32_t first; /* page */
    uint32_t pages; /* 1 to RAM_RUN_PAGES_MAX */
    bool is_zero;
    struct ram_sum sum; /* of the bytes; none of zero runs */
};

struct ram_layer_head {
    struct ram_layer_place place;
    uint64_t data_pages; /* stored */
    uint64_t zero_pages;
    uint32_t runs;
    struct ram_sum index_sum;
};

/* ---- pure ---- */

/* Exactly one block. -EBADMSG. */
int ram_layer_head_parse(struct span block, struct ram_layer_head *ret) _must_check_;
void ram_layer_head_format(const struct ram_layer_head *head, uint8_t block[RAM_PAGE_BYTES]);
/* Length of the whole file. */
uint64_t ram_layer_file_bytes(const struct ram_layer_head *head);
/* Parses the index whole; runs has room for head->runs. -EBADMSG. */
int ram_layer_index_parse(const struct ram_layer_head *head,
                          struct span index,
                          struct ram_run *ret_runs) _must_check_;
void ram_run_format(const struct ram_run *run, uint8_t bytes[RAM_RUN_BYTES]);

/* ---- writing ---- */

struct ram_layer_writer;

/* The descriptor is of an empty file and stays the caller's. NULL: no memory. */
struct ram_layer_writer *ram_layer_writer_new(int fd, const struct ram_layer_place *place);
void ram_layer_writer_free(struct ram_layer_writer *writer); /* NULL is fine */
/* The next run, behind all earlier ones; bytes NULL: it is zero. 0 or -errno. */
int ram_layer_put(struct ram_layer_writer *writer,
                  uint32_t first,
                  uint32_t pages,
                  const uint8_t *bytes) _must_check_;
/* Writes index and head. 0 or -errno; the file is not synchronised. */
int ram_layer_finish(struct ram_layer_writer *writer, struct ram_layer_head *ret) _must_check_;

/* ---- reading ---- */

struct ram_layer {
    int fd; /* borrowed */
    struct ram_layer_head head;
    struct ram_run *runs;
};

/* Reads and checks head and index. Errors say what is wrong. */
int ram_layer_open(int fd,
                   const struct ram_layer_place *place,
                   struct ram_layer *ret,
                   struct error *err) _must_check_;
void ram_layer_close(struct ram_layer *layer);
/* Calls fn with each run and its bytes, checked (NULL: zero); stops at its first -errno. fn may be
 * NULL: only checks. */
typedef int (*ram_layer_fn)(void *arg, const struct ram_run *run, const uint8_t *bytes);
int ram_layer_read(const struct ram_layer *layer, ram_layer_fn fn, void *arg, struct error *err)
    _must_check_;
/* Whether a run holds this page; `at` is a cursor for ascending pages, 0 at first. */
bool ram_layer_has(const struct ram_layer *layer, uint32_t page, uint32_t *at);
