/* The decoder of chunked bodies: a byte machine for the framing, runs for the data. */
#include <errno.h>

#include "wire/http1.h"
#include "wire/http1_chars.h"

enum {
    STATE_SIZE,
    STATE_EXTENSION,
    STATE_SIZE_LF,
    STATE_DATA,
    STATE_DATA_CR,
    STATE_DATA_LF,
    STATE_TRAILER_START,
    STATE_TRAILER_NAME,
    STATE_TRAILER_VALUE,
    STATE_TRAILER_LF,
    STATE_END_LF,
    STATE_DONE,
    STATE_FAILED,
};

#define MAX_SIZE_DIGITS 15U /* leading zeros count; keeps a size far below overflow */

void http1_chunks_init(struct http1_chunks *chunks)
{
    *chunks = (struct http1_chunks){.state = STATE_SIZE};
}

bool http1_chunks_is_done(const struct http1_chunks *chunks)
{
    return chunks->state == STATE_DONE;
}

static int fail(struct http1_chunks *chunks, enum http1_fault fault)
{
    chunks->state = STATE_FAILED;
    chunks->fault = fault;
    return -1;
}

static int fail_limit(struct http1_chunks *chunks, enum http1_fault fault)
{
    chunks->is_over_limit = true;
    return fail(chunks, fault);
}

static int on_size(struct http1_chunks *chunks, uint8_t c)
{
    int digit = hex_value(c);

    if (digit >= 0) {
        chunks->digits++;
        chunks->remaining = (chunks->remaining << 4U) | (unsigned int)digit;
        return chunks->digits <= MAX_SIZE_DIGITS ? 0 : fail(chunks, HTTP1_FAULT_CHUNK_SIZE);
    }
    if (chunks->digits == 0) {
        return fail(chunks, HTTP1_FAULT_CHUNK_SIZE);
    }
    if (c == '\r') {
        chunks->state = STATE_SIZE_LF;
        return 0;
    }
    chunks->extension_bytes = 0;
    chunks->state = STATE_EXTENSION;
    return c == ';' ? 0 : fail(chunks, HTTP1_FAULT_CHUNK_SIZE);
}

static int on_extension(struct http1_chunks *chunks, uint8_t c)
{
    if (c == '\r') {
        chunks->state = STATE_SIZE_LF;
        return 0;
    }
    chunks->extension_bytes++;
    chunks->all_extension_bytes++;
    if (chunks->extension_bytes > HTTP1_MAX_EXTENSION_BYTES ||
        chunks->all_extension_bytes > HTTP1_MAX_ALL_EXTENSION_BYTES) {
        return fail_limit(chunks, HTTP1_FAULT_CHUNK_EXTENSION);
    }
    return is_value_char(c) ? 0 : fail(chunks, HTTP1_FAULT_CHUNK_EXTENSION);
}

static int on_size_lf(struct http1_chunks *chunks, uint8_t c)
{
    if (c != '\n') {
        return fail(chunks, HTTP1_FAULT_CHUNK_SIZE);
    }
    chunks->digits = 0;
    chunks->state = chunks->remaining > 0 ? STATE_DATA : STATE_TRAILER_START;
    return 0;
}

static int on_data_end(struct http1_chunks *chunks, uint8_t c)
{
    bool is_cr = chunks->state == STATE_DATA_CR;

    chunks->state = is_cr ? STATE_DATA_LF : STATE_SIZE;
    return c == (is_cr ? '\r' : '\n') ? 0 : fail(chunks, HTTP1_FAULT_CHUNK_SIZE);
}

static int on_trailer(struct http1_chunks *chunks, uint8_t c)
{
    bool valid = false;

    if (++chunks->trailer_bytes > HTTP1_MAX_TRAILER_BYTES) {
        return fail_limit(chunks, HTTP1_FAULT_TRAILER);
    }
    if (chunks->state == STATE_TRAILER_START && c != '\r' &&
        ++chunks->trailer_count > HTTP1_MAX_TRAILERS) {
        return fail_limit(chunks, HTTP1_FAULT_TRAILER);
    }
    switch (chunks->state) {
    case STATE_TRAILER_START:
        chunks->state = c == '\r' ? STATE_END_LF : STATE_TRAILER_NAME;
        valid = c == '\r' || is_token_char(c);
        break;
    case STATE_TRAILER_NAME:
        chunks->state = c == ':' ? STATE_TRAILER_VALUE : STATE_TRAILER_NAME;
        valid = c == ':' || is_token_char(c);
        break;
    case STATE_TRAILER_VALUE:
        chunks->state = c == '\r' ? STATE_TRAILER_LF : STATE_TRAILER_VALUE;
        valid = c == '\r' || is_value_char(c);
        break;
    case STATE_TRAILER_LF:
        chunks->state = STATE_TRAILER_START;
        valid = c == '\n';
        break;
    default: /* STATE_END_LF */
        chunks->state = STATE_DONE;
        valid = c == '\n';
        break;
    }
    return valid ? 0 : fail(chunks, HTTP1_FAULT_TRAILER);
}

static int chunks_step(struct http1_chunks *chunks, uint8_t c)
{
    switch (chunks->state) {
    case STATE_SIZE:
        return on_size(chunks, c);
    case STATE_EXTENSION:
        return on_extension(chunks, c);
    case STATE_SIZE_LF:
        return on_size_lf(chunks, c);
    case STATE_DATA_CR:
    case STATE_DATA_LF:
        return on_data_end(chunks, c);
    default:
        return on_trailer(chunks, c);
    }
}

int http1_chunks_next(struct http1_chunks *chunks, struct span bytes, struct span *ret_data)
{
    size_t used = 0;

    bytes = span_head(bytes, INT32_MAX);
    *ret_data = span_make(NULL, 0);
    while (used < bytes.n && chunks->state < STATE_DONE) {
        if (chunks->state == STATE_DATA) {
            struct span data = span_skip(bytes, used);

            data = span_head(data, chunks->remaining < data.n ? (size_t)chunks->remaining : data.n);
            chunks->remaining -= data.n;
            if (chunks->remaining == 0) {
                chunks->state = STATE_DATA_CR;
            }
            *ret_data = data;
            return (int)(used + data.n);
        }
        if (chunks_step(chunks, bytes.p[used]) < 0) {
            break;
        }
        used++;
    }
    if (chunks->state == STATE_FAILED) {
        return chunks->is_over_limit ? -EMSGSIZE : -EBADMSG;
    }
    return (int)used;
}
