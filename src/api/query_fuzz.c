/* The query string and path segments as a client sends them. */
#include "api/query.h"

#include <stdlib.h>

#include "api/route.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct query q = {.count = 0};
    struct error err;
    struct route_match match;
    char *text = malloc(size + 1);
    int64_t time = 0;
    uint64_t number = 0;

    if (text == NULL) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    if (query_parse(text, false, &q, &err) == 0) {
        for (size_t i = 0; i < q.count; i++) {
            /* What was taken is text that the rest of the program may hold for text. */
            if (!utf8_is_valid(span_of_str(q.items[i].name)) ||
                !utf8_is_valid(span_of_str(q.items[i].value)) ||
                query_find(&q, q.items[i].name) == NULL) {
                abort();
            }
        }
        (void)!query_check(&q, "limit cursor state* metadata.*", &err);
        (void)!query_duration_ms(&q, "wait", 300000, &time, &err);
        (void)!query_unsigned(&q, "limit", 1, 1000, &number, &err);
        (void)!query_time(&q, "created_after", &time, &err);
    }
    query_done(&q);
    q = (struct query){.count = 0};
    if (query_parse(text, true, &q, &err) == 0) {
        for (size_t i = 0; i < q.count; i++) {
            bool is_file =
                strcmp(q.items[i].name, "path") == 0 || strcmp(q.items[i].name, "exclude") == 0;

            if (!is_file && !utf8_is_valid(span_of_str(q.items[i].value))) {
                abort();
            }
        }
    }
    query_done(&q);
    if (route_find(route_table(), "GET", text, &match) == 1 && match.route == NULL) {
        abort();
    }
    free(text);
    return 0;
}
