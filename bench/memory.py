"""What stands still, and what must not grow: memory and CPU of VMs and daemons."""

import json
import os
import threading
import time

from harness import machine
from report import median

DAEMONS = ("space-api", "space-node", "space-supervisor")
PLAIN = "plain"  # the base template without Python in its rehearsal
PLAIN_VERSION = "tm00000000000000p1a1"
PLAIN_REHEARSAL = [["true"], ["sh", "-c", "ls / | wc -l"], ["true"]]
SAMPLE_SECONDS = 0.05


def add_plain_template(made):
    templates = made.data / "volume/templates"
    source = templates / "base" / os.readlink(templates / "base/current")
    target = templates / PLAIN / PLAIN_VERSION
    target.mkdir(parents=True)
    machine.output("cp", "--reflink=auto", "--sparse=always", str(source / "disk.img"), str(target / "disk.img"))
    record = json.loads((source / "template.json").read_text(encoding="utf-8"))
    record.update(name=PLAIN, version=PLAIN_VERSION, prime=PLAIN_REHEARSAL)
    (target / "template.json").write_text(json.dumps(record), encoding="utf-8")
    (templates / PLAIN / "current").symlink_to(PLAIN_VERSION)


def cpu_seconds(pid):
    """Of all threads, finer than a clock tick."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        total += int(machine.read(f"/proc/{pid}/task/{task}/schedstat").split()[0])
    return total / 1e9


def anonymous_mib(pid):
    """(of the VMM itself, of the guest's memory): the base's mapping is the guest's."""
    own = guest = 0
    in_guest = False
    for line in machine.read(f"/proc/{pid}/smaps").decode().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            in_guest = "/bases/" in line
        elif words[0] == "Anonymous:":
            if in_guest:
                guest += int(words[1])
            else:
                own += int(words[1])
    return own / 1024, guest / 1024


def shares(pids, seconds=10):
    """Percent of a core that each takes over the next seconds."""
    before = {pid: cpu_seconds(pid) for pid in pids}
    start = time.monotonic()
    # The measured span itself: nothing is waited for here.
    time.sleep(seconds)
    span = time.monotonic() - start
    return {pid: 100 * (cpu_seconds(pid) - before[pid]) / span for pid in before}


def stored_mb(bench, connection, sandbox):
    """Suspends it: memory and devices on disk. The base image is the template's, the disk the sandbox's own."""
    connection.json("POST", f"/v1/sandboxes/{sandbox}/suspend?wait=60")
    folder = bench.made.data / "volume/sandboxes" / sandbox / "suspended"
    return sum((folder / name).stat().st_size for name in ("memory", "state", "snapshot.json")) / 1e6


def private_row(bench, what, pids, against, floor):
    """All that a machine has for itself: its VMM's memory and the guest's pages that are no longer the base's."""
    bare, each = anonymous_mib(floor), [anonymous_mib(pid) for pid in pids]
    bench.report.samples(f"private_mib, {what}: VMM, guest", [median(values) for values in zip(*each)])
    bench.report.samples(f"private_mib, {against}: VMM, guest", bare)
    bench.report.row(f"{what}: private memory", median([sum(both) for both in each]), "MiB", against, sum(bare))


def idle(bench):
    bench.say("idle memory and CPU")
    report, made = bench.report, bench.made
    child, begun = bench.floor()
    connection = bench.connect()
    sandboxes = [bench.create(connection)[1] for _ in range(4)]
    plain = [bench.create(connection, template=PLAIN)[1] for _ in range(2 if bench.has_plain else 0)]
    made.wait_warm()
    running = [made.vmm_of(sandbox) for sandbox in sandboxes]
    others = [made.vmm_of(sandbox) for sandbox in plain]
    waiting = [pid for pid in made.vmms() if pid not in (*running, *others)]
    share = shares([*running, *waiting])
    own, dirty = zip(*(anonymous_mib(pid) for pid in running))
    report.row("idle sandbox: anonymous memory but the guest's", median(own), "MiB", limit=70)
    if others:
        report.row("the same, rehearsed without Python", median([anonymous_mib(pid)[0] for pid in others]), "MiB", limit=45)
    report.row("idle sandbox: the guest's own dirty pages", median(dirty), "MiB")
    report.row("idle sandbox: CPU of one core", median([share[p] for p in running]), "%", limit=2)
    if waiting:
        alike = [p for p in waiting if f"{bench.base}/" in " ".join(machine.cmdline(p))]  # of the floor's template and size
        report.row("waiting sandbox: anonymous memory but the guest's", median([anonymous_mib(p)[0] for p in alike]), "MiB",
                   "floor, as it waits", anonymous_mib(bench.floor_vmm(child))[0])
        private_row(bench, "waiting sandbox", alike, "floor, as it waits", bench.floor_vmm(child))
        report.row("waiting sandbox: CPU of one core", max(share[p] for p in waiting), "%", limit=0.05)
    # The floor's first command is `true`: it is theirs too.
    begun += bench.run_floor(child)
    for sandbox in sandboxes:
        connection.json("POST", f"/v1/sandboxes/{sandbox}/run", {"argv": ["/bin/true"]})
    private_row(bench, "running sandbox", running, "floor, as it runs", bench.floor_vmm(child))
    bench.finish_floor(child, begun)
    total = 0.0
    for program in DAEMONS:
        for pid in made.daemons(program):
            size = machine.memory_kib(pid, "Pss") / 1024
            total += size
            report.row(f"{program}: proportional memory", size, "MiB")
    report.row("daemons together", total, "MiB", limit=30)
    stored = [stored_mb(bench, connection, sandbox) for sandbox in sandboxes]
    report.samples("suspended_stored_mb", stored)
    report.row("suspended idle sandbox: stored beside its disk", median(stored), "MB", limit=5)
    for sandbox in (*sandboxes, *plain):
        bench.delete(connection, sandbox)
    connection.close()


class Growth:
    """How far the daemons' own memory rises above where it was, while the block runs."""

    def __init__(self, made):
        self.pids = {name: made.daemon(name) for name in ("space-node", "space-api")}
        self.start = self.sample()
        self.peak = dict(self.start)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def sample(self):
        return {name: int(machine.status(pid)["RssAnon"].split()[0]) / 1024 for name, pid in self.pids.items()}

    def watch(self):
        while not self.ended.wait(SAMPLE_SECONDS):
            for name, mib in self.sample().items():
                self.peak[name] = max(self.peak[name], mib)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *unused):
        self.ended.set()
        self.thread.join()

    def mib(self, name):
        return self.peak[name] - self.start[name]
