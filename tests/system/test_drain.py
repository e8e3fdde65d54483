"""Drain of the node: everything suspended, the installation stopped and started, nothing lost."""

import json
import signal

import pytest

from harness import poll

COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"


@pytest.fixture
def undrained(installation):
    """Whatever happens, the others find the node ready and what ran before running."""
    api = installation.api
    ran = [s["id"] for s in api.get("/v1/sandboxes", query={"limit": 1000, "state": "running"})["items"]]
    yield
    api.close()
    installation.up()
    api.post("/v1/nodes/local/undrain")
    for sandbox in ran:
        api.post(f"/v1/sandboxes/{sandbox}/wake", query={"wait": 60})


def test_a_node_is_drained_and_comes_back(installation, undrained, api, sandboxes):
    counting, paused = sandboxes()["id"], sandboxes()["id"]
    process, session = api.start(counting, COUNTER)
    api.check_output(counting, "echo before > note")
    api.post(f"/v1/sandboxes/{paused}/pause", query={"wait": 60})
    (node,) = api.get("/v1/nodes")["items"]
    assert (node["name"], node["state"], node["connected"], node["problems"]) == ("local", "ready", True, [])
    assert node["vcpus"]["admitted"] >= 2 and node["memory"]["admitted_mib"] >= 1024

    order = installation.space("node", "drain")
    assert order.returncode == 0, order.stderr
    installation.kill_daemon("space-api", signal.SIGKILL)
    api.close()
    installation.wait_ready()
    drained = installation.space("node", "drain", "local", "--wait", "--json")
    assert drained.returncode == 0, drained.stderr
    node = json.loads(drained.stdout)
    assert node["state"] == "drained" and node["sandboxes"]["running"] == node["sandboxes"]["paused"] == 0
    assert node == api.get("/v1/nodes/local") | {key: node[key] for key in ("vcpus", "memory", "disk")}
    for sandbox in (counting, paused):
        record = api.sandbox(sandbox)
        assert (record["state"], record["state_reason"]["code"]) == ("suspended", "node_drain")
    poll.until(lambda: installation.node_report()["memory"]["admitted_mib"] == 0, 20, "no sandbox has a VM")
    for path, body, code in (("/v1/sandboxes", {"template": "base"}, "capacity_unavailable"),
                             (f"/v1/sandboxes/{counting}/wake", None, "service_unavailable"),
                             (f"/v1/sandboxes/{counting}/run", {"argv": ["true"]}, "service_unavailable")):
        answer = api.ask("POST", path, body)
        assert (answer.status, answer.code, answer.json["error"]["retryable"]) == (503, code, True), answer
    assert api.post("/v1/nodes/local/drain")["drained_at"] == node["drained_at"], "already there is success"
    seen = api.expect(200, "GET", f"/v1/sessions/{session['id']}/output").body

    api.close()
    installation.down()
    assert not installation.vmms()
    assert "drained" in installation.cli("up").stderr
    assert "is drained" in installation.cli("status").stdout
    checks = json.loads(installation.cli("doctor", "--json", check=False).stdout)["checks"]
    assert [c["status"] for c in checks if c["name"] == "drain"] == ["degraded"]
    assert api.get("/v1/nodes/local", query={"fields": "state"}, check=False) == {"state": "drained"}
    assert api.sandbox(counting)["state"] == "suspended"

    assert installation.space("node", "undrain").returncode == 0
    assert "ready" in installation.space("node").stdout
    assert api.check_output(counting, "cat note") == "before\n", "it wakes when it is used"
    poll.until(lambda: len(api.expect(200, "GET", f"/v1/sessions/{session['id']}/output").body) > len(seen) + 50, 30,
               "the counter goes on")
    api.post(f"/v1/sandboxes/{counting}/processes/{process['id']}/kill")
    lines = api.output(session["id"]).decode().split()
    assert lines == [str(i) for i in range(1, len(lines) + 1)], "not a line lost or twice"
    assert api.sandbox(paused)["state"] == "suspended"
    assert api.post(f"/v1/sandboxes/{paused}/wake", query={"wait": 60})["sandbox"]["state"] == "running"


def test_only_administrators_see_and_drain(installation, api):
    made = api.post("/v1/keys", {"name": "works", "role": "member"}, status=201)
    member = api.as_key(made["key"])
    try:
        for method, path in (("GET", "/v1/nodes"), ("GET", "/v1/nodes/local"), ("POST", "/v1/nodes/local/drain"),
                             ("POST", "/v1/nodes/local/undrain")):
            assert member.ask(method, path).status == 403, path
    finally:
        member.close()
        api.expect(200, "DELETE", f"/v1/keys/{made['id']}")
    for path in ("/v1/nodes/elsewhere/drain", "/v1/nodes/elsewhere/undrain"):
        assert api.ask("POST", path).status == 404
    refused = installation.space("node", "drain", "elsewhere")
    assert refused.returncode == 1 and "not_found" in refused.stderr
    assert installation.space("node", "dry").returncode == 2
    assert api.get("/v1/nodes")["items"][0]["state"] == "ready"
