/* A copy of a guest's own pages, taken while its VM stands still and looked at when it goes on: to
 * compare, sum up and write them takes three times as long as to copy them. The room is made before
 * the stop, for what there is then and half as much again, and has its pages already. Blocks:
 * workers. */
#pragma once

#include <stdint.h>

#include "node/ram_pages.h"

/* More than that is written down while the VM stands still, as for a suspend. */
#define RAM_STAGE_BYTES_MAX (64U * 1024U * 1024U)

struct ram_stage;

/* proc_fd is borrowed until ram_stage_free. NULL: too much, or not possible. */
struct ram_stage *ram_stage_new(int proc_fd, int image_fd, bool is_memfd);
void ram_stage_free(struct ram_stage *stage); /* NULL is fine */
/* The VM stands still: 1, 0 when it does not fit, -errno. Once. */
int ram_stage_take(struct ram_stage *stage) _must_check_;
uint64_t ram_stage_pages(const struct ram_stage *stage);
/* What was taken, ascending; stops at the first -errno. */
typedef int (*ram_stage_fn)(void *arg, uint32_t first, uint32_t pages, const uint8_t *bytes);
int ram_stage_each(const struct ram_stage *stage, ram_stage_fn fn, void *arg) _must_check_;
