/* What space-node needs of the host before it can do anything: paths, lock, control groups,
 * namespaces. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/file.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/log.h"
#include "node/admission.h"
#include "node/data_id.h"
#include "node/name_claim.h"
#include "node/netns.h"
#include "node/node_private.h"

#define CGROUP_ROOT   "/sys/fs/cgroup"
#define LOCK_TRIES    50
#define LOCK_RETRY_MS 100
#define NAME_TRIES    10
#define SMALL_FILE    65536U
#define MIB           1048576ULL

/* Copies a path or says that it is too long. */
static int set_path(char *out, const char *first, const char *second, struct error *err)
{
    int n = snprintf(out, NODE_PATH_SIZE, "%s%s", first, second);

    if (n < 0 || n >= NODE_PATH_SIZE) {
        return error_set(err, ENAMETOOLONG, "a path of the settings is too long");
    }
    return 0;
}

static int set_paths(struct node *node, struct error *err)
{
    const struct settings *s = &node->settings;
    struct node_parts *p = node->parts;
    char run[NODE_PATH_SIZE];
    int r = set_path(p->volume, s->data_dir, "/volume", err);

    if (r == 0) {
        r = set_path(p->vm_disks, p->volume, "/vms", err);
    }
    if (r == 0) {
        (void)snprintf(run, sizeof(run), "%s/%s", s->run_dir, s->installation);
        r = set_path(p->vm_run, run, "/vm", err);
    }
    if (r == 0) {
        r = set_path(p->empty_dir, run, "/empty", err);
    }
    return r;
}

static int make_dir(const char *path, mode_t mode, struct error *err)
{
    int r = dir_make_all(AT_FDCWD, path, mode);

    if (r == 0 && chmod(path, mode) < 0) {
        r = -errno;
    }
    return r < 0 ? error_set(err, -r, "cannot make %.200s: %s", path, strerror(-r)) : 0;
}

static int make_dirs(const struct node *node, bool need_volume, struct error *err)
{
    const struct node_parts *p = node->parts;
    static const char *const below_volume[] = {"/sandboxes", "/bases", "/vms", "/checkpoints"};
    char path[NODE_PATH_SIZE + 16];
    /* Others pass through to node.sock, whatever the umask; after a reboot nobody else made it. */
    int r = make_dir(node->settings.run_dir, 0755, err);

    if (r == 0) {
        r = make_dir(p->vm_run, 0700, err);
    }
    if (access(p->volume, F_OK) < 0) {
        return !need_volume
                   ? r
                   : error_set(err, errno, "no data volume at %.200s (`space up` makes it): %s",
                               p->volume, strerror(errno));
    }
    if (r == 0) {
        r = make_dir(p->empty_dir, 0555, err);
    }
    for (size_t i = 0; r == 0 && i < sizeof(below_volume) / sizeof(below_volume[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", p->volume, below_volume[i]);
        r = make_dir(path, 0700, err);
    }
    return r;
}

/* One daemon per installation. One that was killed a moment ago may still be ending. */
static int take_lock(struct node *node, struct error *err)
{
    const struct timespec pause = {0, LOCK_RETRY_MS * 1000000L};
    char path[NODE_PATH_SIZE];
    int fd;

    (void)snprintf(path, sizeof(path), "%s/%s/node.lock", node->settings.run_dir,
                   node->settings.installation);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        return error_set(err, errno, "cannot open %.200s: %s", path, strerror(errno));
    }
    node->parts->lock_fd = fd;
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            return 0;
        }
        (void)nanosleep(&pause, NULL);
    }
    return error_set(err, EWOULDBLOCK, "another space-node runs for this installation (%.200s)",
                     path);
}

/* The control groups, and with them the name. What an installation that is going down removes
 * meanwhile is made again. */
static int take_name(struct node *node, bool mark, struct error *err)
{
    const struct settings *s = &node->settings;
    char id[ID_SIZE];
    const struct name_claim claim = {s->installation, s->data_dir, s->node_vmm_uid_first,
                                     s->node_vmm_uid_count, id};
    struct node_parts *p = node->parts;
    struct error why = {0};
    int r = data_id_read(s->data_dir, id, err);

    if (r < 0) {
        return r;
    }
    r = -ESTALE;
    for (int i = 0; r == -ESTALE && i < NAME_TRIES; i++) {
        r = cgroup_open(CGROUP_ROOT, s->installation, &p->cgroup, err);
        if (r == 0) {
            r = name_claim_take(&p->cgroup, &claim, &p->name_fd, err);
        }
    }
    if (r < 0 || !mark) {
        return r;
    }
    if (data_id_ensure(s->data_dir, id, &why) < 0) {
        log_warning("no_data_id", "error=%s",
                    LOG_STR(why.message)); /* a full disk: the path does */
    }
    return name_claim_mark(&p->cgroup, &claim, err);
}

static int read_boot_id(struct node_parts *p, struct error *err)
{
    _cleanup_buf_ struct buf text = buf_make(SMALL_FILE);
    struct span id;

    if (file_read(AT_FDCWD, "/proc/sys/kernel/random/boot_id", SMALL_FILE, &text) < 0) {
        return error_set(err, EIO, "cannot read the host's boot id");
    }
    id = span_head(buf_span(&text), span_find(buf_span(&text), 0, '\n'));
    return span_copy_str(id, p->boot_id, sizeof(p->boot_id)) < 0
               ? error_set(err, EIO, "cannot read the host's boot id")
               : 0;
}

static int read_memory(struct node *node, struct error *err)
{
    struct node_parts *p = node->parts;
    _cleanup_buf_ struct buf text = buf_make(SMALL_FILE);
    uint64_t available;

    if (file_read(AT_FDCWD, "/proc/meminfo", SMALL_FILE, &text) < 0 ||
        admission_parse_meminfo(buf_str(&text), &p->total_mib, &available) < 0) {
        return error_set(err, EIO, "cannot read /proc/meminfo");
    }
    p->reserve_mib = admission_reserve_mib(node->settings.node_memory_reserve_mib, p->total_mib);
    return cgroup_limit_parent(&p->cgroup, (p->total_mib - p->reserve_mib) * MIB, err);
}

int node_prepare_host(struct node *node, bool need_volume, struct error *err)
{
    struct node_parts *p = node->parts;
    int r = set_paths(node, err);

    if (r == 0) {
        r = make_dirs(node, need_volume, err);
    }
    if (r == 0) {
        r = take_lock(node, err);
    }
    if (r == 0) {
        r = read_boot_id(p, err);
    }
    if (r == 0) {
        r = take_name(node, need_volume, err);
    }
    if (r == 0) {
        r = netns_init(err);
    }
    if (r == 0) {
        r = read_memory(node, err);
    }
    return r;
}

int node_parts_new(struct node *node, struct error *err)
{
    node->parts = calloc(1, sizeof(*node->parts));
    if (node->parts == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    node->parts->lock_fd = -1;
    node->parts->runtime.translation_mib = (unsigned int)node->settings.node_tcg_tb_mib;
    node->parts->name_fd = -1;
    return snapshot_room_init(&node->parts->room) < 0 ? error_set(err, ENOMEM, "no memory") : 0;
}
