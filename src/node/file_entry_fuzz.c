/* Entries of a guest's filesystem on their way to a client: whatever a guest calls its files, the
 * answer is JSON, and the bytes of each name can be had from it. */
#include "node/file_entry.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "io/json_request.h"
#include "node/base64.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

static void
check_name(const json_t *entry, const char *key, const char *base64_key, struct span want)
{
    const json_t *coded = json_object_get(entry, base64_key);
    const json_t *text = json_object_get(entry, key);
    _cleanup_buf_ struct buf bytes = buf_make(0);

    require(json_is_string(text));
    if (json_is_null(coded)) {
        require(span_equals(span_make(json_string_value(text), json_string_length(text)), want));
        return;
    }
    require(base64_parse(span_of_str(json_string_value(coded)), &bytes) == 0 &&
            span_equals(buf_span(&bytes), want));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_json_ json_t *made = NULL;
    _cleanup_json_ json_t *read = NULL;
    _cleanup_buf_ struct buf text = buf_make(0);
    struct service_entry entry;

    if (service_entry_parse(span_make(data, size), &entry) < 0) {
        return 0;
    }
    made = file_entry_describe(&entry);
    require(made != NULL);
    json_write(made, &text);
    read = json_loadb((const char *)text.p, text.n, 0, NULL);
    require(read != NULL && json_equal(made, read) == 1);
    check_name(read, "path", "path_base64", entry.path);
    return 0;
}
