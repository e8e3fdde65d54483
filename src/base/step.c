#include "base/step.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/stat.h>

#include "base/fd.h"

#define LOOK_NS 1000000

struct step_file {
    uint32_t armed;
    uint32_t count;
    uint32_t reached;
    uint32_t go;
    char name[STEP_NAME_SIZE];
};

struct step_state {
    struct step_file *file; /* NULL: nobody watches */
    int log_fd;
    pthread_mutex_t lock;
};

/* NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables) set once in main */
static struct step_state steps = {NULL, -1, PTHREAD_MUTEX_INITIALIZER};

static int open_beside(const char *run_dir, const char *program, const char *suffix, int flags)
{
    char path[512];
    int n = snprintf(path, sizeof(path), "%s/steps/%s%s", run_dir, program, suffix);

    return n < 0 || (size_t)n >= sizeof(path) ? -1 : open(path, flags | O_CLOEXEC | O_NOFOLLOW);
}

/* Whoever can write it can stop a daemon: root's or the daemon's own, and nobody else's to write.
 */
static bool is_trusted(int fd, struct stat *ret)
{
    return fstat(fd, ret) == 0 && S_ISREG(ret->st_mode) &&
           (ret->st_uid == 0 || ret->st_uid == geteuid()) && (ret->st_mode & 0022) == 0;
}

void step_init(const char *run_dir, const char *program)
{
    _cleanup_close_ int fd = open_beside(run_dir, program, "", O_RDWR | O_NONBLOCK);
    _cleanup_close_ int log_fd =
        open_beside(run_dir, program, ".log", O_WRONLY | O_APPEND | O_NONBLOCK);
    struct stat st;
    void *memory;

    if (fd < 0 || log_fd < 0 || !is_trusted(log_fd, &st) || !is_trusted(fd, &st) ||
        st.st_size < (off_t)STEP_FILE_BYTES) {
        return;
    }
    memory = mmap(NULL, STEP_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED) {
        steps.file = memory;
        steps.log_fd = TAKE_FD(log_fd);
    }
}

bool step_is_watched(void)
{
    return steps.file != NULL;
}

static bool is_wanted(struct step_file *file, const char *name)
{
    if (__atomic_load_n(&file->armed, __ATOMIC_ACQUIRE) != 1 ||
        strncmp(file->name, name, sizeof(file->name)) != 0) {
        return false;
    }
    if (file->count > 1) {
        file->count--;
        return false;
    }
    __atomic_store_n(&file->armed, 0, __ATOMIC_RELEASE); /* whoever comes after it does not wait */
    return true;
}

static void wait_there(struct step_file *file)
{
    const struct timespec look = {0, LOOK_NS};

    __atomic_store_n(&file->reached, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&file->go, __ATOMIC_ACQUIRE) != 1) {
        (void)nanosleep(&look, NULL);
    }
}

void step(const char *format, ...)
{
    char line[STEP_NAME_SIZE + 1];
    va_list args;
    bool wanted;
    size_t n;

    if (steps.file == NULL) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(line, STEP_NAME_SIZE, format, args);
    va_end(args);
    (void)pthread_mutex_lock(&steps.lock);
    wanted = is_wanted(steps.file, line);
    n = strlen(line);
    line[n] = '\n';
    (void)fd_write_all(steps.log_fd, span_make(line, n + 1));
    line[n] = '\0';
    (void)pthread_mutex_unlock(&steps.lock);
    if (wanted) {
        wait_there(steps.file);
    }
}
