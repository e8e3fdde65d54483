"""Terminals, transfers, and readers that stand still."""

import os
import subprocess
import tempfile
import time

import client
from harness import machine
from report import median

TERMINAL = {"argv": ["/bin/cat"], "tty": {"cols": 80, "rows": 24, "term": "xterm"}}
READERS = 1000
BESIDE_BYTES = 256_000_000
REPEATS = 1000  # more than a measurement lasts


class Transfer:
    """A file that curl moves at full speed, to or from a sandbox."""

    def __init__(self, bench, sandbox):
        self.url = f"http://127.0.0.1:{bench.made.port}/v1/sandboxes/{sandbox}/files?path=/tmp/transfer"
        self.head = ["curl", "-s", "-S", "-f", "--fail-early", "-o", "/dev/null", "-H", f"Authorization: Bearer {bench.made.key}"]

    def seconds(self, *arguments):
        """Seconds of one transfer."""
        start = time.perf_counter()
        subprocess.run([*self.head, *arguments, self.url], capture_output=True, check=True)
        return time.perf_counter() - start

    def begin(self, *arguments):
        """Transfers again and again; `end` says whether it did so until then."""
        self.errors = tempfile.TemporaryFile("w+")
        again = ["-o", "/dev/null", *arguments, self.url] * REPEATS
        self.running = subprocess.Popen([*self.head, *arguments, self.url, *again], stderr=self.errors)

    def end(self):
        status = self.running.poll()
        self.running.kill()
        self.running.wait()
        if status is not None:
            self.errors.seek(0)
            raise RuntimeError(f"curl ended during the measurement, with {status}: {self.errors.read()}")
        self.errors.close()


def make_file(path, size):
    """Random bytes: nothing on the way can leave them out, as it could a hole."""
    with open(path, "wb") as made:
        for start in range(0, size, 1 << 20):
            made.write(os.urandom(min(1 << 20, size - start)))


def terminals(bench, floor_echo):
    """The echo of a key, alone and beside a download and an upload at full speed."""
    bench.say("keystrokes")
    connection = bench.connect()
    _, sandbox = bench.create(connection, vcpus=1)
    transfer, local = Transfer(bench, sandbox), bench.made.top / "transfer"
    make_file(local, BESIDE_BYTES)
    transfer.seconds("-T", str(local))
    local.unlink()
    session = connection.json("POST", f"/v1/sandboxes/{sandbox}/commands", TERMINAL)["session"]["id"]
    attachment = client.Attachment(bench.made.port, bench.made.key, session)
    alone = [attachment.echo() for _ in range(220)][20:]
    transfer.begin()
    beside = [attachment.echo() for _ in range(220)][20:]
    transfer.end()
    make_file(local, BESIDE_BYTES)
    transfer.begin("-T", str(local))
    beside_upload = [attachment.echo() for _ in range(220)][20:]
    transfer.end()
    local.unlink()
    attachment.close()
    bench.delete(connection, sandbox)
    connection.close()
    report = bench.report
    report.samples("echo_ms", alone)
    report.samples("echo_beside_transfer_ms", beside)
    report.samples("echo_beside_upload_ms", beside_upload)
    report.row("echo of a key in a terminal", median(alone), "ms", "floor echo", median(floor_echo), 2)
    report.row("the same beside a full-speed download", median(beside), "ms", "alone", median(alone), 3)
    report.row("the same beside a full-speed upload", median(beside_upload), "ms", "alone", median(alone), 3)


def transfers(bench, size):
    """Files up and down, and output over WebSocket, against the bare pipe's rate in MB/s of that direction."""
    connection = bench.connect()
    local = bench.made.top / "transfer"
    make_file(local, size)
    rates = {"floor_out": [], "floor_in": [], "download": [], "upload": [], "attach": []}
    for index in range(3):
        bench.say(f"transfers, round {index + 1} of 3")
        for name, rate in zip(("floor_out", "floor_in"), bench.bulk_floor(size)):
            rates[name].append(rate)
        _, sandbox = bench.create(connection)
        transfer = Transfer(bench, sandbox)
        rates["upload"].append(size / 1e6 / transfer.seconds("-T", str(local)))
        rates["download"].append(size / 1e6 / transfer.seconds())
        bench.delete(connection, sandbox)
        _, sandbox = bench.create(connection)
        body = {"argv": ["head", "-c", str(size), "/dev/zero"], "spool_bytes": 2 * size}
        start = time.perf_counter()
        session = connection.json("POST", f"/v1/sandboxes/{sandbox}/commands", body)["session"]["id"]
        _, total = client.read_attached(bench.made.port, bench.made.key, session)
        if total != size:
            raise RuntimeError(f"{total} bytes of {size} over WebSocket")
        rates["attach"].append(size / 1e6 / (time.perf_counter() - start))
        bench.delete(connection, sandbox)
    connection.close()
    local.unlink()
    for name, values in rates.items():
        bench.report.samples(f"transfer_{name}_mb_s", values)
    out, into = median(rates["floor_out"]), median(rates["floor_in"])
    bench.report.row("file, sandbox to client", median(rates["download"]), "MB/s", "floor out", out, 0.8, True)
    bench.report.row("file, client to sandbox", median(rates["upload"]), "MB/s", "floor in", into, 0.8, True)
    bench.report.row("output, guest to client by WebSocket", median(rates["attach"]), "MB/s", "floor out", out, 0.8, True)


def readers(bench):
    """What an attached reader costs that has nothing to read."""
    bench.say(f"{READERS} attached readers")
    connection = bench.connect()
    _, sandbox = bench.create(connection)
    session = connection.json("POST", f"/v1/sandboxes/{sandbox}/commands", {"argv": ["sleep", "3600"]})["session"]["id"]
    first = client.Attachment(bench.made.port, bench.made.key, session)
    pids = {name: bench.made.daemon(name) for name in ("space-node", "space-api")}
    before = {name: machine.memory_kib(pid, "Pss") for name, pid in pids.items()}
    idle = [client.Attachment(bench.made.port, bench.made.key, session) for _ in range(READERS)]
    for one in idle:
        one.frame()
    after = {name: machine.memory_kib(pid, "Pss") for name, pid in pids.items()}
    for one in [first, *idle]:
        one.close()
    bench.delete(connection, sandbox)
    connection.close()
    each = {name: (after[name] - before[name]) / READERS for name in pids}
    for name, kib in each.items():
        bench.report.row(f"idle attached reader: {name}", kib, "KiB")
    bench.report.row("idle attached reader: both", sum(each.values()), "KiB", limit=20)
