"""What can be seen of an installation from the host: its processes, namespaces, mounts, cgroups."""

import os
import pathlib
import subprocess

PROC = pathlib.Path("/proc")


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read(path):
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:
        return b""


def cmdline(pid):
    return read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")[:-1]


def programs(name, word):
    """Pids of the running programs of this name that have `word` in their arguments.

    A child between fork and exec still has its parent's command line: it is no leader of its
    process group yet, or its parent is found as well.
    """
    found = {}
    for pid in pids():
        words = cmdline(pid)
        if words and os.path.basename(words[0]) == name and word in words and is_group_leader(pid):
            found[pid] = int(status(pid).get("PPid", "-1"))
    return [pid for pid, parent in found.items() if parent not in found]


def is_group_leader(pid):
    """Or the leader has ended, as when a daemon was started by two forks."""
    try:
        leader = os.getpgid(pid)
        return leader == pid or not is_alive(leader)
    except ProcessLookupError:
        return False


def status(pid):
    """/proc/PID/status as a dict; empty when the process is gone."""
    lines = read(f"/proc/{pid}/status").decode(errors="replace").splitlines()
    return dict((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))


def capabilities(pid):
    """Of each thread: what it has, may take, may pass on."""
    names = ("CapEff", "CapPrm", "CapInh", "CapAmb")
    return [{name: int(status(f"{pid}/task/{tid}")[name], 16) for name in names} for tid in os.listdir(f"/proc/{pid}/task")]


def runs(pid, program):
    """Whether a process executes this very file. Its link cannot be compared: it is a path of the
    process's own mount namespace, which says more than ours when we are in a chroot."""
    try:
        return os.path.samefile(f"/proc/{pid}/exe", program)
    except OSError:
        return False


def link(path):
    """Where a link leads; "" when it is gone."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def is_alive(pid):
    return status(pid).get("State", "Z")[0] not in "ZX"


def start_time(pid):
    """Ticks since boot: with the pid, the identity of a process."""
    text = read(f"/proc/{pid}/stat").decode(errors="replace")
    return int(text.rpartition(")")[2].split()[19]) if text else None


def cpu_seconds(pid):
    text = read(f"/proc/{pid}/stat").decode(errors="replace")
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_kib(pid, field):
    """One line of smaps_rollup, for example Private_Dirty or Pss."""
    for line in read(f"/proc/{pid}/smaps_rollup").decode().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


def mounts():
    """Mount points of this mount namespace."""
    return [line.split()[4] for line in read("/proc/self/mountinfo").decode().splitlines()]


def mounted_devices():
    """MAJOR:MINOR of whatever is mounted in the mount namespace of any process."""
    return {line.split()[2].decode() for pid in pids() for line in read(f"/proc/{pid}/mountinfo").splitlines()}


def loop_files():
    """The loop devices: MAJOR:MINOR and backing file of each."""
    return {read(path.parents[1] / "dev").decode().strip(): read(path).decode().strip()
            for path in pathlib.Path("/sys/block").glob("loop*/loop/backing_file")}


def network_namespaces():
    try:
        return os.listdir("/run/netns")
    except FileNotFoundError:
        return []


def cgroups(installation):
    """Directories of any hierarchy that belong to an installation."""
    found = []
    for top in [pathlib.Path("/sys/fs/cgroup"), *pathlib.Path("/sys/fs/cgroup").glob("*")]:
        for name in (installation, f"{installation}.slice"):
            if (top / name).is_dir():
                found.append(str(top / name))
    return found


def cgroup_procs(path):
    found = []
    for folder, _, files in os.walk(path):
        if "cgroup.procs" in files:
            found += [int(pid) for pid in read(os.path.join(folder, "cgroup.procs")).split()]
    return found


def output(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, **more).stdout


def memory_group(pid):
    """The files for the usage and the limit of a process's memory cgroup, on v1 or v2."""
    for line in read(f"/proc/{pid}/cgroup").decode().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            top = pathlib.Path("/sys/fs/cgroup/memory" + path)
            return top / "memory.usage_in_bytes", top / "memory.limit_in_bytes"
    for line in read(f"/proc/{pid}/cgroup").decode().splitlines():
        if line.startswith("0::"):
            top = pathlib.Path("/sys/fs/cgroup" + line[3:])
            return top / "memory.current", top / "memory.max"
    raise AssertionError(f"process {pid} is in no memory cgroup")


class CpuGroup:
    """The control group that limits a process's CPU time, on v1 or v2. Times are microseconds."""

    def __init__(self, pid):
        self.v1 = None
        for line in read(f"/proc/{pid}/cgroup").decode().splitlines():
            number, controllers, path = line.split(":", 2)
            if "cpu" in controllers.split(","):
                self.v1, self.top = True, pathlib.Path("/sys/fs/cgroup/cpu" + path)
            elif number == "0" and not self.v1:
                self.v1, self.top = False, pathlib.Path("/sys/fs/cgroup" + path)
        assert self.v1 is not None, f"process {pid} is in no cpu cgroup"

    def limit(self):
        """Quota and period."""
        if self.v1:
            return tuple(int((self.top / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return tuple(int(number) for number in (self.top / "cpu.max").read_text().split())

    def set_quota(self, quota):
        if self.v1:
            (self.top / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (self.top / "cpu.max").write_text(f"{quota} {self.limit()[1]}")

    def counters(self):
        """How many periods passed while it had work, and in how many of them it was held up."""
        stat = dict(line.split() for line in (self.top / "cpu.stat").read_text().splitlines())
        return int(stat["nr_periods"]), int(stat["nr_throttled"])
