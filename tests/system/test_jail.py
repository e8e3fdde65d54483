"""The jail of a VMM, seen from the host's /proc."""

import os
import pathlib
import socket

import pytest

from harness import machine, poll


@pytest.fixture(scope="module")
def vmms(installation, shared):
    found = installation.vmms()
    assert found, "no VMM runs"
    return found


def test_each_has_a_uid_of_its_own_and_no_privilege(installation, vmms):
    uids = []
    for pid in vmms:
        status = machine.status(pid)
        uid, gid = status["Uid"].split(), status["Gid"].split()
        assert len(set(uid)) == 1 and len(set(gid)) == 1
        assert int(uid[0]) in installation.uids() and int(gid[0]) != 0
        assert set(status["Groups"].split()) <= {gid[0]}
        uids.append(uid[0])
        for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
            assert int(status[name], 16) == 0, (pid, name)
        assert status["NoNewPrivs"] == "1", pid
    assert len(set(uids)) == len(uids)


def test_each_has_a_filter_of_its_own(installation, vmms):
    """Beside the one that every VMM inherits from space-node."""
    inherited = int(machine.status(installation.daemon("space-node"))["Seccomp_filters"])
    assert inherited >= 1
    for pid in vmms:
        status = machine.status(pid)
        assert status["Seccomp"] == "2" and int(status["Seccomp_filters"]) > inherited, (pid, status["Seccomp_filters"], inherited)


def test_mounts_ipc_and_host_name_are_its_own(installation, vmms):
    others = ["self", str(installation.daemon("space-node"))]
    for name in ("mnt", "ipc", "uts"):
        seen = {os.stat(f"/proc/{pid}/ns/{name}").st_ino for pid in others}
        for pid in vmms:
            inode = os.stat(f"/proc/{pid}/ns/{name}").st_ino
            assert inode not in seen, (name, pid)
            seen.add(inode)


def test_the_root_is_empty(vmms):
    for pid in vmms:
        root = pathlib.Path(f"/proc/{pid}/root")
        assert os.readlink(root) != "/"
        assert os.listdir(root) == [], os.listdir(root)


def test_the_network_namespace_is_its_own_and_leads_nowhere(vmms):
    host = os.stat("/proc/self/ns/net").st_ino
    seen = set()
    for pid in vmms:
        inode = os.stat(f"/proc/{pid}/ns/net").st_ino
        assert inode != host and inode not in seen
        seen.add(inode)
        links = machine.output("nsenter", "-t", str(pid), "-n", "ip", "-o", "link")
        assert {line.split(": ")[1].split("@")[0] for line in links.splitlines()} <= {"lo", "tap0"}


def test_limits(vmms):
    for pid in vmms:
        limits = {line[:25].strip(): line[25:].split() for line in
                  machine.read(f"/proc/{pid}/limits").decode().splitlines()[1:]}
        assert limits["Max core file size"][0] == "0"
        assert int(limits["Max open files"][1]) <= 4096
        assert limits["Max file size"][1] != "unlimited" and int(limits["Max locked memory"][1]) == 0


def test_cgroups_limit_memory_and_processes(installation, vmms):
    inside = set()
    for top in machine.cgroups(installation.name):
        inside |= set(machine.cgroup_procs(top))
    assert set(vmms) <= inside
    for pid in vmms:
        limited = set()
        for line in machine.read(f"/proc/{pid}/cgroup").decode().splitlines():
            _, controllers, path = line.split(":", 2)
            for top in ("/sys/fs/cgroup", *(f"/sys/fs/cgroup/{c}" for c in (controllers, controllers.split(",")[0]) if c),
                        "/sys/fs/cgroup/unified"):
                for name in ("memory.max", "memory.limit_in_bytes", "pids.max"):
                    value = machine.read(f"{top}{path}/{name}").decode().strip()
                    if value and value != "max" and int(value) < 1 << 50:
                        limited.add(name.split(".")[0])
        assert limited == {"memory", "pids"}, (pid, limited)


