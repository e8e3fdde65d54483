/* HTTP/1.0 and 1.1 messages: incremental, strict parsers for request and response heads and for
 * chunked bodies, and the formatter of what they accept. No allocation, no syscalls.
 *
 * Both parsers are byte machines, so a message cut anywhere gives the same result as in one piece.
 * They refuse what two implementations could read differently: bare CR or LF, folded lines, blanks
 * before a colon, control bytes, more than one Content-Length or one beside Transfer-Encoding, any
 * coding but exactly `chunked`, other versions, a missing or second Host. */
#pragma once

#include "base/cleanup.h"
#include "base/span.h"

struct buf;

#define HTTP1_MAX_METHOD_BYTES        32U
#define HTTP1_MAX_STATUS_TEXT_BYTES   256U
#define HTTP1_MAX_HEAD_BYTES          1048576U /* upper bound of the caller's own limit */
#define HTTP1_MAX_EXTENSION_BYTES     256U     /* of one chunk */
#define HTTP1_MAX_ALL_EXTENSION_BYTES 4096U    /* of one body */
#define HTTP1_MAX_TRAILER_BYTES       8192U
#define HTTP1_MAX_TRAILERS            64U
#define HTTP1_CHUNK_HEAD_SIZE         20U

enum http1_kind {
    HTTP1_REQUEST,
    HTTP1_RESPONSE
};

enum http1_target {
    HTTP1_TARGET_ORIGIN,    /* "/path?query" */
    HTTP1_TARGET_ABSOLUTE,  /* "http://host/path" */
    HTTP1_TARGET_AUTHORITY, /* "host:port", with CONNECT only */
    HTTP1_TARGET_ASTERISK,  /* "*", with OPTIONS only */
};

/* How a body is delimited. */
enum http1_body {
    HTTP1_BODY_NONE,
    HTTP1_BODY_LENGTH,
    HTTP1_BODY_CHUNKED,
    HTTP1_BODY_UNTIL_CLOSE, /* responses only */
};

/* Why a message was refused. */
enum http1_fault {
    HTTP1_FAULT_NONE,
    HTTP1_FAULT_METHOD,
    HTTP1_FAULT_TARGET,
    HTTP1_FAULT_VERSION,
    HTTP1_FAULT_STATUS,
    HTTP1_FAULT_LINE_END,
    HTTP1_FAULT_FIELD_NAME,
    HTTP1_FAULT_FIELD_VALUE,
    HTTP1_FAULT_FOLDED,
    HTTP1_FAULT_CONTENT_LENGTH,
    HTTP1_FAULT_TRANSFER_ENCODING,
    HTTP1_FAULT_FRAMING,
    HTTP1_FAULT_HOST,
    HTTP1_FAULT_EXPECT,
    HTTP1_FAULT_HEAD_SIZE,
    HTTP1_FAULT_FIELD_COUNT,
    HTTP1_FAULT_CHUNK_SIZE,
    HTTP1_FAULT_CHUNK_EXTENSION,
    HTTP1_FAULT_TRAILER,
};

/* A part of the head's bytes. The bytes may move between calls, so it is no pointer. */
struct http1_slice {
    uint32_t start;
    uint32_t n;
};

struct http1_field {
    struct http1_slice name;
    struct http1_slice value; /* without the blanks around it */
};

struct http1_head {
    enum http1_kind kind;
    struct http1_field *fields; /* the caller's array */
    unsigned int max_fields;
    unsigned int field_count;
    uint32_t max_bytes;

    /* Results, valid once the parse returned the head's length. */
    struct http1_slice method;
    struct http1_slice target;
    struct http1_slice status_text;
    struct http1_slice host; /* empty if none */
    enum http1_target target_form;
    int status;
    unsigned int minor;     /* of the version: 0 or 1 */
    int64_t content_length; /* -1 without one */
    bool is_chunked;
    bool is_keep_alive;
    bool expects_continue;
    bool wants_upgrade; /* Connection: upgrade and an Upgrade field */

    enum http1_fault fault;

    /* The machine's own. */
    unsigned int state;
    uint32_t position;
    uint32_t token_start;
    uint32_t token_end;
    unsigned int flags;
};

void http1_head_init(struct http1_head *head,
                     enum http1_kind kind,
                     struct http1_field *fields,
                     unsigned int max_fields,
                     size_t max_bytes);
/* `bytes` begins with the head's first byte and holds all that came so far; each call goes on
 * where the last one ended. Returns the head's length when it is complete, 0 when more is needed,
 * -EBADMSG, or -EMSGSIZE past max_bytes or max_fields (`fault` says why). */
int http1_head_parse(struct http1_head *head, struct span bytes) _must_check_;
/* The bytes of a slice of this head. */
struct span http1_slice_span(struct span bytes, struct http1_slice slice);
/* How the message's body is delimited. `is_bodiless`: a response to HEAD. */
enum http1_body http1_head_body(const struct http1_head *head, bool is_bodiless);
/* A sentence for the sender, without a final dot. */
const char *http1_fault_text(enum http1_fault fault);
/* What is at fault, for the sender: the name of the header, or of the part ("method", "target",
 * "version", "head", "headers", "body", "trailers"). */
const char *http1_fault_field(enum http1_fault fault);
/* The same of a head that was refused, whose `bytes` are those that the parse was given: a value
 * that is malformed is named by its header. */
struct span http1_head_fault_field(const struct http1_head *head, struct span bytes);

/* ---- chunked bodies ---- */
struct http1_chunks {
    unsigned int state;
    unsigned int digits;
    uint64_t remaining; /* of the chunk */
    uint32_t extension_bytes;
    uint32_t all_extension_bytes;
    uint32_t trailer_bytes;
    uint32_t trailer_count;
    bool is_over_limit;
    enum http1_fault fault;
};

void http1_chunks_init(struct http1_chunks *chunks);
/* Reads framing up to and including the next run of body bytes, which ret_data gets (it may be
 * empty). Returns the bytes used, 0 when there were none or the body is complete, -EBADMSG or
 * -EMSGSIZE. Trailers are checked and dropped. */
int http1_chunks_next(struct http1_chunks *chunks, struct span bytes, struct span *ret_data)
    _must_check_;
/* Whether the last chunk and the trailers were read. */
bool http1_chunks_is_done(const struct http1_chunks *chunks);

/* ---- formatting ---- */
/* Each appends to out, or appends nothing and returns -EBADMSG for what the parser would refuse. */
int http1_put_request_line(struct buf *out, struct span method, struct span target) _must_check_;
int http1_put_status_line(struct buf *out, int status) _must_check_;
int http1_put_field(struct buf *out, struct span name, struct span value) _must_check_;
void http1_put_end(struct buf *out);
/* "1f\r\n"; returns its length. The chunk's bytes and "\r\n" follow; 0 begins the last one. */
size_t http1_format_chunk_head(uint64_t size, char out[HTTP1_CHUNK_HEAD_SIZE]);
/* "OK"; "" for a status without a name. */
const char *http1_status_text(int status);
