/* Tar archives: ustar with pax headers, as written and as read; GNU long names are read too.
 *
 * Refused (-EBADMSG): sparse entries of any kind, incremental and multi-volume ones, bad checksums,
 * an archive that ends without its mark, and anything but zeros behind that. What a pax header says
 * of owners, access lists or comments is passed over. Whether a name is safe to use is for the
 * caller to judge. */
#pragma once

#include "base/buf.h"
#include "base/span.h"

#define TAR_BLOCK_BYTES 512U
#define TAR_NAME_BYTES  32000U  /* of a name, and of a link's target */
#define TAR_EXTRA_MAX   262144U /* of one pax header or GNU long name */

enum tar_type {
    TAR_FILE = '0',
    TAR_HARD_LINK = '1',
    TAR_SYMLINK = '2',
    TAR_CHARACTER_DEVICE = '3',
    TAR_BLOCK_DEVICE = '4',
    TAR_DIRECTORY = '5',
    TAR_FIFO = '6',
};

struct tar_entry {
    uint8_t type;       /* enum tar_type */
    struct span name;   /* never empty; no NUL */
    struct span target; /* of links */
    uint32_t mode;      /* 07777 */
    uint32_t uid;
    uint32_t gid;
    struct span user; /* "" or at most 31 bytes; not read */
    struct span group;
    uint64_t size_bytes; /* of a file's content, which follows */
    int64_t modified_s;  /* since 1970 */
    uint32_t major;      /* of a device; not read */
    uint32_t minor;
};

/* Appends what stands before the content. Fields over their limits make b fail: -EMSGSIZE. */
void tar_entry_format(struct buf *b, const struct tar_entry *e);
/* Zeros that follow a content of that size. */
size_t tar_padding(uint64_t size_bytes);
/* Appends the mark of the end. */
void tar_end_format(struct buf *b);

enum tar_event {
    TAR_MORE = 0,    /* all bytes are used up */
    TAR_ENTRY = 1,   /* an entry begins */
    TAR_CONTENT = 2, /* bytes of the file that began last */
};

struct tar_parser {
    uint8_t state;
    uint8_t extra_type;
    bool has_ended;
    bool has_size; /* a pax header gave one */
    bool has_time;
    uint8_t block[TAR_BLOCK_BYTES];
    size_t filled;
    uint64_t left;    /* of content or of a header's extra bytes */
    uint64_t padding; /* behind it */
    struct buf extra;
    struct buf name; /* from the headers before an entry */
    struct buf target;
    uint64_t size_bytes;
    int64_t modified_s;
};

void tar_parser_init(struct tar_parser *p);
void tar_parser_done(struct tar_parser *p);
/* Takes bytes off *bytes until something is to be told (enum tar_event): TAR_ENTRY fills
 * *ret_entry, valid until the next call, TAR_CONTENT *ret_content. -EBADMSG, -EMSGSIZE (a name or
 * header that is too long) or -ENOMEM; then the parser is of no use any more. */
int tar_parser_next(struct tar_parser *p,
                    struct span *bytes,
                    struct tar_entry *ret_entry,
                    struct span *ret_content) _must_check_;
/* Whether the archive may end here: 0 or -EBADMSG. */
int tar_parser_finish(const struct tar_parser *p) _must_check_;
