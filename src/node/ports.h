/* Ports that something in a guest listens on, as its agent reports them, and the wait for one.
 *
 * All who wait for ports of one sandbox share one poll, so that a thousand of them cost as much as
 * one. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/error.h"
#include "base/list.h"
#include "wire/service_record.h"

struct port_poll;
struct sandbox;
struct services;

#define PORTS_MAX 4096U /* listeners that are looked at */

/* Embedded in who waits. */
struct port_wait {
    struct list link;
    struct port_poll *poll; /* NULL: in none */
    uint64_t round;         /* the first listing that began after it came */
    uint16_t port;
    bool is_once; /* the answer of one listing is enough */
    /* listener NULL: nothing listens (is_once), or err says what failed. Called once, then it is
     * in no poll any more. */
    void (*fn)(void *arg, const struct service_listener *listener, const struct error *err);
    void *arg;
};

/* The item of a list. NULL without memory. */
json_t *port_describe(const struct sandbox *sb, const struct service_listener *listener);
/* 0 or -ENOMEM; fn comes later. */
int port_wait_begin(struct services *services, struct port_wait *wait)
    __attribute__((warn_unused_result));
void port_wait_end(struct port_wait *wait); /* fine for one that is in no poll */
/* Its time is over. True when nothing listened as far as is known, and it is in no poll any more;
 * false: the first listing since it came is not there yet, and will be its answer. */
bool port_wait_expire(struct port_wait *wait);
/* The agent is gone: all who wait hear it. */
void port_poll_end(struct services *services);
