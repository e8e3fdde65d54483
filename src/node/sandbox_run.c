/* Creating a sandbox.
 *
 * Admission and directory first; then a VM: a warm one at once, else from the pool's queue. The VM
 * comes loaded, stopped and silent. Its disk moves into the sandbox's directory, and then HELLO,
 * IDENTITY and whatever the on_agent hook queues (files, a first command) leave in one write; the
 * guest finds them when it continues. Running means: the agent confirmed every part of the
 * identity and has the first files, and the journal says so with the VM's facts.
 *
 * Until then the directory is the record of the creation: after a kill, a directory whose journal
 * is missing or says creating is removed with its VM, which nobody was told of (adopt.c). A
 * creation that has to wait for its VM gets a journal meanwhile, for who looks. Nothing on this way
 * waits for a disk: the journal is synchronised by a worker after. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/admission.h"
#include "node/agent.h"
#include "node/checkpoint.h"
#include "node/disk.h"
#include "node/node_private.h"
#include "node/pool.h"
#include "node/sandbox_fetch.h"
#include "node/sandbox_private.h"
#include "node/sandbox_resume.h"
#include "node/vm.h"

#define MEMINFO_MAX 16384U
/* A VM that waited may have died a moment before it was given, and others with it: they are all
 * tried, more than wait in a pool of the default size. */
#define ATTEMPTS_MAX 20U
#define MIB          1048576ULL

/* ---- admission ---- */

int sandbox_check_admission(struct node *node,
                            unsigned int memory_mib,
                            bool exists,
                            struct error *err)
{
    const struct node_parts *parts = node->parts;
    _cleanup_buf_ struct buf meminfo = buf_make(MEMINFO_MAX);
    uint64_t disk_total = 0;
    struct admission a = {
        .total_mib = parts->total_mib,
        .reserve_mib = parts->reserve_mib,
        .overcommit_percent = node->settings.node_memory_overcommit,
        .admitted_mib = sandbox_admitted(node).memory_mib,
        .disk_reserve_mib = exists ? 0 : node->settings.node_disk_reserve_mib,
        .sandboxes = exists ? 0 : parts->sandboxes->count,
        .max_sandboxes = node->settings.node_max_sandboxes,
    };
    uint64_t total;
    int r;

    if (file_read(AT_FDCWD, "/proc/meminfo", MEMINFO_MAX, &meminfo) < 0 ||
        admission_parse_meminfo(buf_str(&meminfo), &total, &a.available_mib) < 0 ||
        disk_space(parts->volume, &disk_total, &a.disk_free_mib) < 0) {
        return error_set(err, EIO, "cannot read the host's memory or disk use");
    }
    r = admission_check(&a, memory_mib, err);
    if (r == -ENOMEM && a.available_mib < a.reserve_mib && pool_give_up_one(parts->pool)) {
        log_info("pool_shrunk", "available_mib=%llu", (unsigned long long)a.available_mib);
    }
    return r;
}

static int
bad_size(struct error *err, const char *field, unsigned int min, unsigned int max, unsigned int got)
{
    return error_set_code(err, ERROR_INVALID_REQUEST, field, "%s must be between %u and %u, got %u",
                          field, min, max, got);
}

static int
check_sizes(const struct sandbox_info *i, const struct template_info *t, struct error *err)
{
    if (i->vcpus < 1 || i->vcpus > SANDBOX_VCPUS_MAX) {
        return bad_size(err, "vcpus", 1, SANDBOX_VCPUS_MAX, i->vcpus);
    }
    if (i->memory_mib < SANDBOX_MEMORY_MIB_MIN || i->memory_mib > SANDBOX_MEMORY_MIB_MAX) {
        return bad_size(err, "memory_mib", SANDBOX_MEMORY_MIB_MIN, SANDBOX_MEMORY_MIB_MAX,
                        i->memory_mib);
    }
    if (i->memory_mib % SANDBOX_MEMORY_MIB_MIN != 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "memory_mib",
                              "memory_mib must be a multiple of %u, got %u", SANDBOX_MEMORY_MIB_MIN,
                              i->memory_mib);
    }
    if (i->disk_mib < t->disk_mib || i->disk_mib > SANDBOX_DISK_MIB_MAX) {
        return bad_size(err, "disk_mib", t->disk_mib, SANDBOX_DISK_MIB_MAX, i->disk_mib);
    }
    return 0;
}

