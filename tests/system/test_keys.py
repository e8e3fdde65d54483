"""API keys and their roles."""

import datetime
import sqlite3

import pytest

from harness import poll


@pytest.fixture(scope="module")
def keys(installation):
    api = installation.api
    made = {role: api.post("/v1/keys", {"name": f"a-{role}", "role": role}, status=201)
            for role in ("admin", "member", "read")}
    yield made
    for key in made.values():
        api.expect((200, 404), "DELETE", f"/v1/keys/{key['id']}")


def test_a_key_is_shown_once(api, keys):
    listed = api.get("/v1/keys")["items"]
    assert {k["id"] for k in keys.values()} <= {k["id"] for k in listed}
    text = api.expect(200, "GET", "/v1/keys").body.decode()
    assert all(key["key"] not in text for key in keys.values())


def test_the_store_has_hashes_only(installation, keys):
    store = installation.data / "store"
    for path in store.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert installation.key.encode() not in content
            assert all(key["key"].encode() not in content for key in keys.values()), path
    for path in (store, *store.rglob("*")):
        assert path.stat().st_mode & 0o007 == 0, f"{path} is open to others"


def test_members_manage_no_keys(api, keys):
    member = api.as_key(keys["member"]["key"])
    for method, path, body in [("GET", "/v1/keys", None), ("POST", "/v1/keys", {"name": "x", "role": "read"}),
                               ("DELETE", f"/v1/keys/{keys['read']['id']}", None)]:
        answer = member.ask(method, path, body)
        assert (answer.status, answer.code) == (403, "forbidden"), (method, path, answer)
    sandbox = member.create()["id"]
    assert member.check_output(sandbox, ["echo", "ok"]) == "ok\n"
    member.delete(sandbox)


def test_read_keys_only_look(api, keys, shared):
    reader = api.as_key(keys["read"]["key"])
    process, session = api.start(shared, ["echo", "seen"])
    api.result(shared, process["id"])
    assert reader.sandbox(shared)["id"] == shared
    assert reader.get("/v1/sandboxes")["items"] and reader.get("/v1/operations") and reader.get("/v1/templates")
    assert reader.output(session["id"]) == b"seen\n"
    with reader.events(session["id"]) as events:
        assert list(events)[-1]["event"] == "process_exited"
    assert reader.result(shared, process["id"])["exit_code"] == 0
    path = f"/v1/sandboxes/{shared}"
    for method, where, body in [
        ("POST", "/v1/sandboxes", {"template": "base"}), ("POST", "/v1/run", {"template": "base", "argv": ["true"]}),
        ("PATCH", path, {}), ("DELETE", path, None), ("POST", path + "/run", {"argv": ["true"]}),
        ("POST", path + "/commands", {"argv": ["true"]}),
        ("POST", path + f"/processes/{process['id']}/signal", {"signal": "SIGTERM"}),
        ("POST", path + f"/processes/{process['id']}/kill", None),
        ("POST", path + f"/processes/{process['id']}/stdin", None), ("GET", "/v1/keys", None),
    ]:
        answer = reader.ask(method, where, body)
        assert (answer.status, answer.code) == (403, "forbidden"), (method, where, answer)


def test_a_revoked_key_opens_nothing(api):
    made = api.post("/v1/keys", {"name": "short", "role": "member"}, status=201)
    user = api.as_key(made["key"])
    assert user.get("/v1/templates")
    api.expect(200, "DELETE", f"/v1/keys/{made['id']}")
    assert user.ask("GET", "/v1/templates").status == 401
    assert api.ask("DELETE", f"/v1/keys/{made['id']}").status == 404


def test_a_key_expires(api):
    soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=1.5)
    text = soon.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    made = api.post("/v1/keys", {"name": "soon", "role": "read", "expires_at": text}, status=201)
    user = api.as_key(made["key"])
    assert user.ask("GET", "/v1/templates").status == 200
    poll.until(lambda: user.ask("GET", "/v1/templates").status == 401, 5, "the key has expired")
    api.expect((200, 404), "DELETE", f"/v1/keys/{made['id']}")


@pytest.mark.parametrize("body, field", [
    ({}, "name"), ({"name": "x"}, "role"), ({"name": "x", "role": "god"}, "role"), ({"name": "", "role": "read"}, "name"),
    ({"name": "x", "role": "read", "expires_at": "tomorrow"}, "expires_at"),
    ({"name": "x", "role": "read", "expires_at": "2001-01-01T00:00:00.000Z"}, "expires_at"),
    ({"name": "x", "role": "read", "nosuch": 1}, "nosuch"),
])
def test_bad_keys(api, body, field):
    answer = api.ask("POST", "/v1/keys", body)
    assert (answer.status, answer.details.get("field")) == (400, field), answer


def test_the_store_is_sqlite_with_a_schema_version(installation):
    with sqlite3.connect(f"file:{installation.data / 'store/space.db'}?mode=ro", uri=True) as store:
        assert store.execute("pragma journal_mode").fetchone()[0] == "wal"
        assert store.execute("pragma integrity_check").fetchone()[0] == "ok"
