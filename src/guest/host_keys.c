#include "guest/host_keys.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "guest/console.h"
#include "guest/hooks.h"
#include "guest/users.h"

#define KEY_PREFIX "ssh_host_"
#define SERVER     "/usr/sbin/sshd"
#define SERVER_PID "/run/sshd.pid"
#define KEYGEN     "/usr/bin/ssh-keygen"

#define SOME_REMOVED 255 /* an exit status, as 0 and numbers of errors are */

static int is_key(const struct dirent *entry)
{
    return strncmp(entry->d_name, KEY_PREFIX, sizeof(KEY_PREFIX) - 1) == 0;
}

static int remove_keys(const char *directory)
{
    _cleanup_closedir_ DIR *dir = opendir(directory);
    const struct dirent *entry;
    int removed = 0;

    if (dir == NULL) {
        return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
    }
    while ((entry = readdir(dir)) != NULL) {
        if (is_key(entry)) {
            int r = unlinkat(dirfd(dir), entry->d_name, 0) < 0 ? -errno : 0;

            if (r == -EISDIR) {
                r = dir_remove_tree(dirfd(dir), entry->d_name);
            }
            if (r < 0) {
                return r;
            }
            removed++;
        }
    }
    return removed > 0 && fsync(dirfd(dir)) < 0 ? -errno : removed;
}

static int remove_main(void *arg, const struct spawn_failure *failure)
{
    int r = failure->errnum != 0 ? -failure->errnum : remove_keys(*(const char *const *)arg);

    return r < 0 ? -r : (r > 0 ? SOME_REMOVED : 0);
}

int host_keys_remove(const char *directory, int limit_ms)
{
    int r;

    if (!hooks_may_hold(directory, is_key)) {
        return 0;
    }
    r = hooks_apart(remove_main, &directory, -1, clock_monotonic_ms() + limit_ms);
    if (r < 0 || (r > 0 && r != SOME_REMOVED)) {
        console_say("%s: a host key may be left: error %d", directory, r < 0 ? -r : r);
        return r < 0 ? r : -r;
    }
    return r > 0 ? 1 : 0;
}

bool host_keys_exist(const char *directory)
{
    _cleanup_closedir_ DIR *dir = opendir(directory);
    const struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (is_key(entry)) {
            return true;
        }
    }
    return false;
}

/* A half-written key would keep the next one from being made. */
static void make_key(const struct hooks *h, const char *type, const char *path)
{
    const char *const argv[] = {KEYGEN, "-q", "-t", type, "-N", "", "-f", path, NULL};

    if (!hooks_run_program(h, argv)) {
        (void)unlink(path);
    }
}

bool host_keys_may_be_wanted(void)
{
    return hooks_may_exist(SERVER) && hooks_may_exist(KEYGEN);
}

void host_keys_renew(const struct hooks *h)
{
    if (access(SERVER, X_OK) == 0 && access(KEYGEN, X_OK) == 0 &&
        !host_keys_exist(HOST_KEYS_DIRECTORY)) {
        make_key(h, "ed25519", HOST_KEYS_DIRECTORY "/" KEY_PREFIX "ed25519_key");
        make_key(h, "ecdsa", HOST_KEYS_DIRECTORY "/" KEY_PREFIX "ecdsa_key");
    }
}

void host_keys_tell(void)
{
    _cleanup_buf_ struct buf text = buf_make(32);
    _cleanup_buf_ struct buf name = buf_make(32);
    char path[32];
    uint64_t pid;

    if (users_read_file(SERVER_PID, &text) < 0 ||
        span_parse_u64(span_head(buf_span(&text), span_find(buf_span(&text), 0, '\n')), INT32_MAX,
                       &pid) < 0 ||
        pid <= 1) {
        return;
    }
    (void)snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
    if (users_read_file(path, &name) == 0 && span_equals_str(buf_span(&name), "sshd\n")) {
        (void)kill((pid_t)pid, SIGHUP);
    }
}
