#include "node/ram_stage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include <sys/mman.h>

#include "base/buf.h"
#include "base/fd.h"
#include "node/admission.h"
#include "node/cgroup_own.h"
#include "node/ram_layer.h"

#define MIB         1048576ULL
#define SPARE_BYTES (4 * MIB)
#define GROWTH_MAX  (32 * MIB)
#define RUNS_MAX    65536U
#define MEMINFO_MAX 16384U
#define CGROUP_ROOT "/sys/fs/cgroup"

struct stage_run {
    uint32_t first;
    uint32_t pages;
};

struct ram_stage {
    struct ram_view view;
    uint8_t *bytes;
    size_t room;
    size_t used;
    struct stage_run *runs;
    uint32_t count;
    bool is_full;
};

static int count_run(void *arg, uint32_t first, uint32_t pages)
{
    uint64_t *count = arg;

    (void)first;
    *count += pages;
    return 0;
}

uint64_t ram_stage_limit_mib(uint64_t available_mib, uint64_t reserve_mib, uint64_t group_mib)
{
    uint64_t limit = available_mib > reserve_mib ? (available_mib - reserve_mib) / 4 : 0;

    if (limit < RAM_STAGE_MIB_MIN) {
        limit = RAM_STAGE_MIB_MIN;
    }
    if (limit > RAM_STAGE_MIB_MAX) {
        limit = RAM_STAGE_MIB_MAX;
    }
    return limit < group_mib / 4 ? limit : group_mib / 4;
}

static uint64_t limit_bytes(uint64_t reserve_mib)
{
    _cleanup_buf_ struct buf text = buf_make(MEMINFO_MAX);
    _cleanup_buf_ struct buf self = buf_make(CGROUP_OWN_TEXT_MAX);
    uint64_t group = UINT64_MAX;
    uint64_t available = 0;
    uint64_t total;

    if (file_read(AT_FDCWD, "/proc/meminfo", MEMINFO_MAX, &text) < 0 ||
        admission_parse_meminfo(buf_str(&text), &total, &available) < 0) {
        available = 0;
    }
    if (file_read(AT_FDCWD, "/proc/self/cgroup", CGROUP_OWN_TEXT_MAX, &self) == 0) {
        group = cgroup_own_room(CGROUP_ROOT, buf_span(&self));
    }
    return ram_stage_limit_mib(available, reserve_mib, group / MIB) * MIB;
}

static int make_room(struct ram_stage *stage, uint64_t reserve_mib)
{
    uint64_t limit = limit_bytes(reserve_mib);
    uint64_t pages = 0;
    uint64_t bytes;
    uint64_t more;
    void *room;
    int r = ram_view_each(&stage->view, count_run, &pages);

    if (r < 0) {
        return r;
    }
    bytes = pages * RAM_PAGE_BYTES;
    if (bytes > limit) {
        return -EFBIG;
    }
    more = SPARE_BYTES + (bytes / 2 < GROWTH_MAX ? bytes / 2 : GROWTH_MAX);
    bytes += more < limit - bytes ? more : limit - bytes;
    stage->runs = malloc(RUNS_MAX * sizeof(*stage->runs));
    room = stage->runs == NULL ? MAP_FAILED
                               : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (room == MAP_FAILED) {
        return -ENOMEM;
    }
    stage->bytes = room;
    stage->room = bytes;
    return 0;
}

struct ram_stage *ram_stage_new(int proc_fd, int image_fd, bool is_memfd, uint64_t reserve_mib)
{
    struct ram_stage *stage = calloc(1, sizeof(*stage));
    struct error err;

    if (stage == NULL) {
        return NULL;
    }
    if (ram_view_open(proc_fd, image_fd, is_memfd, &stage->view, &err) < 0) {
        free(stage);
        return NULL;
    }
    if (make_room(stage, reserve_mib) < 0) {
        ram_stage_free(stage);
        return NULL;
    }
    return stage;
}

void ram_stage_free(struct ram_stage *stage)
{
    if (stage == NULL) {
        return;
    }
    if (stage->bytes != NULL) {
        (void)munmap(stage->bytes, stage->room);
    }
    ram_view_close(&stage->view);
    free(stage->runs);
    free(stage);
}

static int take_run(void *arg, uint32_t first, uint32_t pages)
{
    struct ram_stage *stage = arg;
    size_t n = (size_t)pages * RAM_PAGE_BYTES;
    int r;

    if (stage->count == RUNS_MAX || n > stage->room - stage->used) {
        stage->is_full = true;
        return -E2BIG;
    }
    r = ram_view_read(&stage->view, first, pages, &stage->bytes[stage->used]);
    if (r == 0) {
        stage->runs[stage->count++] = (struct stage_run){first, pages};
        stage->used += n;
    }
    return r;
}

int ram_stage_take(struct ram_stage *stage)
{
    int r = ram_view_each(&stage->view, take_run, stage);

    if (r < 0) {
        return stage->is_full ? 0 : r;
    }
    return 1;
}

uint64_t ram_stage_pages(const struct ram_stage *stage)
{
    return stage->used / RAM_PAGE_BYTES;
}

int ram_stage_each(const struct ram_stage *stage, ram_stage_fn fn, void *arg)
{
    const uint8_t *bytes = stage->bytes;
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < stage->count; i++) {
        r = fn(arg, stage->runs[i].first, stage->runs[i].pages, bytes);
        bytes += (size_t)stage->runs[i].pages * RAM_PAGE_BYTES;
    }
    return r;
}
