/* What the agent reads of the guest's kernel, where names and lines may be those of users: sockets,
 * memory, processors, the kernel's messages, control groups. In any text and in any part of it no
 * answer is out of its bounds. */
#include <stdbool.h>
#include <stdlib.h>

#include "guest/killed.h"
#include "guest/listeners.h"
#include "guest/metrics.h"
#include "guest/pressure.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

static void check_listener(struct span line, uint8_t family)
{
    struct listener one = {.inode = 0};
    int r = listener_parse(line, family, &one);

    if (r > 0) {
        require(one.record.port > 0 && one.record.family == family && one.record.pid == 0);
    } else {
        require(one.inode == 0 && one.record.port == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span text = span_make(data, size);
    uint64_t total = metrics_parse_memory(text, "MemTotal:");

    require(total % 1024 == 0);
    if (total == 0) {
        require(!pressure_is_short(text));
    }
    require(metrics_parse_cpu(text, 0) == 0);
    (void)metrics_parse_cpu(text, 100);
    while (text.n > 0) {
        struct span line = span_head(text, span_find(text, 0, '\n'));

        check_listener(line, 4);
        check_listener(line, 6);
        require(killed_parse_record(line) >= 0);
        require(killed_parse_record(text) >= 0);
        (void)killed_parse_group(text);
        text = span_skip(text, line.n + 1);
    }
    return 0;
}
