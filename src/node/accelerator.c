#include "node/accelerator.h"

#include <errno.h>
#include <fcntl.h>
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
