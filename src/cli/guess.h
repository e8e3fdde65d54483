/* What somebody meant by a word that is none of ours. */
#pragma once

#include <stddef.h>

/* How far `given` (of n bytes) is from `known`: edits, a swap of neighbours counting as one.
 * SIZE_MAX when it is so far that a guess would mislead. */
size_t guess_distance(const char *known, const char *given, size_t n);
/* The verbs for a word of other tools ("rm" for "delete"), or NULL. */
const char *guess_synonym(const char *word);
