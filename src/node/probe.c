#include "node/probe.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/accelerator.h"
#include "node/json_field.h"
#include "node/node_private.h"
#include "node/vm.h"

#define PROBE_PAUSES     4 /* timeouts between two words of one that runs, on a host that is busy */
#define PROBE_TIMEOUTS   12 /* of a guest that says something, on a host that is busy */
#define PROBE_POLL_MS    100
#define PROBE_MEMORY_MIB 128
#define PROBE_FILE_MAX   4096U
#define PROBE_KERNEL     "Linux version" /* its first word: what is before it runs in real mode */
#define PROBE_SIGN       "Run /init as init process" /* the kernel's, when it is up */

struct probe {
    struct node *node;
    void (*done)(void *arg);
    void *arg;
    struct vm *vm;
    struct loop_timer *timer;
    int64_t ready_ms;
    size_t heard; /* bytes of the console */
    bool has_kernel;
};

static void cache_path(const struct node *node, char *out, size_t size)
{
    (void)snprintf(out, size, "%s/accelerator.json", node->settings.data_dir);
}

static void finish(struct probe *p, const char *accelerator, const char *reason)
{
    struct node *node = p->node;

    node->parts->runtime.ops->set_accelerator(&node->parts->runtime, accelerator, reason);
    log_info("accelerator", "chosen=%s reason=%s", accelerator, LOG_STR(reason));
    p->done(p->arg);
    loop_timer_free(p->timer);
    free(p);
}

static void finish_probe(struct probe *p, const char *accelerator, const char *reason)
{
    const struct node_parts *parts = p->node->parts;
    char path[NODE_PATH_SIZE];
    json_t *root = json_pack("{s:s, s:s, s:s, s:s, s:s}", "boot_id", parts->boot_id, "vmm_version",
                             parts->runtime.env.vmm_version, "kernel", parts->runtime.env.kernel,
                             "accelerator", accelerator, "reason", reason);

    cache_path(p->node, path, sizeof(path));
    if (root == NULL || json_file_write(AT_FDCWD, path, root, false) < 0) {
        log_warning("accelerator_not_kept", "path=%s", LOG_STR(path));
    }
    json_decref(root);
    finish(p, accelerator, reason);
}

static bool use_cache(struct probe *p)
{
    const struct node_parts *parts = p->node->parts;
    char path[NODE_PATH_SIZE];
    char boot_id[40];
    char version[RUNTIME_VERSION_SIZE];
    char kernel[96];
    char accelerator[8];
    char reason[256];
    json_t *root;
    bool good;

    cache_path(p->node, path, sizeof(path));
    root = json_file_read(AT_FDCWD, path, PROBE_FILE_MAX);
    good = json_field_text(root, "boot_id", boot_id, sizeof(boot_id)) &&
           json_field_text(root, "vmm_version", version, sizeof(version)) &&
           json_field_text(root, "kernel", kernel, sizeof(kernel)) &&
           json_field_text(root, "accelerator", accelerator, sizeof(accelerator)) &&
           json_field_text(root, "reason", reason, sizeof(reason)) &&
           strcmp(boot_id, parts->boot_id) == 0 &&
           strcmp(version, parts->runtime.env.vmm_version) == 0 &&
           strcmp(kernel, parts->runtime.env.kernel) == 0 &&
           (strcmp(accelerator, "kvm") == 0 || strcmp(accelerator, "tcg") == 0);
    json_decref(root);
    if (good) {
        finish(p, accelerator, reason);
    }
    return good;
}

/* Again whenever it has said something: a guest that comes up slowly is no reason to emulate. */
static void set_deadline(struct probe *p)
{
    int64_t timeout_ms = (int64_t)p->node->settings.node_probe_timeout_ms;
    int64_t left_ms = p->ready_ms + PROBE_TIMEOUTS * timeout_ms - clock_monotonic_ms();
    int64_t most_ms = p->has_kernel ? PROBE_PAUSES * timeout_ms : timeout_ms;

    if (left_ms > most_ms) {
        left_ms = most_ms;
    }
    vm_set_deadline(p->vm, left_ms > 1 ? left_ms : 1, "probe_timeout",
                    p->heard == 0 ? "it said nothing" : "it did not come up in time");
}

