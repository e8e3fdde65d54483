/* Versions of templates and their base snapshots go when nothing needs them: those that were
 * deleted, and of those that set-up has built the ones before the current one. Kept are versions
 * that a sandbox or a checkpoint was made from, or that a base snapshot in use belongs to. At the
 * node's start, after deletions, and every few minutes behind the builds. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/id.h"

struct node;
struct template_pruner;

struct template_pruner *template_pruner_new(struct node *node, struct error *err);
/* NULL is fine. Not while a job of it runs: the loop's work is finished first. */
void template_pruner_free(struct template_pruner *pruner);
/* A round comes now, or when the one that runs has ended. */
void template_pruner_start(struct template_pruner *pruner);

/* One round over the volume; `keep` are versions that were in use when it was `as_of_ms`: one that
 * was deleted after that stays. Blocks. Returns the number of versions that were removed;
 * *ret_waiting is that of the deleted ones which stay. */
unsigned int template_prune(const char *volume,
                            const char (*keep)[ID_SIZE],
                            size_t keep_count,
                            int64_t as_of_ms,
                            unsigned int *ret_waiting);
