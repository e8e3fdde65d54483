/* Who asks, and what may they do: keys, tokens, roles, scopes.
 *
 * A token acts for its key within its scope: a sandbox's token is good for what one does in that
 * sandbox (routes with ROUTE_TOKEN), a session's for that session alone, a port's for that port
 * alone. Its role is `read` or, with write access, what its key has but `member` at most; making,
 * changing and deleting sandboxes takes a key. */
#pragma once

#include "api/key_table.h"
#include "api/token.h"

struct api;
struct request;

/* Finds the key behind a request (`Authorization: Bearer`, or `?token=` where the route takes it),
 * counts the request against it, and checks scope and role. Fills rq->key, rq->token and rq->role.
 * 0 or -errno: unauthorized, rate_limited, forbidden. */
int auth_check(struct request *rq, struct error *err) _must_check_;
/* The same with a credential that came in another way (a cookie, X-Space-Token). */
int auth_check_credential(struct request *rq, const char *credential, struct error *err)
    _must_check_;
/* Reads a token and finds its key; neither has expired. NULL with unauthorized. */
struct key_entry *
auth_find_token(struct api *api, const char *text, struct token *ret_token, struct error *err);
/* Whether the request may read (or write) in this sandbox: any key may, a token only within its
 * scope. session_id and port: what of the sandbox is meant, NULL and 0 for all of it. 0 or -errno
 * with forbidden. */
int auth_check_scope(const struct request *rq,
                     const char *sandbox_id,
                     const char *session_id,
                     unsigned int port,
                     struct error *err) _must_check_;
