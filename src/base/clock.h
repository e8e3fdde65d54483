/* Clocks and time text. Programs take times from here so that tests can pass their own values. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <sys/types.h>

#define CLOCK_TEXT_SIZE 32

/* Milliseconds of CLOCK_MONOTONIC. */
int64_t clock_monotonic_ms(void);
/* Nanoseconds of CLOCK_MONOTONIC. */
int64_t clock_monotonic_ns(void);
/* Milliseconds since 1970 UTC. */
int64_t clock_real_ms(void);
/* Nanoseconds since 1970 UTC. */
int64_t clock_real_ns(void);
/* Nanoseconds of processor time that a process (any) has used. 0 or -errno. */
int clock_of_process_ns(pid_t pid, uint64_t *ret_ns);
/* RFC 3339 UTC with milliseconds: "2026-11-29T18:00:00.123Z". */
void clock_format(int64_t real_ms, char out[CLOCK_TEXT_SIZE]);
/* Parses RFC 3339 (any offset, optional fraction). 0 or -EBADMSG. */
int clock_parse(const char *text, int64_t *ret_real_ms);
