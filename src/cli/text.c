#include "cli/text.h"

#include <errno.h>
#include <inttypes.h>

#include "base/buf.h"

#define SECONDS_MAX 315360000U /* ten years */

struct unit {
    const char *suffix;
    uint64_t factor;
};

static const struct unit mib_units[] = {
    {"", 1},      {"m", 1},      {"mb", 1},      {"mib", 1},      {"g", 1024},
    {"gb", 1024}, {"gib", 1024}, {"t", 1048576}, {"tb", 1048576}, {"tib", 1048576},
};

static const struct unit second_units[] = {
    {"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400},
};

static size_t digits_length(struct span s)
{
    size_t n = 0;

    while (n < s.n && s.p[n] >= '0' && s.p[n] <= '9') {
        n++;
    }
    return n;
}

static uint64_t unit_factor(const struct unit *units, size_t count, struct span suffix)
{
    for (size_t i = 0; i < count; i++) {
        if (span_equals_nocase(suffix, units[i].suffix)) {
            return units[i].factor;
        }
    }
    return 0;
}

int text_parse_mib(const char *text, const char *name, uint64_t *ret_mib, struct error *err)
{
    struct span s = span_of_str(text);
    size_t n = digits_length(s);
    uint64_t number;
    uint64_t factor =
        unit_factor(mib_units, sizeof(mib_units) / sizeof(mib_units[0]), span_skip(s, n));

    if (span_parse_u64(span_head(s, n), UINT32_MAX, &number) < 0 || factor == 0 || number == 0) {
        return error_set(err, EINVAL, "--%s must be a size like 512 (MiB), 512m or 2g, got %.40s",
                         name, text);
    }
    *ret_mib = number * factor;
    return 0;
}

int text_parse_seconds(const char *text, const char *name, double *ret_seconds, struct error *err)
{
    struct span rest = span_of_str(text);
    size_t n = digits_length(rest);
    uint64_t whole = 0;
    uint64_t fraction = 0;
    double scale = 1;
    uint64_t factor;
    int r = span_parse_u64(span_head(rest, n), SECONDS_MAX, &whole);

    rest = span_skip(rest, n);
    if (r == 0 && rest.n > 0 && rest.p[0] == '.') {
        rest = span_skip(rest, 1);
        n = digits_length(rest);
        r = n > 9 ? -ERANGE : span_parse_u64(span_head(rest, n), UINT32_MAX, &fraction);
        for (size_t i = 0; i < n; i++) {
            scale *= 10;
        }
        rest = span_skip(rest, n);
    }
    factor = unit_factor(second_units, sizeof(second_units) / sizeof(second_units[0]), rest);
    if (r < 0 || factor == 0 || (whole == 0 && fraction == 0) || whole * factor > SECONDS_MAX) {
        return error_set(err, EINVAL, "--%s must be a time like 30 (seconds), 5m or 2h, got %.40s",
                         name, text);
    }
    *ret_seconds = ((double)whole + (double)fraction / scale) * (double)factor;
    return 0;
}

int text_parse_count(
    const char *text, const char *name, uint64_t max, uint64_t *ret_count, struct error *err)
{
    if (span_parse_u64(span_of_str(text), max, ret_count) < 0) {
        return error_set(err, EINVAL, "--%s must be a number up to %" PRIu64 ", got %.40s", name,
                         max, text);
    }
    return 0;
}

void text_format_age(int64_t age_ms, char out[TEXT_SHORT_SIZE])
{
    int64_t s = age_ms > 0 ? age_ms / 1000 : 0;

    if (s < 120) {
        (void)snprintf(out, TEXT_SHORT_SIZE, "%" PRId64 "s", s);
    } else if (s < 2 * 3600) {
        (void)snprintf(out, TEXT_SHORT_SIZE, "%" PRId64 "m", s / 60);
    } else if (s < 2 * 86400) {
        (void)snprintf(out, TEXT_SHORT_SIZE, "%" PRId64 "h", s / 3600);
    } else {
        (void)snprintf(out, TEXT_SHORT_SIZE, "%" PRId64 "d", s / 86400);
    }
}

static void format_size(double value, size_t unit, char out[TEXT_SHORT_SIZE])
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB"};

    while (value >= 1024 && unit < sizeof(names) / sizeof(names[0]) - 1) {
        value /= 1024;
        unit++;
    }
    if (value == (double)(uint64_t)value) {
        (void)snprintf(out, TEXT_SHORT_SIZE, "%.0f %s", value, names[unit]);
    } else {
        (void)snprintf(out, TEXT_SHORT_SIZE, "%.1f %s", value, names[unit]);
    }
}

void text_format_mib(uint64_t mib, char out[TEXT_SHORT_SIZE])
{
    format_size((double)mib, 2, out);
}

void text_format_bytes(uint64_t bytes, char out[TEXT_SHORT_SIZE])
{
    format_size((double)bytes, 0, out);
}

/* Length of the well-formed UTF-8 character at the front (no overlong forms, no surrogates), else
 * 0. C1 control characters count as malformed. */
static size_t utf8_length(struct span s)
{
    uint8_t first = s.p[0];
    size_t n = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;

    if (first > 0xf4 || n == 0 || n > s.n) {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if ((s.p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if ((first == 0xc2 && s.p[1] < 0xa0) || (first == 0xe0 && s.p[1] < 0xa0) ||
        (first == 0xed && s.p[1] > 0x9f) || (first == 0xf0 && s.p[1] < 0x90) ||
        (first == 0xf4 && s.p[1] > 0x8f)) {
        return 0;
    }
    return n;
}

void text_put_safe(struct buf *out, struct span text)
{
    while (text.n > 0) {
        size_t n = utf8_length(text);

        if (n == 0 || text.p[0] < 0x20 || text.p[0] == 0x7f) {
            buf_printf(out, "\\x%02x", (unsigned int)text.p[0]);
            n = 1;
        } else {
            buf_put(out, span_head(text, n));
        }
        text = span_skip(text, n);
    }
}

size_t text_width(const char *text)
{
    size_t n = 0;

    for (; *text != '\0'; text++) {
        n += ((unsigned char)*text & 0xc0) != 0x80 ? 1 : 0;
    }
    return n;
}

void text_put_shell_word(struct buf *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-./:=,@%+";

    if (word[0] != '\0' && word[strspn(word, plain)] == '\0') {
        buf_put_str(out, word);
        return;
    }
    buf_put_str(out, "'");
    for (const char *c = word; *c != '\0'; c++) {
        if (*c == '\'') {
            buf_put_str(out, "'\\''");
        } else {
            buf_put(out, span_make(c, 1));
        }
    }
    buf_put_str(out, "'");
}
