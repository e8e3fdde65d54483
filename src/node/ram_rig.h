/* Tests: a child with a private mapping of an image, as a VMM has it. */
#pragma once

#include <stdint.h>

#include <sys/types.h>

#define RAM_RIG_PAGES 2048U

struct ram_rig {
    char dir[64];
    char image_path[96];
    int image_fd;
    pid_t pid;
    int proc_fd;
    int tell_fd;
    int hear_fd;
};

/* The bytes of page n of the image: pages from the half on are holes. */
void ram_rig_image_page(uint32_t page, uint8_t *out);
/* Makes directory and image. 0 or -errno. */
int ram_rig_init(struct ram_rig *rig);
/* Starts a child that maps it, and does nothing else. */
int ram_rig_spawn(struct ram_rig *rig);
/* The child fills the page with this byte. */
void ram_rig_write(struct ram_rig *rig, uint32_t page, uint8_t byte);
/* The child reads the page; its first byte. */
uint8_t ram_rig_read(struct ram_rig *rig, uint32_t page);
/* The child makes a hole in its permissions, so that the mapping is in several parts. */
void ram_rig_split(struct ram_rig *rig, uint32_t page);
void ram_rig_kill(struct ram_rig *rig);
void ram_rig_done(struct ram_rig *rig);
