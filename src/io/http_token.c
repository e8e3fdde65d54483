#include "io/http_token.h"

#include "base/span.h"

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

bool http_token_is_in(const char *token, const char *list)
{
    struct span rest = span_of_str(list);

    while (rest.n > 0) {
        size_t comma = span_find(rest, 0, ',');
        struct span item = trim(span_head(rest, comma));

        if (item.n > 0 && span_equals_nocase(item, token)) {
            return true;
        }
        rest = span_skip(rest, comma + 1);
    }
    return false;
}
