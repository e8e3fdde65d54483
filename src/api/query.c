#include "api/query.h"

#include <errno.h>
#include <inttypes.h>

#include "base/clock.h"
#include "base/utf8.h"

static int hex_value(uint8_t c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return -1;
}

/* Any bytes but NUL. */
static int decode_bytes(struct span in, bool plus, char *out)
{
    size_t n = 0;

    for (size_t i = 0; i < in.n; i++) {
        uint8_t c = in.p[i];

        if (c == '%') {
            int high = in.n - i > 2 ? hex_value(in.p[i + 1]) : -1;
            int low = in.n - i > 2 ? hex_value(in.p[i + 2]) : -1;

            if (high < 0 || low < 0) {
                return -EBADMSG;
            }
            c = (uint8_t)(high * 16 + low);
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        if (c == '\0') {
            return -EBADMSG;
        }
        out[n++] = (char)c;
    }
    out[n] = '\0';
    return (int)n;
}

int percent_decode(struct span in, bool plus, char *out)
{
    int n = decode_bytes(in, plus, out);

    for (int i = 0; i < n; i++) {
        uint8_t c = (uint8_t)out[i];

        if (c < 0x20 || c == 0x7f) {
            return -EBADMSG;
        }
    }
    return n < 0 || utf8_is_valid(span_make(out, (size_t)n)) ? n : -EBADMSG;
}

/* Decodes one part to *to and moves it on. The text, or NULL. */
static const char *decode_part(struct span part, bool any_bytes, char **to)
{
    char *start = *to;
    int n = any_bytes ? decode_bytes(part, true, start) : percent_decode(part, true, start);

    if (n < 0) {
        return NULL;
    }
    *to = start + n + 1;
    return start;
}

static bool names_file(const char *name)
{
    return strcmp(name, "path") == 0 || strcmp(name, "exclude") == 0;
}

int query_parse(const char *text, bool any_bytes, struct query *ret_query, struct error *err)
{
    struct span rest = span_of_str(text);
    struct query q = {.count = 0};
    char *to;

    if (rest.n > QUERY_TEXT_MAX) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "query", "the query is longer than %d",
                              QUERY_TEXT_MAX);
    }
    /* Every part grows by its NUL at most: a value without '=' has two for one separator. */
    q.text = malloc(2 * rest.n + 4);
    if (q.text == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    to = q.text;
    while (rest.n > 0) {
        struct span part = span_head(rest, span_find(rest, 0, '&'));
        size_t equals = span_find(part, 0, '=');
        struct query_item item;

        rest = span_skip(rest, part.n + 1);
        if (part.n == 0) {
            continue;
        }
        item.name = decode_part(span_head(part, equals), false, &to);
        item.value = item.name == NULL ? NULL
                                       : decode_part(span_skip(part, equals + 1),
                                                     any_bytes && names_file(item.name), &to);
        if (item.value == NULL || q.count == QUERY_ITEMS_MAX) {
            (void)error_set_code(err, ERROR_INVALID_REQUEST,
                                 item.name == NULL || item.value != NULL ? "query" : item.name,
                                 item.value == NULL ? "the query is not valid percent-encoded UTF-8"
                                                    : "the query has too many parameters");
            query_done(&q);
            return -EINVAL;
        }
        q.items[q.count++] = item;
    }
    *ret_query = q;
    return 0;
}

void query_done(struct query *query)
{
    free(query->text);
    query->text = NULL;
    query->count = 0;
}

/* Whether one word of `allowed` takes this name. *ret_many: it may come again. */
static bool is_allowed(const char *allowed, const char *name, bool *ret_many)
{
    struct span rest = span_of_str(allowed);

    while (rest.n > 0) {
        struct span word = span_head(rest, span_find(rest, 0, ' '));

        rest = span_skip(rest, word.n + 1);
        *ret_many = word.n > 0 && word.p[word.n - 1] == '*';
        if (*ret_many) {
            word = span_head(word, word.n - 1);
        }
        if (span_equals_str(word, name)) {
            return true;
        }
        if (*ret_many && word.n > 0 && word.p[word.n - 1] == '.' && strlen(name) > word.n &&
            memcmp(word.p, name, word.n) == 0) {
            *ret_many = false;
            return true;
        }
    }
    return false;
}

