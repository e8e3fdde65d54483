/* The bare steps of a suspend and of the wake from it, in the order in which space-node takes them,
 * with no checksums, journal or worker between:
 *
 *   suspend  SILENCE that freezes and syncs; the host's pages of the disk; stop; device state; a
 * clone of the disk; the pages that the VMM has written and that differ from the base image, into
 *            a file; all of it on stable storage
 *   wake     a clone of the disk; a new VMM; the pages into its memory; the device state; HELLO and
 *            IDENTITY while it continues, until the agent has confirmed it
 *
 * And the same by what QEMU has of its own, its migration to a file and from it, with the same
 * SILENCE, clones of the disk, stable storage and handshake around it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <linux/fs.h>

#include "base/span.h"
#include "floor.h"
#include "wire/agent_message.h"

#define PAGE_BYTES   4096U
#define RUN_PAGES    256U
#define PATH_BYTES   512
#define MAPS_BYTES   1048576U
#define WORD_PRESENT (1ULL << 63U)
#define WORD_SWAPPED (1ULL << 62U)
#define WORD_FILE    (1ULL << 61U)

/* The base image as the VMM maps it. */
struct image {
    char path[PATH_BYTES];
    uint64_t address;
    uint64_t bytes;
    const uint8_t *content;
};

/* One piece of the file of pages; what it holds follows it. */
struct run {
    uint32_t first;
    uint32_t pages;
};

struct snapshot {
    char disk[PATH_BYTES];
    char state[PATH_BYTES];
    char memory[PATH_BYTES];
    char woken[PATH_BYTES]; /* the disk of the VM that was woken */
};

static uint64_t parse_hex(const char *text, size_t n)
{
    uint64_t value = 0;

    for (size_t i = 0; i < n; i++) {
        value = value << 4U | (uint64_t)(text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10);
    }
    return value;
}

/* The mapping of a file named "ram", which the base's is. */
static void find_image(pid_t pid, struct image *ret)
{
    static char text[MAPS_BYTES];
    char path[64];
    size_t n = 0;
    ssize_t got;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && (got = read(fd, &text[n], sizeof(text) - 1 - n)) > 0) {
        n += (size_t)got;
    }
    (void)close(fd);
    text[n] = '\0';
    for (char *line = text; line[0] != '\0';) {
        char *end = strchrnul(line, '\n');
        const char *name = memchr(line, '/', (size_t)(end - line));

        if (name != NULL && end - name > 4 && memcmp(end - 4, "/ram", 4) == 0) {
            size_t dash = strcspn(line, "-");
            size_t blank = strcspn(line, " ");

            ret->address = parse_hex(line, dash);
            ret->bytes = parse_hex(&line[dash + 1], blank - dash - 1) - ret->address;
            (void)snprintf(ret->path, sizeof(ret->path), "%.*s", (int)(end - name), name);
            return;
        }
        line = *end == '\0' ? end : end + 1;
    }
    errno = ENOENT;
    floor_die("the base image is not mapped");
}

static void map_image(struct image *image)
{
    int fd = open(image->path, O_RDONLY | O_CLOEXEC);
    void *content = fd < 0 ? MAP_FAILED : mmap(NULL, image->bytes, PROT_READ, MAP_SHARED, fd, 0);

    if (content == MAP_FAILED) {
        floor_die(image->path);
    }
    (void)close(fd);
    image->content = content;
}

static int create(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0) {
        floor_die(path);
    }
    return fd;
}

static void synchronise(int fd, const char *path)
{
    if (fsync(fd) < 0) {
        floor_die(path);
    }
    (void)close(fd);
}

static void clone_file(int source, const char *path, bool is_durable)
{
    int fd = create(path);

    if (ioctl(fd, FICLONE, source) < 0) {
        floor_die("the disk cannot be cloned (bench needs XFS or btrfs)");
    }
    if (is_durable) {
        synchronise(fd, path);
    } else {
        (void)close(fd);
    }
}

/* ---- out ---- */

static bool is_own(uint64_t word)
{
    return (word & (WORD_PRESENT | WORD_SWAPPED)) != 0 && (word & WORD_FILE) == 0;
}

