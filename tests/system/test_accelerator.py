"""What sandboxes run under: found out beside what is served, kept by what lives, and named by snapshots."""

import json
import os
import signal
import stat
import subprocess

import pytest

from harness import machine, poll
from harness.installation import Installation, space_binary

from test_pause import state, wake
from test_suspend import COUNTER, begin, ended, goes_on, so_far, suspend

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def own():
    made = Installation("spac", uid_first=1_900_000, volume_gib=4, node__warm_pools="base=0", node__prepared_pool=0)
    made.prepare()
    made.up()
    yield made
    made.remove()


@pytest.fixture
def api(own):
    yield own.api
    own.api.close()


@pytest.fixture
def counting(api):
    """One that counts, and its session."""
    sandbox = api.create()["id"]
    _, session = api.start(sandbox, COUNTER)
    poll.until(lambda: so_far(api, session["id"])[1] > 20, 60, "it counts")
    yield sandbox, session["id"]
    api.delete(sandbox)


def accelerator(own):
    return own.node_report()["environment"]["accelerator"]


def restart(own):
    """Until what lives is served; what can be started then is another question."""
    own.kill_daemon("space-node")
    own.api.close()
    own.wait_ready()


@pytest.fixture
def trying(own):
    """Restarts the node so that it has to boot a test guest to know."""
    if not os.path.exists("/dev/kvm"):
        pytest.skip("there is no /dev/kvm here: nothing has to be tried")

    def begin_anew():
        own.wait_started()
        (own.data / "accelerator.json").unlink()
        restart(own)

    yield begin_anew
    own.wait_started()


class TestTrying:
    def test_what_lives_is_served_meanwhile_and_what_is_started_waits(self, own, api, counting, trying):
        sandbox, session = counting
        vmm, made = own.vmm_of(sandbox), []

        def serves_meanwhile():
            """Whether it was not known yet after all of that, which takes a busy machine longer than the test guest has."""
            trying()
            assert api.check_output(sandbox, "echo served") == "served\n"
            made.append(api.expect((201, 202), "POST", "/v1/sandboxes", {"template": "base"}, query={"wait": 0}).json)
            said, report = own.cli("status").stdout, own.node_report()
            waits = api.expect((200, 202), "GET", f"/v1/operations/{made[-1]['operation']['id']}").status == 202
            assert report["ready"] and report["waiting_for"] == [], report
            return (waits and report["environment"]["accelerator"] == "" and "being tried" in said and
                    "being tried" in report["environment"]["accelerator_reason"])

        poll.until(serves_meanwhile, 200, "what lives is served before the accelerator is known")
        assert own.vmm_of(sandbox) == vmm
        end = so_far(api, session)[1]
        assert suspend(api, sandbox)["sandbox"]["state"] == "suspended", "its record says what it runs under"
        woken = begin(api, sandbox, "wake")
        for operation in (woken, *(one["operation"] for one in made)):
            assert ended(api, operation)["state"] == "succeeded"
        assert accelerator(own) != ""
        assert api.check_output(made[-1]["sandbox"]["id"], "echo made") == "made\n"
        assert goes_on(api, session, end)
        for one in made:
            api.delete(one["sandbox"]["id"])

    def test_the_test_guest_goes_with_the_node(self, own, trying):
        others = set(own.vmms())
        trying()
        (guest,) = poll.until(lambda: set(own.vmms()) - others, 30, "the test guest is there")
        os.kill(own.daemon("space-supervisor"), signal.SIGSTOP)  # it would start the next one, which reaps
        try:
            node = own.daemon("space-node")
            os.kill(node, signal.SIGTERM)
            poll.until(lambda: not machine.is_alive(guest), 10, "the test guest is gone")
        finally:
            os.kill(own.daemon("space-supervisor"), signal.SIGCONT)
        poll.until(lambda: [p for p in own.daemons("space-node") if p != node], 30, "the next one is there")
        own.wait_ready()


