#include "node/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/step.h"
#include "node/disk.h"
#include "node/json_field.h"
#include "node/ram_pages.h"
#include "node/snapshot_private.h"

#define MANIFEST     "snapshot.json"
#define MANIFEST_MAX 16384U
#define SUM_TEXT     (2U * RAM_LAYER_SUM_BYTES + 1U)

struct manifest {
    struct snapshot_facts facts;
    struct snapshot_sizes sizes;
    uint64_t ram_bytes;
    uint64_t ram_time_ns;
    char memory_sum[SUM_TEXT]; /* of the layer's head, which has those of the rest */
    char state_sum[SUM_TEXT];
};

static void path_in(const char *dir, const char *suffix, const char *name, char *out)
{
    (void)snprintf(out, SNAPSHOT_PATH_SIZE + 32, "%.470s%s/%s", dir, suffix, name);
}

int snapshot_open_file(const char *dir, const char *suffix, const char *name, int flags)
{
    char path[SNAPSHOT_PATH_SIZE + 32];
    int fd;

    path_in(dir, suffix, name, path);
    fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd < 0 ? -errno : fd;
}

int snapshot_fail(struct error *err, int r, const char *what)
{
    if (r == -ENOSPC || r == -EDQUOT) {
        return error_set_code(err, ERROR_STORAGE_FULL, NULL,
                              "the node's disk has no room for the snapshot");
    }
    return error_set(err, -r, "%s: %s", what, strerror(-r));
}

/* ---- sums ---- */

static void sum_text(const struct ram_sum *sum, char out[SUM_TEXT])
{
    for (size_t i = 0; i < RAM_LAYER_SUM_BYTES; i++) {
        (void)snprintf(&out[2 * i], 3, "%02x", sum->bytes[i]);
    }
}

static int sum_of_file(int fd, size_t max, char out[SUM_TEXT])
{
    _cleanup_buf_ struct buf content = buf_make(max);
    struct ram_sum sum;
    int r = lseek(fd, 0, SEEK_SET) < 0 ? -errno : fd_read_all(fd, &content);

    if (r == 0) {
        sum = ram_sum_of(buf_span(&content));
        sum_text(&sum, out);
    }
    return r;
}

/* Of the layer: its head is as good as all of it. */
static int sum_of_head(int fd, char out[SUM_TEXT])
{
    uint8_t block[RAM_PAGE_BYTES];
    struct ram_sum sum;
    ssize_t n = pread(fd, block, sizeof(block), 0);

    if (n != (ssize_t)sizeof(block)) {
        return n < 0 ? -errno : -EBADMSG;
    }
    sum = ram_sum_of(span_make(block, sizeof(block)));
    sum_text(&sum, out);
    return 0;
}

/* ---- where a layer belongs ---- */

static uint64_t time_of(const struct stat *st)
{
    return (uint64_t)st->st_mtim.tv_sec * 1000000000U + (uint64_t)st->st_mtim.tv_nsec;
}

int snapshot_place(const struct snapshot_facts *f, int image_fd, struct ram_layer_place *ret)
{
    _cleanup_buf_ struct buf text = buf_make(2048);
    const struct runtime_env *e = &f->env;
    struct stat st;

    if (fstat(image_fd, &st) < 0) {
        return -errno;
    }
    buf_printf(&text, "%s\n%u\n%u\n%" PRIu64 "\n%" PRIu64 "\n%s\n%s\n%s\n%s\n%s\n",
               f->template_version, f->vcpus, f->memory_mib, (uint64_t)st.st_size, time_of(&st),
               e->driver, e->vmm_version, e->accelerator, e->cpu_model, e->kernel);
    if (buf_error(&text) != 0) {
        return buf_error(&text);
    }
    ret->ram_bytes = (uint64_t)st.st_size;
    ret->binding = ram_sum_of(buf_span(&text));
    return 0;
}

/* ---- the manifest ---- */

static json_t *pack_manifest(const struct manifest *m)
{
    const struct runtime_env *e = &m->facts.env;
    char now[CLOCK_TEXT_SIZE];

    clock_format(clock_real_ms(), now);
    return json_pack("{s:i, s:s, s:s, s:i, s:i, s:I, s:I, s:I, s:s, s:I, s:s, s:I, s:I, s:I, s:I,"
                     " s:{s:s, s:s, s:s, s:s, s:s}}",
                     "format", SNAPSHOT_FORMAT, "created_at", now, "template_version",
                     m->facts.template_version, "vcpus", (int)m->facts.vcpus, "memory_mib",
                     (int)m->facts.memory_mib, "ram_bytes", (json_int_t)m->ram_bytes, "ram_time_ns",
                     (json_int_t)m->ram_time_ns, "memory_bytes", (json_int_t)m->sizes.memory_bytes,
                     "memory_sum", m->memory_sum, "state_bytes", (json_int_t)m->sizes.state_bytes,
                     "state_sum", m->state_sum, "disk_bytes", (json_int_t)m->sizes.disk_bytes,
                     "data_pages", (json_int_t)m->sizes.data_pages, "zero_pages",
                     (json_int_t)m->sizes.zero_pages, "clock_khz", (json_int_t)e->tsc_khz,
                     "environment", "driver", e->driver, "vmm_version", e->vmm_version,
                     "accelerator", e->accelerator, "cpu_model", e->cpu_model, "kernel", e->kernel);
}

