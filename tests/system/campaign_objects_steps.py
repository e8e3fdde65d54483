"""kill -9 of space-objects and space-node at every step of what goes into the object store and out of it.

A sandbox is suspended and stored, woken and removed from the store, and what is left of it is swept; another one stays
there, and shares its template's memory with it. The steps (src/base/step.h) are those that an undisturbed round
passes: each write and removal of the store, each record of the node about it. After each death a whole round must
succeed, what is referred to must be there to the last byte (it is fetched), and nothing else.

STEPS_ROUND=short takes a few; STEPS_SEED chooses them."""

import collections
import os
import random
import shutil
import signal
import subprocess
import threading

import pytest

from harness import machine, poll
from harness.installation import Installation
from harness.objects import Worker
from harness.patient import Patient
from harness.steps import Steps
from test_objects import Store

IS_SHORT = os.environ.get("STEPS_ROUND", "long") == "short"
SEED = int(os.environ.get("STEPS_SEED", str(random.SystemRandom().randrange(2**32))))
ATTEMPTS = 4
OF_THE_NODE = {"note stored", "noted stored", "mark stored", "marked stored", "forget owner", "forgot owner", "end removal",
               "ended removal"}
FILE = "/home/user/file"


class World:
    def __init__(self):
        self.made = made = Installation("obs", uid_first=1_270_000, volume_gib=6, node__warm_pools="base=1",
                                        node__prepared_pool=0)
        made.settings["objects.store"] = "local"
        made.settings["objects.garbage_seconds"] = 1
        made.prepare()
        self.steps = Steps(made)
        made.up()
        made.wait_warm()
        self.patient = Patient(made)
        self.store = Store(made.data / "objects")
        self.keeper, self.sandbox = self.create(), self.create()
        self.write(self.keeper)
        self.suspend(self.keeper)
        self.rest = self.names()  # what is in the store between two rounds

    def ask(self, method, path, body=None, **more):
        answer = self.patient.ask(method, path, body, **more)
        assert answer.status in (200, 201), f"{method} {path}: {answer}"
        return answer.json

    def create(self):
        return self.ask("POST", "/v1/sandboxes", {"template": "base", "memory_mib": 512}, query={"wait": 180})["sandbox"]["id"]

    def write(self, sandbox):
        """Something new, so that there are new chunks. A command is never begun twice: a death may cost it."""
        def is_written():
            return self.patient.ask("POST", f"/v1/sandboxes/{sandbox}/run",
                                    {"shell": f"head -c 3000000 /dev/urandom > {FILE}; sync"}).status == 200
        poll.until(is_written, 60, "it is written")

    def state(self, sandbox):
        return self.ask("GET", f"/v1/sandboxes/{sandbox}")

    def suspend(self, sandbox):
        self.ask("POST", f"/v1/sandboxes/{sandbox}/suspend", query={"wait": 60})
        poll.until(lambda: self.state(sandbox)["durability"] == "replicated", 120, "it is stored", every=0.05)

    def wake(self, sandbox):
        assert self.ask("POST", f"/v1/sandboxes/{sandbox}/wake", query={"wait": 60})["sandbox"]["state"] == "running"

    def names(self):
        return {str(path.relative_to(self.store.path)) for path in self.store.files(".")}

    # ---- a round ----
    def round(self):
        """Stored, checked, removed, swept."""
        if self.state(self.sandbox)["state"] != "running":
            self.wake(self.sandbox)
        self.write(self.sandbox)
        self.suspend(self.sandbox)
        self.check(self.sandbox)
        if self.keeper is not None:
            self.check(self.keeper)
        self.wake(self.sandbox)
        poll.until(lambda: self.names() == self.rest, 120, "nothing is left of it, and all of the other one", every=0.05)

    def be_alone(self):
        """Each round stores and removes the template's memory too."""
        if self.keeper is not None:
            self.ask("DELETE", f"/v1/sandboxes/{self.keeper}", query={"wait": 60})
            self.keeper, self.rest = None, {".space-store"}
            self.round()

    def check(self, sandbox):
        """All of it can be fetched, and has the file that the sandbox had: each chunk is checked against its name."""
        manifest, = self.store.manifests(sandbox)
        out = self.made.data / "volume/fetched-for-a-test"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(mode=0o700)
        disk = (self.made.data / "volume/templates/base/current").resolve() / "disk.img"
        machine.output("cp", "--reflink=always", str(disk), str(out / "disk.img"))
        os.chown(out / "disk.img", self.made.uid_first, self.made.uid_first)
        (out / "disk.img").chmod(0o600)
        worker = Worker(None, directory=self.store.path, uid=self.made.uid_first, installation=self.made.name)
        answer = worker.get(sandbox, manifest.name.partition(".")[2], out)
        assert answer["ok"], answer
        own = self.made.data / f"volume/sandboxes/{sandbox}/suspended"
        for name in ("memory", "state"):
            assert machine.output("cmp", str(own / name), str(out / name)) == "", name
        assert self.on_disk(own / "disk.img") == self.on_disk(out / "disk.img")
        shutil.rmtree(out)

    @staticmethod
    def on_disk(disk):
        found = subprocess.run(["debugfs", "-R", f"cat {FILE}", str(disk)], check=True, capture_output=True).stdout
        assert len(found) == 3_000_000
        return found

    # ---- deaths ----
    def jobs(self):
        node = str(self.made.daemon("space-node"))
        return [pid for pid in machine.pids() if (lambda s: s.get("Name") == "space-objects" and s.get("PPid") == node)(
            machine.status(pid))]

    def strike(self, victim):
        if victim == "space-node":
            self.made.kill_daemon(victim)
            return
        jobs = self.jobs()
        assert jobs, "it stands there"
        for pid in jobs:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def world():
    made = World()
    yield made
    made.patient.close()
    made.made.remove()


