#include "guest/metrics.h"

#include <fcntl.h>

#include <sys/statvfs.h>

#include "base/cleanup.h"
#include "guest/cgroup.h"

#define TEXT_BYTES    8192U /* what is looked for stands near the beginning */
#define NS_PER_SECOND 1000000000U
#define KIB           1024U

/* Columns of the first line of /proc/stat in which no processor was busy for this guest: idle,
 * waiting, and taken by the host. The two behind them are counted in others already. */
enum {
    COLUMN_IDLE = 3,
    COLUMN_IOWAIT = 4,
    COLUMN_STEAL = 7,
    COLUMNS = 8
};

/* Takes the next word off *rest. */
static struct span take_word(struct span *rest)
{
    struct span word;

    while (rest->n > 0 && (rest->p[0] == ' ' || rest->p[0] == '\t')) {
        *rest = span_skip(*rest, 1);
    }
    word = span_head(*rest, span_find(*rest, 0, ' '));
    *rest = span_skip(*rest, word.n);
    return word;
}

uint64_t metrics_parse_cpu(struct span stat, uint64_t ticks_per_second)
{
    struct span line = span_head(stat, span_find(stat, 0, '\n'));
    uint64_t busy = 0;

    if (!span_equals_str(take_word(&line), "cpu") || ticks_per_second == 0) {
        return 0;
    }
    for (int i = 0; i < COLUMNS; i++) {
        uint64_t ticks;

        if (span_parse_u64(take_word(&line), UINT64_MAX / NS_PER_SECOND, &ticks) < 0) {
            break;
        }
        if (i != COLUMN_IDLE && i != COLUMN_IOWAIT && i != COLUMN_STEAL) {
            busy += ticks;
        }
    }
    return busy * (NS_PER_SECOND / ticks_per_second);
}

uint64_t metrics_parse_memory(struct span meminfo, const char *name)
{
    while (meminfo.n > 0) {
        size_t n = span_find(meminfo, 0, '\n');
        struct span line = span_head(meminfo, n);
        uint64_t kib;

        meminfo = span_skip(meminfo, n + 1);
        if (span_equals_str(take_word(&line), name)) {
            return span_parse_u64(take_word(&line), UINT64_MAX / KIB, &kib) < 0 ? 0 : kib * KIB;
        }
    }
    return 0;
}

static struct span read_text(const char *path, uint8_t text[TEXT_BYTES])
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, TEXT_BYTES);

    return span_make(text, n < 0 ? 0 : (size_t)n);
}

static void take_memory(struct service_sample *ret)
{
    uint8_t bytes[TEXT_BYTES];
    struct span text = read_text("/proc/meminfo", bytes);
    uint64_t available = metrics_parse_memory(text, "MemAvailable:");

    ret->memory_total_bytes = metrics_parse_memory(text, "MemTotal:");
    ret->memory_used_bytes =
        ret->memory_total_bytes > available ? ret->memory_total_bytes - available : 0;
}

static void take_disk(struct service_sample *ret)
{
    struct statvfs fs;

    if (statvfs("/", &fs) == 0) {
        ret->disk_total_bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
        ret->disk_used_bytes = (uint64_t)(fs.f_blocks - fs.f_bfree) * fs.f_frsize;
    }
}

/* What counts against the limit of the users' processes: threads too. */
static uint32_t count_processes(void)
{
    uint8_t bytes[TEXT_BYTES];
    struct span text = read_text(CGROUP_SPACE "/pids.current", bytes);
    uint64_t count;

    text = span_head(text, span_find(text, 0, '\n'));
    return span_parse_u64(text, UINT32_MAX, &count) < 0 ? 0 : (uint32_t)count;
}

void metrics_take(struct service_sample *ret)
{
    uint8_t bytes[TEXT_BYTES];
    struct span text = read_text("/proc/stat", bytes);
    long ticks = sysconf(_SC_CLK_TCK);

    *ret = (struct service_sample){.processes = count_processes()};
    ret->cpu_ns = metrics_parse_cpu(text, ticks > 0 ? (uint64_t)ticks : 0);
    take_memory(ret);
    take_disk(ret);
}
