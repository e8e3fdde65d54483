#include <errno.h>
#include <stdlib.h>

#include "wire/agent_frame.h"

int agent_reader_init(struct agent_reader *r, uint8_t expect, bool resync)
{
    *r = (struct agent_reader){.expect = expect, .resync = resync};
    r->bytes = malloc(AGENT_READER_BYTES);
    return r->bytes == NULL ? -ENOMEM : 0;
}

void agent_reader_done(struct agent_reader *r)
{
    free(r->bytes);
    *r = (struct agent_reader){0};
}

void agent_reader_set_nonce(struct agent_reader *r, const uint8_t nonce[AGENT_NONCE_BYTES])
{
    memcpy(r->nonce, nonce, AGENT_NONCE_BYTES);
    r->has_nonce = true;
}

void agent_reader_desynchronise(struct agent_reader *r, bool discard)
{
    r->synchronised = false;
    r->failed = false;
    if (discard) {
        r->start = 0;
        r->end = 0;
    }
}

uint8_t *agent_reader_space(struct agent_reader *r, size_t *ret_room)
{
    if (r->start == r->end) {
        r->start = 0;
        r->end = 0;
    } else if (AGENT_READER_BYTES - r->end < AGENT_FRAME_MAX) {
        memmove(r->bytes, &r->bytes[r->start], r->end - r->start);
        r->end -= r->start;
        r->start = 0;
    }
    *ret_room = AGENT_READER_BYTES - r->end;
    return &r->bytes[r->end];
}

void agent_reader_commit(struct agent_reader *r, size_t n)
{
    r->end += n;
}

static int reader_find(struct agent_reader *r, struct agent_frame *ret_frame)
{
    struct span in = span_make(&r->bytes[r->start], r->end - r->start);
    size_t skip = 0;
    size_t used = agent_frame_find(in, r->expect, r->has_nonce ? r->nonce : NULL, ret_frame, &skip);

    if (used == 0) {
        r->start += skip;
        return 0;
    }
    r->start += used;
    r->synchronised = true;
    return 1;
}

int agent_reader_next(struct agent_reader *r, struct agent_frame *ret_frame)
{
    int used;

    if (r->failed) {
        return -EBADMSG;
    }
    if (!r->synchronised) {
        return reader_find(r, ret_frame);
    }
    used = agent_frame_parse(span_make(&r->bytes[r->start], r->end - r->start), ret_frame);
    if (used > 0) {
        r->start += (size_t)used;
        return 1;
    }
    if (used == 0) {
        return 0;
    }
    if (!r->resync) {
        r->failed = true;
        return used;
    }
    r->synchronised = false;
    return reader_find(r, ret_frame);
}
