"""Checkpoints on the node, at length: a terminal and an open transaction that go on, paused and suspended sources,
kill -9 at every step of a checkpoint and of a rollback."""

import json
import signal
import threading
import time

import pytest

from harness import poll
from harness.checkpoints import COUNTER, SQLITE, Checkpoints, is_row
from harness.node_alone import Node, new_id

SECRETS = ("cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id /etc/machine-id /etc/hostname; "
           "python3 -c 'import secrets; print(secrets.token_hex(16))'")


@pytest.fixture(scope="module")
def node():
    made = Node("ckc", uid_first=1_340_000, node__warm_pools="base=1", node__prepared_pool=1)
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
        node.output(sandbox, "echo before > /home/user/file")
        _, counting = node.command(sandbox, shell=COUNTER)
        repl, talking = node.command(sandbox, argv=["python3", "-q"], tty={"cols": 80, "rows": 24, "term": "dumb"})
        node.write(sandbox, repl, b"kept = 6 * 7\n")
        poll.until(lambda: node.spool(sandbox, talking).count(b">>> ") >= 2, 120, "the terminal has it")
        base, opened = node.command(sandbox, argv=["python3", "-c", SQLITE], stdin="open")
        poll.until(lambda: b"open" in node.spool(sandbox, opened), 120, "the transaction is open")
        node.output(sandbox, "echo last > /home/user/last")  # not synchronised by anybody
        made_of.counts(sandbox, counting)

        taken = made_of.take(sandbox)
        assert taken["memory"] is True and taken["sandbox_id"] == sandbox and taken["size_bytes"] > 0
        assert node.get(f"/n1/checkpoints/{taken['id']}").json == taken
        assert node.state(sandbox) == "running"
        at = len(made_of.lines(sandbox, counting))
        made_of.counts(sandbox, counting)
        before = time.time()
        assert before - 0.05 < float(node.output(sandbox, "date +%s.%N")) < time.time() + 0.05, "the clock of the source"
        again = node.expect(200, "PUT", f"/n1/checkpoints/{taken['id']}", {"sandbox": sandbox}).json
        assert again == taken, "the same id is the same checkpoint"
        node.output(sandbox, "echo after > /home/user/file")

        seen = [node.output(sandbox, SECRETS).split()]
        for _ in range(2):
            made, record = made_of.child(taken, env={"CHANGED": "yes"})
            identity = record["identity"]
            assert all(identity[part] for part in ("entropy", "clock", "hostname", "machine_id", "tokens"))
            before = time.time()
            assert before - 0.05 < float(node.output(made, "date +%s.%N")) < time.time() + 0.05
            assert node.output(made, "cat /home/user/file /home/user/last; echo $KEPT $CHANGED; hostname") == (
                f"before\nlast\nyes yes\nchild-{made[2:8]}\n")
            seen.append(node.output(made, SECRETS).split())
            mine = made_of.processes(made, state="running")
            assert len(mine) == 3 and {p["id"] for p in mine}.isdisjoint(
                p["id"] for p in made_of.processes(sandbox)), "under ids of their own"
            counter, = (p for p in mine if COUNTER in p["argv"])
            talk, = (p for p in mine if p["argv"] == ["python3", "-q"])
            transaction, = (p for p in mine if SQLITE in p["argv"])
            assert len(made_of.lines(made, counter["session_id"])) >= at - 40, "with the output so far"
            made_of.counts(made, counter["session_id"])
            node.write(made, talk["id"], b"print('kept', kept)\n")
            poll.until(lambda: b"kept 42" in node.spool(made, talk["session_id"]), 60, "the terminal goes on")
            node.write(made, transaction["id"], b"go\n")
            poll.until(lambda: b"kept 42" in node.spool(made, transaction["session_id"]), 60, "the transaction goes on")
        for values in zip(*seen):
            assert len(set(values)) == 3, f"all different: {values}"
        node.write(sandbox, base, b"go\n")
        poll.until(lambda: b"kept 42" in node.spool(sandbox, opened), 60, "and that of the source")
        made_of.counts(sandbox, counting)

    def test_disk_only(self, node, made_of):
        sandbox = made_of.create()
        node.command(sandbox, shell=COUNTER)
        node.output(sandbox, "head -c 3M /dev/urandom > /home/user/big; sha256sum /home/user/big > /home/user/sum")
        taken = made_of.take(sandbox, memory=False)
        assert taken["memory"] is False
        made, record = made_of.child(taken)
        assert record["state"] == "running" and record["identity"]["hostname"] is True
        assert made_of.processes(made) == [], "it booted"
        assert "OK" in node.output(made, "sha256sum -c /home/user/sum")
        assert node.output(made, "hostname") == f"child-{made[2:8]}\n"
        node.suspend(made)
        node.wake(made)
        assert "OK" in node.output(made, "sha256sum -c /home/user/sum")
        node.output(sandbox, "rm /home/user/big; sync")
        made_of.rollback(sandbox, taken)
        assert "OK" in node.output(sandbox, "sha256sum -c /home/user/sum")
        assert [p["state"] for p in made_of.processes(sandbox) if COUNTER in p["argv"]] == ["lost"]

    def test_of_paused_and_suspended_ones(self, node, made_of):
        sandbox = made_of.create()
        _, session = node.command(sandbox, shell=COUNTER)
        made_of.counts(sandbox, session, 3)
        node.expect(200, "POST", f"/n1/sandboxes/{sandbox}/pause")
        paused = made_of.take(sandbox)
        assert node.state(sandbox) == "paused"
        node.wake(sandbox)
        made_of.counts(sandbox, session)
        node.suspend(sandbox)
        suspended = made_of.take(sandbox)
        disk = made_of.take(sandbox, memory=False)
        assert node.state(sandbox) == "suspended" and disk["memory"] is False
        for taken in (paused, suspended):
            made, _ = made_of.child(taken)
            mine, = made_of.processes(made, state="running")
            made_of.counts(made, mine["session_id"])
        node.wake(sandbox)
        made_of.counts(sandbox, session)
        made, _ = made_of.child(disk)
        assert node.output(made, "echo booted") == "booted\n"


