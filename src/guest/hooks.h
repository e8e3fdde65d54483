/* Programs that run in the guest when a new identity is in place and nothing frozen goes on yet:
 * those of a directory (HOOKS_DIRECTORY), so that whoever keeps random numbers of its own can be
 * told, and the maker of an ssh server's keys.
 *
 * One after the other, as the agent's own user, output on the console, in a control group that no
 * freeze touches; what a program leaves running is killed with it. The agent waits, for a bounded
 * time. What fails is said on the console and changes nothing else. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct spawner;

#define HOOKS_DIRECTORY "/etc/space/identity.d"
#define HOOK_LIMIT_MS   2000 /* of one */
#define HOOKS_LIMIT_MS  5000 /* of all; the host waits node.start_timeout_ms for the identity */

struct hooks {
    struct spawner *spawner;
    bool use_group; /* false in a host's test */
    int limit_ms;   /* of one program */
    int64_t end_ms; /* of all, on the monotonic clock */
};

/* Runs the programs of the directory in the order of their names, or, to have gone the way once,
 * only looks (`run` false). Run are executable regular files whose names begin without a dot; they
 * and the directory must be the agent's user's and writable by nobody else. Returns how many ran
 * and ended with status 0. */
int hooks_run(const struct hooks *h, const char *directory, bool run);
/* Runs one program; argv[0] is its path. Whether it ended with status 0. */
bool hooks_run_program(const struct hooks *h, const char *const *argv);
