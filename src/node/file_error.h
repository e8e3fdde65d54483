/* How failures of a guest's filesystem, and of its services, look to a client. */
#pragma once

#include "base/error.h"
#include "node/service.h"

struct sandbox;

/* An errno of the guest: ENOENT is not_found, EACCES and EPERM forbidden, ENOSPC and EDQUOT
 * storage_full, the others conflict; details.errno has its name. `path` may be empty. Returns
 * -errnum. */
int file_error_set(struct error *err, int errnum, struct span path);
/* Any end of a service but SERVICE_END_DONE; sb is the sandbox as it is now, or NULL. */
void file_error_of_end(struct error *err,
                       const struct service_end *end,
                       const struct sandbox *sb,
                       const char *user);
