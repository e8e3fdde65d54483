"""Many clients, slow clients, many sandboxes at once."""

import json
import statistics
import subprocess
import sys
import threading
import time

import pytest

from harness import poll


class Dribble(threading.Thread):
    """A client that sends one byte a second; what it is answered, b"" where nothing is."""

    def __init__(self, api, head, slow):
        super().__init__(daemon=True)
        self.raw, self.slow, self.sent, self.answer = api.raw_socket(), slow, 0, b""
        self.raw.settimeout(1)  # of a read, which is the pause between two bytes
        self.raw.sendall(head)

    def run(self):
        with self.raw:
            while not self.answer:
                try:
                    if self.sent < len(self.slow):
                        self.raw.sendall(self.slow[self.sent:self.sent + 1])
                        self.sent += 1
                    self.answer = self.raw.recv(65536)
                    return
                except TimeoutError:
                    pass
                except OSError:
                    return


@pytest.fixture(scope="module")
def dribbles(installation, shared):
    """Slow heads, some too long for the 30 s that a head may take, and slow bodies, beside all tests of this file."""
    api = installation.api
    head = b"GET /v1/nosuch HTTP/1.1\r\nHost:a\r\n" + b"A: b\r\n" * 20 + b"\r\n"
    body = b'{"argv":["true"]}'
    post = (f"POST /v1/sandboxes/{shared}/run HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {installation.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n").encode()
    made = {
        "long head": [Dribble(api, b"", head) for _ in range(10)],
        "short head": [Dribble(api, head[:-10], head[-10:]) for _ in range(10)],
        "body": [Dribble(api, post, body) for _ in range(10)],
    }
    for client in sum(made.values(), []):
        client.start()
    return made


def in_parallel(count, work):
    """Runs work(index) in threads that begin together; the exceptions and the times taken."""
    gate = threading.Barrier(count)
    failures, times = [], [None] * count

    def one(index):
        gate.wait()
        start = time.monotonic()
        try:
            work(index)
        except Exception as error:  # pylint: disable=broad-except
            failures.append(error)
        times[index] = time.monotonic() - start

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return failures, sorted(t for t in times if t is not None)


# A program of its own: threads of ours would wait for each other, not for the server.
BYSTANDER = """import http.client, json, sys, threading, time
port, path, key, most = sys.argv[1:]
ended, began, times = threading.Event(), threading.Barrier(5), []
def ask():
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
    for index in range(int(most)):
        start = time.monotonic()
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        answer.read()
        times.append((time.monotonic() - start, answer.status))
        if index == 0:
            began.wait()
        if ended.wait(0.05):  # its share of what the key may ask
            break
asking = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
for one in asking:
    one.start()
began.wait(60)
print("began", flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
for one in asking:
    one.join()
print(json.dumps(times))
"""


