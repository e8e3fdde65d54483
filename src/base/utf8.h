/* UTF-8: whether text is, and what to do with command output, which may be anything. */
#pragma once

#include "base/span.h"

struct buf;

/* Whether all of it is well formed. */
bool utf8_is_valid(struct span text);
/* Length of `text` without an incomplete character at its end (it may continue elsewhere). */
size_t utf8_cut_end(struct span text);
/* How many bytes at the begin of `text` (at most 3) belong to a character that began before. */
size_t utf8_skip_begin(struct span text);
/* Appends text with U+FFFD for each byte that is not part of a well-formed character. */
void utf8_repair(struct span text, struct buf *out);
