#include "cli/table.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "cli/text.h"

#define COLUMN_GAP       2U
#define COLUMN_MIN_WIDTH 8U

struct table {
    size_t columns;
    bool shrinks[TABLE_MAX_COLUMNS];
    char **cells; /* the heads are row 0 */
    size_t count;
    size_t room;
    int error;
};

void table_put(struct table *t, const char *text)
{
    struct buf cell = buf_make(0);

    if (t->error != 0) {
        return;
    }
    if (t->count == t->room) {
        size_t room = t->room == 0 ? 64 : t->room * 2;
        char **cells = reallocarray(t->cells, room, sizeof(cells[0]));

        if (cells == NULL) {
            t->error = -ENOMEM;
            return;
        }
        t->cells = cells;
        t->room = room;
    }
    text_put_safe(&cell, span_of_str(text == NULL ? "-" : text));
    if (buf_reserve(&cell, 1) == NULL) { /* an empty cell is a string too */
        buf_done(&cell);
        t->error = -ENOMEM;
        return;
    }
    buf_commit(&cell, 0);
    t->cells[t->count++] = (char *)cell.p;
}

void table_printf(struct table *t, const char *format, ...)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    va_list args;

    va_start(args, format);
    buf_vprintf(&text, format, args);
    va_end(args);
    if (buf_error(&text) != 0) {
        t->error = -ENOMEM;
        return;
    }
    table_put(t, buf_str(&text));
}

struct table *table_new(const char *const *heads, size_t count)
{
    struct table *t = calloc(1, sizeof(*t));

    if (t == NULL || count == 0 || count > TABLE_MAX_COLUMNS) {
        free(t);
        return NULL;
    }
    t->columns = count;
    for (size_t i = 0; i < count; i++) {
        t->shrinks[i] = heads[i][0] == '~';
        table_put(t, t->shrinks[i] ? &heads[i][1] : heads[i]);
    }
    return t;
}

void table_free(struct table *t)
{
    if (t == NULL) {
        return;
    }
    for (size_t i = 0; i < t->count; i++) {
        free(t->cells[i]);
    }
    free(t->cells);
    free(t);
}

static size_t column_width(const struct table *t, size_t column)
{
    size_t width = 0;

    for (size_t i = column; i < t->count; i += t->columns) {
        size_t w = text_width(t->cells[i]);

        width = w > width ? w : width;
    }
    return width;
}

/* Takes columns from the widest shrinking one until the table fits or nothing can give. */
static void fit_widths(const struct table *t, size_t limit, size_t widths[TABLE_MAX_COLUMNS])
{
    size_t total = (t->columns - 1) * COLUMN_GAP;

    for (size_t c = 0; c < t->columns; c++) {
        total += widths[c];
    }
    while (total > limit) {
        size_t widest = TABLE_MAX_COLUMNS;

        for (size_t c = 0; c < t->columns; c++) {
            if (t->shrinks[c] && widths[c] > COLUMN_MIN_WIDTH &&
                (widest == TABLE_MAX_COLUMNS || widths[c] > widths[widest])) {
                widest = c;
            }
        }
        if (widest == TABLE_MAX_COLUMNS) {
            return;
        }
        widths[widest]--;
        total--;
    }
}

/* Bytes of the first `width` characters. */
static size_t prefix_bytes(const char *text, size_t width)
{
    size_t n = 0;

    while (text[n] != '\0') {
        if (((unsigned char)text[n] & 0xc0) != 0x80 && width-- == 0) {
            break;
        }
        n++;
    }
    return n;
}

static void put_cell(struct buf *out, const char *cell, size_t width, bool last)
{
    size_t have = text_width(cell);

    if (have > width) {
        buf_put(out, span_make(cell, prefix_bytes(cell, width - 1)));
        buf_put_str(out, "…");
        have = width;
    } else {
        buf_put_str(out, cell);
    }
    if (!last) {
        buf_printf(out, "%*s", (int)(width - have + COLUMN_GAP), "");
    }
}

int table_format(const struct table *t, size_t width, struct buf *out)
{
    size_t widths[TABLE_MAX_COLUMNS] = {0};

    if (t->error != 0 || t->columns == 0) {
        return t->error;
    }
    for (size_t c = 0; c < t->columns; c++) {
        widths[c] = column_width(t, c);
    }
    if (width != TABLE_UNLIMITED) {
        fit_widths(t, width, widths);
    }
    for (size_t i = 0; i < t->count; i++) {
        bool last = i % t->columns == t->columns - 1;

        put_cell(out, t->cells[i], widths[i % t->columns], last);
        if (last) {
            buf_put_str(out, "\n");
        }
    }
    return buf_error(out);
}
