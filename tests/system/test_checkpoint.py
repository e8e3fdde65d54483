"""Checkpoints through the API and the command line, on real VMs."""

import json

import pytest

from harness import clock, poll

COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"
FACTS = "cat /proc/sys/kernel/random/boot_id /etc/machine-id; hostname"


def so_far(api, session):
    return api.expect(200, "GET", f"/v1/sessions/{session}/output").body


def goes_on(api, session):
    """Whether a counter counts on, no line lost or twice."""
    end = len(so_far(api, session))
    poll.until(lambda: len(so_far(api, session)) > end + 20, 60, "it counts on")
    data = so_far(api, session)
    lines = data[:data.rfind(b"\n")].decode().split()
    return lines == [str(i) for i in range(1, len(lines) + 1)]


def counters(api, sandbox):
    return [p for p in api.get(f"/v1/sandboxes/{sandbox}/processes")["items"]
            if COUNTER in p["argv"] and p["state"] == "running"]


@pytest.fixture
def checkpoints(api):
    made = []

    def take(sandbox, **body):
        answer = api.expect(201, "POST", f"/v1/sandboxes/{sandbox}/checkpoints", body, query={"wait": 60}).json
        made.append(answer["operation"]["result"]["id"])
        return answer["operation"]["result"]

    take.made = made
    yield take
    for checkpoint in made:
        api.expect((200, 404), "DELETE", f"/v1/checkpoints/{checkpoint}")


@pytest.fixture
def child(api):
    made = []

    def create(**body):
        made.append(api.post("/v1/sandboxes", body, status=201, query={"wait": 60})["sandbox"])
        return made[-1]

    yield create
    for sandbox in made:
        api.delete(sandbox["id"])


def test_sandboxes_of_a_checkpoint_and_the_way_back(api, sandboxes, checkpoints, child):
    sandbox = sandboxes(env={"KEPT": "1"})["id"]
    _, session = api.start(sandbox, COUNTER)
    api.check_output(sandbox, "echo then > /home/user/file")
    clock.set_back(api, sandbox)
    taken = checkpoints(sandbox, name="clean")
    assert taken["memory"] is True and taken["size_bytes"] > 0 and taken["durability"] == "local"
    assert api.get(f"/v1/checkpoints/{taken['id']}") == taken
    assert api.get(f"/v1/sandboxes/{sandbox}/checkpoints")["items"] == [taken]
    assert api.get("/v1/checkpoints", query={"sandbox_id": sandbox, "name": "clean"})["items"] == [taken]
    assert goes_on(api, session["id"])
    api.check_output(sandbox, "echo now > /home/user/file")

    made = child(checkpoint_id=taken["id"], env={"OWN": "2"})
    assert made["parent_id"] == sandbox and made["state"] == "running" and sorted(made["env_names"]) == ["KEPT", "OWN"]
    assert clock.seconds_off(api, made["id"]) <= 0.05, "what was captured was an hour behind"
    assert api.check_output(made["id"], "cat /home/user/file; echo $KEPT $OWN") == "then\n1 2\n"
    facts = zip(api.check_output(sandbox, FACTS).split(), api.check_output(made["id"], FACTS).split())
    assert all(one != other for one, other in facts), "an identity of its own"
    counter, = counters(api, made["id"])
    assert goes_on(api, counter["session_id"])

    api.post(f"/v1/sandboxes/{sandbox}/rollback", {"checkpoint_id": taken["id"]}, query={"wait": 60})
    assert clock.seconds_off(api, sandbox) <= 0.05
    with api.events(session["id"], tail_bytes=1) as events:
        last = list(events)[-1]
    assert (last["event"], last["data"]["reason"]) == ("process_lost", "rolled_back")
    assert api.check_output(sandbox, "cat /home/user/file") == "then\n"
    counter, = counters(api, sandbox)
    assert counter["session_id"] != session["id"] and goes_on(api, counter["session_id"])
    refused = api.ask("POST", f"/v1/sandboxes/{made['id']}/rollback", {"checkpoint_id": taken["id"]})
    assert refused.status == 409 and refused.json["error"]["code"] == "failed_precondition"


@pytest.mark.long
def test_of_a_suspended_one_by_the_command_line(api, installation, sandboxes):
    sandbox = sandboxes()["id"]
    api.check_output(sandbox, "echo kept > /home/user/file; sudo touch /etc/ssh/ssh_host_old_key")
    api.post(f"/v1/sandboxes/{sandbox}/suspend", query={"wait": 60})
    checkpoint = installation.space("checkpoint", "create", sandbox, "--name", "x", "--disk-only").stdout.strip()
    assert api.get(f"/v1/sandboxes/{sandbox}")["state"] == "suspended", "it is not woken for that"
    assert checkpoint in installation.space("checkpoint", "ls", sandbox).stdout
    made = installation.space("create", "--checkpoint", checkpoint).stdout.strip()
    assert api.check_output(made, "cat /home/user/file; ls /etc/ssh | grep host || true") == "kept\n", "no host key of another"
    installation.space("rm", "--yes", made)
    installation.space("rollback", "--yes", sandbox, checkpoint)
    assert api.check_output(sandbox, "cat /home/user/file; ls /etc/ssh | grep host || true") == "kept\nssh_host_old_key\n"
    installation.space("checkpoint", "rm", "--yes", checkpoint)
    assert json.loads(installation.space("checkpoint", "ls", sandbox, "--json").stdout)["items"] == []


