/* Checks of the machine: privileges, CPU, acceleration, QEMU, packages, clock. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#include <sys/ioctl.h>
#include <sys/timex.h>

#include <linux/kvm.h>

#include "base/buf.h"
#include "base/fd.h"
#include "cli/api.h"
#include "cli/child.h"
#include "cli/cli.h"
#include "cli/doctor.h"
#include "cli/installation.h"

#define CPUINFO_LIMIT    (16U * 1024U * 1024U)
#define PACKAGES_LIMIT   (4U * 1024U * 1024U)
#define TOOL_TIMEOUT_MS  10000
#define QEMU_GOOD_MAJOR  8
#define PACKAGE_NAME_MAX 100U

static void check_root(struct doctor *d)
{
    if (geteuid() == 0) {
        doctor_put(d, "root", DOCTOR_OK, NULL, "running as root");
    } else {
        doctor_put(d, "root", DOCTOR_DEGRADED, "sudo space doctor",
                   "not root: some checks see less");
    }
}

/* Whether the first "flags" line of /proc/cpuinfo has this word. */
static bool has_cpu_flag(struct span cpuinfo, const char *flag)
{
    size_t n = strlen(flag);

    for (size_t at = 0; at + n < cpuinfo.n; at++) {
        if (cpuinfo.p[at] == ' ' && memcmp(&cpuinfo.p[at + 1], flag, n) == 0 &&
            (cpuinfo.p[at + 1 + n] == ' ' || cpuinfo.p[at + 1 + n] == '\n')) {
            return true;
        }
    }
    return false;
}

static void check_cpu(struct doctor *d)
{
    _cleanup_buf_ struct buf text = buf_make(CPUINFO_LIMIT);
    bool vmx;
    bool svm;

    if (file_read(AT_FDCWD, "/proc/cpuinfo", CPUINFO_LIMIT, &text) < 0) {
        return;
    }
    vmx = has_cpu_flag(buf_span(&text), "vmx");
    svm = has_cpu_flag(buf_span(&text), "svm");
    if (vmx || svm) {
        doctor_put(d, "cpu", DOCTOR_OK, NULL, "hardware virtualisation: %s",
                   vmx ? "Intel VT-x" : "AMD-V");
    } else {
        doctor_put(d, "cpu", DOCTOR_DEGRADED,
                   "turn on virtualisation in the firmware, or nested virtualisation where this "
                   "is a VM",
                   "no hardware virtualisation: sandboxes are emulated (TCG)");
    }
}

static void check_kvm(struct doctor *d)
{
    _cleanup_close_ int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    int version;

    if (fd < 0 && errno == EACCES && geteuid() != 0) {
        doctor_put(d, "kvm", DOCTOR_DEGRADED, "sudo space doctor",
                   "/dev/kvm is there; only root and group kvm may look whether it works");
        return;
    }
    if (fd < 0) {
        doctor_put(d, "kvm", DOCTOR_DEGRADED, "modprobe kvm_intel or kvm_amd; see the check cpu",
                   "/dev/kvm cannot be opened (%s): sandboxes are emulated (TCG)", strerror(errno));
        return;
    }
    version = ioctl(fd, KVM_GET_API_VERSION, 0);
    if (version < 0) {
        doctor_put(d, "kvm", DOCTOR_DEGRADED, "modprobe kvm_intel or kvm_amd; see the check cpu",
                   "/dev/kvm opens, but is no KVM (%s): sandboxes are emulated (TCG)",
                   strerror(errno));
        return;
    }
    doctor_put(d, "kvm", DOCTOR_OK, NULL,
               "/dev/kvm opens, API version %d; whether a guest runs is for the node to try",
               version);
}

/* Forced, or gone since it was chosen; errno says how. Who may not look knows nothing. */
static bool kvm_is_lost(void)
{
    _cleanup_close_ int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);

    return fd < 0 && (errno != EACCES || geteuid() == 0);
}

static void check_accelerator(struct doctor *d)
{
    const json_t *environment = json_object_get(d->node, "environment");
    const char *name = api_text(environment, "accelerator");
    const char *reason = api_text(environment, "accelerator_reason");

    if (name[0] == '\0' && reason[0] != '\0') {
        doctor_put(d, "accelerator", DOCTOR_DEGRADED, "ask again in a minute at most",
                   "not known yet, %s", reason);
        return;
    }
    if (name[0] == '\0' && (geteuid() != 0 || !d->cli->has_settings)) {
        return; /* only root may ask the node, and only the settings say where it is */
    }
    if (name[0] == '\0') {
        doctor_put(d, "accelerator", DOCTOR_DEGRADED, "space up, then ask again",
                   "unknown while the node does not answer");
        return;
    }
    if (strcmp(name, "kvm") == 0 && kvm_is_lost()) {
        doctor_put(d, "accelerator", DOCTOR_MISSING,
                   "bring /dev/kvm back (see the check kvm), or restart space-node with "
                   "node.accelerator = auto",
                   "kvm (%s), but /dev/kvm cannot be opened (%s): no sandbox can start", reason,
                   strerror(errno));
        return;
    }
    if (strcmp(name, "kvm") == 0) {
        doctor_put(d, "accelerator", DOCTOR_OK, NULL, "kvm: %s", reason);
        return;
    }
    doctor_put(d, "accelerator", DOCTOR_DEGRADED,
               "a machine whose KVM runs guests; node.accelerator = kvm forces it", "%s: %s", name,
               reason);
}

