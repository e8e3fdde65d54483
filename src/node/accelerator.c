#include "node/accelerator.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

int accelerator_open(const char *name)
{
    _cleanup_close_ int fd = -1;

    if (strcmp(name, "kvm") != 0) {
        return 0;
    }
    fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    return fd < 0 ? -errno : 0;
}

bool accelerator_is_lost(const char *name, char *ret_why, size_t size)
{
    int r = accelerator_open(name);

    if (r < 0) {
        (void)snprintf(ret_why, size,
                       "guests run under %s here, and /dev/kvm cannot be opened now (%s): bring it "
                       "back, or restart space-node with node.accelerator = auto",
                       name, strerror(-r));
    }
    return r < 0;
}
