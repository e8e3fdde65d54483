/* Check of the sandboxes' journals: space-node leaves a sandbox alone whose journal it cannot read,
 * so a person has to decide about its disk. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/id.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/doctor.h"
#include "cli/installation.h"

#define JOURNAL_LIMIT  16384U
#define ENV_LIMIT      1048576U
#define JOURNAL_FORMAT 1
#define SHOWN_MAX      3 /* the rest is counted */

static json_t *read_object(int dir_fd, const char *id, const char *name, size_t limit, int *ret_r)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    char path[ID_SIZE + 32];
    json_t *root;

    (void)snprintf(path, sizeof(path), "%s/%s", id, name);
    *ret_r = file_read(dir_fd, path, limit, &text);
    if (*ret_r < 0) {
        return NULL;
    }
    root = json_loadb((const char *)text.p, text.n, 0, NULL);
    if (!json_is_object(root)) {
        json_decref(root);
        return NULL;
    }
    return root;
}

/* What space-node needs of a journal (its own reader is src/node/journal.c). */
static bool is_journal(const json_t *root, const char *id)
{
    static const char *const texts[] = {"state",    "reason_code",      "reason_message",
                                        "template", "template_version", "hostname",
                                        "user"};
    static const char *const numbers[] = {"vcpus", "memory_mib", "disk_mib", "created_at_ms",
                                          "identity_epoch"};

    if (api_number(root, "format") != JOURNAL_FORMAT || strcmp(api_text(root, "id"), id) != 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (!json_is_string(json_object_get(root, texts[i]))) {
            return false;
        }
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (!json_is_integer(json_object_get(root, numbers[i]))) {
            return false;
        }
    }
    return true;
}

/* The damaged file's name, or NULL. A sandbox without a journal is one that is being made or
 * deleted. */
static const char *find_damage(int dir_fd, const char *id)
{
    int r;
    json_t *root = read_object(dir_fd, id, "journal.json", JOURNAL_LIMIT, &r);
    bool good = root != NULL && is_journal(root, id);

    json_decref(root);
    if (!good) {
        return r == -ENOENT || r == -ENOTDIR ? NULL : "journal.json";
    }
    root = read_object(dir_fd, id, "env.json", ENV_LIMIT, &r);
    json_decref(root);
    return root != NULL || r == -ENOENT ? NULL : "env.json";
}

void doctor_check_journals(struct doctor *d)
{
    _cleanup_buf_ struct buf named = buf_make(0);
    _cleanup_buf_ struct buf remedy = buf_make(0);
    _cleanup_closedir_ DIR *dir = NULL;
    char path[INSTALLATION_PATH_SIZE];
    const struct dirent *entry;
    unsigned int sound = 0;
    unsigned int damaged = 0;

    (void)snprintf(path, sizeof(path), "%s/volume/sandboxes", d->cli->settings.data_dir);
    dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        const char *name;

        if (!id_is_valid(entry->d_name, "sb")) {
            continue;
        }
        name = find_damage(dirfd(dir), entry->d_name);
        if (name == NULL) {
            sound++;
        } else if (++damaged <= SHOWN_MAX) {
            buf_printf(&named, "%s%s/%s", damaged > 1 ? ", " : "", entry->d_name, name);
        }
    }
    if (damaged == 0) {
        if (sound > 0) {
            doctor_put(d, "journals", DOCTOR_OK, NULL, "%u, all readable", sound);
        }
        return;
    }
    buf_printf(&remedy,
               "copy what you need out of %s/ID/disk.img (a raw ext4 image), then: space rm ID",
               path);
    doctor_put(d, "journals", DOCTOR_DEGRADED, buf_str(&remedy),
               "%u damaged: %s%s; space-node keeps their disks and shows them as errors", damaged,
               buf_str(&named), damaged > SHOWN_MAX ? ", …" : "");
}
