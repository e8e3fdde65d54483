"""A guest at its worst: floods of output, of processes, of sessions. The daemons stay small and answer."""

import json
import os
import signal
import socket

import pytest
import websocket

from harness import machine, poll
from harness.attach import Attached
from harness.files import Files


def mib(installation):
    total = 0
    for program in ("space-node", "space-api"):
        total += int(machine.status(installation.daemon(program))["RssAnon"].split()[0]) / 1024
    return total


@pytest.fixture
def box(sandboxes):
    return sandboxes()["id"]


def test_a_flood_of_output_keeps_the_daemons_small(api, installation, box):
    before = mib(installation)
    process, session = api.start(box, "yes 'a line of a flood that nobody asked for'", timeout_seconds=300)
    path = f"/v1/sandboxes/{box}/processes/{process['id']}"
    with Attached(api, session["id"]) as lazy, api.events(session["id"]):
        lazy.next_event("process_started")
        # Two hundred megabytes later, with readers that read nothing:
        poll.until(lambda: total(api, session) > 200_000_000, 240, "the flood flows", every=0.5)
        assert mib(installation) - before < 24, (before, mib(installation))
        assert api.check_output(box, ["echo", "served"], timeout_seconds=60) == "served\n"
        assert api.post(f"{path}/kill")["killed"] is True
    result = api.result(box, process["id"])
    assert result["signal"] == "SIGKILL" and result["stdout_omitted_bytes"] > 100_000_000


MUCH = 16_777_216
# Bytes of which each takes six in JSON.
ESCAPED = f"head -c {MUCH} /dev/zero | tr '\\0' '\\1'"


class Unread:
    """A request whose client reads nothing of the answer but that it has begun."""

    def __init__(self, api, path, body, headers=""):
        data = json.dumps(body)
        self.socket = api.raw_socket(timeout=300)
        self.socket.sendall(f"POST {path} HTTP/1.0\r\nAuthorization: Bearer {api.key}\r\n{headers}"
                            f"Content-Length: {len(data)}\r\n\r\n{data}".encode())

    def wait(self):
        assert self.socket.recv(12, socket.MSG_PEEK | socket.MSG_WAITALL) == b"HTTP/1.1 200"
        return self

    def read(self):
        with self.socket.makefile("rb") as file:
            _, body = file.read().split(b"\r\n\r\n", 1)
        self.socket.close()
        return json.loads(body)

    def close(self):
        self.socket.close()


def admitted(api):
    return api.get("/v1/nodes/local")["vcpus"]["admitted"]


@pytest.mark.long
def test_results_that_are_not_read_take_nobody_s_output_nor_memory(api, installation, box):
    made = api.post("/v1/keys", {"name": "reads-nothing", "role": "member"}, status=201)
    lazy = api.as_key(made["key"])
    before, vcpus = mib(installation), admitted(api)
    asked = {"shell": ESCAPED, "max_output_bytes": MUCH, "timeout_seconds": 240}
    unread = [Unread(lazy, f"/v1/sandboxes/{box}/run", asked).wait() for _ in range(2)]
    unread += [Unread(lazy, "/v1/run", {"template": "base", **asked}).wait() for _ in range(4)]
    assert mib(installation) - before < 24, (before, mib(installation))
    # No VM lives on for a client that does not read.
    poll.until(lambda: admitted(api) == vcpus, 60, "their VMs are gone")
    asked["shell"] = ESCAPED.replace("'\\1'", "a")
    result = api.post("/v1/run", {"template": "base", **asked})
    assert (result["stdout_omitted_bytes"], result["stdout"]) == (0, "a" * MUCH)
    assert unread[-1].read()["stdout"] == "\1" * MUCH  # it was made last: nobody may read nothing for long
    result = api.post(f"/v1/sandboxes/{box}/run", asked)
    assert (result["stdout_omitted_bytes"], result["stdout"]) == (0, "a" * MUCH)
    assert mib(installation) - before < 24, (before, mib(installation))
    for one in unread:
        one.close()
    api.expect(200, "DELETE", f"/v1/keys/{made['id']}")


def test_a_run_that_nobody_reads_is_repeated(api):
    body = {"template": "base", "shell": "head -c 6000000 /dev/zero | tr '\\0' b", "max_output_bytes": MUCH}
    key = {"Idempotency-Key": "read-by-nobody"}
    Unread(api, "/v1/run", body, "Idempotency-Key: read-by-nobody\r\n").wait().close()
    answers = [api.expect(200, "POST", "/v1/run", body, headers=key) for _ in range(2)]
    assert [a.headers.get("Idempotency-Replayed") for a in answers] == ["true", "true"]
    assert answers[0].body == answers[1].body and answers[0].json["stdout"] == "b" * 6_000_000


