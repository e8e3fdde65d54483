/* gzip and zstd, piece by piece, with memory that does not depend on the content. No I/O and no
 * clock: it runs on worker threads (transcoder.h).
 *
 * What is unpacked comes from clients: anything but whole gzip members or zstd frames, one or more,
 * is refused, and so is a zstd frame that asks for a window above CODEC_WINDOW_MAX. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/span.h"

#define CODEC_WINDOW_LOG_MAX 23 /* 8 MiB: what zstd -19 needs */
#define CODEC_WINDOW_MAX     (1U << CODEC_WINDOW_LOG_MAX)

enum codec_format {
    CODEC_NONE,
    CODEC_GZIP,
    CODEC_ZSTD,
};

enum codec_result {
    CODEC_HUNGRY, /* all input is taken; give more */
    CODEC_FULL,   /* out is full; call again */
    CODEC_DONE,   /* all is out after the last input */
};

struct codec;

/* "gzip" or "zstd". */
const char *codec_name(enum codec_format format);
/* The format with this name ("none" too). 0 or -EINVAL. */
int codec_find(const char *name, enum codec_format *ret_format) _must_check_;
/* NULL without memory. */
struct codec *codec_new(enum codec_format format, bool packs);
void codec_free(struct codec *codec);
/* The most memory that one takes. */
size_t codec_cost(enum codec_format format, bool packs);
/* Takes from *in and puts at most room bytes (room > 0) into out. `last`: nothing comes after *in;
 * stay with it. An enum codec_result, or -EBADMSG (not of this format, or it breaks off), -EMSGSIZE
 * (a window that is too large), -ENOMEM; after a failure only codec_free. */
int codec_run(
    struct codec *codec, struct span *in, bool last, uint8_t *out, size_t room, size_t *ret_n)
    _must_check_;
