/* `--ready-fd N` of the daemons: who starts one gives it the writing end of a pipe, and reads one
 * byte from it when the daemon serves. A pipe that is closed without one tells that it never did.
 */
#pragma once

#include "base/error.h"

#define READY_OPTION "ready-fd"

/* The option's value: the descriptor of a pipe, which is closed on exec from here on. 0 or -EINVAL.
 */
int ready_parse(const char *text, int *ret_fd) _must_check_;
/* Tells it and closes the descriptor; -1: nobody wants to know. */
void ready_tell(int fd);
