#include "node/json_field.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/step.h"

bool json_field_text(const json_t *object, const char *key, char *out, size_t size)
{
    const json_t *value = json_object_get(object, key);
    size_t n = json_string_length(value);

    if (!json_is_string(value) || n >= size || strlen(json_string_value(value)) != n) {
        return false;
    }
    memcpy(out, json_string_value(value), n + 1);
    return true;
}

bool json_field_u64(const json_t *object, const char *key, uint64_t max, uint64_t *ret)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        (uint64_t)json_integer_value(value) > max) {
        return false;
    }
    *ret = (uint64_t)json_integer_value(value);
    return true;
}

bool json_field_uint(const json_t *object, const char *key, unsigned int max, unsigned int *ret)
{
    uint64_t value;

    if (!json_field_u64(object, key, max, &value)) {
        return false;
    }
    *ret = (unsigned int)value;
    return true;
}

json_t *json_file_read(int dirfd, const char *path, size_t max)
{
    _cleanup_buf_ struct buf text = buf_make(max);

    if (file_read(dirfd, path, max, &text) < 0 || text.n == 0) {
        return NULL;
    }
    return json_loadb((const char *)text.p, text.n, JSON_REJECT_DUPLICATES, NULL);
}

/* Records are steps by their file's name and the state that they tell, if any: no ids. */
static void tell_step(const char *verb, const char *path, const json_t *root)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    const char *state = json_string_value(json_object_get(root, "state"));
    char id[ID_SIZE];

    (void)snprintf(id, sizeof(id), "%s", name);
    step("%s %s%s%s", verb, id_is_valid(id, "se") ? "process" : name, state == NULL ? "" : " ",
         state == NULL ? "" : state);
}

int json_file_write(int dirfd, const char *path, const json_t *root, bool sync)
{
    _cleanup_free_ char *text = json_dumps(root, JSON_COMPACT);
    int r;

    if (text == NULL) {
        return -ENOMEM;
    }
    tell_step("write", path, root);
    r = file_write_atomic(dirfd, path, span_of_str(text), 0600, sync);
    tell_step("wrote", path, root);
    return r;
}