static void on_console(void *arg, struct vm *vm)
{
    struct probe *p = arg;
    const struct buf *text = vm_console(vm);

    if (p->vm == NULL) {
        return;
    }
    if (memmem(text->p, text->n, PROBE_SIGN, strlen(PROBE_SIGN)) != NULL) {
        p->vm = NULL;
        vm_end(vm, NULL, NULL);
        finish_probe(p, "kvm", "a test guest booted under KVM");
        return;
    }
    if (text->n > p->heard) {
        p->heard = text->n;
        p->has_kernel = memmem(text->p, text->n, PROBE_KERNEL, strlen(PROBE_KERNEL)) != NULL;
        set_deadline(p);
    }
    loop_timer_start(p->timer, PROBE_POLL_MS);
}

static void on_poll(void *arg)
{
    struct probe *p = arg;

    if (p->vm != NULL) {
        vm_read_console(p->vm, on_console, p);
    }
}

static void on_ready(void *arg, struct vm *vm)
{
    struct probe *p = arg;

    (void)vm;
    p->ready_ms = clock_monotonic_ms();
    set_deadline(p);
    loop_timer_start(p->timer, PROBE_POLL_MS);
}

static void on_end(void *arg, struct vm *vm, const char *code, const char *message)
{
    struct probe *p = arg;
    char reason[256];

    (void)vm;
    (void)code;
    p->vm = NULL;
    (void)snprintf(reason, sizeof(reason), "/dev/kvm is there, but a test guest failed: %.180s",
                   message);
    finish_probe(p, "tcg", reason);
}

/* Where no guest has to be asked. */
static bool decide(struct probe *p)
{
    const char *setting = p->node->settings.node_accelerator;
    int r;

    if (strcmp(setting, "auto") != 0) {
        finish(p, setting, "set by node.accelerator");
        return true;
    }
    r = accelerator_open("kvm");
    if (r < 0) {
        char reason[128];

        (void)snprintf(reason, sizeof(reason), "/dev/kvm cannot be opened: %s", strerror(-r));
        finish(p, "tcg", reason);
        return true;
    }
    return use_cache(p);
}

static bool start_guest(struct probe *p)
{
    static const struct vm_owner owner = {on_end};
    struct vm_spec spec = {.mode = RUNTIME_MODE_PROBE,
                           .vcpus = 1,
                           .memory_mib = PROBE_MEMORY_MIB,
                           .ram_memfd = -1,
                           .accelerator = "kvm"};
    struct runtime *rt = &p->node->parts->runtime;
    struct error err = {0};

    p->timer = loop_timer_new(p->node->loop, on_poll, p);
    p->vm = p->timer != NULL ? vm_start(p->node, &spec, &owner, p, &err) : NULL;
    if (p->vm == NULL) {
        return false;
    }
    vm_on_ready(p->vm, on_ready, p);
    (void)snprintf(rt->accelerator_reason, sizeof(rt->accelerator_reason),
                   "being tried: a test guest boots under KVM");
    return true;
}

struct probe *probe_accelerator(struct node *node, void (*done)(void *arg), void *arg)
{
    struct probe *p = calloc(1, sizeof(*p));

    if (p == NULL) {
        struct runtime *rt = &node->parts->runtime;

        rt->ops->set_accelerator(rt, "tcg", "no memory for a probe");
        done(arg);
        return NULL;
    }
    p->node = node;
    p->done = done;
    p->arg = arg;
    if (decide(p)) {
        return NULL;
    }
    if (!start_guest(p)) {
        finish(p, "tcg", "the test guest could not be started");
        return NULL;
    }
    return p;
}

void probe_cancel(struct probe *p)
{
    struct vm *vm;

    if (p == NULL) {
        return;
    }
    vm = TAKE(p->vm);
    if (vm != NULL) {
        vm_end(vm, NULL, NULL);
    }
    loop_timer_free(p->timer);
    free(p);
}
