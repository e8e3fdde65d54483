#include "wire/tar.h"

#include <errno.h>

#include "wire/tar_block.h"

#define SIZE_MAX_BYTES  ((uint64_t)INT64_MAX - TAR_BLOCK_BYTES)
#define BASE256_MARK    0x80U
#define BASE256_SIGN    0x40U
#define PAX_LENGTH_MAX  TAR_EXTRA_MAX
#define MODE_BITS       07777U
#define TIME_DIGITS_MAX 18U

enum state {
    STATE_HEADER,
    STATE_EXTRA,
    STATE_CONTENT,
    STATE_PADDING,
    STATE_END,
};

static struct span field_of(const struct tar_parser *p, struct tar_field f)
{
    return span_make(&p->block[f.at], f.n);
}

/* The field up to its NUL. */
static struct span text_of(const struct tar_parser *p, struct tar_field f)
{
    struct span s = field_of(p, f);

    return span_head(s, span_find(s, 0, 0));
}

/* GNU's way to write what does not fit in octal digits. */
static int parse_base256(struct span s, int64_t *ret)
{
    bool negative = (s.p[0] & BASE256_SIGN) != 0;
    uint64_t value = negative ? UINT64_MAX : 0;
    uint8_t fill = negative ? 0xff : 0;

    for (size_t i = 0; i < s.n; i++) {
        uint8_t byte = s.p[i];

        if (i == 0) {
            byte = negative ? byte : (uint8_t)(byte & ~BASE256_MARK);
        }
        if (i + sizeof(value) < s.n && byte != fill) {
            return -EBADMSG;
        }
        value = value << 8U | byte;
    }
    if ((value >> 63U != 0) != negative) {
        return -EBADMSG;
    }
    *ret = (int64_t)value;
    return 0;
}

static int parse_number(struct span s, int64_t *ret)
{
    uint64_t value = 0;

    if ((s.p[0] & BASE256_MARK) != 0) {
        return parse_base256(s, ret);
    }
    while (s.n > 0 && s.p[0] == ' ') {
        s = span_skip(s, 1);
    }
    for (; s.n > 0 && s.p[0] != ' ' && s.p[0] != 0; s = span_skip(s, 1)) {
        if (s.p[0] < '0' || s.p[0] > '7') {
            return -EBADMSG;
        }
        value = value << 3U | (uint64_t)(s.p[0] - '0'); /* 12 digits are 36 bits */
    }
    *ret = (int64_t)value;
    return 0;
}

static int parse_size(struct span s, uint64_t *ret)
{
    int64_t value;

    if (parse_number(s, &value) < 0 || value < 0 || (uint64_t)value > SIZE_MAX_BYTES) {
        return -EBADMSG;
    }
    *ret = (uint64_t)value;
    return 0;
}

static bool is_zero(struct span s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] != 0) {
            return false;
        }
    }
    return true;
}

void tar_parser_init(struct tar_parser *p)
{
    *p = (struct tar_parser){.state = STATE_HEADER,
                             .extra = buf_make(TAR_EXTRA_MAX),
                             .name = buf_make(TAR_NAME_BYTES),
                             .target = buf_make(TAR_NAME_BYTES)};
}

void tar_parser_done(struct tar_parser *p)
{
    buf_done(&p->extra);
    buf_done(&p->name);
    buf_done(&p->target);
}

/* What headers before an entry said holds for that entry only. */
static void forget_entry(struct tar_parser *p)
{
    buf_clear(&p->name);
    buf_clear(&p->target);
    p->has_size = false;
    p->has_time = false;
}

static int set_text(struct buf *b, struct span s)
{
    if (span_find(s, 0, 0) != s.n) {
        return -EBADMSG;
    }
    buf_clear(b);
    buf_put(b, s);
    return buf_error(b);
}

/* Decimal, with a sign and a fraction, which is cut off. */
static int parse_time(struct span s, int64_t *ret)
{
    bool negative = s.n > 0 && s.p[0] == '-';
    struct span digits = negative ? span_skip(s, 1) : s;
    uint64_t value;

    digits = span_head(digits, span_find(digits, 0, '.'));
    if (digits.n > TIME_DIGITS_MAX || span_parse_u64(digits, INT64_MAX, &value) < 0) {
        return -EBADMSG;
    }
    *ret = negative ? -(int64_t)value : (int64_t)value;
    return 0;
}

static bool starts_with(struct span s, const char *prefix)
{
    return span_equals_str(span_head(s, strlen(prefix)), prefix);
}