class Bystander:
    """A client that asks by four connections until the block ends, or so many times by each: how long it waited."""

    def __init__(self, installation, path, times=None):
        self.child = subprocess.Popen([sys.executable, "-c", BYSTANDER, str(installation.port), path, installation.key,
                                       str(times or 1_000_000)],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.ends_itself = times is not None

    def __enter__(self):
        assert self.child.stdout.readline() == "began\n", self.child.communicate()
        return self

    def __exit__(self, *unused):
        printed = self.child.stdout.read() if self.ends_itself else ""
        rest, err = self.child.communicate(timeout=120)
        assert self.child.returncode == 0, err
        answers = json.loads(printed + rest)
        assert {status for _, status in answers} <= {200, 429}, answers  # it has the others' key
        self.times = sorted(took for took, _ in answers)

    @property
    def p99(self):
        """With four connections a stall is among the slowest hundredth of up to 400 answers."""
        return self.times[-1 - len(self.times) // 100]


def is_served_beside(beside, turn):
    """Whether it waits for about its turn, seconds long, and nobody stands still for a second more."""
    return beside.p99 < 1.5 * turn + 1


def test_200_clients_at_once(installation, dribbles, shared):
    """What one of them follows goes on meanwhile, and so does somebody who is none of them."""
    api = installation.api
    process, session = api.start(shared, "for i in $(seq 1 100); do echo $i; sleep 0.02; done")

    def work(index):
        for _ in range(5):
            assert api.sandbox(shared)["id"] == shared
            assert api.get("/v1/sandboxes", query={"limit": 10})["items"]
        api.close()

    with Bystander(installation, f"/v1/sandboxes/{shared}", times=25) as alone:
        pass
    with Bystander(installation, f"/v1/sandboxes/{shared}") as beside:
        failures, times = in_parallel(200, work)
    assert not failures, failures[:3]
    assert len(times) == 200 and times[-1] < 60
    assert len(beside.times) > 10 and beside.times[-1] < 5, (len(beside.times), beside.times[-1], times[-1])
    # In a fair queue, it waits as long as one of the 200 does for one of its ten answers.
    assert is_served_beside(beside, max(alone.p99, times[-1] / 10)), (alone.p99, beside.p99, len(beside.times), times[-1])
    assert api.result(shared, process["id"])["exit_code"] == 0
    assert api.output(session["id"]) == "".join(f"{i}\n" for i in range(1, 101)).encode()


def test_200_commands_at_once_over_several_sandboxes(installation, dribbles, sandboxes):
    api = installation.api
    made = [sandboxes()["id"] for _ in range(4)]

    def work(index):
        assert api.check_output(made[index % 4], ["echo", str(index)], timeout_seconds=120) == f"{index}\n"
        api.close()

    failures, _ = in_parallel(200, work)
    assert not failures, failures[:3]


def test_a_client_of_one_byte_a_second_disturbs_nobody(installation, shared):
    """While one request dribbles in, a hundred others are served as fast as without it."""
    api = installation.api
    request = (f"GET /v1/sandboxes/{shared} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {installation.key}\r\n\r\n").encode()
    stop = threading.Event()
    slow = [api.raw_socket() for _ in range(20)]

    def dribble():
        for index in range(len(request)):
            for raw in slow:
                try:
                    raw.sendall(request[index:index + 1])
                except OSError:
                    return
            if stop.wait(1):
                return

    with Bystander(installation, f"/v1/sandboxes/{shared}", times=25) as alone:
        pass
    thread = threading.Thread(target=dribble)
    thread.start()
    with Bystander(installation, f"/v1/sandboxes/{shared}", times=25) as beside:
        pass
    stop.set()
    thread.join(10)
    for raw in slow:
        raw.close()
    middle = [statistics.median(one.times) for one in (alone, beside)]
    assert middle[1] < 3 * middle[0] + 0.005, middle
    assert is_served_beside(beside, alone.p99), (alone.p99, beside.p99)


def test_a_stalled_body_holds_up_nobody(installation, shared):
    """A client promises a body and sends none: others are served meanwhile."""
    api = installation.api
    with api.raw_socket() as raw:
        raw.sendall((f"POST /v1/sandboxes/{shared}/run HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {installation.key}\r\n"
                     "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{").encode())
        assert api.check_output(shared, ["echo", "served"]) == "served\n"


@pytest.mark.long
def test_20_creates_at_once(installation, dribbles):
    api = installation.api
    made = []

    def work(_):
        made.append(api.create(metadata={"of": "twenty"})["id"])
        api.close()

    failures, _ = in_parallel(20, work)
    try:
        assert not failures, failures[:3]
        assert len(set(made)) == 20
        for sandbox in made:
            assert api.check_output(sandbox, ["cat", "/etc/hostname"]).strip() == sandbox
    finally:
        in_parallel(len(made), lambda index: api.delete(made[index]))
    poll.until(lambda: not api.get("/v1/sandboxes", query={"metadata.of": "twenty"})["items"], 30, "deleted")


def test_clients_of_one_byte_a_second_are_served_or_cut_off(dribbles):
    """A slow body is a request like any other; a head has its time limit."""
    for client in sum(dribbles.values(), []):
        client.join(90)
        assert not client.is_alive(), (client.sent, client.slow)
    for client in dribbles["body"]:
        assert client.answer.startswith(b"HTTP/1.1 200 ") and client.sent == len(client.slow), client.answer
    for client in dribbles["short head"]:
        assert client.answer.startswith(b"HTTP/1.1 4") and client.sent == len(client.slow), client.answer
    for client in dribbles["long head"]:
        assert client.answer.startswith(b"HTTP/1.1 400 ") and b"did not arrive within" in client.answer, client.answer
        assert client.sent < len(client.slow)
