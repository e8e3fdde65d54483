/* Reading members of JSON files that this program wrote itself, strictly: a missing or misplaced
 * member means a damaged file. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

/* Each returns false, and leaves the target alone, when the member is not there, of another type,
 * or does not fit. */
bool json_field_text(const json_t *object, const char *key, char *out, size_t size);
bool json_field_u64(const json_t *object, const char *key, uint64_t max, uint64_t *ret);
bool json_field_uint(const json_t *object, const char *key, unsigned int max, unsigned int *ret);
/* Reads and parses a file of at most max bytes below dirfd; NULL when missing or damaged. */
json_t *json_file_read(int dirfd, const char *path, size_t max);
/* Writes it atomically; sync as in file_write_atomic. 0 or -errno. */
int json_file_write(int dirfd, const char *path, const json_t *root, bool sync);