/* Of its members, whatever their order in the file. */
static int check_of(const json_t *root, char out[SUM_TEXT])
{
    _cleanup_free_ char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
    struct ram_sum sum;

    if (text == NULL) {
        return -ENOMEM;
    }
    sum = ram_sum_of(span_of_str(text));
    sum_text(&sum, out);
    return 0;
}

static int write_manifest(const char *dir, const struct manifest *m)
{
    char path[SNAPSHOT_PATH_SIZE + 32];
    char check[SUM_TEXT];
    json_t *root = pack_manifest(m);
    int r = root == NULL ? -ENOMEM : check_of(root, check);

    if (r == 0 && json_object_set_new(root, "check", json_string(check)) < 0) {
        r = -ENOMEM;
    }
    if (r == 0) {
        path_in(dir, ".new", MANIFEST, path);
        r = json_file_write(AT_FDCWD, path, root, true);
    }
    json_decref(root);
    return r;
}

static bool parse_manifest(json_t *root, struct manifest *m)
{
    struct snapshot_facts *f = &m->facts;
    const json_t *e = json_object_get(root, "environment");
    unsigned int format = 0;
    char check[SUM_TEXT];
    char want[SUM_TEXT];

    if (!json_field_uint(root, "format", SNAPSHOT_FORMAT, &format) || format != SNAPSHOT_FORMAT ||
        !json_field_text(root, "check", check, sizeof(check)) ||
        json_object_del(root, "check") < 0 || check_of(root, want) < 0 ||
        strcmp(check, want) != 0) {
        return false;
    }
    if (!json_field_text(root, "template_version", f->template_version,
                         sizeof(f->template_version)) ||
        !json_field_uint(root, "vcpus", INT32_MAX, &f->vcpus) ||
        !json_field_uint(root, "memory_mib", INT32_MAX, &f->memory_mib) ||
        !json_field_u64(root, "clock_khz", INT32_MAX, &f->env.tsc_khz) ||
        !json_field_text(e, "driver", f->env.driver, sizeof(f->env.driver)) ||
        !json_field_text(e, "vmm_version", f->env.vmm_version, sizeof(f->env.vmm_version)) ||
        !json_field_text(e, "accelerator", f->env.accelerator, sizeof(f->env.accelerator)) ||
        !json_field_text(e, "cpu_model", f->env.cpu_model, sizeof(f->env.cpu_model)) ||
        !json_field_text(e, "kernel", f->env.kernel, sizeof(f->env.kernel))) {
        return false;
    }
    return json_field_u64(root, "ram_bytes", RAM_BYTES_MAX, &m->ram_bytes) &&
           json_field_u64(root, "ram_time_ns", INT64_MAX, &m->ram_time_ns) &&
           json_field_u64(root, "memory_bytes", INT64_MAX, &m->sizes.memory_bytes) &&
           json_field_text(root, "memory_sum", m->memory_sum, sizeof(m->memory_sum)) &&
           json_field_u64(root, "state_bytes", SNAPSHOT_STATE_MAX, &m->sizes.state_bytes) &&
           json_field_text(root, "state_sum", m->state_sum, sizeof(m->state_sum)) &&
           json_field_u64(root, "disk_bytes", INT64_MAX, &m->sizes.disk_bytes);
}

static int read_manifest(const char *dir, struct manifest *ret, struct error *err)
{
    char path[SNAPSHOT_PATH_SIZE + 32];
    json_t *root;
    bool good;

    path_in(dir, "", MANIFEST, path);
    *ret = (struct manifest){0};
    root = json_file_read(AT_FDCWD, path, MANIFEST_MAX);
    good = root != NULL && parse_manifest(root, ret);
    json_decref(root);
    return good ? 0
                : error_set(err, EBADMSG,
                            "the snapshot is damaged: its manifest is missing, "
                            "or is not what was written");
}

/* ---- making ---- */

