#include "guest/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>

#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <linux/random.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest/cgroup.h"
#include "guest/console.h"
#include "guest/disk.h"
#include "guest/hooks.h"
#include "guest/host_keys.h"
#include "guest/users.h"

#define KERNEL_BOOT_ID "/proc/sys/kernel/random/boot_id"
#define BOOT_ID_FILE   "/run/space/boot_id"
#define UUID_TEXT      37U /* with the line's end, without a NUL */
#define HEX_TEXT       33U
/* As long as the name that a sandbox gets when nobody chose one. */
#define REHEARSAL_HOSTNAME "sandbox-000000000000"
#define HOSTS_MAX          65536U
#define HOSTS_ADDRESS      "127.0.1.1\t"
#define DBUS_MACHINE_ID    "/var/lib/dbus/machine-id"
#define MACHINE_ID_FILE    "/etc/machine-id"

static void hex_put(struct buf *b, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        buf_printf(b, "%02x", (unsigned int)bytes[i]);
    }
}

static void uuid_format(struct buf *b, const uint8_t id[AGENT_ID_BYTES])
{
    hex_put(b, id, 4);
    for (size_t i = 4; i < 10; i += 2) {
        buf_put_str(b, "-");
        hex_put(b, &id[i], 2);
    }
    buf_put_str(b, "-");
    hex_put(b, &id[10], 6);
    buf_put_str(b, "\n");
}

static int hex_value(uint8_t c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void uuid_parse(struct span text, uint8_t id[AGENT_ID_BYTES])
{
    size_t digits = 0;

    for (size_t i = 0; i < text.n && digits < 2U * AGENT_ID_BYTES; i++) {
        int value = hex_value(text.p[i]);

        if (value >= 0) {
            id[digits / 2] = (uint8_t)((id[digits / 2] << 4) | value);
            digits++;
        }
    }
}

/* The file that stands in for the kernel's boot_id: read-only for the guest's processes, rewritten
 * through the descriptor that is kept open. */
static void bind_boot_id(struct identity *i)
{
    _cleanup_buf_ struct buf text = buf_make(64);

    if (file_read(AT_FDCWD, KERNEL_BOOT_ID, 64, &text) < 0) {
        return;
    }
    uuid_parse(buf_span(&text), i->boot_id);
    (void)mkdir("/run/space", 0755);
    i->boot_id_fd = open(BOOT_ID_FILE, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0444);
    if (i->boot_id_fd < 0 || fd_pwrite_all(i->boot_id_fd, buf_span(&text), 0) < 0 ||
        mount(BOOT_ID_FILE, KERNEL_BOOT_ID, NULL, MS_BIND, NULL) < 0) {
        cleanup_close(&i->boot_id_fd);
        i->boot_id_fd = -1;
        return;
    }
    (void)mount(NULL, KERNEL_BOOT_ID, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL);
}

void identity_init(struct identity *i, bool is_guest)
{
    *i =
        (struct identity){.is_guest = is_guest, .random_fd = -1, .boot_id_fd = -1, .cgroup_fd = -1};
    i->env = buf_make(0);
    if (is_guest) {
        i->random_fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
        i->cgroup_fd = open(CGROUP_ROOT, O_PATH | O_DIRECTORY | O_CLOEXEC);
        bind_boot_id(i);
    }
}

void identity_done(struct identity *i)
{
    cleanup_close(&i->random_fd);
    cleanup_close(&i->boot_id_fd);
    cleanup_close(&i->cgroup_fd);
    buf_done(&i->env);
}

static int apply_entropy(struct identity *i, struct span entropy)
{
    /* struct rand_pool_info has no room for its bytes in C++-compatible headers. */
    struct {
        int entropy_bits;
        int bytes;
        uint8_t data[AGENT_ENTROPY_BYTES];
    } pool = {.entropy_bits = AGENT_ENTROPY_BYTES * 8, .bytes = AGENT_ENTROPY_BYTES};

    memcpy(pool.data, entropy.p, AGENT_ENTROPY_BYTES);
    if (ioctl(i->random_fd, RNDADDENTROPY, &pool) < 0 || ioctl(i->random_fd, RNDRESEEDCRNG) < 0) {
        return -errno;
    }
    explicit_bzero(pool.data, sizeof(pool.data));
    return 0;
}

int identity_set_clock(uint64_t realtime_ns)
{
    struct timespec ts = {
        .tv_sec = (time_t)(realtime_ns / 1000000000U),
        .tv_nsec = (long)(realtime_ns % 1000000000U),
    };

    return clock_settime(CLOCK_REALTIME, &ts) < 0 ? -errno : 0;
}

/* Writes a small file: in place when it is a regular file of that size (one write, which readers
 * see whole), else as a new file that is renamed over whatever is there. */
static int put_file(const char *path, struct span content)
{
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    char temporary[64];
    struct stat st;

    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 1 &&
        (uint64_t)st.st_size == content.n) {
        return fd_pwrite_all(fd, content, 0);
    }
    (void)snprintf(temporary, sizeof(temporary), "%.50s.space", path);
    (void)unlink(temporary);
    cleanup_close(&fd);
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) {
        return -errno;
    }
    if (fd_write_all(fd, content) < 0 || fchmod(fd, 0644) < 0 || rename(temporary, path) < 0) {
        int r = errno != 0 ? -errno : -EIO;

        (void)unlink(temporary);
        return r;
    }
    return 0;
}

