/* What QEMU said before it ended. */
#include <stdio.h>
#include <string.h>

#include "base/span.h"
#include "node/qemu_args.h"

#define MISSING "host doesn't support requested feature: "

static bool has(struct span line, const char *text)
{
    return memmem(line.p, line.n, text, strlen(text)) != NULL;
}

/* Its name and what follows it: "CPUID.07H:EBX.avx2 [bit 5]". */
static struct span missing_feature(struct span line)
{
    const uint8_t *at = memmem(line.p, line.n, MISSING, strlen(MISSING));

    return at == NULL ? span_head(line, 0)
                      : span_skip(line, (size_t)(at - line.p) + strlen(MISSING));
}

void qemu_last_words(const char *log, char *out, size_t size)
{
    struct span rest = span_of_str(log);
    char feature[80] = "";

    out[0] = '\0';
    while (rest.n > 0) {
        size_t end = span_find(rest, 0, '\n');
        struct span line = span_head(rest, end < size - 1 ? end : size - 1);
        struct span missing = missing_feature(line);

        if (missing.n > 0) {
            (void)span_copy_str(span_head(missing, sizeof(feature) - 1), feature, sizeof(feature));
        } else if (line.n > 0 && !has(line, "warning:")) {
            (void)span_copy_str(line, out, size);
        }
        rest = span_skip(rest, end + 1);
    }
    if (feature[0] != '\0') {
        (void)snprintf(out, size, "the processor lacks %s", feature);
    }
}
