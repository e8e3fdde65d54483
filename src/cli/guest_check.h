/* Whether guests start with the installed agent: the initramfs is made by set-up, and holds the
 * space-init of that day. */
#pragma once

struct cli;

enum guest_check {
    GUEST_CHECK_MISSING, /* there is none, or it cannot be read */
    GUEST_CHECK_STALE,   /* made of another space-init than the installed one */
    GUEST_CHECK_CURRENT,
};

/* Reads space-init, some hundred kilobytes: a few milliseconds. */
enum guest_check guest_check(const struct cli *cli);
