#include "node/attach_request.h"

#include <errno.h>
#include <string.h>

#include "io/json_request.h"
#include "node/signal_name.h"

static void read_resize(struct json_fields *f, struct attach_request *ret)
{
    static const struct command_tty none = {false, 1, 1, ""};

    ret->kind = ATTACH_RESIZE;
    json_fields_require(f, "cols");
    json_fields_require(f, "rows");
    command_read_size(f, &none, &ret->size);
}

int attach_request_parse(struct span text, struct attach_request *ret, struct error *err)
{
    _cleanup_json_ json_t *object = NULL;
    struct attach_request request = {.kind = ATTACH_EOF};
    struct error malformed = {0};
    struct json_fields f;
    const char *type;
    int r;

    if (text.n > ATTACH_TEXT_MAX || json_request_parse(text, false, &object, &malformed) < 0) {
        return -EBADMSG;
    }
    type = json_string_value(json_object_get(object, "type"));
    if (type == NULL) {
        return -EBADMSG;
    }
    json_fields_start(&f, object, "", err);
    json_fields_skip(&f, "type");
    if (strcmp(type, "resize") == 0) {
        read_resize(&f, &request);
    } else if (strcmp(type, "signal") == 0) {
        request.kind = ATTACH_SIGNAL;
        signal_read(&f, &request.signal, &request.scope);
    } else if (strcmp(type, "eof") != 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "type",
                              "type must be one of: resize, signal, eof");
    }
    r = json_fields_finish(&f);
    if (r == 0) {
        *ret = request;
    }
    return r < 0 ? -EINVAL : 0;
}
