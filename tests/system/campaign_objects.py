"""Snapshots in the object store: damage, and a store that is away."""

import os

from harness import poll
from test_objects import away, lose_data, suspend, wait_stored, wake  # noqa: F401 (the fixture)


def test_damage_and_a_store_that_is_away(away):
    api = away.api
    sandbox = api.create(template="base")["id"]
    hidden = away.store.path.with_name("hidden")
    away.store.path.rename(hidden)
    away.store.path.write_text("no directory", encoding="utf-8")
    assert suspend(api, sandbox)["durability"] == "local"
    poll.until(lambda: (away.node_report()["objects"] or {}).get("problem"), 60, "the node says what is wrong")
    report = away.node_report()["objects"]
    assert report["waiting"] == 1 and str(away.store.path) in report["problem"], report
    away.kill_daemon("space-node")
    away.wait_ready()
    assert api.sandbox(sandbox)["durability"] == "local"
    away.store.path.unlink()
    hidden.rename(away.store.path)
    wait_stored(api, f"/v1/sandboxes/{sandbox}")
    assert away.node_report()["objects"]["problem"] is None

    lose_data(away)
    api = away.api
    away.store.path.rename(hidden)
    refused = wake(api, sandbox, status=503)
    assert refused["error"]["code"] == "service_unavailable" and refused["error"]["retryable"], refused
    assert api.sandbox(sandbox)["state"] == "suspended"
    hidden.rename(away.store.path)
    victim = max(away.store.files("chunks"), key=lambda path: path.stat().st_size)
    good = victim.read_bytes()
    for bad in (good[:100] + bytes([good[100] ^ 1]) + good[101:], good[:-1], None):
        if bad is None:
            victim.unlink()
        else:
            victim.write_bytes(bad)
        refused = wake(api, sandbox, status=500)
        assert "damaged" in refused["error"]["message"], refused
        assert api.sandbox(sandbox)["state"] == "suspended"
        assert not list((away.data / "volume/sandboxes").iterdir()), "nothing is left behind"
    victim.write_bytes(good)
    os.chown(victim, away.uid_first, away.uid_first)
    assert wake(api, sandbox)["sandbox"]["state"] == "running"
    suspend(api, sandbox)
    wait_stored(api, f"/v1/sandboxes/{sandbox}")
    lose_data(away)
    away.api.delete(sandbox)
    poll.until(lambda: not away.store.files("manifests"), 60, "what no node has is removed too")
