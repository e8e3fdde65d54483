/* The random id of a data directory, in its file `id`: the same path in two containers is two
 * directories (name_claim.h). Everything blocks. */
#pragma once

#include "base/error.h"
#include "base/id.h"

#define DATA_ID_KIND "in"

/* The id, or "" while there is none. One that cannot be read is an error: it may be that of VMs
 * that live. */
int data_id_read(const char *data_dir, char out[ID_SIZE], struct error *err) _must_check_;
/* The same, and makes one where there is none. For who holds the installation's name, so that there
 * is one maker. */
int data_id_ensure(const char *data_dir, char out[ID_SIZE], struct error *err) _must_check_;
