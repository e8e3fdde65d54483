/* A copy of a guest's own pages, taken while its VM stands still and looked at when it goes on: to
 * compare, sum up and write them takes several times as long as to copy them. The room is made
 * before the stop, for what there is then and half as much again (at most 32 MiB: its processes are
 * frozen), and has its pages already. Blocks: workers. */
#pragma once

#include <stdint.h>

#include "node/ram_pages.h"

/* More than that is written down while the VM stands still, as for a suspend: space-node, of which
 * two captures at once can have such copies, has memory for them in its own 2 GiB. */
#define RAM_STAGE_MIB_MIN 64U
#define RAM_STAGE_MIB_MAX 256U

struct ram_stage;

/* What may be copied: above the least, a quarter of what the host has beyond its reserve; but never
 * more than a quarter of what space-node's own control group leaves it. */
uint64_t ram_stage_limit_mib(uint64_t available_mib, uint64_t reserve_mib, uint64_t group_mib);
/* proc_fd is borrowed until ram_stage_free. NULL: too much, or not possible. */
struct ram_stage *ram_stage_new(int proc_fd, int image_fd, bool is_memfd, uint64_t reserve_mib);
void ram_stage_free(struct ram_stage *stage); /* NULL is fine */
/* The VM stands still: 1, 0 when it does not fit, -errno. Once. */
int ram_stage_take(struct ram_stage *stage) _must_check_;
uint64_t ram_stage_pages(const struct ram_stage *stage);
/* What was taken, ascending; stops at the first -errno. */
typedef int (*ram_stage_fn)(void *arg, uint32_t first, uint32_t pages, const uint8_t *bytes);
int ram_stage_each(const struct ram_stage *stage, ram_stage_fn fn, void *arg) _must_check_;
