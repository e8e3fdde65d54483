/* Falling silent before a snapshot, and waking.
 *
 *   speaking --SILENCE--> falling silent --frozen, synced, RESULT--> silent
 *   silent --WAKE--> speaking         (the same guest: identity valid, processes thawed)
 *   falling silent --WAKE--> speaking (nobody waits for it any more: SILENCE is canceled)
 *   silent --HELLO--> speaking        (perhaps a copy: processes stay frozen until an identity)  */
#include <errno.h>
#include <fcntl.h>

#include "base/clock.h"
#include "guest/agent.h"

/* A process in uninterruptible sleep cannot be frozen; the host is told. */
#define FREEZE_LIMIT_MS 5000

static int sync_root(void)
{
    _cleanup_close_ int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd < 0 || syncfs(fd) < 0 ? -errno : 0;
}

static void unwatch_freezers(struct agent *a)
{
    source_close(&a->freezer);
    source_close(&a->services_freezer);
}

static void end_silence(struct agent *a, int r)
{
    unwatch_freezers(a);
    if (r == 0 && (a->silence_flags & AGENT_SILENCE_SYNC) != 0 && a->is_guest) {
        r = sync_root();
    }
    agent_result(a, 0, a->silence_id, r);
    if (r < 0) {
        a->voice = AGENT_SPEAKING;
        if ((a->silence_flags & AGENT_SILENCE_FREEZE) != 0) {
            (void)cgroups_freeze(&a->cgroups, false);
        }
        return;
    }
    a->voice = AGENT_FROZEN_SILENT;
    a->thaw_pending = (a->silence_flags & AGENT_SILENCE_FREEZE) != 0;
    identity_suspend(&a->identity);
}

void agent_continue_silence(struct agent *a, int64_t now_ms)
{
    int frozen;

    if (a->voice != AGENT_FALLING_SILENT) {
        return;
    }
    frozen = cgroups_is_frozen(&a->cgroups);
    if (frozen > 0) {
        end_silence(a, 0);
    } else if (frozen < 0 || now_ms >= a->silence_until_ms) {
        end_silence(a, frozen < 0 ? frozen : -ETIMEDOUT);
    }
}

static void on_freezer(struct source *s, uint32_t events)
{
    (void)events;
    agent_continue_silence(source_owner(s, struct agent, freezer), clock_monotonic_ms());
}

static void on_services_freezer(struct source *s, uint32_t events)
{
    (void)events;
    agent_continue_silence(source_owner(s, struct agent, services_freezer), clock_monotonic_ms());
}

static int watch_group(struct agent *a, struct source *s, int group_fd)
{
    int fd = openat(group_fd, "cgroup.events", O_RDONLY | O_CLOEXEC);
    char byte;

    /* The kernel reports a change only after a read. */
    if (fd < 0 || read(fd, &byte, 1) < 0) {
        cleanup_close(&fd);
        return -EIO;
    }
    return source_open(s, a->epoll_fd, fd, EPOLLPRI);
}

static void watch_freezers(struct agent *a)
{
    a->freezer.on_ready = on_freezer;
    a->services_freezer.on_ready = on_services_freezer;
    if (watch_group(a, &a->freezer, a->cgroups.fd) < 0 ||
        (a->cgroups.services_fd >= 0 &&
         watch_group(a, &a->services_freezer, a->cgroups.services_fd) < 0)) {
        a->silence_until_ms = 0;
    }
}

void agent_begin_silence(struct agent *a, uint32_t id, uint8_t flags)
{
    int r = 0;

    if (a->voice != AGENT_SPEAKING) {
        agent_result(a, 0, id, -EBUSY);
        return;
    }
    a->voice = AGENT_FALLING_SILENT;
    a->silence_id = id;
    a->silence_flags = flags;
    a->silence_until_ms = clock_monotonic_ms() + FREEZE_LIMIT_MS;
    if ((flags & AGENT_SILENCE_FREEZE) == 0 || a->cgroups.fd < 0) {
        end_silence(a, 0);
        return;
    }
    watch_freezers(a);
    r = cgroups_freeze(&a->cgroups, true);
    if (r < 0) {
        end_silence(a, r);
        return;
    }
    agent_continue_silence(a, clock_monotonic_ms());
}

void agent_thaw(struct agent *a)
{
    if (a->thaw_pending) {
        a->thaw_pending = false;
        (void)cgroups_freeze(&a->cgroups, false);
    }
}

/* The clock first: what is thawed or told sees the right time. It speaks even without. */
void agent_wake(struct agent *a, const struct agent_wake *m)
{
    int r = a->is_guest ? identity_set_clock(m->realtime_ns) : 0;

    unwatch_freezers(a);
    if (a->voice == AGENT_FALLING_SILENT) {
        /* The host does not wait for the rest of it. */
        agent_result(a, 0, a->silence_id, -ECANCELED);
        a->thaw_pending = (a->silence_flags & AGENT_SILENCE_FREEZE) != 0;
    }
    a->voice = AGENT_SPEAKING;
    identity_restore(&a->identity);
    agent_thaw(a);
    agent_result(a, 0, m->id, r);
    agent_speak_again(a);
}

void agent_break_silence(struct agent *a)
{
    unwatch_freezers(a);
    if (a->voice == AGENT_FALLING_SILENT && (a->silence_flags & AGENT_SILENCE_FREEZE) != 0) {
        (void)cgroups_freeze(&a->cgroups, false); /* it was never granted */
    }
    a->voice = AGENT_SPEAKING;
}
