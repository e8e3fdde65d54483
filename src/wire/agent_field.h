/* Fields that several payloads of the agent protocol share. */
#pragma once

#include "base/reader.h"
#include "wire/agent_message.h"

struct agent_strings_limits {
    uint32_t count;
    size_t bytes;     /* of the strings, without their lengths */
    bool assignments; /* each must be NAME=value */
};

/* Reads a counted list and checks it. 0 or -EBADMSG. */
int agent_strings_get(struct reader *r,
                      const struct agent_strings_limits *limits,
                      struct agent_strings *ret) _must_check_;
void agent_strings_put(struct buf *b,
                       const struct agent_strings *list,
                       const struct agent_strings_limits *limits);
/* A block without NUL bytes; errors stick in r, or in b. */
struct span agent_text_get(struct reader *r, size_t max);
void agent_text_put(struct buf *b, struct span s, size_t max);
