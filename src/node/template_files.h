/* What is on disk of template versions that are made from checkpoints, and of their end. All of it
 * blocks, and one call works on a volume at a time (template_make.c sees to that).
 *
 *   <version>/ with        it is
 *     neither record       in the making, or half removed: a restart removes it
 *     next.json            in the making; the record to be
 *     template.json        published
 *     removed.json         deleted: nothing new is made from it; its files go when nothing that was
 *                          made from it is left (template_prune.h)
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/error.h"
#include "node/template.h"

#define TEMPLATE_RECORD  "template.json"
#define TEMPLATE_NEXT    "next.json"
#define TEMPLATE_REMOVED "removed.json"

struct template_build {
    const char *volume;
    const char *disk; /* to be cloned; NULL: one with memory */
    json_t *env;
    unsigned int versions_max; /* made from checkpoints, on this volume */
    unsigned int maker_max;    /* of these by one key */
    uint64_t reserve_mib;
};

/* Everything but the publication. failed_precondition (state "shipped") for a name that set-up
 * builds, limit_exceeded (limit "templates"), storage_full. What a failure leaves is the caller's
 * to discard. */
int template_files_build(const struct template_build *build,
                         const struct template_info *info,
                         struct error *err) _must_check_;
/* Gives it its record; a name's newest version becomes its current one. Published already is fine.
 * failed_precondition (state "shipped") for a name that set-up has built meanwhile, or is building.
 */
int template_files_publish(const char *volume, const struct template_info *info, struct error *err)
    _must_check_;
/* Removes one that is not published, with its base snapshots. 0 or -errno: -EEXIST when it was. */
int template_files_discard(const char *volume, const char *name, const char *version) _must_check_;
/* Deletes a version, or with version "" all of a name: nothing is made from them any more.
 * not_found, or failed_precondition (state "shipped") when set-up has built one of them. */
int template_files_withdraw(const char *volume,
                            const char *name,
                            const char *version,
                            struct error *err) _must_check_;
/* Whether a directory of that version is there, whatever its state; also when that is unclear. */
bool template_files_exist(const char *volume, const char *version);
/* Removes what an interrupted making or removal left, deletes what has lost its memory (no
 * `checkpoints/<version>`), and points `current` at what is there. */
void template_files_sweep(const char *volume);
/* Base snapshots of a version that no record holds: nobody maps them, or has what is mapped open.
 */
void template_files_remove_bases(const char *volume, const char *version);
