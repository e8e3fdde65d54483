"""Checkpoints on the node: sandboxes made from them, rollback, damage, full disks."""

import os
import subprocess
import time

import pytest

from harness import poll
from harness.checkpoints import COUNTER, Checkpoints, is_row
from harness.node_alone import Node, new_id

pytestmark = pytest.mark.long

SECRETS = "cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id /etc/machine-id /etc/hostname"


@pytest.fixture(scope="module")
def node():
    made = Node("ckp", uid_first=1_320_000, node__warm_pools="base=1", node__prepared_pool=1)
    made.prepare()
    yield made
    made.remove()


@pytest.fixture
def made_of(node):
    made = Checkpoints(node)
    yield made
    made.remove()


class TestCheckpoint:
    def test_children_go_on_and_share_no_secret(self, node, made_of):
        sandbox = made_of.create(env={"KEPT": "yes", "CHANGED": "no"})
        _, session = node.command(sandbox, shell=COUNTER)
        made_of.counts(sandbox, session, 3)
        node.output(sandbox, "echo last > /home/user/last")  # not synchronised by anybody
        taken = made_of.take(sandbox)
        assert node.state(sandbox) == "running" and taken["memory"] is True and taken["size_bytes"] > 0
        made_of.counts(sandbox, session)
        seen = [node.output(sandbox, SECRETS).split()]
        for _ in range(2):
            made, record = made_of.child(taken, env={"CHANGED": "yes"})
            assert all(record["identity"][part] for part in ("entropy", "clock", "hostname", "machine_id", "tokens"))
            before = time.time()
            assert before - 0.05 < float(node.output(made, "date +%s.%N")) < time.time() + 0.05
            assert node.output(made, "cat /home/user/last; echo $KEPT $CHANGED") == "last\nyes yes\n"
            seen.append(node.output(made, SECRETS).split())
            mine, = made_of.processes(made, state="running")
            assert mine["session_id"] != session
            made_of.counts(made, mine["session_id"])
        for values in zip(*seen):
            assert len(set(values)) == 3, f"all different: {values}"

    def test_outlives_its_sandbox_and_a_child_has_all_of_it(self, node, made_of):
        sandbox = made_of.create()
        node.output(sandbox, "echo mine > /home/user/file")
        taken = made_of.take(sandbox)
        disk = made_of.take(sandbox, memory=False)
        has = (made_of.place() / disk["id"] / "snapshot/disk.img").stat().st_blocks * 512
        assert disk["size_bytes"] < min(has / 4, taken["size_bytes"]), "what it shares with its sandbox does not count"
        node.expect(200, "DELETE", f"/n1/checkpoints/{disk['id']}")
        node.delete(sandbox)
        node.restart()
        assert node.get(f"/n1/checkpoints/{taken['id']}").json == taken
        made, _ = made_of.child(taken)
        node.expect(200, "DELETE", f"/n1/checkpoints/{taken['id']}")
        assert made_of.left() == []
        node.suspend(made)
        node.wake(made)
        assert node.output(made, "cat /home/user/file") == "mine\n"
        refused = node.ask("PUT", f"/n1/sandboxes/{new_id('sb')}", {"checkpoint": taken["id"], "hostname": "x"})
        assert refused.status == 404 and refused.json["error"]["details"]["resource"] == "checkpoint"

    def test_disk_only(self, node, made_of):
        sandbox = made_of.create()
        node.command(sandbox, shell=COUNTER)
        node.output(sandbox, "head -c 3M /dev/urandom > /home/user/big; sha256sum /home/user/big > /home/user/sum")
        taken = made_of.take(sandbox, memory=False)
        made, record = made_of.child(taken)
        assert record["state"] == "running" and record["identity"]["hostname"] is True
        assert made_of.processes(made) == [], "it booted"
        assert "OK" in node.output(made, "sha256sum -c /home/user/sum")


class TestRollback:
    @pytest.mark.parametrize("state", ["running", "paused", "suspended"])
    def test_from(self, node, made_of, state):
        sandbox = made_of.create()
        node.output(sandbox, "echo then > /home/user/file")
        old, session = node.command(sandbox, shell=COUNTER)
        made_of.counts(sandbox, session, 3)
        taken = made_of.take(sandbox)
        at = len(made_of.lines(sandbox, session))
        node.output(sandbox, "echo now > /home/user/file")
        newer, _ = node.command(sandbox, argv=["sleep", "1000"])
        made_of.counts(sandbox, session)
        machine = node.output(sandbox, "cat /etc/machine-id")
        if state == "paused":
            node.expect(200, "POST", f"/n1/sandboxes/{sandbox}/pause")
        elif state == "suspended":
            node.suspend(sandbox)
        before = node.get(f"/n1/sandboxes/{sandbox}").json
        answer = made_of.rollback(sandbox, taken)
        assert answer["state"] == "running" and answer["identity"]["epoch"] > before["identity"]["epoch"]
        assert node.output(sandbox, "cat /home/user/file") == "then\n"
        assert node.output(sandbox, "cat /etc/machine-id") == machine, "it is the same machine"
        found = {p["id"]: p for p in made_of.processes(sandbox) if p["state"] != "exited"}
        assert found.pop(old)["state"] == "lost" and found.pop(newer)["state"] == "lost"
        (going,) = found.values()
        assert going["state"] == "running" and going["argv"] == ["/bin/sh", "-c", COUNTER] or COUNTER in going["argv"]
        assert len(made_of.lines(sandbox, going["session_id"])) >= at - 40
        made_of.counts(sandbox, going["session_id"])
        assert is_row(made_of.lines(sandbox, session)), "what was read is there"
        made_of.rollback(sandbox, taken)  # and once more
        assert node.output(sandbox, "cat /home/user/file") == "then\n"

    def test_a_checkpoint_of_another_is_refused(self, node, made_of):
        one, other = made_of.create(), made_of.create()
        taken = made_of.take(one)
        refused = node.ask("POST", f"/n1/sandboxes/{other}/rollback", {"checkpoint": taken["id"]})
        assert refused.status == 409 and refused.json["error"]["code"] == "failed_precondition"
        assert refused.json["sandbox"]["state"] == "running"
        assert node.output(other, "echo alive") == "alive\n"