static bool is_hostname(struct span s)
{
    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = s.p[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              (c == '-' && i > 0) || (c == '.' && i > 0))) {
            return false;
        }
    }
    return s.n > 0;
}

static struct span take_line(struct span *rest)
{
    size_t at = span_find(*rest, 0, '\n');
    struct span line = span_head(*rest, at);

    *rest = at == rest->n ? span_make(NULL, 0) : span_skip(*rest, at + 1);
    return line;
}

/* One line "127.0.1.1 name", in place of the one that was there. */
static int put_hosts(struct span hostname)
{
    _cleanup_close_ int fd = open("/etc/hosts", O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    _cleanup_buf_ struct buf old = buf_make(HOSTS_MAX);
    _cleanup_buf_ struct buf text = buf_make(2U * HOSTS_MAX);
    struct span address = span_of_str(HOSTS_ADDRESS);
    struct span rest;
    bool done = false;
    struct stat st;

    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        int r = fd_read_all(fd, &old);

        if (r < 0) {
            return r; /* too long to be rewritten safely */
        }
    }
    for (rest = buf_span(&old); rest.n > 0;) {
        struct span line = take_line(&rest);

        if (span_equals(span_head(line, address.n), address)) {
            line = done ? span_make(NULL, 0) : address;
            buf_put(&text, line);
            buf_put(&text, done ? line : hostname);
            done = true;
        } else {
            buf_put(&text, line);
        }
        buf_put_str(&text, "\n");
    }
    if (!done) {
        buf_put(&text, address);
        buf_put(&text, hostname);
        buf_put_str(&text, "\n");
    }
    return buf_error(&text) != 0 ? buf_error(&text) : put_file("/etc/hosts", buf_span(&text));
}

static int apply_hostname(struct span hostname)
{
    _cleanup_buf_ struct buf line = buf_make(AGENT_HOSTNAME_BYTES + 1);
    int r;

    if (!is_hostname(hostname)) {
        return -EINVAL;
    }
    if (sethostname((const char *)hostname.p, hostname.n) < 0) {
        return -errno;
    }
    buf_put(&line, hostname);
    buf_put_str(&line, "\n");
    r = put_file("/etc/hostname", buf_span(&line));
    return r < 0 ? r : put_hosts(hostname);
}

/* Seeds that another guest kept for its next boot, and its name on the message bus. */
static void remove_leftovers(void)
{
    static const char *const seeds[] = {"/var/lib/systemd/random-seed",
                                        "/var/lib/urandom/random-seed", "/var/lib/random-seed"};
    struct stat st;

    for (size_t i = 0; i < sizeof(seeds) / sizeof(seeds[0]); i++) {
        (void)unlink(seeds[i]);
    }
    if (lstat(DBUS_MACHINE_ID, &st) == 0 && S_ISREG(st.st_mode)) {
        (void)unlink(DBUS_MACHINE_ID);
        (void)symlink(MACHINE_ID_FILE, DBUS_MACHINE_ID);
    }
}

