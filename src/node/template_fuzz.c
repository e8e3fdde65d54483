/* A template's files as set-up, the node or a hand may have left them: what `current` points at,
 * template.json and env.json, one behind the other. What is taken for a template can be told and
 * listed. */
#include "node/template.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/fd.h"
#include "node/fuzz_dir.h"

#define NAME    "base"
#define VERSION "tm0123456789abcdefgh"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void make_link(const char *volume, struct span target)
{
    char text[256];
    char path[256];

    /* A link to nothing, or to more than this, does not exist. */
    if (span_copy_str(target, text, sizeof(text)) == 0 && text[0] != '\0') {
        (void)snprintf(path, sizeof(path), "%s/templates/" NAME "/current", volume);
        fuzz_require(symlink(text, path) == 0);
    }
}

static bool load(const char *volume, const char *version, struct template_info *ret)
{
    struct error err = {0};
    int r = template_load(volume, NAME, version, ret, &err);

    fuzz_require(r == 0 || (r < 0 && err.message[0] != '\0'));
    return r == 0;
}

static void check(const char *volume, const struct template_info *t)
{
    char path[256];
    json_t *env;

    fuzz_require(strcmp(t->name, NAME) == 0 && strcmp(t->version, VERSION) == 0);
    fuzz_require(t->vcpus > 0 && t->vcpus <= SANDBOX_VCPUS_MAX &&
                 t->memory_mib >= SANDBOX_MEMORY_MIB_MIN &&
                 t->memory_mib <= SANDBOX_MEMORY_MIB_MAX && t->disk_mib <= SANDBOX_DISK_MIB_MAX);
    fuzz_require(t->checkpoint_id[0] == '\0' || id_is_valid(t->checkpoint_id, "ck"));
    fuzz_require(t->made_by[0] == '\0' || id_is_valid(t->made_by, "ky"));
    fuzz_require(template_disk_path(volume, t, path, sizeof(path)) == 0);
    env = template_load_env(volume, t);
    fuzz_require(env == NULL || json_is_object(env));
    json_decref(env);
}

/* The list has it exactly when it can be loaded, and can be sent to a client. */
static void check_list(const char *volume, bool is_there, bool is_current)
{
    json_t *items = template_list(volume);
    const json_t *item = json_array_get(items, 0);
    char *text = json_dumps(items, 0);

    fuzz_require(text != NULL && json_array_size(items) == (is_there ? 1U : 0U));
    if (is_there) {
        fuzz_require(json_is_true(json_object_get(item, "current")) == is_current);
        fuzz_require(json_is_array(json_object_get(item, "env_names")));
    }
    free(text);
    json_decref(items);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span rest = span_make(data, size);
    struct span target = fuzz_take(&rest);
    struct template_info t = {0};
    char volume[FUZZ_DIR_SIZE];
    bool is_current;
    bool is_there;
    char path[256];
    json_t *prime;

    fuzz_dir_make(volume);
    (void)snprintf(path, sizeof(path), "%s/templates/" NAME "/" VERSION, volume);
    fuzz_require(dir_make_all(AT_FDCWD, path, 0700) == 0);
    make_link(volume, target);
    fuzz_put(path, "template.json", fuzz_take(&rest));
    fuzz_put(path, "env.json", rest);
    is_there = load(volume, VERSION, &t);
    is_current = load(volume, NULL, &t);
    fuzz_require(!is_current || is_there); /* there is no other version */
    if (is_there) {
        check(volume, &t);
    }
    check_list(volume, is_there, is_current);
    prime = template_prime_list(volume, NAME, VERSION);
    fuzz_require(json_is_array(prime));
    json_decref(prime);
    fuzz_dir_remove(volume);
    return 0;
}