int query_check(const struct query *query, const char *allowed, struct error *err)
{
    for (size_t i = 0; i < query->count; i++) {
        const char *name = query->items[i].name;
        bool many;

        if (!is_allowed(allowed, name, &many)) {
            return error_set_code(err, ERROR_INVALID_REQUEST, name[0] == '\0' ? "query" : name,
                                  "unknown query parameter %.60s", name);
        }
        for (size_t k = 0; k < i && !many; k++) {
            if (strcmp(query->items[k].name, name) == 0) {
                return error_set_code(err, ERROR_INVALID_REQUEST, name, "%.60s comes twice", name);
            }
        }
    }
    return 0;
}

const char *query_find(const struct query *query, const char *name)
{
    for (size_t i = 0; i < query->count; i++) {
        if (strcmp(query->items[i].name, name) == 0) {
            return query->items[i].value;
        }
    }
    return NULL;
}

int query_duration_ms(
    const struct query *query, const char *name, int64_t max_ms, int64_t *value, struct error *err)
{
    const char *text = query_find(query, name);
    struct span all;
    struct span fraction;
    uint64_t seconds;
    uint64_t part = 0;
    uint64_t scale = 1000;
    size_t dot;

    if (text == NULL) {
        return 0;
    }
    all = span_of_str(text);
    dot = span_find(all, 0, '.');
    fraction = span_head(span_skip(all, dot + 1), 3);
    if (span_parse_u64(span_head(all, dot), 1000000, &seconds) < 0 ||
        (dot < all.n &&
         (all.n - dot > 12 || span_parse_u64(span_skip(all, dot + 1), UINT64_MAX, &part) < 0))) {
        return error_set_code(err, ERROR_INVALID_REQUEST, name,
                              "%s must be a number of seconds, got %.40s", name, text);
    }
    part = 0;
    for (size_t i = 0; i < fraction.n; i++) {
        scale /= 10;
        part += (uint64_t)(fraction.p[i] - '0') * scale;
    }
    if ((int64_t)(seconds * 1000 + part) > max_ms) {
        return error_set_code(err, ERROR_INVALID_REQUEST, name,
                              "%s must be between 0 and %" PRId64 " seconds, got %.40s", name,
                              max_ms / 1000, text);
    }
    *value = (int64_t)(seconds * 1000 + part);
    return 0;
}

int query_unsigned(const struct query *query,
                   const char *name,
                   uint64_t min,
                   uint64_t max,
                   uint64_t *value,
                   struct error *err)
{
    const char *text = query_find(query, name);
    uint64_t number;

    if (text == NULL) {
        return 0;
    }
    if (span_parse_u64(span_of_str(text), max, &number) < 0 || number < min) {
        return error_set_code(err, ERROR_INVALID_REQUEST, name,
                              "%s must be between %" PRIu64 " and %" PRIu64 ", got %.40s", name,
                              min, max, text);
    }
    *value = number;
    return 0;
}

int query_time(const struct query *query, const char *name, int64_t *value, struct error *err)
{
    const char *text = query_find(query, name);

    if (text == NULL) {
        return 0;
    }
    if (clock_parse(text, value) < 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, name,
                              "%s must be an RFC 3339 time such as 2026-01-31T12:00:00Z, got %.60s",
                              name, text);
    }
    return 0;
}

bool query_pair_is(struct span pair, const char *name)
{
    struct span encoded = span_head(pair, span_find(pair, 0, '='));
    char decoded[3 * 31 + 1];

    return encoded.n < sizeof(decoded) && percent_decode(encoded, true, decoded) >= 0 &&
           strcmp(decoded, name) == 0;
}