/* Keys that were made on another guest must not be used by this one, and are gone before the disk
 * can say whose it is. A copy of a sandbox has that one's machine-id there, one that boots its own.
 */
static int change_machine_id(struct identity *i, struct span line)
{
    _cleanup_buf_ struct buf old = buf_make(2U * HEX_TEXT);
    int r;

    remove_leftovers();
    if (users_read_file(MACHINE_ID_FILE, &old) == 0 && span_equals(buf_span(&old), line)) {
        return 0;
    }
    r = host_keys_remove(HOST_KEYS_DIRECTORY, HOOKS_LIMIT_MS);
    i->keys_removed = i->keys_removed || r != 0;
    return r < 0 ? r : 0;
}

static int apply_machine_id(struct identity *i, const uint8_t id[AGENT_ID_BYTES])
{
    _cleanup_buf_ struct buf line = buf_make(HEX_TEXT);
    int r = 0;

    hex_put(&line, id, AGENT_ID_BYTES);
    buf_put_str(&line, "\n");
    if (memcmp(i->machine_id, id, AGENT_ID_BYTES) != 0) {
        r = change_machine_id(i, buf_span(&line));
    }
    if (r == 0) {
        r = put_file(MACHINE_ID_FILE, buf_span(&line));
    }
    if (r == 0) {
        memcpy(i->machine_id, id, AGENT_ID_BYTES);
    }
    return r;
}

static int apply_boot_id(struct identity *i, const uint8_t id[AGENT_ID_BYTES])
{
    _cleanup_buf_ struct buf line = buf_make(UUID_TEXT);
    int r;

    if (i->boot_id_fd < 0) {
        return -ENODEV;
    }
    uuid_format(&line, id);
    r = fd_pwrite_all(i->boot_id_fd, buf_span(&line), 0);
    return r;
}

static int apply_env(struct identity *i, const struct agent_strings *env)
{
    buf_clear(&i->env);
    buf_put(&i->env, env->raw);
    if (buf_error(&i->env) != 0) {
        i->env_count = 0;
        return buf_error(&i->env);
    }
    i->env_count = env->count;
    return 0;
}

static void note(struct agent_identity_ok *ret, uint32_t bit, int r)
{
    if (r == 0) {
        ret->done |= bit;
    } else if (ret->errnum == 0) {
        ret->errnum = (uint32_t)-r;
    }
}

void identity_apply(struct identity *i,
                    const struct agent_identity *m,
                    struct agent_identity_ok *ret)
{
    *ret = (struct agent_identity_ok){.id = m->id, .epoch = m->epoch};
    if (m->epoch < i->epoch) {
        ret->errnum = ESTALE;
        return;
    }
    i->epoch = m->epoch;
    i->confirmed = false;
    note(ret, AGENT_IDENTITY_ENTROPY, i->is_guest ? apply_entropy(i, m->entropy) : 0);
    note(ret, AGENT_IDENTITY_CLOCK, i->is_guest ? identity_set_clock(m->realtime_ns) : 0);
    note(ret, AGENT_IDENTITY_HOSTNAME, i->is_guest ? apply_hostname(m->hostname) : 0);
    note(ret, AGENT_IDENTITY_MACHINE_ID, i->is_guest ? apply_machine_id(i, m->machine_id) : 0);
    note(ret, AGENT_IDENTITY_BOOT_ID, i->is_guest ? apply_boot_id(i, m->boot_id) : 0);
    note(ret, AGENT_IDENTITY_DISK, i->is_guest ? disk_grow(m->disk_bytes) : 0);
    note(ret, AGENT_IDENTITY_ENV, apply_env(i, &m->env));
    note(ret, AGENT_IDENTITY_TOKENS, 0);
    if (ret->done == AGENT_IDENTITY_ALL) {
        memcpy(i->boot_id, m->boot_id, sizeof(i->boot_id));
        i->confirmed = true;
        i->ever_confirmed = true;
    }
}

