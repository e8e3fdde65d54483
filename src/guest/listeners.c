#include "guest/listeners.h"

#include <errno.h>
#include <fcntl.h>

#define READ_BYTES   4096U
#define STATE_LISTEN 0x0aU
#define WORD_DIGITS  8U
#define INODE_FIELD  9 /* counted from 0 */

static struct span take_field(struct span *rest)
{
    struct span field;

    while (rest->n > 0 && rest->p[0] == ' ') {
        *rest = span_skip(*rest, 1);
    }
    field = span_head(*rest, span_find(*rest, 0, ' '));
    *rest = span_skip(*rest, field.n);
    return field;
}

static int parse_hex(struct span s, uint32_t *ret)
{
    uint32_t value = 0;

    if (s.n == 0 || s.n > WORD_DIGITS) {
        return -EBADMSG;
    }
    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = s.p[i];

        if (c >= '0' && c <= '9') {
            value = value << 4U | (uint32_t)(c - '0');
        } else if (c >= 'A' && c <= 'F') {
            value = value << 4U | (uint32_t)(c - 'A' + 10);
        } else {
            return -EBADMSG;
        }
    }
    *ret = value;
    return 0;
}

/* The kernel prints an address as words of the machine's own byte order. */
static int parse_address(struct span s, uint8_t family, struct service_listener *ret)
{
    size_t words = family == 4 ? 1 : 4;
    uint32_t port;

    if (s.n < words * WORD_DIGITS + 2 || s.p[words * WORD_DIGITS] != ':' ||
        parse_hex(span_skip(s, words * WORD_DIGITS + 1), &port) < 0 || port > UINT16_MAX) {
        return -EBADMSG;
    }
    for (size_t i = 0; i < words; i++) {
        uint32_t word;

        if (parse_hex(span_head(span_skip(s, i * WORD_DIGITS), WORD_DIGITS), &word) < 0) {
            return -EBADMSG;
        }
        memcpy(&ret->address[i * sizeof(word)], &word, sizeof(word));
    }
    ret->port = (uint16_t)port;
    ret->family = family;
    return 0;
}

int listener_parse(struct span line, uint8_t family, struct listener *ret)
{
    struct listener l = {.inode = 0};
    uint32_t state = 0;

    for (int field = 0; field <= INODE_FIELD; field++) {
        struct span text = take_field(&line);
        int r = 0;

        if (field == 1) {
            r = parse_address(text, family, &l.record);
        } else if (field == 3) {
            r = parse_hex(text, &state);
        } else if (field == INODE_FIELD) {
            r = span_parse_u64(text, UINT64_MAX, &l.inode);
        }
        if (r < 0) {
            return -EBADMSG;
        }
    }
    if (state != STATE_LISTEN || l.record.port == 0) {
        return 0;
    }
    *ret = l;
    return 1;
}

struct listing {
    uint16_t port;
    struct listener *found;
    size_t n;
    size_t max;
};

/* Takes whole lines off the text. Returns the bytes used; *ret_end when no listener can follow. */
static size_t take_lines(struct listing *l, uint8_t family, struct span text, bool *ret_end)
{
    size_t used = 0;

    for (;;) {
        struct span rest = span_skip(text, used);
        size_t n = span_find(rest, 0, '\n');
        struct listener one;
        int r;

        if (n == rest.n || l->n == l->max) {
            *ret_end = l->n == l->max;
            return used;
        }
        r = listener_parse(span_head(rest, n), family, &one);
        if (r == 0) {
            *ret_end = true; /* listeners come first; there may be many thousands of others */
            return used;
        }
        if (r > 0 && (l->port == 0 || one.record.port == l->port)) {
            l->found[l->n++] = one;
        }
        used += n + 1;
    }
}

static void read_file(struct listing *l, const char *path, uint8_t family)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint8_t text[READ_BYTES];
    size_t kept = 0;
    bool is_end = fd < 0;

    while (!is_end) {
        ssize_t n = read(fd, &text[kept], sizeof(text) - kept);
        size_t used;

        if (n <= 0) {
            return;
        }
        kept += (size_t)n;
        used = take_lines(l, family, span_make(text, kept), &is_end);
        if (used == 0 && kept == sizeof(text)) {
            return; /* no line is so long */
        }
        memmove(text, &text[used], kept - used);
        kept -= used;
    }
}

size_t listeners_read(uint16_t port, struct listener *ret, size_t max)
{
    struct listing l = {.port = port, .found = ret, .max = max};

    read_file(&l, "/proc/net/tcp", 4);
    read_file(&l, "/proc/net/tcp6", 6);
    return l.n;
}
