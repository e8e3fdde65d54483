/* What POST /v1/sandboxes and POST /v1/run have in common: the fields of a create, its limits, the
 * record, and the body for the node. */
#pragma once

#include <stdint.h>

#include "api/request.h"
#include "api/store_sandbox.h"
#include "io/json_request.h"

struct create_spec {
    const char *name; /* NULL: none; all borrowed from the body */
    char template_name[SANDBOX_NAME_SIZE];
    char template_version[ID_SIZE]; /* "": the current one */
    char checkpoint_id[ID_SIZE];    /* instead of template and sizes; "": none */
    int64_t vcpus;                  /* 0: the template's, for all three */
    int64_t memory_mib;
    int64_t disk_mib;
    json_t *env; /* NULL: none */
    json_t *metadata;
    struct lifecycle_rules rules;
    int count; /* of a fork */
};

/* The same for a create that may name a checkpoint instead of a template. */
void create_spec_read_any(struct json_fields *f, struct create_spec *ret_spec);
/* Reads the fields of a create; the caller finishes f. Failures stick in f. */
void create_spec_read(struct json_fields *f, struct create_spec *ret_spec);
/* NAME or NAME@VERSION: whether it is one; fills template_name and template_version. */
bool create_read_template(const char *text, struct create_spec *spec) _must_check_;
/* A `lifecycle` object, merged into *rules. Returns whether it had timeout_seconds. */
bool create_read_lifecycle(struct json_fields *f, struct lifecycle_rules *rules);
/* What a sandbox has that says nothing. */
struct lifecycle_rules create_default_rules(void);
/* The fields of a fork; spec has the rules of the source already, or some. */
void create_spec_read_fork(struct json_fields *f, struct create_spec *spec);
/* Checks names and values of metadata or env; null values are allowed when `merge`. */
void create_check_metadata(struct json_fields *f, json_t *metadata, bool merge);
void create_check_env(struct json_fields *f, json_t *env, bool merge);
bool create_name_is_valid(const char *name);

/* Runs fn(rq) once the templates are known, asked anew if this one is not among them. */
void create_with_template(struct request *rq, const char *template_name, request_fn fn);
/* Makes the record: sizes, names, quotas. details.sandbox_id of a name in use comes in
 * ret_other_id. On success the caller ends *ret_sandbox with sandbox_done. */
int create_prepare(struct request *rq,
                   const struct create_spec *spec,
                   struct sandbox *ret_sandbox,
                   char ret_other_id[21],
                   struct error *err) _must_check_;
/* The same for the children of a fork: what they have in common. */
int create_prepare_fork(struct request *rq,
                        const struct create_spec *spec,
                        const struct sandbox *source,
                        struct sandbox *ret_sandbox,
                        char ret_other_id[21],
                        struct error *err) _must_check_;
/* Answers with that failure. */
void create_fail(struct request *rq, const struct error *err, const char *other_id);
/* The node's body for it, a new reference. */
json_t *create_node_body(const struct create_spec *spec, const struct sandbox *sandbox);
