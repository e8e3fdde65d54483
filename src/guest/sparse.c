#include "guest/sparse.h"

#include "base/fd.h"

#define HOLE_BYTES 4096U

static bool is_zero(const uint8_t *p, size_t n)
{
    return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

int sparse_write(int fd, uint64_t offset, struct span bytes)
{
    size_t from = 0; /* not written yet, and no hole */
    size_t at = 0;
    int r;

    while (at < bytes.n) {
        /* Blocks of the file, wherever the pieces of the content begin. A part of one may be left
         * out too: what was never written reads as zeros. */
        size_t block = HOLE_BYTES - (size_t)((offset + at) % HOLE_BYTES);
        bool hole;

        block = block < bytes.n - at ? block : bytes.n - at;
        hole = is_zero(&bytes.p[at], block);
        if (hole && at > from) {
            r = fd_pwrite_all(fd, span_make(&bytes.p[from], at - from), (off_t)(offset + from));
            if (r < 0) {
                return r;
            }
        }
        at += block;
        from = hole ? at : from;
    }
    if (from == bytes.n) {
        return 1;
    }
    return fd_pwrite_all(fd, span_skip(bytes, from), (off_t)(offset + from));
}
