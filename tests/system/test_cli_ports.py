"""`space forward`, `ports`, `watch` and `stats` against a stand-in of the API."""

import json
import os
import signal
import socket
import subprocess
import threading

import pytest

import fake_api
from harness.installation import space_binary


@pytest.fixture
def api():
    made = fake_api.FakeApi()
    yield made
    made.close()


@pytest.fixture
def env(api, tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SPACE_")}
    return {**clean, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg"), "SPACE_URL": api.url,
            "SPACE_API_KEY": api.key}


@pytest.fixture
def box(api):
    return api.create({"template": "base", "name": "box"})["id"]


@pytest.fixture
def space(env):
    def run(*arguments):
        return subprocess.run([space_binary(), *arguments], env=env, text=True, capture_output=True, check=False, timeout=60)
    return run


class Service:
    """Answers each connection with what `answer(socket)` does."""

    def __init__(self, answer):
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, args=(answer,), daemon=True).start()

    def serve(self, answer):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.one, args=(answer, connection), daemon=True).start()

    @staticmethod
    def one(answer, connection):
        with connection:
            answer(connection)

    def close(self):
        self.socket.close()


def read_all(connection):
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


def upper_at_end(connection):
    """Speaks only when the other side has ended: needs half-close."""
    connection.sendall(read_all(connection).upper())


@pytest.fixture
def service():
    made = Service(upper_at_end)
    yield made
    made.close()


class Forward:
    def __init__(self, env, *arguments):
        self.child = subprocess.Popen([space_binary(), "forward", *arguments], env=env, text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE)

    def address(self):
        host, port = self.child.stdout.readline().strip().rsplit(":", 1)
        return host.strip("[]"), int(port)

    def end(self):
        self.child.send_signal(signal.SIGINT)
        _, said = self.child.communicate(timeout=20)
        assert self.child.returncode == 130
        return said


def talk(address, data):
    """Writes all, ends, and reads to the end; a reset is an error, whichever side of this sees it."""
    broken = []

    def write(connection):
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError as error:
            broken.append(error)

    with socket.create_connection(address, timeout=30) as connection:
        writer = threading.Thread(target=write, args=(connection,), daemon=True)
        writer.start()
        got = read_all(connection)
        writer.join()
    if broken:
        raise broken[0]
    return got


def test_forward_carries_both_ways_with_half_close(env, api, box, service):
    api.sandboxes[box]["ports"] = [service.port]
    forward = Forward(env, "box", f"0:{service.port}")
    address = forward.address()
    assert address[0] == "127.0.0.1"
    assert talk(address, b"hello") == b"HELLO"
    data = os.urandom(1 << 20).lower() * 8
    assert talk(address, data) == data.upper()
    assert forward.end() == ""


def test_forward_many_at_once(env, api, box, service):
    forward = Forward(env, box, f"0:{service.port}")
    address = forward.address()
    wants = [b"%d " % i * 5000 for i in range(60)]
    open_now = [socket.create_connection(address, timeout=30) for _ in wants]
    for connection, want in zip(open_now, wants):
        connection.sendall(want)
    for connection, want in reversed(list(zip(open_now, wants))):
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == want
        connection.close()
    forward.end()


def test_a_slow_reader_holds_only_itself_up(env, api, box):
    flood = Service(lambda c: c.sendall(b"x" * (32 << 20)))
    forward = Forward(env, box, f"0:{flood.port}")
    address = forward.address()
    with socket.create_connection(address, timeout=30) as slow:
        assert slow.recv(10) == b"x" * 10
        assert len(talk(address, b"")) == 32 << 20
        with open(f"/proc/{forward.child.pid}/status", encoding="ascii") as status:
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        assert peak < 40 << 10, "memory stays constant"
        assert len(read_all(slow)) == (32 << 20) - 10
    flood.close()
    forward.end()


def test_nothing_listens(env, api, box):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    forward = Forward(env, "box", f"0:{port}")
    address = forward.address()
    for _ in range(3):
        with pytest.raises(OSError):
            talk(address, b"x")
    said = forward.end()
    assert said.count(f"nothing listens on port {port} of box\n") == 1 and "yet" in said


def test_the_sandbox_goes(env, api, box, service):
    forward = Forward(env, box, f"0:{service.port}")
    address = forward.address()
    assert talk(address, b"a") == b"A"
    api.sandboxes.clear()
    with pytest.raises(OSError):
        talk(address, b"x")
    assert forward.child.wait(20) == 1 and "not_found" in forward.child.stderr.read()


def test_an_api_that_is_away_for_a_while(env, api, box, service):
    forward = Forward(env, box, f"0:{service.port}")
    address = forward.address()
    api.stop()
    with pytest.raises(OSError):
        talk(address, b"x")
    api.start()
    assert talk(address, b"again") == b"AGAIN"
    assert "cannot reach" in forward.end()


