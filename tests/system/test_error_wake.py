"""A sandbox in state error is started again from the disk that it has left."""

import os
import signal

import pytest

from harness import poll
from test_crash import state

IDS = "cat /etc/machine-id /proc/sys/kernel/random/boot_id"


def fail(api, installation, sandbox_id):
    os.kill(installation.vmm_of(sandbox_id), signal.SIGKILL)
    poll.until(lambda: state(api, sandbox_id) == ("error", "vmm_crashed"), 20, "error, vmm_crashed")


def wake(api, sandbox_id, **more):
    return api.ask("POST", f"/v1/sandboxes/{sandbox_id}/wake", query={"wait": 120}, **more)


def disk_of(installation, sandbox_id):
    return installation.data / "volume/sandboxes" / sandbox_id / "disk.img"


@pytest.fixture
def failed(api, installation, sandboxes):
    """With a file that was synced, and a command that ran."""
    sandbox_id = sandboxes()["id"]
    api.check_output(sandbox_id, "echo kept > /home/user/file && sync")
    process, session = api.start(sandbox_id, "echo before; sleep 1000")
    with api.events(session["id"]) as events:
        assert next(e for e in events if e["event"] == "output")
    ids = api.check_output(sandbox_id, IDS).splitlines()
    fail(api, installation, sandbox_id)
    return sandbox_id, process, session, ids


def test_a_wake_boots_from_the_disk(api, failed):
    sandbox_id, process, session, ids = failed
    answer = api.ask("POST", f"/v1/sandboxes/{sandbox_id}/run", {"argv": ["true"]})
    assert (answer.status, answer.code, answer.details["state"]) == (409, "failed_precondition", "error")
    assert state(api, sandbox_id) == ("error", "vmm_crashed"), "auto_wake does not apply"
    answer = wake(api, sandbox_id)
    assert answer.status == 200, answer
    assert (answer.json["sandbox"]["state"], answer.json["sandbox"]["state_reason"]) == ("running", None)
    identity = answer.json["sandbox"]["identity"]
    assert identity["epoch"] == 2 and all(identity[part] for part in ("entropy", "clock", "hostname", "machine_id", "tokens"))
    assert api.check_output(sandbox_id, "cat /home/user/file") == "kept\n"
    now = api.check_output(sandbox_id, IDS).splitlines()
    assert now[0] == ids[0] and now[1] != ids[1], "its own machine, started anew"
    assert api.process(sandbox_id, process["id"])["state"] == "lost"
    answer = api.ask("GET", f"/v1/sandboxes/{sandbox_id}/processes/{process['id']}/result")
    assert (answer.status, answer.code) == (409, "failed_precondition")
    assert api.output(session["id"]) == b"before\n"
    assert wake(api, sandbox_id).status == 200, "it runs already"
    for verb in ("suspend", "wake"):
        api.post(f"/v1/sandboxes/{sandbox_id}/{verb}", query={"wait": 120})
    assert api.check_output(sandbox_id, "cat /home/user/file") == "kept\n"


def test_a_disk_that_is_gone_or_damaged_is_refused(api, installation, failed):
    sandbox_id = failed[0]
    disk = disk_of(installation, sandbox_id)
    aside = disk.with_name("aside")

    def refused(word):
        answer = wake(api, sandbox_id)
        assert (answer.status, answer.code, answer.details["state"]) == (409, "failed_precondition", "error"), answer
        assert word in answer.json["error"]["message"], answer
        assert state(api, sandbox_id) == ("error", "vmm_crashed")

    disk.rename(aside)
    refused("gone")
    disk.write_bytes(b"")
    os.truncate(disk, aside.stat().st_size)
    refused("no file system")
    aside.rename(disk)
    assert wake(api, sandbox_id).status == 200
    assert api.check_output(sandbox_id, "cat /home/user/file") == "kept\n"


def test_one_that_does_not_boot_keeps_its_disk(api, installation, failed):
    """The mark of the file system is there, and nothing behind it."""
    sandbox_id = failed[0]
    disk = disk_of(installation, sandbox_id)
    with disk.open("r+b") as file:
        file.seek(1024)
        block = file.read(56)
        file.seek(1024)
        file.write(b"\xff" * 56)
    before = disk.stat()
    answer = wake(api, sandbox_id)
    assert (answer.status, answer.code, answer.details["state"]) == (409, "failed_precondition", "error"), answer
    assert state(api, sandbox_id) == ("error", "vmm_crashed")
    after = disk.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    with disk.open("r+b") as file:
        file.seek(1024)
        file.write(block)
    assert wake(api, sandbox_id).status == 200
    assert api.check_output(sandbox_id, "cat /home/user/file") == "kept\n"


@pytest.mark.parametrize("daemon", ["space-node", "space-api"])
@pytest.mark.long
def test_kill_9_of_a_daemon_meanwhile(api, installation, failed, daemon):
    sandbox_id = failed[0]
    answer = api.ask("POST", f"/v1/sandboxes/{sandbox_id}/wake", query={"wait": 0})
    assert (answer.status, answer.json["sandbox"]["state"]) == (202, "waking"), answer
    installation.kill_daemon(daemon)
    api.close()
    installation.wait_ready()
    operation = api.get(f"/v1/operations/{answer.json['operation']['id']}", query={"wait": 120})
    assert operation["state"] == "succeeded", operation
    assert state(api, sandbox_id) == ("running", None)
    assert api.check_output(sandbox_id, "cat /home/user/file") == "kept\n"