/* ---- the end of a creation ---- */

/* `reason`: the code that an error of its record would have; "": none. */
static void
fail_create(struct sandbox *sb, enum error_code code, const char *reason, const char *message)
{
    if (sb->info.state != SANDBOX_STATE_CREATING || sb->failed) {
        return;
    }
    sb->failed = true;
    (void)error_set_code(&sb->fail_err, code, reason, "%s", message);
    log_warning("create_failed", "sandbox=%s error=%s", sb->info.id, LOG_STR(message));
    sandbox_begin_delete(sb);
}

void sandbox_fail_create(struct sandbox *sb, enum error_code code, const char *message)
{
    fail_create(sb, code, "", message);
}

static enum error_code code_of_end(const char *code)
{
    if (strcmp(code, "storage_full") == 0) {
        return ERROR_STORAGE_FULL;
    }
    if (strcmp(code, "agent_timeout") == 0) {
        return ERROR_DEADLINE_EXCEEDED;
    }
    return ERROR_INTERNAL;
}

static void start(void *arg);

/* A VM that had waited was dead, and the guest has done nothing yet that anybody knows of. */
static bool try_another(struct sandbox *sb, struct vm *vm, const char *code)
{
    if (sb->counted || sb->failed || sb->attempts >= ATTEMPTS_MAX ||
        strcmp(code, "vmm_crashed") != 0 || loop_defer(sb->node->loop, start, sb) < 0) {
        return false;
    }
    log_warning("vm_dead_on_arrival", "sandbox=%s slot=%u", sb->info.id, vm_slot(vm));
    sandbox_change_vm(sb, vm);
    return true;
}

/* The VM ended and nobody had asked for it. */
static void on_vm_end(void *arg, struct vm *vm, const char *code, const char *message)
{
    struct sandbox *sb = arg;

    sandbox_save_console(sb);
    if (sb->info.state == SANDBOX_STATE_CREATING) {
        char text[360];

        if (try_another(sb, vm, code)) {
            return;
        }
        (void)snprintf(text, sizeof(text), "the sandbox could not start: %s: %s", code, message);
        sandbox_lose_vm(sb, vm);
        fail_create(sb, code_of_end(code), code, text);
        return;
    }
    if (sandbox_outlive_vm(sb, vm, code, message)) {
        return;
    }
    (void)snprintf(sb->info.reason_code, sizeof(sb->info.reason_code), "%s", code);
    (void)snprintf(sb->info.reason_message, sizeof(sb->info.reason_message), "%s", message);
    sandbox_lose_vm(sb, vm);
    sandbox_set_state(sb, SANDBOX_STATE_ERROR);
    sandbox_lose_capture(sb);
    (void)sandbox_write_journal(sb);
}

const struct vm_owner sandbox_vm_owner = {on_vm_end};

void sandbox_fail(struct sandbox *sb, const char *code, const char *message)
{
    if (sb->vm != NULL) {
        vm_fail(sb->vm, code, message);
    }
}

/* ---- activation ---- */

static void become_running(struct sandbox *sb)
{
    int r;

    vm_set_deadline(sb->vm, 0, "", "");
    sb->info.running_at_ms = clock_real_ms();
    sb->info.active_at_ms = sb->info.running_at_ms;
    r = sandbox_write_journal_as(sb, SANDBOX_STATE_RUNNING);
    if (r < 0) {
        sandbox_fail_create(sb, r == -ENOSPC ? ERROR_STORAGE_FULL : ERROR_INTERNAL,
                            "the sandbox's journal could not be written");
        return;
    }
    sandbox_set_state(sb, SANDBOX_STATE_RUNNING);
    log_debug("sandbox_created", "sandbox=%s duration_us=%lld", sb->info.id,
              (long long)((clock_monotonic_ns() - sb->started_ns) / 1000));
}

