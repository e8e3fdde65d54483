"""VMMs are killed at random moments of a create, a run and a stream of output. The sandbox becomes
`error` with `vmm_crashed` and can be deleted, what was said before the end is right, nobody else is
disturbed, and nothing is left. CAMPAIGN_KILLS and CAMPAIGN_SEED choose; the seed is printed."""

import os
import random
import signal
import threading

import pytest

from harness import machine, poll

OWN_MIB = 640  # a size without waiting sandboxes
KILLS = int(os.environ.get("CAMPAIGN_KILLS", "3"))
SEED = int(os.environ.get("CAMPAIGN_SEED", str(random.SystemRandom().randrange(2**32))))
LINES = "".join(f"{i}\n" for i in range(200_000)).encode()


class Victim(threading.Thread):
    """One call that the death of a VMM may cut."""

    def __init__(self, installation, *request, **more):
        super().__init__()
        self.api = installation.api.as_key(installation.key)
        self.request, self.more = request, more
        self.answer = self.problem = None

    def run(self):
        try:
            self.answer = self.api.ask(*self.request, **self.more)
        except Exception as error:  # a thread's failure must reach the test
            self.problem = error
        finally:
            self.api.close()

    def finish(self):
        self.join(300)
        assert self.answer is not None, self.problem or "the call hangs"
        return self.answer


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    poll.until(lambda: not machine.is_alive(pid), 10, "the VMM is dead")


def reason(api, sandbox_id):
    sandbox = api.sandbox(sandbox_id)
    return sandbox["state"], (sandbox["state_reason"] or {}).get("code")


def read_some(api, session_id, size):
    """Until there was so much output."""
    offset = 0
    while offset < size:
        answer = api.expect(200, "GET", f"/v1/sessions/{session_id}/output",
                            query={"stream": "stdout", "offset": offset, "wait": 60})
        assert answer.body and LINES.startswith(answer.body, offset), answer
        offset += len(answer.body)


def check_crashed_and_delete(api, installation, sandbox_id):
    poll.until(lambda: reason(api, sandbox_id) == ("error", "vmm_crashed"), 60, "error, vmm_crashed")
    api.delete(sandbox_id)
    poll.until(lambda: not (installation.data / "volume/sandboxes" / sandbox_id).exists(), 60, "its files are gone")


@pytest.fixture(scope="module")
def bystander(installation):
    """A sandbox with one process that runs through all of it."""
    api = installation.api
    sandbox = api.create(name="bystander", memory_mib=OWN_MIB)["id"]
    process, session = api.start(sandbox, "while read -r line; do echo \"$line\"; done", stdin="open")
    return sandbox, process["id"], session["id"], installation.vmm_of(sandbox)


@pytest.fixture
def undisturbed(api, installation, bystander, request):
    sandbox, process, _, pid = bystander
    yield
    assert installation.vmm_of(sandbox) == pid
    assert api.process(sandbox, process)["state"] == "running"
    assert api.check_output(sandbox, ["echo", request.node.name]) == f"{request.node.name}\n"


def dice_of(request):
    print(f"seed {SEED}")
    return random.Random(f"{SEED}:{request.node.name}")


@pytest.mark.parametrize("number", range(KILLS))
def test_during_a_create(api, installation, undisturbed, request, number):
    """The create starts a VMM of its own, or takes one that is prepared; every VMM that has come since is killed."""
    dice = dice_of(request)
    before = set(installation.vmms())
    victim = Victim(installation, "POST", "/v1/sandboxes", {"template": "base", "memory_mib": OWN_MIB, "name": f"made-{number}"},
                    query={"wait": 300})
    victim.start()
    fresh = poll.until(lambda: set(installation.vmms()) - before or not victim.is_alive(), 200, "a VMM has started")
    victim.join(dice.uniform(0, 0.5))  # any moment will do; this waits for chance and not for an event
    for pid in fresh if isinstance(fresh, set) else ():
        kill(pid)
    answer = victim.finish()
    (made,) = api.get("/v1/sandboxes", query={"name": f"made-{number}"})["items"]
    print(f"answered {answer}, {reason(api, made['id'])}")
    if answer.status == 201 and lives(installation, made["id"]):
        # What died was not the sandbox's, or died before the sandbox had it.
        assert api.check_output(made["id"], ["echo", "alive"]) == "alive\n"
        kill(installation.vmm_of(made["id"]))
    check_crashed_and_delete(api, installation, made["id"])


def lives(installation, sandbox_id):
    """On the host: the record may learn a moment later what has died."""
    try:
        return bool(installation.vmm_of(sandbox_id))
    except AssertionError:
        return False


@pytest.mark.parametrize("number", range(KILLS))
def test_during_a_run(api, installation, undisturbed, request, number):
    dice = dice_of(request)
    sandbox = api.create()["id"]
    victim = Victim(installation, "POST", f"/v1/sandboxes/{sandbox}/run",
                    {"shell": "for i in $(seq 1 200); do /bin/true; done; sleep 1000", "timeout_seconds": 600})
    victim.start()
    victim.join(dice.uniform(0, 1))
    kill(installation.vmm_of(sandbox))
    answer = victim.finish()
    assert (answer.status, answer.code) == (409, "failed_precondition"), answer
    check_crashed_and_delete(api, installation, sandbox)


@pytest.mark.parametrize("number", range(KILLS))
def test_during_output(api, installation, undisturbed, request, number):
    """What is kept is the beginning of what was written, and is said to have an end."""
    dice = dice_of(request)
    sandbox = api.create()["id"]
    process, session = api.start(sandbox, "seq 0 199999; exec sleep 1000")
    wanted = dice.randrange(len(LINES))
    read_some(api, session["id"], wanted)
    kill(installation.vmm_of(sandbox))
    poll.until(lambda: api.process(sandbox, process["id"])["state"] == "lost", 30, "the process is lost")
    with api.events(session["id"]) as events:
        last = list(events)[-1]
    assert (last["event"], last["data"]["reason"]) == ("process_lost", "crashed")
    kept = api.output(session["id"])
    assert len(kept) >= wanted and LINES.startswith(kept)
    check_crashed_and_delete(api, installation, sandbox)


def test_nothing_is_left(installation, bystander, undisturbed):
    """With one sandbox: as many VMMs, network namespaces and cgroups as it and the pools have."""
    installation.wait_warm()
    pools = installation.node_report()["pools"]
    poll.until(lambda: [p.name for p in (installation.data / "volume/sandboxes").iterdir()] == [bystander[0]], 60,
               "one sandbox has files")
    vmms = set(installation.vmms())
    inside = {pid for top in machine.cgroups(installation.name) for pid in machine.cgroup_procs(top)}
    assert vmms <= inside and len(vmms) <= 1 + sum(p["warm"] for p in pools) + int(installation.settings["node.prepared_pool"])


def test_nothing_is_left_after_the_end(installation):
    installation.remove()
