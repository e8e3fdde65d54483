/* Lines of QEMU's control protocol (QMP), as received from a VMM that may be compromised.
 *
 * Pure: bytes in, one classified message out. Anything that is not one of the four known shapes is
 * refused; the connection is then given up. */
#pragma once

#include <stdint.h>

#include <jansson.h>

#include "base/cleanup.h"
#include "base/span.h"

#define QMP_LINE_MAX (256U * 1024U) /* the largest is 64 KiB of console as base64 */

enum qmp_kind {
    QMP_KIND_GREETING,
    QMP_KIND_EVENT,
    QMP_KIND_RETURN,
    QMP_KIND_ERROR
};

struct qmp_message {
    enum qmp_kind kind;
    uint64_t id;      /* of RETURN and ERROR */
    const char *name; /* the event's name, or the error's text; lives in root */
    json_t *body;     /* the returned value or the event's data; NULL if none; lives in root */
    json_t *root;     /* owned */
};

/* Finds the first line in s: bytes used > 0 and the line without its end, 0 when it is not complete
 * yet, -EMSGSIZE when it is longer than QMP_LINE_MAX. */
int qmp_split_line(struct span s, struct span *ret_line) _must_check_;
/* 0 or -EBADMSG. */
int qmp_parse_line(struct span line, struct qmp_message *ret_message) _must_check_;
void qmp_message_done(struct qmp_message *message);
/* A string in a JSON object, or NULL. */
const char *qmp_string(const json_t *object, const char *key);