static int take_keyword(struct tar_parser *p, struct span key, struct span value)
{
    bool is_path = span_equals_str(key, "path");
    bool is_target = span_equals_str(key, "linkpath");
    bool is_size = span_equals_str(key, "size");
    int r = 0;

    if (starts_with(key, "GNU.sparse.")) {
        return -EBADMSG;
    }
    if (p->extra_type == 'g') {
        /* For all entries to come: makes no sense of these. */
        return is_path || is_target || is_size ? -EBADMSG : 0;
    }
    if (is_path) {
        return set_text(&p->name, value);
    }
    if (is_target) {
        return set_text(&p->target, value);
    }
    if (is_size) {
        p->has_size = true;
        return span_parse_u64(value, SIZE_MAX_BYTES, &p->size_bytes) < 0 ? -EBADMSG : 0;
    }
    if (span_equals_str(key, "mtime")) {
        r = parse_time(value, &p->modified_s);
        p->has_time = true;
    }
    return r;
}

/* Lines of "LENGTH KEY=VALUE\n", where the length counts all of the line. */
static int take_pax(struct tar_parser *p)
{
    struct span rest = buf_span(&p->extra);

    while (rest.n > 0) {
        size_t blank = span_find(rest, 0, ' ');
        struct span line;
        uint64_t length;
        size_t equals;
        int r;

        if (span_parse_u64(span_head(rest, blank), PAX_LENGTH_MAX, &length) < 0 ||
            length > rest.n || length < blank + 2 || rest.p[length - 1] != '\n') {
            return -EBADMSG;
        }
        line = span_skip(span_head(rest, (size_t)length - 1), blank + 1);
        equals = span_find(line, 0, '=');
        if (equals == 0 || equals == line.n) {
            return -EBADMSG;
        }
        r = take_keyword(p, span_head(line, equals), span_skip(line, equals + 1));
        if (r < 0) {
            return r;
        }
        rest = span_skip(rest, (size_t)length);
    }
    return 0;
}

/* GNU's long name, or link's target, with a NUL behind it. */
static int take_long_name(struct tar_parser *p, struct buf *to)
{
    struct span s = buf_span(&p->extra);

    return set_text(to, span_head(s, span_find(s, 0, 0)));
}

static int end_extra(struct tar_parser *p)
{
    int r;

    if (p->extra_type == 'L') {
        r = take_long_name(p, &p->name);
    } else if (p->extra_type == 'K') {
        r = take_long_name(p, &p->target);
    } else {
        r = take_pax(p);
    }
    buf_done(&p->extra);
    return r;
}

static int begin_extra(struct tar_parser *p, uint8_t type)
{
    int r = parse_size(field_of(p, TAR_SIZE_FIELD), &p->left);

    if (r < 0 || p->left > TAR_EXTRA_MAX) {
        return r < 0 ? r : -EMSGSIZE;
    }
    p->extra_type = type;
    p->padding = tar_padding(p->left);
    p->state = STATE_EXTRA;
    return 0;
}

/* The name that the block has, unless a header before it gave another. */
static int take_names(struct tar_parser *p, bool has_prefix)
{
    struct span prefix = text_of(p, TAR_PREFIX_FIELD);

    if (p->name.n == 0) {
        if (has_prefix && prefix.n > 0) {
            buf_put(&p->name, prefix);
            buf_put_str(&p->name, "/");
        }
        buf_put(&p->name, text_of(p, TAR_NAME_FIELD));
    }
    if (p->target.n == 0) {
        buf_put(&p->target, text_of(p, TAR_TARGET_FIELD));
    }
    return p->name.n == 0 ? -EBADMSG : 0;
}

static int take_type(const struct tar_parser *p, uint8_t *ret_type)
{
    uint8_t type = p->block[TAR_TYPE_FIELD.at];

    if (type == 0 || type == '7') {
        type = TAR_FILE;
    }
    if (type < TAR_FILE || type > TAR_FIFO) {
        return -EBADMSG;
    }
    /* Archives older than types for directories. */
    if (type == TAR_FILE && p->name.n > 0 && p->name.p[p->name.n - 1] == '/') {
        type = TAR_DIRECTORY;
    }
    *ret_type = type;
    return 0;
}

static int take_numbers(struct tar_parser *p, struct tar_entry *e)
{
    int64_t mode = 0;
    int64_t uid = 0;
    int64_t gid = 0;
    int r = parse_number(field_of(p, TAR_MODE_FIELD), &mode);

    if (r == 0) {
        r = parse_number(field_of(p, TAR_UID_FIELD), &uid);
    }
    if (r == 0) {
        r = parse_number(field_of(p, TAR_GID_FIELD), &gid);
    }
    if (r == 0) {
        r = parse_number(field_of(p, TAR_TIME_FIELD), &e->modified_s);
    }
    if (r == 0) {
        r = parse_size(field_of(p, TAR_SIZE_FIELD), &e->size_bytes);
    }
    if (r < 0) {
        return r;
    }
    e->mode = (uint32_t)mode & MODE_BITS;
    e->uid = (uint32_t)uid;
    e->gid = (uint32_t)gid;
    e->modified_s = p->has_time ? p->modified_s : e->modified_s;
    e->size_bytes = p->has_size ? p->size_bytes : e->size_bytes;
    return 0;
}

