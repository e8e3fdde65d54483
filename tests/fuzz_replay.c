/* Replays a corpus directory through a fuzz target, for compilers without libFuzzer. */
#include <fcntl.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/fd.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv)
{
    _cleanup_closedir_ DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    const struct dirent *entry;
    int files = 0;

    if (dir == NULL) {
        (void)fprintf(stderr, "usage: %s CORPUS-DIRECTORY (it must exist)\n", argv[0]);
        return 1;
    }
    while ((entry = readdir(dir)) != NULL) {
        _cleanup_buf_ struct buf content = buf_make(1U << 24U);

        if (entry->d_name[0] == '.') {
            continue;
        }
        if (file_read(dirfd(dir), entry->d_name, 1U << 24U, &content) < 0) {
            (void)fprintf(stderr, "cannot read %s\n", entry->d_name);
            return 1;
        }
        (void)LLVMFuzzerTestOneInput(content.p, content.n);
        files++;
    }
    (void)printf("%d corpus files replayed\n", files);
    return files > 0 ? 0 : 1;
}