static int remove_part(const char *dir, const char *suffix)
{
    char path[SNAPSHOT_PATH_SIZE];

    (void)snprintf(path, sizeof(path), "%.470s%s", dir, suffix);
    return dir_remove_tree(AT_FDCWD, path);
}

/* More than one, so that what cannot be removed keeps nothing in place. */
static const char *const old_suffixes[] = {".old", ".old1", ".old2", ".old3"};

#define OLD_COUNT (sizeof(old_suffixes) / sizeof(old_suffixes[0]))

int snapshot_disown(const char *dir)
{
    char old[SNAPSHOT_PATH_SIZE];
    int r = 0;

    step("disown snapshot");
    for (size_t i = 0; i < OLD_COUNT; i++) {
        (void)snprintf(old, sizeof(old), "%.470s%s", dir, old_suffixes[i]);
        r = rename(dir, old) < 0 && errno != ENOENT ? -errno : 0;
        if (r != -ENOTEMPTY && r != -EEXIST) {
            break;
        }
    }
    return r;
}

bool snapshot_has_parts(const char *dir)
{
    char path[SNAPSHOT_PATH_SIZE];

    for (size_t i = 0; i < OLD_COUNT + 2; i++) {
        (void)snprintf(path, sizeof(path), "%.470s%s", dir,
                       i == 0   ? ""
                       : i == 1 ? ".new"
                                : old_suffixes[i - 2]);
        if (access(path, F_OK) == 0) {
            return true;
        }
    }
    return false;
}

/* The name goes first: what is left of an interrupted removal is no snapshot. */
int snapshot_remove(const char *dir)
{
    int r = snapshot_disown(dir);

    step("remove snapshot");
    for (size_t i = 0; r == 0 && i < OLD_COUNT; i++) {
        r = remove_part(dir, old_suffixes[i]);
    }
    r = r == 0 ? remove_part(dir, ".new") : r;
    step("removed snapshot");
    return r;
}

bool snapshot_exists(const char *dir)
{
    char path[SNAPSHOT_PATH_SIZE + 32];

    path_in(dir, "", MANIFEST, path);
    return access(path, F_OK) == 0;
}

int snapshot_begin(const char *dir, struct error *err)
{
    char path[SNAPSHOT_PATH_SIZE];
    int r = snapshot_remove(dir);

    (void)snprintf(path, sizeof(path), "%.470s.new", dir);
    if (r == 0 && mkdir(path, 0700) < 0) {
        r = -errno;
    }
    return r < 0 ? snapshot_fail(err, r, "the snapshot's directory cannot be made") : 0;
}

int snapshot_sync_file(const char *dir, const char *name)
{
    _cleanup_close_ int fd = snapshot_open_file(dir, ".new", name, O_RDONLY);

    return fd < 0 ? fd : fsync(fd) < 0 ? -errno : 0;
}

static int sync_dir(const char *path)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

int snapshot_settle(const char *dir)
{
    char path[SNAPSHOT_PATH_SIZE];
    char *slash;

    (void)snprintf(path, sizeof(path), "%.470s.new", dir);
    step("place snapshot");
    if (rename(path, dir) < 0) {
        return -errno;
    }
    step("placed snapshot");
    slash = strrchr(path, '/');
    if (slash == NULL) {
        return -EINVAL;
    }
    *slash = '\0';
    return sync_dir(path);
}

static int fill_manifest(const char *dir, struct manifest *m)
{
    _cleanup_close_ int ram = snapshot_open_file(dir, ".new", "ram", O_RDONLY);
    _cleanup_close_ int memory = snapshot_open_file(dir, ".new", "memory", O_RDONLY);
    _cleanup_close_ int state = snapshot_open_file(dir, ".new", "state", O_RDONLY);
    struct stat st;
    int r;

    if (ram < 0 || memory < 0 || state < 0) {
        return ram < 0 ? ram : memory < 0 ? memory : state;
    }
    if (fstat(ram, &st) < 0) {
        return -errno;
    }
    m->ram_bytes = (uint64_t)st.st_size;
    m->ram_time_ns = time_of(&st);
    r = sum_of_head(memory, m->memory_sum);
    return r == 0 ? sum_of_file(state, SNAPSHOT_STATE_MAX, m->state_sum) : r;
}

int snapshot_commit(const char *dir,
                    const struct snapshot_facts *facts,
                    const struct snapshot_sizes *sizes,
                    struct error *err)
{
    static const char *const files[] = {"memory", "state", "disk.img"};
    struct manifest m = {.facts = *facts, .sizes = *sizes};
    int r = 0;

