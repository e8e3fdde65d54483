"""kill -9 of space-api and of space-node at every step of a fork: it ends in a definite state, each child runs on
or is said to have failed, and nothing else is left: no checkpoint, no half-made file, no sandbox that nobody knows.
With CAMPAIGN_ROUNDS up to 4 only sources that run are forked."""

import json
import os
import sqlite3

import pytest

from harness import poll
from harness.checkpoints import COUNTER, is_row
from harness.installation import Installation
from harness.patient import Patient

CHILDREN = 3
DAEMONS = ("space-api", "space-node")
SOURCES = {"running": None, "paused": "pause", "suspended": "suspend"}
if int(os.environ.get("CAMPAIGN_ROUNDS", "200")) <= 4:
    SOURCES = {"running": None}
hit = []


class Fork:
    """One fork, and what of it can be seen from outside."""

    def __init__(self, installation, sandbox):
        self.volume = installation.data / "volume"
        self.sandbox = sandbox
        self.store = sqlite3.connect(f"file:{installation.data}/store/space.db?mode=ro", uri=True)

    def row(self, columns, kind="fork"):
        return self.store.execute(f"SELECT {columns} FROM operations WHERE sandbox_id = ? AND kind = ? ORDER BY seq DESC",
                                  (self.sandbox, kind)).fetchone()

    def checkpoint(self):
        found = self.row("checkpoint_id")
        return found and self.store.execute("SELECT state FROM checkpoints WHERE id = ?", found).fetchone()

    def children(self):
        return [id for id, in self.store.execute("SELECT id FROM sandboxes WHERE parent_id = ? AND deleted_at = 0", (self.sandbox,))]

    def count(self, state):
        return self.store.execute("SELECT count(*) FROM sandboxes WHERE parent_id = ? AND state = ?", (self.sandbox, state)).fetchone()[0]

    def files(self, pattern):
        return list(self.volume.glob(pattern))

    def journals(self, state):
        found = 0
        for path in self.files("sandboxes/*/journal.json"):
            try:
                found += path.parent.name in self.children() and json.loads(path.read_text())["state"] == state
            except (OSError, ValueError):
                pass
        return found

    def has_ended(self):
        found = self.row("finished_at")
        return found is not None and found[0] != 0

    def is_at(self, step):
        """Whether it has come so far; a step that is over too soon to be seen counts as come to."""
        return self.has_ended() or {
            "recorded": lambda: self.row("id") is not None,
            "capturing": lambda: self.files("checkpoints/*.new"),
            "captured": lambda: self.files("checkpoints/*/snapshot") or self.count("running"),
            "whole": lambda: self.files("checkpoints/*/checkpoint.json") or self.count("running"),
            "forking": lambda: self.checkpoint() == ("forking",),
            "creating": lambda: self.journals("creating") or self.count("running"),
            "copied": lambda: any((self.volume / "sandboxes" / c / "suspended").exists() for c in self.children()) or self.count("running"),
            "spawned": lambda: any((self.volume / "sandboxes" / c / "disk.img").exists() for c in self.children()) or self.count("running"),
            "first": lambda: self.count("running"),
            "ended": lambda: False,
            "removed": lambda: False,
        }[step]() or False


STEPS = ("recorded", "capturing", "captured", "whole", "forking", "creating", "copied", "spawned", "first", "ended", "removed")


def lines(patient, session):
    data = patient.ask("GET", f"/v1/sessions/{session}/output", query={"stream": "stdout"}).body
    return data[:data.rfind(b"\n") + 1].decode().split()


def counts(patient, sandbox):
    """Its counter goes on, not a line lost or twice."""
    found = patient.ask("GET", f"/v1/sandboxes/{sandbox}/processes").json["items"]
    session, = (p["session_id"] for p in found if COUNTER in p["argv"] and p["state"] == "running")
    end = len(lines(patient, session))
    poll.until(lambda: len(lines(patient, session)) > end + 5, 60, "the counter goes on")
    assert is_row(lines(patient, session))


@pytest.fixture(scope="module")
def source(installation):
    made = installation.api.create(memory_mib=256)["id"]
    installation.api.start(made, COUNTER)
    installation.api.close()
    yield made
    installation.api.delete(made)


