/* Old versions of templates and their base snapshots go when nothing needs them: kept are the
 * current version and any built after it, and those that a sandbox was made from or a base snapshot
 * in use belongs to. At the node's start, and every few minutes behind the builds. */
#pragma once

#include <stddef.h>

#include "base/error.h"
#include "base/id.h"

struct node;
struct template_pruner;

struct template_pruner *template_pruner_new(struct node *node, struct error *err);
/* NULL is fine. Not while a job of it runs: the loop's work is finished first. */
void template_pruner_free(struct template_pruner *pruner);
/* The first round comes now. */
void template_pruner_start(struct template_pruner *pruner);

/* One round over the volume; `keep` are versions in use. Blocks. Returns the number of versions
 * that were removed. */
unsigned int template_prune(const char *volume, const char (*keep)[ID_SIZE], size_t keep_count);
