/* Snapshots as they may be found on a disk. An input is the manifest, the state, and the layer of
 * memory: which byte of it is damaged, and its runs. Where the manifest has `true` for something
 * that follows from the other files (a length, a checksum), that comes in its place: nothing would
 * get past them otherwise. A damaged byte, wherever it is, is found. */
#include "node/snapshot.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/reader.h"
#include "node/fuzz_dir.h"
#include "node/snapshot_private.h"

#define PAGES          16U
#define FILE_MAX       (1U << 20U)
#define SUM_TEXT       (2U * RAM_LAYER_SUM_BYTES + 1U)
#define MANIFEST       "snapshot.json"
#define DISK           "disk"
#define ANOTHER_KERNEL "another kernel"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void sum_text(struct span bytes, char out[SUM_TEXT])
{
    struct ram_sum sum = ram_sum_of(bytes);

    for (size_t i = 0; i < RAM_LAYER_SUM_BYTES; i++) {
        (void)snprintf(&out[2 * i], 3, "%02x", sum.bytes[i]);
    }
}

static void read_back(const char *dir, const char *name, struct buf *ret)
{
    char path[FUZZ_DIR_SIZE + 32];

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    fuzz_require(file_read(AT_FDCWD, path, FILE_MAX, ret) == 0);
}

/* ---- what is asked for: as the manifest has it, where that is possible ---- */

static void take_text(const json_t *object, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(object, key));

    (void)snprintf(out, size, "%s", text != NULL ? text : "");
}

static uint64_t take_number(const json_t *object, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(object, key));

    return n > 0 ? (uint64_t)n : 0;
}

static struct snapshot_facts take_facts(const json_t *root)
{
    const json_t *e = json_object_get(root, "environment");
    struct snapshot_facts f = {.vcpus = (unsigned int)take_number(root, "vcpus"),
                               .memory_mib = (unsigned int)take_number(root, "memory_mib")};

    take_text(root, "template_version", f.template_version, sizeof(f.template_version));
    take_text(e, "driver", f.env.driver, sizeof(f.env.driver));
    take_text(e, "vmm_version", f.env.vmm_version, sizeof(f.env.vmm_version));
    take_text(e, "accelerator", f.env.accelerator, sizeof(f.env.accelerator));
    take_text(e, "cpu_model", f.env.cpu_model, sizeof(f.env.cpu_model));
    take_text(e, "kernel", f.env.kernel, sizeof(f.env.kernel));
    f.env.tsc_khz = take_number(root, "clock_khz");
    return f;
}

/* ---- the layer ---- */

/* Three bytes each: how far behind the last run it is, its pages, what they hold. */
static void put_runs(struct ram_layer_writer *writer, struct reader *r)
{
    uint8_t pages[PAGES * RAM_PAGE_BYTES];
    uint32_t next = 0;

    while (r->rest.n >= 3) {
        uint32_t first = next + reader_get_u8(r) % PAGES;
        uint32_t count = reader_get_u8(r) % PAGES;
        uint8_t fill = reader_get_u8(r);

        if (count == 0 || first + count > PAGES) {
            return;
        }
        memset(pages, fill, sizeof(pages));
        fuzz_require(ram_layer_put(writer, first, count, fill != 0 ? pages : NULL) == 0);
        next = first + count;
    }
}

static void write_layer(const char *dir, const struct snapshot_facts *facts, struct reader *r)
{
    _cleanup_close_ int image = snapshot_open_file(dir, "", "ram", O_RDONLY);
    _cleanup_close_ int fd = snapshot_open_file(dir, "", "memory", O_RDWR | O_CREAT | O_TRUNC);
    struct ram_layer_writer *writer;
    struct ram_layer_place place;
    struct ram_layer_head head;

    fuzz_require(image >= 0 && fd >= 0 && snapshot_place(facts, image, &place) == 0);
    writer = ram_layer_writer_new(fd, &place);
    fuzz_require(writer != NULL);
    put_runs(writer, r);
    fuzz_require(ram_layer_finish(writer, &head) == 0);
    ram_layer_writer_free(writer);
}

/* Whether a byte is another one now. */
static bool damage(const char *dir, const char *name, size_t at, uint8_t by)
{
    _cleanup_buf_ struct buf bytes = buf_make(0);

    read_back(dir, name, &bytes);
    if (bytes.n == 0 || by == 0) {
        return false;
    }
    bytes.p[at % bytes.n] ^= by;
    fuzz_put(dir, name, buf_span(&bytes));
    return true;
}

/* ---- the manifest ---- */