@pytest.mark.parametrize("daemon", DAEMONS)
@pytest.mark.parametrize("state", SOURCES)
@pytest.mark.parametrize("step", STEPS)
def test_kill_at_each_step_of_a_fork(installation, source, daemon, state, step):
    patient, fork = Patient(installation), Fork(installation, source)
    before = {s["id"] for s in patient.ask("GET", "/v1/sandboxes", query={"limit": 1000}).json["items"]}
    if SOURCES[state]:
        assert patient.ask("POST", f"/v1/sandboxes/{source}/{SOURCES[state]}", query={"wait": 60}).status == 200
    asked = installation.api.ask("POST", f"/v1/sandboxes/{source}/fork", {"count": CHILDREN}, query={"wait": 0})
    assert asked.status == 202, asked
    operation = asked.json["operation"]["id"]
    poll.until(lambda: fork.is_at(step), 120, step, every=0.0005)
    if step == "removed":
        poll.until(lambda: fork.checkpoint() is None, 60, step, every=0.0005)
    early = step not in ("ended", "removed") and fork.has_ended()
    installation.kill_daemon(daemon)
    installation.wait_ready()

    end = poll.until(lambda: (lambda o: o["finished_at"] and o)(
        patient.ask("GET", f"/v1/operations/{operation}", query={"wait": 60}).json), 180, "it ends")
    assert end["state"] == "succeeded", end
    children = end["result"]["children"]
    assert len(children) == CHILDREN and [child["error"] for child in children] == [None] * CHILDREN, children
    made = {child["sandbox_id"] for child in children}
    now = {s["id"] for s in patient.ask("GET", "/v1/sandboxes", query={"limit": 1000}).json["items"]}
    assert now == before | made, "no sandbox that nobody knows"
    assert patient.ask("GET", f"/v1/sandboxes/{source}").json["state"] == state
    poll.until(lambda: fork.checkpoint() is None and not fork.files("checkpoints/*"), 60, "no checkpoint is left")
    assert {path.name for path in fork.files("sandboxes/*")} == now
    assert fork.store.execute("SELECT count(*) FROM fork_children").fetchone() == (0,)
    if SOURCES[state]:
        assert patient.ask("POST", f"/v1/sandboxes/{source}/wake", query={"wait": 60}).status == 200
    for sandbox in (source, *made):
        counts(patient, sandbox)
    for sandbox in made:
        assert patient.ask("DELETE", f"/v1/sandboxes/{sandbox}", query={"wait": 60}).status in (200, 404)
    fork.store.close()
    patient.close()
    hit.append((daemon, state, step, early))


def test_a_node_that_has_no_room_for_all():
    """As many children as fit; the others say why, and leave nothing."""
    made = Installation("spfc", uid_first=1_380_000, volume_gib=6, node__max_sandboxes=4, node__prepared_pool=1)
    made.prepare()
    try:
        made.up()
        source = made.api.create()["id"]
        made.api.start(source, COUNTER)
        answer = made.api.post(f"/v1/sandboxes/{source}/fork", {"count": 6}, status=201, query={"wait": 120})
        children = answer["operation"]["result"]["children"]
        there = [child["sandbox_id"] for child in children if child["error"] is None]
        assert len(there) == 3 and {s["id"] for s in made.api.get("/v1/sandboxes")["items"]} == {source, *there}
        for child in children:
            if child["error"]:
                assert child["error"]["code"] == "capacity_unavailable" and child["error"]["retryable"] and child["sandbox"] is None
        patient = Patient(made)
        for sandbox in there:
            counts(patient, sandbox)
        refused = made.api.ask("POST", f"/v1/sandboxes/{source}/fork", {"count": 2}, query={"wait": 120})
        assert refused.status == 503 and refused.code == "capacity_unavailable", refused
        end = made.api.get(f"/v1/operations/{refused.details['operation_id']}")
        assert end["state"] == "failed" and len(end["result"]["children"]) == 2
        patient.close()
    finally:
        made.remove()


def test_each_step_was_hit():
    for daemon in DAEMONS:
        mine = [step for name, _, step, early in hit if name == daemon and not early]
        print(f"\n{daemon}: {len(mine)} of {len(STEPS) * len(SOURCES)} kills at their step: {sorted(set(mine), key=STEPS.index)}")
        assert set(mine) == set(STEPS)