void sandbox_hold_creation(struct sandbox *sb)
{
    sb->holds++;
}

void sandbox_release_creation(struct sandbox *sb)
{
    if (--sb->holds == 0 && sb->identified && sb->info.state == SANDBOX_STATE_CREATING &&
        !sb->failed) {
        become_running(sb);
    }
}

static void on_identity(void *arg, int result, const struct agent_identity_ok *answer)
{
    struct sandbox *sb = arg;
    char text[160];

    if (result < 0 || sb->info.state != SANDBOX_STATE_CREATING) {
        return; /* on_vm_end tells, or the deletion goes on */
    }
    if (result > 0 || answer->done != AGENT_IDENTITY_ALL) {
        (void)snprintf(text, sizeof(text), "the guest could not take its identity (done %#x): %s",
                       answer->done, strerror(result > 0 ? result : EIO));
        sandbox_fail_create(sb, ERROR_INTERNAL, text);
        return;
    }
    sb->info.identity_done = answer->done;
    sb->info.identity_confirmed_at_ms = clock_real_ms();
    sb->identified = true;
    if (sb->holds == 0) {
        become_running(sb);
    }
}

static bool needs_growth(const struct sandbox *sb)
{
    return sb->info.disk_mib > sb->key.template_info.disk_mib;
}

/* Its own for as long as it exists: what was made for it (keys of its ssh server) stays good. */
static int choose_machine_id(struct sandbox *sb, struct agent_identity *identity)
{
    static const uint8_t none[sizeof(sb->info.machine_id)];
    int r = 0;

    if (memcmp(sb->info.machine_id, none, sizeof(none)) == 0) {
        r = random_bytes(sb->info.machine_id, sizeof(sb->info.machine_id));
    }
    memcpy(identity->machine_id, sb->info.machine_id, sizeof(identity->machine_id));
    return r;
}

int sandbox_send_identity(struct sandbox *sb, bool known_silent, agent_identity_fn done)
{
    int64_t timeout = (int64_t)sb->node->settings.node_start_timeout_ms;
    uint8_t entropy[AGENT_ENTROPY_BYTES];
    struct agent_identity identity = {.epoch = ++sb->info.identity_epoch};
    int r = random_bytes(entropy, sizeof(entropy));

    if (r == 0) {
        r = choose_machine_id(sb, &identity);
    }
    if (r == 0) {
        r = random_bytes(identity.boot_id, sizeof(identity.boot_id));
    }
    /* Both are UUIDs of version 4. */
    identity.machine_id[6] = (uint8_t)((identity.machine_id[6] & 0x0fU) | 0x40U);
    identity.machine_id[8] = (uint8_t)((identity.machine_id[8] & 0x3fU) | 0x80U);
    identity.boot_id[6] = (uint8_t)((identity.boot_id[6] & 0x0fU) | 0x40U);
    identity.boot_id[8] = (uint8_t)((identity.boot_id[8] & 0x3fU) | 0x80U);
    identity.entropy = span_make(entropy, sizeof(entropy));
    identity.realtime_ns = (uint64_t)clock_real_ns();
    identity.hostname = span_of_str(sb->info.hostname);
    identity.disk_bytes =
        sb->info.state == SANDBOX_STATE_CREATING && needs_growth(sb) ? sb->info.disk_mib * MIB : 0;
    /* No variables: each command brings the sandbox's own, so that a PATCH can take one away. */
    if (r == 0) {
        agent_begin(vm_agent(sb->vm), known_silent, timeout, NULL, NULL);
        agent_identify(vm_agent(sb->vm), &identity, timeout, done, sb);
    }
    explicit_bzero(entropy, sizeof(entropy));
    return r;
}

