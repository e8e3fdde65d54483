/* Bodies of `run` and `commands`: any bytes give a checked request or an error that names a field.
 */
#include "node/command_request.h"

#include <stdlib.h>
#include <string.h>

#include "io/json_request.h"
#include "wire/agent_limits.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define IDS "\"process_id\":\"pr0123456789abcdefgh\",\"session_id\":\"se0123456789abcdefgh\""

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

static void check_request(const struct command_request *request, enum command_kind kind)
{
    size_t count = json_array_size(request->argv);
    size_t i;
    const json_t *item;

    require(count >= 1 && count <= AGENT_ARGV_MAX);
    json_array_foreach(request->argv, i, item) {
        require(json_is_string(item));
    }
    require(kind == COMMAND_KIND_COMMANDS || request->timeout_ms > 0);
    require(request->timeout_ms >= 0 && request->timeout_ms <= COMMAND_TIMEOUT_MAX_MS);
    require(request->input.n <= COMMAND_INPUT_BYTES_MAX && buf_error(&request->input) == 0);
    require(request->env == NULL || json_object_size(request->env) <= AGENT_ENV_MAX);
    require(id_is_valid(request->process_id, "pr") && id_is_valid(request->session_id, "se"));
}

static void try_body(json_t *body, enum command_kind kind)
{
    struct command_request request;
    struct error err = {0};
    int r = command_request_parse(body, kind, "", "sb0123456789abcdefgh", &request, &err);

    if (r == 0) {
        check_request(&request, kind);
    } else {
        require(err.code == ERROR_INVALID_REQUEST && err.message[0] != '\0');
        require(request.body == NULL && request.argv == NULL);
    }
    command_request_done(&request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_json_ json_t *ids = json_loads("{" IDS "}", 0, NULL);
    _cleanup_json_ json_t *body = NULL;
    struct error err = {0};

    if (json_request_parse(span_make(data, size), true, &body, &err) < 0) {
        require(err.code == ERROR_INVALID_REQUEST && strcmp(err.field, "body") == 0);
        return 0;
    }
    try_body(body, COMMAND_KIND_RUN);
    (void)json_object_update_missing(body, ids);
    try_body(body, COMMAND_KIND_RUN);
    try_body(body, COMMAND_KIND_COMMANDS);
    return 0;
}
