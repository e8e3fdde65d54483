/* An aligned table for people. Cells are made safe to print; when the table is wider than the
 * terminal, the columns that may shrink are cut with "…". */
#pragma once

#include <stddef.h>

#include "base/cleanup.h"

struct buf;
struct table;

#define TABLE_MAX_COLUMNS 12
#define TABLE_UNLIMITED   0 /* width: not a terminal, nothing is cut */

/* `heads` names the columns; one that begins with '~' may shrink (the mark is not printed).
 * NULL without memory. */
struct table *table_new(const char *const *heads, size_t count);
void table_free(struct table *t);

static inline void cleanup_table(struct table **t)
{
    table_free(*t);
}
#define _cleanup_table_ _cleanup_(cleanup_table)

/* Adds the next cell; rows fill from left to right. NULL prints as "-". */
void table_put(struct table *t, const char *text);
void table_printf(struct table *t, const char *format, ...) _printf_(2, 3);
/* Appends all lines. 0 or the -ENOMEM that an earlier call met. */
int table_format(const struct table *t, size_t width, struct buf *out) _must_check_;
