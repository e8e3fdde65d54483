/* Cursors of lists: opaque text that carries the position and a code which only this installation
 * can make, so that a changed cursor, or one of another list or filter, is refused. */
#pragma once

#include <stdint.h>

#include "api/query.h"

#define CURSOR_LENGTH 40
#define CURSOR_SIZE   (CURSOR_LENGTH + 1)

/* What a cursor is bound to: the list's name and the filters of the query. */
uint64_t cursor_scope(const char *list, const struct query *query);
void cursor_format(const uint8_t secret[32], uint64_t scope, int64_t seq, char out[CURSOR_SIZE]);
/* 0 or -EBADMSG. */
int cursor_parse(const uint8_t secret[32], uint64_t scope, const char *text, int64_t *ret_seq)
    _must_check_;
