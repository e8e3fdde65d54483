/* The tables of `space`: every verb with its options, help text and example. */
#pragma once

#include "cli/args.h"

/* Ends with a row without a name. */
extern const struct verb cli_verbs[];
extern const struct option_spec cli_globals[];