struct tell {
    bool keys_removed;
    bool use_group;
    int64_t end_ms;
};

/* With a spawner of its own: the agent's shares a page with its children. */
static int tell_main(void *arg, const struct spawn_failure *failure)
{
    const struct tell *t = arg;
    struct spawner spawner;
    const struct hooks h = {&spawner, t->use_group, HOOK_LIMIT_MS, t->end_ms};

    if (failure->errnum != 0 || spawner_init(&spawner) < 0) {
        return 1;
    }
    host_keys_renew(&h);
    if (t->keys_removed) {
        host_keys_tell();
    }
    (void)hooks_run(&h, HOOKS_DIRECTORY);
    return 0;
}

static bool is_anybody_to_tell(const struct identity *i)
{
    return i->keys_removed || hooks_may_hold(HOOKS_DIRECTORY, hooks_is_name) ||
           host_keys_may_be_wanted();
}

void identity_tell(struct identity *i)
{
    _cleanup_close_ int group_fd = -1;
    struct tell tell = {.keys_removed = i->keys_removed};
    int r;

    if (!i->is_guest || !is_anybody_to_tell(i)) {
        return;
    }
    i->keys_removed = false;
    group_fd = hooks_make_group(i->cgroup_fd);
    tell.use_group = group_fd >= 0;
    tell.end_ms = clock_monotonic_ms() + HOOKS_LIMIT_MS;
    r = hooks_apart(tell_main, &tell, group_fd, tell.end_ms + HOOKS_GRACE_MS);
    if (r != 0) {
        console_say("not all hooks ran: error %d", r < 0 ? -r : r);
    }
}

/* The message that gives this guest another machine-id, in bytes as they come from a host. */
static int rehearsal_message(const struct identity *i, struct buf *ret)
{
    uint8_t entropy[AGENT_ENTROPY_BYTES];
    struct agent_identity m = {.id = 1, .hostname = span_of_str(REHEARSAL_HOSTNAME)};
    struct timespec now = {0};

    if (getrandom(entropy, sizeof(entropy), 0) != (ssize_t)sizeof(entropy) ||
        clock_gettime(CLOCK_REALTIME, &now) < 0) {
        return -EIO;
    }
    m.entropy = span_make(entropy, sizeof(entropy));
    m.realtime_ns = (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
    memset(m.machine_id, 0xff, sizeof(m.machine_id));
    memcpy(m.boot_id, i->boot_id, sizeof(m.boot_id));
    agent_identity_format(ret, &m);
    return buf_error(ret);
}

void identity_rehearse(struct identity *i)
{
    static const uint8_t zeros[AGENT_ID_BYTES];
    _cleanup_buf_ struct buf bytes = buf_make(AGENT_FRAME_MAX);
    struct agent_frame frame = {.type = AGENT_IDENTITY};
    struct agent_identity_ok done;
    struct agent_identity m;
    bool removed = i->keys_removed;

    if (!i->is_guest || i->ever_confirmed) {
        return;
    }
    if (rehearsal_message(i, &bytes) == 0) {
        frame.payload = span_skip(buf_span(&bytes), AGENT_HEAD_BYTES);
        frame.payload.n -= AGENT_TAIL_BYTES;
        if (agent_identity_parse(&frame, &m) == 0) {
            identity_apply(i, &m, &done);
        }
    }
    (void)apply_machine_id(i, zeros);
    (void)is_anybody_to_tell(i);
    i->keys_removed = removed;
    i->confirmed = false;
    i->ever_confirmed = false;
}

void identity_suspend(struct identity *i)
{
    i->was_confirmed = i->was_confirmed || i->confirmed;
    i->confirmed = false;
}

void identity_restore(struct identity *i)
{
    i->confirmed = i->confirmed || i->was_confirmed;
    i->was_confirmed = false;
}