static void write_pages(const struct floor *f, const struct image *image, struct run run, int file)
{
    static uint8_t bytes[(size_t)RUN_PAGES * PAGE_BYTES];
    const uint8_t *base = &image->content[(uint64_t)run.first * PAGE_BYTES];
    size_t n = (size_t)run.pages * PAGE_BYTES;
    struct iovec to = {bytes, n};
    struct iovec from = {(void *)(uintptr_t)(image->address + (uint64_t)run.first * PAGE_BYTES), n};

    if (process_vm_readv(f->pid, &to, 1, &from, 1, 0) != (ssize_t)n) {
        floor_die("process_vm_readv");
    }
    for (uint32_t at = 0; at < run.pages;) {
        uint32_t end = at;
        struct run piece;
        struct iovec parts[2];

        while (end < run.pages && memcmp(&bytes[(size_t)end * PAGE_BYTES],
                                         &base[(size_t)end * PAGE_BYTES], PAGE_BYTES) != 0) {
            end++;
        }
        piece = (struct run){run.first + at, end - at};
        parts[0] = (struct iovec){&piece, sizeof(piece)};
        parts[1] =
            (struct iovec){&bytes[(size_t)at * PAGE_BYTES], (size_t)piece.pages * PAGE_BYTES};
        if (end > at && writev(file, parts, 2) < 0) {
            floor_die("memory");
        }
        at = end > at ? end : at + 1;
    }
}

static void write_memory(const struct floor *f, const struct image *image, const char *path)
{
    uint64_t pages = image->bytes / PAGE_BYTES;
    uint64_t *words = calloc(pages, sizeof(*words));
    struct run run = {0, 0};
    int file = create(path);
    char name[64];
    int fd;

    (void)snprintf(name, sizeof(name), "/proc/%d/pagemap", (int)f->pid);
    fd = open(name, O_RDONLY | O_CLOEXEC);
    if (words == NULL || fd < 0 ||
        pread(fd, words, pages * sizeof(*words),
              (off_t)(image->address / PAGE_BYTES * sizeof(*words))) !=
            (ssize_t)(pages * sizeof(*words))) {
        floor_die(name);
    }
    (void)close(fd);
    for (uint64_t i = 0; i <= pages; i++) {
        if (i < pages && is_own(words[i]) && run.pages < RUN_PAGES) {
            run.first = run.pages == 0 ? (uint32_t)i : run.first;
            run.pages++;
            continue;
        }
        if (run.pages > 0) {
            write_pages(f, image, run, file);
        }
        run = (struct run){(uint32_t)i, i < pages && is_own(words[i]) ? 1 : 0};
    }
    free(words);
    synchronise(file, path);
}

static void save_devices(struct floor *f, const char *path)
{
    char command[PATH_BYTES + 128];

    (void)snprintf(command, sizeof(command),
                   "{\"execute\":\"xen-save-devices-state\",\"arguments\":"
                   "{\"filename\":\"%s\",\"live\":false}}\n",
                   path);
    floor_qmp_write(f, command, -1);
    floor_qmp_expect(f, "\"return\"");
}

/* The guest is silent, its disk is on stable storage, and it stands still. */
static void stand_still(struct floor *f)
{
    agent_id_format(&f->out, AGENT_SILENCE, AGENT_SILENCE_FREEZE | AGENT_SILENCE_SYNC, ++f->id);
    floor_flush(f);
    floor_await(f, AGENT_RESULT);
    if (fdatasync(FLOOR_DISK_FD) < 0) {
        floor_die("the disk");
    }
    floor_qmp_write(f, "{\"execute\":\"stop\"}\n", -1);
    floor_qmp_expect(f, "\"return\"");
}

static void suspend(struct floor *f, const struct snapshot *s)
{
    struct image image = {0};

    stand_still(f);
    save_devices(f, s->state);
    clone_file(FLOOR_DISK_FD, s->disk, true);
    find_image(f->pid, &image);
    map_image(&image);
    write_memory(f, &image, s->memory);
    (void)munmap((void *)(uintptr_t)image.content, image.bytes);
    synchronise(open(s->state, O_RDONLY | O_CLOEXEC), s->state);
}

