#include "node/fuzz_dir.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fd.h"

#define PATH_SIZE 512

void fuzz_require(bool good)
{
    if (!good) {
        abort();
    }
}

void fuzz_dir_make(char path[FUZZ_DIR_SIZE])
{
    (void)snprintf(path, FUZZ_DIR_SIZE, "%s/node-fuzz-XXXXXX",
                   access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    fuzz_require(mkdtemp(path) != NULL);
}

void fuzz_dir_remove(const char *path)
{
    fuzz_require(dir_remove_tree(AT_FDCWD, path) == 0);
}

void fuzz_put(const char *dir, const char *name, struct span content)
{
    _cleanup_close_ int fd = -1;
    char path[PATH_SIZE];

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    fuzz_require(fd >= 0 && fd_write_all(fd, content) == 0);
}

struct span fuzz_take(struct span *rest)
{
    size_t end = span_find(*rest, 0, '\0');
    struct span part = span_head(*rest, end);

    *rest = span_skip(*rest, end + 1);
    return part;
}
