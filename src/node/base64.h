/* Standard base64 with padding. */
#pragma once

#include "base/cleanup.h"
#include "base/span.h"

struct buf;

/* Appends the text of bytes; the buffer's sticky error tells of a failure. */
void base64_format(struct span bytes, struct buf *out);
/* Decodes strictly: whole groups, canonical padding, no blanks. 0, -EBADMSG, or the buffer's own
 * error. */
int base64_parse(struct span text, struct buf *ret_bytes) _must_check_;