class TestBinding:
    @pytest.fixture
    def other_kernel(self, own):
        """The node's next start finds guests of another kernel, as after an update."""
        path = (own.data / "guest/guest.json").resolve()
        before = path.read_text(encoding="utf-8")

        def rename(name):
            path.write_text(json.dumps({**json.loads(before), "kernel_version": name}), encoding="utf-8")
            restart(own)
            own.wait_started()

        yield rename
        path.write_text(before, encoding="utf-8")
        restart(own)
        own.wait_started()

    def test_a_snapshot_names_what_its_vm_was_started_under(self, own, api, counting, other_kernel):
        """Not what would be started now: it would be woken under something else."""
        sandbox, session = counting
        now = own.node_report()["environment"]["kernel"]
        other_kernel("9.9.9-other")
        assert own.node_report()["environment"]["kernel"] == "9.9.9-other"
        end = so_far(api, session)[1]
        suspend(api, sandbox)
        answer = api.ask("POST", f"/v1/sandboxes/{sandbox}/wake", query={"wait": 60})
        error = answer.json["error"] if answer.status >= 400 else answer.json["operation"]["error"]
        assert (error["code"], error["details"]["state"]) == ("failed_precondition", "environment"), answer
        assert f"made with {now}" in error["message"] and "9.9.9-other" in error["message"]
        assert state(api, sandbox) == "suspended"
        other_kernel(now)
        wake(api, sandbox)
        assert goes_on(api, session, end)


class Without:
    """A mount namespace in which /dev/kvm cannot be opened, and the programs of an installation there."""

    def __init__(self, own):
        node = own.top / "no-kvm"
        os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(10, 4095))  # of no driver
        script = f"mount --make-rprivate / && {{ [ ! -e /dev/kvm ] || mount --bind {node} /dev/kvm; }} && echo there && exec cat"
        self.own, self.node = own, node
        self.holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.holder.stdout.readline() == b"there\n"

    def cli(self, *arguments):
        return subprocess.run(
            ["nsenter", "--mount", "--root", "--wd", "--target", str(self.holder.pid), space_binary(), *arguments, "--config",
             str(self.own.config)], text=True, check=False, capture_output=True, timeout=300)

    def close(self):
        self.holder.communicate(b"")
        self.node.unlink()


class TestLost:
    @pytest.fixture
    def without(self, own):
        """It runs with the accelerator `kvm`, and the host has none."""
        own.down()
        own.api.close()
        own.write_config(node__accelerator="kvm")
        place = Without(own)
        try:
            done = place.cli("up")
            assert done.returncode == 0, done
            own.wait_ready()
            yield place
        finally:
            own.api.close()
            done = place.cli("down")
            place.close()
            own.write_config(node__accelerator="auto")
            own.up()
        assert done.returncode == 0, done

    def test_a_create_and_doctor_say_so_and_what_to_do(self, own, api, without):
        environment = own.node_report()["environment"]
        assert (environment["accelerator"], environment["accelerator_reason"]) == ("kvm", "set by node.accelerator")
        answer = api.ask("POST", "/v1/sandboxes", {"template": "base"}, query={"wait": 120})
        assert (answer.status, answer.code, answer.details["reason"]) == (500, "internal", "accelerator_unavailable"), answer
        said = answer.json["error"]["message"]
        for part in ("kvm", "/dev/kvm cannot be opened", "node.accelerator = auto"):
            assert part in said, said
        record = api.sandbox(answer.details["sandbox_id"])
        assert (record["state"], record["state_reason"]["code"]) == ("error", "accelerator_unavailable")
        assert "node.accelerator" in record["state_reason"]["message"]
        api.delete(record["id"])
        checks = {check["name"]: check for check in json.loads(without.cli("doctor", "--json").stdout)["checks"]}
        assert checks["accelerator"]["status"] == "missing" and "/dev/kvm" in checks["accelerator"]["message"], checks
        assert "node.accelerator = auto" in checks["accelerator"]["remedy"]
