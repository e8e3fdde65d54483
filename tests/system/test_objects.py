"""Snapshots in the object store: what is stored, and a node that has lost its data."""

import os
import pathlib
import shutil
import time

import pytest

from harness import machine, poll
from harness.hung import Hung
from harness.installation import Installation

pytestmark = pytest.mark.long

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
    assert f"chown -R {made.uid_first}:{made.uid_first} {made.store.path}" in report
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


def problem(made, word):
    """What the node says that keeps it from storing; `space doctor` says it too."""
    found = poll.until(lambda: (lambda p: p if word in (p or "") else None)(made.node_report()["objects"]["problem"]),
                       90, f"the node says: {word}", every=0.1)
    doctor = made.cli("doctor", check=False)
    assert word in next(line for line in doctor.stdout.splitlines() if line.split()[1:2] == ["objects"]), doctor.stdout
    return found


def test_a_store_that_does_not_answer(away):
    """The node goes on as if nothing were, and so does what it is asked; what needs the store can be asked again."""
    api = away.api
    stored = api.create(template="base")["id"]
    suspend(api, stored)
    wait_stored(api, f"/v1/sandboxes/{stored}")
    hung = Hung(away.store.path)
    try:
        sandbox = api.create(template="base")["id"]
        assert suspend(api, sandbox)["durability"] == "local"
        assert hung.asked.wait(60), "the store is asked"
        slowest = 0.0

        def is_said():
            nonlocal slowest
            begun = time.monotonic()
            report = away.node_report()["objects"]
            slowest = max(slowest, time.monotonic() - begun)
            return "not answer" in (report["problem"] or "")

        poll.until(is_said, 60, "the node says that it does not answer", every=0.05)
        assert slowest < 5, "the node answers meanwhile"
        problem(away, "not answer")
        assert wake(api, sandbox)["sandbox"]["state"] == "running"
        assert api.check_output(sandbox, "echo alive") == "alive\n"
        assert suspend(api, sandbox)["durability"] == "local"
        lose_data(away)  # it stops and starts meanwhile
        api = away.api
        refused = wake(api, stored, status=503)
        assert refused["error"]["code"] == "service_unavailable" and refused["error"]["retryable"], refused
        assert api.sandbox(stored)["state"] == "suspended"
    finally:
        hung.end()
    assert poll.until(lambda: (lambda a: a.status == 200 and a.json)(
        api.ask("POST", f"/v1/sandboxes/{stored}/wake", query={"wait": 120})), 120, "it wakes")["sandbox"]["state"] == "running"
    for one in (sandbox, stored):
        api.delete(one)


def test_only_the_directory_that_it_was(away):
    """The empty place of a disk that is not mounted is no store, even one that could be written."""
    api = away.api
    first = api.create(template="base")["id"]
    suspend(api, first)
    wait_stored(api, f"/v1/sandboxes/{first}")
    mounted = away.store.path.with_name("mounted")
    away.store.path.rename(mounted)
    away.store.path.mkdir(mode=0o700)
    os.chown(away.store.path, away.uid_first, away.uid_first)
    sandbox = api.create(template="base")["id"]
    assert suspend(api, sandbox)["durability"] == "local"
    problem(away, "is its disk mounted?")
    away.kill_daemon("space-node")
    away.wait_ready()
    problem(away, "is its disk mounted?")
    assert not list(away.store.path.iterdir()), "nothing is written there"
    (away.store.path / "mine").write_text("of somebody", encoding="utf-8")
    away.store.path.rename(away.store.path.with_name("other"))
    mounted.rename(away.store.path)
    wait_stored(api, f"/v1/sandboxes/{sandbox}")
    for one in (first, sandbox):
        api.delete(one)