class TestRestarts:
    @pytest.mark.parametrize("step", ["pausing", "begun", "captured", "whole", "recorded", "placed"])
    def test_kill_at_each_step_of_a_checkpoint(self, node, made_of, step):
        """kill -9 when a step can be seen: the sandbox runs, and there is a whole checkpoint or none."""
        sandbox = made_of.create()
        _, session = node.command(sandbox, shell=COUNTER)
        made_of.counts(sandbox, session, 3)
        ck = new_id("ck")
        place = made_of.place()
        half = place / (ck + ".new")
        is_there = {
            "pausing": lambda: json.loads((node.folder(sandbox) / "journal.json").read_text())["state"] == "pausing",
            "begun": half.exists,
            "captured": lambda: (half / "snapshot.new/memory").exists() or (place / ck).exists(),
            "whole": lambda: (half / "snapshot").exists() or (place / ck).exists(),
            "recorded": lambda: (half / "checkpoint.json").exists() or (place / ck).exists(),
            "placed": (place / ck).exists,
        }[step]

        def ask():
            try:
                node.ask("PUT", f"/n1/checkpoints/{ck}", {"sandbox": sandbox})
            except OSError:
                pass

        asking = threading.Thread(target=ask)
        asking.start()
        poll.until(is_there, 60, step, every=0.0005)
        node.kill(signal.SIGKILL)
        asking.join()
        whole = (place / ck).exists()
        node.start()
        poll.until(lambda: node.state(sandbox) == "running", 60, "it runs", every=0.05)
        made_of.counts(sandbox, session)
        assert made_of.left() == ([ck] if whole else [])
        taken = node.expect(200, "PUT", f"/n1/checkpoints/{ck}", {"sandbox": sandbox}).json
        made, _ = made_of.child(taken)
        mine, = made_of.processes(made, state="running")
        made_of.counts(made, mine["session_id"])
        node.expect(200, "DELETE", f"/n1/checkpoints/{ck}")
        assert made_of.left() == []

    @pytest.mark.parametrize("state, step", [(state, step) for state in ("running", "suspended") for step in (
        "entered", "copying", "placed", "suspended", "waking", "moved", "running")])
    def test_kill_at_each_step_of_a_rollback(self, node, made_of, state, step):
        """kill -9 when a step can be seen: at the checkpoint or as it was, never between, and it can be woken."""
        sandbox = made_of.create()
        node.output(sandbox, "echo then > /home/user/file")
        _, session = node.command(sandbox, shell=COUNTER)
        made_of.counts(sandbox, session, 3)
        taken = made_of.take(sandbox)
        node.output(sandbox, "echo now > /home/user/file; sync")
        if state == "suspended":
            node.suspend(sandbox)
        place = node.folder(sandbox)
        into = place / ("suspended.new" if state == "running" else "rollback.new")

        def journal():
            return json.loads((place / "journal.json").read_text())["state"]

        first = "suspending" if state == "running" else "waking"
        is_there = {
            "entered": lambda: journal() == first,
            "copying": lambda: into.exists() or (place / "suspended/sessions").exists(),
            "placed": lambda: (place / "suspended/sessions").exists() or journal() == "running",
            "suspended": lambda: journal() == "suspended" or (state, journal()) == ("suspended", "running") or (place / "suspended/sessions").exists(),
            "waking": lambda: journal() == "waking",
            "moved": lambda: journal() != "suspending" and (place / "suspended").exists()
            and not (place / "suspended/sessions").exists() and (place / "disk.img").exists() or step == "running",
            "running": lambda: journal() == "running",
        }[step]

        def ask():
            try:
                node.ask("POST", f"/n1/sandboxes/{sandbox}/rollback", {"checkpoint": taken["id"]})
            except OSError:
                pass

        asking = threading.Thread(target=ask)
        asking.start()
        if step in ("entered", "copying", "waking", "moved", "running"):
            poll.until(lambda: journal() != state, 30, "it began", every=0.0005)
        poll.until(is_there, 60, step, every=0.0005)
        node.kill(signal.SIGKILL)
        asking.join()
        node.start()
        found = poll.until(lambda: (lambda s: s in ("running", "suspended") and s)(node.state(sandbox)), 60,
                           "a definite state", every=0.05)
        poll.until(lambda: not [p.name for p in place.iterdir() if p.name.endswith((".new", ".old"))
                                or p.name == "rollback"], 30, "nothing half-made is left")
        if found == "suspended":
            node.wake(sandbox)
        content = node.output(sandbox, "cat /home/user/file")
        assert content in ("then\n", "now\n")
        going, = made_of.processes(sandbox, state="running")
        assert (going["session_id"] == session) == (content == "now\n"), "processes are those of that moment"
        made_of.counts(sandbox, going["session_id"])
        assert is_row(made_of.lines(sandbox, session))
        made_of.rollback(sandbox, taken)
        assert node.output(sandbox, "cat /home/user/file") == "then\n"
        print(f"{state}/{step}: {found}, {content.strip()}")
