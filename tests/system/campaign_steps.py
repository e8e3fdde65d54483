"""kill -9 of space-node, space-api and VMMs at every step of every verb.

The steps (src/base/step.h: each record that the node makes durable or takes away, each commit of the store) are
those that the running daemons pass: each verb is done twice undisturbed for the list, and then once for
each step and each death there: of the program that stands at it, of the other daemon, and, at the node's, of each VMM
that has a part in it. Afterwards the request, repeated as docs/api.md says, has a definite answer, the state
is one that stays, what was acknowledged is there, and nothing is left over.

A death is `struck`, `vacant` (there was no such VMM at that step: nothing was killed), or `missed` (the step was not
reached). Steps that one of the two rounds alone passed are tried as well, and may be missed ("seldom").
STEPS_ROUND=short takes one death of each verb, the first that strikes, and no other daemon's; STEPS_SEED chooses it."""

import collections
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
ATTEMPTS, SELDOM_ATTEMPTS = 4, 2
OTHER = {"space-node": "space-api", "space-api": "space-node"}
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
        self.lost = 0  # commands of POST /v1/run
        self.results = collections.Counter()

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

    def take(self, sandbox, memory=True):
        return self.ask(201, "POST", f"/v1/sandboxes/{sandbox}/checkpoints", {"memory": memory},
                        query=WAIT)["operation"]["result"]["id"]

    def fail(self, sandbox):
        """Its VMM ends."""
        os.kill(self.vmm(sandbox), signal.SIGKILL)
        poll.until(lambda: self.state(sandbox) == "error", 60, "it is in error")

    def counters(self, sandbox):
        return [p for p in self.ask(200, "GET", f"/v1/sandboxes/{sandbox}/processes")["items"] if COUNTER in p["argv"]]

    def going(self, sandbox):
        """The session of the one that counts."""
        counter, = [p for p in self.counters(sandbox) if p["state"] == "running"]
        return counter["session_id"]

    def forget(self, checkpoint):
        self.ask(200, "DELETE", f"/v1/checkpoints/{checkpoint}")

    def forget_template(self, template):
        self.ask(200, "DELETE", f"/v1/templates/{template}")
        self.template_is_gone(template)

    def template_is_gone(self, template):
        """With its files."""
        assert self.patient.ask("GET", f"/v1/templates/{template}").status == 404
        poll.until(lambda: not (self.volume / "templates" / template).exists() and not list((self.volume / "checkpoints").glob("tm*")),
                   60, "its files go")

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

    def known(self):
        """Sandboxes that have files."""
        return {p.name for p in (self.volume / "sandboxes").iterdir()}

    def boots(self):
        """VMMs that boot for a template: its base has another name until it is complete."""
        return [pid for pid in self.installation.vmms() if b".new/ram" in machine.read(f"/proc/{pid}/maps")]

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
            return (self.known() == set(known) and not half
                    and not any(p["filling"] for p in report["pools"])
                    and len(self.installation.vmms()) == warm + report["prepared"] + living)
        poll.until(is_clean, 120, "nothing is left over", every=0.1)


@pytest.fixture(scope="module")
def world():
    made = World()
    yield made
    made.patient.close()
    made.installation.remove()


class Verb:
    """One of them: what it needs, what is asked, and what must be true afterwards."""
    name = None
    state = "running"  # of the sandbox before
    after = None       # and when it succeeded
    vmms = ("vmm",)    # that can be killed

    def __init__(self, world):
        self.world = world
        self.sandbox = self.session = self.word = None
        self.dead = self.dead_child = None  # the VMM that was killed, and whose

    def prepare(self):
        """A sandbox that counts, with a file that is acknowledged; the one of before, if it is well."""
        w = self.world
        if self.sandbox is None:
            self.sandbox = w.create()
        if w.settled(self.sandbox) != "running":
            w.change(self.sandbox, "wake")
        if self.session is None:
            self.session = w.ask(201, "POST", f"/v1/sandboxes/{self.sandbox}/commands", {"shell": COUNTER})["session"]["id"]
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

    def is_lost(self):
        """What ran before a boot, and the next round starts it again."""
        assert {p["state"] for p in self.world.counters(self.sandbox)} == {"lost"}
        self.session = None

    def find(self, _kind):
        """The VMM that is to be killed, if it is there."""
        return self.world.vmm(self.sandbox)

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


class SuspendPaused(Suspend):
    state = "paused"


