"""The warm pool: what waits in it may die, and a create must not hear of it."""

import os
import signal
import time

import pytest


def waiting_vmms(installation):
    """VMMs that no sandbox has: their disks are still in the pool's directory."""
    found = []
    for pid in installation.vmms():
        try:
            targets = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        if any("/volume/vms/" in target for target in targets):
            found.append(pid)
    return found


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class TestWaiting:
    def test_a_waiting_machine_costs_no_processor(self, api, installation):
        installation.wait_warm()
        # All have rehearsed and are stopped: what they use in two seconds is nothing.
        before = {pid: cpu_seconds(pid) for pid in waiting_vmms(installation)}
        assert before
        time.sleep(2)
        used = {pid: cpu_seconds(pid) - start for pid, start in before.items()}
        assert all(seconds <= 0.02 for seconds in used.values()), used


class TestDeadOnArrival:
    def test_a_create_takes_another_vm_when_the_warm_one_has_just_died(self, api, installation):
        installation.wait_warm()
        # All but the last: which one the node gives first is its affair.
        for pid in waiting_vmms(installation)[:-1]:
            os.kill(pid, signal.SIGKILL)
        sandbox = api.create()["id"]
        assert api.check_output(sandbox, "echo alive") == "alive\n"
        api.delete(sandbox)

    @pytest.mark.long
    def test_a_run_with_files_and_input_does_too(self, api, installation):
        body = {"template": "base", "shell": "cat data - /tmp/more", "input": "input ",
                "files": [{"path": "data", "text": "data "}, {"path": "/tmp/more", "text": "more\n"}]}
        installation.wait_warm()
        for pid in waiting_vmms(installation):
            os.kill(pid, signal.SIGKILL)
        answer = api.expect(200, "POST", "/v1/run", body)
        assert (answer.json["stdout"], answer.json["stderr"], answer.json["exit_code"]) == ("data input more\n", "", 0)
