/* What to do about a failure, after its message. */
#pragma once

#include "base/error.h"

struct cli;

/* Lines on standard error: which object and errno the refusal was about, and a remedy that fits
 * the verb. */
void hints_print(const struct cli *cli, const struct error *err);