def test_the_processor_quota_holds(installation, api, sandboxes):
    """One CPU more than the guest has; and what the group is allowed is all that the VMM can take, with every thread."""
    box = sandboxes(vcpus=1)["id"]
    pid = installation.vmm_of(box)
    group = machine.CpuGroup(pid)
    quota, period = group.limit()
    assert quota == 2 * period
    api.start(box, "while :; do :; done")
    low = period // 10
    group.set_quota(low)
    try:
        began, used = group.counters(), machine.cpu_seconds(pid)
        poll.until(lambda: group.counters()[1] >= began[1] + 10, 60, "it is held up")
        used = machine.cpu_seconds(pid) - used
        # A period had begun before, another one has; and each CPU may keep the rest of a slice (5 ms).
        allowed = (group.counters()[0] - began[0] + 2) * low + 5000 * os.cpu_count()
    finally:
        group.set_quota(quota)
    assert used * 1_000_000 <= allowed, (used, allowed)


def test_open_descriptors_are_only_its_own(installation, vmms):
    """No VMM holds another sandbox's disk, the store, or a file of the host that it may write."""
    disks = {}
    looked_at = 0
    for pid in vmms:
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except FileNotFoundError:
            continue  # it waited in the pool, and was given to somebody meanwhile
        looked_at += 1
        for fd in numbers:
            try:
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
                flags = int(next(line.split()[1] for line in machine.read(f"/proc/{pid}/fdinfo/{fd}").decode().splitlines()
                                 if line.startswith("flags")), 8)
            except (OSError, StopIteration):
                continue
            if not target.startswith("/") or target.startswith("/dev/"):
                continue
            writable = flags & os.O_ACCMODE != os.O_RDONLY
            assert "/store/" not in target and "admin.key" not in target, (pid, target)
            if writable and target.startswith(str(installation.data)):
                disks.setdefault(target, set()).add(pid)
                assert "/templates/" not in target and "/bases/" not in target, (pid, target)
    assert looked_at and disks
    assert all(len(pids) == 1 for pids in disks.values()), disks


def test_the_base_memory_cannot_be_written(installation, vmms):
    rams = list((installation.data / "volume/bases").glob("*/ram"))
    assert rams
    for ram in rams:
        assert ram.stat().st_mode & 0o222 == 0 and ram.stat().st_uid == 0
    for pid in vmms:
        for line in machine.read(f"/proc/{pid}/maps").decode().splitlines():
            if "/bases/" in line:
                assert line.split()[1][3] == "p", line


def test_argv_and_environment_hold_no_secrets(installation, api, sandboxes):
    sandboxes(env={"SECRET": "hush-in-argv-815"})
    for pid in [*installation.vmms(), *installation.daemons("space-node"), *installation.daemons("space-api")]:
        text = machine.read(f"/proc/{pid}/cmdline") + machine.read(f"/proc/{pid}/environ")
        assert b"hush-in-argv-815" not in text and installation.key.encode() not in text


def test_sockets_are_private(installation):
    assert os.stat(installation.run_dir / "node.sock").st_mode & 0o007 == 0
    vm = installation.run_dir / installation.name / "vm"
    if vm.exists():
        for path in (vm, *(p for p in vm.rglob("*") if p.is_dir())):
            assert path.stat().st_mode & 0o077 in (0, 0o11), path


def test_a_stranger_cannot_speak_to_the_node(installation):
    """Another user, even one of the service's group, is refused by uid."""
    path = str(installation.run_dir / "node.sock")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(os.stat(path).st_gid)
            os.setuid(65534)
            peer = socket.socket(socket.AF_UNIX)
            peer.settimeout(5)
            peer.connect(path)  # as the group may
            peer.sendall(b"GET /n1/node HTTP/1.1\r\nHost: a\r\n\r\n")
            code = 0 if peer.recv(65536).startswith(b"HTTP/1.1 403 ") else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_space_api_is_unprivileged(installation):
    status = machine.status(installation.daemon("space-api"))
    assert status["Uid"].split()[0] != "0" and int(status["CapEff"], 16) == 0 and status["NoNewPrivs"] == "1"


def test_space_node_has_what_it_needs_and_no_more(installation):
    """Root of few capabilities, without a way back, behind a filter."""
    status = machine.status(installation.daemon("space-node"))
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    names = {0: "chown", 1: "dac_override", 2: "dac_read_search", 3: "fowner", 5: "kill", 6: "setgid", 7: "setuid",
             12: "net_admin", 18: "sys_chroot", 19: "sys_ptrace", 21: "sys_admin", 24: "sys_resource"}
    for field in ("CapEff", "CapPrm", "CapBnd"):
        held = int(status[field], 16)
        assert {bit for bit in range(64) if held >> bit & 1} <= set(names), (field, hex(held))
    assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
