#include "node/data_id.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/settings.h"

#define CONTENT_MAX 64U
#define PATH_SIZE   (SETTINGS_PATH_SIZE + 8)

static void id_path(const char *data_dir, char out[PATH_SIZE])
{
    (void)snprintf(out, PATH_SIZE, "%s/id", data_dir);
}

int data_id_read(const char *data_dir, char out[ID_SIZE], struct error *err)
{
    _cleanup_buf_ struct buf text = buf_make(CONTENT_MAX);
    char path[PATH_SIZE];
    struct span line;
    int r;

    id_path(data_dir, path);
    out[0] = '\0';
    r = file_read(AT_FDCWD, path, CONTENT_MAX, &text);
    if (r == -ENOENT || r == -EMSGSIZE) {
        return 0;
    }
    if (r < 0) {
        return error_set(err, -r, "cannot read %.200s: %s", path, strerror(-r));
    }
    line = span_head(buf_span(&text), span_find(buf_span(&text), 0, '\n'));
    if (span_copy_str(line, out, ID_SIZE) < 0 || !id_is_valid(out, DATA_ID_KIND)) {
        out[0] = '\0';
    }
    return 0;
}

int data_id_ensure(const char *data_dir, char out[ID_SIZE], struct error *err)
{
    char fresh[ID_SIZE];
    char path[PATH_SIZE];
    char line[ID_SIZE + 1];
    int r;

    r = data_id_read(data_dir, out, err);
    if (r < 0 || out[0] != '\0') {
        return r;
    }
    id_path(data_dir, path);
    r = id_make(DATA_ID_KIND, fresh);
    if (r == 0) {
        (void)snprintf(line, sizeof(line), "%s\n", fresh);
        r = file_write_atomic(AT_FDCWD, path, span_of_str(line), 0644, true);
    }
    if (r < 0) {
        return error_set(err, -r, "cannot write %.200s: %s", path, strerror(-r));
    }
    memcpy(out, fresh, ID_SIZE);
    return 0;
}
