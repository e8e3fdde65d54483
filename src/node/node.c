/* Start and stop of the VM layer, and what it says about itself. */
#include "node/node.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/admission.h"
#include "node/adopt.h"
#include "node/base_snapshot.h"
#include "node/disk.h"
#include "node/json_field.h"
#include "node/memory_guard.h"
#include "node/netns.h"
#include "node/netns_pool.h"
#include "node/node_private.h"
#include "node/objects.h"
#include "node/pool.h"
#include "node/probe.h"
#include "node/sandbox_private.h"
#include "node/template_prune.h"
#include "node/vm.h"

#define CGROUP_ROOT       "/sys/fs/cgroup"
#define NETNS_AHEAD       16U
#define WAKES_MAX         2U
#define WAKES_WAITING_MAX 100000U /* as many as there may be sandboxes */
#define SLOTS_OVER_MAX    320U    /* pools, builds and VMs that are ending, beside sandboxes */
#define SMALL_FILE        65536U
#define MIB               1048576ULL

/* ---- environment ---- */

/* Kernel and initramfs, and what identifies them. */
static int read_guest(struct node *node, struct error *err)
{
    struct runtime *rt = &node->parts->runtime;
    char path[NODE_PATH_SIZE];
    char vmlinuz[80];
    char initramfs[80];
    json_t *root;
    bool good;

    (void)snprintf(path, sizeof(path), "%s/guest/guest.json", node->settings.data_dir);
    root = json_file_read(AT_FDCWD, path, SMALL_FILE);
    good = json_field_text(root, "kernel_version", rt->env.kernel, sizeof(rt->env.kernel)) &&
           json_field_text(root, "vmlinuz_sha256", vmlinuz, sizeof(vmlinuz)) &&
           json_field_text(root, "initramfs_sha256", initramfs, sizeof(initramfs));
    json_decref(root);
    if (!good) {
        return error_set(err, ENOENT, "no guest kernel: %.200s is missing or damaged", path);
    }
    (void)snprintf(rt->env.guest_id, sizeof(rt->env.guest_id), "%.12s-%.12s", vmlinuz, initramfs);
    (void)snprintf(rt->kernel_path, sizeof(rt->kernel_path), "%s/guest/vmlinuz",
                   node->settings.data_dir);
    (void)snprintf(rt->initrd_path, sizeof(rt->initrd_path), "%s/guest/initramfs.cpio",
                   node->settings.data_dir);
    return 0;
}