/* Memory and devices by QEMU itself, as fast as it can, in place of what we take of them. */
static void migrate(struct floor *f, const struct snapshot *s)
{
    int file;

    stand_still(f);
    file = create(s->state);
    floor_qmp_write(f,
                    "{\"execute\":\"migrate-set-parameters\",\"arguments\":"
                    "{\"max-bandwidth\":1099511627776}}\n",
                    -1);
    floor_qmp_expect(f, "\"return\"");
    floor_qmp_write(f, "{\"execute\":\"getfd\",\"arguments\":{\"fdname\":\"out\"}}\n", file);
    floor_qmp_expect(f, "\"return\"");
    floor_qmp_write(f, "{\"execute\":\"migrate\",\"arguments\":{\"uri\":\"fd:out\"}}\n", -1);
    floor_qmp_expect(f, "\"completed\"");
    clone_file(FLOOR_DISK_FD, s->disk, true);
    synchronise(file, s->state);
}

/* ---- and in ---- */

static void read_exactly(int fd, void *out, size_t n)
{
    if (read(fd, out, n) != (ssize_t)n) {
        floor_die("memory");
    }
}

static void fill_memory(const struct floor *f, const char *path)
{
    static uint8_t bytes[(size_t)RUN_PAGES * PAGE_BYTES];
    struct image image = {0};
    struct run run;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    find_image(f->pid, &image);
    while (read(fd, &run, sizeof(run)) == (ssize_t)sizeof(run)) {
        size_t n = (size_t)run.pages * PAGE_BYTES;
        struct iovec from = {bytes, n};
        struct iovec to = {(void *)(uintptr_t)(image.address + (uint64_t)run.first * PAGE_BYTES),
                           n};

        read_exactly(fd, bytes, n);
        if (process_vm_writev(f->pid, &from, 1, &to, 1, 0) != (ssize_t)n) {
            floor_die("process_vm_writev");
        }
    }
    (void)close(fd);
}

/* Of QEMU's own, memory comes with the device state. */
static void wake(struct floor *f, const struct snapshot *s, char **qemu, bool fills_memory)
{
    int source = open(s->disk, O_RDONLY | O_CLOEXEC);

    clone_file(source, s->woken, false);
    (void)close(source);
    floor_open_at(s->woken, O_RDWR, FLOOR_DISK_FD);
    floor_open_at(s->woken, O_RDONLY, FLOOR_DISK_READ_FD);
    floor_start(f, qemu);
    if (fills_memory) {
        fill_memory(f, s->memory);
    }
    floor_load(f, s->state);
    floor_put_hello(f);
    floor_put_identity(f);
    floor_flush(f);
    floor_qmp_write(f, "{\"execute\":\"cont\"}\n", -1);
    floor_await(f, AGENT_IDENTITY_OK);
}

static void end_vmm(struct floor *f)
{
    (void)kill(f->pid, SIGKILL);
    (void)waitpid(f->pid, NULL, 0);
    (void)close(f->control);
    (void)close(f->agent);
}

static void measure_migration(struct floor *f, const struct snapshot *s, char **qemu)
{
    struct stat st = {0};
    double start;
    double end;

    floor_qmp_expect(f, "\"return\""); /* of the wake's `cont` */
    start = floor_now_ms();
    migrate(f, s);
    end = floor_now_ms();
    (void)stat(s->state, &st);
    (void)printf("\"migrate_ms\": %.3f, \"migrate_bytes\": %lld, ", end - start,
                 (long long)st.st_size);
    end_vmm(f);
    start = floor_now_ms();
    wake(f, s, qemu, false);
    (void)printf("\"migrate_back_ms\": %.3f, ", floor_now_ms() - start);
}

void floor_measure_suspend(struct floor *f, const char *disk, char **qemu)
{
    struct snapshot s;
    struct stat st = {0};
    double start;
    double end;

    (void)snprintf(s.disk, sizeof(s.disk), "%.480s.suspended", disk);
    (void)snprintf(s.state, sizeof(s.state), "%.480s.state", disk);
    (void)snprintf(s.memory, sizeof(s.memory), "%.480s.memory", disk);
    (void)snprintf(s.woken, sizeof(s.woken), "%.480s.woken", disk);
    start = floor_now_ms();
    suspend(f, &s);
    end = floor_now_ms();
    (void)stat(s.memory, &st);
    (void)printf("\"suspend_ms\": %.3f, \"suspend_bytes\": %lld, ", end - start,
                 (long long)st.st_size);
    end_vmm(f);
    start = floor_now_ms();
    wake(f, &s, qemu, true);
    (void)printf("\"resume_ms\": %.3f, ", floor_now_ms() - start);
    measure_migration(f, &s, qemu);
    (void)unlink(s.disk);
    (void)unlink(s.state);
    (void)unlink(s.memory);
    (void)unlink(s.woken);
}
