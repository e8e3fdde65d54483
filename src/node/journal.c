#include "node/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/fd.h"
#include "base/step.h"
#include "node/json_field.h"

#define JOURNAL_MAX   16384U
#define PREPARED_FILE "journal.next"

static json_t *pack_info(const struct sandbox_info *i)
{
    char machine_id[2 * sizeof(i->machine_id) + 1];

    for (size_t n = 0; n < sizeof(i->machine_id); n++) {
        (void)snprintf(&machine_id[2 * n], 3, "%02x", i->machine_id[n]);
    }
    return json_pack(
        "{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i,"
        " s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:I, s:b, s:I, s:b, s:s, s:s*}",
        "format", JOURNAL_FORMAT, "id", i->id, "state", sandbox_state_name(i->state), "reason_code",
        i->reason_code, "reason_message", i->reason_message, "template", i->template_name,
        "template_version", i->template_version, "hostname", i->hostname, "user", i->user, "vcpus",
        (int)i->vcpus, "memory_mib", (int)i->memory_mib, "disk_mib", (int)i->disk_mib,
        "created_at_ms", (json_int_t)i->created_at_ms, "running_at_ms",
        (json_int_t)i->running_at_ms, "active_at_ms", (json_int_t)i->active_at_ms, "paused_at_ms",
        (json_int_t)i->paused_at_ms, "paused_total_ms", (json_int_t)i->paused_total_ms,
        "identity_epoch", (json_int_t)i->identity_epoch, "identity_done", (int)i->identity_done,
        "identity_confirmed_at_ms", (json_int_t)i->identity_confirmed_at_ms, "asleep",
        (int)i->asleep, "capture_id", (json_int_t)i->capture_id, "booting", (int)i->booting,
        "machine_id", machine_id, "base_version",
        i->base_version[0] != '\0' ? i->base_version : NULL);
}

static json_t *pack_environment(const struct runtime_env *e)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I}", "driver", e->driver, "vmm_version",
                     e->vmm_version, "accelerator", e->accelerator, "cpu_model", e->cpu_model,
                     "kernel", e->kernel, "guest_id", e->guest_id, "clock_khz",
                     (json_int_t)e->tsc_khz);
}

/* NULL: no memory. */
static json_t *pack_vm(const struct journal_vm *vm)
{
    json_t *root =
        json_pack("{s:i, s:i, s:i, s:I, s:s, s:s}", "slot", (int)vm->slot, "netns", (int)vm->netns,
                  "pid", (int)vm->pid, "start_time", (json_int_t)vm->start_time, "boot_id",
                  vm->boot_id, "binary", vm->binary);

    if (root != NULL && vm->env.driver[0] != '\0' &&
        (json_object_set_new(root, "environment", pack_environment(&vm->env)) < 0 ||
         json_object_set_new(root, "ram_is_memfd", json_boolean(vm->ram_is_memfd)) < 0)) {
        json_decref(root);
        return NULL;
    }
    return root;
}

static int write_as(int dir_fd, const char *name, const struct journal *journal, bool sync)
{
    const struct journal_vm *vm = &journal->vm;
    json_t *root = pack_info(&journal->info);
    int r = root == NULL ? -ENOMEM : 0;

    if (r == 0 && vm->slot != 0) {
        r = json_object_set_new(root, "vm", pack_vm(vm)) < 0 ? -ENOMEM : 0;
    }
    if (r == 0) {
        r = json_file_write(dir_fd, name, root, sync);
    }
    json_decref(root);
    return r;
}

