/* How the bytes of a file or an archive travel, by the request.
 *
 * `?compression=none|gzip|zstd` (archives only) says what the bytes are: the archive itself is
 * packed. `Accept-Encoding: gzip` packs an answer for the way, unless a range is wanted or the
 * archive is packed already; `Content-Encoding: gzip` (or zstd) unpacks an upload, and does not go
 * together with `compression`. */
#pragma once

#include "base/error.h"

struct proxy_order;
struct request;

/* Fill the order's fields about packing. 0 or invalid_request. */
int encoding_of_answer(const struct request *rq, struct proxy_order *order, struct error *err)
    _must_check_;
int encoding_of_upload(const struct request *rq, struct proxy_order *order, struct error *err)
    _must_check_;
/* Whether an Accept-Encoding header's value wants gzip: named, and not with a quality of 0. */
bool encoding_accepts_gzip(const char *value);