static int make_tables(struct node *node, struct error *err)
{
    struct node_parts *p = node->parts;
    uint64_t slots = node->settings.node_max_sandboxes + SLOTS_OVER_MAX;
    int r;

    if (slots > node->settings.node_vmm_uid_count) {
        slots = node->settings.node_vmm_uid_count;
    }
    p->slot_count = (unsigned int)slots;
    p->slots = calloc(p->slot_count, sizeof(struct vm *));
    p->sandboxes = calloc(1, sizeof(*p->sandboxes));
    p->netns = netns_pool_new(node, NETNS_AHEAD);
    if (p->slots == NULL || p->sandboxes == NULL || p->netns == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    list_init(&p->sandboxes->sandboxes);
    list_init(&p->sandboxes->waiters);
    list_init(&p->sandboxes->delivering);
    list_init(&p->captures_waiting);
    list_init(&p->restores_waiting);
    r = gate_init(&p->wakes, node->loop, WAKES_MAX, WAKES_WAITING_MAX);
    if (r == 0) {
        r = gate_init(&p->boots, node->loop, (unsigned int)get_nprocs(), WAKES_WAITING_MAX);
    }
    if (r < 0) {
        return error_set(err, -r, "no memory");
    }
    p->bases = base_set_new(node, err);
    p->pool = p->bases != NULL ? pool_new(node, err) : NULL;
    p->pruner = p->pool != NULL ? template_pruner_new(node, err) : NULL;
    p->guard = p->pruner != NULL ? memory_guard_new(node, err) : NULL;
    if (p->guard == NULL) {
        return -ENOMEM;
    }
    r = checkpoint_load_all(node);
    if (r < 0) {
        return error_set(err, -r, "the checkpoints cannot be read: %s", strerror(-r));
    }
    template_make_begin(node);
    return objects_new(node, err);
}

/* The stage program is beside this one, in an installation and in a build directory alike. */
static int find_stage(struct node_parts *p, struct error *err)
{
    char self[NODE_PATH_SIZE];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    const char *slash;

    if (n < 0) {
        return error_set(err, errno, "cannot read /proc/self/exe: %s", strerror(errno));
    }
    self[n] = '\0';
    slash = strrchr(self, '/');
    (void)snprintf(p->stage_path, sizeof(p->stage_path), "%.*s/space-vmm",
                   slash != NULL ? (int)(slash - self) : 0, self);
    if (access(p->stage_path, X_OK) < 0) {
        return error_set(err, errno, "cannot run %.200s: %s", p->stage_path, strerror(errno));
    }
    return 0;
}

/* ---- start and stop ---- */

/* From here on VMs are started. */
static void on_environment(void *arg)
{
    struct node *node = arg;

    node->parts->probe = NULL;
    node->parts->environment_known = true;
    log_info("node_starts_vms", "vmm=%s accelerator=%s kernel=%s",
             node->parts->runtime.env.vmm_version, node->parts->runtime.env.accelerator,
             node->parts->runtime.env.kernel);
    pool_start(node->parts->pool);
    if (node->hooks.on_started != NULL) {
        node->hooks.on_started(node->hooks_ctx);
    }
}

/* What lives is served. Which accelerator works may take a test guest's boot to find out. */
static void on_adopted(void *arg)
{
    struct node *node = arg;
    struct probe *probe;

    if (node->parts->stopping) {
        return;
    }
    node->parts->adopted = true;
    log_info("node_ready", "sandboxes=%u", sandbox_count(node));
    netns_pool_start(node->parts->netns);
    objects_start(node);
    template_pruner_start(node->parts->pruner);
    memory_guard_start(node->parts->guard);
    probe = probe_accelerator(node, on_environment, node);
    node->parts->probe = probe;
}

int node_start(struct node *node, struct error *err)
{
    int r = node_parts_new(node, err);

    if (r == 0) {
        r = node_prepare_host(node, true, err);
    }
    if (r == 0) {
        r = find_stage(node->parts, err);
    }
    if (r == 0) {
        struct runtime *rt = &node->parts->runtime;

        rt->ops = runtime_driver;
        (void)snprintf(rt->accelerator_reason, sizeof(rt->accelerator_reason), "being tried");
        (void)snprintf(rt->cpu, sizeof(rt->cpu), "%s", node->settings.node_cpu);
        r = rt->ops->detect(node->settings.node_qemu, rt, err);
    }
    if (r == 0) {
        r = read_guest(node, err);
    }
    if (r == 0) {
        r = make_tables(node, err);
    }
    if (r == 0) {
        node->started_at_ms = clock_real_ms();
        node->parts->reflink = disk_has_reflink(node->parts->volume);
        if (!node->parts->reflink) {
            log_warning("no_reflink", "volume=%s", node->parts->volume);
        }
        r = adopt_all(node, on_adopted, node, err);
    }
    return r;
}

/* Closes what refers to VMs and directories, which stay. */
static void let_go(struct node_parts *p)
{
    struct list *it;
    struct list *following;

    for (unsigned int i = 0; i < p->slot_count; i++) {
        if (p->slots[i] != NULL) {
            vm_abandon(p->slots[i]);
        }
    }
    if (p->sandboxes == NULL) {
        return;
    }
    list_foreach(it, following, &p->sandboxes->sandboxes)
    {
        struct sandbox *sb = list_entry(it, struct sandbox, link);

        if (sb->dir_fd >= 0) {
            (void)close(TAKE_FD(sb->dir_fd));
        }
    }
}

/* When each was active last is not written down as it happens. */
static void note_activity(struct node *node)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &node->parts->sandboxes->sandboxes)
    {
        struct sandbox *sb = list_entry(it, struct sandbox, link);

        if (sb->info.state == SANDBOX_STATE_RUNNING && sb->vm != NULL) {
            (void)sandbox_write_journal(sb);
        }
    }
}

void node_stop(struct node *node)
{
    struct node_parts *p = node->parts;

    if (p == NULL) {
        return;
    }
    p->stopping = true;
    if (p->sandboxes != NULL) {
        note_activity(node);
    }
    probe_cancel(TAKE(p->probe));
    if (p->wakes.timer != NULL) {
        gate_done(&p->wakes); /* who waited there gives up */
    }
    if (p->boots.timer != NULL) {
        gate_done(&p->boots);
    }
    /* Jobs end, and tell so, while all that they refer to is there. */
    loop_finish_work(node->loop);
    template_make_end(node);
    if (p->pool != NULL) {
        let_go(p);
    }
    objects_free(node);
    template_pruner_free(TAKE(p->pruner));
    memory_guard_free(TAKE(p->guard));
    pool_free(TAKE(p->pool));
    netns_pool_free(TAKE(p->netns));
    base_set_free(TAKE(p->bases));
    if (p->lock_fd >= 0) {
        (void)close(TAKE_FD(p->lock_fd));
    }
    if (p->name_fd >= 0) {
        (void)close(TAKE_FD(p->name_fd));
    }
}

