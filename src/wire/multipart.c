#include "wire/multipart.h"

#include <errno.h>

static int fail(struct multipart *m, int code, const char *fault)
{
    m->state = MULTIPART_BROKEN;
    m->fault = fault;
    return code;
}

static int malformed(struct multipart *m, const char *fault)
{
    return fail(m, -EBADMSG, fault);
}

/* ---- parameters: `; name="value"` ---- */

static struct span trim(struct span s)
{
    while (s.n > 0 && (s.p[0] == ' ' || s.p[0] == '\t')) {
        s = span_skip(s, 1);
    }
    while (s.n > 0 && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t')) {
        s = span_head(s, s.n - 1);
    }
    return s;
}

static bool is_token(struct span s)
{
    static const char others[] = "!#$%&'*+-.^_`|~";

    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = s.p[i];
        bool is_alnum = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');

        if (!is_alnum && (c == '\0' || memchr(others, c, sizeof(others) - 1) == NULL)) {
            return false;
        }
    }
    return s.n > 0;
}

/* Takes a parameter off what follows a value: 1, 0 at the end, -EBADMSG. A quoted value comes
 * without its quotes. */
static int take_parameter(struct span *rest, struct span *ret_name, struct span *ret_value)
{
    struct span s = trim(*rest);
    size_t equals;
    size_t end;

    if (s.n == 0) {
        return 0;
    }
    if (s.p[0] != ';') {
        return -EBADMSG;
    }
    s = trim(span_skip(s, 1));
    equals = span_find(s, 0, '=');
    *ret_name = span_head(s, equals);
    s = span_skip(s, equals + 1);
    if (!is_token(*ret_name) || s.n == 0) {
        return -EBADMSG;
    }
    if (s.p[0] == '"') {
        end = span_find(s, 1, '"');
        if (end == s.n) {
            return -EBADMSG;
        }
        *ret_value = span_skip(span_head(s, end), 1);
        *rest = span_skip(s, end + 1);
        return 1;
    }
    end = span_find(s, 0, ';');
    *ret_value = trim(span_head(s, end));
    *rest = span_skip(s, end);
    return ret_value->n == 0 || span_find(*ret_value, 0, '"') < ret_value->n ? -EBADMSG : 1;
}

/* ---- the boundary ---- */

static bool is_boundary(struct span s)
{
    static const char others[] = "'()+_,-./:=? ";

    if (s.n == 0 || s.n > MULTIPART_BOUNDARY_MAX || s.p[s.n - 1] == ' ') {
        return false;
    }
    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = s.p[i];
        bool is_alnum = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');

        if (!is_alnum && (c == '\0' || memchr(others, c, sizeof(others) - 1) == NULL)) {
            return false;
        }
    }
    return true;
}

int multipart_init(struct multipart *m, struct span content_type)
{
    static const char wrong[] = "Content-Type must be multipart/form-data with a boundary";
    size_t end = span_find(content_type, 0, ';');
    struct span rest = span_skip(content_type, end);
    struct span boundary = span_make(NULL, 0);
    struct span name;
    struct span value;
    int r;

    memset(m, 0, sizeof(*m));
    if (!span_equals_nocase(trim(span_head(content_type, end)), "multipart/form-data")) {
        return malformed(m, wrong);
    }
    while ((r = take_parameter(&rest, &name, &value)) > 0) {
        if (!span_equals_nocase(name, "boundary")) {
            continue;
        }
        if (boundary.n > 0) {
            return malformed(m, "Content-Type has two boundaries");
        }
        boundary = value;
    }
    if (r < 0 || boundary.p == NULL || !is_boundary(boundary)) {
        return malformed(m, wrong);
    }
    memcpy(m->delimiter, "\r\n--", 4);
    memcpy(&m->delimiter[4], boundary.p, boundary.n);
    m->delimiter_n = 4 + boundary.n;
    m->matched = 2; /* the first boundary has no line before it */
    m->state = MULTIPART_AT_FIRST;
    return 0;
}

/* ---- the head of a part ---- */

/* %22, %0D and %0A. */
static uint8_t escaped(struct span s)
{
    static const char *const codes[] = {"%22", "%0D", "%0A"};
    static const uint8_t bytes[] = {'"', '\r', '\n'};

    for (size_t i = 0; i < sizeof(bytes); i++) {
        if (span_equals_nocase(span_head(s, 3), codes[i])) {
            return bytes[i];
        }
    }
    return 0;
}