def trace(world):
    """Steps of a round and how often they come; those that come each time."""
    found = None
    for _ in range(2):
        mark = world.steps.mark()
        world.round()
        seen = world.steps.since(mark)
        found = seen if found is None else found & seen
    return collections.Counter({key: n for key, n in found.items()
                                if key[0] == "space-objects" or (key[0] == "space-node" and key[1] in OF_THE_NODE)})


def deaths_of(steps, dice):
    """Each step at its first and last time, and at one in between."""
    found = []
    for (program, name), n in sorted(steps.items()):
        counts = {1, n, dice.randint(1, n)}
        found += [(program, name, count, victim) for count in sorted(counts)
                  for victim in (("space-objects", "space-node") if program == "space-objects" else ("space-node",))]
    return dice.sample(found, 4) if IS_SHORT else found


class Watching(threading.Thread):
    """Kills whoever is meant once the step is reached, while a round is under way."""

    def __init__(self, world, death):
        super().__init__()
        self.world, self.death = world, death
        self.struck, self.problem, self.end = False, None, threading.Event()

    def run(self):
        world, (program, _, _, victim) = self.world, self.death
        try:
            while not self.end.is_set() and not self.struck:
                if world.steps.is_reached(program):
                    world.strike(victim)
                    self.struck = True
                self.end.wait(0.002)
        except Exception as error:  # a thread's failure must reach the test
            self.problem = error
        finally:
            world.steps.release(program)


def hit(world, death):
    """Whether the step was reached, in one of a few rounds; each is followed by one without a death."""
    program, name, count, _ = death
    for _ in range(ATTEMPTS):
        world.steps.arm(program, name, count)
        watching = Watching(world, death)
        watching.start()
        try:
            world.round()
        finally:
            watching.end.set()
            watching.join()
        if watching.problem is not None:
            raise watching.problem
        world.made.wait_ready()
        world.round()
        if watching.struck:
            return True
    return False


@pytest.mark.parametrize("alone", (False, True), ids=("beside others", "alone"))
def test_each_step(world, alone):
    dice = random.Random(f"{SEED}:{alone}")
    if alone:
        world.be_alone()
    steps = trace(world)
    kind = "bases" if alone else "manifests"
    names = {name for program, name in steps if program == "space-objects"}
    assert {f"{verb} {kind}" for verb in ("store", "stored", "place", "remove", "removed")} <= names, steps
    if alone:
        steps = {key: n for key, n in steps.items() if "bases" in key[1]}
    else:
        assert OF_THE_NODE <= {name for program, name in steps if program == "space-node"}, steps
    missed, failed = [], []
    deaths = deaths_of(steps, dice)
    for death in deaths:
        try:
            if not hit(world, death):
                missed.append(death)
        except AssertionError as error:
            failed.append((death, str(error)[:600]))
            print(f"FAILED {death}: {str(error)[:600]}", flush=True)
            world.made.wait_ready()
    print(f"store, {'alone' if alone else 'beside others'}: {len(deaths) - len(missed)} of {len(deaths)} deaths, "
          f"{len(steps)} steps, seed {SEED}", flush=True)
    assert not failed, failed
    assert not missed, f"never reached: {missed}"