# A program with a generator of its own, which a hook tells of the new identity, and which is taken for an ssh server by
# its name; a hook that hangs in one of the sandboxes; and host keys.
GENERATOR = """
import os, random, signal, time
random.seed(7)
def reseed(*_):
    random.seed(os.urandom(16))
    print('reseeded', flush=True)
def read_keys(*_):
    print('server', open('/etc/ssh/ssh_host_ed25519_key.pub').read().split()[1], flush=True)
signal.signal(signal.SIGUSR1, reseed)
signal.signal(signal.SIGHUP, read_keys)
open('/proc/self/comm', 'w').write('sshd')
open('/run/generator.pid', 'w').write(str(os.getpid()))
open('/run/sshd.pid', 'w').write(str(os.getpid()) + '\\n')
print('ready', flush=True)
while True:
    time.sleep(0.05)
    print(random.getrandbits(64), flush=True)
"""
HOOKS = """
set -e
install -d /etc/space/identity.d /etc/ssh /sys/fs/cgroup/space-hooks
echo 1 >/sys/fs/cgroup/space-hooks/cgroup.freeze
printf '#!/bin/sh\\nkill -USR1 "$(cat /run/generator.pid)"\\ncat /etc/machine-id >>/var/told\\n' >/etc/space/identity.d/10-told
printf '#!/bin/sh\\n[ "$(hostname)" != slow ] || { echo hook; sleep 600; }\\n' >/etc/space/identity.d/20-hangs
printf '#!/bin/sh\\nls /etc/ssh >>/var/told\\n' >/etc/space/identity.d/30-last
chmod 0755 /etc/space/identity.d/*
ln -s /bin/true /usr/sbin/sshd
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
echo old >/etc/ssh/ssh_host_rsa_key
"""
KEY = "cat /etc/ssh/ssh_host_ed25519_key.pub"


@pytest.mark.long
def test_programs_are_told_and_no_host_key_is_shared(api, sandboxes, checkpoints, child):
    source = sandboxes()["id"]
    api.check_output(source, HOOKS, user="root")
    _, session = api.start(source, ["python3", "-c", GENERATOR], user="root")
    poll.until(lambda: b"ready" in so_far(api, session["id"]), 60, "the generator runs")
    taken = checkpoints(source)
    keys, numbers = [api.check_output(source, KEY)], []
    for name in ("slow", "quick"):
        made = child(checkpoint_id=taken["id"], name=name)["id"]
        machine, *files = api.check_output(made, "cat /var/told").split()
        assert machine == api.check_output(made, "cat /etc/machine-id").strip(), "told once, with the identity in place"
        assert [file for file in files if file.startswith("ssh_host_")] == [
            "ssh_host_ecdsa_key", "ssh_host_ecdsa_key.pub", "ssh_host_ed25519_key", "ssh_host_ed25519_key.pub"]
        assert "sleep 600" not in api.check_output(made, "ps -eo args="), "what hung is gone"
        console = api.ask("GET", f"/v1/sandboxes/{made}/console").body
        assert (b"20-hangs: killed after 2" in console) == (name == "slow"), console
        keys.append(api.check_output(made, KEY))
        program, = [p for p in api.get(f"/v1/sandboxes/{made}/processes")["items"] if GENERATOR in p["argv"]]
        after = lambda: [line for line in so_far(api, program["session_id"]).partition(b"reseeded\n")[2].split(b"\n")[:-1]
                         if line.isdigit()]
        poll.until(after, 60, "numbers of the new seed")
        numbers.append(after()[0])
        assert f"server {keys[-1].split()[1]}\n".encode() in so_far(api, program["session_id"]), "it reads the new key"
    assert len({key.split()[1] for key in keys}) == 3, keys
    assert len(set(numbers)) == 2, numbers
    api.post(f"/v1/sandboxes/{source}/suspend", query={"wait": 60})
    api.post(f"/v1/sandboxes/{source}/wake", query={"wait": 60})
    assert api.check_output(source, KEY) == keys[0], "the same machine keeps its keys"
    assert api.check_output(source, "head -n 1 /var/told") == api.check_output(source, "cat /etc/machine-id")
