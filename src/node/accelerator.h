/* What an accelerator needs of the host. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Why a VM could not start whose accelerator the host does not have any more; in reasons and
 * details.reason. */
#define ACCELERATOR_UNAVAILABLE "accelerator_unavailable"

/* 0, or the -errno with which the device of that accelerator cannot be opened. That it opens proves
 * nothing: probe.h. */
int accelerator_open(const char *name);
/* Whether that fails, and then why, with what to do about it. */
bool accelerator_is_lost(const char *name, char *ret_why, size_t size);
