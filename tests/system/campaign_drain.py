"""Rounds of drain and undrain while space-node and space-api are killed at random moments, with a stop
and start of everything in between: each sandbox comes back with every line that it has written.
CAMPAIGN_ROUNDS (40 at most) and CAMPAIGN_SEED choose; the seed is printed."""

import os
import random
import signal

from harness import poll
from harness.patient import Patient

ROUNDS = min(int(os.environ.get("CAMPAIGN_ROUNDS", "4")), 40)
SEED = int(os.environ.get("CAMPAIGN_SEED", str(random.SystemRandom().randrange(2**32))))
SANDBOXES = 6
COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
DAEMONS = ("space-api", "space-node")


def kill(installation, program):
    installation.kill_daemon(program, signal.SIGKILL)
    installation.wait_ready()


def drain(installation, patient, chance):
    """Until it is drained, with a death every now and then."""
    deaths = 0
    patient.ask("POST", "/v1/nodes/local/drain", query={"wait": 0})

    def is_drained():
        nonlocal deaths
        if deaths < 4 and chance.random() < 0.5:
            kill(installation, chance.choice(DAEMONS))
            deaths += 1
        answer = patient.ask("GET", "/v1/nodes/local", query={"wait": chance.choice((0, 0.2, 1))})
        return answer.json if answer.json["state"] == "drained" else None

    return poll.until(is_drained, 180, "the node is drained"), deaths


def written(patient, session):
    return len(patient.ask("GET", f"/v1/sessions/{session}/output", query={"stream": "stdout"}).body)


def wake(patient, sandbox, session):
    """And it goes on."""
    before = written(patient, session)
    answer = patient.ask("POST", f"/v1/sandboxes/{sandbox}/wake", query={"wait": 60})
    assert answer.status == 200 and answer.json["sandbox"]["state"] == "running", answer
    poll.until(lambda: written(patient, session) > before, 60, "the counter goes on")


def test_rounds_of_drains(installation):
    print(f"\nseed {SEED}, {ROUNDS} rounds")
    chance, api, patient = random.Random(SEED), installation.api, Patient(installation)
    made = [api.create(memory_mib=256)["id"] for _ in range(SANDBOXES)]
    running = [api.start(sandbox, COUNTER) for sandbox in made]
    api.close()
    killed = 0
    for number in range(ROUNDS):
        for sandbox in chance.sample(made, 2):
            patient.ask("POST", f"/v1/sandboxes/{sandbox}/pause", query={"wait": 60})
        node, deaths = drain(installation, patient, chance)
        killed += deaths
        assert (node["sandboxes"]["suspended"], node["sandboxes"]["error"]) == (SANDBOXES, 0), node
        refused = patient.api.ask("POST", f"/v1/sandboxes/{made[0]}/wake")
        assert (refused.status, refused.code) == (503, "service_unavailable"), refused
        if number % 2:
            patient.close()
            installation.down()
            assert not installation.vmms()
            installation.up()
        else:
            kill(installation, chance.choice(DAEMONS))
        assert patient.ask("GET", "/v1/nodes/local").json["state"] == "drained"
        patient.ask("POST", "/v1/nodes/local/undrain")
        for sandbox, (_, session) in zip(made, running):
            wake(patient, sandbox, session["id"])
    print(f"{killed} deaths while draining")
    for sandbox, (process, session) in zip(made, running):
        patient.ask("POST", f"/v1/sandboxes/{sandbox}/processes/{process['id']}/kill")
        lines = api.output(session["id"]).decode().split()
        assert lines == [str(i) for i in range(1, len(lines) + 1)], "not a line lost or twice"
        api.delete(sandbox)
    patient.close()
