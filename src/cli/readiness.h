/* Waiting for an installation that is being started, and telling why it does not become ready. */
#pragma once

#include <stdint.h>

#include "base/error.h"

struct cli;
struct settings;

/* Whether api.listen can be bound now; err names what to do when it cannot. */
int readiness_check_port(const struct settings *s, struct error *err) _must_check_;
/* Waits until both daemons run and /readyz says so, showing on a terminal what it waits for. When a
 * daemon keeps dying, or the time is over, prints the ends of the logs and fails. */
int readiness_wait(struct cli *cli, const char *url, int64_t wait_ms, struct error *err)
    _must_check_;
/* GET /readyz: 0 ready, -EAGAIN not yet (`ret_waiting_for`, may be NULL, names what for), else as
 * rest_call. */
int readiness_ask(struct cli *cli, const char *url, char ret_waiting_for[200], struct error *err)
    _must_check_;