class Wake(Verb):
    name, state, after = "wake", "suspended", "running"


class Boot(Verb):
    """The wake of one in error: a new guest on the disk that is left."""
    name, after = "wake", "running"

    def prepare(self):
        super().prepare()
        self.world.fail(self.sandbox)

    def goes_on(self):
        self.is_lost()


class Create(Verb):
    """And what a create makes is deleted at once."""
    name = "create"

    def prepare(self):
        self.before = self.world.known()

    def act(self, ask):
        return ask("POST", "/v1/sandboxes", {"template": "base", "metadata": {"of": "steps"}}, query=WAIT)

    def find(self, _kind):
        new = sorted(self.world.known() - self.before)
        return self.world.vmm(new[0]) if new else None

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
    name, memory = "create from checkpoint", True
    checkpoint = None

    def prepare(self):
        if self.checkpoint is None:
            self.once()
        super().prepare()

    def once(self):
        w = self.world
        source = w.create()
        w.output(source, f"echo then > {FILE}; sync")
        self.checkpoint = w.take(source, self.memory)
        w.delete(source)

    def act(self, ask):
        return ask("POST", "/v1/sandboxes", {"checkpoint_id": self.checkpoint, "metadata": {"of": "steps"}}, query=WAIT)

    def question(self):
        return f"cat {FILE}"

    def expected(self):
        return "then\n"

    def drop(self):
        self.world.forget(self.checkpoint)


class CreateFromDisk(CreateFromCheckpoint):
    memory = False


class CreateFromTemplate(CreateFromCheckpoint):
    """One with memory."""
    template = None

    def once(self):
        super().once()
        self.template = f"steps-{next(self.world.numbers)}"
        self.world.ask(201, "POST", "/v1/templates", {"name": self.template, "checkpoint_id": self.checkpoint},
                       query={"wait": 120})

    def act(self, ask):
        return ask("POST", "/v1/sandboxes", {"template": self.template, "metadata": {"of": "steps"}}, query=WAIT)

    def drop(self):
        super().drop()
        self.world.forget_template(self.template)


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


class CheckpointPaused(Checkpoint):
    state, after = "paused", "paused"


class CheckpointSuspended(Checkpoint):
    state, after, vmms = "suspended", "suspended", ()


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
    """Each child that was promised goes on where the source was; no other is there. A child whose VMM is killed is in
    error, or told as one, or made again; that is nothing to the other, nor to the source."""
    name, after, vmms = "fork", "running", ("vmm", "child")

    def act(self, ask):
        return ask("POST", f"/v1/sandboxes/{self.sandbox}/fork", {"count": 2, "metadata": {"of": self.word}},
                   query={"wait": 120})

    def prepare(self):
        super().prepare()
        self.before = self.world.known()

    def find(self, kind):
        if kind == "vmm":
            return super().find(kind)
        for child in sorted(self.world.known() - self.before):
            if (pid := self.world.vmm(child)) is not None:
                self.dead_child = child
                return pid
        return None

    def check(self, answer, victim):
        w = self.world
        children = {s["id"] for s in w.ask(200, "GET", "/v1/sandboxes", query={"metadata.of": self.word})["items"]}
        super().check(answer, victim)
        assert answer.status == 201 or not children, (children, answer)
        mine = {self.dead_child} if victim == "child" else set()
        if answer.status == 201:
            told = answer.json["operation"]["result"]["children"]
            good = {child["sandbox_id"] for child in told if not child["error"]}
            bad = {child["sandbox_id"] for child in told if child["error"]}
            assert len(told) == 2 and (victim == "vmm" or bad <= mine), told
            assert good <= children and children - good <= bad & mine, (children, told)
        for child in children:
            state = w.survives(child, self.dead) if child in mine else w.settled(child)
            assert state == "running" or child in mine, (child, state)
            if state == "running":
                assert w.output(child, f"cat {FILE}") == f"{self.word}\n"
                w.counts(w.going(child))
            w.delete(child)


class ForkPaused(Fork):
    state, after = "paused", "paused"


class ForkSuspended(Fork):
    state, after, vmms = "suspended", "suspended", ("child",)


class MakeTemplate(Verb):
    """Of a checkpoint: once, and whole, whatever dies meanwhile."""
    name, memory, vmms = "make template", True, ()
    checkpoint = template = None

    def prepare(self):
        w = self.world
        if self.checkpoint is None:
            source = w.create()
            w.output(source, f"echo then > {FILE}; sync")
            self.checkpoint = w.take(source, self.memory)
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
        w.forget_template(self.template)

    def drop(self):
        self.world.forget(self.checkpoint)