static int copy_name(struct multipart *m, struct span value, char *out, size_t size)
{
    size_t n = 0;

    for (size_t i = 0; i < value.n; i++) {
        uint8_t c = value.p[i];
        uint8_t meant = c == '%' ? escaped(span_skip(value, i)) : 0;

        if (meant != 0) {
            c = meant;
            i += 2;
        }
        if (n + 1 >= size) {
            return fail(m, -EMSGSIZE, "the name of a part is too long");
        }
        out[n++] = (char)c;
    }
    out[n] = '\0';
    return 0;
}

static int read_disposition(struct multipart *m, struct span value)
{
    size_t end = span_find(value, 0, ';');
    struct span rest = span_skip(value, end);
    bool has_name = false;
    struct span name;
    struct span text;
    int r;

    if (!span_equals_nocase(trim(span_head(value, end)), "form-data")) {
        return malformed(m, "a part's Content-Disposition is not form-data");
    }
    while ((r = take_parameter(&rest, &name, &text)) > 0) {
        if (span_equals_nocase(name, "name") && !has_name) {
            has_name = true;
            r = copy_name(m, text, m->name, sizeof(m->name));
        } else if (span_equals_nocase(name, "filename") && !m->has_filename) {
            m->has_filename = true;
            r = copy_name(m, text, m->filename, sizeof(m->filename));
        } else {
            return malformed(m, "a part's Content-Disposition takes only name and filename, once");
        }
        if (r < 0) {
            return r;
        }
    }
    return r < 0 || !has_name ? malformed(m, "a part's Content-Disposition is malformed") : 0;
}

static bool is_plain_encoding(struct span value)
{
    return span_equals_nocase(value, "binary") || span_equals_nocase(value, "8bit") ||
           span_equals_nocase(value, "7bit");
}

static bool has_control(struct span s)
{
    for (size_t i = 0; i < s.n; i++) {
        if ((s.p[i] < 0x20 && s.p[i] != '\t') || s.p[i] == 0x7f) {
            return true;
        }
    }
    return false;
}

static int read_field(struct multipart *m, struct span line, bool *has_disposition)
{
    size_t colon = span_find(line, 0, ':');
    struct span name = span_head(line, colon);
    struct span value = trim(span_skip(line, colon + 1));

    if (colon == line.n || !is_token(name) || has_control(value)) {
        return malformed(m, "a header of a part is malformed");
    }
    if (span_equals_nocase(name, "Content-Disposition")) {
        if (*has_disposition) {
            return malformed(m, "a part has two Content-Dispositions");
        }
        *has_disposition = true;
        return read_disposition(m, value);
    }
    if (span_equals_nocase(name, "Content-Transfer-Encoding") && !is_plain_encoding(value)) {
        return malformed(m, "a part may have no transfer encoding");
    }
    return 0;
}

/* The whole head is there, its lines each with CR LF, the empty one included. */
static int read_head(struct multipart *m)
{
    struct span rest = span_make(m->head, m->head_n - 2);
    bool has_disposition = false;
    size_t count = 0;

    m->has_filename = false;
    m->name[0] = '\0';
    m->filename[0] = '\0';
    while (rest.n > 0) {
        size_t end = span_find(rest, 0, '\r');
        int r;

        if (++count > MULTIPART_FIELDS_MAX) {
            return fail(m, -EMSGSIZE, "a part has too many headers");
        }
        r = read_field(m, span_head(rest, end), &has_disposition);
        if (r < 0) {
            return r;
        }
        rest = span_skip(rest, end + 2);
    }
    return has_disposition ? 0 : malformed(m, "a part has no Content-Disposition");
}

/* Takes one byte of the head: 1 when that was its last. */
static int feed_head(struct multipart *m, uint8_t c)
{
    bool after_cr = m->head_n > 0 && m->head[m->head_n - 1] == '\r';

    if (c == '\0' || after_cr != (c == '\n')) {
        return malformed(m, "a header of a part is malformed");
    }
    if (m->head_n >= MULTIPART_HEAD_MAX) {
        return fail(m, -EMSGSIZE, "the headers of a part are too long");
    }
    m->head[m->head_n++] = (char)c;
    return c == '\n' && (m->head_n == 2 || (m->head_n >= 4 && m->head[m->head_n - 3] == '\n')) ? 1
                                                                                               : 0;
}

/* ---- content ---- */

/* Where a delimiter begins, whole or as far as the input goes; in.n when none does. */
static size_t find_delimiter(const struct multipart *m, struct span in)
{
    size_t at = 0;

    while ((at = span_find(in, at, '\r')) < in.n) {
        struct span here = span_head(span_skip(in, at), m->delimiter_n);

        if (memcmp(here.p, m->delimiter, here.n) == 0) {
            break;
        }
        at++;
    }
    return at;
}

