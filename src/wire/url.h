/* Paths and queries of request targets: strict percent-decoding and encoding. */
#pragma once

#include "base/cleanup.h"
#include "base/span.h"

struct buf;

struct url_pair {
    struct span name;  /* still encoded */
    struct span value; /* still encoded; empty without '=' */
    bool has_value;
};

/* Decodes %XX into out with a final NUL; with `plus_is_blank`, '+' too (queries). Returns the
 * length, -EBADMSG for a bad escape or a NUL byte, -EMSGSIZE when it does not fit. The result may
 * be any other bytes. */
int url_decode(struct span text, bool plus_is_blank, char *out, size_t out_size) _must_check_;
/* Takes the next segment off a path that begins with '/': 1 and the segment between two slashes
 * (still encoded, maybe empty), or 0 at the end; "/a/" has the segments "a" and "". */
int url_path_next(struct span *path, struct span *ret_segment);
/* Takes the next pair off a query: 1, 0 at the end, -EBADMSG for an empty pair or name. */
int url_query_next(struct span *query, struct url_pair *ret_pair) _must_check_;
/* The decoded value of the only pair with this name. Its length, -ENOENT without one, -EEXIST for
 * more than one, -EBADMSG for a malformed query or value, -EMSGSIZE. */
int url_query_get(struct span query, const char *name, char *out, size_t out_size) _must_check_;
/* Appends text with everything but letters, digits and -._~ escaped; '/' too unless kept. */
void url_encode(struct buf *out, struct span text, bool keep_slash);
