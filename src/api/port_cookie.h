/* Cookies between a browser and a sandbox's page: ours never reaches the guest, and the guest
 * neither sets ours nor any that another host would get. Pure. */
#pragma once

#include "base/buf.h"
#include "base/span.h"

/* The cookie that carries a port token. Under TLS browsers accept the second name only from the
 * very host, with Secure, and no page of another host can plant it. */
#define PORT_COOKIE        "space_port_token"
#define PORT_COOKIE_SECURE "__Host-space_port_token"

/* Takes the next of our cookies off a Cookie header's value: its value, or false at the end. */
bool port_cookie_next(struct span *rest, bool secure, struct span *ret_value);
/* Copies a Cookie header's value without our cookies, of either name. Nothing is put when nothing
 * else is in it. */
void port_cookie_strip(struct span value, struct buf *out);
/* Copies a Set-Cookie header's value of a sandbox without its Domain attributes: the cookie stays
 * on its own host. False, and nothing put, when it would be one of ours. */
bool port_cookie_filter_set(struct span value, struct buf *out);
