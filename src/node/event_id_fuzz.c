/* Event ids that clients send back: what is taken is in its bounds, and is the same when it is
 * written again, but for leading zeros. */
#include "node/event_id.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PHASE_MAX 4U

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[128];
    char again[EVENT_ID_SIZE];
    size_t n = size < sizeof(text) - 1 ? size : sizeof(text) - 1;
    struct output_event_id output = {.phase = 0};
    struct output_event_id same_output = {.phase = 0};
    struct watch_event_id watch = {.name = 0};
    struct watch_event_id same_watch = {.name = 0};

    memcpy(text, data, n);
    text[n] = '\0';
    if (output_event_id_parse(text, PHASE_MAX, &output) == 0) {
        require(output.phase <= PHASE_MAX && output.at[0] <= INT64_MAX &&
                output.at[1] <= INT64_MAX);
        output_event_id_format(&output, again);
        require(output_event_id_parse(again, PHASE_MAX, &same_output) == 0);
        require(output.at[0] == same_output.at[0] && output.at[1] == same_output.at[1] &&
                output.phase == same_output.phase);
    }
    if (watch_event_id_parse(text, &watch) == 0) {
        watch_event_id_format(&watch, again);
        require(watch_event_id_parse(again, &same_watch) == 0);
        require(watch.name == same_watch.name && watch.position == same_watch.position);
    }
    return 0;
}
