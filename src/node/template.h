/* Templates on disk: `<volume>/templates/<name>/<version>/` with disk.img and template.json, and a
 * symbolic link `current`. Reading one is a few small files; done on the loop.
 *
 * Set-up builds versions from recipes; others are made from checkpoints (template_make.h), which
 * template.json then names. One of a checkpoint without memory has its variables beside it
 * (env.json). One with memory has no disk.img: it is a checkpoint with the version for its id
 * (`<volume>/checkpoints/<version>/`), at which its sandboxes begin. */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "node/sandbox.h"

struct template_info {
    char name[SANDBOX_TEMPLATE_SIZE];
    char version[ID_SIZE];
    unsigned int vcpus;
    unsigned int memory_mib;
    unsigned int disk_mib;
    char user[64];
    char built_at[32];
    char checkpoint_id[ID_SIZE]; /* what it was made from; "": built by set-up */
    bool memory;                 /* sandboxes go on in that checkpoint's memory */
    char made_by[ID_SIZE];       /* key; "": not known */
};

/* Loads one; version NULL or "": the current one. not_found with resource "template" for a name or
 * version that does not exist, internal for a damaged one. */
int template_load(const char *volume,
                  const char *name,
                  const char *version,
                  struct template_info *ret,
                  struct error *err) _must_check_;
/* The commands that warm a sandbox up under emulation: array of argv arrays, new reference; the
 * built-in list when the template has none. NULL for lack of memory. */
json_t *template_prime_list(const char *volume, const char *name, const char *version);
/* {"name", "version", …, "current"} of every version: by name, the current one first, then the
 * newest; new reference. */
json_t *template_list(const char *volume);
/* "<volume>/templates/<name>/<version>/disk.img" */
int template_disk_path(const char *volume, const struct template_info *t, char *out, size_t size)
    _must_check_;
/* The variables that sandboxes of a version without memory begin with: a new object, NULL for lack
 * of memory or a damaged file. */
json_t *template_load_env(const char *volume, const struct template_info *t);
/* As it is in `/n1/templates`; new reference. root: what template.json has. */
json_t *template_describe(const struct template_info *t, const json_t *root, bool is_current);
/* The version that `current` points at, whether it is there or not. 0 or -errno. */
int template_read_current(const char *volume, const char *name, char out[ID_SIZE]) _must_check_;
/* The key that made it, as its record has it; "" when that does not say. */
void template_read_maker(const json_t *root, char out[ID_SIZE]);
/* Whether text may be a template's name: [a-z0-9][a-z0-9._-]{0,62}. */
bool template_name_is_valid(const char *text);
