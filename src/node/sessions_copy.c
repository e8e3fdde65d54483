#include "node/sessions_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include <jansson.h>

#include "base/fd.h"
#include "base/id.h"
#include "node/disk.h"
#include "node/json_field.h"

#define RECORD_BYTES_MAX (4U * 1024U * 1024U)
#define PATH_SIZE        560

struct copy {
    const char *from;
    const char *to;
    const char *owner;
    struct error *err;
};

static bool is_record(const char *name)
{
    size_t n = strnlen(name, 64);

    return n == ID_LENGTH + 5 && strcmp(&name[ID_LENGTH], ".json") == 0 && name[0] == 's' &&
           name[1] == 'e';
}

static bool has_ended(const json_t *record)
{
    char state[16] = "";

    return !json_field_text(record, "state", state, sizeof(state)) ||
           strcmp(state, "exited") == 0 || strcmp(state, "lost") == 0;
}

static int fail(const struct copy *c, int r)
{
    if (r == -ENOSPC || r == -EDQUOT) {
        return error_set_code(c->err, ERROR_STORAGE_FULL, NULL,
                              "the node's disk has no room for the sessions");
    }
    return error_set(c->err, -r, "the sessions cannot be copied: %s", strerror(-r));
}

static int clone_parts(const struct copy *c, const char *session, const char *fresh)
{
    static const char *const suffixes[] = {"out", "err", "order", "in"};
    char old[PATH_SIZE];
    char path[PATH_SIZE];

    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        int r;

        (void)snprintf(old, sizeof(old), "%.500s/%.20s.%s", c->from, session, suffixes[i]);
        (void)snprintf(path, sizeof(path), "%.500s/%.20s.%s", c->to, fresh, suffixes[i]);
        if (access(old, F_OK) < 0) {
            continue;
        }
        r = disk_clone(old, path, 0, c->err);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

/* The record comes last: without it the others are nobody's. */
static int copy_one(const struct copy *c, const char *name)
{
    char path[PATH_SIZE];
    char session[ID_SIZE];
    char fresh[ID_SIZE];
    char process[ID_SIZE];
    json_t *record;
    int r = 0;

    (void)snprintf(path, sizeof(path), "%.500s/%.40s", c->from, name);
    record = json_file_read(AT_FDCWD, path, RECORD_BYTES_MAX);
    if (record == NULL || has_ended(record)) {
        json_decref(record);
        return 0;
    }
    (void)snprintf(session, sizeof(session), "%.20s", name);
    memcpy(fresh, session, sizeof(fresh));
    if (c->owner != NULL) {
        r = id_make_within("se", c->owner, fresh);
        if (r == 0) {
            r = id_make_within("pr", c->owner, process);
        }
        if (r == 0 && (json_object_set_new(record, "id", json_string(process)) < 0 ||
                       json_object_set_new(record, "session_id", json_string(fresh)) < 0)) {
            r = -ENOMEM;
        }
        if (r < 0) {
            r = fail(c, r);
        }
    }
    if (r == 0) {
        r = clone_parts(c, session, fresh);
    }
    if (r == 0) {
        (void)snprintf(path, sizeof(path), "%.500s/%.20s.json", c->to, fresh);
        r = json_file_write(AT_FDCWD, path, record, false);
        r = r < 0 ? fail(c, r) : 0;
    }
    json_decref(record);
    return r;
}

int sessions_copy(const char *from, const char *to, const char *owner, struct error *err)
{
    const struct copy c = {from, to, owner, err};
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    int r = 0;

    if (mkdir(to, 0700) < 0) {
        return fail(&c, -errno);
    }
    dir = opendir(from);
    if (dir == NULL) {
        return errno == ENOENT ? 0 : fail(&c, -errno);
    }
    while (r == 0 && (entry = readdir(dir)) != NULL) {
        if (is_record(entry->d_name)) {
            r = copy_one(&c, entry->d_name);
        }
    }
    return r;
}
