"""What only a host with usable KVM, systemd and cgroup v2 shows: the probe, the units, the limits of the jail, an
accelerator that goes away. Run by `make check-kvm` in its emulated host, as the machine's own installation."""

import os
import pathlib
import re
import subprocess
import time

import pytest

from harness import machine, poll
from harness.installation import free_low_port

COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
GROUPS = pathlib.Path("/sys/fs/cgroup")

if not os.environ.get("SPACE_TEST_INSTALLED"):
    pytest.skip("needs the host of make check-kvm", allow_module_level=True)


def state(api, sandbox):
    return api.sandbox(sandbox)["state"]


def lines(api, session):
    data = api.output(session) if session is None else api.expect(200, "GET", f"/v1/sessions/{session}/output").body
    return data[:data.rfind(b"\n") + 1].decode().split()


def counts_on(api, session):
    """It counts on, not a line lost or twice."""
    before = len(lines(api, session))
    poll.until(lambda: len(lines(api, session)) > before + 5, 60, "it counts on")
    found = lines(api, session)
    return found == [str(i) for i in range(1, len(found) + 1)]


def suspend(api, sandbox):
    """Asked again while the guest of an emulated machine takes too long to stand still, which is said and changes nothing."""
    def done():
        answer = api.ask("POST", f"/v1/sandboxes/{sandbox}/suspend", query={"wait": 60})
        assert answer.status == 200 or answer.details["reason"] == "guest_busy", answer
        return answer.status == 200

    poll.until(done, 90, "it is suspended")


def group_of(pid):
    """The cgroup v2 directory of a process."""
    (line,) = machine.read(f"/proc/{pid}/cgroup").decode().splitlines()
    assert line.startswith("0::/")
    return GROUPS / line[4:]


def number(path):
    return int(path.read_text(encoding="ascii"))


def fields(path):
    return dict(line.split() for line in path.read_text(encoding="ascii").splitlines())


@pytest.fixture(scope="module")
def box(installation):
    """One that counts."""
    sandbox = installation.api.create(name="counts")["id"]
    _, session = installation.api.start(sandbox, COUNTER)
    yield {"id": sandbox, "session": session["id"], "vmm": installation.vmm_of(sandbox)}
    installation.api.delete(sandbox)


class TestProbe:
    def test_kvm_was_chosen_and_it_is_said(self, installation):
        installation.wait_started()
        environment = installation.node_report()["environment"]
        assert environment["accelerator"] == "kvm" and "booted" in environment["accelerator_reason"], environment
        said = installation.cli("doctor", check=False).stdout
        assert "AMD-V" in said and "kvm: a test guest booted under KVM" in said

    def test_guests_run_on_it(self, installation, api, box):
        assert "kvm" in machine.cmdline(box["vmm"])[machine.cmdline(box["vmm"]).index("-accel") + 1]
        said = api.check_output(box["id"], "cat /sys/devices/system/clocksource/clocksource0/current_clocksource; "
                                           "grep -c 'hypervisor' /proc/cpuinfo")
        assert said.split() == ["kvm-clock", "1"]


    def test_it_is_found_out_beside_what_is_served(self, installation, api, box):
        """A start that does not know serves what lives; what has to be started waits, and is a guest of KVM then."""
        (installation.data / "accelerator.json").unlink()
        installation.systemctl("restart", "space-node")
        api.close()
        installation.wait_ready()
        answer = api.expect((201, 202), "POST", "/v1/sandboxes", {"template": "base"}, query={"wait": 0}).json
        assert installation.node_report()["environment"]["accelerator"] == "", "not known yet"
        assert api.check_output(box["id"], "echo served") == "served\n"
        assert installation.node_report()["environment"]["accelerator"] == "", "and what lives did not wait for it"
        installation.wait_started()
        assert installation.node_report()["environment"]["accelerator"] == "kvm"
        made = answer["sandbox"]["id"]
        assert api.expect(200, "GET", f"/v1/operations/{answer['operation']['id']}", query={"wait": 120}).json["state"] == "succeeded"
        assert api.check_output(made, "echo made") == "made\n"
        api.delete(made)


