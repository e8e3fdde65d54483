"""Much data through everything: files both ways, as content, form, archive and gzip, and a flood of
output. Every byte arrives, and neither daemon nor the agent in the guest grows with the amount.

DATA_MIB is the size of the file (random, or sparse from SPARSE_FROM_MIB on, since a disk is to hold
it), FLOOD_SECONDS how long `yes` runs. The caps are those of docs/limits.md."""

import hashlib
import os
import pathlib
import tarfile
import threading
import zlib

import pytest

from harness import machine, poll
from harness.attach import Attached
from harness.files import Files

DATA_MIB = int(os.environ.get("DATA_MIB", "300"))
FLOOD_SECONDS = int(os.environ.get("FLOOD_SECONDS", "10"))
SPARSE_FROM_MIB = 1024
MIB = 1 << 20
CAP_MIB = {"space-api": 64, "space-node": 64, "agent": 16}
GROWTH_MIB = {"space-api": 24, "space-node": 24, "agent": 8}


class Sampler(threading.Thread):
    """Resident memory of both daemons and of all that the agent runs as, from start to stop, in MiB."""

    def __init__(self, installation, sandbox):
        super().__init__(daemon=True)
        self.installation, self.sandbox = installation, sandbox
        self.api = installation.api.as_key(installation.key)
        self.samples = {name: [] for name in CAP_MIB}
        self.done = threading.Event()
        self.problem = None
        self.take()

    def take(self):
        for program in ("space-api", "space-node"):
            pid = self.installation.daemon(program)
            self.samples[program].append(int(machine.status(pid)["VmRSS"].split()[0]) / 1024)
        # The agent, which is process 1, and the copies of it that serve files.
        text = self.api.check_output(self.sandbox, "ps -C \"$(cat /proc/1/comm)\" -o rss=", timeout_seconds=120)
        self.samples["agent"].append(max(int(line) for line in text.split()) / 1024)

    def run(self):
        try:
            while not self.done.wait(0.5):
                self.take()
        except Exception as error:  # a thread's failure must reach the test
            self.problem = error

    def peak(self):
        """What the samples may have missed of the daemons: their highest values since the start."""
        for program in ("space-api", "space-node"):
            status = machine.status(self.installation.daemon(program))
            self.samples[program].append(int(status["VmHWM"].split()[0]) / 1024)

    def __enter__(self):
        for program in ("space-api", "space-node"):
            # 5: the highest value is counted anew from now.
            pathlib.Path(f"/proc/{self.installation.daemon(program)}/clear_refs").write_text("5", encoding="ascii")
        self.start()
        return self

    def __exit__(self, kind, *unused):
        self.done.set()
        self.join(180)
        self.api.close()
        if kind is None:
            assert self.problem is None, self.problem
            self.peak()
            print({name: (round(values[0], 1), round(max(values), 1), len(values)) for name, values in self.samples.items()})
            for name, values in self.samples.items():
                assert max(values) < CAP_MIB[name], (name, values)
                assert max(values) - values[0] < GROWTH_MIB[name], (name, values)


