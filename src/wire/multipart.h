/* multipart/form-data (RFC 7578) as a stream: parts with a name, some with a filename, and content
 * of any length that is handed on as it comes.
 *
 * Strict: the body begins with the first boundary and ends with the last one (and one line end at
 * most), lines end with CR LF, a part has one Content-Disposition of `form-data` with a name, and
 * no transfer encoding. In names %22, %0D and %0A stand for a quote and line ends, as browsers and
 * clients write them; a backslash is a backslash. `filename*` is refused, as that RFC says.
 * What a line begins with the boundary must be one. Nothing of the result depends on how the bytes
 * are cut into pieces, but where data is cut. */
#pragma once

#include <stdbool.h>

#include "base/cleanup.h"
#include "base/span.h"

#define MULTIPART_BOUNDARY_MAX  70
#define MULTIPART_HEAD_MAX      8192 /* of one part, its final empty line included */
#define MULTIPART_FIELDS_MAX    16   /* headers of one part */
#define MULTIPART_NAME_SIZE     256
#define MULTIPART_FILENAME_SIZE 4097

enum multipart_event {
    MULTIPART_NONE, /* all input is used, give more */
    MULTIPART_PART, /* a part begins: its name and filename are there */
    MULTIPART_DATA, /* some of its content */
    MULTIPART_PART_END,
    MULTIPART_END, /* the last boundary */
};

enum multipart_state {
    MULTIPART_AFTER_BOUNDARY,
    MULTIPART_AFTER_CR,   /* of the line of a boundary */
    MULTIPART_AFTER_DASH, /* of the last one */
    MULTIPART_IN_HEAD,
    MULTIPART_IN_DATA,
    MULTIPART_AT_FIRST, /* in the boundary that the body begins with */
    MULTIPART_AFTER_LAST,
    MULTIPART_AFTER_LAST_CR,
    MULTIPART_AT_END,
    MULTIPART_BROKEN,
};

struct multipart {
    enum multipart_state state;
    char delimiter[4 + MULTIPART_BOUNDARY_MAX + 1]; /* CR LF -- boundary */
    size_t delimiter_n;
    size_t matched; /* bytes of it that the input has ended with */
    char head[MULTIPART_HEAD_MAX + 1];
    size_t head_n;
    const char *fault; /* why it is refused; NULL: not */

    /* Of the part. */
    char name[MULTIPART_NAME_SIZE];
    bool has_filename;
    char filename[MULTIPART_FILENAME_SIZE]; /* any bytes but NUL */
};

/* Reads the boundary from a Content-Type's value. 0, or -EBADMSG with a fault when it is none of
 * multipart/form-data. */
int multipart_init(struct multipart *m, struct span content_type) _must_check_;
/* Takes the next event: returns the number of bytes used, maybe 0 when the event is not
 * MULTIPART_NONE; -EBADMSG (malformed) or -EMSGSIZE (a limit) with a fault, for good. The data of
 * MULTIPART_DATA is never empty and good until the next call. */
int multipart_next(struct multipart *m,
                   struct span in,
                   enum multipart_event *ret_event,
                   struct span *ret_data) _must_check_;
/* The input has ended: 0, or -EBADMSG when that was too early. */
int multipart_finish(struct multipart *m) _must_check_;
