/* Arguments of requests about a guest's files, from queries and bodies. */
#pragma once

#include "base/buf.h"
#include "base/error.h"
#include "io/json_request.h"
#include "node/routes.h"
#include "node/service.h"

#define FILE_PATH_TEXT_MAX 8192U /* read at all; the guest takes less */
#define FILE_USER_SIZE     (AGENT_USER_BYTES + 1U)

/* `user`, or the template's. */
int file_query_user(struct call *call, char user[FILE_USER_SIZE], struct error *err) _must_check_;
/* `path`: any bytes but NUL, not empty. */
int file_query_path(struct call *call, struct buf *ret_path, struct error *err) _must_check_;
/* A parameter that is true or false; *value stays when it is absent. */
int file_query_bool(struct call *call, const char *name, bool *value, struct error *err)
    _must_check_;
/* Whether this is a mode: 1 to 4 octal digits after an optional 0. */
bool file_mode_is_valid(const char *text);

/* ---- fields of a body, each added to the arguments ---- */
/* `name` or `coded_name` (base64): one of them is required. The names must outlive the fields. */
void file_body_path(struct json_fields *fields,
                    const char *name,
                    const char *coded_name,
                    struct service_args *args);
/* `mode`, or "". */
void file_body_mode(struct json_fields *fields, struct service_args *args);
/* The name itself when it is true, else "". */
void file_body_flag(struct json_fields *fields,
                    const char *name,
                    bool initial,
                    struct service_args *args);
/* `user`, or the template's; no argument. */
void file_body_user(struct call *call, struct json_fields *fields, char user[FILE_USER_SIZE]);
