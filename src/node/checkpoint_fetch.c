/* A checkpoint that the object store has and this node has not: fetched into `<ck>.new/`, where it
 * becomes what it was when it was made. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/fd.h"
#include "base/log.h"
#include "io/loop.h"
#include "node/checkpoint_private.h"
#include "node/node_private.h"
#include "node/template.h"

struct checkpoint_fetch {
    struct checkpoint *ck; /* making: it stays */
    char building[CHECKPOINT_PATH_SIZE];
    char manifest[OBJECTS_NAME_SIZE];
    char template_name[sizeof(((struct checkpoint_info *)NULL)->template_name)];
    char template_version[ID_SIZE];
    struct checkpoint_info info;
    int result;
    struct error err;
};

static int move_snapshot(const struct checkpoint_fetch *m)
{
    static const char *const files[] = {"ram",           "memory", "state", "disk.img",
                                        "snapshot.json", "cold",   NULL};
    char path[CHECKPOINT_PATH_SIZE + 64];
    char into[CHECKPOINT_PATH_SIZE + 64];
    char text[OBJECTS_NAME_SIZE + 2];

    (void)snprintf(into, sizeof(into), "%s/snapshot", m->building);
    if (mkdir(into, 0700) < 0) {
        return -errno;
    }
    for (size_t i = 0; files[i] != NULL; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", m->building, files[i]);
        (void)snprintf(into, sizeof(into), "%s/snapshot/%s", m->building, files[i]);
        if (rename(path, into) < 0 && errno != ENOENT) {
            return -errno;
        }
    }
    (void)snprintf(into, sizeof(into), "%s/snapshot/" OBJECTS_MARKER, m->building);
    (void)snprintf(text, sizeof(text), "%s\n", m->manifest);
    return file_write_atomic(AT_FDCWD, into, span_of_str(text), 0600, true);
}

static void work_place(void *arg)
{
    struct checkpoint_fetch *m = arg;
    int r = checkpoint_read(m->building, m->ck->info.id, &m->info);

    if (r < 0) {
        m->result = error_set(&m->err, EBADMSG,
                              "the checkpoint in the object store is damaged: its record cannot be "
                              "read");
        return;
    }
    if (strcmp(m->info.template_name, m->template_name) != 0 ||
        strcmp(m->info.template_version, m->template_version) != 0) {
        m->result = error_set(&m->err, EBADMSG,
                              "the checkpoint in the object store is of another template, or of "
                              "another version of it");
        return;
    }
    r = move_snapshot(m);
    if (r == 0) {
        r = checkpoint_put_in_place(m->building);
    }
    m->result =
        r < 0 ? error_set(&m->err, -r, "the checkpoint cannot be kept: %s", strerror(-r)) : 0;
}

static void done_place(void *arg)
{
    struct checkpoint_fetch *m = arg;

    if (m->result < 0) {
        checkpoint_fail(m->ck, &m->err);
    } else {
        memcpy(m->ck->manifest, m->manifest, sizeof(m->ck->manifest));
        checkpoint_settle(m->ck, &m->info);
    }
    free(m);
}

static void on_fetched(void *arg, const struct error *err)
{
    struct checkpoint_fetch *m = arg;

    if (err != NULL) {
        checkpoint_fail(m->ck, err);
        free(m);
        return;
    }
    if (loop_submit(m->ck->node->loop, work_place, done_place, m, false) < 0) {
        work_place(m);
        done_place(m);
    }
}

int checkpoint_fetch(struct checkpoint *ck,
                     const char *manifest,
                     const char *template_name,
                     const char *template_version,
                     struct error *err)
{
    struct checkpoint_fetch *m = calloc(1, sizeof(*m));
    const struct objects_fetch f = {.owner = ck->info.id,
                                    .manifest = manifest,
                                    .dir = m != NULL ? m->building : "",
                                    .template_name = template_name,
                                    .template_version = template_version};
    struct template_info t;
    int r;

    if (m == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    r = template_load(ck->node->parts->volume, template_name, template_version, &t, err);
    if (r < 0) {
        free(m);
        return r;
    }
    m->ck = ck;
    (void)snprintf(m->manifest, sizeof(m->manifest), "%s", manifest);
    (void)snprintf(m->template_name, sizeof(m->template_name), "%s", template_name);
    (void)snprintf(m->template_version, sizeof(m->template_version), "%s", template_version);
    checkpoint_path(ck, ".new", "", m->building, sizeof(m->building));
    r = objects_fetch(ck->node, &f, on_fetched, m, err);
    if (r < 0) {
        free(m);
    }
    return r;
}
