#include "guest/killed.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/fd.h"
#include "guest/agent.h"
#include "guest/console.h"

#define RECORD_BYTES 8192U /* the kernel's own limit of one */
#define RECORDS_MAX  64    /* in one go: a flood of messages must not keep the agent */
#define GROUP_BYTES  512U
#define FACILITY_ONE 8U /* priorities from here on are not the kernel's */
#define PREFIX       "Out of memory: Killed process "
#define GROUP_PREFIX "0::/space/"

static bool take(struct span *s, const char *text)
{
    struct span wanted = span_of_str(text);

    if (!span_equals(span_head(*s, wanted.n), wanted)) {
        return false;
    }
    *s = span_skip(*s, wanted.n);
    return true;
}

/* "3,812,5031112,-;Out of memory: Killed process 412 (python3) total-vm:…" */
pid_t killed_parse_record(struct span record)
{
    struct span priority = span_head(record, span_find(record, 0, ','));
    struct span text = span_skip(record, span_find(record, 0, ';') + 1);
    uint64_t number;

    if (span_parse_u64(priority, UINT32_MAX, &number) < 0 || number >= FACILITY_ONE ||
        !take(&text, PREFIX) ||
        span_parse_u64(span_head(text, span_find(text, 0, ' ')), INT32_MAX, &number) < 0) {
        return 0;
    }
    return (pid_t)number;
}

uint32_t killed_parse_group(struct span text)
{
    uint64_t number;
    size_t end = 0;

    if (!take(&text, GROUP_PREFIX)) {
        return 0;
    }
    while (end < text.n && text.p[end] >= '0' && text.p[end] <= '9') {
        end++;
    }
    /* Groups that a command made below its own belong to it. */
    if (end == text.n || (text.p[end] != '/' && text.p[end] != '\n') ||
        span_parse_u64(span_head(text, end), UINT32_MAX, &number) < 0) {
        return 0;
    }
    return (uint32_t)number;
}

static uint32_t group_of(pid_t pid)
{
    char text[GROUP_BYTES];
    char path[32];
    _cleanup_close_ int fd = -1;
    ssize_t n;

    (void)snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, text, sizeof(text));
    return n <= 0 ? 0 : killed_parse_group(span_make(text, (size_t)n));
}

static struct channel *find_channel(struct agent *a, pid_t pid)
{
    struct channel *found = channels_find_pid(&a->channels, pid);
    uint32_t group = found != NULL ? 0 : group_of(pid);
    struct list *it;
    struct list *next;

    if (group == 0) {
        return found;
    }
    list_foreach(it, next, &a->channels.all)
    {
        struct channel *c = list_entry(it, struct channel, in_all);

        if (c->cgroup.number == group) {
            return c;
        }
    }
    return NULL;
}

void killed_read(struct agent *a)
{
    char text[RECORD_BYTES];

    if (a->killed.fd < 0) {
        return;
    }
    for (int i = 0; i < RECORDS_MAX; i++) {
        ssize_t n = read(a->killed.fd, text, sizeof(text));
        pid_t pid = n <= 0 ? 0 : killed_parse_record(span_make(text, (size_t)n));
        struct channel *c = pid <= 0 ? NULL : find_channel(a, pid);

        if (c != NULL) {
            c->out_of_memory = true;
        }
        /* EPIPE: the log was faster, and it goes on with the oldest that is left. */
        if (n == 0 || (n < 0 && errno != EPIPE && errno != EINTR)) {
            return;
        }
    }
}

static void on_messages(struct source *s, uint32_t events)
{
    (void)events;
    killed_read(source_owner(s, struct agent, killed));
}

void killed_open(struct agent *a)
{
    int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    a->killed = (struct source){.fd = -1, .on_ready = on_messages};
    if (fd >= 0 && lseek(fd, 0, SEEK_END) < 0) {
        (void)close(fd);
        fd = -1;
    }
    if (fd < 0 || source_open(&a->killed, a->epoll_fd, fd, EPOLLIN) < 0) {
        console_say("what the kernel ends for want of memory is not watched");
    }
}
