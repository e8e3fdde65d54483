/* Which ports of sandboxes are public. A row is kept for a public port only, whether anything
 * listens there or not; the deletion of its sandbox takes it along. */
#pragma once

#include <stdint.h>

#include "api/store.h"

#define STORE_PORTS_PUBLIC_MAX 64 /* of one sandbox */

/* 1 public, 0 private, -errno. */
int store_port_is_public(struct store *store,
                         const char *sandbox_id,
                         uint16_t port,
                         struct error *err) _must_check_;
/* The public ports of a sandbox, in order. Their number, or -errno. */
int store_port_list(struct store *store,
                    const char *sandbox_id,
                    uint16_t ret_ports[STORE_PORTS_PUBLIC_MAX],
                    struct error *err) _must_check_;
/* limit_exceeded when the sandbox has too many public ports. 0 or -errno. */
int store_port_set_public(struct store *store,
                          const char *sandbox_id,
                          uint16_t port,
                          bool is_public,
                          struct error *err) _must_check_;