static void activate(void *arg, struct vm *vm)
{
    struct sandbox *sb = arg;
    struct node *node = sb->node;
    int r;

    vm_set_deadline(vm, (int64_t)node->settings.node_start_timeout_ms, "agent_timeout",
                    "the guest did not take its identity and first files in time");
    r = sandbox_send_identity(sb, true, on_identity);
    if (r < 0) {
        sandbox_fail_create(sb, ERROR_INTERNAL, strerror(-r));
        return;
    }
    sb->agent_told = true;
    if (node->hooks.on_agent != NULL) {
        node->hooks.on_agent(node->hooks_ctx, sb, false);
    }
    if (sb->vm == vm && !needs_growth(sb)) { /* else it runs already */
        agent_flush(vm_agent(vm));
        vm_cont(vm, NULL, NULL);
    }
}

/* The guest runs, silent and without an identity: only now is the disk the VMM's to resize. */
static void grow_disk(void *arg, struct vm *vm)
{
    struct sandbox *sb = arg;

    vm_resize_disk(vm, sb->info.disk_mib * MIB, activate, sb);
}

/* The VM is this sandbox's from here. */
static void take_vm(struct sandbox *sb, struct vm *vm)
{
    char path[NODE_PATH_SIZE + 64];
    int r;

    sb->vm = vm;
    sb->attempts++;
    sb->identified = false;
    sb->holds = 0;
    vm_set_owner(vm, &sandbox_vm_owner, sb);
    sandbox_link_ram(sb, vm_ram_path(vm));
    sandbox_dir_path(sb, "disk.img", path, sizeof(path));
    r = vm_move_disk(vm, path);
    if (r < 0) {
        sandbox_fail_create(sb, r == -ENOSPC ? ERROR_STORAGE_FULL : ERROR_INTERNAL,
                            "the sandbox's disk could not be put in place");
        return;
    }
    if (needs_growth(sb)) {
        vm_cont(vm, grow_disk, sb);
        return;
    }
    activate(sb, vm);
}

static void on_vm(void *arg, struct vm *vm, bool counted, const struct error *err)
{
    struct sandbox *sb = arg;

    sb->request = NULL;
    sb->counted = counted;
    if (err != NULL) {
        fail_create(sb, err->code, err->field, err->message);
        return;
    }
    take_vm(sb, vm);
}

/* At the end of a turn, so that no hook comes from inside sandbox_create. */
static void start(void *arg)
{
    struct sandbox *sb = arg;
    struct vm *vm;
    int r;

    if (sb->info.state != SANDBOX_STATE_CREATING) {
        return; /* deleted in the same turn */
    }
    if (sb->origin != NULL) {
        sandbox_start_restored(sb);
        return;
    }
    if (sb->fetch != NULL) {
        sandbox_start_fetched(sb);
        return;
    }
    vm = pool_take_warm(sb->node, &sb->key);
    if (vm != NULL) {
        take_vm(sb, vm);
        return;
    }
    r = sandbox_write_journal(sb);
    if (r < 0) {
        sandbox_fail_create(sb, r == -ENOSPC ? ERROR_STORAGE_FULL : ERROR_INTERNAL,
                            "the sandbox's journal could not be written");
        return;
    }
    sb->request = pool_ask(sb->node, &sb->key, on_vm, sb);
    if (sb->request == NULL) {
        sandbox_fail_create(sb, ERROR_INTERNAL, "no memory");
    }
}

/* ---- create ---- */

static void
fill_info(struct sandbox *sb, const struct sandbox_spec *spec, const struct template_info *t)
{
    struct sandbox_info *i = &sb->info;

    (void)snprintf(i->template_name, sizeof(i->template_name), "%s", t->name);
    (void)snprintf(i->template_version, sizeof(i->template_version), "%s", t->version);
    (void)snprintf(i->user, sizeof(i->user), "%s", t->user);
    (void)snprintf(i->hostname, sizeof(i->hostname), "%s",
                   spec->hostname != NULL && spec->hostname[0] != '\0' ? spec->hostname : spec->id);
    i->vcpus = spec->vcpus != 0 ? spec->vcpus : t->vcpus;
    i->memory_mib = spec->memory_mib != 0 ? spec->memory_mib : t->memory_mib;
    i->disk_mib = spec->disk_mib != 0 ? spec->disk_mib : t->disk_mib;
    i->created_at_ms = clock_real_ms();
    i->active_at_ms = i->created_at_ms;
    sb->key = (struct base_key){*t, i->vcpus, i->memory_mib};
}