class MakeTemplateOfDisk(MakeTemplate):
    """Which is booted first."""
    memory, vmms = False, ("boot",)

    def find(self, _kind):
        return next(iter(self.world.boots()), None)

    def check(self, answer, victim):
        if victim != "boot" or answer.status == 201:
            super().check(answer, victim)
            return
        assert answer.json["error"]["code"] in ("failed_precondition", "internal"), answer
        self.world.template_is_gone(self.template)


class DeleteTemplate(MakeTemplate):
    name = "delete template"

    def prepare(self):
        super().prepare()
        super().act(self.world.patient.ask)

    def act(self, ask):
        return ask("DELETE", f"/v1/templates/{self.template}")

    def check(self, answer, victim):
        assert answer.status in ((200, 404) if victim == "space-api" else (200,)), answer
        self.world.template_is_gone(self.template)


class Rollback(Verb):
    name, after, memory = "rollback", "running", True

    def more(self):
        w = self.world
        self.then = self.word
        self.checkpoint = w.take(self.sandbox, self.memory)
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
        self.session = self.world.going(self.sandbox)
        self.world.counts(self.session)


class RollbackSuspended(Rollback):
    state = "suspended"


class RollbackToDisk(Rollback):
    """A new guest, on the disk as it was."""
    memory = False

    def goes_on(self):
        if self.is_back:
            self.is_lost()
        else:
            super().goes_on()


class Delete(Verb):
    name = "delete"

    def act(self, ask):
        return ask("DELETE", f"/v1/sandboxes/{self.sandbox}", query=WAIT)

    def check(self, answer, victim):
        assert answer.status in (200, 404), answer
        assert self.world.patient.ask("GET", f"/v1/sandboxes/{self.sandbox}").status in (404, 410)
        self.sandbox = None


class DeleteSuspended(Delete):
    state, vmms = "suspended", ()


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


VERBS = [Boot, Fork, ForkSuspended, MakeTemplateOfDisk, Create, Run, Pause, Unpause, Suspend, SuspendPaused, Wake, Checkpoint,
         CheckpointPaused, CheckpointSuspended, CreateFromCheckpoint, CreateFromDisk, CreateFromTemplate, ForkPaused, MakeTemplate,
         DeleteTemplate, Rollback, RollbackSuspended, RollbackToDisk, DeleteCheckpoint, Patch, Drain, Undrain, Delete, DeleteSuspended]


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
    """The steps of the verb: those that two rounds passed, and those that one of them alone did."""
    rounds = []
    for _ in range(2):
        verb.prepare()
        world.steps.since(world.steps.mark())  # what it left to do
        mark = world.steps.mark()
        answer = verb.act(world.patient.ask)
        rounds.append(world.steps.since(mark))
        verb.check(answer, None)
    both, either = rounds[0] & rounds[1], rounds[0] | rounds[1]
    return (sorted((program, name, count + 1) for (program, name), n in both.items() for count in range(n)),
            sorted((program, name, count + 1) for (program, name), n in either.items() for count in range(both[program, name], n)))


def is_reached(world, asking, program):
    """What is done behind the answer is part of it."""
    poll.until(lambda: world.steps.is_reached(program) or not asking.is_alive(), 2 * PATIENCE_SECONDS,
               "the step, or an answer", every=0.002)
    try:
        return poll.until(lambda: world.steps.is_reached(program), 3, "the step", every=0.002)
    except poll.Timeout:
        return False


def strike(world, verb, victim, program):
    """Kills it where `program` stands; False: there is nothing to kill."""
    if victim in verb.vmms:
        verb.dead = verb.find(victim)
        if verb.dead is not None:
            os.kill(verb.dead, signal.SIGKILL)
        world.steps.release(program)
        return verb.dead is not None
    world.installation.kill_daemon(victim)
    world.steps.release(program)
    return True


