/* Packs or unpacks a stream off the loop thread, in bounded pieces, with back-pressure on both
 * sides: a transfer at full speed delays nothing else on the loop.
 *
 * Input waits in a buffer; one job at a time takes at most 64 KiB of it, or makes at most 64 KiB,
 * on a worker, and its result is delivered on the loop before the next. Memory is constant,
 * whatever the content. All transcoders of a program share a budget of memory. */
#pragma once

#include "api/codec.h"
#include "base/error.h"

struct loop;
struct transcoder;

struct transcoder_pool {
    struct loop *loop;
    size_t used; /* bytes, by codec_cost */
};

struct transcoder_callbacks {
    /* Output. Returns 0 to get no more before transcoder_resume, else 1. */
    int (*on_output)(void *arg, struct span bytes);
    /* More may be written, after a write that returned 0. */
    void (*on_drain)(void *arg);
    /* The last call. err NULL: all is out. Else invalid_request (the input is broken), or no
     * memory. */
    void (*on_end)(void *arg, const struct error *err);
};

/* NULL with capacity_unavailable. */
struct transcoder *transcoder_new(struct transcoder_pool *pool,
                                  enum codec_format format,
                                  bool packs,
                                  const struct transcoder_callbacks *callbacks,
                                  void *arg,
                                  struct error *err);
/* Nothing is called any more. Also from inside a callback; NULL is fine. */
void transcoder_free(struct transcoder *t);
/* Copies bytes. 1, or 0 when the caller should wait for on_drain. No callback comes from inside. */
int transcoder_write(struct transcoder *t, struct span bytes);
/* No more input. */
void transcoder_end(struct transcoder *t);
void transcoder_resume(struct transcoder *t);
