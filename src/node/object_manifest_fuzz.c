/* Any manifest. One that is taken adds up, and is the same when it is formatted again. */
#include "node/object_manifest.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

static void check_file(const struct object_file *f)
{
    uint64_t pieces = 0;
    uint64_t chunks = 0;
    uint64_t next = 0;

    require(object_name_is_valid(f->name));
    for (uint32_t i = 0; i < f->piece_count; i++) {
        require(f->pieces[i].offset >= next && f->pieces[i].bytes > 0);
        next = f->pieces[i].offset + f->pieces[i].bytes;
        pieces += f->pieces[i].bytes;
    }
    require(next <= f->bytes);
    for (uint32_t i = 0; i < f->chunk_count; i++) {
        require(f->chunks[i].bytes > 0 && f->chunks[i].bytes <= OBJECT_CHUNK_MAX);
        chunks += f->chunks[i].bytes;
    }
    require(pieces == chunks);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_buf_ struct buf again = buf_make(0);
    struct object_manifest m;

    if (object_manifest_parse(span_make(data, size), &m) < 0) {
        return 0;
    }
    for (uint32_t i = 0; i < m.file_count; i++) {
        check_file(&m.files[i]);
    }
    require(object_manifest_format(&m, &again) == 0);
    require(span_equals(buf_span(&again), span_make(data, size)));
    object_manifest_done(&m);
    return 0;
}
