/* Unpacks arbitrary bytes as a tar archive into a fresh directory. Beside not crashing: whatever
 * the archive says, a file, a link and a directory beside the top stay as they are. */
#include "cli/unpack.h"

#include <archive.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/fd.h"

#define INPUT_MAX 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok) {
        abort();
    }
}

static void unpack_bytes(int top_fd, const uint8_t *data, size_t size)
{
    struct archive *reader = unpack_new_reader();
    struct unpack u = {.top_fd = top_fd, .top_is_new = size % 2 == 0};
    struct error err = {0};

    must(reader != NULL);
    if (archive_read_open_memory(reader, data, size) == ARCHIVE_OK) {
        (void)unpack_all(&u, reader, &err);
    }
    (void)archive_read_free(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char base[] = "/tmp/unpack-fuzz-XXXXXX";
    struct stat before;
    struct stat after;
    struct stat link;
    int base_fd;
    int top_fd;

    if (size > INPUT_MAX) {
        return 0;
    }
    (void)setlocale(LC_CTYPE, "C.UTF-8");
    must(mkdtemp(base) != NULL);
    base_fd = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(mkdirat(base_fd, "top", 0755) == 0 && mkdirat(base_fd, "top/d", 0755) == 0);
    must(symlinkat("../..", base_fd, "top/d/up") == 0);
    must(symlinkat("..", base_fd, "top/l") == 0);
    must(fstat(base_fd, &before) == 0);
    top_fd = openat(base_fd, "top", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    unpack_bytes(top_fd, data, size);
    must(fstat(base_fd, &after) == 0);
    /* Nothing was made, removed or renamed beside the top. */
    must(before.st_mtim.tv_sec == after.st_mtim.tv_sec &&
         before.st_mtim.tv_nsec == after.st_mtim.tv_nsec && before.st_mode == after.st_mode);
    must(fstatat(base_fd, "top", &link, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(link.st_mode));
    (void)close(top_fd);
    (void)close(base_fd);
    must(dir_remove_tree(AT_FDCWD, base) == 0);
    return 0;
}
