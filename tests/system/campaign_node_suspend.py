"""Suspend and wake on the node: memory, files, terminals and offsets, damage, full disks, kill -9 at every step."""

import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from harness import machine, poll
from harness.node_alone import Node, new_id
from harness.steps import Steps

SYS_PIDFD_GETFD = 438
COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"


@pytest.fixture(scope="module")
def node():
    made = Node("sus", uid_first=1_300_000, node__warm_pools="base=1", node__prepared_pool=1)
    made.prepare()
    yield made
    made.remove()


@pytest.fixture
def sandboxes(node):
    made = []

    def create(**body):
        made.append(node.create(**body))
        return made[-1]

    yield create
    for sandbox in made:
        node.delete(sandbox)


def counted(node, sandbox, session):
    return node.spool(sandbox, session).decode().split()


def is_row(lines):
    return lines == [str(i) for i in range(1, len(lines) + 1)]


class TestSuspend:
    def test_everything_is_carried_through(self, node, sandboxes):
        sandbox = sandboxes()
        node.output(sandbox, "echo before > /home/user/file; head -c 5M /dev/urandom > /home/user/big; "
                             "sha256sum /home/user/big > /home/user/sum")
        counter, counting = node.command(sandbox, shell=COUNTER)
        repl, talking = node.command(sandbox, argv=["python3", "-q"], tty={"cols": 80, "rows": 24, "term": "dumb"})
        node.write(sandbox, repl, b"kept = 6 * 7\n")
        poll.until(lambda: node.spool(sandbox, talking).count(b">>> ") >= 2, 120, "the terminal has it")
        poll.until(lambda: len(counted(node, sandbox, counting)) > 10, 60, "it counts")
        node.output(sandbox, "echo just before > /home/user/last")  # not synchronised by anybody
        before = node.get(f"/n1/sandboxes/{sandbox}").json
        vmms = len(node.installation.vmms())
        answer = node.suspend(sandbox)
        assert answer["state"] == "suspended" and answer["reason"] is None
        assert node.suspend(sandbox)["state"] == "suspended", "already there is success"
        poll.until(lambda: len(node.installation.vmms()) < vmms or not node.folder(sandbox).joinpath("disk.img").exists(),
                   30, "the VM is gone")
        end = len(node.spool(sandbox, counting))
        assert is_row(counted(node, sandbox, counting)), "output can be read while it is suspended"
        refused = node.ask("POST", f"/n1/sandboxes/{sandbox}/run",
                           {"shell": "true", "process_id": new_id("pr", sandbox), "session_id": new_id("se", sandbox)})
        assert refused.status == 409 and refused.json["error"]["details"]["state"] == "suspended"
        time.sleep(1)
        assert len(node.spool(sandbox, counting)) == end

        answer = node.wake(sandbox)
        assert answer["state"] == "running"
        assert answer["identity"]["epoch"] == before["identity"]["epoch"] + 1
        assert all(answer["identity"][part] for part in ("entropy", "clock", "hostname", "machine_id", "tokens"))
        poll.until(lambda: len(node.spool(sandbox, counting)) > end + 20, 60, "it counts on")
        assert is_row(counted(node, sandbox, counting)), "not a line lost or twice"
        assert node.output(sandbox, "cat /home/user/file /home/user/last") == "before\njust before\n"
        assert "OK" in node.output(sandbox, "sha256sum -c /home/user/sum")
        node.write(sandbox, repl, b"print('kept', kept)\n")
        poll.until(lambda: b"kept 42" in node.spool(sandbox, talking), 60, "the terminal goes on")
        node.expect(200, "POST", f"/n1/sandboxes/{sandbox}/processes/{counter}/kill")
        assert not node.folder(sandbox).joinpath("suspended").exists() or poll.until(
            lambda: not node.folder(sandbox).joinpath("suspended").exists(), 30, "the snapshot is removed")

    def test_the_clock_is_right_and_randomness_is_new(self, node, sandboxes):
        sandbox = sandboxes()
        ids = [node.output(sandbox, "cat /proc/sys/kernel/random/boot_id /etc/machine-id; hostname")]
        node.suspend(sandbox)
        time.sleep(3)
        node.wake(sandbox)
        before = time.time()
        guest = float(node.output(sandbox, "date +%s.%N"))
        assert before - 0.05 < guest < time.time() + 0.05
        ids.append(node.output(sandbox, "cat /proc/sys/kernel/random/boot_id /etc/machine-id; hostname"))
        (boot1, machine1, host1), (boot2, machine2, host2) = (text.split() for text in ids)
        assert boot1 != boot2, "who asks sees that it was restored"
        assert (machine1, host1) == (machine2, host2), "it is the same machine"

    def test_a_paused_one_can_be_suspended(self, node, sandboxes):
        sandbox = sandboxes()
        _, session = node.command(sandbox, shell=COUNTER)
        poll.until(lambda: len(counted(node, sandbox, session)) > 3, 60, "it counts")
        node.expect(200, "POST", f"/n1/sandboxes/{sandbox}/pause")
        assert node.suspend(sandbox)["state"] == "suspended"
        node.wake(sandbox)
        end = len(node.spool(sandbox, session))
        poll.until(lambda: len(node.spool(sandbox, session)) > end + 10, 60, "it counts on")
        assert is_row(counted(node, sandbox, session))

    def test_a_limit_of_time_stands_still(self, node, sandboxes):
        sandbox = sandboxes()
        result = []
        worker = threading.Thread(target=lambda: result.append(node.run(sandbox, "sleep 2; echo done", timeout_seconds=15)))
        worker.start()
        poll.until(lambda: node.get(f"/n1/sandboxes/{sandbox}/processes").json["items"], 60, "it runs")
        node.suspend(sandbox)  # of the limit, which a first one may take seconds of
        time.sleep(15)
        node.wake(sandbox)
        worker.join(120)
        assert result[0]["stdout"] == "done\n" and not result[0]["timed_out"], result

    def test_many_times_costs_the_same(self, node, sandboxes):
        sandbox = sandboxes()
        sizes = []
        for _ in range(8):
            node.suspend(sandbox)
            sizes.append((node.folder(sandbox) / "suspended/memory").stat().st_size)
            node.wake(sandbox)
        assert node.output(sandbox, "echo alive") == "alive\n"
        assert sizes[-1] < 1.5 * sizes[1] + 4_000_000, sizes

    def test_states_that_refuse(self, node, sandboxes):
        sandbox = sandboxes()
        node.suspend(sandbox)
        refused = node.ask("POST", f"/n1/sandboxes/{sandbox}/pause")
        assert refused.status == 409 and refused.json["error"]["details"]["state"] == "suspended"
        assert refused.json["sandbox"]["state"] == "suspended"
        assert node.get(f"/n1/sandboxes/{sandbox}/files?path=/etc/hostname").status == 409
        assert node.get(f"/n1/sandboxes/{sandbox}/console").status == 200

    def test_delete_in_every_state(self, node):
        for prepare in (lambda s: node.suspend(s),
                        lambda s: threading.Thread(target=node.ask, args=("POST", f"/n1/sandboxes/{s}/suspend")).start(),
                        lambda s: (node.suspend(s), threading.Thread(
                            target=node.ask, args=("POST", f"/n1/sandboxes/{s}/wake")).start())):
            sandbox = node.create()
            prepare(sandbox)
            node.delete(sandbox)
            assert not node.folder(sandbox).exists()
            assert node.get(f"/n1/sandboxes/{sandbox}").status == 404


