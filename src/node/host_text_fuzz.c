/* Texts of the host's kernel in which others have a say: the mappings of a VMM, which a guest may
 * have taken over, and what is known of the memory. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "node/admission.h"
#include "node/ram_pages.h"

#define TEXT_BYTES 8192U

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

static void check_mapping(struct span line)
{
    struct ram_mapping m = {.start = 0};

    if (ram_mapping_parse(line, &m) == 0) {
        require(m.start < m.end);
        require(m.name.n == 0 || (m.name.p > line.p && &m.name.p[m.name.n] == &line.p[line.n]));
    } else {
        require(m.end == 0 && m.name.n == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span text = span_make(data, size);
    char terminated[TEXT_BYTES];
    uint64_t total = 0;
    uint64_t available = 0;
    size_t n = size < sizeof(terminated) - 1 ? size : sizeof(terminated) - 1;

    memcpy(terminated, data, n);
    terminated[n] = '\0';
    if (admission_parse_meminfo(terminated, &total, &available) < 0) {
        require(total == 0 && available == 0);
    }
    while (text.n > 0) {
        size_t end = span_find(text, 0, '\n');

        check_mapping(span_head(text, end));
        text = span_skip(text, end + 1);
    }
    return 0;
}
