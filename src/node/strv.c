#include "node/strv.h"

#include <errno.h>
#include <stdarg.h>

void strv_add(struct strv *v, const char *format, ...)
{
    va_list args;
    char *text = NULL;
    int n;

    if (v->error != 0) {
        return;
    }
    if (v->count == STRV_MAX) {
        v->error = -E2BIG;
        return;
    }
    va_start(args, format);
    n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0) {
        v->error = -ENOMEM;
        return;
    }
    v->items[v->count++] = text;
}

void strv_done(struct strv *v)
{
    for (size_t i = 0; i < v->count; i++) {
        free(v->items[i]);
        v->items[i] = NULL;
    }
    v->count = 0;
}
