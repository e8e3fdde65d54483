"""What needs many files, processes or events in a sandbox: directories that change while they are walked, a directory of
LOAD_ENTRIES on the sandbox's own disk, a watch whose reader falls behind, readers of different speed, a minute of output
that nobody reads."""

import collections
import http.client
import io
import os
import re
import tarfile
import threading

import pytest

from harness import machine, poll, spec
from harness.attach import Attached
from harness.files import Files
from harness.watch import Watch

from test_floods import mib

# Puts a link to a directory of others in the place of a directory, and back, as fast as it can.
SWAPPER = """
import ctypes, os, sys
libc, folder = ctypes.CDLL(None, use_errno=True), os.fsencode(sys.argv[1])
here, there, EXCHANGE, AT_FDCWD = folder + b"/tree/inner", folder + b"/link", 2, -100
print("ready", flush=True)
while True:
    libc.renameat2(AT_FDCWD, here, AT_FDCWD, there, EXCHANGE)
"""
ROUNDS = 40
ENTRIES = int(os.environ.get("LOAD_ENTRIES", "100000"))
FLOOD_SECONDS = 60
DAEMONS = ("space-node", "space-api")

MANY = r"""
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    int made = 0, wanted = atoi(argv[argc - 1]);
    for (pid_t pid = 0; made < wanted && (pid = fork()) >= 0; made++) {
        if (pid == 0) {
            for (int fd = 0; fd < 3; fd++)
                close(fd);
            for (;;)
                pause();
        }
    }
    printf("%d %s\n", made, made < wanted ? strerror(errno) : "all");
    fflush(stdout);
    while (made < wanted)
        pause();
}
"""


@pytest.fixture(scope="module")
def box(installation):
    sandbox = installation.api.create(memory_mib=1024)["id"]
    yield sandbox
    installation.api.delete(sandbox)


@pytest.fixture
def files(api, box):
    return Files(api, box)


class TestChangingTree:
    """Walks of root over a tree in which a user swaps a directory for a link that leads out of it. A walk may be
    refused for that (409), but not each one."""

    FOLDER = "/home/user/race"

    @pytest.fixture
    def swapped(self, api, box, files):
        api.check_output(box, f"sudo mkdir -p /opt/precious && sudo touch /opt/precious/keep-$(seq -s ' /opt/precious/keep-' 1 20)"
                              f" && mkdir -p {self.FOLDER}/tree/inner && ln -s /opt/precious {self.FOLDER}/link")
        files.put("/tmp/swapper.py", SWAPPER.encode())
        process, session = api.start(box, ["python3", "/tmp/swapper.py", self.FOLDER])
        with Attached(api, session["id"]) as at:
            at.read_until(b"ready\n")
        yield
        api.post(f"/v1/sandboxes/{box}/processes/{process['id']}/kill", {})
        api.check_output(box, f"sudo rm -rf {self.FOLDER} /opt/precious")

    def precious(self, api, box):
        return api.check_output(box, "ls /opt/precious | wc -l").strip()

    def test_deletion_stays_inside(self, api, box, files, swapped):
        answers = collections.Counter()
        for _ in range(ROUNDS):
            api.check_output(box, f"mkdir -p {self.FOLDER}/tree/inner/deep; touch {self.FOLDER}/tree/inner/deep/f; true")
            answer = files.ask("DELETE", path=f"{self.FOLDER}/tree", recursive="true", user="root")
            assert answer.status in (200, 404, 409), answer
            answers[answer.status] += 1
            api.check_output(box, f"mkdir -p {self.FOLDER}/tree; mkdir {self.FOLDER}/tree/inner 2>/dev/null;"
                                  f" [ -L {self.FOLDER}/link ] || [ -L {self.FOLDER}/tree/inner ] ||"
                                  f" ln -sfn /opt/precious {self.FOLDER}/link; true")
            assert self.precious(api, box) == "20"
        print(f"deletions: {dict(answers)}")
        assert answers[200] > 0

    def test_lists_and_archives_stay_inside(self, api, box, files, swapped):
        lists, archives = collections.Counter(), collections.Counter()
        for _ in range(ROUNDS):
            answer = files.ask("GET", "/list", path=f"{self.FOLDER}/tree", depth=5, user="root")
            assert answer.status in (200, 409), answer
            lists[answer.status] += 1
            if answer.status == 200:
                assert not [e["path"] for e in answer.json["items"] if "keep-" in e["path"]]
            try:
                archive = files.ask("GET", "/tar", path=f"{self.FOLDER}/tree", user="root")
            except http.client.IncompleteRead:
                archives["cut off"] += 1
                continue  # it was told in the middle
            assert archive.status in (200, 404, 409), archive
            archives[archive.status] += 1
            if archive.status == 200:
                with tarfile.open(fileobj=io.BytesIO(archive.body)) as tar:
                    assert not [name for name in tar.getnames() if "keep-" in name]
        print(f"lists: {dict(lists)}, archives: {dict(archives)}")
        assert lists[200] > 0 and archives[200] > 0