class TestDamage:
    @pytest.mark.parametrize("name", ["snapshot/memory", "snapshot/state", "snapshot/snapshot.json"])
    def test_is_refused_before_a_vm_starts(self, node, made_of, name):
        sandbox = made_of.create()
        _, session = node.command(sandbox, shell=COUNTER)
        made_of.counts(sandbox, session, 3)
        taken = made_of.take(sandbox)
        path = made_of.place() / taken["id"] / name
        good = path.read_bytes()
        bad = bytearray(good)
        bad[len(bad) // 2] ^= 1
        for content in (bytes(bad), good[:-1]):
            path.write_bytes(content)
            node.wait_full()  # or a pool starts one
            slots = set(node.installation.vmms())
            refused = node.ask("POST", f"/n1/sandboxes/{sandbox}/rollback", {"checkpoint": taken["id"]})
            assert refused.status == 500 and "damaged" in refused.json["error"]["message"], refused.body
            assert refused.json["sandbox"]["state"] == "running"
            made_of.counts(sandbox, session, 3)
            fresh = new_id("sb")
            refused = node.ask("PUT", f"/n1/sandboxes/{fresh}", {"checkpoint": taken["id"], "hostname": "x"})
            assert refused.status == 500 and "damaged" in refused.json["error"]["message"], refused.body
            assert not node.folder(fresh).exists() and node.get(f"/n1/sandboxes/{fresh}").status == 404
            assert not set(node.installation.vmms()) - slots, "no VM was started for it"
        path.write_bytes(good)
        made_of.rollback(sandbox, taken)

    def test_a_damaged_record_is_shown_and_can_be_removed(self, node, made_of):
        taken = made_of.take(made_of.create())
        path = made_of.place() / taken["id"] / "checkpoint.json"
        path.write_text(path.read_text().replace('"memory_mib": 5', '"memory_mib": 6').replace('"memory_mib":5', '"memory_mib":6'))
        node.restart()
        assert node.get(f"/n1/checkpoints/{taken['id']}").json["state"] == "damaged"
        refused = node.ask("PUT", f"/n1/sandboxes/{new_id('sb')}", {"checkpoint": taken["id"], "hostname": "x"})
        assert refused.status == 500 and "damaged" in refused.json["error"]["message"]

    @pytest.mark.parametrize("memory", [True, False])
    def test_a_full_disk_leaves_it_running(self, node, made_of, memory):
        sandbox = made_of.create()
        _, session = node.command(sandbox, shell=COUNTER)
        made_of.counts(sandbox, session, 3)
        volume = node.installation.data / "volume"
        filler = volume / "filler"
        free = os.statvfs(volume).f_bavail * os.statvfs(volume).f_frsize
        subprocess.run(["fallocate", "-l", str(free - 40 * 1048576), str(filler)], check=True)
        try:
            refused = node.ask("PUT", f"/n1/checkpoints/{new_id('ck')}", {"sandbox": sandbox, "memory": memory})
            assert refused.status == 507 and refused.json["error"]["code"] == "storage_full", refused.body
        finally:
            filler.unlink()
        made_of.counts(sandbox, session)
        poll.until(lambda: made_of.left() == [], 30, "nothing is left")
        assert node.get("/n1/checkpoints").json["items"] == []

    def test_bad_input(self, node, made_of):
        sandbox = made_of.create()
        ck = new_id("ck")
        for body, status in (({}, 400), ({"sandbox": new_id("sb")}, 404), ({"sandbox": sandbox, "memory": 1}, 400),
                             ({"sandbox": sandbox, "more": 1}, 400)):
            assert node.ask("PUT", f"/n1/checkpoints/{ck}", body).status == status
        assert node.ask("PUT", "/n1/checkpoints/nothing", {"sandbox": sandbox}).status == 400
        assert node.get(f"/n1/checkpoints/{ck}").status == 404
        node.expect(200, "DELETE", f"/n1/checkpoints/{ck}")
        for more in ({"template": "base"}, {"memory_mib": 512}, {"files": [{"path": "a", "text": "b"}]}):
            refused = node.ask("PUT", f"/n1/sandboxes/{new_id('sb')}", {"checkpoint": ck, "hostname": "x", **more})
            assert refused.status == 400, refused.body
        assert node.ask("POST", f"/n1/sandboxes/{sandbox}/rollback", {"checkpoint": ck}).status == 404