static int sync_file(int dir_fd, const char *name)
{
    _cleanup_close_ int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

    return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

int journal_sync(int dir_fd)
{
    int r;

    step("sync journal");
    r = sync_file(dir_fd, JOURNAL_ENV_FILE);
    if (r == 0 || r == -ENOENT) {
        r = sync_file(dir_fd, JOURNAL_FILE);
    }
    if (r == 0 && fsync(dir_fd) < 0) {
        r = -errno;
    }
    step("synced journal");
    return r;
}

int journal_write(int dir_fd, const struct journal *journal)
{
    return write_as(dir_fd, JOURNAL_FILE, journal, false);
}

int journal_prepare(int dir_fd, const struct journal *journal)
{
    return write_as(dir_fd, PREPARED_FILE, journal, true);
}

int journal_take_prepared(int dir_fd)
{
    return renameat(dir_fd, PREPARED_FILE, dir_fd, JOURNAL_FILE) < 0 ? -errno : 0;
}

void journal_drop_prepared(int dir_fd)
{
    (void)unlinkat(dir_fd, PREPARED_FILE, 0);
}

static bool parse_state(const json_t *root, enum sandbox_state *ret)
{
    char name[32];

    if (!json_field_text(root, "state", name, sizeof(name))) {
        return false;
    }
    for (int s = 0; s < SANDBOX_STATE_COUNT; s++) {
        if (strcmp(sandbox_state_name((enum sandbox_state)s), name) == 0) {
            *ret = (enum sandbox_state)s;
            return true;
        }
    }
    return false;
}

static bool parse_time(const json_t *root, const char *key, int64_t *ret)
{
    uint64_t value;

    if (!json_field_u64(root, key, INT64_MAX, &value)) {
        return false;
    }
    *ret = (int64_t)value;
    return true;
}

/* Journals of the first release have none. */
static bool parse_pauses(const json_t *root, struct sandbox_info *i)
{
    return json_object_get(root, "paused_at_ms") == NULL ||
           (parse_time(root, "paused_at_ms", &i->paused_at_ms) &&
            parse_time(root, "paused_total_ms", &i->paused_total_ms));
}

static bool parse_digit(char c, unsigned int *ret)
{
    if (c >= '0' && c <= '9') {
        *ret = (unsigned int)(c - '0');
    } else if (c >= 'a' && c <= 'f') {
        *ret = (unsigned int)(c - 'a') + 10U;
    } else {
        return false;
    }
    return true;
}

static bool parse_base(const json_t *root, struct sandbox_info *i)
{
    return json_object_get(root, "base_version") == NULL ||
           (json_field_text(root, "base_version", i->base_version, sizeof(i->base_version)) &&
            id_is_valid(i->base_version, "tm"));
}

/* Those of earlier releases have neither. */
static bool parse_sleep(const json_t *root, struct sandbox_info *i)
{
    const json_t *asleep = json_object_get(root, "asleep");
    char text[2 * sizeof(i->machine_id) + 1];

    if (asleep == NULL) {
        return true;
    }
    if (!json_is_boolean(asleep) || !json_field_text(root, "machine_id", text, sizeof(text)) ||
        strlen(text) != sizeof(text) - 1) {
        return false;
    }
    i->asleep = json_is_true(asleep);
    i->booting = json_is_true(json_object_get(root, "booting"));
    for (size_t n = 0; n < sizeof(i->machine_id); n++) {
        unsigned int high;
        unsigned int low;

        if (!parse_digit(text[2 * n], &high) || !parse_digit(text[2 * n + 1], &low)) {
            return false;
        }
        i->machine_id[n] = (uint8_t)(high << 4U | low);
    }
    return json_object_get(root, "capture_id") == NULL ||
           json_field_u64(root, "capture_id", INT64_MAX, &i->capture_id);
}

static bool parse_info(const json_t *root, struct sandbox_info *i)
{
    unsigned int format = 0;

    return json_field_uint(root, "format", JOURNAL_FORMAT, &format) && format == JOURNAL_FORMAT &&
           json_field_text(root, "id", i->id, sizeof(i->id)) && id_is_valid(i->id, "sb") &&
           parse_state(root, &i->state) &&
           json_field_text(root, "reason_code", i->reason_code, sizeof(i->reason_code)) &&
           json_field_text(root, "reason_message", i->reason_message, sizeof(i->reason_message)) &&
           json_field_text(root, "template", i->template_name, sizeof(i->template_name)) &&
           json_field_text(root, "template_version", i->template_version,
                           sizeof(i->template_version)) &&
           json_field_text(root, "hostname", i->hostname, sizeof(i->hostname)) &&
           json_field_text(root, "user", i->user, sizeof(i->user)) &&
           json_field_uint(root, "vcpus", SANDBOX_VCPUS_MAX, &i->vcpus) &&
           json_field_uint(root, "memory_mib", SANDBOX_MEMORY_MIB_MAX, &i->memory_mib) &&
           json_field_uint(root, "disk_mib", SANDBOX_DISK_MIB_MAX, &i->disk_mib) &&
           parse_time(root, "created_at_ms", &i->created_at_ms) &&
           parse_time(root, "running_at_ms", &i->running_at_ms) &&
           parse_time(root, "active_at_ms", &i->active_at_ms) && parse_pauses(root, i) &&
           json_field_u64(root, "identity_epoch", INT64_MAX, &i->identity_epoch) &&
           json_field_uint(root, "identity_done", INT32_MAX, &i->identity_done) &&
           parse_time(root, "identity_confirmed_at_ms", &i->identity_confirmed_at_ms) &&
           parse_sleep(root, i) && parse_base(root, i);
}

/* Those of earlier releases have none. */
static bool parse_environment(const json_t *root, struct journal_vm *vm)
{
    const json_t *e = json_object_get(root, "environment");
    const json_t *is_memfd = json_object_get(root, "ram_is_memfd");
    struct runtime_env *env = &vm->env;

    if (e == NULL) {
        return true;
    }
    if (!json_is_boolean(is_memfd)) {
        return false;
    }
    vm->ram_is_memfd = json_is_true(is_memfd);
    return json_field_text(e, "driver", env->driver, sizeof(env->driver)) &&
           env->driver[0] != '\0' &&
           json_field_text(e, "vmm_version", env->vmm_version, sizeof(env->vmm_version)) &&
           json_field_text(e, "accelerator", env->accelerator, sizeof(env->accelerator)) &&
           json_field_text(e, "cpu_model", env->cpu_model, sizeof(env->cpu_model)) &&
           json_field_text(e, "kernel", env->kernel, sizeof(env->kernel)) &&
           json_field_text(e, "guest_id", env->guest_id, sizeof(env->guest_id)) &&
           json_field_u64(e, "clock_khz", INT32_MAX, &env->tsc_khz);
}

static bool parse_vm(const json_t *root, struct journal_vm *vm)
{
    unsigned int pid = 0;

    if (!json_field_uint(root, "slot", INT32_MAX, &vm->slot) || vm->slot == 0 ||
        !json_field_uint(root, "netns", INT32_MAX, &vm->netns) ||
        !json_field_uint(root, "pid", INT32_MAX, &pid) || pid < 2 ||
        !json_field_u64(root, "start_time", INT64_MAX, &vm->start_time) ||
        !json_field_text(root, "boot_id", vm->boot_id, sizeof(vm->boot_id)) ||
        !json_field_text(root, "binary", vm->binary, sizeof(vm->binary)) ||
        !parse_environment(root, vm)) {
        return false;
    }
    vm->pid = (pid_t)pid;
    return true;
}

int journal_read(int dir_fd, struct journal *ret)
{
    struct journal j = {0};
    json_t *root;
    json_t *vm;
    bool good;

    if (faccessat(dir_fd, JOURNAL_FILE, F_OK, 0) < 0) {
        return -errno;
    }
    root = json_file_read(dir_fd, JOURNAL_FILE, JOURNAL_MAX);
    if (root == NULL) {
        return -EBADMSG;
    }
    good = parse_info(root, &j.info);
    vm = json_object_get(root, "vm");
    if (good && vm != NULL) {
        good = parse_vm(vm, &j.vm);
    }
    json_decref(root);
    if (!good) {
        return -EBADMSG;
    }
    *ret = j;
    return 0;
}
