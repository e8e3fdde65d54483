#include "api/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <sys/mman.h>

#include "api/api.h"
#include "base/fd.h"

void spill_init(struct spill *spill, struct api *api, struct key_entry *key, uint64_t max)
{
    *spill = (struct spill){.api = api, .key = key, .max = max, .fd = -1, .memory = buf_make(0)};
}

void spill_done(struct spill *spill)
{
    if (spill->mapped != NULL) {
        (void)munmap(TAKE(spill->mapped), (size_t)spill->n);
    }
    if (spill->fd >= 0) {
        (void)close(TAKE_FD(spill->fd));
        spill->api->spilled_bytes -= spill->counted;
        if (spill->key != NULL) {
            spill->key->spilled_bytes -= spill->counted;
        }
        spill->counted = 0;
    }
    buf_done(&spill->memory);
    spill->n = 0;
}

int spill_open_named(const char *dir)
{
    char path[SETTINGS_PATH_SIZE + 32];
    int fd;

    (void)snprintf(path, sizeof(path), "%s/.spill", dir);
    (void)unlink(path); /* of a run that was killed just here */
    fd = open(path, O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        return -errno;
    }
    (void)unlink(path);
    return fd;
}

static int open_file(struct spill *spill)
{
    char dir[SETTINGS_PATH_SIZE + 16];
    int fd;

    (void)snprintf(dir, sizeof(dir), "%s/store", spill->api->settings.data_dir);
    fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        int r = errno == EOPNOTSUPP || errno == EISDIR ? 0 : -errno;

        fd = r == 0 ? spill_open_named(dir) : r;
    }
    if (fd < 0) {
        return fd;
    }
    spill->fd = fd;
    return 0;
}

static int write_file(struct spill *spill, struct span bytes)
{
    if (spill->api->spilled_bytes + bytes.n > SPILL_ALL_MAX ||
        (spill->key != NULL && spill->key->spilled_bytes + bytes.n > SPILL_KEY_MAX)) {
        return -EDQUOT;
    }
    spill->counted += bytes.n;
    spill->api->spilled_bytes += bytes.n;
    if (spill->key != NULL) {
        spill->key->spilled_bytes += bytes.n;
    }
    return fd_write_all(spill->fd, bytes);
}

static int put(struct spill *spill, struct span bytes)
{
    int r = 0;

    if (bytes.n > spill->max - spill->n) {
        return -EMSGSIZE;
    }
    if (spill->fd < 0 && spill->memory.n + bytes.n <= SPILL_MEMORY_MAX) {
        buf_put(&spill->memory, bytes);
        return buf_error(&spill->memory);
    }
    if (spill->fd < 0) {
        r = open_file(spill);
        if (r == 0) {
            r = write_file(spill, buf_span(&spill->memory));
        }
        buf_done(&spill->memory);
    }
    return r < 0 ? r : write_file(spill, bytes);
}

void spill_put(struct spill *spill, struct span bytes)
{
    if (spill->error < 0) {
        return;
    }
    spill->error = put(spill, bytes);
    if (spill->error < 0) {
        spill_done(spill); /* nobody gets a part of it */
        return;
    }
    spill->n += bytes.n;
}

int spill_read(struct spill *spill, struct span *ret_bytes)
{
    if (spill->error == 0 && spill->fd >= 0 && spill->mapped == NULL) {
        void *all = mmap(NULL, (size_t)spill->n, PROT_READ, MAP_PRIVATE, spill->fd, 0);

        if (all == MAP_FAILED) {
            spill->error = -errno;
        } else {
            spill->mapped = all;
        }
    }
    if (spill->error == 0) {
        *ret_bytes =
            spill->fd < 0 ? buf_span(&spill->memory) : span_make(spill->mapped, (size_t)spill->n);
    }
    return spill->error;
}