def hit(world, verb, step, victim, attempts=ATTEMPTS):
    """`struck`, `vacant` or `missed`, in so many attempts."""
    program, name, count = step
    for _ in range(attempts):
        verb.prepare()
        world.steps.since(world.steps.mark())
        world.steps.arm(program, name, count)
        asking = Asking(verb)
        asking.start()
        if not is_reached(world, asking, program):
            world.steps.release(program)
            result = "missed"
        else:
            result = "struck" if strike(world, verb, victim, program) else "vacant"
        asking.join(2 * PATIENCE_SECONDS)
        assert not asking.is_alive(), "a client hangs"
        if asking.problem is not None:
            raise asking.problem
        world.installation.wait_ready()
        try:
            verb.check(asking.answer, victim if result == "struck" else None)
        finally:
            verb.dead = verb.dead_child = None
        if result != "missed":
            return result
    return "missed"


def deaths_of(kind, steps, seldom):
    """What is to die where: (role, step, victim)."""
    deaths = [("own", step, step[0]) for step in steps]
    deaths += [(vmm, step, vmm) for step in steps if step[0] == "space-node" for vmm in kind.vmms]
    if not IS_SHORT:
        deaths += [("other", step, OTHER[step[0]]) for step in steps]
        deaths += [("seldom", step, step[0]) for step in seldom]
    return deaths


def told(results):
    """STRUCK/VACANT/MISSED of each role."""
    return ", ".join(f"{role} {results[role, 'struck']}/{results[role, 'vacant']}/{results[role, 'missed']}"
                     for role in sorted({role for role, _ in results}))


@pytest.mark.parametrize("kind", VERBS, ids=lambda kind: kind.__name__)
def test_each_step(world, kind):
    verb = kind(world)
    dice = random.Random(f"{SEED}:{kind.__name__}")
    world.lost = 0
    steps, seldom = trace(world, verb)
    assert steps, "it has steps"
    deaths = deaths_of(kind, steps, seldom)
    if IS_SHORT:
        dice.shuffle(deaths)
    results, missed, failed = collections.Counter(), [], []
    for role, step, victim in deaths:
        try:
            result = hit(world, verb, step, victim, SELDOM_ATTEMPTS if role == "seldom" else ATTEMPTS)
            if result == "missed" and role != "seldom":
                missed.append((step, victim))
        except (AssertionError, OSError) as error:
            result = "failed"
            failed.append((step, victim, str(error)[:600]))
            print(f"FAILED {kind.__name__} {victim} at {step}: {str(error)[:600]}", flush=True)
            verb = kind(world)
            for program in OTHER:
                world.steps.release(program)
            world.installation.wait_ready()
        results[role, result] += 1
        if IS_SHORT and result != "vacant":
            break
    verb.drop()
    world.results += results
    print(f"{kind.__name__}: struck/vacant/missed: {told(results)}; {len(steps)} steps and {len(seldom)} seldom ones, "
          f"{len(failed)} failed, seed {SEED}, {world.lost} commands lost", flush=True)
    assert not failed, failed
    assert not missed, f"never reached: {missed}"
    roles = () if IS_SHORT else ("own", "other", *kind.vmms)
    assert all(results[role, "struck"] > 0 for role in roles), "something was killed of each kind"
    assert any(result == "struck" for _, result in results), "something was killed"
    world.nothing_is_left_over()


def test_a_create_waits_for_what_is_left_of_its_first_try(world):
    """Which the new node removes: the API repeats the create before that has ended."""
    verb, steps = CreateFromCheckpoint(world), world.steps
    verb.prepare()
    steps.since(steps.mark())  # what that left to do
    steps.arm("space-node", "wrote journal.json creating", 1)
    asking = Asking(verb)
    asking.start()
    poll.until(lambda: steps.is_reached("space-node"), 60, "it is being created")
    made, = world.known() - verb.before
    steps.arm("space-node", "remove sandbox", 1)
    world.installation.kill_daemon("space-node")
    poll.until(lambda: steps.is_reached("space-node"), 60, "what is left of it is being removed")
    put = f'method=PUT path="/n1/sandboxes/{made}"'
    poll.until(lambda: (world.installation.logs / "space-node.log").read_text(encoding="utf-8").count(put) >= 2, 60, "it is repeated")
    steps.release("space-node")
    asking.join(2 * PATIENCE_SECONDS)
    assert asking.problem is None and asking.answer.status == 201, asking.answer
    assert asking.answer.json["sandbox"]["id"] == made
    verb.check(asking.answer, "space-node")
    verb.drop()
    world.nothing_is_left_over()


def test_all_were_hit(world):
    print(f"struck/vacant/missed: {told(world.results)}")
    assert not [role for role, result in world.results if result in ("missed", "failed") and role != "seldom"]
    assert sum(n for (_, result), n in world.results.items() if result == "struck") > 0