def test_another_place_that_is_full(away):
    """What was stored elsewhere is stored again; a store beside the sandboxes leaves them what they need."""
    api = away.api
    sandbox = api.create(template="base")["id"]
    suspend(api, sandbox)
    wait_stored(api, f"/v1/sandboxes/{sandbox}")
    volume = away.data / "volume"
    other = Store(volume / "other-store")
    other.path.mkdir(mode=0o700)
    os.chown(other.path, away.uid_first, away.uid_first)
    filler = volume / "filler"
    total, reserve = os.statvfs(volume).f_blocks * os.statvfs(volume).f_frsize, 512 << 20
    room = os.statvfs(volume).f_bavail * os.statvfs(volume).f_frsize
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room - 2 * reserve - total // 10 + (16 << 20))
    away.cli("down", "--keep-sandboxes")
    away.write_config(objects__store=other.path, node__disk_reserve_mib=512)
    away.up()
    api = away.api
    assert "stay free" in problem(away, "has no room")
    assert api.sandbox(sandbox)["durability"] == "local", "the new place does not have it"
    assert not other.files("manifests")
    more = api.create(template="base")["id"]
    api.check_output(more, "dd if=/dev/urandom of=/home/user/file bs=1M count=64 status=none; sync")
    taken = api.expect(201, "POST", f"/v1/sandboxes/{more}/checkpoints", {}, query={"wait": 60}).json
    assert suspend(api, more)["durability"] == "local"
    assert wake(api, more)["sandbox"]["state"] == "running"
    filler.unlink()
    wait_stored(api, f"/v1/sandboxes/{sandbox}")
    wait_stored(api, f"/v1/checkpoints/{taken['operation']['result']['id']}")
    assert other.manifests(sandbox)
    # What is deleted now would be kept for a day; when its room is needed, it goes at once.
    away.cli("down", "--keep-sandboxes")
    away.write_config(objects__garbage_seconds=86400)
    away.up()
    api = away.api
    api.expect(200, "DELETE", f"/v1/checkpoints/{taken['operation']['result']['id']}")
    api.delete(more)
    poll.until(lambda: not other.manifests(taken["operation"]["result"]["id"]), 60, "its manifest is gone")
    garbage = other.size()
    assert garbage > 64 << 20
    room = os.statvfs(volume).f_bavail * os.statvfs(volume).f_frsize
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room - 2 * reserve - total // 10 + (16 << 20))
    late = api.create(template="base")["id"]
    suspend(api, late)
    wait_stored(api, f"/v1/sandboxes/{late}")
    assert other.size() < garbage - (48 << 20)
    filler.unlink()
    for one in (late, sandbox):
        api.delete(one)
    away.cli("down", "--keep-sandboxes")
    away.write_config(objects__store=away.store.path, objects__garbage_seconds=1, node__disk_reserve_mib=1024)
    shutil.rmtree(other.path)
    away.up()


def test_a_fork_stores_nothing(away):
    """Its checkpoint is gone when its children run."""
    api = away.api
    idle = lambda: (report := away.node_report()["objects"]) and not report["waiting"] and not report["removals"]
    source = api.create(template="base")["id"]
    poll.until(idle, 60, "nothing waits")
    log = away.logs / "space-node.log"
    before = log.stat().st_size
    made = api.expect(201, "POST", f"/v1/sandboxes/{source}/fork", {"count": 2}, query={"wait": 120}).json
    children = [child["sandbox_id"] for child in made["operation"]["result"]["children"]]
    poll.until(idle, 60, "nothing waits")
    said = log.read_text(encoding="utf-8")[before:]
    assert "checkpoint_made" in said and "snapshot_stored" not in said, said
    for one in (*children, source):
        api.delete(one)


def test_what_goes_while_there_is_no_store(away):
    api = away.api
    sandbox = api.create(template="base")["id"]
    suspend(api, sandbox)
    wait_stored(api, f"/v1/sandboxes/{sandbox}")
    assert away.store.manifests(sandbox)
    images = away.data / "volume/images"
    assert list(images.iterdir())
    away.cli("down", "--keep-sandboxes")
    away.write_config(objects__store="none")
    away.up()
    assert not images.exists(), "nobody else would remove them when their bases go"
    assert wake(away.api, sandbox)["sandbox"]["state"] == "running"
    away.api.delete(sandbox)
    away.cli("down", "--keep-sandboxes")
    away.write_config(objects__store=away.store.path)
    away.up()
    poll.until(lambda: not away.store.manifests(sandbox), 60, "it is removed later")
