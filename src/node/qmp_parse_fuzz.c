/* Bytes from a VMM that may be compromised: must not crash, and must give the same messages
 * whichever way they arrive in pieces. */
#include "node/qmp_parse.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LINES_MAX 64

/* Splits and parses all of s; returns the number of lines, and their results in out. */
static size_t read_all(struct span s, int out[LINES_MAX])
{
    size_t n = 0;

    while (n < LINES_MAX) {
        struct qmp_message m;
        struct span line;
        int used = qmp_split_line(s, &line);
        int r;

        if (used <= 0) {
            break;
        }
        if ((size_t)used > s.n || line.n >= (size_t)used) {
            abort();
        }
        r = qmp_parse_line(line, &m);
        out[n++] = r;
        if (r == 0) {
            (void)qmp_string(m.body, "status");
            (void)qmp_string(m.root, "event");
            qmp_message_done(&m);
        }
        s = span_skip(s, (size_t)used);
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int whole[LINES_MAX];
    int part[LINES_MAX];
    size_t count = read_all(span_make(data, size), whole);
    size_t half = read_all(span_make(data, size / 2), part);

    /* A shorter read gives a prefix of the same results. */
    if (half > count || memcmp(whole, part, half * sizeof(int)) != 0) {
        abort();
    }
    return 0;
}