/* Those of its checkpoint or template, if any, with those that were given. */
static int choose_env(struct sandbox *sb, const struct sandbox_spec *spec)
{
    sb->env = sb->origin != NULL
                  ? checkpoint_load_env(sb->origin)
                  : template_load_env(sb->node->parts->volume, &sb->key.template_info);
    if (sb->env == NULL) {
        return -ENOMEM;
    }
    return spec->env != NULL && json_object_update(sb->env, spec->env) < 0 ? -ENOMEM : 0;
}

/* Directory and variables. */
static int prepare_files(struct sandbox *sb, const struct sandbox_spec *spec, struct error *err)
{
    int r = choose_env(sb, spec);

    if (r == 0) {
        r = sandbox_open_dir(sb, true);
    }
    if (r == 0 && json_object_size(sb->env) > 0) {
        r = sandbox_store_env(sb);
    }
    if (r < 0) {
        return error_set_code(err, r == -ENOSPC ? ERROR_STORAGE_FULL : ERROR_INTERNAL, NULL,
                              "cannot make the sandbox's directory: %s", strerror(-r));
    }
    return 0;
}

/* Its guest has seen an epoch, and its processes' time stood still since. */
static int take_origin(struct sandbox *sb, const char *checkpoint, struct error *err)
{
    const struct checkpoint_info *from;
    int r = checkpoint_use(sb->node, checkpoint, &sb->origin, err);

    if (r < 0) {
        return r;
    }
    from = &sb->origin->info;
    if (strcmp(from->base_version, sb->info.template_version) != 0) {
        memcpy(sb->info.base_version, from->base_version, sizeof(sb->info.base_version));
    }
    sb->info.identity_epoch = from->identity_epoch;
    sb->info.paused_total_ms = from->paused_total_ms;
    sb->info.paused_at_ms = from->created_at_ms;
    sandbox_continue_rest(sb);
    return 0;
}

static int make_record(struct node *node,
                       const struct sandbox_spec *spec,
                       const struct template_info *t,
                       struct sandbox **ret_sb,
                       struct error *err)
{
    struct sandbox *sb = sandbox_new(node, spec->id);
    int r;

    if (sb == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    sb->started_ns = clock_monotonic_ns();
    fill_info(sb, spec, t);
    r = check_sizes(&sb->info, t, err);
    if (r == 0 && spec->env != NULL) {
        r = sandbox_check_env(spec->env, err);
    }
    if (r == 0 && spec->checkpoint != NULL) {
        r = take_origin(sb, spec->checkpoint, err);
    }
    if (r == 0 && spec->manifest != NULL) {
        r = sandbox_plan_fetch(sb, spec->manifest, err);
    }
    if (r == 0) {
        r = prepare_files(sb, spec, err);
    }
    if (r < 0) {
        char path[NODE_PATH_SIZE + 64];

        sandbox_dir_path(sb, "", path, sizeof(path));
        if (sb->dir_fd >= 0 && dir_remove_tree(AT_FDCWD, path) < 0) {
            log_warning("create_undo", "sandbox=%s", sb->info.id);
        }
        sandbox_free(sb);
        return r;
    }
    *ret_sb = sb;
    return 0;
}

/* One that goes on in a memory has that memory's sizes. */
static int
check_fixed(const struct sandbox_spec *spec, const struct template_info *t, struct error *err)
{
    const struct {
        const char *field;
        unsigned int asked;
        unsigned int has;
    } sizes[] = {{"vcpus", spec->vcpus, t->vcpus},
                 {"memory_mib", spec->memory_mib, t->memory_mib},
                 {"disk_mib", spec->disk_mib, t->disk_mib}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i].asked != 0 && sizes[i].asked != sizes[i].has) {
            return error_set_code(err, ERROR_INVALID_REQUEST, sizes[i].field,
                                  "%s must be %u: sandboxes of template %s go on in its memory",
                                  sizes[i].field, sizes[i].has, t->name);
        }
    }
    return 0;
}

