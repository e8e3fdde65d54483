/* Text frames of attached clients: any bytes give a checked request, an error that names a field,
 * or a refusal of the frame. */
#include "node/attach_request.h"

#include <errno.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct attach_request request = {.kind = ATTACH_EOF};
    struct error err = {0};
    int r = attach_request_parse(span_make(data, size), &request, &err);

    if (r == -EBADMSG) {
        require(err.code == ERROR_NONE);
        return 0;
    }
    if (r < 0) {
        require(r == -EINVAL && err.code == ERROR_INVALID_REQUEST && err.message[0] != '\0');
        return 0;
    }
    require(size <= ATTACH_TEXT_MAX);
    require(request.kind != ATTACH_RESIZE ||
            (request.size.cols >= 1 && request.size.cols <= COMMAND_TTY_CELLS_MAX &&
             request.size.rows >= 1 && request.size.rows <= COMMAND_TTY_CELLS_MAX));
    require(request.kind != ATTACH_SIGNAL ||
            (request.signal > 0 && request.signal <= 64 && request.scope <= AGENT_SCOPE_TREE));
    return 0;
}