def test_a_large_directory_on_disk(api, box, files):
    folder = "/home/user/many"
    api.check_output(box, f"mkdir {folder} && cd {folder} && seq -f 'entry-%06g' 1 {ENTRIES} | xargs touch", timeout_seconds=600)
    assert len(files.list_all(folder, limit=1000)) == ENTRIES
    archive = api.expect(200, "GET", files.at("/tar", path=folder))
    with tarfile.open(fileobj=io.BytesIO(archive.body)) as tar:
        assert sum(1 for member in tar if member.isfile()) == ENTRIES
    files.delete(folder, recursive="true")
    assert files.ask("GET", "/stat", path=folder).status == 404


def test_a_reader_that_falls_behind_is_told_and_goes_on(api, box):
    folder = "/home/user/busy"
    api.check_output(box, f"mkdir {folder}")
    with Watch(api, box, folder) as watch:
        watch.next()
        # More than the history and all buffers on the way hold.
        api.check_output(box, f"cd {folder} && for turn in 1 2; do seq -f '%0100g' 1 20000 | xargs touch;"
                              " seq -f '%0100g' 1 20000 | xargs rm; done", timeout_seconds=600)
        api.check_output(box, f"touch {folder}/last")
        seen = watch.until("created", f"{folder}/last")
    assert "overflow" in [kind for kind, _ in seen]
    api.check_output(box, f"rm -r {folder}")


def test_the_furthest_reader_counts(api, box):
    """A blocked command goes on as soon as one reader has read; the slow one is told of what it missed."""
    process, session = api.start(box, "seq 1 1000000", spool_bytes=65536, on_full="block")
    want = b"".join(b"%d\n" % i for i in range(1, 1_000_001))
    with Attached(api, session["id"]) as slow, Attached(api, session["id"]) as fast:
        reader = threading.Thread(target=fast.read_to_end)
        reader.start()
        reader.join(120)
        assert fast.events[-1]["type"] == "process_exited" and fast.output["stdout"] == want
        slow.read_to_end()
    missed = sum(e["bytes"] for e in slow.events if e["type"] == "gap")
    assert missed + len(slow.output["stdout"]) == len(want)
    assert api.result(box, process["id"])["exit_code"] == 0


def test_ten_thousand_processes(api, installation, sandboxes):
    # One process for each half MiB is what a sandbox may have.
    box = sandboxes(memory_mib=5632)["id"]
    before = mib(installation)
    Files(api, box).put("many.c", MANY.encode())
    api.check_output(box, "gcc -O1 -static -o many many.c", timeout_seconds=60)
    many, _ = api.start(box, ["./many", "10000"])
    assert api.result(box, many["id"], wait=200)["stdout"] == "10000 all\n"
    # All of it still works.
    assert api.check_output(box, ["echo", "alive"]) == "alive\n"
    assert api.process(box, many["id"])["state"] == "exited"
    assert int(api.check_output(box, "ls /proc | grep -c '^[0-9]'")) > 10_000
    assert api.get(f"/v1/sandboxes/{box}/ports")["items"] == []
    assert Files(api, box).stat("/etc/hosts")["type"] == "file"
    poll.until(lambda: api.get(f"/v1/sandboxes/{box}/metrics")["items"][-1]["processes"] >= 10_000, 20, "they are counted")
    # Up to the limit and beyond: who has too many is told so, and so is a new command. Files need no room.
    more, session = api.start(box, ["./many", "30000"])
    said = api.expect(200, "GET", f"/v1/sessions/{session['id']}/output", query={"stream": "stdout", "offset": 0, "wait": 200}).body
    assert said.endswith(b" Resource temporarily unavailable\n"), said
    answer = api.ask("POST", f"/v1/sandboxes/{box}/run", {"argv": ["true"]})
    assert (answer.status, answer.code) == (503, "service_unavailable") and b"could not start the command" in answer.body, answer
    assert Files(api, box).read("many.c") == MANY.encode()
    for process in (more, many):
        assert api.post(f"/v1/sandboxes/{box}/processes/{process['id']}/kill")["killed"] is True
    poll.until(lambda: int(api.check_output(box, "ls /proc | grep -c '^[0-9]'")) < 500, 30, "they are gone")
    assert mib(installation) - before < 24, (before, mib(installation))


