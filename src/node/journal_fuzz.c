/* Journals as a crash, a full disk or a hand may leave them: what is taken for one is the same when
 * it is written and read again. */
#include "node/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"

#define TEXT_MAX 65536U

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

/* As sandbox.c has it, which would bring the node with it. */
const char *sandbox_state_name(enum sandbox_state state)
{
    static const char *const names[] = {"creating",   "running",   "pausing",  "paused", "waking",
                                        "suspending", "suspended", "deleting", "error",  "deleted"};

    _Static_assert(sizeof(names) / sizeof(names[0]) == SANDBOX_STATE_COUNT, "one each");

    return names[state];
}

/* A directory of its own for each input: targets run side by side. */
static int make_dir(char path[64])
{
    (void)snprintf(path, 64, "%s/journal-fuzz-XXXXXX",
                   access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    require(mkdtemp(path) != NULL);
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void put(int dir_fd, const uint8_t *data, size_t size)
{
    _cleanup_close_ int fd =
        openat(dir_fd, JOURNAL_FILE, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    require(fd >= 0 && fd_write_all(fd, span_make(data, size)) == 0);
}

static void write_again(int dir_fd, const struct journal *journal, struct buf *ret_text)
{
    require(journal_write(dir_fd, journal) == 0 &&
            file_read(dir_fd, JOURNAL_FILE, TEXT_MAX, ret_text) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_buf_ struct buf first = buf_make(0);
    _cleanup_buf_ struct buf second = buf_make(0);
    _cleanup_close_ int dir_fd = -1;
    struct journal journal;
    char path[64];
    int r;

    dir_fd = make_dir(path);
    require(dir_fd >= 0);
    put(dir_fd, data, size);
    r = journal_read(dir_fd, &journal);
    require(r == 0 || r == -EBADMSG);
    if (r == 0) {
        write_again(dir_fd, &journal, &first);
        require(journal_read(dir_fd, &journal) == 0);
        write_again(dir_fd, &journal, &second);
        require(span_equals(buf_span(&first), buf_span(&second)));
    }
    require(dir_remove_tree(AT_FDCWD, path) == 0);
    return 0;
}
