/* What an accelerator needs of the host. */
#pragma once

/* 0, or the -errno with which the device of that accelerator cannot be opened. That it opens proves
 * nothing: probe.h. */
int accelerator_open(const char *name);
