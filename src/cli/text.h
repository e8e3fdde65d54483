/* Text for people and from people: sizes, durations, ages, and outside strings made safe to print
 * on a terminal. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "base/span.h"

struct buf;

#define TEXT_SHORT_SIZE 32

/* "512", "512m", "2g" (also "MiB", "GiB") as MiB. `name` is the option, for the message. */
int text_parse_mib(const char *text, const char *name, uint64_t *ret_mib, struct error *err)
    _must_check_;
/* "30", "2.5", "10s", "5m", "2h", "1d" as seconds. */
int text_parse_seconds(const char *text, const char *name, double *ret_seconds, struct error *err)
    _must_check_;
int text_parse_count(const char *text,
                     const char *name,
                     uint64_t max,
                     uint64_t *ret_count,
                     struct error *err) _must_check_;

/* "45s", "12m", "3h", "9d". Negative counts as 0. */
void text_format_age(int64_t age_ms, char out[TEXT_SHORT_SIZE]);
/* "512 MiB", "1.5 GiB", "2 TiB". */
void text_format_mib(uint64_t mib, char out[TEXT_SHORT_SIZE]);

/* "512 B", "1.5 KiB", "20 MiB", "3.2 GiB". */
void text_format_bytes(uint64_t bytes, char out[TEXT_SHORT_SIZE]);

/* Appends text with control bytes and what is not UTF-8 as \xNN, so that names and arguments from
 * a guest cannot steer the terminal. */
void text_put_safe(struct buf *out, struct span text);
/* Columns that the text takes (UTF-8 continuation bytes take none). */
size_t text_width(const char *text);
/* Appends a word as a POSIX shell reads it back, in single quotes where needed. */
void text_put_shell_word(struct buf *out, const char *word);
