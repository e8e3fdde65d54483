/* Finding QEMU and asking for its version. Blocks; once, at the start. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/wait.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "node/qemu_args.h"
#include "node/runtime.h"

#define OUTPUT_MAX        4096U
#define TSC_MEASURE_NS    20000000
#define TSC_MEASURE_PAIRS 64

/* Resolves a name along PATH, or a path, to the program itself. */
static int resolve(const char *name, char *out, size_t size)
{
    static const char *const dirs[] = {"/usr/local/bin", "/usr/bin", "/bin", "/usr/libexec"};
    char path[PATH_MAX];
    char real[PATH_MAX];

    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        if (strchr(name, '/') != NULL) {
            (void)snprintf(path, sizeof(path), "%s", name);
        } else {
            (void)snprintf(path, sizeof(path), "%s/%s", dirs[i], name);
        }
        if (access(path, X_OK) == 0 && realpath(path, real) != NULL) {
            if (strlen(real) >= size) {
                return -ENAMETOOLONG;
            }
            (void)snprintf(out, size, "%s", real);
            return 0;
        }
    }
    return -ENOENT;
}

static int run_version(const char *binary, struct buf *out)
{
    char *argv[] = {(char *)(uintptr_t)binary, (char *)(uintptr_t) "--version", NULL};
    char *environment[] = {NULL};
    posix_spawn_file_actions_t actions;
    int fds[2];
    pid_t pid;
    int status;
    int r;

    if (pipe2(fds, O_CLOEXEC) < 0) {
        return -errno;
    }
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
    r = -posix_spawn(&pid, binary, &actions, NULL, argv, environment);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(fds[1]);
    if (r == 0) {
        r = fd_read_all(fds[0], out);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
    }
    (void)close(fds[0]);
    return r;
}

/* "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)" */
static int parse_version(const char *text, struct runtime *rt)
{
    static const char *const sign = "version ";
    const char *at = strstr(text, sign);
    struct span rest;
    struct span line;
    uint64_t major;

    if (at == NULL) {
        return -EBADMSG;
    }
    rest = span_of_str(at + strlen(sign));
    line = span_head(rest, span_find(rest, 0, '\n'));
    if (span_copy_str(span_head(line, RUNTIME_VERSION_SIZE - 1), rt->env.vmm_version,
                      sizeof(rt->env.vmm_version)) < 0 ||
        span_parse_u64(span_head(rest, span_find(rest, 0, '.')), 1000, &major) < 0) {
        return -EBADMSG;
    }
    rt->own.major = (unsigned int)major;
    return 0;
}

struct instant {
    uint64_t ticks;
    int64_t ns;
};

/* Counter and clock at one moment: of many pairs the one that was read fastest, since this thread
 * may lose the processor between the two reads. */
static struct instant read_instant(void)
{
    struct instant best = {0};
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < TSC_MEASURE_PAIRS; i++) {
        uint64_t before = __builtin_ia32_rdtsc();
        int64_t ns = clock_monotonic_ns();
        uint64_t gap = __builtin_ia32_rdtsc() - before;

        if (gap < least) {
            least = gap;
            best = (struct instant){before + gap / 2, ns};
        }
    }
    return best;
}

/* The rate of the host's time stamp counter. A guest that is told a wrong one has a wrong clock. */
static uint64_t measure_tsc_khz(void)
{
    struct instant start = read_instant();
    struct instant end;

    do {
        end = read_instant();
    } while (end.ns - start.ns < TSC_MEASURE_NS);
    return (uint64_t)((unsigned __int128)(end.ticks - start.ticks) * 1000000U /
                      (uint64_t)(end.ns - start.ns));
}

int qemu_detect(const char *name, struct runtime *rt, struct error *err)
{
    _cleanup_buf_ struct buf text = buf_make(OUTPUT_MAX);
    int r = resolve(name, rt->binary, sizeof(rt->binary));

    if (r < 0) {
        return error_set(err, -r, "no QEMU at %.100s (install qemu-system-x86)", name);
    }
    r = run_version(rt->binary, &text);
    if (r == 0) {
        r = parse_version(buf_str(&text), rt);
    }
    if (r < 0) {
        return error_set(err, -r, "%.100s does not tell its version", rt->binary);
    }
    if (rt->own.major < 7) {
        return error_set(err, ENOTSUP, "QEMU %.40s is too old, 7.2 is the oldest that works",
                         rt->env.vmm_version);
    }
    (void)snprintf(rt->env.driver, sizeof(rt->env.driver), "qemu");
    (void)snprintf(rt->own.kvm_binary, sizeof(rt->own.kvm_binary), "%.240s-microvm", rt->binary);
    /* Debian's 7.2 has the small binary without -sandbox: the jail needs the full one there. */
    if (rt->own.major < 8 || access(rt->own.kvm_binary, X_OK) < 0) {
        rt->own.kvm_binary[0] = '\0';
    }
    rt->env.tsc_khz = measure_tsc_khz();
    return 0;
}

void qemu_set_accelerator(struct runtime *rt, const char *accelerator, const char *reason)
{
    (void)snprintf(rt->env.accelerator, sizeof(rt->env.accelerator), "%s", accelerator);
    qemu_cpu_name(accelerator, rt->cpu, rt->env.cpu_model, sizeof(rt->env.cpu_model));
    (void)snprintf(rt->accelerator_reason, sizeof(rt->accelerator_reason), "%s", reason);
    rt->restores_cold = strcmp(accelerator, "kvm") != 0;
    if (!rt->restores_cold) {
        rt->translation_mib = 0;
    }
}
