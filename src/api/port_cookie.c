#include "api/port_cookie.h"

#include <strings.h>

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

/* Takes what comes before the next semicolon. */
static bool next_part(struct span *rest, struct span *ret_part)
{
    size_t end;

    if (rest->n == 0) {
        return false;
    }
    end = span_find(*rest, 0, ';');
    *ret_part = span_head(*rest, end);
    *rest = span_skip(*rest, end + 1);
    return true;
}

static struct span name_of(struct span part)
{
    return trim(span_head(part, span_find(part, 0, '=')));
}

/* Without regard to case, as some programs compare. */
static bool is_ours(struct span name)
{
    return span_equals_nocase(name, PORT_COOKIE) || span_equals_nocase(name, PORT_COOKIE_SECURE);
}

bool port_cookie_next(struct span *rest, bool secure, struct span *ret_value)
{
    const char *wanted = secure ? PORT_COOKIE_SECURE : PORT_COOKIE;
    struct span part;

    while (next_part(rest, &part)) {
        if (span_equals_str(name_of(part), wanted)) {
            *ret_value = trim(span_skip(part, span_find(part, 0, '=') + 1));
            return true;
        }
    }
    return false;
}

void port_cookie_strip(struct span value, struct buf *out)
{
    struct span rest = value;
    struct span part;
    bool dropped = false;
    size_t begin = out->n;

    while (next_part(&rest, &part)) {
        if (is_ours(name_of(part))) {
            dropped = true;
            continue;
        }
        if (out->n > begin) {
            buf_put_str(out, ";");
            buf_put(out, part);
        } else {
            buf_put(out, dropped ? trim(part) : part);
        }
    }
}

/* What a browser would send back for a cookie without a name is its value alone: it can look like
 * one of ours. */
static bool would_be_ours(struct span pair)
{
    size_t equals = span_find(pair, 0, '=');
    struct span name = trim(span_head(pair, equals));

    while (name.n == 0 && equals < pair.n) {
        pair = span_skip(pair, equals + 1);
        equals = span_find(pair, 0, '=');
        name = trim(span_head(pair, equals));
    }
    return is_ours(name);
}

bool port_cookie_filter_set(struct span value, struct buf *out)
{
    struct span rest = value;
    struct span part;
    bool first = true;

    if (would_be_ours(span_head(value, span_find(value, 0, ';')))) {
        return false;
    }
    while (next_part(&rest, &part)) {
        if (first || !span_equals_nocase(name_of(part), "domain")) {
            if (!first) {
                buf_put_str(out, ";");
            }
            buf_put(out, part);
        }
        first = false;
    }
    return true;
}
