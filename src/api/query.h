/* The query string and percent-encoded path segments: strict decoding, every failure names the
 * parameter. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "base/span.h"

#define QUERY_TEXT_MAX  16384 /* a path of 4096 bytes, each escaped, and more */
#define QUERY_ITEMS_MAX 64

struct query_item {
    const char *name;
    const char *value;
};

struct query {
    struct query_item items[QUERY_ITEMS_MAX];
    size_t count;
    char *text; /* decoded, owned */
};

/* Decodes one run of bytes: complete escapes, no control characters, UTF-8. `plus`: '+' is a
 * blank. Returns the length, or -EBADMSG; out is NUL-terminated and at least in.n + 1 bytes. */
int percent_decode(struct span in, bool plus, char *out) _must_check_;

/* `any_bytes`: the parameters `path` and `exclude`, which name files, may be anything but NUL. */
int query_parse(const char *text, bool any_bytes, struct query *ret_query, struct error *err)
    _must_check_;
void query_done(struct query *query);
/* Refuses every parameter that `allowed` does not name ("limit cursor state* metadata.*": a name
 * with * at its end may come more than once, one with .* is a prefix). */
int query_check(const struct query *query, const char *allowed, struct error *err) _must_check_;
/* Whether one encoded pair of a query has this name (of at most 31 characters). */
bool query_pair_is(struct span pair, const char *name);
/* The value, or NULL. */
const char *query_find(const struct query *query, const char *name);
/* A number of seconds, fractions allowed, as milliseconds. */
int query_duration_ms(const struct query *query,
                      const char *name,
                      int64_t max_ms,
                      int64_t *value, /* holds the default */
                      struct error *err) _must_check_;
int query_unsigned(const struct query *query,
                   const char *name,
                   uint64_t min,
                   uint64_t max,
                   uint64_t *value, /* holds the default */
                   struct error *err) _must_check_;
/* An RFC 3339 time as milliseconds. */
int query_time(const struct query *query, const char *name, int64_t *value, struct error *err)
    _must_check_;
