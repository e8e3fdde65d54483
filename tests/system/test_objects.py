"""Snapshots in the object store: what is stored, and a node that has lost its data."""

import os
import pathlib
import shutil

import pytest

from harness import machine, poll
from harness.installation import Installation

COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
LOST = ("sandboxes", "checkpoints", "images", "bases", "objects")


class Store:
    """The store's directory, as an operator sees it."""

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def files(self, kind):
        top = self.path / kind
        return sorted(path for path in top.rglob("*") if path.is_file()) if top.exists() else []

    def manifests(self, owner):
        return [path for path in self.files("manifests") if path.name.startswith(f"{owner}.")]

    def size(self):
        return sum(path.stat().st_size for path in self.files("."))


@pytest.fixture(scope="module")
def away():
    made = Installation("obj", uid_first=1_260_000, volume_gib=6, node__warm_pools="base=1", node__prepared_pool=0)
    made.store = Store(made.top / "store")
    made.settings["objects.store"] = made.store.path
    made.settings["objects.garbage_seconds"] = 1
    made.prepare()
    made.store.path.mkdir(mode=0o700)
    made.up()  # it does not wait for the store
    report = poll.until(lambda: made.node_report()["objects"]["problem"], 60, "the store is somebody else's", every=0.1)
    assert f"chown {made.uid_first}:{made.uid_first} {made.store.path}" in report
    os.chown(made.store.path, made.uid_first, made.uid_first)
    yield made
    made.remove()


def wait_stored(api, path):
    poll.until(lambda: api.get(path)["durability"] == "replicated", 120, f"{path} is stored", every=0.1)


def lose_data(made):
    """A node whose disk was lost and made anew: only templates and guest are there."""
    made.cli("down", "--keep-sandboxes")  # the volume stays mounted
    lost = 0
    for name in LOST:
        folder = made.data / "volume" / name
        for child in folder.iterdir() if folder.exists() else []:
            lost += 1
            shutil.rmtree(child) if child.is_dir() else child.unlink()
    assert lost > 0
    made.up()


def is_row(data):
    lines = data[:data.rfind(b"\n")].decode().split()
    return lines == [str(i) for i in range(1, len(lines) + 1)]


def so_far(api, session):
    return api.expect(200, "GET", f"/v1/sessions/{session}/output").body


def suspend(api, sandbox):
    return api.expect(200, "POST", f"/v1/sandboxes/{sandbox}/suspend", query={"wait": 60}).json["sandbox"]


def wake(api, sandbox, status=200):
    return api.expect(status, "POST", f"/v1/sandboxes/{sandbox}/wake", query={"wait": 120}).json


def test_a_node_that_has_lost_its_data(away):
    api = away.api
    sandbox = api.create(template="base", env={"KEPT": "yes"})["id"]
    api.check_output(sandbox, "echo on the disk > /home/user/file; sync")
    _, session = api.start(sandbox, COUNTER)
    poll.until(lambda: len(so_far(api, session["id"])) > 20, 60, "it counts")
    machine_id = api.check_output(sandbox, "cat /etc/machine-id")
    taken = api.expect(201, "POST", f"/v1/sandboxes/{sandbox}/checkpoints", {}, query={"wait": 60}).json
    checkpoint = taken["operation"]["result"]
    assert checkpoint["durability"] == "local"
    assert suspend(api, sandbox)["durability"] in ("local", "replicated")
    wait_stored(api, f"/v1/sandboxes/{sandbox}")
    wait_stored(api, f"/v1/checkpoints/{checkpoint['id']}")
    assert len(away.store.manifests(sandbox)) == 1 and len(away.store.manifests(checkpoint["id"])) == 1
    assert len(away.store.files("bases")) == 1, "one base for all"
    end = len(so_far(api, session["id"]))

    lose_data(away)
    api = away.api
    kept = api.sandbox(sandbox)
    assert (kept["state"], kept["durability"]) == ("suspended", "replicated"), kept
    woken = wake(api, sandbox)["sandbox"]
    assert woken["state"] == "running" and woken["durability"] is None
    poll.until(lambda: len(so_far(api, session["id"])) > end + 40, 60, "it counts on")
    assert is_row(so_far(api, session["id"])), "not a line lost or twice"
    assert api.check_output(sandbox, "cat /home/user/file; echo $KEPT") == "on the disk\nyes\n"
    assert api.check_output(sandbox, "cat /etc/machine-id") == machine_id
    poll.until(lambda: not away.store.manifests(sandbox), 60, "what it was is not kept")

    child = api.expect(201, "POST", "/v1/sandboxes", {"checkpoint_id": checkpoint["id"]}, query={"wait": 120}).json
    child = child["sandbox"]["id"]
    assert api.check_output(child, "cat /home/user/file") == "on the disk\n"
    rolled = api.expect(200, "POST", f"/v1/sandboxes/{sandbox}/rollback", {"checkpoint_id": checkpoint["id"]},
                        query={"wait": 120}).json
    assert rolled["sandbox"]["state"] == "running"
    for one in (sandbox, child):
        api.delete(one)
    api.expect(200, "DELETE", f"/v1/checkpoints/{checkpoint['id']}")
    poll.until(lambda: not away.store.files("manifests") and not away.store.files("chunks"), 60,
               "nothing of them is left")


def test_the_worker_is_nobody(away):
    """It owns nothing but the store, and gets no words."""
    api = away.api
    seen = []
    sandbox = api.create(template="base")["id"]
    suspend(api, sandbox)

    node = str(away.daemon("space-node"))

    def look():
        for pid in machine.pids():
            status = machine.status(pid)
            if status.get("Name") == "space-objects" and status.get("PPid") == node:
                seen.append((status["Uid"].split()[:4], status["NoNewPrivs"], status["CapEff"],
                             machine.read(f"/proc/{pid}/environ")))
        return api.sandbox(sandbox)["durability"] == "replicated"

    poll.until(look, 120, "it is stored", every=0.001)
    nobody = [one for one in seen if one[0] == [str(away.uid_first)] * 4]
    assert nobody, "it gives up root"
    for uids, privileges, capabilities, environ in seen:
        assert uids[0] in ("0", str(away.uid_first)) and privileges == "1" and environ == b""
        assert uids[0] == "0" or int(capabilities, 16) == 0
    api.delete(sandbox)
