/* Short messages on the guest's console, which the host keeps. */
#pragma once

#include "base/cleanup.h"

/* Makes /dev/console standard input, output and error. */
void console_open(void);
/* One line, "space-init: " before it. */
void console_say(const char *format, ...) _printf_(1, 2);
/* Says why, and powers the guest off. */
__attribute__((noreturn)) void console_die(const char *format, ...) _printf_(1, 2);
