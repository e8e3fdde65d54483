#include "api/fake_run.h"

#include <string.h>

#include "base/buf.h"

json_t *fake_run_result(json_t *processes, const json_t *body)
{
    const char *process = json_string_value(json_object_get(body, "process_id"));
    const char *first = json_string_value(json_array_get(json_object_get(body, "argv"), 0));
    json_t *old = json_object_get(processes, process);
    _cleanup_buf_ struct buf text = buf_make(0);
    json_t *result;

    if (old != NULL) {
        return json_incref(old);
    }
    if (first != NULL && (strcmp(first, "big") == 0 || strcmp(first, "huge") == 0)) {
        int lines = first[0] == 'b' ? 100000 : 400000; /* 2.7 and 11 MB */

        for (int i = 0; i < lines; i++) {
            buf_printf(&text, "line %d of a long text\n", i);
        }
    } else {
        buf_printf(&text, "%s %zu\n", first == NULL ? "shell" : first, json_object_size(processes));
    }
    if (json_integer_value(json_object_get(body, "max_output_bytes")) == 65536) {
        buf_put_str(&text, "with less output\n");
    }
    result =
        json_pack("{s:s, s:i, s:n, s:b, s:b, s:f, s:s, s:s, s:i, s:n, s:s, s:s, s:i, s:n}",
                  "process_id", process, "exit_code", 0, "signal", "timed_out", 0, "out_of_memory",
                  0, "duration_seconds", 0.001, "stdout", buf_str(&text), "stdout_encoding", "utf8",
                  "stdout_omitted_bytes", 0, "stdout_omitted_at", "stderr", "", "stderr_encoding",
                  "utf8", "stderr_omitted_bytes", 0, "stderr_omitted_at");
    (void)json_object_set(processes, process, result);
    return result;
}
