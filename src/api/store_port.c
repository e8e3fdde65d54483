#include "api/store_port.h"

#include <errno.h>

static int count(struct store *store, sqlite3_stmt *stmt, struct error *err)
{
    int r = stmt == NULL ? -EIO : store_step(store, stmt, err);

    if (r > 0) {
        r = sqlite3_column_int(stmt, 0);
        (void)sqlite3_reset(stmt);
    }
    return r;
}

int store_port_is_public(struct store *store,
                         const char *sandbox_id,
                         uint16_t port,
                         struct error *err)
{
    return count(store,
                 store_start(store, err,
                             "SELECT count(*) FROM public_ports WHERE sandbox_id = ?1"
                             " AND port = ?2",
                             "ti", sandbox_id, (int64_t)port),
                 err);
}

int store_port_list(struct store *store,
                    const char *sandbox_id,
                    uint16_t ret_ports[STORE_PORTS_PUBLIC_MAX],
                    struct error *err)
{
    sqlite3_stmt *stmt = store_start(store, err,
                                     "SELECT port FROM public_ports WHERE sandbox_id = ?1"
                                     " ORDER BY port LIMIT ?2",
                                     "ti", sandbox_id, (int64_t)STORE_PORTS_PUBLIC_MAX);
    int n = 0;
    int r = stmt == NULL ? -EIO : 1;

    while (r > 0 && (r = store_step(store, stmt, err)) > 0) {
        ret_ports[n++] = (uint16_t)sqlite3_column_int(stmt, 0);
    }
    return r < 0 ? r : n;
}

static int publish(struct store *store, const char *sandbox_id, uint16_t port, struct error *err)
{
    int r = count(store,
                  store_start(store, err,
                              "SELECT count(*) FROM public_ports WHERE sandbox_id = ?1"
                              " AND port <> ?2",
                              "ti", sandbox_id, (int64_t)port),
                  err);

    if (r < 0) {
        return r;
    }
    if (r >= STORE_PORTS_PUBLIC_MAX) {
        return error_set_code(err, ERROR_LIMIT_EXCEEDED, "public_ports",
                              "a sandbox has at most %d public ports", STORE_PORTS_PUBLIC_MAX);
    }
    return store_exec(store, err,
                      "INSERT INTO public_ports (sandbox_id, port) VALUES (?1, ?2)"
                      " ON CONFLICT DO NOTHING",
                      "ti", sandbox_id, (int64_t)port);
}

int store_port_set_public(
    struct store *store, const char *sandbox_id, uint16_t port, bool is_public, struct error *err)
{
    int r = is_public ? publish(store, sandbox_id, port, err)
                      : store_exec(store, err,
                                   "DELETE FROM public_ports WHERE sandbox_id = ?1 AND port = ?2",
                                   "ti", sandbox_id, (int64_t)port);

    return r < 0 ? r : 0;
}
