#include "node/template.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "node/json_field.h"

#define TEMPLATE_JSON_MAX 65536U
#define TEMPLATE_ENV_MAX  (4U * 1024U * 1024U)
#define TEMPLATE_PATH     512

bool template_name_is_valid(const char *text)
{
    static const char *const first = "abcdefghijklmnopqrstuvwxyz0123456789";
    size_t n = strnlen(text, SANDBOX_TEMPLATE_SIZE);

    return n > 0 && n < SANDBOX_TEMPLATE_SIZE && strchr(first, text[0]) != NULL &&
           strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

static int not_found(struct error *err, const char *name, const char *version)
{
    if (version != NULL && version[0] != '\0') {
        return error_set_code(err, ERROR_NOT_FOUND, "template", "no template %.64s@%.24s", name,
                              version);
    }
    return error_set_code(err, ERROR_NOT_FOUND, "template", "no template %.64s", name);
}

int template_read_current(const char *volume, const char *name, char out[ID_SIZE])
{
    char path[TEMPLATE_PATH];
    char target[ID_SIZE + 1];
    ssize_t n;

    (void)snprintf(path, sizeof(path), "%.300s/templates/%.64s/current", volume, name);
    n = readlink(path, target, sizeof(target) - 1);
    if (n < 0) {
        return -errno;
    }
    target[n] = '\0';
    if (!id_is_valid(target, "tm")) {
        return -EBADMSG;
    }
    memcpy(out, target, ID_SIZE);
    return 0;
}

static json_t *read_json(const char *volume, const char *name, const char *version)
{
    char path[TEMPLATE_PATH];

    (void)snprintf(path, sizeof(path), "%.300s/templates/%.64s/%.24s/template.json", volume, name,
                   version);
    return json_file_read(AT_FDCWD, path, TEMPLATE_JSON_MAX);
}

void template_read_maker(const json_t *root, char out[ID_SIZE])
{
    const char *key = json_string_value(json_object_get(root, "made_by"));

    (void)snprintf(out, ID_SIZE, "%s", key != NULL && id_is_valid(key, "ky") ? key : "");
}

static bool parse(const json_t *root, struct template_info *t)
{
    const json_t *checkpoint = json_object_get(root, "checkpoint_id");

    template_read_maker(root, t->made_by);
    t->memory = json_is_true(json_object_get(root, "memory"));
    if (checkpoint != NULL &&
        (!json_field_text(root, "checkpoint_id", t->checkpoint_id, sizeof(t->checkpoint_id)) ||
         !id_is_valid(t->checkpoint_id, "ck"))) {
        return false;
    }
    return json_field_text(root, "name", t->name, sizeof(t->name)) &&
           json_field_text(root, "version", t->version, sizeof(t->version)) &&
           json_field_uint(root, "vcpus", SANDBOX_VCPUS_MAX, &t->vcpus) && t->vcpus > 0 &&
           json_field_uint(root, "memory_mib", SANDBOX_MEMORY_MIB_MAX, &t->memory_mib) &&
           t->memory_mib >= SANDBOX_MEMORY_MIB_MIN &&
           json_field_uint(root, "disk_mib", SANDBOX_DISK_MIB_MAX, &t->disk_mib) &&
           json_field_text(root, "user", t->user, sizeof(t->user)) &&
           json_field_text(root, "built_at", t->built_at, sizeof(t->built_at));
}

int template_load(const char *volume,
                  const char *name,
                  const char *version,
                  struct template_info *ret,
                  struct error *err)
{
    struct template_info t = {0};
    char current[ID_SIZE];
    json_t *root;
    bool good;

    if (!template_name_is_valid(name)) {
        return not_found(err, name, version);
    }
    if (version == NULL || version[0] == '\0') {
        if (template_read_current(volume, name, current) < 0) {
            return not_found(err, name, NULL);
        }
        version = current;
    } else if (!id_is_valid(version, "tm")) {
        return not_found(err, name, version);
    }
    root = read_json(volume, name, version);
    if (root == NULL) {
        return not_found(err, name, version);
    }
    good = parse(root, &t) && strcmp(t.name, name) == 0 && strcmp(t.version, version) == 0;
    json_decref(root);
    if (!good) {
        return error_set(err, EBADMSG, "template %.64s@%.24s is damaged", name, version);
    }
    *ret = t;
    return 0;
}

json_t *template_prime_list(const char *volume, const char *name, const char *version)
{
    json_t *root = read_json(volume, name, version);
    json_t *list = json_object_get(root, "prime");

    if (json_is_array(list)) {
        json_incref(list);
    } else {
        list = json_pack("[[s], [s,s,s], [s,s,s], [s], [s]]", "true", "bash", "-c",
                         "echo $HOME | cat | wc -c; ls -l / >/dev/null; id", "python3", "-c",
                         "pass", "true", "true");
    }
    json_decref(root);
    return list;
}

json_t *template_load_env(const char *volume, const struct template_info *t)
{
    char path[TEMPLATE_PATH];
    json_t *env;

    if (t->checkpoint_id[0] == '\0') {
        return json_object();
    }
    (void)snprintf(path, sizeof(path), "%.300s/templates/%.64s/%.24s/env.json", volume, t->name,
                   t->version);
    env = json_file_read(AT_FDCWD, path, TEMPLATE_ENV_MAX);
    if (!json_is_object(env)) {
        json_decref(env);
        return NULL;
    }
    return env;
}

/* ---- the list ---- */

json_t *template_describe(const struct template_info *t, const json_t *root, bool is_current)
{
    json_t *names = json_object_get(root, "env_names");

    return json_pack(
        "{s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:b, s:s?, s:o, s:b}", "name", t->name, "version",
        t->version, "vcpus", (int)t->vcpus, "memory_mib", (int)t->memory_mib, "disk_mib",
        (int)t->disk_mib, "user", t->user, "created_at", t->built_at, "memory", (int)t->memory,
        "checkpoint_id", t->checkpoint_id[0] != '\0' ? t->checkpoint_id : NULL, "env_names",
        json_is_array(names) ? json_incref(names) : json_array(), "current", (int)is_current);
}

static json_t *describe_version(const char *volume, const char *name, const char *version)
{
    json_t *root = read_json(volume, name, version);
    struct template_info t = {0};
    char current[ID_SIZE];
    json_t *item = NULL;

    if (root != NULL && parse(root, &t) && strcmp(t.name, name) == 0 &&
        strcmp(t.version, version) == 0) {
        item = template_describe(&t, root,
                                 template_read_current(volume, name, current) == 0 &&
                                     strcmp(current, version) == 0);
    }
    json_decref(root);
    return item;
}

/* Before those that are older; the current one before all. */
static void insert(json_t *items, size_t first, json_t *item)
{
    const char *made = json_string_value(json_object_get(item, "created_at"));
    size_t at = first;

    while (!json_is_true(json_object_get(item, "current")) && at < json_array_size(items)) {
        const json_t *other = json_array_get(items, at);
        const char *text = json_string_value(json_object_get(other, "created_at"));

        if (!json_is_true(json_object_get(other, "current")) && text != NULL && made != NULL &&
            strcmp(text, made) < 0) {
            break;
        }
        at++;
    }
    (void)json_array_insert_new(items, at, item);
}

static void list_versions(json_t *items, const char *volume, const char *name)
{
    size_t first = json_array_size(items);
    char path[TEMPLATE_PATH];
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;

    (void)snprintf(path, sizeof(path), "%.300s/templates/%.64s", volume, name);
    dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        json_t *item =
            id_is_valid(entry->d_name, "tm") ? describe_version(volume, name, entry->d_name) : NULL;

        if (item != NULL) {
            insert(items, first, item);
        }
    }
}

json_t *template_list(const char *volume)
{
    char path[TEMPLATE_PATH];
    json_t *items = json_array();
    struct dirent **entries = NULL;
    int n;

    (void)snprintf(path, sizeof(path), "%.300s/templates", volume);
    n = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (template_name_is_valid(entries[i]->d_name)) {
            list_versions(items, volume, entries[i]->d_name);
        }
        free(entries[i]);
    }
    free(entries);
    return items;
}

int template_disk_path(const char *volume, const struct template_info *t, char *out, size_t size)
{
    int n = snprintf(out, size, "%s/templates/%s/%s/disk.img", volume, t->name, t->version);

    return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}
