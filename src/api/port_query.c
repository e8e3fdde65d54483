#include "api/port_query.h"

#include "api/key_text.h"
#include "wire/url.h"

#define TOKEN_PREFIX        "spt_"
#define TOKEN_PREFIX_LENGTH 4
#define NAME_SIZE           16 /* decoded; a longer name is not `token` */

bool port_credential_is_ours(struct span text)
{
    char key[KEY_TEXT_SIZE];

    return span_equals_str(span_head(text, TOKEN_PREFIX_LENGTH), TOKEN_PREFIX) ||
           (span_copy_str(text, key, sizeof(key)) == 0 && key_text_is_valid(key));
}

/* Whether a pair of the query holds a credential of ours, which is decoded into out. */
static bool is_token(struct span pair, char out[PORT_TOKEN_SIZE])
{
    size_t equals = span_find(pair, 0, '=');
    char name[NAME_SIZE];
    int n;

    if (url_decode(span_head(pair, equals), true, name, sizeof(name)) < 0 ||
        strcmp(name, "token") != 0) {
        return false;
    }
    n = url_decode(span_skip(pair, equals + 1), true, out, PORT_TOKEN_SIZE);
    return n > 0 && port_credential_is_ours(span_make(out, (size_t)n));
}

bool port_query_strip(struct span query, struct buf *out, char ret_token[PORT_TOKEN_SIZE])
{
    bool stripped = false;
    bool first = true;
    size_t at = 0;

    ret_token[0] = '\0';
    while (at <= query.n && query.n > 0) {
        size_t end = span_find(query, at, '&');
        struct span pair = span_skip(span_head(query, end), at);
        char token[PORT_TOKEN_SIZE];

        at = end + 1;
        if (is_token(pair, token)) {
            if (!stripped) {
                memcpy(ret_token, token, sizeof(token));
            }
            stripped = true;
            continue;
        }
        buf_put_str(out, first ? "" : "&");
        buf_put(out, pair);
        first = false;
    }
    return stripped;
}

bool port_url_strip(struct span url, struct buf *out)
{
    _cleanup_buf_ struct buf query = buf_make(0);
    size_t question = span_find(url, 0, '?');
    char token[PORT_TOKEN_SIZE];
    bool stripped = port_query_strip(span_skip(url, question + 1), &query, token);

    if (!stripped) {
        buf_put(out, url);
        return false;
    }
    buf_put(out, span_head(url, question));
    if (query.n > 0) {
        buf_put_str(out, "?");
        buf_put(out, buf_span(&query));
    }
    if (buf_error(&query) < 0) {
        out->error = buf_error(&query);
    }
    return true;
}
