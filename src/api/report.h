/* What the node says about a sandbox: the record S of the node protocol. */
#pragma once

#include <jansson.h>

#include "api/store_sandbox.h"

struct sandbox_report {
    char id[ID_SIZE];
    bool deleted; /* state "deleted", of the feed only */
    enum sandbox_state state;
    char reason_code[64];
    char reason_message[320];
    char template_version[ID_SIZE];
    int64_t vcpus;
    int64_t memory_mib;
    int64_t disk_mib;
    int64_t running_at;
    int64_t active_at;
    char manifest[SANDBOX_MANIFEST_SIZE]; /* of its snapshot in the object store; "": none */
    const json_t *identity;               /* borrowed from the parsed object, NULL for none */
};

/* 0 or -EBADMSG. `record` must outlive the report. */
int report_read(const json_t *record, struct sandbox_report *ret_report) _must_check_;
/* Copies what the node knows better into the record. 1 when something changed, 0, -ENOMEM. */
int report_apply(const struct sandbox_report *report, struct sandbox *sandbox) _must_check_;

/* A failure that the feed told while the answer of a call was on its way. The answer may be older:
 * the two come on different connections. All zero: none. */
struct sandbox_loss {
    bool is_known;
    char code[64];
    char message[320];
};
void report_note_loss(const struct sandbox_report *report, struct sandbox_loss *loss);
/* To be called behind report_apply. Whether the record has changed. */
bool report_apply_loss(const struct sandbox_loss *loss, struct sandbox *sandbox);
