/* Named network namespaces with one tap each.
 *
 * A namespace `/run/netns/<name>` holds `lo` and `tap0` and nothing else: no uplink, so a sandbox
 * has no way out. The host's side of the tap has one fixed address everywhere, or a restored guest
 * would talk to a stale neighbour. Calls block for some milliseconds and change the calling
 * thread's namespace for a moment: workers only. */
#pragma once

#include "base/error.h"

#define NETNS_NAME_SIZE 32
#define NETNS_DIR       "/run/netns"

/* Makes /run/netns a mount of its own, as ip-netns does. */
int netns_init(struct error *err) _must_check_;
/* Undoes it when no namespace of anybody is left. */
void netns_done(void);
/* Makes the namespace and its tap. Both descriptors are the caller's. */
int netns_make(const char *name, int *ret_netns_fd, int *ret_tap_fd, struct error *err)
    _must_check_;
/* 0, also when there is none, or -errno. */
int netns_remove(const char *name) _must_check_;
/* Calls fn for each N of the namespaces `<installation>-N`. */
void netns_each(const char *installation, void (*fn)(void *arg, unsigned int n), void *arg);