/* The major number of "QEMU emulator version 10.0.2 (…)". */
static uint64_t qemu_major(struct span text)
{
    static const char before[] = "version ";
    size_t n = sizeof(before) - 1;

    for (size_t at = 0; at + n < text.n; at++) {
        if (memcmp(&text.p[at], before, n) == 0) {
            struct span rest = span_skip(text, at + n);
            uint64_t major = 0;

            return span_parse_u64(span_head(rest, span_find(rest, 0, '.')), 1000, &major) == 0
                       ? major
                       : 0;
        }
    }
    return 0;
}

static void check_qemu(struct doctor *d)
{
    const struct settings *s = &d->cli->settings;
    const char *program = d->cli->has_settings ? s->node_qemu : "qemu-system-x86_64";
    const char *const argv[] = {program, "--version", NULL};
    _cleanup_buf_ struct buf out = buf_make(65536);
    struct child_options o = {.output = &out, .quiet = true, .timeout_ms = TOOL_TIMEOUT_MS};
    uint64_t major = child_run(argv, &o, NULL) == 0 ? qemu_major(buf_span(&out)) : 0;
    const char *accelerator = api_text(json_object_get(d->node, "environment"), "accelerator");

    if (major == 0) {
        doctor_put(d, "qemu", DOCTOR_MISSING,
                   "setup/packages runtime installs it; or set node.qemu", "%s does not run",
                   program);
    } else if (major < QEMU_GOOD_MAJOR && strcmp(accelerator, "kvm") != 0) {
        doctor_put(d, "qemu", DOCTOR_DEGRADED,
                   "setup/packages runtime installs QEMU 10 from backports",
                   "version %" PRIu64 " starts programs slowly without KVM; guests boot with "
                   "norandmaps to soften it",
                   major);
    } else {
        doctor_put(d, "qemu", DOCTOR_OK, NULL, "version %" PRIu64, major);
    }
}

/* Whether dpkg's list ("installed NAME" lines) has one of the alternatives "a | b". */
static bool is_installed(struct span list, struct span alternatives)
{
    while (alternatives.n > 0) {
        size_t end = span_find(alternatives, 0, '|');
        struct span name = span_head(alternatives, end);
        char line[PACKAGE_NAME_MAX + 20];

        while (name.n > 0 && name.p[0] == ' ') {
            name = span_skip(name, 1);
        }
        while (name.n > 0 && name.p[name.n - 1] == ' ') {
            name = span_head(name, name.n - 1);
        }
        (void)snprintf(line, sizeof(line), "\ninstalled %.*s\n",
                       (int)(name.n < PACKAGE_NAME_MAX ? name.n : PACKAGE_NAME_MAX),
                       (const char *)name.p);
        if (memmem(list.p, list.n, line, strlen(line)) != NULL) {
            return true;
        }
        alternatives = span_skip(alternatives, end + 1);
    }
    return false;
}

static void check_packages(struct doctor *d)
{
    static const char *const argv[] = {"dpkg-query", "-W", "-f",
                                       "${db:Status-Status} ${Package}\\n", NULL};
    _cleanup_buf_ struct buf installed = buf_make(PACKAGES_LIMIT);
    _cleanup_buf_ struct buf wanted = buf_make(PACKAGES_LIMIT);
    _cleanup_buf_ struct buf absent = buf_make(400);
    struct child_options o = {.output = &installed, .quiet = true, .timeout_ms = TOOL_TIMEOUT_MS};
    char path[INSTALLATION_PATH_SIZE];
    struct span rest;

    installation_program(d->cli, "packages/runtime.list", path);
    buf_put_str(&installed, "\n");
    if (file_read(AT_FDCWD, path, PACKAGES_LIMIT, &wanted) < 0 || child_run(argv, &o, NULL) != 0) {
        return; /* not installed from here, or no Debian: the tools are checked by their use */
    }
    rest = buf_span(&wanted);
    while (rest.n > 0) {
        struct span line = span_head(rest, span_find(rest, 0, '\n'));

        rest = span_skip(rest, line.n + 1);
        line = span_head(line, span_find(line, 0, '#'));
        if (line.n > 0 && line.n < PACKAGE_NAME_MAX && !is_installed(buf_span(&installed), line)) {
            buf_printf(&absent, " %.*s", (int)line.n, (const char *)line.p);
        }
    }
    if (absent.n == 0) {
        doctor_put(d, "packages", DOCTOR_OK, NULL, "all there");
    } else {
        doctor_put(d, "packages", DOCTOR_MISSING, "setup/packages runtime installs them",
                   "not installed:%s", buf_str(&absent));
    }
}

static void check_clock(struct doctor *d)
{
    struct timex t = {0};
    int state = adjtimex(&t);

    if (state >= 0 && state != TIME_ERROR && (t.status & STA_UNSYNC) == 0) {
        doctor_put(d, "clock", DOCTOR_OK, NULL, "synchronised");
    } else {
        doctor_put(d, "clock", DOCTOR_DEGRADED,
                   "install chrony or systemd-timesyncd (in a container: on its host)",
                   "not known to be synchronised; sandboxes take their time from it");
    }
}

void doctor_check_machine(struct doctor *d)
{
    check_root(d);
    check_cpu(d);
    check_kvm(d);
    check_accelerator(d);
    check_qemu(d);
    check_packages(d);
    check_clock(d);
}
