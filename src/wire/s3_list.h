/* What an S3-compatible server answers to ListObjectsV2 and ListMultipartUploads: as much of its
 * XML as names objects and uploads.
 *
 * No XML parser: elements are looked for by name, nested as the protocol nests them, and only
 * plain text with the five named entities is taken as content. Anything else is malformed, since a
 * list that was understood by half would let a sweep remove what is in use. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/span.h"

#define S3_KEY_SIZE   1025
#define S3_TOKEN_SIZE 2049
#define S3_TIME_SIZE  40
#define S3_ID_SIZE    1025

struct s3_object {
    char key[S3_KEY_SIZE];
    char modified[S3_TIME_SIZE]; /* as it stands there */
    uint64_t bytes;
};

/* One that was begun and neither completed nor aborted. */
struct s3_upload {
    char key[S3_KEY_SIZE];
    char id[S3_ID_SIZE];
    char initiated[S3_TIME_SIZE];
};

struct s3_list {
    struct span rest; /* behind the last object */
    bool is_truncated;
    char token[S3_TOKEN_SIZE]; /* of the next page; "": none */
};

/* The facts of a page; then s3_list_next for its objects. 0 or -EBADMSG. The body must outlive the
 * list. */
int s3_list_parse(struct span body, struct s3_list *ret);
/* 1 with the next object, 0 at the end, -EBADMSG. */
int s3_list_next(struct s3_list *list, struct s3_object *ret);
/* A page of uploads; `list` has no more than `rest` then. 0 or -EBADMSG. */
int s3_uploads_parse(struct span body, struct s3_list *ret);
/* As s3_list_next. */
int s3_uploads_next(struct s3_list *list, struct s3_upload *ret);
/* The content of the only element of this name, e.g. "UploadId" or "Code". 0, -EBADMSG. */
int s3_text_parse(struct span body, const char *name, char *out, size_t size);
