/* Programs that run in the guest when a new identity is in place and nothing frozen goes on yet:
 * those of a directory (HOOKS_DIRECTORY), so that whoever keeps random numbers of its own can be
 * told, and the maker of an ssh server's keys.
 *
 * One after the other, as the agent's own user, output on the console, in a control group that no
 * freeze touches; what a program leaves running is killed with it. The agent waits, for a bounded
 * time. What fails is said on the console and changes nothing else.
 *
 * The guest's root is hostile: a file may be on a filesystem whose server never answers, and a
 * program's start may wait for ever. So the agent itself only looks where nobody needs to answer
 * (hooks_may_...), and a copy of it that can be given up does the rest (hooks_apart). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "guest/spawn.h"

#define HOOKS_DIRECTORY "/etc/space/identity.d"
#define HOOK_LIMIT_MS   2000 /* of one */
#define HOOKS_LIMIT_MS  5000 /* of all; the host waits node.start_timeout_ms for the identity */
#define HOOKS_GRACE_MS  1000 /* in which those that reached a limit are killed one by one */

struct hooks {
    struct spawner *spawner;
    bool use_group; /* that of hooks_make_group */
    int limit_ms;   /* of one program */
    int64_t end_ms; /* of all, on the monotonic clock */
};

/* Whether there is such a file, or the directory has an entry that is wanted. True too when only
 * another mount than / could tell, which is not asked. */
bool hooks_may_exist(const char *path);
bool hooks_may_hold(const char *directory, int (*is_wanted)(const struct dirent *));
/* Whether it can be the name of a hook. */
int hooks_is_name(const struct dirent *entry);

/* A new control group for programs, in the hierarchy whose root is given; what was in the one of
 * before is killed. A descriptor, or -errno: then they run without a group. */
int hooks_make_group(int root_fd) _must_check_;
/* Runs `work` in a copy of the agent (spawn_copy) and waits for it until until_ms; then it
 * is killed, with all that is in the group (-1: none), and given up even if it does not die. Its
 * exit status, -ETIMEDOUT or another -errno. */
int hooks_apart(spawn_work work, void *arg, int group_fd, int64_t until_ms) _must_check_;

/* Runs the programs of the directory in the order of their names. Run are executable regular files
 * whose names begin without a dot; they and the directory must be the agent's user's and writable
 * by nobody else. Returns how many ran and ended with status 0. */
int hooks_run(const struct hooks *h, const char *directory);
/* Runs one program; argv[0] is its path. Whether it ended with status 0. */
bool hooks_run_program(const struct hooks *h, const char *const *argv);
