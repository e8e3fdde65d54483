"""Rounds of chaos: clients create sandboxes and run commands with known output while space-node,
space-api and VMMs are killed at random moments. Every answer may be a refusal; nothing may be
wrong, lost or left. CAMPAIGN_ROUNDS and CAMPAIGN_SEED choose; the seed is printed."""

import os
import random
import signal
import threading

import pytest

from harness import poll
from harness.patient import PATIENCE_SECONDS, Patient

ROUNDS = int(os.environ.get("CAMPAIGN_ROUNDS", "4"))
SEED = int(os.environ.get("CAMPAIGN_SEED", str(random.SystemRandom().randrange(2**32))))
CLIENTS = 3


class Client(threading.Thread):
    """One sandbox from its create to its delete, retrying as docs/api.md says."""

    def __init__(self, installation, number, lines):
        super().__init__()
        self.patient = Patient(installation)
        self.ask = self.patient.ask
        self.number = number
        self.lines = lines
        self.sandbox = None
        self.outcome = "unfinished"
        self.problem = None

    def run(self):
        try:
            self.work()
        except Exception as error:  # a thread's failure must reach the test
            self.problem = error
        finally:
            self.patient.close()

    def work(self):
        answer = self.ask("POST", "/v1/sandboxes", {"template": "base", "metadata": {"of": "campaign"}},
                          query={"wait": 60})
        if answer.status not in (200, 201, 202):
            self.outcome = f"create refused: {answer.code}"
            return
        self.sandbox = answer.json["sandbox"]["id"]
        state = poll.until(self.settled, PATIENCE_SECONDS, "the create is decided")
        if state == "error":
            self.outcome = "sandbox in error"
            return
        command = {"shell": f"for i in $(seq 1 {self.lines}); do echo {self.number}-$i; done; exit 7"}
        answer = self.ask("POST", f"/v1/sandboxes/{self.sandbox}/commands", command)
        if answer.status != 201:
            self.outcome = f"command refused: {answer.code}"
            return
        self.check_command(answer.json["process"]["id"], answer.json["session"]["id"])

    def settled(self):
        answer = self.ask("GET", f"/v1/sandboxes/{self.sandbox}")
        state = answer.json["state"] if answer.status == 200 else "error"
        return state if state in ("running", "error") else None

    def check_command(self, process, session):
        path = f"/v1/sandboxes/{self.sandbox}/processes/{process}/result"
        answer = poll.until(lambda: self.finished(path), PATIENCE_SECONDS, "the command has ended")
        if answer.status != 200:
            self.outcome = f"command lost: {answer.code}"
            return
        assert answer.json["exit_code"] == 7, answer
        want = "".join(f"{self.number}-{i}\n" for i in range(1, self.lines + 1)).encode()
        data, offset, ended = b"", 0, False
        while not ended:
            piece = self.ask("GET", f"/v1/sessions/{session}/output",
                             query={"stream": "stdout", "offset": offset, "wait": 10})
            if piece.status != 200:
                assert self.settled() == "error", piece
                self.outcome = "sandbox in error after the end"
                return
            data += piece.body
            offset = int(piece.headers["X-Space-Next-Offset"])
            ended = piece.headers["X-Space-End"] == "true"
        assert data == want, "output lost, repeated or changed"
        self.outcome = "complete"

    def finished(self, path):
        answer = self.ask("GET", path, query={"wait": 10})
        return None if answer.status == 202 else answer


def strike(installation, dice):
    """Kills one program, chosen by chance."""
    victim = dice.choice(["space-node", "space-api", "vmm"])
    if victim == "vmm":
        vmms = sorted(installation.vmms())
        if not vmms:
            return "nothing"
        try:
            os.kill(dice.choice(vmms), signal.SIGKILL)
        except ProcessLookupError:
            return "nothing"
    else:
        installation.kill_daemon(victim)
    return victim


@pytest.mark.parametrize("number", range(ROUNDS))
def test_round(api, installation, number):
    dice = random.Random(f"{SEED}:{number}")
    clients = [Client(installation, i, dice.choice([10, 2000, 50000])) for i in range(CLIENTS)]
    struck = []
    for client in clients:
        client.start()
    for _ in range(dice.randint(1, 3)):
        # Any moment will do; this waits for chance and not for an event.
        clients[0].join(dice.uniform(0, 1.5))
        struck.append(strike(installation, dice))
    for client in clients:
        client.join(3 * PATIENCE_SECONDS)
    api.close()
    installation.wait_ready()
    print(f"seed {SEED} round {number}: killed {struck}, outcomes {[c.outcome for c in clients]}")
    assert not [c for c in clients if c.is_alive()], "a client hangs"
    assert not [c.problem for c in clients if c.problem], [c.problem for c in clients]
    # Refusals are fair while things die; afterwards everything works again.
    after = Client(installation, CLIENTS, 2000)
    after.start()
    after.join(3 * PATIENCE_SECONDS)
    assert after.outcome == "complete", (after.outcome, after.problem)
    poll.until(lambda: not [o for s in ("pending", "running") for o in
                            api.get("/v1/operations", query={"state": s})["items"]], 60, "no operation is open")
    for item in api.get("/v1/sandboxes", query={"metadata.of": "campaign", "limit": 1000})["items"]:
        api.delete(item["id"])
    living = {s["id"] for s in api.get("/v1/sandboxes", query={"limit": 1000})["items"]}
    poll.until(lambda: {p.name for p in (installation.data / "volume/sandboxes").iterdir()} <= living, 90,
               "the node has nothing that the API does not know")


def test_nothing_is_left(installation):
    installation.remove()
