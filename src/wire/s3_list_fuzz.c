/* A page of a bucket's list, as any server may send it. Each step takes something away, and what is
 * taken fits and ends. */
#include "wire/s3_list.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_uploads(struct span body)
{
    struct s3_list list;
    struct s3_upload upload;
    size_t before;

    if (s3_uploads_parse(body, &list) < 0) {
        return;
    }
    before = list.rest.n;
    while (s3_uploads_next(&list, &upload) == 1) {
        if (list.rest.n >= before || upload.key[0] == '\0' || upload.id[0] == '\0' ||
            strnlen(upload.id, sizeof(upload.id)) == sizeof(upload.id)) {
            abort();
        }
        before = list.rest.n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span body = span_make(data, size);
    struct s3_list list;
    struct s3_object object;
    char text[64];
    size_t before;

    if (s3_text_parse(body, "Code", text, sizeof(text)) == 0 && strnlen(text, sizeof(text)) == 0) {
        abort();
    }
    try_uploads(body);
    if (s3_list_parse(body, &list) < 0) {
        return 0;
    }
    if (list.is_truncated == (list.token[0] == '\0')) {
        abort();
    }
    before = list.rest.n;
    while (s3_list_next(&list, &object) == 1) {
        if (list.rest.n >= before || object.key[0] == '\0' ||
            strnlen(object.key, sizeof(object.key)) == sizeof(object.key)) {
            abort();
        }
        before = list.rest.n;
    }
    return 0;
}