def test_a_kept_sandbox_that_ends_while_its_result_is_read_is_in_error(api, installation):
    body = {"template": "base", "keep": True, "metadata": {"of": "unread"}, "shell": ESCAPED, "max_output_bytes": MUCH, "timeout_seconds": 240}
    unread = Unread(api, "/v1/run", body).wait()
    (kept,) = api.get("/v1/sandboxes", query={"metadata.of": "unread"})["items"]
    assert kept["state"] == "running"
    os.kill(installation.vmm_of(kept["id"]), signal.SIGKILL)
    poll.until(lambda: api.sandbox(kept["id"])["state"] == "error", 30, "what the node says of it counts at once")
    assert unread.read()["stdout"] == "\1" * MUCH
    api.delete(kept["id"])


def total(api, session):
    answer = api.ask("GET", f"/v1/sessions/{session['id']}/output", query={"stream": "stdout", "limit": 1, "offset": 0})
    if answer.status == 200:
        return 0
    with api.events(session["id"], tail_bytes=1) as events:
        for event in events:
            if event["event"] == "output":
                return event["data"]["offset"]
    return 0


def test_lines_of_a_megabyte_and_binary_output(api, box):
    _, session = api.start(box, "for i in 1 2 3 4; do head -c 1048576 /dev/zero | tr '\\0' $i; echo; done; head -c 100000 /dev/urandom > r; cat r")
    data = api.output(session["id"])
    assert data[:4 * 1048577] == b"".join(b"%d" % i * 1048576 + b"\n" for i in range(1, 5))
    assert data[4 * 1048577:] == Files(api, box).read("r")


@pytest.mark.long
def test_a_fork_bomb_is_outlived(api, box):
    process, _ = api.start(box, "bomb() { bomb | bomb & }; bomb; sleep 4740", timeout_seconds=120)
    path = f"/v1/sandboxes/{box}/processes/{process['id']}"
    poll.until(lambda: len(Files(api, box).list("/proc", limit=1000)["items"]) > 400, 60, "it explodes")
    # Files and signals do not depend on a free process slot.
    Files(api, box).put("through", b"the storm")
    assert Files(api, box).read("through") == b"the storm"
    assert api.post(f"{path}/kill")["killed"] is True
    poll.until(lambda: api.run(box, ["true"], timeout_seconds=30)["exit_code"] == 0, 90, "commands run again")
    left = int(api.check_output(box, "pgrep -c bash || true"))
    assert left < 10


# Children that only wait, and hold no output open.


@pytest.mark.long
def test_the_quota_of_running_commands(api, installation):
    from harness.installation import Installation
    made = Installation("sptq", uid_first=1_600_000, volume_gib=5, node__warm_pools="base=1", node__max_processes=5,
                        node__max_attached=3, node__spool_total_mib=2, node__spool_bytes=1 << 20)
    made.prepare()
    made.up()
    try:
        mine = made.api
        box = mine.create()["id"]
        running = [mine.start(box, ["sleep", "4741"]) for _ in range(5)]
        answer = mine.ask("POST", f"/v1/sandboxes/{box}/commands", {"argv": ["true"]})
        assert (answer.status, answer.code) == (409, "limit_exceeded") and answer.details["limit"] == "node.max_processes", answer
        mine.post(f"/v1/sandboxes/{box}/processes/{running[0][0]['id']}/kill")
        assert mine.run(box, ["true"])["exit_code"] == 0
        session = running[1][1]["id"]
        attached = [Attached(mine, session) for _ in range(3)]
        answer = mine.ask("GET", f"/v1/sessions/{session}/events", check=False)
        assert (answer.status, answer.code) == (409, "limit_exceeded") and answer.details["limit"] == "node.max_attached", answer
        for one in attached:
            one.drop()

        def attaches():
            try:
                Attached(mine, session).drop()
            except websocket.WebSocketBadStatusException:
                return False
            return True

        poll.until(attaches, 10, "there is room again")
        # The oldest ended session makes room in the spools.
        first, first_session = mine.start(box, "head -c 1000000 /dev/zero")
        mine.result(box, first["id"])
        for _ in range(3):
            later, later_session = mine.start(box, "head -c 1000000 /dev/zero")
            mine.result(box, later["id"])
        assert len(mine.output(later_session["id"])) == 1_000_000
        assert mine.ask("GET", f"/v1/sessions/{first_session['id']}/output", query={"stream": "stdout", "offset": 0}).status == 410
        mine.close()
    finally:
        made.remove()