/* A checkpoint stands in for the template; a template with memory is one. */
static int resolve(struct node *node,
                   const struct sandbox_spec *spec,
                   struct template_info *t,
                   struct sandbox_spec *ret,
                   char image[ID_SIZE],
                   struct error *err)
{
    int r;

    *ret = *spec;
    if (spec->checkpoint != NULL) {
        return 0;
    }
    r = template_load(node->parts->volume, spec->template_name, spec->template_version, t, err);
    if (r == 0 && t->memory && spec->manifest == NULL) {
        r = check_fixed(spec, t, err);
        memcpy(image, t->version, ID_SIZE);
        ret->checkpoint = image;
    }
    return r;
}

static int load_template(struct node *node,
                         const struct sandbox_spec *spec,
                         struct template_info *ret,
                         struct error *err)
{
    struct checkpoint *ck;
    int r;

    if (spec->checkpoint == NULL) {
        return 0; /* it is loaded */
    }
    r = checkpoint_use(node, spec->checkpoint, &ck, err);
    if (r < 0) {
        return r;
    }
    *ret = (struct template_info){
        .vcpus = ck->info.vcpus, .memory_mib = ck->info.memory_mib, .disk_mib = ck->info.disk_mib};
    (void)snprintf(ret->name, sizeof(ret->name), "%s", ck->info.template_name);
    (void)snprintf(ret->version, sizeof(ret->version), "%s", ck->info.template_version);
    (void)snprintf(ret->user, sizeof(ret->user), "%s", ck->info.user);
    checkpoint_release(ck);
    return 0;
}

int sandbox_create(struct node *node,
                   const struct sandbox_spec *spec,
                   struct sandbox **ret_sb,
                   struct error *err)
{
    struct sandbox *sb = sandbox_find(node, spec->id);
    struct sandbox_spec resolved;
    char image[ID_SIZE];
    struct template_info t = {0};
    int r;

    if (sb != NULL) {
        if (sb->info.state == SANDBOX_STATE_DELETING && sb->is_left_over) {
            return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                                  "what a killed node left of sandbox %s is being removed",
                                  spec->id);
        }
        if (sb->info.state == SANDBOX_STATE_DELETING) {
            return error_set_code(err, ERROR_CONFLICT, NULL, "sandbox %s is being deleted",
                                  spec->id);
        }
        *ret_sb = sb;
        return 0;
    }
    if (!id_is_valid(spec->id, "sb")) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "id", "not a sandbox id");
    }
    r = node_check_start(node, err);
    if (r == 0) {
        r = resolve(node, spec, &t, &resolved, image, err);
    }
    if (r == 0) {
        r = load_template(node, &resolved, &t, err);
    }
    if (r == 0) {
        r = sandbox_check_admission(node, spec->memory_mib != 0 ? spec->memory_mib : t.memory_mib,
                                    false, err);
    }
    if (r == 0) {
        r = make_record(node, &resolved, &t, &sb, err);
    }
    if (r < 0 || sb == NULL) {
        return r;
    }
    log_info("sandbox_create",
             "sandbox=%s template=%s version=%s vcpus=%u memory_mib=%u disk_mib=%u", sb->info.id,
             t.name, t.version, sb->info.vcpus, sb->info.memory_mib, sb->info.disk_mib);
    if (node->hooks.on_change != NULL) {
        node->hooks.on_change(node->hooks_ctx, sb);
    }
    *ret_sb = sb;
    if (loop_defer(node->loop, start, sb) < 0) {
        sandbox_fail_create(sb, ERROR_INTERNAL, "no memory");
    }
    return 0;
}
