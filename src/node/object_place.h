/* Where an object store is, and what it asks for. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "base/span.h"

struct object_pulse;

struct object_place {
    int dir_fd;                 /* of the directory; -1: a bucket */
    uint64_t reserve_bytes;     /* of the directory's filesystem: so much is left free */
    struct object_pulse *pulse; /* is told of each call; or NULL */
    char endpoint[256];         /* "https://HOST[:PORT]" */
    char bucket[64];
    char prefix[128]; /* "" or without a slash at its ends */
    char region[64];
    char access_key[160];
    char secret_key[160];
    char session_token[2048]; /* "": none */
    unsigned int attempts;    /* 0: as usual */
};

/* A parsed "/directory" or "s3://bucket/prefix". 0 or -errno with err. */
int object_place_parse(const char *text, struct object_place *ret, struct error *err) _must_check_;
/* The file with the keys: `access_key = …`, `secret_key = …`, `session_token = …`. */
int object_place_parse_keys(struct object_place *place, struct span text, struct error *err)
    _must_check_;
