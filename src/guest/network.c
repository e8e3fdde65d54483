#include <errno.h>
#include <string.h>

#include <arpa/inet.h>
#include <net/if.h>
#include <net/route.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "guest/boot.h"
#include "guest/console.h"

/* The same in every sandbox: network namespaces on the host keep them apart, and a snapshot can be
 * restored anywhere. */
#define GUEST_ADDRESS   "10.111.0.2"
#define GUEST_NETMASK   "255.255.255.252"
#define GATEWAY_ADDRESS "10.111.0.1"

static struct sockaddr address_of(const char *text)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr out;

    in.sin_addr.s_addr = inet_addr(text);
    memcpy(&out, &in, sizeof(out));
    return out;
}

static int interface_up(int fd, const char *name)
{
    struct ifreq request = {.ifr_flags = 0};

    (void)snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
    if (ioctl(fd, SIOCGIFFLAGS, &request) < 0) {
        return -errno;
    }
    request.ifr_flags |= IFF_UP | IFF_RUNNING;
    return ioctl(fd, SIOCSIFFLAGS, &request) < 0 ? -errno : 0;
}

static int interface_set(int fd, const char *name, unsigned long what, const char *text)
{
    struct ifreq request = {.ifr_flags = 0};

    (void)snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
    request.ifr_addr = address_of(text);
    return ioctl(fd, (int)what, &request) < 0 ? -errno : 0;
}

static int route_set(int fd)
{
    struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};

    route.rt_dst = address_of("0.0.0.0");
    route.rt_genmask = address_of("0.0.0.0");
    route.rt_gateway = address_of(GATEWAY_ADDRESS);
    return ioctl(fd, SIOCADDRT, &route) < 0 && errno != EEXIST ? -errno : 0;
}

void network_configure(void)
{
    _cleanup_close_ int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int r;

    if (fd < 0) {
        console_say("no network: error %d", errno);
        return;
    }
    (void)interface_up(fd, "lo");
    r = interface_set(fd, "eth0", SIOCSIFADDR, GUEST_ADDRESS);
    if (r == -ENODEV) {
        return; /* a guest without a network device */
    }
    if (r == 0) {
        r = interface_set(fd, "eth0", SIOCSIFNETMASK, GUEST_NETMASK);
    }
    if (r == 0) {
        r = interface_up(fd, "eth0");
    }
    if (r == 0) {
        r = route_set(fd);
    }
    if (r < 0) {
        console_say("eth0: error %d", -r);
    }
}
