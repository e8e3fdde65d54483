#include "guest/pressure.h"

#include <fcntl.h>

#include "base/fd.h"
#include "guest/console.h"
#include "guest/metrics.h"

/* Two seconds of ten in which some process waited for memory. Streams of files, which fill the
 * memory too, were measured at about one. */
#define TRIGGER    "some 2000000 10000000"
#define SHORT_PART 8U /* of all memory */
#define TEXT_BYTES 16384U

bool pressure_is_short(struct span meminfo)
{
    uint64_t total = metrics_parse_memory(meminfo, "MemTotal:");

    return metrics_parse_memory(meminfo, "MemAvailable:") < total / SHORT_PART;
}

static struct span read_text(const char *path, char text[TEXT_BYTES])
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, TEXT_BYTES);

    return span_make(text, n < 0 ? 0 : (size_t)n);
}

static bool is_short_now(void)
{
    char text[TEXT_BYTES];

    return pressure_is_short(read_text("/proc/meminfo", text));
}

/* Whether the kernel ended a process itself since the last question: that comes first. */
static bool has_ended_one(struct pressure *p)
{
    char text[TEXT_BYTES];
    uint64_t before = p->ended;

    p->ended = metrics_parse_memory(read_text("/proc/vmstat", text), "oom_kill");
    return p->ended != before;
}

/* The kernel's own way to end one: it never panics for want of a process to end. */
static void end_one(void)
{
    _cleanup_close_ int fd = open("/proc/sysrq-trigger", O_WRONLY | O_CLOEXEC);

    if (fd < 0 || fd_write_all(fd, span_of_str("f")) < 0) {
        console_say("cannot end a process that is short of memory");
    }
}

static void on_pressure(struct source *s, uint32_t events)
{
    struct pressure *p = source_owner(s, struct pressure, source);

    if ((events & EPOLLPRI) != 0 && !has_ended_one(p) && is_short_now()) {
        end_one();
    }
}

void pressure_open(struct pressure *p, int epoll_fd)
{
    int fd = open("/proc/pressure/memory", O_RDWR | O_NONBLOCK | O_CLOEXEC);

    p->source = (struct source){.fd = -1, .on_ready = on_pressure};
    /* The kernel wants the NUL. */
    if (fd < 0 || fd_write_all(fd, span_make(TRIGGER, sizeof(TRIGGER))) < 0) {
        cleanup_close(&fd);
        return;
    }
    if (source_open(&p->source, epoll_fd, fd, EPOLLPRI) < 0) {
        console_say("pressure on memory is not watched");
    }
}

void pressure_close(struct pressure *p)
{
    source_close(&p->source);
}
