/* Sandboxes and the object store: what is kept of them there, and how they come back. */
#pragma once

#include "base/error.h"

struct sandbox;

/* One that is created from a snapshot in the object store. */
int sandbox_plan_fetch(struct sandbox *sb, const char *manifest, struct error *err) _must_check_;
void sandbox_start_fetched(struct sandbox *sb);
void sandbox_free_fetch(struct sandbox *sb);
/* Its snapshot is what counts, is whole and stays: it is to be stored. */
void sandbox_keep_objects(struct sandbox *sb);
/* It runs. What the store may have of it goes when the disk says so too (sandbox_drop_snapshot). */
void sandbox_leave_objects(struct sandbox *sb);
/* What the store may have of it is not wanted any more. */
void sandbox_forget_objects(struct sandbox *sb);
