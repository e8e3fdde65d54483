/* Base snapshots: a template booted once for each vCPU and memory size, kept as RAM image, device
 * state and the disk as it was at that moment, in `<volume>/bases/<version>-<vcpus>-<memory>/`.
 *
 * A base is bound to its environment (VMM, accelerator, CPU model, kernel and initramfs): another
 * one, or a damaged one, is rebuilt when it is asked for. Building is one operation that all its
 * waiters share. Per template at most node.bases_per_template are kept; the one used longest ago
 * goes, when no VM runs on it. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "node/template.h"

struct base;
struct base_set;
struct node;
struct vm_spec;

struct base_key {
    struct template_info template_info;
    unsigned int vcpus;
    unsigned int memory_mib;
};

/* Removes first what a killed run was building; blocks for it. */
struct base_set *base_set_new(struct node *node, struct error *err);
void base_set_free(struct base_set *set);

/* Exactly one of base and err is set. Comes once, never from inside base_get. The base carries a
 * reference for the caller: base_unref. */
typedef void (*base_fn)(void *arg, struct base *base, const struct error *err);
void base_get(struct node *node, const struct base_key *key, base_fn fn, void *arg);
/* The base when it is there already, with a reference, else NULL. */
struct base *base_find(struct node *node, const struct base_key *key);
void base_unref(struct base *base);
/* The keys of those that are in use or being made: start with index 0, ends with NULL. */
const struct base_key *base_next_used(const struct node *node, unsigned int *index);
/* Forgets the records of unused ones whose files were removed. */
void base_forget_removed(struct node *node);

const struct base_key *base_key_of(const struct base *base);
bool base_key_equals(const struct base_key *a, const struct base_key *b);
/* Fills in what a VM that is restored from it needs. */
void base_fill_spec(const struct base *base, struct vm_spec *spec);
/* The device state, opened for one load; the caller's, or -errno. */
int base_open_state(const struct base *base);
