/* Records that a service of the agent answers with (docs/agent-protocol.md, section 7; the numbers
 * are there), for both ends.
 *
 * service_record_next cuts the next record off a stream; X_parse gives 0 or -EBADMSG (trailing
 * bytes and values out of range too), X_format appends one record (fields over their limits make b
 * fail: -EMSGSIZE). Spans point into the input; strings hold any bytes but NUL. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/span.h"

#define SERVICE_RECORD_HEAD_BYTES 5U
#define SERVICE_RECORD_MAX        65536U /* payload */
#define SERVICE_LENGTH_UNKNOWN    UINT64_MAX
/* Of a path in a record: longer than PATH_MAX, since a walk goes down by descriptors. Two of them
 * fit in a record. */
#define SERVICE_PATH_BYTES   32000U
#define SERVICE_TARGET_BYTES 4096U
#define SERVICE_NAME_BYTES   256U /* of a user or group */
#define SERVICE_ERRNO_MAX    4095U

enum service_record_type {
    SERVICE_RECORD_ENTRY = 1,
    SERVICE_RECORD_ERROR = 2,
    SERVICE_RECORD_BODY = 3,
    SERVICE_RECORD_DONE = 4,
    SERVICE_RECORD_CHANGE = 5,
    SERVICE_RECORD_LISTENER = 6,
    SERVICE_RECORD_SAMPLE = 7,
};

enum service_entry_type {
    SERVICE_ENTRY_FILE = 1,
    SERVICE_ENTRY_DIRECTORY = 2,
    SERVICE_ENTRY_SYMLINK = 3,
    SERVICE_ENTRY_OTHER = 4,
};

enum service_change_kind {
    SERVICE_CHANGE_CREATED = 1,
    SERVICE_CHANGE_MODIFIED = 2,
    SERVICE_CHANGE_DELETED = 3,
    SERVICE_CHANGE_MOVED = 4,
    SERVICE_CHANGE_OVERFLOW = 5,
};

struct service_record {
    uint8_t type;
    struct span payload;
};

struct service_entry {
    struct span path; /* absolute */
    uint8_t type;     /* enum service_entry_type */
    uint64_t size_bytes;
    uint32_t mode; /* 07777 */
    uint32_t uid;
    uint32_t gid;
    struct span user; /* "" when it has no name */
    struct span group;
    uint64_t modified_ns; /* since 1970 */
    struct span symlink_target;
};

struct service_error {
    uint32_t errnum; /* 1 to 4095 */
    struct span path;
};

struct service_body {
    uint64_t offset;
    uint64_t length; /* SERVICE_LENGTH_UNKNOWN: until the stream ends */
};

struct service_done {
    uint64_t count;
    bool more;
};

struct service_change {
    uint8_t kind; /* enum service_change_kind */
    bool is_directory;
    struct span path;
    struct span from; /* of a move */
};

struct service_listener {
    uint16_t port; /* 1 to 65535 */
    uint8_t family;
    uint8_t address[16];
    uint32_t pid;
};

struct service_sample {
    uint64_t cpu_ns;
    uint64_t memory_total_bytes;
    uint64_t memory_used_bytes;
    uint64_t disk_total_bytes;
    uint64_t disk_used_bytes;
    uint32_t processes;
};

/* Bytes used (> 0) with *ret, 0: more bytes are needed, -EBADMSG: no such type or too long. */
int service_record_next(struct span bytes, struct service_record *ret) _must_check_;

int service_entry_parse(struct span payload, struct service_entry *ret) _must_check_;
void service_entry_format(struct buf *b, const struct service_entry *m);
int service_error_parse(struct span payload, struct service_error *ret) _must_check_;
void service_error_format(struct buf *b, const struct service_error *m);
int service_body_parse(struct span payload, struct service_body *ret) _must_check_;
void service_body_format(struct buf *b, const struct service_body *m);
int service_done_parse(struct span payload, struct service_done *ret) _must_check_;
void service_done_format(struct buf *b, const struct service_done *m);
int service_change_parse(struct span payload, struct service_change *ret) _must_check_;
void service_change_format(struct buf *b, const struct service_change *m);
int service_listener_parse(struct span payload, struct service_listener *ret) _must_check_;
void service_listener_format(struct buf *b, const struct service_listener *m);
int service_sample_parse(struct span payload, struct service_sample *ret) _must_check_;
void service_sample_format(struct buf *b, const struct service_sample *m);
