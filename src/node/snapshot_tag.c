/* Which capture made a snapshot: a directory that an earlier one left under the same name is none
 * of this one's. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/step.h"
#include "node/snapshot.h"

#define TAG_FILE "capture"
#define TAG_SIZE 20

static void format(uint64_t tag, char out[TAG_SIZE])
{
    (void)snprintf(out, TAG_SIZE, "%016" PRIx64 "\n", tag);
}

int snapshot_tag(const char *dir, uint64_t tag)
{
    char path[SNAPSHOT_PATH_SIZE + 32];
    char text[TAG_SIZE];

    step("tag snapshot");
    format(tag, text);
    (void)snprintf(path, sizeof(path), "%.470s.new/%s", dir, TAG_FILE);
    return file_write_atomic(AT_FDCWD, path, span_of_str(text), 0600, true);
}

bool snapshot_has_tag(const char *dir, uint64_t tag)
{
    _cleanup_buf_ struct buf content = buf_make(TAG_SIZE);
    char path[SNAPSHOT_PATH_SIZE + 32];
    char text[TAG_SIZE];

    format(tag, text);
    (void)snprintf(path, sizeof(path), "%.470s/%s", dir, TAG_FILE);
    return tag != 0 && file_read(AT_FDCWD, path, TAG_SIZE, &content) == 0 &&
           strcmp(buf_str(&content), text) == 0;
}
