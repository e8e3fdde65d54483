#include "node/ram_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/fd.h"
#include "node/ram_layer.h"

#define RIG_BYTES ((size_t)RAM_RIG_PAGES * RAM_PAGE_BYTES)

struct order {
    uint32_t page;
    uint8_t what;
    uint8_t byte;
};

void ram_rig_image_page(uint32_t page, uint8_t *out)
{
    memset(out, page < RAM_RIG_PAGES / 2 ? (int)(page % 250) + 1 : 0, RAM_PAGE_BYTES);
}

int ram_rig_init(struct ram_rig *rig)
{
    uint8_t page[RAM_PAGE_BYTES];

    *rig = (struct ram_rig){.image_fd = -1, .proc_fd = -1, .tell_fd = -1, .hear_fd = -1};
    (void)snprintf(rig->dir, sizeof(rig->dir), "/tmp/ram-rig-XXXXXX");
    if (mkdtemp(rig->dir) == NULL) {
        return -errno;
    }
    (void)snprintf(rig->image_path, sizeof(rig->image_path), "%s/ram", rig->dir);
    rig->image_fd = open(rig->image_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (rig->image_fd < 0 || ftruncate(rig->image_fd, (off_t)RIG_BYTES) < 0) {
        return -errno;
    }
    for (uint32_t i = 0; i < RAM_RIG_PAGES / 2; i++) {
        int r;

        ram_rig_image_page(i, page);
        r = fd_pwrite_all(rig->image_fd, span_make(page, sizeof(page)), (off_t)i * RAM_PAGE_BYTES);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

static void obey(uint8_t *map, int in, int out)
{
    struct order order;

    while (read(in, &order, sizeof(order)) == (ssize_t)sizeof(order)) {
        volatile uint8_t *at = &map[(size_t)order.page * RAM_PAGE_BYTES];
        uint8_t answer = 0;

        if (order.what == 'w') {
            for (size_t i = 0; i < RAM_PAGE_BYTES; i++) {
                at[i] = order.byte;
            }
        } else if (order.what == 's') {
            (void)madvise(&map[(size_t)order.page * RAM_PAGE_BYTES], RAM_PAGE_BYTES, MADV_DONTFORK);
        } else {
            answer = at[0];
        }
        if (write(out, &answer, 1) != 1) {
            break;
        }
    }
    _exit(0);
}

int ram_rig_spawn(struct ram_rig *rig)
{
    int tell[2];
    int hear[2];
    char path[40];

    if (pipe2(tell, O_CLOEXEC) < 0 || pipe2(hear, O_CLOEXEC) < 0) {
        return -errno;
    }
    rig->pid = fork();
    if (rig->pid == 0) {
        uint8_t *map = mmap(NULL, RIG_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, rig->image_fd, 0);

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(tell[1]);
        (void)close(hear[0]);
        if (map == MAP_FAILED) {
            _exit(1);
        }
        obey(map, tell[0], hear[1]);
    }
    (void)close(tell[0]);
    (void)close(hear[1]);
    rig->tell_fd = tell[1];
    rig->hear_fd = hear[0];
    (void)snprintf(path, sizeof(path), "/proc/%d", (int)rig->pid);
    rig->proc_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)ram_rig_read(rig, 0); /* it has mapped the image now */
    return rig->proc_fd < 0 ? -errno : 0;
}

static uint8_t ask(struct ram_rig *rig, struct order order)
{
    uint8_t answer = 0;

    if (write(rig->tell_fd, &order, sizeof(order)) != (ssize_t)sizeof(order) ||
        read(rig->hear_fd, &answer, 1) != 1) {
        abort();
    }
    return answer;
}

void ram_rig_write(struct ram_rig *rig, uint32_t page, uint8_t byte)
{
    (void)ask(rig, (struct order){page, 'w', byte});
}

uint8_t ram_rig_read(struct ram_rig *rig, uint32_t page)
{
    return ask(rig, (struct order){page, 'r', 0});
}

void ram_rig_split(struct ram_rig *rig, uint32_t page)
{
    (void)ask(rig, (struct order){page, 's', 0});
}

void ram_rig_kill(struct ram_rig *rig)
{
    if (rig->pid > 0) {
        (void)kill(rig->pid, SIGKILL);
        (void)waitpid(rig->pid, NULL, 0);
        rig->pid = 0;
    }
    cleanup_close(&rig->proc_fd);
    cleanup_close(&rig->tell_fd);
    cleanup_close(&rig->hear_fd);
    rig->proc_fd = rig->tell_fd = rig->hear_fd = -1;
}

void ram_rig_done(struct ram_rig *rig)
{
    ram_rig_kill(rig);
    cleanup_close(&rig->image_fd);
    (void)dir_remove_tree(AT_FDCWD, rig->dir);
}