class TestTime:
    """The guest's own clocks, which no handshake sets: what KVM and the restore make of them."""

    LOOK = "python3 -c 'import time; print(time.clock_gettime(time.CLOCK_MONOTONIC), time.clock_gettime(time.CLOCK_BOOTTIME))'; " \
           "cat /sys/devices/system/clocksource/clocksource0/current_clocksource"

    def look(self, api, sandbox):
        """(the host's time before and after, the guest's monotonic one); they go together, on the clock of KVM."""
        before = time.monotonic()
        monotonic, boot, source = api.check_output(sandbox, self.LOOK).split()
        assert source == "kvm-clock"
        assert abs(float(monotonic) - float(boot)) < 0.5, "it never slept, as far as it knows"
        return before, time.monotonic(), float(monotonic)

    def check_rate(self, api, sandbox):
        """As many seconds pass inside as outside, to what asking takes and a hundredth."""
        first = self.look(api, sandbox)
        time.sleep(5)  # not for anything to happen: the time that is measured
        second = self.look(api, sandbox)
        passed = second[2] - first[2]
        assert (second[0] - first[1]) * 0.99 <= passed <= (second[1] - first[0]) * 1.01, (first, second)
        return second

    def test_it_goes_on_after_a_suspend_and_in_a_fork(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        first = self.look(api, sandbox)
        suspend(api, sandbox)
        api.post(f"/v1/sandboxes/{sandbox}/wake", query={"wait": 60})
        woken = self.look(api, sandbox)
        # It stood still while nothing of it was there, at most: never back, never ahead of the host's.
        assert first[2] <= woken[2] <= first[2] + (woken[1] - first[0]), (first, woken)
        last = self.check_rate(api, sandbox)
        operation = api.expect(201, "POST", f"/v1/sandboxes/{sandbox}/fork", {"count": 1}, query={"wait": 120}).json["operation"]
        child = operation["result"]["children"][0]["sandbox_id"]
        forked = self.look(api, child)
        assert last[2] <= forked[2] <= last[2] + (forked[1] - last[0]), (last, forked)
        self.check_rate(api, child)
        api.delete(child)


class TestUnits:
    def test_vms_are_in_no_unit(self, installation, box):
        assert group_of(box["vmm"]).parent == GROUPS / installation.name
        for program in ("space-node", "space-api"):
            group = group_of(installation.main_pid(program))
            assert group.name == f"{program}.service"
            assert machine.cgroup_procs(group) == [installation.main_pid(program)], "and nothing is in the daemons'"

    @pytest.mark.parametrize("program", ["space-node", "space-api"])
    def test_a_restart_loses_nothing(self, installation, api, box, program):
        pid = installation.main_pid(program)
        process, session = api.start(box["id"], "sleep 1; echo said; exit 3")
        installation.systemctl("restart", program)
        api.close()
        installation.wait_ready()
        assert installation.main_pid(program) != pid
        assert (state(api, box["id"]), installation.vmm_of(box["id"])) == ("running", box["vmm"])
        assert api.result(box["id"], process["id"])["exit_code"] == 3 and api.output(session["id"]) == b"said\n"
        assert counts_on(api, box["session"])

    @pytest.mark.parametrize("program", ["space-node", "space-api"])
    def test_one_over_its_memory_limit_is_started_again_and_loses_nothing(self, installation, api, box, program):
        pid = installation.main_pid(program)
        process, session = api.start(box["id"], "sleep 2; echo said; exit 3")
        limit = group_of(pid) / "memory.max"
        assert number(limit) == 2 << 30, "the unit's MemoryMax"
        limit.write_text("1M", encoding="ascii")  # less than it uses: the kernel ends it, as it would at 2 GiB
        poll.until(lambda: installation.main_pid(program) not in (0, pid), 60, f"systemd starts {program} again")
        said = machine.output("journalctl", "--no-pager", "--output=cat", "--boot", f"--unit={program}")
        assert "oom-kill" in said or "OOM killer" in said, said[-2000:]
        api.close()
        installation.wait_ready()
        assert number(group_of(installation.main_pid(program)) / "memory.max") == 2 << 30
        assert (state(api, box["id"]), installation.vmm_of(box["id"])) == ("running", box["vmm"])
        assert api.result(box["id"], process["id"])["exit_code"] == 3 and api.output(session["id"]) == b"said\n"
        assert counts_on(api, box["session"])

    def test_an_upgrade_loses_nothing(self, installation, api, box):
        before = [installation.main_pid(p) for p in ("space-node", "space-api")]
        installation.upgrade("space-node", "space-api", "space-vmm")
        assert "started" in installation.cli("up").stdout
        api.close()
        after = [installation.main_pid(p) for p in ("space-node", "space-api")]
        assert not set(before) & set(after)
        assert (state(api, box["id"]), installation.vmm_of(box["id"])) == ("running", box["vmm"])
        assert counts_on(api, box["session"])
        assert installation.systemctl("is-active", "space-node", "space-api") == "active\nactive"


class TestApi:
    def test_a_port_below_1024(self, installation, api):
        """Bound by the service user, who has no capability left when it serves."""
        text, low = installation.config.read_text(encoding="utf-8"), free_low_port()
        api.close()
        installation.config.write_text(re.sub(r"(?m)^api\.listen *=.*$", f"api.listen = 127.0.0.1:{low}", text), encoding="utf-8")
        try:
            assert f"http://127.0.0.1:{low}" in installation.cli("up").stdout
            pid = installation.main_pid("space-api")
            assert machine.status(pid)["Uid"].split()[0] != "0"
            assert all(not any(caps.values()) for caps in machine.capabilities(pid)), machine.capabilities(pid)
        finally:
            installation.config.write_text(text, encoding="utf-8")
            installation.cli("up")
            installation.wait_ready()


class TestLimits:
    """Of a VMM's cgroup, on v2. That more memory than memory.max ends the VM alone is in test_crash.py."""

    def test_what_is_set(self, installation, box):
        group = group_of(box["vmm"])
        assert (group / "cpu.max").read_text(encoding="ascii") == "200000 100000\n", "a guest's one and one for the VMM"
        assert number(group / "pids.max") == 256 and number(group / "memory.oom.group") == 1
        assert number(group / "memory.swap.max") == 0
        assert 512 << 20 < number(group / "memory.max") < 800 << 20
        whole = number(GROUPS / installation.name / "memory.max")
        assert 0 < whole < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") - (512 << 20), "the daemons have a reserve"

    def test_the_guest_has_no_more_processor_than_its_quota(self, api, box):
        group = group_of(box["vmm"])
        (group / "cpu.max").write_text("20000 100000", encoding="ascii")
        try:
            throttled, used, since = int(fields(group / "cpu.stat")["nr_throttled"]), int(fields(group / "cpu.stat")["usage_usec"]), time.monotonic()
            api.run(box["id"], "timeout 3 sh -c 'while :; do :; done'")
            share = (int(fields(group / "cpu.stat")["usage_usec"]) - used) / 1e6 / (time.monotonic() - since)
        finally:
            (group / "cpu.max").write_text("200000 100000", encoding="ascii")
        assert 0.1 < share < 0.3, share
        assert int(fields(group / "cpu.stat")["nr_throttled"]) > throttled

    def test_nothing_in_the_group_makes_more_processes(self, box):
        """As a VMM that was taken over would try to."""
        group = group_of(box["vmm"])
        greedy = "import os, sys, time\n" \
                 "open(sys.argv[1] + '/cgroup.procs', 'w').write('0')\n" \
                 "made = []\n" \
                 "try:\n" \
                 "    while len(made) < 1000:\n" \
                 "        made.append(os.fork())\n" \
                 "        if made[-1] == 0:\n" \
                 "            time.sleep(1000)\n" \
                 "except BlockingIOError:\n" \
                 "    pass\n" \
                 "for pid in made:\n" \
                 "    os.kill(pid, 9)\n" \
                 "for pid in made:\n" \
                 "    os.waitpid(pid, 0)\n" \
                 "print(len(made))\n"
        done = subprocess.run(["python3", "-c", greedy, str(group)], capture_output=True, text=True, check=True)
        assert 200 < int(done.stdout) < 256, "the VMM has the rest"
        assert int(fields(group / "pids.events")["max"]) >= 1

    def test_a_vmm_of_more_memory_is_ended_by_the_kernel_alone(self, api, installation, box):
        """Its own limit, as it is: a process in the group that takes what the guest does not."""
        sandbox = api.create()["id"]
        group = group_of(installation.vmm_of(sandbox))
        # By pages of 2 MiB: a fault for each of 4 KiB is ten seconds of an emulated host.
        eat = "import mmap, sys\nopen(sys.argv[1] + '/cgroup.procs', 'w').write('0')\n" \
              "held = mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n" \
              "held.madvise(mmap.MADV_HUGEPAGE)\nblock = b'x' * (2 << 20)\nwhile True:\n    held.write(block)\n"
        done = subprocess.run(["python3", "-c", eat, str(group)], capture_output=True, check=False)
        assert done.returncode == -9
        poll.until(lambda: state(api, sandbox) == "error", 30, "memory.oom.group ends all of it")
        assert api.sandbox(sandbox)["state_reason"]["code"] == "out_of_memory"
        assert counts_on(api, box["session"])
        api.delete(sandbox)
        assert not group.exists()


class TestDamage:
    def test_a_damaged_snapshot_is_refused_and_kept(self, api, installation, sandboxes):
        sandbox = sandboxes()["id"]
        _, session = api.start(sandbox, COUNTER)
        suspend(api, sandbox)
        for name in ("memory", "state"):
            path = installation.data / "volume/sandboxes" / sandbox / "suspended" / name
            good = path.read_bytes()
            path.write_bytes(good[:len(good) // 2] + bytes([good[len(good) // 2] ^ 1]) + good[len(good) // 2 + 1:])
            refused = api.ask("POST", f"/v1/sandboxes/{sandbox}/wake", query={"wait": 60})
            assert refused.status == 500 and "damaged" in refused.json["error"]["message"], (name, refused)
            assert state(api, sandbox) == "suspended"
            path.write_bytes(good)
        api.post(f"/v1/sandboxes/{sandbox}/wake", query={"wait": 60})
        assert counts_on(api, session["id"])


class TestFork:
    def test_children_go_on_under_identities_of_their_own(self, installation, api, box):
        """What more of it there is (terminals, connections, open transactions, TLS) is in test_fork.py."""
        facts = "cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id /etc/machine-id; hostname"
        answer = api.expect(201, "POST", f"/v1/sandboxes/{box['id']}/fork", {"count": 2}, query={"wait": 120}).json
        children = answer["operation"]["result"]["children"]
        assert [child["error"] for child in children] == [None, None]
        seen = [api.check_output(box["id"], facts).split()]
        for child in (child["sandbox_id"] for child in children):
            record = api.sandbox(child)
            assert (record["state"], record["parent_id"]) == ("running", box["id"])
            assert all(record["identity"][part] for part in ("entropy", "clock", "hostname", "machine_id", "tokens"))
            seen.append(api.check_output(child, facts).split())
            counter, = [p for p in api.get(f"/v1/sandboxes/{child}/processes")["items"] if p["state"] == "running"]
            assert counter["session_id"] != box["session"] and counts_on(api, counter["session_id"])
        for values in zip(*seen):
            assert len(set(values)) == 3, f"all different: {values}"
        assert counts_on(api, box["session"]) and installation.vmm_of(box["id"]) == box["vmm"]
        for child in children:
            api.delete(child["sandbox_id"])


class TestAccelerator:
    @pytest.fixture
    def kvm(self, installation):
        """Moves the device away and back, as an update of the host that lost its module. Nothing is made ahead meanwhile, which
        would be emulated in the emulated host."""
        here, away = pathlib.Path("/dev/kvm"), pathlib.Path("/dev/kvm.away")
        text = installation.config.read_text(encoding="utf-8")

        def restart():
            installation.systemctl("restart", "space-node")
            installation.wait_ready()
            installation.wait_started()

        def lose():
            installation.config.write_text(re.sub(r"(?m)^(node\.warm_pools) *=.*$", r"\1 = base=0", text), encoding="utf-8")
            here.rename(away)

        def bring_back():
            installation.config.write_text(text, encoding="utf-8")
            away.rename(here)
            restart()

        yield lose, restart, bring_back
        if away.exists():
            bring_back()

    def test_a_snapshot_of_the_other_accelerator_is_refused_and_kept(self, installation, api, box, sandboxes, kvm):
        lose, restart, bring_back = kvm
        sandbox = sandboxes()["id"]
        _, session = api.start(sandbox, COUNTER)
        suspend(api, sandbox)
        lose()
        # Until a restart nothing is emulated: what has to be started fails at once, and says what to do.
        refused = api.ask("POST", f"/v1/sandboxes/{sandbox}/wake", query={"wait": 60})
        error = refused.json["error"] if refused.status >= 400 else refused.json["operation"]["error"]
        assert error["code"] == "internal" and "accelerator_unavailable" in error["message"], refused
        assert "/dev/kvm cannot be opened" in error["message"], error
        assert state(api, sandbox) == "suspended"
        restart()
        environment = installation.node_report()["environment"]
        assert environment["accelerator"] == "tcg" and "/dev/kvm cannot be opened" in environment["accelerator_reason"]
        answer = api.ask("POST", f"/v1/sandboxes/{sandbox}/wake", query={"wait": 60})
        error = answer.json["error"] if answer.status >= 400 else answer.json["operation"]["error"]
        assert (error["code"], error["details"]["state"]) == ("failed_precondition", "environment"), answer
        assert "accelerator" in error["message"] and "kvm" in error["message"] and "tcg" in error["message"]
        assert state(api, sandbox) == "suspended"
        # What runs, runs on: its VMM has the device open.
        assert installation.vmm_of(box["id"]) == box["vmm"] and counts_on(api, box["session"])
        bring_back()
        api.post(f"/v1/sandboxes/{sandbox}/wake", query={"wait": 60})
        assert counts_on(api, session["id"])


class TestLevels:
    """A named level instead of the machine's own processor, as a cluster of different machines has it."""

    @pytest.fixture
    def set_cpu(self, installation):
        text = installation.config.read_text(encoding="utf-8")

        def make(value):
            installation.config.write_text(re.sub(r"(?m)^node\.cpu = .*$", f"node.cpu = {value}", text), encoding="utf-8")
            installation.systemctl("restart", "space-node")
            installation.wait_ready()

        yield make
        installation.config.write_text(text, encoding="utf-8")
        installation.systemctl("restart", "space-node")
        installation.wait_ready()

    def test_guests_have_it_and_snapshots_need_it(self, installation, api, sandboxes, set_cpu):
        flags = "grep -m 1 ^flags /proc/cpuinfo"
        own = set(api.check_output(sandboxes()["id"], flags).split())
        assert {"adx", "rdseed"} <= own, "the host's own has more than the level"
        set_cpu("x86-64-v3")
        sandbox = sandboxes()["id"]
        leveled = set(api.check_output(sandbox, flags).split())
        assert {"sse4_2", "avx2", "bmi2", "fma"} <= leveled and not {"adx", "rdseed"} & leveled
        _, session = api.start(sandbox, COUNTER)
        suspend(api, sandbox)
        set_cpu("host")
        answer = api.ask("POST", f"/v1/sandboxes/{sandbox}/wake", query={"wait": 60})
        error = answer.json["error"] if answer.status >= 400 else answer.json["operation"]["error"]
        assert (error["code"], error["details"]["state"]) == ("failed_precondition", "environment"), answer
        assert "processor model" in error["message"] and state(api, sandbox) == "suspended"
        set_cpu("x86-64-v3")
        api.post(f"/v1/sandboxes/{sandbox}/wake", query={"wait": 60})
        assert counts_on(api, session["id"])


class TestEnd:
    @pytest.mark.last
    def test_down_leaves_nothing(self, installation):
        api = installation.api
        for item in api.get("/v1/sandboxes", query={"limit": 1000})["items"]:
            api.delete(item["id"])
        assert not list((installation.data / "volume/sandboxes").iterdir())
        api.close()
        installation.down()
        assert subprocess.run(["systemctl", "is-active", "space-node", "space-api"], capture_output=True, text=True,
                              check=False).stdout == "inactive\ninactive\n"
        poll.until(lambda: not installation.leaks(), 10, "everything is gone")