    for (size_t i = 0; r == 0 && i < sizeof(files) / sizeof(files[0]); i++) {
        r = snapshot_sync_file(dir, files[i]);
    }
    if (r == 0) {
        r = fill_manifest(dir, &m);
    }
    if (r == 0) {
        r = write_manifest(dir, &m);
    }
    if (r == 0) {
        r = snapshot_settle(dir);
    }
    return r < 0 ? snapshot_fail(err, r, "the snapshot cannot be kept") : 0;
}

/* ---- using ---- */

static int differs(struct error *err, const char *what, const char *had, const char *have)
{
    return error_set_code(err, ERROR_FAILED_PRECONDITION, "environment",
                          "the snapshot needs another %s: it was made with %.90s, this node has "
                          "%.90s",
                          what, had, have);
}

static int
compare(const struct snapshot_facts *had, const struct snapshot_facts *have, struct error *err)
{
    const struct runtime_env *a = &had->env;
    const struct runtime_env *b = &have->env;
    const struct {
        const char *what;
        const char *had;
        const char *have;
    } parts[] = {
        {"driver", a->driver, b->driver},
        {"VMM version", a->vmm_version, b->vmm_version},
        {"accelerator", a->accelerator, b->accelerator},
        {"processor model", a->cpu_model, b->cpu_model},
        {"guest kernel", a->kernel, b->kernel},
    };

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (strcmp(parts[i].had, parts[i].have) != 0) {
            return differs(err, parts[i].what, parts[i].had, parts[i].have);
        }
    }
    if (!runtime_same_clock(a->tsc_khz, b->tsc_khz)) {
        return error_set_code(err, ERROR_FAILED_PRECONDITION, "environment",
                              "the snapshot needs another processor clock: it was made at %" PRIu64
                              " kHz, this node has %" PRIu64 " kHz",
                              a->tsc_khz, b->tsc_khz);
    }
    if (strcmp(had->template_version, have->template_version) != 0 || had->vcpus != have->vcpus ||
        had->memory_mib != have->memory_mib) {
        return error_set(err, EBADMSG, "the snapshot belongs to another sandbox");
    }
    return 0;
}

static int check_sizes(const char *dir, const struct manifest *m, struct error *err)
{
    const struct {
        const char *name;
        uint64_t bytes;
    } files[] = {{"ram", m->ram_bytes},
                 {"memory", m->sizes.memory_bytes},
                 {"state", m->sizes.state_bytes},
                 {"disk.img", m->sizes.disk_bytes}};

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        _cleanup_close_ int fd = snapshot_open_file(dir, "", files[i].name, O_RDONLY);
        struct stat st;

        if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
            (uint64_t)st.st_size != files[i].bytes || (i == 0 && time_of(&st) != m->ram_time_ns)) {
            return error_set(err, EBADMSG,
                             "the snapshot is damaged: its file %s is missing, or "
                             "is not what was written",
                             files[i].name);
        }
    }
    return 0;
}

static int check_state(const char *dir, const struct manifest *m, struct error *err)
{
    _cleanup_close_ int fd = snapshot_open_file(dir, "", "state", O_RDONLY);
    char sum[SUM_TEXT];

    if (fd < 0 || sum_of_file(fd, SNAPSHOT_STATE_MAX, sum) < 0 || strcmp(sum, m->state_sum) != 0) {
        return error_set(err, EBADMSG,
                         "the snapshot is damaged: its device state is not what was "
                         "written");
    }
    return 0;
}

static int check_memory(const char *dir, const struct manifest *m, struct error *err)
{
    _cleanup_close_ int image = snapshot_open_file(dir, "", "ram", O_RDONLY);
    _cleanup_close_ int fd = snapshot_open_file(dir, "", "memory", O_RDONLY);
    struct ram_layer_place place;
    struct ram_layer layer;
    char sum[SUM_TEXT];
    int r;

    if (image < 0 || fd < 0 || snapshot_place(&m->facts, image, &place) < 0 ||
        sum_of_head(fd, sum) < 0 || strcmp(sum, m->memory_sum) != 0) {
        return error_set(err, EBADMSG,
                         "the snapshot's memory is damaged: its head is not what was "
                         "written");
    }
    r = ram_layer_open(fd, &place, &layer, err);
    if (r == 0) {
        r = ram_layer_read(&layer, NULL, NULL, err);
        ram_layer_close(&layer);
    }
    return r;
}

int snapshot_check(const char *dir, const struct snapshot_facts *want, struct error *err)
{
    struct manifest m;
    int r = read_manifest(dir, &m, err);

    if (r == 0) {
        r = compare(&m.facts, want, err);
    }
    if (r == 0) {
        r = check_sizes(dir, &m, err);
    }
    if (r == 0) {
        r = check_state(dir, &m, err);
    }
    return r == 0 ? check_memory(dir, &m, err) : r;
}
