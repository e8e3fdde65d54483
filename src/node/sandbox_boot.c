#include "node/sandbox_boot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/fd.h"
#include "node/node_private.h"
#include "node/sandbox_private.h"

#define MIB 1048576U

/* Of ext4's superblock: a number that every one has. */
#define MAGIC_OFFSET 1080
#define MAGIC_LOW    0x53U
#define MAGIC_HIGH   0xefU

void sandbox_boot_describe(const struct sandbox *sb, struct sandbox_boot *ret)
{
    *ret = (struct sandbox_boot){.memory_mib = sb->info.memory_mib, .disk_mib = sb->info.disk_mib};
    sandbox_dir_path(sb, "", ret->dir, sizeof(ret->dir));
    (void)snprintf(ret->base_ram, sizeof(ret->base_ram), "%.400s/bases/%s-%u-%u/ram",
                   sb->node->parts->volume, sandbox_base_version(sb), sb->info.vcpus,
                   sb->info.memory_mib);
}

static int refuse(struct error *err, const char *why)
{
    return error_set_code(err, ERROR_FAILED_PRECONDITION, sandbox_state_name(SANDBOX_STATE_ERROR),
                          "%s", why);
}

/* The guest has written this disk: two bytes of it are compared, and nothing follows them. */
static int check_disk(const struct sandbox_boot *boot, struct error *err)
{
    char path[SNAPSHOT_PATH_SIZE + 16];
    _cleanup_close_ int fd = -1;
    uint8_t magic[2] = {0};
    struct stat st;

    (void)snprintf(path, sizeof(path), "%s/disk.img", boot->dir);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) {
        return refuse(err, "its disk is gone");
    }
    if (fd < 0 || fstat(fd, &st) < 0) {
        return error_set(err, errno, "its disk cannot be opened: %s", strerror(errno));
    }
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size < (uint64_t)boot->disk_mib * MIB) {
        return refuse(err, "its disk is damaged: it is shorter than it was");
    }
    if (pread(fd, magic, sizeof(magic), MAGIC_OFFSET) != (ssize_t)sizeof(magic) ||
        magic[0] != MAGIC_LOW || magic[1] != MAGIC_HIGH) {
        return refuse(err, "its disk is damaged: there is no file system on it");
    }
    return 0;
}

/* One that an earlier release created has no name of the image yet. */
static int check_ram(const struct sandbox_boot *boot, struct error *err)
{
    char path[SNAPSHOT_PATH_SIZE + 16];
    struct stat st;

    (void)snprintf(path, sizeof(path), "%s/ram", boot->dir);
    if (lstat(path, &st) < 0 && (link(boot->base_ram, path) < 0 || lstat(path, &st) < 0)) {
        return refuse(err, "the base image that its memory stands on is gone");
    }
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != (uint64_t)boot->memory_mib * MIB) {
        return refuse(err, "the base image that its memory stands on is damaged");
    }
    return 0;
}

int sandbox_boot_check(const struct sandbox_boot *boot, struct error *err)
{
    int r = check_disk(boot, err);

    return r == 0 ? check_ram(boot, err) : r;
}
