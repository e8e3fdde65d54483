#include "node/netns.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <linux/if_arp.h>
#include <linux/if_tun.h>

#include "base/span.h"

#define TAP_NAME "tap0"

static const uint8_t tap_mac[6] = {0x02, 0x53, 0x50, 0x00, 0x00, 0x01};

int netns_init(struct error *err)
{
    if (mkdir(NETNS_DIR, 0755) < 0 && errno != EEXIST) {
        return error_set(err, errno, "cannot make " NETNS_DIR ": %s", strerror(errno));
    }
    if (mount("", NETNS_DIR, "none", MS_SHARED | MS_REC, NULL) == 0) {
        return 0;
    }
    if (errno != EINVAL || mount(NETNS_DIR, NETNS_DIR, "none", MS_BIND | MS_REC, NULL) < 0 ||
        mount("", NETNS_DIR, "none", MS_SHARED | MS_REC, NULL) < 0) {
        return error_set(err, errno, "cannot mount " NETNS_DIR ": %s", strerror(errno));
    }
    return 0;
}

void netns_done(void)
{
    _cleanup_closedir_ DIR *dir = opendir(NETNS_DIR);
    const struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.') {
            return;
        }
    }
    if (dir != NULL) {
        (void)closedir(TAKE(dir));
        (void)umount2(NETNS_DIR, 0); /* busy or no mount: as it was */
    }
}

static int interface_up(int sock, const char *name)
{
    struct ifreq request = {0};

    (void)snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
    request.ifr_flags = IFF_UP;
    return ioctl(sock, SIOCSIFFLAGS, &request) < 0 ? -errno : 0;
}

/* In the new namespace: tap0 and lo. Returns the tap's descriptor or -errno. */
static int make_tap(void)
{
    _cleanup_close_ int tap = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    _cleanup_close_ int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {0};
    int r;

    if (tap < 0 || sock < 0) {
        return -errno;
    }
    (void)snprintf(request.ifr_name, sizeof(request.ifr_name), TAP_NAME);
    request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    if (ioctl(tap, TUNSETIFF, &request) < 0) {
        return -errno;
    }
    request.ifr_flags = 0;
    request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
    memcpy(request.ifr_hwaddr.sa_data, tap_mac, sizeof(tap_mac));
    if (ioctl(sock, SIOCSIFHWADDR, &request) < 0) {
        return -errno;
    }
    r = interface_up(sock, TAP_NAME);
    if (r == 0) {
        r = interface_up(sock, "lo");
    }
    return r < 0 ? r : TAKE_FD(tap);
}

/* Names the calling thread's namespace. */
static int bind_name(const char *path)
{
    int fd = open(path, O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);

    if (fd < 0) {
        return -errno;
    }
    (void)close(fd);
    if (mount("/proc/thread-self/ns/net", path, "none", MS_BIND, NULL) < 0) {
        int r = -errno;

        (void)unlink(path);
        return r;
    }
    return 0;
}

static void name_path(const char *name, char out[64])
{
    (void)snprintf(out, 64, NETNS_DIR "/%.40s", name);
}

int netns_make(const char *name, int *ret_netns_fd, int *ret_tap_fd, struct error *err)
{
    _cleanup_close_ int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    _cleanup_close_ int made = -1;
    char path[64];
    int tap;
    int r = 0;

    name_path(name, path);
    if (home < 0 || unshare(CLONE_NEWNET) < 0) {
        return error_set(err, errno, "cannot make a network namespace: %s", strerror(errno));
    }
    tap = make_tap();
    r = tap < 0 ? tap : bind_name(path);
    if (r == 0) {
        made = open(path, O_RDONLY | O_CLOEXEC);
        r = made < 0 ? -errno : 0;
    }
    if (setns(home, CLONE_NEWNET) < 0) {
        abort(); /* a worker lost in a sandbox's namespace must not go on */
    }
    if (r < 0) {
        if (tap >= 0) {
            (void)close(tap);
        }
        return error_set(err, -r, "cannot make network namespace %s: %s", name, strerror(-r));
    }
    *ret_netns_fd = TAKE_FD(made);
    *ret_tap_fd = tap;
    return 0;
}

int netns_remove(const char *name)
{
    char path[64];

    name_path(name, path);
    if (umount2(path, MNT_DETACH) < 0 && errno != EINVAL && errno != ENOENT) {
        return -errno;
    }
    return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
}

void netns_each(const char *installation, void (*fn)(void *arg, unsigned int n), void *arg)
{
    _cleanup_closedir_ DIR *dir = opendir(NETNS_DIR);
    size_t prefix = strlen(installation);
    struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        uint64_t n;

        if (strncmp(entry->d_name, installation, prefix) == 0 && entry->d_name[prefix] == '-' &&
            span_parse_u64(span_of_str(entry->d_name + prefix + 1), UINT32_MAX, &n) == 0) {
            fn(arg, (unsigned int)n);
        }
    }
}