def test_several_ports_and_json(env, api, box, service):
    forward = Forward(env, "--json", box, f"0:{service.port}", f"0:{service.port}")
    text = ""
    while True:
        text += forward.child.stdout.readline()
        try:
            document = json.loads(text)
            break
        except ValueError:
            assert text
    assert [item["port"] for item in document["items"]] == [service.port] * 2
    for item in document["items"]:
        host, port = item["address"].split(":")
        assert talk((host, int(port)), b"x") == b"X"
    forward.end()


def test_forward_on_another_address(env, api, box, service):
    forward = Forward(env, "--address", "::1", box, f"0:{service.port}")
    address = forward.address()
    assert address[0] == "::1" and talk(address, b"x") == b"X"
    forward.end()


def test_forward_usage(space, box):
    for words in (("0",), ("x",), ("1:2:3",), ("99999",), ("80", "--address", "localhost")):
        done = space("forward", "box", *words)
        assert done.returncode == 2, (words, done)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = space("forward", "box", str(port))
        assert done.returncode == 1 and "taken" in done.stderr and f"0:{port}" in done.stderr


# ---- ports ----

def test_ports(space, api, box):
    api.sandboxes[box]["ports"] = [8000, 22]
    listed = space("ports", "box")
    assert listed.returncode == 0 and "8000" in listed.stdout and "no " in listed.stdout
    assert [i["port"] for i in json.loads(space("ports", "--json", "box").stdout)["items"]] == [8000, 22]
    api.sandboxes[box]["ports"] = list(range(1, 2002))
    assert [i["port"] for i in json.loads(space("ports", "--json", "box").stdout)["items"]] == list(range(1, 2002))
    api.sandboxes[box]["ports"] = [8000, 22]
    done = space("ports", "box", "--public", "8000")
    assert done.returncode == 0 and done.stdout == f"http://8000-{box}.example/\n" and api.sandboxes[box]["public"] == {8000: True}
    assert space("ports", "box", "--private", "8000").returncode == 0 and api.sandboxes[box]["public"] == {8000: False}
    assert space("ports", "box", "--link", "8000", "--ttl", "1h").stdout == "http://8000-x.example/?token=t\n"
    assert api.requests[-1][2] == {"sandbox_id": box, "port": 8000, "ttl_seconds": 3600}


def test_ports_usage(space, box):
    for words in (("--public", "0"), ("--link", "x"), ("--public", "1", "--private", "1"), ("--link", "1", "--ttl", "soon")):
        assert space("ports", "box", *words).returncode == 2, words


# ---- watch ----

CHANGES = [("created", {"path": "/w/a", "is_directory": False}), ("modified", {"path": "/w/a", "is_directory": False}),
           ("moved", {"path": "/w/b", "from": "/w/a", "is_directory": False}), ("created", {"path": "/w/\x1b[2J", "is_directory": True}),
           ("from_the_future", {"path": "/w/x"}), ("overflow", {}), ("deleted", {"path": "/w/b", "is_directory": False}),
           ("error", {"code": "not_found", "message": "the directory is gone"})]


@pytest.mark.parametrize("cuts", [0, 3])
def test_watch(space, api, box, cuts):
    api.changes, api.faults["cut_events"] = CHANGES, cuts
    done = space("watch", "box", "/w")
    assert done.returncode == 1 and "the directory is gone" in done.stderr
    assert done.stdout.splitlines() == ["created   /w/a", "modified  /w/a", "moved     /w/a -> /w/b", "created   /w/\\x1b[2J/",
                                        "overflow  changes came too fast or were lost: look at the directory anew", "deleted   /w/b"]
    path = next(p for _, p, _, _ in api.requests if "/watch?" in p)
    assert "path=%2Fw" in path and "recursive=true" in path


def test_watch_as_json(space, api, box):
    api.changes = CHANGES
    lines = [json.loads(line) for line in space("watch", "--json", "--flat", "box", "/w").stdout.splitlines()]
    assert [line["event"] for line in lines] == ["created", "modified", "moved", "created", "overflow", "deleted"]
    assert lines[2] == {"event": "moved", "path": "/w/b", "from": "/w/a", "is_directory": False}
    assert any("recursive=false" in p for _, p, _, _ in api.requests)


def test_watch_of_nothing(space, api, box):
    done = space("watch", "box", "/nowhere")
    assert done.returncode == 1 and "not_found" in done.stderr


# ---- stats ----

def test_stats(space, api, box):
    assert "no sample yet" in space("stats", "box").stderr
    api.samples = [{"at": f"2026-01-01T00:00:0{i}.000Z", "cpu_percent": 12.5 * i, "cpu_seconds": 1.5, "memory_total_bytes": 512 << 20,
                    "memory_used_bytes": 100 << 20, "disk_total_bytes": 4 << 30, "disk_used_bytes": 1 << 30, "processes": 9}
                   for i in (1, 2)]
    done = space("stats", "box")
    assert "25.0 %" in done.stdout and "12.5 %" not in done.stdout and "100 MiB of 512 MiB" in done.stdout
    assert "12.5 %" in space("stats", "--last", "10m", "box").stdout
    assert any("start=" in p for _, p, _, _ in api.requests)
    assert len(json.loads(space("stats", "--json", "box").stdout)["items"]) == 2