static int begin_entry(struct tar_parser *p, struct tar_entry *ret)
{
    bool has_prefix =
        starts_with(field_of(p, TAR_MAGIC_FIELD), "ustar") && p->block[TAR_MAGIC_FIELD.at + 5] == 0;
    struct tar_entry e = {.type = 0};
    int r = take_names(p, has_prefix);

    if (r == 0) {
        r = take_type(p, &e.type);
    }
    if (r == 0) {
        r = take_numbers(p, &e);
    }
    if (r < 0) {
        return r;
    }
    if (e.type == TAR_DIRECTORY) {
        e.size_bytes = 0; /* once told how much room to reserve; nothing follows */
    }
    if (e.type != TAR_FILE && e.size_bytes != 0) {
        return -EBADMSG;
    }
    e.name = buf_span(&p->name);
    if (e.type == TAR_HARD_LINK || e.type == TAR_SYMLINK) {
        e.target = buf_span(&p->target);
    }
    p->left = e.size_bytes;
    p->padding = tar_padding(e.size_bytes);
    p->state = p->left > 0 ? STATE_CONTENT : STATE_HEADER;
    *ret = e;
    return TAR_ENTRY;
}

static int take_block(struct tar_parser *p, struct tar_entry *ret)
{
    struct span block = span_make(p->block, TAR_BLOCK_BYTES);
    uint8_t type = p->block[TAR_TYPE_FIELD.at];
    int64_t sum;

    p->filled = 0;
    if (is_zero(block)) {
        /* Not between a header and its entry. */
        if (p->name.n > 0 || p->target.n > 0 || p->has_size || p->has_time) {
            return -EBADMSG;
        }
        p->state = STATE_END;
        p->has_ended = true;
        return TAR_MORE;
    }
    if (parse_number(field_of(p, TAR_SUM_FIELD), &sum) < 0 ||
        sum != (int64_t)tar_block_sum(block.p, block.n)) {
        return -EBADMSG;
    }
    if (type == 'x' || type == 'g' || type == 'L' || type == 'K') {
        return begin_extra(p, type);
    }
    return begin_entry(p, ret);
}

static struct span take(struct span *bytes, uint64_t n)
{
    struct span s = span_head(*bytes, n < bytes->n ? (size_t)n : bytes->n);

    *bytes = span_skip(*bytes, s.n);
    return s;
}

static int fill_block(struct tar_parser *p, struct span *bytes, struct tar_entry *ret)
{
    struct span s;

    if (p->filled == 0 && p->extra_type == 0) {
        forget_entry(p);
    }
    s = take(bytes, TAR_BLOCK_BYTES - p->filled);
    memcpy(&p->block[p->filled], s.p, s.n);
    p->filled += s.n;
    if (p->filled < TAR_BLOCK_BYTES) {
        return TAR_MORE;
    }
    p->extra_type = 0;
    return take_block(p, ret);
}

static int fill_extra(struct tar_parser *p, struct span *bytes)
{
    struct span s = take(bytes, p->left);

    buf_put(&p->extra, s);
    p->left -= s.n;
    if (buf_error(&p->extra) != 0) {
        return buf_error(&p->extra);
    }
    if (p->left > 0) {
        return TAR_MORE;
    }
    p->state = STATE_PADDING;
    return end_extra(p);
}

int tar_parser_next(struct tar_parser *p,
                    struct span *bytes,
                    struct tar_entry *ret_entry,
                    struct span *ret_content)
{
    int r = TAR_MORE;

    while (r == TAR_MORE && bytes->n > 0) {
        if (p->state == STATE_HEADER) {
            r = fill_block(p, bytes, ret_entry);
        } else if (p->state == STATE_EXTRA) {
            r = fill_extra(p, bytes);
        } else if (p->state == STATE_CONTENT) {
            *ret_content = take(bytes, p->left);
            p->left -= ret_content->n;
            p->state = p->left > 0 ? STATE_CONTENT : STATE_PADDING;
            return TAR_CONTENT;
        } else if (p->state == STATE_PADDING) {
            p->padding -= take(bytes, p->padding).n;
            p->state = p->padding > 0 ? STATE_PADDING : STATE_HEADER;
        } else if (!is_zero(take(bytes, bytes->n))) {
            r = -EBADMSG;
        }
    }
    return r;
}

int tar_parser_finish(const struct tar_parser *p)
{
    return p->has_ended ? 0 : -EBADMSG;
}
