/* The text frames that a client sends over an attached session: bytes from outside. */
#pragma once

#include "base/error.h"
#include "base/span.h"
#include "node/command_request.h"
#include "wire/agent_process.h"

#define ATTACH_TEXT_MAX 4096U /* bytes of such a frame */

enum attach_request_kind {
    ATTACH_RESIZE,
    ATTACH_SIGNAL,
    ATTACH_EOF
};

struct attach_request {
    enum attach_request_kind kind;
    struct command_tty size; /* RESIZE */
    int signal;              /* SIGNAL */
    enum agent_scope scope;
};

/* 0; -EBADMSG when it is no object with a `type`: the connection is to be closed; -EINVAL with err
 * filled when the type is not known or a field is wrong: the client is to be told, that is all. */
int attach_request_parse(struct span text, struct attach_request *ret, struct error *err)
    _must_check_;
