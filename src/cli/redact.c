#include "cli/redact.h"

#include <strings.h>

#include "base/buf.h"

#define KEY_MIN_TAIL     16U
#define NAME_MAX_LENGTH  64U
#define MIN_SECRET_BYTES 4U

/* What keys and tokens begin with. */
static const char *const own_prefixes[] = {"space_", "spt_"};

static const char *const telling_words[] = {
    "password", "passwd", "secret",  "token",   "credential", "authorization",
    "api_key",  "apikey", "private", "api-key", "cookie",
};

static bool is_name_byte(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

static size_t name_length(struct span s)
{
    size_t n = 0;

    while (n < s.n && is_name_byte(s.p[n])) {
        n++;
    }
    return n;
}

static bool starts_with(struct span s, const char *prefix)
{
    size_t n = strlen(prefix);

    return s.n >= n && strncasecmp((const char *)s.p, prefix, n) == 0;
}

static bool is_telling(struct span name)
{
    for (size_t at = 0; at < name.n; at++) {
        for (size_t i = 0; i < sizeof(telling_words) / sizeof(telling_words[0]); i++) {
            if (starts_with(span_skip(name, at), telling_words[i])) {
                return true;
            }
        }
    }
    return false;
}

static size_t skip_any(struct span s, size_t at, const char *bytes)
{
    while (at < s.n && s.p[at] != '\0' && strchr(bytes, s.p[at]) != NULL) {
        at++;
    }
    return at;
}

/* Length of a value that begins here: to its closing quote, or to a blank, comma or bracket. A
 * header's value (Authorization: Bearer x) goes to the end of the line. */
static size_t value_length(struct span s, uint8_t quote, bool to_line_end)
{
    size_t n = 0;

    while (n < s.n && s.p[n] != '\n') {
        if (quote != 0 && s.p[n] == '\\' && n + 1 < s.n) {
            n += 2;
            continue;
        }
        if (quote != 0 ? s.p[n] == quote
                       : !to_line_end && strchr(" \t,;)}]&", s.p[n]) != NULL && s.p[n] != '\0') {
            break;
        }
        n++;
    }
    return n < s.n ? n : s.n;
}

/* A telling name and its value at the front of s: how much to copy as it is, and how much of a
 * value to replace. 0 when there is none. */
static size_t match_assignment(struct span s, size_t name_bytes, size_t *ret_value)
{
    size_t at = skip_any(s, name_bytes, "\"'");
    uint8_t quote = 0;
    bool colon;

    if (name_bytes > NAME_MAX_LENGTH || !is_telling(span_head(s, name_bytes))) {
        return 0;
    }
    at = skip_any(s, at, " \t");
    if (at >= s.n || (s.p[at] != '=' && s.p[at] != ':')) {
        return 0;
    }
    colon = s.p[at] == ':';
    at = skip_any(s, at + 1, " \t");
    if (at < s.n && (s.p[at] == '"' || s.p[at] == '\'')) {
        quote = s.p[at];
        at++;
    }
    *ret_value = value_length(span_skip(s, at), quote, colon && quote == 0);
    return *ret_value > 0 ? at : 0;
}

/* A known secret, a key or a bearer value at the front of s: its length, `keep` of it stays. */
static size_t match_secret(struct span s, const char *const *secrets, size_t *ret_keep)
{
    *ret_keep = 0;
    for (size_t i = 0; secrets != NULL && secrets[i] != NULL; i++) {
        size_t n = strlen(secrets[i]);

        if (n >= MIN_SECRET_BYTES && s.n >= n && memcmp(s.p, secrets[i], n) == 0) {
            return n;
        }
    }
    for (size_t i = 0; i < sizeof(own_prefixes) / sizeof(own_prefixes[0]); i++) {
        size_t prefix = strlen(own_prefixes[i]);

        if (starts_with(s, own_prefixes[i])) {
            size_t n = name_length(s);

            *ret_keep = prefix;
            return n >= prefix + KEY_MIN_TAIL ? n : 0;
        }
    }
    if (starts_with(s, "bearer ")) {
        *ret_keep = 7;
        return 7 + value_length(span_skip(s, 7), 0, false);
    }
    return 0;
}

/* Length of a private key in PEM at the front of s, up to the end of the text when it is cut. */
static size_t match_pem(struct span s)
{
    static const char end_mark[] = "-----END";
    const uint8_t *end;
    size_t head = span_find(s, 0, '\n');

    if (!starts_with(s, "-----BEGIN") || memmem(s.p, head, "PRIVATE KEY", 11) == NULL) {
        return 0;
    }
    end = memmem(s.p, s.n, end_mark, sizeof(end_mark) - 1);
    return end == NULL ? s.n : span_find(s, (size_t)(end - s.p), '\n');
}

void redact_text(struct span text, const char *const *secrets, struct buf *out)
{
    bool in_name = false;

    while (text.n > 0) {
        size_t keep = 0;
        size_t value = 0;
        size_t whole = match_pem(text);

        if (whole == 0) {
            whole = match_secret(text, secrets, &keep);
        }
        if (whole == 0 && !in_name && is_name_byte(text.p[0])) {
            keep = match_assignment(text, name_length(text), &value);
            whole = keep > 0 ? keep + value : 0;
        }
        if (whole == 0) {
            in_name = is_name_byte(text.p[0]);
            buf_put(out, span_head(text, 1));
            text = span_skip(text, 1);
            continue;
        }
        buf_put(out, span_head(text, keep));
        buf_put_str(out, REDACT_MARK);
        text = span_skip(text, whole);
        in_name = false;
    }
}
