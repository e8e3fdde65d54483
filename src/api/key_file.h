/* Keys made on the machine itself, by those who may read and write the store: the first one, and
 * the operator's way back in. Works while the daemon runs. */
#pragma once

#include "base/error.h"
#include "base/settings.h"

struct key_order {
    const char *name;
    const char *role;       /* NULL: admin */
    const char *expires_at; /* RFC 3339, NULL: never */
    const char *out;        /* NULL: the record with the key goes to standard output as JSON */
};

/* Makes a key. `out` is a new file with mode 0600 that holds the key alone; an existing file is
 * refused and nothing is made. Standard output is refused when it is a terminal. As root, the store
 * is touched as the service user only. */
int key_file_make(const struct settings *settings, const struct key_order *order, struct error *err)
    _must_check_;
