"""kill -9 of space-node, space-api and VMMs at every step of every verb.

The steps (src/base/step.h: each record that the node makes durable or takes away, each commit of the store) are
those that the running daemons pass: each verb is done twice undisturbed for the list, and then once for
each step with a death there. Afterwards the request, repeated as docs/api.md says, has a definite answer, the state
is one that stays, what was acknowledged is there, and nothing is left over. STEPS_ROUND=short takes one step of
each verb; STEPS_SEED chooses it."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import threading

import pytest

from harness import machine, poll
from harness.installation import Installation
from harness.patient import PATIENCE_SECONDS, Patient
from harness.steps import Steps

IS_SHORT = os.environ.get("STEPS_ROUND", "long") == "short"
SEED = int(os.environ.get("STEPS_SEED", str(random.SystemRandom().randrange(2**32))))
ATTEMPTS = 4
STABLE = ("running", "paused", "suspended", "error")
COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
FILE = "/home/user/file"
WAIT = {"wait": 60}


class World:
    """An installation whose daemons tell their steps, and what is done with it all the time."""

    def __init__(self):
        self.installation = Installation("stp", uid_first=1_400_000, volume_gib=8, node__warm_pools="base=1",
                                         node__prepared_pool=1)
        self.installation.prepare()
        self.steps = Steps(self.installation)
        self.installation.up()
        self.installation.wait_warm()
        self.patient = Patient(self.installation)
        self.volume = self.installation.data / "volume"
        self.numbers = itertools.count(1)
        self.hit, self.wanted = 0, 0

    def ask(self, status, method, path, body=None, **more):
        answer = self.patient.ask(method, path, body, **more)
        assert answer.status == status, f"{method} {path}: {answer}"
        return answer.json if answer.body else None

    # ---- sandboxes ----
    def create(self, **body):
        body = body if "checkpoint_id" in body else {"template": "base", "memory_mib": 512, **body}
        return self.ask(201, "POST", "/v1/sandboxes", body, query={"wait": 180})["sandbox"]["id"]

    def state(self, sandbox):
        return self.ask(200, "GET", f"/v1/sandboxes/{sandbox}")["state"]

    def settled(self, sandbox):
        return poll.until(lambda: (lambda s: s in STABLE and s)(self.state(sandbox)), 90, "a state that stays", every=0.05)

    def output(self, sandbox, shell):
        result = self.ask(200, "POST", f"/v1/sandboxes/{sandbox}/run", {"shell": shell})
        assert result["exit_code"] == 0, result
        return result["stdout"]

    def change(self, sandbox, verb):
        return self.ask(200, "POST", f"/v1/sandboxes/{sandbox}/{verb}", query=WAIT)

    def delete(self, sandbox):
        self.ask(200, "DELETE", f"/v1/sandboxes/{sandbox}", query=WAIT)

    def take(self, sandbox):
        return self.ask(201, "POST", f"/v1/sandboxes/{sandbox}/checkpoints", {}, query=WAIT)["operation"]["result"]["id"]

    def forget(self, checkpoint):
        self.ask(200, "DELETE", f"/v1/checkpoints/{checkpoint}")

    def lines(self, session):
        data = self.patient.ask("GET", f"/v1/sessions/{session}/output", query={"stream": "stdout"}).body
        return data[:data.rfind(b"\n") + 1].decode().split()

    def counts(self, session):
        end = len(self.lines(session))
        poll.until(lambda: len(self.lines(session)) > end + 3, 90, "it counts on")
        assert (found := self.lines(session)) == [str(i) for i in range(1, len(found) + 1)], "not a line lost or twice"

    def on_disk(self, sandbox):
        """What the file holds on the disk of one that is in error: without a guest."""
        folder = self.volume / "sandboxes" / sandbox
        disk = next(p for p in (folder / "disk.img", folder / "suspended/disk.img") if p.exists())
        copy = self.installation.top / "copy.img"
        shutil.copy(disk, copy)
        subprocess.run(["e2fsck", "-fy", str(copy)], capture_output=True, check=False)
        return machine.output("debugfs", "-R", f"cat {FILE}", str(copy))

    def vmm(self, sandbox):
        """Its VMM, by the disk that it has open, or as the journal says; None: it has none."""
        try:
            return self.installation.vmm_of(sandbox)
        except (AssertionError, FileNotFoundError):
            pass
        try:
            record = json.loads((self.volume / "sandboxes" / sandbox / "journal.json").read_text())
        except (OSError, ValueError):
            return None
        pid = record.get("vm", {}).get("pid")
        return pid if pid in self.installation.vmms() else None

    def survives(self, sandbox, dead):
        """Once the end of its VMM is known: the state that stays, which is error unless it had no need of that one."""
        def known():
            state = self.state(sandbox)
            return state in ("error", "suspended") and state or (
                state in STABLE and self.vmm(sandbox) not in (None, dead) and state)
        return poll.until(known, 90, "the end of the VMM is known", every=0.05)

    def operations(self):
        return [o for s in ("pending", "running")
                for o in self.ask(200, "GET", "/v1/operations", query={"state": s})["items"]]

    def nothing_is_left_over(self):
        poll.until(lambda: not self.operations(), 90, "no operation is open")
        known = {s["id"]: s["state"] for s in self.ask(200, "GET", "/v1/sandboxes", query={"limit": 1000})["items"]}
        for checkpoint in (self.volume / "checkpoints").iterdir():
            self.ask(200, "GET", f"/v1/checkpoints/{checkpoint.name}")

        def is_clean():
            half = [p for p in self.volume.glob("sandboxes/*/*") if p.name.endswith((".new", ".old", ".next"))]
            report = self.installation.node_report()
            warm = sum(p["warm"] for p in report["pools"])
            living = sum(state in ("running", "paused") for state in known.values())
            return ({p.name for p in (self.volume / "sandboxes").iterdir()} == set(known) and not half
                    and not any(p["filling"] for p in report["pools"])
                    and len(self.installation.vmms()) == warm + report["prepared"] + living)
        poll.until(is_clean, 120, "nothing is left over", every=0.1)


@pytest.fixture(scope="module")
def world():
    made = World()
    yield made
    made.patient.close()
    made.installation.remove()
    assert not made.installation.leaks()


class Verb:
    """One of them: what it needs, what is asked, and what must be true afterwards."""
    name = None
    state = "running"  # of the sandbox before
    after = None       # and when it succeeded
    has_vmm = True     # there is one to kill

    def __init__(self, world):
        self.world = world
        self.sandbox = self.session = self.word = None
        self.dead = None  # the VMM that was killed

    def prepare(self):
        """A sandbox that counts, with a file that is acknowledged; the one of before, if it is well."""
        w = self.world
        if self.sandbox is None:
            self.sandbox = w.create()
            self.session = w.ask(201, "POST", f"/v1/sandboxes/{self.sandbox}/commands", {"shell": COUNTER})["session"]["id"]
        found = w.settled(self.sandbox)
        if found != "running":
            w.change(self.sandbox, "wake")
        self.word = f"word{next(w.numbers)}"
        w.output(self.sandbox, f"echo {self.word} > {FILE}; sync {FILE}")
        self.more()
        if self.state != "running":
            w.change(self.sandbox, {"paused": "pause", "suspended": "suspend"}[self.state])

    def more(self):
        pass

    def act(self, ask):
        return ask("POST", f"/v1/sandboxes/{self.sandbox}/{self.name}", query=WAIT)

    def check(self, answer, victim):
        w = self.world
        state = w.survives(self.sandbox, self.dead) if victim == "vmm" else w.settled(self.sandbox)
        if victim != "vmm":
            assert answer.status in self.statuses(victim), answer
            assert state == self.after, (state, answer)
        if state == "error":
            assert w.on_disk(self.sandbox) == f"{self.expected()}\n"
            self.drop()
            return
        if state != "running":
            w.change(self.sandbox, "wake")
        assert w.output(self.sandbox, f"cat {FILE}") == f"{self.expected()}\n", "what was acknowledged is there"
        self.goes_on()

    def statuses(self, victim):
        return 200, 201

    def expected(self):
        return self.word

    def goes_on(self):
        self.world.counts(self.session)

    def drop(self):
        if self.sandbox is not None:
            self.world.delete(self.sandbox)
        self.sandbox = self.session = None


class Pause(Verb):
    name, after = "pause", "paused"


class Unpause(Verb):
    name, state, after = "wake", "paused", "running"


class Suspend(Verb):
    name, after = "suspend", "suspended"


class Wake(Verb):
    name, state, after = "wake", "suspended", "running"


class Create(Verb):
    """And what a create makes is deleted at once."""
    name = "create"

    def prepare(self):
        self.before = self.known()

    def known(self):
        return {p.name for p in (self.world.volume / "sandboxes").iterdir()}

    def act(self, ask):
        return ask("POST", "/v1/sandboxes", {"template": "base", "metadata": {"of": "steps"}}, query=WAIT)

    def made(self):
        """While it is being made."""
        new = sorted(self.known() - self.before)
        return new[0] if new else None

    def check(self, answer, victim):
        w = self.world
        if victim != "vmm":
            assert answer.status == 201, answer
        for item in w.ask(200, "GET", "/v1/sandboxes", query={"metadata.of": "steps"})["items"]:
            state = w.survives(item["id"], self.dead) if victim == "vmm" else w.settled(item["id"])
            assert state == "running" or victim == "vmm", state
            if state == "running":
                assert w.output(item["id"], self.question()) == self.expected()
            w.delete(item["id"])

    def question(self):
        return "echo alive"

    def expected(self):
        return "alive\n"

    def drop(self):
        pass


class CreateFromCheckpoint(Create):
    name = "create from checkpoint"
    checkpoint = None

    def prepare(self):
        w = self.world
        if self.checkpoint is None:
            source = w.create()
            w.output(source, f"echo then > {FILE}; sync")
            self.checkpoint = w.take(source)
            w.delete(source)
        super().prepare()

    def act(self, ask):
        return ask("POST", "/v1/sandboxes", {"checkpoint_id": self.checkpoint, "metadata": {"of": "steps"}}, query=WAIT)

    def question(self):
        return f"cat {FILE}"

    def expected(self):
        return "then\n"

    def drop(self):
        self.world.forget(self.checkpoint)


class Run(Create):
    """One command in a sandbox that goes with it. A command is never begun twice, so that a death may cost it: then
    that is said."""
    name = "run"

    def act(self, ask):
        return ask("POST", "/v1/run", {"template": "base", "shell": "echo out"})

    def check(self, answer, victim):
        if answer.status == 200:
            assert answer.json["stdout"] == "out\n" and answer.json["exit_code"] == 0, answer
        else:
            assert answer.json["error"]["code"] in ("conflict", "failed_precondition", "internal", "not_found"), answer
            self.world.lost += 1


class Checkpoint(Verb):
    name, after = "checkpoint", "running"

    def act(self, ask):
        return ask("POST", f"/v1/sandboxes/{self.sandbox}/checkpoints", {"name": self.word}, query=WAIT)

    def check(self, answer, victim):
        w = self.world
        source = self.sandbox
        kept = [c["id"] for c in w.ask(200, "GET", f"/v1/sandboxes/{source}/checkpoints")["items"]]
        super().check(answer, victim)
        assert answer.status != 201 or kept == [answer.json["operation"]["result"]["id"]], (kept, answer)
        for checkpoint in kept:
            if answer.status == 201:
                child = w.create(checkpoint_id=checkpoint)
                assert w.output(child, f"cat {FILE}") == f"{self.word}\n"
                w.delete(child)
            w.forget(checkpoint)


class DeleteCheckpoint(Checkpoint):
    name = "delete checkpoint"

    def more(self):
        self.checkpoint = self.world.take(self.sandbox)

    def act(self, ask):
        return ask("DELETE", f"/v1/checkpoints/{self.checkpoint}")

    def statuses(self, victim):
        """The deletion may be carried out when space-api dies with the answer."""
        return (200, 404) if victim == "space-api" else (200,)

    def check(self, answer, victim):
        Verb.check(self, answer, victim)
        assert self.world.patient.ask("GET", f"/v1/checkpoints/{self.checkpoint}").status in (404, 410)


class Fork(Verb):
    """Each child that was promised goes on where the source was; no other is there."""
    name, after = "fork", "running"

    def act(self, ask):
        return ask("POST", f"/v1/sandboxes/{self.sandbox}/fork", {"count": 2, "metadata": {"of": self.word}},
                   query={"wait": 120})

    def check(self, answer, victim):
        w = self.world
        children = {s["id"] for s in w.ask(200, "GET", "/v1/sandboxes", query={"metadata.of": self.word})["items"]}
        super().check(answer, victim)
        assert answer.status == 201 or not children, (children, answer)
        if answer.status == 201:
            told = answer.json["operation"]["result"]["children"]
            assert victim == "vmm" or not any(child["error"] for child in told), told
            assert {child["sandbox_id"] for child in told if not child["error"]} == children, (children, told)
        for child in children:
            assert w.settled(child) == "running"
            assert w.output(child, f"cat {FILE}") == f"{self.word}\n"
            going, = [p for p in w.ask(200, "GET", f"/v1/sandboxes/{child}/processes")["items"]
                      if COUNTER in p["argv"] and p["state"] == "running"]
            w.counts(going["session_id"])
            w.delete(child)


class ForkSuspended(Fork):
    state, after = "suspended", "suspended"


class MakeTemplate(Verb):
    """Of a checkpoint: once, and whole, whatever dies meanwhile."""
    name, memory, has_vmm = "make template", True, False
    checkpoint = template = None

    def prepare(self):
        w = self.world
        if self.checkpoint is None:
            source = w.create()
            w.output(source, f"echo then > {FILE}; sync")
            self.checkpoint = w.ask(201, "POST", f"/v1/sandboxes/{source}/checkpoints", {"memory": self.memory},
                                    query=WAIT)["operation"]["result"]["id"]
            w.delete(source)
        self.template = f"steps-{next(w.numbers)}"

    def act(self, ask):
        return ask("POST", "/v1/templates", {"name": self.template, "checkpoint_id": self.checkpoint}, query={"wait": 120})

    def check(self, answer, victim):
        w = self.world
        assert answer.status == 201, answer
        made, = w.ask(200, "GET", "/v1/templates", query={"name": self.template})["items"]
        assert made == answer.json["template"] and made["memory"] is self.memory and made["current"], made
        child = w.create(template=self.template)
        assert w.output(child, f"cat {FILE}") == "then\n"
        w.delete(child)
        w.ask(200, "DELETE", f"/v1/templates/{self.template}")
        self.is_gone()

    def is_gone(self):
        """With its files."""
        volume = self.world.volume
        assert self.world.patient.ask("GET", f"/v1/templates/{self.template}").status == 404
        poll.until(lambda: not (volume / "templates" / self.template).exists() and not list((volume / "checkpoints").glob("tm*")),
                   60, "its files go")

    def drop(self):
        self.world.forget(self.checkpoint)


class MakeTemplateOfDisk(MakeTemplate):
    memory = False


class DeleteTemplate(MakeTemplate):
    name = "delete template"

    def prepare(self):
        super().prepare()
        super().act(self.world.patient.ask)

    def act(self, ask):
        return ask("DELETE", f"/v1/templates/{self.template}")

    def check(self, answer, victim):
        assert answer.status in ((200, 404) if victim == "space-api" else (200,)), answer
        self.is_gone()


class Rollback(Verb):
    name, after = "rollback", "running"

    def more(self):
        w = self.world
        self.then = self.word
        self.checkpoint = w.take(self.sandbox)
        self.word = f"word{next(w.numbers)}"
        w.output(self.sandbox, f"echo {self.word} > {FILE}; sync {FILE}")

    def act(self, ask):
        return ask("POST", f"/v1/sandboxes/{self.sandbox}/rollback", {"checkpoint_id": self.checkpoint}, query=WAIT)

    def check(self, answer, victim):
        self.is_back = answer.status == 200
        super().check(answer, victim)
        self.world.forget(self.checkpoint)

    def expected(self):
        return self.then if self.is_back else self.word

    def goes_on(self):
        """In a session of its own, of the process as it was."""
        going, = [p for p in self.world.ask(200, "GET", f"/v1/sandboxes/{self.sandbox}/processes")["items"]
                  if COUNTER in p["argv"] and p["state"] == "running"]
        self.session = going["session_id"]
        self.world.counts(self.session)


class RollbackSuspended(Rollback):
    state = "suspended"


class Delete(Verb):
    name = "delete"

    def act(self, ask):
        return ask("DELETE", f"/v1/sandboxes/{self.sandbox}", query=WAIT)

    def check(self, answer, victim):
        assert answer.status in (200, 404), answer
        assert self.world.patient.ask("GET", f"/v1/sandboxes/{self.sandbox}").status in (404, 410)
        self.sandbox = None


class Patch(Verb):
    name, after = "patch", "running"

    def act(self, ask):
        return ask("PATCH", f"/v1/sandboxes/{self.sandbox}", {"metadata": {"of": self.word}, "env": {"WORD": self.word}})

    def check(self, answer, victim):
        super().check(answer, victim)
        if victim != "vmm":
            assert self.world.ask(200, "GET", f"/v1/sandboxes/{self.sandbox}")["metadata"] == {"of": self.word}
            assert self.world.output(self.sandbox, "echo $WORD") == f"{self.word}\n"


class Drain(Verb):
    name, after = "drain", "suspended"

    def act(self, ask):
        ask("POST", "/v1/nodes/local/drain", query={"wait": 0})

        def is_drained():
            answer = ask("GET", "/v1/nodes/local", query={"wait": 5})
            return answer if answer.json["state"] == "drained" else None
        return poll.until(is_drained, PATIENCE_SECONDS, "the node is drained")

    def check(self, answer, victim):
        self.world.ask(200, "POST", "/v1/nodes/local/undrain")
        super().check(answer, victim)


class Undrain(Drain):
    name = "undrain"

    def prepare(self):
        super().prepare()
        Drain.act(self, self.world.patient.ask)

    def act(self, ask):
        return ask("POST", "/v1/nodes/local/undrain")

    def check(self, answer, victim):
        assert self.world.ask(200, "GET", "/v1/nodes/local")["state"] == "ready"
        super().check(answer, victim)


VERBS = [Create, Run, Pause, Unpause, Suspend, Wake, Checkpoint, CreateFromCheckpoint, Fork, ForkSuspended, MakeTemplate,
         MakeTemplateOfDisk, DeleteTemplate, Rollback, RollbackSuspended, DeleteCheckpoint, Patch, Drain, Undrain, Delete]


class Asking(threading.Thread):
    """The verb, by a client of its own that repeats what has no definite answer."""

    def __init__(self, verb):
        super().__init__()
        self.verb, self.answer, self.problem = verb, None, None

    def run(self):
        patient = Patient(self.verb.world.installation)
        try:
            self.answer = self.verb.act(patient.ask)
        except Exception as error:  # a thread's failure must reach the test
            self.problem = error
        finally:
            patient.close()


def trace(world, verb):
    """The steps of the verb: those that it passes each time."""
    found = None
    for _ in range(2):
        verb.prepare()
        world.steps.since(world.steps.mark())  # what it left to do
        mark = world.steps.mark()
        answer = verb.act(world.patient.ask)
        seen = world.steps.since(mark)
        found = seen if found is None else found & seen
        verb.check(answer, None)
    return sorted((program, name, count + 1) for (program, name), n in found.items() for count in range(n))


def strike(world, verb, victim, program):
    """Kills it where `program` stands; False: there is nothing to kill."""
    if victim == "vmm":
        sandbox = verb.made() if isinstance(verb, Create) else verb.sandbox
        pid = world.vmm(sandbox) if sandbox else None
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        verb.dead = pid
        world.steps.release(program)
        return pid is not None
    world.installation.kill_daemon(victim)
    world.steps.release(program)
    return True


def hit(world, verb, step, victim):
    """Whether the step was reached, in one of a few attempts."""
    program, name, count = step
    for _ in range(ATTEMPTS):
        verb.prepare()
        world.steps.since(world.steps.mark())
        world.steps.arm(program, name, count)
        asking = Asking(verb)
        asking.start()
        # What is done behind the answer is part of it.
        try:
            poll.until(lambda: world.steps.is_reached(program), 10 if asking.is_alive() else 3, name, every=0.002)
            is_there = True
        except poll.Timeout:
            is_there = world.steps.is_reached(program)
        if not is_there:
            world.steps.release(program)
        elif not strike(world, verb, victim, program):
            victim = None  # there was none at this step
        asking.join(2 * PATIENCE_SECONDS)
        assert not asking.is_alive(), "a client hangs"
        if asking.problem is not None:
            raise asking.problem
        world.installation.wait_ready()
        try:
            verb.check(asking.answer, victim if is_there else None)
        finally:
            verb.dead = None
        if is_there:
            return True
    return False


@pytest.mark.parametrize("kind", VERBS, ids=lambda kind: kind.__name__)
def test_each_step(world, kind):
    verb = kind(world)
    dice = random.Random(f"{SEED}:{kind.__name__}")
    world.lost = 0
    steps = trace(world, verb)
    assert steps, "it has steps"
    deaths = [(step, victim) for step in steps for victim in
              ((step[0], "vmm") if step[0] == "space-node" and kind.has_vmm else (step[0],))]
    if IS_SHORT:
        deaths = [dice.choice(deaths)]
    missed, failed = [], []
    for step, victim in deaths:
        try:
            if not hit(world, verb, step, victim):
                missed.append((step, victim))
        except (AssertionError, OSError) as error:
            failed.append((step, victim, str(error)[:600]))
            print(f"FAILED {kind.__name__} {victim} at {step}: {str(error)[:600]}", flush=True)
            verb = kind(world)
            world.installation.wait_ready()
    verb.drop()
    count = len(deaths) - len(missed)
    world.hit, world.wanted = world.hit + count, world.wanted + len(deaths)
    print(f"{kind.__name__}: {count} of {len(deaths)} hit, {len(steps)} steps, seed {SEED}, {world.lost} commands lost",
          flush=True)
    assert not failed, failed
    assert not missed, f"never reached: {missed}"
    world.nothing_is_left_over()


def test_all_were_hit(world):
    print(f"steps hit: {world.hit} of {world.wanted}")
    assert world.hit == world.wanted > 0
