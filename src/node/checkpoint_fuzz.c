/* Records of checkpoints: any bytes, and the same with the checksum made right, without which
 * nothing gets past it. What is taken is the same when it is written and read again; a record with
 * one byte less, or of another checkpoint, is not taken. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/fd.h"
#include "node/checkpoint_private.h"
#include "node/fuzz_dir.h"
#include "node/ram_layer.h"

#define RECORD   "checkpoint.json"
#define TEXT_MAX 65536U
#define SUM_TEXT (2U * RAM_LAYER_SUM_BYTES + 1U)
#define OTHER    "ckzzzzzzzzzzzzzzzzzz"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The id that the record gives: the name of its directory. */
static bool read_id(const json_t *root, char out[ID_SIZE])
{
    const char *id = json_string_value(json_object_get(root, "id"));

    (void)snprintf(out, ID_SIZE, "%s", id != NULL ? id : "");
    return id_is_valid(out, "ck") || id_is_valid(out, "tm");
}

static void check_info(const struct checkpoint_info *i, const char *id)
{
    fuzz_require(strcmp(i->id, id) == 0);
    fuzz_require(i->vcpus <= SANDBOX_VCPUS_MAX && i->memory_mib <= SANDBOX_MEMORY_MIB_MAX &&
                 i->disk_mib <= SANDBOX_DISK_MIB_MAX);
    fuzz_require(i->created_at_ms >= 0 && i->paused_total_ms >= 0);
}

/* Commits it below `dir`, and what is written then. */
static void write_again(const char *dir, const struct checkpoint_info *info, struct buf *ret_text)
{
    struct checkpoint_info written = *info;
    char path[FUZZ_DIR_SIZE + ID_SIZE + 32];
    json_t *env = json_object();

    (void)snprintf(path, sizeof(path), "%s/%s", dir, info->id);
    fuzz_require(dir_remove_tree(AT_FDCWD, path) == 0);
    (void)snprintf(path, sizeof(path), "%s/%s.new", dir, info->id);
    fuzz_require(dir_make_all(AT_FDCWD, path, 0700) == 0);
    fuzz_require(checkpoint_commit(&written, path, env, NULL) == 0);
    (void)snprintf(path, sizeof(path), "%s/%s/" RECORD, dir, info->id);
    fuzz_require(file_read(AT_FDCWD, path, TEXT_MAX, ret_text) == 0);
    json_decref(env);
}

static void check_again(const char *dir, const struct checkpoint_info *info)
{
    _cleanup_buf_ struct buf first = buf_make(0);
    _cleanup_buf_ struct buf second = buf_make(0);
    struct checkpoint_info again = {.vcpus = 0};
    char path[FUZZ_DIR_SIZE + ID_SIZE + 8];

    (void)snprintf(path, sizeof(path), "%s/%s", dir, info->id);
    write_again(dir, info, &first);
    fuzz_require(checkpoint_read(path, info->id, &again) == 0);
    write_again(dir, &again, &second);
    fuzz_require(span_equals(buf_span(&first), buf_span(&second)));
    fuzz_require(checkpoint_read(path, OTHER, &again) < 0 || strcmp(info->id, OTHER) == 0);
}

static void set_sum(json_t *root)
{
    char text[SUM_TEXT];
    struct ram_sum sum;
    char *members;

    (void)json_object_del(root, "check");
    members = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
    fuzz_require(members != NULL);
    sum = ram_sum_of(span_of_str(members));
    for (size_t i = 0; i < RAM_LAYER_SUM_BYTES; i++) {
        (void)snprintf(&text[2 * i], 3, "%02x", sum.bytes[i]);
    }
    free(members);
    fuzz_require(json_object_set_new(root, "check", json_string(text)) == 0);
}

static void check_summed(const char *dir, json_t *root)
{
    struct checkpoint_info info = {.vcpus = 0};
    char id[ID_SIZE];
    char *text;

    if (!json_is_object(root) || !read_id(root, id)) {
        return;
    }
    set_sum(root);
    text = json_dumps(root, JSON_COMPACT);
    fuzz_require(text != NULL);
    fuzz_put(dir, RECORD, span_of_str(text));
    if (checkpoint_read(dir, id, &info) == 0) {
        check_info(&info, id);
        check_again(dir, &info);
        fuzz_put(dir, RECORD, span_head(span_of_str(text), strlen(text) - 1));
        fuzz_require(checkpoint_read(dir, id, &info) < 0);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *root =
        json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, NULL);
    struct checkpoint_info info = {.vcpus = 0};
    char dir[FUZZ_DIR_SIZE];
    char id[ID_SIZE];

    fuzz_dir_make(dir);
    fuzz_put(dir, RECORD, span_make(data, size));
    (void)read_id(root, id);
    if (checkpoint_read(dir, id, &info) == 0) {
        check_info(&info, id);
    }
    check_summed(dir, root);
    json_decref(root);
    fuzz_dir_remove(dir);
    return 0;
}