void node_free(struct node *node)
{
    struct node_parts *p = TAKE(node->parts);
    struct list *it;
    struct list *following;

    if (p == NULL) {
        return;
    }
    for (unsigned int i = 0; p->slots != NULL && i < p->slot_count; i++) {
        vm_forget(p->slots[i]);
    }
    if (p->sandboxes != NULL) {
        list_foreach(it, following, &p->sandboxes->sandboxes)
        {
            struct sandbox *sb = list_entry(it, struct sandbox, link);

            json_decref(sb->env);
            free(sb);
        }
        list_foreach(it, following, &p->sandboxes->waiters)
        {
            free(list_entry(it, struct sandbox_waiter, link));
        }
    }
    node->parts = p;
    checkpoint_free_all(node);
    node->parts = NULL;
    free(p->sandboxes);
    free(p->slots);
    free(p);
}

bool node_is_ready(const struct node *node)
{
    return node->parts != NULL && node->parts->adopted && !node->parts->stopping;
}

int node_check_start(const struct node *node, struct error *err)
{
    if (!node_is_ready(node)) {
        return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL, "the node is starting");
    }
    return node->parts->environment_known
               ? 0
               : error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                                "the node finds out which accelerator works here: it starts no VM "
                                "before that");
}

/* ---- descriptions ---- */

static json_t *describe_memory(const struct node *node)
{
    const struct node_parts *p = node->parts;
    _cleanup_buf_ struct buf text = buf_make(SMALL_FILE);
    struct admission a = {.total_mib = p->total_mib,
                          .reserve_mib = p->reserve_mib,
                          .overcommit_percent = node->settings.node_memory_overcommit};
    uint64_t total;

    if (file_read(AT_FDCWD, "/proc/meminfo", SMALL_FILE, &text) < 0 ||
        admission_parse_meminfo(buf_str(&text), &total, &a.available_mib) < 0) {
        a.available_mib = 0;
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "total_mib", (json_int_t)p->total_mib,
                     "reserve_mib", (json_int_t)p->reserve_mib, "admitted_mib",
                     (json_int_t)sandbox_admitted(node).memory_mib, "limit_mib",
                     (json_int_t)admission_limit_mib(&a), "available_mib",
                     (json_int_t)a.available_mib);
}

static json_t *describe_vcpus(const struct node *node)
{
    return json_pack("{s:I, s:I}", "host", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "admitted",
                     (json_int_t)sandbox_admitted(node).vcpus);
}

static json_t *describe_disk(const struct node *node)
{
    uint64_t total = 0;
    uint64_t free_mib = 0;

    (void)disk_space(node->parts->volume, &total, &free_mib);
    return json_pack("{s:I, s:I, s:I, s:b}", "total_mib", (json_int_t)total, "free_mib",
                     (json_int_t)free_mib, "reserve_mib",
                     (json_int_t)node->settings.node_disk_reserve_mib, "reflink",
                     (int)node->parts->reflink);
}

static json_t *describe_waiting(const struct node *node)
{
    json_t *list = json_array();

    if (!node->parts->adopted) {
        (void)json_array_append_new(list, json_string("adoption"));
    }
    return list;
}

struct json_t *node_describe(struct node *node)
{
    const struct node_parts *p = node->parts;
    const struct runtime *rt = &p->runtime;
    char started[CLOCK_TEXT_SIZE];

    clock_format(node->started_at_ms, started);
    return json_pack("{s:s, s:s, s:b, s:o, s:{s:s, s:s, s:s, s:s, s:s, s:s}, s:o, s:o, s:o, s:o, "
                     "s:i, s:i, s:o, s:s}",
                     "name", node->settings.node_name, "version", SPACE_VERSION, "ready",
                     (int)node_is_ready(node), "waiting_for", describe_waiting(node), "environment",
                     "driver", rt->env.driver, "vmm_version", rt->env.vmm_version, "accelerator",
                     rt->env.accelerator, "accelerator_reason", rt->accelerator_reason, "cpu_model",
                     rt->env.cpu_model, "kernel", rt->env.kernel, "vcpus", describe_vcpus(node),
                     "memory", describe_memory(node), "disk", describe_disk(node), "pools",
                     pool_describe(p->pool), "prepared", (int)pool_prepared(p->pool), "sandboxes",
                     (int)sandbox_count(node), "objects", objects_describe(node), "started_at",
                     started);
}

struct json_t *node_list_templates(struct node *node)
{
    return template_list(node->parts->volume);
}
