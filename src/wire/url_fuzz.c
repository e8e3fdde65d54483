/* Decoding, paths and queries: nothing is read past its end, what decodes comes back from the
 * encoder as the same bytes, and a query's pairs cover it. */
#include "wire/url.h"

#include <stdlib.h>

#include "base/buf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void check_decode(struct span text)
{
    _cleanup_buf_ struct buf encoded = buf_make(0);
    char out[512];
    char again[512];
    int n = url_decode(text, false, out, sizeof(out));

    if (n < 0) {
        return;
    }
    require((size_t)n <= text.n && strlen(out) == (size_t)n);
    url_encode(&encoded, span_make(out, (size_t)n), true);
    require(url_decode(buf_span(&encoded), false, again, sizeof(again)) == n);
    require(memcmp(out, again, (size_t)n) == 0);
}

static void check_path(struct span path)
{
    struct span segment;
    size_t total = 0;
    size_t n = path.n;

    while (url_path_next(&path, &segment) > 0) {
        total += segment.n + 1;
    }
    require(total == 0 || total == n);
}

static void check_query(struct span query)
{
    struct span rest = query;
    struct url_pair pair;
    size_t total = 0;
    char out[64];
    int r;

    while ((r = url_query_next(&rest, &pair)) > 0) {
        require(pair.name.n > 0);
        total += pair.name.n + pair.value.n + (pair.has_value ? 1 : 0) + 1;
    }
    require(r < 0 || query.n == 0 || total == query.n + 1);
    require(url_query_get(query, "a", out, sizeof(out)) <= (int)sizeof(out));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span bytes = span_make(data, size);

    check_decode(bytes);
    check_path(bytes);
    check_query(bytes);
    return 0;
}
