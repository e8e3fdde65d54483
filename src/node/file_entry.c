#include "node/file_entry.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "io/json_request.h"
#include "node/base64.h"

#define MODE_TEXT_SIZE 8
#define NS_PER_MS      1000000U

static const char *const type_names[] = {
    [SERVICE_ENTRY_FILE] = "file",
    [SERVICE_ENTRY_DIRECTORY] = "directory",
    [SERVICE_ENTRY_SYMLINK] = "symlink",
    [SERVICE_ENTRY_OTHER] = "other",
};

/* Any bytes as a string: what is no UTF-8 is repaired. */
static json_t *as_text(struct span bytes)
{
    _cleanup_buf_ struct buf repaired = buf_make(0);
    json_t *value = NULL;

    if (bytes.n == 0) {
        return json_string("");
    }
    value = json_stringn((const char *)bytes.p, bytes.n);
    if (value == NULL) {
        utf8_repair(bytes, &repaired);
        value = json_stringn(buf_str(&repaired), repaired.n);
    }
    return value;
}

int file_name_set(json_t *object, const char *key, const char *base64_key, struct span name)
{
    json_t *text = json_stringn((const char *)name.p, name.n);
    _cleanup_buf_ struct buf coded = buf_make(0);

    if (text != NULL) {
        return json_object_set_new(object, key, text) |
               json_object_set_new(object, base64_key, json_null());
    }
    base64_format(name, &coded);
    return buf_error(&coded) | json_object_set_new(object, key, as_text(name)) |
           json_object_set_new(object, base64_key, json_string(buf_str(&coded)));
}

static struct span name_of(struct span path)
{
    size_t start = path.n;

    while (start > 0 && path.p[start - 1] != '/') {
        start--;
    }
    return start < path.n ? span_skip(path, start) : path; /* "/" is its own name */
}

json_t *file_entry_describe(const struct service_entry *entry)
{
    _cleanup_json_ json_t *object = json_object();
    json_int_t size =
        entry->size_bytes <= INT64_MAX ? (json_int_t)entry->size_bytes : (json_int_t)INT64_MAX;
    bool is_symlink = entry->type == SERVICE_ENTRY_SYMLINK;
    char mode[MODE_TEXT_SIZE];
    char modified[CLOCK_TEXT_SIZE];
    int r;

    (void)snprintf(mode, sizeof(mode), "%04o", (unsigned int)(entry->mode & 07777U));
    clock_format((int64_t)(entry->modified_ns / NS_PER_MS), modified);
    r = file_name_set(object, "path", "path_base64", entry->path);
    r |= file_name_set(object, "name", "name_base64", name_of(entry->path));
    r |= json_object_set_new(object, "type", json_string(type_names[entry->type]));
    r |= json_object_set_new(object, "size_bytes", json_integer(size));
    r |= json_object_set_new(object, "mode", json_string(mode));
    r |= json_object_set_new(object, "uid", json_integer((json_int_t)entry->uid));
    r |= json_object_set_new(object, "gid", json_integer((json_int_t)entry->gid));
    r |=
        json_object_set_new(object, "user", entry->user.n > 0 ? as_text(entry->user) : json_null());
    r |= json_object_set_new(object, "group",
                             entry->group.n > 0 ? as_text(entry->group) : json_null());
    r |= json_object_set_new(object, "modified_at", json_string(modified));
    r |= json_object_set_new(object, "symlink_target",
                             is_symlink ? as_text(entry->symlink_target) : json_null());
    return r == 0 ? TAKE(object) : NULL;
}
