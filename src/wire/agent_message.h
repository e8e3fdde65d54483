/* Payloads of the agent protocol for the guest as a whole, for both directions; the messages of one
 * process are in agent_process.h.
 *
 * X_parse takes a frame whose type the caller has switched on, checks every field, limit, flag and
 * the end of the payload, and returns 0 or -EBADMSG; spans in the result are borrowed from the
 * frame. X_format appends one whole frame to b (errors stick in b, as always with struct buf). */
#pragma once

#include "wire/agent_frame.h"

/* A counted list of strings in its wire form: `count` blocks (u32 length, bytes) in `raw`. Build
 * `raw` with buf_put_block. After a parse, the list is known to be well formed. */
struct agent_strings {
    uint32_t count;
    struct span raw;
};

/* Takes the next string off *rest (start with list.raw). False at the end. */
bool agent_strings_next(struct span *rest, struct span *ret_string);

/* ---- connection ---- */

#define AGENT_WELCOME_IDENTITY  1U /* an identity was confirmed before */
#define AGENT_WELCOME_PROCESSES 2U
#define AGENT_WELCOME_SILENT    4U
#define AGENT_WELCOME_TIME      8U /* its WAKE has the time; agents of 0.1.0 take an id alone */

struct agent_hello {
    uint8_t nonce[AGENT_NONCE_BYTES];
    uint16_t version;
    uint16_t flags;
};

struct agent_welcome {
    uint8_t nonce[AGENT_NONCE_BYTES];
    uint16_t version;
    uint16_t flags; /* AGENT_WELCOME_ */
    uint64_t epoch;
    uint8_t boot_id[AGENT_ID_BYTES];
};

int agent_hello_parse(const struct agent_frame *f, struct agent_hello *ret) _must_check_;
void agent_hello_format(struct buf *b, const struct agent_hello *m);
int agent_welcome_parse(const struct agent_frame *f, struct agent_welcome *ret) _must_check_;
void agent_welcome_format(struct buf *b, const struct agent_welcome *m);

/* SILENCE, POWEROFF, PING, PONG and RESET carry an id and, SILENCE only, flags. */
#define AGENT_SILENCE_FREEZE 1U
#define AGENT_SILENCE_SYNC   2U

int agent_id_parse(const struct agent_frame *f, uint32_t *ret_id) _must_check_;
void agent_id_format(struct buf *b, uint8_t type, uint8_t flags, uint32_t id);

struct agent_wake {
    uint32_t id;
    uint64_t realtime_ns; /* the wall clock */
};

int agent_wake_parse(const struct agent_frame *f, struct agent_wake *ret) _must_check_;
void agent_wake_format(struct buf *b, const struct agent_wake *m);

/* ---- identity ---- */

#define AGENT_IDENTITY_ENTROPY    1U
#define AGENT_IDENTITY_CLOCK      2U
#define AGENT_IDENTITY_HOSTNAME   4U
#define AGENT_IDENTITY_MACHINE_ID 8U
#define AGENT_IDENTITY_TOKENS     16U
#define AGENT_IDENTITY_DISK       32U
#define AGENT_IDENTITY_BOOT_ID    64U
#define AGENT_IDENTITY_ENV        128U
#define AGENT_IDENTITY_ALL        255U

struct agent_identity {
    uint32_t id;
    uint64_t epoch;
    struct span entropy; /* AGENT_ENTROPY_BYTES */
    uint64_t realtime_ns;
    struct span hostname;
    uint8_t machine_id[AGENT_ID_BYTES];
    uint8_t boot_id[AGENT_ID_BYTES];
    struct agent_strings env;
    uint64_t disk_bytes; /* 0: leave the disk */
};

struct agent_identity_ok {
    uint32_t id;
    uint64_t epoch;
    uint32_t done;   /* AGENT_IDENTITY_; good only when it is AGENT_IDENTITY_ALL */
    uint32_t errnum; /* of the first failure */
};

int agent_identity_parse(const struct agent_frame *f, struct agent_identity *ret) _must_check_;
void agent_identity_format(struct buf *b, const struct agent_identity *m);
int agent_identity_ok_parse(const struct agent_frame *f, struct agent_identity_ok *ret)
    _must_check_;
void agent_identity_ok_format(struct buf *b, const struct agent_identity_ok *m);

/* ---- files ---- */

#define AGENT_WRITE_FILE_CREATE 1U /* truncate first and make missing parents */

struct agent_write_file {
    uint32_t id;
    struct span path; /* absolute */
    uint32_t mode;
    uint32_t uid;
    uint32_t gid;
    uint64_t offset;
    struct span bytes;
    bool create;
};

int agent_write_file_parse(const struct agent_frame *f, struct agent_write_file *ret) _must_check_;
void agent_write_file_format(struct buf *b, const struct agent_write_file *m);
