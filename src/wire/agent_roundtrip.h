/* For tests and fuzz targets of the agent protocol: parse a frame and format what was understood.
 */
#pragma once

#include "wire/agent_frame.h"

/* Parses the payload by its type and appends the same message to b. 0, -EBADMSG when the payload
 * is refused, -ENOTSUP for START, whose frames are parsed jointly. */
int agent_roundtrip(const struct agent_frame *f, struct buf *b);

/* The body of both fuzz targets: `expect` is what synchronises, `resync` as in agent_reader_init.
 * Aborts when a result depends on how the input was split, or a message does not round-trip. */
void agent_fuzz_stream(struct span in, uint8_t expect, bool resync);
