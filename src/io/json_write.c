/* JSON text of values. jansson's own writer formats every control character through printf and
 * hands each over alone, which holds the loop for seconds when the output of a command is full of
 * them; here strings are escaped in one pass. */
#include <errno.h>

#include "base/buf.h"
#include "io/json_request.h"

#define DEPTH_MAX   (JSON_DEPTH_MAX + 16) /* ours are shallow, a parsed one may be inside */
#define PIECE_BYTES 8192U                 /* of a string, escaped at once */

struct level {
    const json_t *container;
    void *member; /* of an object: the one to come */
    size_t index; /* of an array: the one to come */
    size_t written;
};

/* What follows the backslash of a short escape; 0 for \u00XX. */
static uint8_t short_escape(uint8_t c)
{
    switch (c) {
    case '"':
    case '\\':
        return c;
    case '\b':
        return 'b';
    case '\f':
        return 'f';
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    default:
        return 0;
    }
}

static bool needs_escape(uint8_t c)
{
    return c < 0x20 || c == '"' || c == '\\';
}

static size_t escaped_bytes(struct span text)
{
    size_t n = text.n;

    for (size_t i = 0; i < text.n; i++) {
        if (needs_escape(text.p[i])) {
            n += short_escape(text.p[i]) != 0 ? 1 : 5;
        }
    }
    return n;
}

static uint8_t *put_escape(uint8_t *out, uint8_t c)
{
    static const char hex[] = "0123456789ABCDEF";
    uint8_t mark = short_escape(c);

    *out++ = '\\';
    if (mark != 0) {
        *out++ = mark;
        return out;
    }
    *out++ = 'u';
    *out++ = '0';
    *out++ = '0';
    *out++ = (uint8_t)hex[c >> 4U];
    *out++ = (uint8_t)hex[c & 15U];
    return out;
}

void json_write_characters(struct span text, struct buf *out)
{
    while (text.n > 0) {
        struct span piece = span_head(text, PIECE_BYTES);
        size_t n = escaped_bytes(piece);
        uint8_t *p = buf_reserve(out, n);

        if (p == NULL) {
            return;
        }
        for (size_t i = 0; i < piece.n; i++) {
            if (needs_escape(piece.p[i])) {
                p = put_escape(p, piece.p[i]);
            } else {
                *p++ = piece.p[i];
            }
        }
        buf_commit(out, n);
        text = span_skip(text, piece.n);
    }
}

static void write_string(struct span text, struct buf *out)
{
    buf_put_u8(out, '"');
    json_write_characters(text, out);
    buf_put_u8(out, '"');
}

static int write_piece(const char *text, size_t n, void *arg)
{
    struct buf *out = arg;

    buf_put(out, span_make(text, n));
    return buf_error(out) == 0 ? 0 : -1;
}

static void write_scalar(const json_t *value, struct buf *out)
{
    if (json_is_string(value)) {
        write_string(span_make(json_string_value(value), json_string_length(value)), out);
    } else if (json_dump_callback(value, write_piece, out,
                                  JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) < 0 &&
               buf_error(out) == 0) {
        out->error = -ENOMEM;
    }
}

/* The next value of a container, with its comma and key written; NULL at the end. */
static const json_t *next_value(struct level *level, struct buf *out)
{
    json_t *container = (json_t *)(uintptr_t)level->container;
    const json_t *value = NULL;
    const char *key = NULL;

    if (json_is_array(container)) {
        value = json_array_get(container, level->index++);
    } else if (level->member != NULL) {
        key = json_object_iter_key(level->member);
        value = json_object_iter_value(level->member);
        level->member = json_object_iter_next(container, level->member);
    }
    if (value != NULL && level->written++ > 0) {
        buf_put_u8(out, ',');
    }
    if (key != NULL) {
        write_string(span_of_str(key), out);
        buf_put_u8(out, ':');
    }
    return value;
}

static void enter(struct level *level, const json_t *container, struct buf *out)
{
    *level = (struct level){.container = container};
    if (json_is_object(container)) {
        level->member = json_object_iter((json_t *)(uintptr_t)container);
    }
    buf_put_u8(out, json_is_object(container) ? '{' : '[');
}

void json_write(const json_t *value, struct buf *out)
{
    struct level levels[DEPTH_MAX];
    size_t depth = 0;

    do {
        if (!json_is_object(value) && !json_is_array(value)) {
            write_scalar(value, out);
        } else if (depth == DEPTH_MAX) {
            out->error = -EMSGSIZE;
        } else {
            enter(&levels[depth++], value, out);
        }
        value = NULL;
        while (depth > 0 && value == NULL) {
            struct level *level = &levels[depth - 1];

            value = next_value(level, out);
            if (value == NULL) {
                buf_put_u8(out, json_is_object(level->container) ? '}' : ']');
                depth--;
            }
        }
    } while (value != NULL && buf_error(out) == 0);
}