class MemorySampler(threading.Thread):
    """The largest memory of each daemon and of each process under the installation's uids (VMMs, the object store's), and
    of each VMM's control group, with its limit; until `end`."""

    UNLIMITED = 1 << 60  # v1 has no word for it, but a number near the largest

    def __init__(self, installation):
        super().__init__()
        self.installation, self.stop, self.problem = installation, threading.Event(), None
        self.pids = {program: installation.daemon(program) for program in DAEMONS}
        self.daemons, self.processes, self.groups, self.samples = {}, {}, {}, 0

    def run(self):
        try:
            while not self.stop.wait(0.25):
                self.sample()
        except Exception as error:  # a thread's failure must reach the test
            self.problem = error

    def sample(self):
        for program, pid in self.pids.items():
            self.note(self.daemons, program, self.anonymous(pid))
        for pid in self.installation.of_uids():
            self.note(self.processes, pid, self.anonymous(pid))
            if machine.status(pid).get("Name") == "space-objects":
                continue  # in no group of a VMM's
            try:
                usage, limit = machine.memory_group(pid)
                used, text = int(usage.read_text()), limit.read_text().strip()
            except (OSError, AssertionError):
                continue  # it has ended, as those of the pool may
            assert text.isdigit() and int(text) < self.UNLIMITED, f"{limit}: {text}"
            _, most = self.groups.get(usage.parent, (0, 0))
            self.groups[usage.parent] = int(text), max(most, used)
        self.samples += 1

    @staticmethod
    def note(table, key, kib):
        table[key] = max(table.get(key, 0), kib)

    @staticmethod
    def anonymous(pid):
        return int(machine.status(pid).get("RssAnon", "0 kB").split()[0])

    def end(self):
        self.stop.set()
        self.join()
        assert self.problem is None, self.problem


def cap_kib(program):
    """What systemd holds the daemon to."""
    unit = (spec.ROOT / f"deploy/systemd/{program}.service.in").read_text()
    return int(re.search(r"^MemoryMax=(\d+)G$", unit, re.M).group(1)) << 20


def kills(group):
    """How many processes of a group the kernel has ended for lack of memory."""
    for name in ("memory.events", "memory.oom_control"):
        for line in machine.read(group / name).decode().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    raise AssertionError(f"{group} does not say")


def test_a_minute_of_yes_keeps_everybody_under_its_cap(api, installation, sandboxes):
    boxes = [sandboxes()["id"] for _ in range(2)]
    sampler = MemorySampler(installation)
    sampler.sample()
    before = dict(sampler.daemons)
    # The commands' own timeout ends them. One has a reader that reads nothing.
    floods = [api.start(box, ["yes", "a line of a flood that nobody asked for"], timeout_seconds=FLOOD_SECONDS) for box in boxes]
    sampler.start()
    try:
        with Attached(api, floods[0][1]["id"]):
            for box in boxes:
                assert api.check_output(box, ["echo", "served"], timeout_seconds=60) == "served\n"
            results = [api.result(box, process["id"], wait=FLOOD_SECONDS + 120) for box, (process, _) in zip(boxes, floods)]
    finally:
        sampler.end()
    for result in results:
        assert result["timed_out"] is True and result["duration_seconds"] > FLOOD_SECONDS - 1, result
        assert result["stdout_omitted_bytes"] > FLOOD_SECONDS << 20, result["stdout_omitted_bytes"]
    assert sampler.samples > FLOOD_SECONDS / 6, sampler.samples
    # Far from the caps, whether anything enforces them here or not: what piles up would be past them in a minute.
    for program, most in sampler.daemons.items():
        assert 0 < most < cap_kib(program) / 8, (program, most)
        assert most - before[program] < 48 << 10, (program, before[program], most)
    mine = [machine.memory_group(installation.vmm_of(box))[0].parent for box in boxes]
    for group in mine:
        limit, most = sampler.groups[group]
        assert 0 < most <= limit < 2 << 30, (group, most, limit)
        assert kills(group) == 0
    # Each process by itself too: the object store's helpers are in no VMM's group.
    largest = max(limit for limit, _ in sampler.groups.values()) >> 10
    assert set(map(installation.vmm_of, boxes)) <= set(sampler.processes)
    assert max(sampler.processes.values()) <= largest, (sampler.processes, largest)