class TestDamage:
    @pytest.mark.parametrize("name", ["memory", "state", "snapshot.json"])
    def test_a_damaged_snapshot_is_refused_and_kept(self, node, sandboxes, name):
        sandbox = sandboxes()
        node.suspend(sandbox)
        node.installation.wait_warm()  # what starts from here on is the wake's
        path = node.folder(sandbox) / "suspended" / name
        good = path.read_bytes()
        bad = bytearray(good)
        bad[len(bad) // 2] ^= 1
        path.write_bytes(bad)
        vmms = node.installation.vmms()
        refused = node.ask("POST", f"/n1/sandboxes/{sandbox}/wake")
        assert refused.status == 500 and "damaged" in refused.json["error"]["message"], refused.body
        assert refused.json["sandbox"]["state"] == "suspended"
        assert not set(node.installation.vmms()) - set(vmms), "no VM was started for it"
        path.write_bytes(good[:-1])
        assert node.ask("POST", f"/n1/sandboxes/{sandbox}/wake").status == 500
        path.write_bytes(good)
        assert node.wake(sandbox)["state"] == "running"

    def test_a_guest_that_goes_on_is_not_taken_back(self, node, sandboxes):
        """Its processes run when the record is to say so: that cannot fail any more."""
        sandbox = sandboxes()
        folder = node.folder(sandbox)
        _, session = node.command(sandbox, shell=COUNTER)
        poll.until(lambda: len(counted(node, sandbox, session)) > 3, 60, "it counts")
        node.suspend(sandbox)
        answers = []
        asking = threading.Thread(target=lambda: answers.append(node.ask("POST", f"/n1/sandboxes/{sandbox}/wake")))
        asking.start()
        poll.until(lambda: json.loads((folder / "journal.json").read_text())["state"] == "waking", 60, "it wakes", every=0.0005)
        obstacle = folder / "journal.json.new"  # what every write of it begins with
        obstacle.mkdir()
        try:
            asking.join()
            assert answers[0].status == 200 and answers[0].json["state"] == "running", answers[0].body
            assert json.loads((folder / "journal.json").read_text())["state"] == "running"
        finally:
            obstacle.rmdir()
        node.restart()
        poll.until(lambda: node.state(sandbox) == "running", 60, "it runs", every=0.05)
        end = len(node.spool(sandbox, session))
        poll.until(lambda: len(node.spool(sandbox, session)) > end + 10, 60, "it counts on")
        assert is_row(counted(node, sandbox, session))
        assert not (folder / "journal.next").exists()

    def test_a_full_disk_leaves_it_running(self, node, sandboxes):
        sandbox = sandboxes()
        _, session = node.command(sandbox, shell=COUNTER)
        poll.until(lambda: len(counted(node, sandbox, session)) > 3, 60, "it counts")
        volume = node.installation.data / "volume"
        filler = volume / "filler"
        free = os.statvfs(volume).f_bavail * os.statvfs(volume).f_frsize
        subprocess.run(["fallocate", "-l", str(free - 40 * 1048576), str(filler)], check=True)
        try:
            refused = node.ask("POST", f"/n1/sandboxes/{sandbox}/suspend")
            assert refused.status == 507, refused.body
            assert refused.json["error"]["code"] == "storage_full" and refused.json["sandbox"]["state"] == "running"
        finally:
            filler.unlink()
        end = len(node.spool(sandbox, session))
        poll.until(lambda: len(node.spool(sandbox, session)) > end + 10, 60, "it counts on")
        assert is_row(counted(node, sandbox, session))
        assert node.suspend(sandbox)["state"] == "suspended"


@pytest.fixture
def hasty(node):
    """The node waits a second for a guest's silence."""
    node.kill(signal.SIGTERM)
    node.installation.write_config(node__silence_timeout_ms=1000)
    node.start()
    yield node
    node.kill(signal.SIGTERM)
    del node.installation.settings["node.silence_timeout_ms"]
    node.installation.write_config()
    node.start()


def written(pid):
    with open(f"/proc/{pid}/io", encoding="ascii") as f:
        return int(re.search(r"^write_bytes: (\d+)", f.read(), re.MULTILINE)[1])


class TestBusyGuest:
    """One that does not come to a SILENCE keeps its sandbox, also when the node dies before it does."""

    @pytest.mark.parametrize("verb", ["pause", "suspend", "checkpoint"])
    @pytest.mark.parametrize("restart", [False, True], ids=["goes on", "restart"])
    def test_it_runs_on(self, hasty, sandboxes, verb, restart):
        node, sandbox = hasty, sandboxes()
        _, session = node.command(sandbox, shell=COUNTER)
        poll.until(lambda: len(counted(node, sandbox, session)) > 3, 60, "it counts")
        vmm = node.installation.vmm_of(sandbox)
        os.kill(vmm, signal.SIGSTOP)
        try:
            refused = (node.ask("PUT", f"/n1/checkpoints/{new_id('ck')}", {"sandbox": sandbox}) if verb == "checkpoint"
                       else node.ask("POST", f"/n1/sandboxes/{sandbox}/{verb}"))
            error = refused.json["error"]
            assert (refused.status, error["code"], error["retryable"]) == (504, "deadline_exceeded", True), error
            assert error["details"] == {"reason": "guest_busy"}
            assert node.state(sandbox) == "running"
            if restart:
                node.kill()
                node.spawn()
        finally:
            os.kill(vmm, signal.SIGCONT)
        node.wait_ready()
        end = len(node.spool(sandbox, session))
        poll.until(lambda: len(node.spool(sandbox, session)) > end + 10, 60, "it counts on")
        assert is_row(counted(node, sandbox, session)), "not a line lost or twice"
        assert node.output(sandbox, "echo alive") == "alive\n"
        assert node.installation.vmm_of(sandbox) == vmm
        poll.until(lambda: node.ask("POST", f"/n1/sandboxes/{sandbox}/suspend").status == 200, 60, "it can be suspended")
        node.wake(sandbox)
        assert node.output(sandbox, "echo alive") == "alive\n"

    @staticmethod
    def checkpoint_met_a_busy_guest(node, sandbox, name):
        """Of a paused one. False: the guest had written it all down before its VMM stood still."""
        node.output(sandbox, "echo 90 > /proc/sys/vm/dirty_ratio; echo 90 > /proc/sys/vm/dirty_background_ratio; "
                             f"rm -f /home/user/big*; head -c 300M /dev/zero > /home/user/{name}", user="root")
        assert node.ask("POST", f"/n1/sandboxes/{sandbox}/pause").status == 200
        vmm = node.installation.vmm_of(sandbox)
        before = written(vmm)
        answers = []
        asking = threading.Thread(target=lambda: answers.append(
            node.ask("PUT", f"/n1/checkpoints/{new_id('ck')}", {"sandbox": sandbox})))
        asking.start()
        while asking.is_alive() and written(vmm) < before + (8 << 20):
            pass
        os.kill(vmm, signal.SIGSTOP)
        asking.join(3)  # longer than the node waits
        os.kill(vmm, signal.SIGCONT)
        asking.join(60)
        if answers[0].status == 200:
            return False
        assert (answers[0].status, answers[0].json["error"]["details"]) == (504, {"reason": "guest_busy"})
        return True

    def test_a_paused_one_stays_paused(self, hasty, sandboxes):
        """It is woken for its checkpoint, and stops in the middle of what it has to write down for that."""
        node, sandbox = hasty, sandboxes()
        _, session = node.command(sandbox, shell=COUNTER)
        for attempt in range(6):
            if self.checkpoint_met_a_busy_guest(node, sandbox, f"big{attempt}"):
                break
            node.wake(sandbox)
        else:
            pytest.fail("the guest was always done before it was stopped")
        poll.until(lambda: node.state(sandbox) == "paused", 20, "it is paused again")
        end = len(node.spool(sandbox, session))
        time.sleep(2)
        assert node.state(sandbox) == "paused" and len(node.spool(sandbox, session)) == end
        node.wake(sandbox)
        poll.until(lambda: len(node.spool(sandbox, session)) > end + 10, 60, "it counts on")
        assert is_row(counted(node, sandbox, session)), "not a line lost or twice"
        assert node.output(sandbox, "echo alive") == "alive\n"
        poll.until(lambda: node.ask("POST", f"/n1/sandboxes/{sandbox}/suspend").status == 200, 60, "it can be suspended")


def test_few_wakes_load_at_once(node, sandboxes):
    """Many are asked for in one moment: two check a snapshot and fill a VM, and all come."""
    steps = Steps(node.installation)
    node.restart()
    made = [sandboxes(memory_mib=256) for _ in range(8)]
    for sandbox in made:
        node.suspend(sandbox)
    mark = steps.mark()
    asking = [threading.Thread(target=ask, args=(node, "POST", f"/n1/sandboxes/{sandbox}/wake")) for sandbox in made]
    for one in asking:
        one.start()
    for one in asking:
        one.join(240)
    assert [node.state(sandbox) for sandbox in made] == ["running"] * len(made)
    passed = [name for name in steps.names("space-node")[mark["space-node"]:]
              if name in ("check snapshot", "filled snapshot")]
    loading, most = 0, 0
    for name in passed:
        loading += 1 if name == "check snapshot" else -1
        most = max(most, loading)
    assert len(passed) == 2 * len(made) and loading == 0 and most == 2, passed
    shutil.rmtree(steps.place)
    node.restart()


class Unsyncable:
    """While it lasts the sandbox's record cannot be synchronised: one of its files cannot be opened."""

    def __init__(self, path):
        self.path, self.aside = path, path.with_suffix(".aside")

    def __enter__(self):
        if self.path.exists():
            self.path.rename(self.aside)
        self.path.symlink_to("nowhere")

    def __exit__(self, *exception):
        self.path.unlink()
        if self.aside.exists():
            self.aside.rename(self.path)


class TestSync:
    """What has not reached stable storage makes nothing superfluous."""

    @pytest.mark.parametrize("name", ["env.json", "sessions/out"])
    def test_a_suspend_that_cannot_be_synchronised_is_undone(self, node, sandboxes, name):
        sandbox = sandboxes()
        folder = node.folder(sandbox)
        _, session = node.command(sandbox, shell=COUNTER)
        poll.until(lambda: len(counted(node, sandbox, session)) > 3, 60, "it counts")
        vmm = node.installation.vmm_of(sandbox)
        with Unsyncable(folder / name):
            refused = node.ask("POST", f"/n1/sandboxes/{sandbox}/suspend")
            assert refused.status == 500 and refused.json["sandbox"]["state"] == "running", refused.body
            assert (folder / "disk.img").exists() and node.installation.vmm_of(sandbox) == vmm
            assert journal_state(node, sandbox) == "running"
        end = len(node.spool(sandbox, session))
        poll.until(lambda: len(node.spool(sandbox, session)) > end + 10, 60, "it counts on")
        assert is_row(counted(node, sandbox, session))
        assert node.suspend(sandbox)["state"] == "suspended"
        assert not (folder / "disk.img").exists()

    def test_a_snapshot_outlives_a_wake_that_cannot_be_synchronised(self, node, sandboxes):
        sandbox = sandboxes()
        folder = node.folder(sandbox)
        node.suspend(sandbox)
        with Unsyncable(folder / "env.json"):
            node.wake(sandbox)
            node.output(sandbox, "echo since > /home/user/since")
            refused = node.ask("POST", f"/n1/sandboxes/{sandbox}/suspend")
            assert refused.status == 503 and node.state(sandbox) == "running", refused.body
            assert (folder / "suspended/snapshot.json").exists()
        poll.until(lambda: node.ask("POST", f"/n1/sandboxes/{sandbox}/suspend").status == 200, 60, "it can be removed")
        node.wake(sandbox)
        assert node.output(sandbox, "cat /home/user/since") == "since\n"

    def test_one_without_its_snapshot_keeps_its_disk(self, node, sandboxes):
        """As after a power cut that lost one and not the other."""
        sandbox = sandboxes()
        folder = node.folder(sandbox)
        node.suspend(sandbox)
        node.kill()
        (folder / "suspended/snapshot.json").unlink()
        shutil.copy(folder / "suspended/disk.img", folder / "disk.img")
        for _ in range(2):
            node.start()
            answer = node.get(f"/n1/sandboxes/{sandbox}").json
            assert (answer["state"], answer["reason"]["code"]) == ("error", "snapshot_lost"), answer
            node.kill()
            assert (folder / "disk.img").exists() and (folder / "suspended/disk.img").exists()
        node.start()


@pytest.fixture(scope="class")
def counting(node):
    sandbox = node.create()
    _, session = node.command(sandbox, shell=COUNTER)
    poll.until(lambda: len(counted(node, sandbox, session)) > 3, 60, "it counts")
    yield sandbox, session
    node.delete(sandbox)


def journal_state(node, sandbox):
    return json.loads((node.folder(sandbox) / "journal.json").read_text())["state"]


def on_disk(node, sandbox, path):
    """What a file holds in the filesystem on the disk, without a guest."""
    return machine.output("debugfs", "-R", f"cat {path}", str(node.folder(sandbox) / "disk.img"))


class TestStopAll:
    def test_guests_power_off_and_suspends_are_settled(self, node, sandboxes):
        """Nobody types sync. What was being suspended is stopped as one that runs; what is suspended stays so."""
        running, cut, paused, asleep = (sandboxes() for _ in range(4))
        for sandbox in (running, cut, paused, asleep):
            node.output(sandbox, "echo precious > /home/user/file")
        node.expect(200, "POST", f"/n1/sandboxes/{paused}/pause")
        node.suspend(asleep)
        vmm = node.installation.vmm_of(cut)
        os.kill(vmm, signal.SIGSTOP)  # so that suspending lasts
        asking = threading.Thread(target=ask, args=(node, "POST", f"/n1/sandboxes/{cut}/suspend"))
        asking.start()
        poll.until(lambda: journal_state(node, cut) == "suspending", 60, "it is being suspended")
        node.kill(signal.SIGTERM)
        asking.join()
        os.kill(vmm, signal.SIGCONT)
        node.stop_all()
        assert not node.installation.vmms()
        for sandbox in (running, cut):
            assert on_disk(node, sandbox, "/home/user/file") == "precious\n"
        node.start()
        for sandbox in (running, cut, paused):
            answer = node.get(f"/n1/sandboxes/{sandbox}").json
            assert (answer["state"], answer["reason"]["code"]) == ("error", "host_restarted"), answer
        assert node.state(asleep) == "suspended"
        node.wake(asleep)
        assert node.output(asleep, "cat /home/user/file") == "precious\n"

    def test_a_guest_that_does_not_answer_is_killed(self, node, sandboxes):
        """After a while that has a bound; it keeps nobody else from powering off."""
        good, bad = sandboxes(), sandboxes()
        node.output(good, "echo precious > /home/user/file")
        node.kill(signal.SIGTERM)
        vmm = node.installation.vmm_of(bad)
        os.kill(vmm, signal.SIGSTOP)
        begin = time.monotonic()
        node.stop_all()
        assert 10 < time.monotonic() - begin < 60
        assert not node.installation.vmms() and not machine.is_alive(vmm)
        assert on_disk(node, good, "/home/user/file") == "precious\n"
        node.start()
        for sandbox in (good, bad):
            answer = node.get(f"/n1/sandboxes/{sandbox}").json
            assert (answer["state"], answer["reason"]["code"]) == ("error", "host_restarted"), answer


def ask(node, *call):
    """A call that the end of the node may cut."""
    try:
        node.ask(*call)
    except OSError:
        pass


def set_backlog(pid, size):
    """Of a VMM's control and agent sockets."""
    process = os.pidfd_open(pid)
    for number in (3, 4):
        fd = ctypes.CDLL(None, use_errno=True).syscall(SYS_PIDFD_GETFD, process, number, 0)
        assert fd >= 0, os.strerror(ctypes.get_errno())
        with socket.socket(fileno=fd) as listener:
            listener.listen(size)
    os.close(process)


class TestRestarts:
    @pytest.mark.parametrize("backlog", [None, 1], ids=["as it is", "as QEMU makes it"])
    def test_a_vmm_that_stands_still_meanwhile(self, node, sandboxes, backlog):
        """Each restart leaves a connection at its sockets. Where there is no room left the next ones wait."""
        sandbox = sandboxes()
        _, session = node.command(sandbox, shell=COUNTER)
        poll.until(lambda: len(counted(node, sandbox, session)) > 3, 60, "it counts")
        vmm = node.installation.vmm_of(sandbox)
        if backlog is not None:
            set_backlog(vmm, backlog)
        os.kill(vmm, signal.SIGSTOP)
        for _ in range(4):
            node.kill(signal.SIGKILL)
            node.spawn()
            assert machine.is_alive(vmm)
        os.kill(vmm, signal.SIGCONT)
        node.wait_ready()
        end = len(node.spool(sandbox, session))
        poll.until(lambda: len(node.spool(sandbox, session)) > end + 10, 60, "it counts on")
        assert node.installation.vmm_of(sandbox) == vmm and node.state(sandbox) == "running"
        assert is_row(counted(node, sandbox, session)), "not a line lost or twice"

    def test_suspended_ones_survive_a_restart(self, node, sandboxes):
        sandbox = sandboxes()
        _, session = node.command(sandbox, shell=COUNTER)
        poll.until(lambda: len(counted(node, sandbox, session)) > 3, 60, "it counts")
        node.suspend(sandbox)
        node.restart()
        assert node.state(sandbox) == "suspended"
        assert is_row(counted(node, sandbox, session))
        node.wake(sandbox)
        end = len(node.spool(sandbox, session))
        poll.until(lambda: len(node.spool(sandbox, session)) > end + 10, 60, "it counts on")
        assert is_row(counted(node, sandbox, session))

    def test_an_earlier_snapshot_never_comes_back(self, node, sandboxes):
        """kill -9 early in a suspend, with what the last one made still there: it runs, with all that it did since."""
        sandbox = sandboxes()
        folder = node.folder(sandbox)
        node.suspend(sandbox)
        aside = folder.parent.parent / "aside"
        subprocess.run(["cp", "-al", str(folder / "suspended"), str(aside)], check=True)
        node.wake(sandbox)
        poll.until(lambda: not (folder / "suspended").exists(), 30, "the snapshot is removed")
        node.output(sandbox, "echo since > /home/user/file; sync")
        node.kill(signal.SIGKILL)
        journal = json.loads((folder / "journal.json").read_text())
        assert journal["state"] == "running" and journal["asleep"] is False
        (folder / "journal.json").write_text(json.dumps(dict(journal, state="suspending", capture_id=12345)))
        aside.rename(folder / "suspended")
        node.start()
        poll.until(lambda: node.state(sandbox) == "running", 60, "it runs", every=0.05)
        assert node.output(sandbox, "cat /home/user/file") == "since\n"
        assert node.suspend(sandbox)["state"] == "suspended"
        node.wake(sandbox)
        assert node.output(sandbox, "cat /home/user/file") == "since\n"

    @pytest.mark.parametrize("verb, step", [("suspend", step) for step in (
        "suspending", "begun", "captured", "written", "whole", "suspended", "released")] + [
            ("wake", step) for step in ("waking", "spawned", "moved", "running", "removed")])
    def test_kill_at_each_step(self, node, counting, verb, step):
        """kill -9 when a step can be seen in the files: then suspended or running, and nothing is lost."""
        sandbox, session = counting
        folder = node.folder(sandbox)
        slots = node.installation.run_dir / node.installation.name / "vm"
        if node.state(sandbox) == ("suspended" if verb == "suspend" else "running"):
            (node.wake if verb == "suspend" else node.suspend)(sandbox)
        poll.until(lambda: verb == "wake" or not (folder / "suspended").exists(), 30, "the last snapshot is gone")
        before = set(os.listdir(slots))

        def journal():
            return journal_state(node, sandbox)

        is_there = {
            "suspending": lambda: journal() == "suspending",
            "begun": lambda: (folder / "suspended.new").exists(),
            "captured": lambda: (folder / "suspended.new/memory").exists(),
            "written": lambda: (folder / "suspended.new/snapshot.json").exists() or (folder / "suspended").exists(),
            "whole": lambda: (folder / "suspended").exists(),
            "suspended": lambda: journal() == "suspended",
            "released": lambda: journal() == "suspended" and not (folder / "disk.img").exists(),
            "waking": lambda: journal() == "waking",
            "spawned": lambda: journal() == "waking" and set(os.listdir(slots)) - before,
            "moved": lambda: journal() != "suspended" and (folder / "disk.img").exists(),
            "running": lambda: journal() == "running",
            "removed": lambda: journal() == "running" and not (folder / "suspended").exists(),
        }[step]

        asking = threading.Thread(target=ask, args=(node, "POST", f"/n1/sandboxes/{sandbox}/{verb}"))
        asking.start()
        poll.until(is_there, 60, step, every=0.0005)
        node.kill(signal.SIGKILL)
        asking.join()
        found = journal()
        want = {"running": "running", "suspending": "suspended" if (folder / "suspended").exists() else "running"}.get(
            found, "suspended")
        node.start()
        state = poll.until(lambda: (lambda s: s in ("running", "suspended") and s)(node.state(sandbox)), 60,
                           "a definite state", every=0.05)
        assert state == want, (step, found, state)
        assert is_row(counted(node, sandbox, session))
        poll.until(lambda: not [p.name for p in folder.iterdir() if p.name.endswith((".new", ".old"))], 30,
                   "nothing half-made is left")
        assert (folder / "disk.img").exists() == (state == "running")
        if state == "suspended":
            node.wake(sandbox)
        end = len(node.spool(sandbox, session))
        poll.until(lambda: len(node.spool(sandbox, session)) > end + 10, 60, "it counts on")
        assert is_row(counted(node, sandbox, session)), "not a line lost or twice"
        print(f"step {verb}/{step}: journal {found}, then {state}")
