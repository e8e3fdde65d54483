/* Test support: makes the N-th allocation or system call of a program fail: linked with --wrap for
 * each function (fault_link_args in meson.build), so that the project's own calls are counted and
 * those of libraries are not. */
#pragma once

#include <stdbool.h>

/* From now on, of the calls that are counted, the one with this number (from 1) fails; with `all`,
 * those behind it too. */
void fault_arm(unsigned int number, bool all);
/* Ends it. Whether there was a call to fail. */
bool fault_disarm(void);
/* Runs a scenario again and again, each time with a later call failing, until none is left to fail;
 * then the same with all later calls failing too. `run` must come back and give back all that it
 * took (AddressSanitizer looks for what it lost); what has to hold afterwards it checks itself,
 * behind fault_disarm. The number of faults. */
unsigned int fault_each(void (*run)(void *arg), void *arg);
