"""When rules (idle_timeout_seconds and others) were carried out, by the times of the server."""

import contextlib
import datetime
import sqlite3


def time_of(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def active_at(api, sandbox):
    return time_of(api.sandbox(sandbox)["active_at"])


def suspended_at(installation, sandbox):
    """Of the store: no record says it."""
    path = f"file:{installation.data / 'store/space.db'}?mode=ro"
    with contextlib.closing(sqlite3.connect(path, uri=True)) as store:
        (at,), = store.execute("SELECT suspended_at FROM sandboxes WHERE id = ?", (sandbox,)).fetchall()
    return at / 1000


def begun_at(api, sandbox, kind):
    """When the last operation of this kind was made; by a rule, it is when the rule was carried out."""
    found = api.get("/v1/operations", query={"sandbox_id": sandbox, "kind": kind})["items"]
    return max(time_of(operation["created_at"]) for operation in found)