static void set(json_t *root, const char *key, json_t *value)
{
    if (json_is_true(json_object_get(root, key))) {
        fuzz_require(json_object_set(root, key, value) == 0);
    }
    json_decref(value);
}

static void set_bytes(json_t *root, const char *key, const struct buf *file)
{
    set(root, key, json_integer((json_int_t)file->n));
}

static void set_all(const char *dir, json_t *root)
{
    _cleanup_buf_ struct buf memory = buf_make(0);
    _cleanup_buf_ struct buf state = buf_make(0);
    char path[FUZZ_DIR_SIZE + 32];
    char sum[SUM_TEXT];
    struct stat st;

    read_back(dir, "memory", &memory);
    read_back(dir, "state", &state);
    (void)snprintf(path, sizeof(path), "%s/ram", dir);
    fuzz_require(stat(path, &st) == 0);
    set(root, "ram_bytes", json_integer(st.st_size));
    set(root, "ram_time_ns",
        json_integer((json_int_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec));
    set_bytes(root, "memory_bytes", &memory);
    set_bytes(root, "state_bytes", &state);
    set(root, "disk_bytes", json_integer(sizeof(DISK) - 1));
    sum_text(buf_span(&state), sum);
    set(root, "state_sum", json_string(sum));
    sum_text(span_head(buf_span(&memory), RAM_PAGE_BYTES), sum);
    set(root, "memory_sum", json_string(sum));
}

/* Last: of all the others. */
static void write_manifest(const char *dir, json_t *root)
{
    char sum[SUM_TEXT];
    char *text;

    if (json_is_true(json_object_get(root, "check"))) {
        (void)json_object_del(root, "check");
        text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
        fuzz_require(text != NULL);
        sum_text(span_of_str(text), sum);
        free(text);
        fuzz_require(json_object_set_new(root, "check", json_string(sum)) == 0);
    }
    text = json_dumps(root, JSON_COMPACT);
    fuzz_require(text != NULL);
    fuzz_put(dir, MANIFEST, span_of_str(text));
    free(text);
}

/* ---- looking ---- */

static bool is_good(const char *dir, const struct snapshot_facts *facts)
{
    struct error err = {0};
    int r = snapshot_check(dir, facts, &err);

    fuzz_require(r == 0 || (r < 0 && err.message[0] != '\0'));
    return r == 0;
}

static void check_strictness(const char *dir, const struct snapshot_facts *facts)
{
    struct snapshot_facts other = *facts;

    (void)snprintf(other.env.kernel, sizeof(other.env.kernel), ANOTHER_KERNEL);
    fuzz_require(!is_good(dir, &other) || strcmp(facts->env.kernel, ANOTHER_KERNEL) == 0);
    if (damage(dir, "state", 0, 1)) {
        fuzz_require(!is_good(dir, facts));
        fuzz_require(damage(dir, "state", 0, 1) && is_good(dir, facts));
    }
    fuzz_put(dir, "disk.img", span_of_str(DISK "."));
    fuzz_require(!is_good(dir, facts));
}

static void check(const char *dir, json_t *root, struct span state, struct span layer)
{
    struct snapshot_facts facts = take_facts(root);
    struct reader r = reader_make(layer);
    size_t at = reader_get_u16(&r);
    uint8_t by = reader_get_u8(&r);
    bool is_damaged;

    fuzz_put(dir, "state", state);
    fuzz_put(dir, "disk.img", span_of_str(DISK));
    write_layer(dir, &facts, &r);
    is_damaged = damage(dir, "memory", at, by);
    set_all(dir, root);
    write_manifest(dir, root);
    if (is_good(dir, &facts)) {
        fuzz_require(!is_damaged);
        check_strictness(dir, &facts);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t image[PAGES * RAM_PAGE_BYTES];
    struct span rest = span_make(data, size);
    struct span manifest = fuzz_take(&rest);
    struct span state = fuzz_take(&rest);
    struct snapshot_facts facts;
    char dir[FUZZ_DIR_SIZE];
    json_t *root;

    root = json_loadb((const char *)manifest.p, manifest.n, JSON_REJECT_DUPLICATES, NULL);
    facts = take_facts(root);
    fuzz_dir_make(dir);
    fuzz_put(dir, "ram", span_make(image, sizeof(image)));
    fuzz_put(dir, MANIFEST, manifest);
    fuzz_require(!is_good(dir, &facts)); /* of nothing else */
    if (json_is_object(root)) {
        check(dir, root, state, rest);
    }
    json_decref(root);
    fuzz_dir_remove(dir);
    return 0;
}
