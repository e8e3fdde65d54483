/* Sandboxes that wake from `suspended/`: such that were suspended, rolled back, or are being made
 * from a checkpoint. */
#pragma once

#include "base/error.h"
#include "node/sandbox_private.h"

/* sandbox_resume.c */
/* From `suspended`. */
void sandbox_free_resume(struct sandbox *sb);
int sandbox_begin_resume(struct sandbox *sb, struct error *err) _must_check_;
/* The same with its memory admitted already: it had a VM until now. */
int sandbox_resume_admitted(struct sandbox *sb, struct error *err) _must_check_;
/* Of one that is being created: `suspended/` is there. */
void sandbox_resume_created(struct sandbox *sb);
/* sandbox_restore.c */
/* One that is created from sb->origin. */
void sandbox_start_restored(struct sandbox *sb);
void sandbox_free_restore(struct sandbox *sb);
