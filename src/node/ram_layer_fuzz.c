/* A layer as it may be found on a disk: any head and any index. The checksums are made right first,
 * or nothing would get past them. What is taken must add up, and be the same when formatted again.
 */
#include "node/ram_layer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

static void check_runs(const struct ram_layer_head *head, const struct ram_run *runs)
{
    uint64_t pages = 0;
    uint64_t next = 0;
    uint32_t at = 0;

    for (uint32_t i = 0; i < head->runs; i++) {
        require(runs[i].pages > 0 && runs[i].pages <= RAM_RUN_PAGES_MAX && runs[i].first >= next);
        next = (uint64_t)runs[i].first + runs[i].pages;
        require(next <= head->place.ram_bytes / RAM_PAGE_BYTES);
        require(ram_layer_has(&(struct ram_layer){-1, *head, (struct ram_run *)(uintptr_t)runs},
                              runs[i].first, &at));
        pages += runs[i].pages;
    }
    require(pages == head->data_pages + head->zero_pages);
}

static void check_index(struct ram_layer_head head, struct span index)
{
    size_t n = (size_t)head.runs * RAM_RUN_BYTES;
    struct ram_run *runs;

    if (index.n < n) {
        return; /* the reader knows the length from the file's */
    }
    index = span_head(index, n);
    head.index_sum = ram_sum_of(index);
    runs = calloc(head.runs > 0 ? head.runs : 1, sizeof(*runs));
    require(runs != NULL);
    if (ram_layer_index_parse(&head, index, runs) == 0) {
        check_runs(&head, runs);
        for (uint32_t i = 0; i < head.runs; i++) {
            uint8_t bytes[RAM_RUN_BYTES];

            ram_run_format(&runs[i], bytes);
            require(memcmp(bytes, &index.p[(size_t)i * RAM_RUN_BYTES], sizeof(bytes)) == 0);
        }
    }
    free(runs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t block[RAM_PAGE_BYTES] = {0};
    uint8_t again[RAM_PAGE_BYTES];
    struct ram_layer_head head;
    struct ram_sum sum;
    size_t n = size < 128 ? size : 128;

    memcpy(block, data, n);
    (void)ram_layer_head_parse(span_make(data, size), &head); /* of any length, as it is */
    sum = ram_sum_of(span_make(block, sizeof(block) - sizeof(sum.bytes)));
    memcpy(&block[sizeof(block) - sizeof(sum.bytes)], sum.bytes, sizeof(sum.bytes));
    if (ram_layer_head_parse(span_make(block, sizeof(block)), &head) < 0) {
        return 0;
    }
    ram_layer_head_format(&head, again);
    require(memcmp(block, again, sizeof(block)) == 0);
    require(ram_layer_file_bytes(&head) >= RAM_PAGE_BYTES);
    check_index(head, span_skip(span_make(data, size), n));
    return 0;
}