/* Goes on in a delimiter that has begun. What turns out to be none was content: a boundary has no
 * line end in it, so that nothing else can begin inside. */
static int feed_delimiter(struct multipart *m,
                          struct span in,
                          enum multipart_event *ret_event,
                          struct span *ret_data)
{
    size_t used = 0;

    while (used < in.n && m->matched < m->delimiter_n &&
           in.p[used] == (uint8_t)m->delimiter[m->matched]) {
        m->matched++;
        used++;
    }
    if (m->matched == m->delimiter_n) {
        *ret_event = m->state == MULTIPART_IN_DATA ? MULTIPART_PART_END : MULTIPART_NONE;
        m->state = MULTIPART_AFTER_BOUNDARY;
        m->matched = 0;
    } else if (used < in.n && m->state == MULTIPART_AT_FIRST) {
        return malformed(m, "the body does not begin with the boundary");
    } else if (used < in.n) {
        *ret_event = MULTIPART_DATA;
        *ret_data = span_make(m->delimiter, m->matched);
        m->matched = 0;
    }
    return (int)used;
}

static int feed_data(struct multipart *m,
                     struct span in,
                     enum multipart_event *ret_event,
                     struct span *ret_data)
{
    size_t at;

    if (m->matched > 0) {
        return feed_delimiter(m, in, ret_event, ret_data);
    }
    at = find_delimiter(m, in);
    if (at == 0) {
        return feed_delimiter(m, in, ret_event, ret_data);
    }
    *ret_event = MULTIPART_DATA;
    *ret_data = span_head(in, at);
    return (int)at;
}

/* ---- all ---- */

/* A byte outside of content. */
static int feed_byte(struct multipart *m, uint8_t c, enum multipart_event *ret_event)
{
    int r = 0;

    if (m->state == MULTIPART_IN_HEAD) {
        r = feed_head(m, c);
        if (r == 1) {
            r = read_head(m);
            m->head_n = 0;
            if (r == 0) {
                m->state = MULTIPART_IN_DATA;
                *ret_event = MULTIPART_PART;
            }
        }
        return r < 0 ? r : 1;
    }
    if (m->state == MULTIPART_AFTER_BOUNDARY && c == '\r') {
        m->state = MULTIPART_AFTER_CR;
    } else if (m->state == MULTIPART_AFTER_BOUNDARY && c == '-') {
        m->state = MULTIPART_AFTER_DASH;
    } else if (m->state == MULTIPART_AFTER_CR && c == '\n') {
        m->state = MULTIPART_IN_HEAD;
    } else if (m->state == MULTIPART_AFTER_DASH && c == '-') {
        m->state = MULTIPART_AFTER_LAST;
        *ret_event = MULTIPART_END;
    } else if (m->state == MULTIPART_AFTER_LAST && c == '\r') {
        m->state = MULTIPART_AFTER_LAST_CR;
    } else if (m->state == MULTIPART_AFTER_LAST_CR && c == '\n') {
        m->state = MULTIPART_AT_END;
    } else if (m->state == MULTIPART_AFTER_LAST || m->state == MULTIPART_AFTER_LAST_CR ||
               m->state == MULTIPART_AT_END) {
        return malformed(m, "something follows the last boundary");
    } else {
        return malformed(m, "something follows a boundary in its line");
    }
    return 1;
}

int multipart_next(struct multipart *m,
                   struct span in,
                   enum multipart_event *ret_event,
                   struct span *ret_data)
{
    size_t used = 0;

    *ret_event = MULTIPART_NONE;
    *ret_data = span_make(NULL, 0);
    in = span_head(in, 1U << 30);
    while (used < in.n && *ret_event == MULTIPART_NONE) {
        struct span rest = span_skip(in, used);
        int r;

        if (m->state == MULTIPART_BROKEN) {
            return -EBADMSG;
        }
        if (m->state == MULTIPART_IN_DATA) {
            r = feed_data(m, rest, ret_event, ret_data);
        } else if (m->state == MULTIPART_AT_FIRST) {
            r = feed_delimiter(m, rest, ret_event, ret_data);
        } else {
            r = feed_byte(m, rest.p[0], ret_event);
        }
        if (r < 0) {
            return r;
        }
        used += (size_t)r;
    }
    return (int)used;
}

int multipart_finish(struct multipart *m)
{
    if (m->state == MULTIPART_AFTER_LAST || m->state == MULTIPART_AT_END) {
        return 0;
    }
    if (m->state != MULTIPART_BROKEN) {
        (void)malformed(m, "the body ends before the last boundary");
    }
    return -EBADMSG;
}
