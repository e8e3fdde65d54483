/* The keys by which an ssh server is known: never those of another sandbox. */
#pragma once

#include <stdbool.h>

#include "base/cleanup.h"

struct hooks;

#define HOST_KEYS_DIRECTORY "/etc/ssh"

/* Removes every ssh_host_* of the directory, for good before it returns (a crash of the host
 * brings none back). 1 when there were any, 0, or -errno when one may be left: -ETIMEDOUT when the
 * directory's filesystem did not answer in time. */
int host_keys_remove(const char *directory, int limit_ms) _must_check_;
/* Whether the directory has one. */
bool host_keys_exist(const char *directory);
/* Whether host_keys_renew has anything to look at; blocks for nobody. */
bool host_keys_may_be_wanted(void);
/* Where an ssh server is installed and has no key: makes an ed25519 and an ecdsa one by ssh-keygen.
 * An RSA key takes too long to be waited for. */
void host_keys_renew(const struct hooks *h);
/* Makes a server that runs, and is perhaps still frozen, read its keys again (SIGHUP). */
void host_keys_tell(void);