class Content:
    """Bytes that can be made again and again, piece by piece. A sparse one is a block of random bytes in each 64 MiB."""

    def __init__(self, mib, sparse=False):
        self.size, self.sparse = mib * MIB, sparse
        self.block = os.urandom(MIB)

    def pieces(self):
        zeros = bytes(MIB)
        for number in range(self.size // MIB):
            if self.sparse and number % 64:
                yield zeros
            else:
                # No two blocks are the same, and making them costs next to nothing.
                yield number.to_bytes(8, "big") + self.block[8:]

    def digest(self):
        return digest_of(self.pieces())


def digest_of(pieces):
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def send(api, method, path, pieces, **head):
    connection = api.connect(timeout=900)
    names = {name.replace("_", "-"): str(value) for name, value in head.items()}
    connection.request(method, path, pieces, {"Authorization": f"Bearer {api.key}", **names},
                       encode_chunked="Content-Length" not in names)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status in (200, 201), (answer.status, body)


class Received:
    def __init__(self, api, path, **head):
        self.connection = api.connect(timeout=900)
        names = {name.replace("_", "-"): value for name, value in head.items()}
        self.connection.request("GET", path, headers={"Authorization": f"Bearer {api.key}", **names})
        self.response = self.connection.getresponse()
        assert self.response.status == 200, self.response.read()

    def pieces(self):
        while piece := self.response.read(MIB):
            yield piece
        self.connection.close()


@pytest.fixture(scope="module")
def box(installation):
    sandbox = installation.api.create()["id"]
    yield sandbox
    installation.api.delete(sandbox)


@pytest.fixture
def files(api, box):
    yield Files(api, box)
    api.run(box, "rm -rf data form tree packed")


def test_a_file_both_ways(api, installation, box, files):
    content = Content(DATA_MIB, sparse=DATA_MIB >= SPARSE_FROM_MIB)
    want = content.digest()
    with Sampler(installation, box):
        send(api, "PUT", files.at(path="data"), content.pieces(), Content_Length=content.size)
        assert digest_of(Received(api, files.at(path="data")).pieces()) == want
    assert files.stat("data")["size_bytes"] == content.size


def test_a_form_of_many_files(api, installation, box, files):
    contents = [Content(max(DATA_MIB // 60, 1)) for _ in range(10)]

    def form():
        for number, content in enumerate(contents):
            yield (f"--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{number}\"\r\n"
                   "Content-Type: application/octet-stream\r\n\r\n").encode()
            yield from content.pieces()
            yield b"\r\n"
        yield b"--edge--\r\n"

    files.post("mkdir", status=(200, 201), path="form")
    with Sampler(installation, box):
        send(api, "POST", files.at(path="form"), form(), Content_Type="multipart/form-data; boundary=edge",
             Transfer_Encoding="chunked")
    for number, content in enumerate(contents):
        assert digest_of(Received(api, files.at(path=f"form/{number}")).pieces()) == content.digest()


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_an_archive_both_ways(api, installation, box, files, compression):
    contents = {f"{number}/file": Content(max(DATA_MIB // 30, 1)) for number in range(5)}

    def archive():
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = content.size
            yield info.tobuf(tarfile.USTAR_FORMAT)
            yield from content.pieces()
        yield bytes(1024)

    def packed():
        packer = zlib.compressobj(1, wbits=31)
        for piece in archive():
            yield packer.compress(piece)
        yield packer.flush()

    body = packed() if compression else archive()
    with Sampler(installation, box):
        send(api, "PUT", files.at("/tar", path="tree", compression=compression), (piece for piece in body if piece),
             Transfer_Encoding="chunked")
        got = Received(api, files.at("/tar", path="tree", compression=compression))
        with tarfile.open(fileobj=got.response, mode="r|gz" if compression else "r|") as tree:
            seen = {}
            for entry in tree:
                if entry.isfile():
                    source = tree.extractfile(entry)
                    seen[entry.name.removeprefix("./")] = digest_of(iter(lambda: source.read(MIB), b""))  # noqa: B023
        got.connection.close()
    assert seen == {name: content.digest() for name, content in contents.items()}


def test_gzip_of_content_both_ways(api, installation, box, files):
    content = Content(max(DATA_MIB // 6, 1), sparse=DATA_MIB >= SPARSE_FROM_MIB)

    def packed():
        packer = zlib.compressobj(1, wbits=31)
        for piece in content.pieces():
            yield packer.compress(piece)
        yield packer.flush()

    def unpacked(pieces):
        unpacker = zlib.decompressobj(wbits=31)
        for piece in pieces:
            yield unpacker.decompress(piece)
        assert unpacker.eof

    with Sampler(installation, box):
        send(api, "PUT", files.at(path="packed"), (piece for piece in packed() if piece), Content_Encoding="gzip",
             Transfer_Encoding="chunked")
        got = Received(api, files.at(path="packed"), Accept_Encoding="gzip")
        assert got.response.getheader("Content-Encoding") == "gzip"
        assert digest_of(unpacked(got.pieces())) == content.digest()


def test_a_flood_of_output(api, installation, box):
    with Sampler(installation, box):
        process, session = api.start(box, "exec yes 'a line of a flood that nobody asked for'", timeout_seconds=FLOOD_SECONDS)
        with Attached(api, session["id"]) as lazy, api.events(session["id"]) as events:
            lazy.next_event("process_started")
            # One reads nothing, one reads all that it gets.
            end = list(events)[-1]
        assert end["event"] == "process_exited" and end["data"]["timed_out"] is True
    result = poll.until(lambda: api.result(box, process["id"]), 30, "the result")
    # How much that is the machine decides; more than a result keeps, in any case.
    assert result["timed_out"] is True and result["stdout_omitted_bytes"] > MIB
    assert api.check_output(box, ["echo", "served"], timeout_seconds=60) == "served\n"
