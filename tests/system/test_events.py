"""Server-sent events: order, exact replay from anywhere, lossless over disconnects."""

import base64
import threading
import time

import pytest

from harness import poll
from harness.attach import Attached
from harness.files import Files

PROGRAM = "for i in $(seq 1 40); do echo line $i; echo err $i >&2; sleep 0.01; done; exit 7"


def joined(events, stream):
    """The bytes of a stream, checked for holes and repeats."""
    data = b""
    for event in events:
        if event["event"] == "output" and event["data"]["stream"] == stream:
            assert event["data"]["offset"] == len(data), event
            data += base64.b64decode(event["data"]["data"])
    return data


class Silence(threading.Thread):
    """A stream in which nothing happens: when its comment lines come, in seconds from its start."""

    def __init__(self, api, path):
        super().__init__(daemon=True)
        self.connection = api.connect()
        self.connection.request("GET", path, headers={"Authorization": f"Bearer {api.key}"})
        self.response = self.connection.getresponse()
        assert self.response.status == 200
        self.begin = time.monotonic()
        self.comments = []
        self.start()

    def run(self):
        while line := self.response.readline():
            if line.startswith(b":"):
                self.comments.append(time.monotonic() - self.begin)


@pytest.fixture(scope="module", autouse=True)
def silences(installation):
    """Opened before the other tests of this file, and looked at behind them: their time is not waited for again."""
    api = installation.api
    sandbox = api.create()["id"]
    _, session = api.start(sandbox, ["sleep", "4743"])
    yield [Silence(api, f"/v1/sessions/{session['id']}/events"), Silence(api, Files(api, sandbox).at("/watch", path="/tmp"))]
    api.delete(sandbox)


@pytest.fixture(scope="module")
def finished(installation):
    """A sandbox, a session that has ended, and all of its events."""
    api = installation.api
    sandbox = api.create()["id"]
    process, session = api.start(sandbox, PROGRAM)
    with api.events(session["id"]) as stream:
        seen = list(stream)
    yield sandbox, process, session, seen
    api.delete(sandbox)


def test_the_order_of_events(finished):
    _, process, _, seen = finished
    kinds = [event["event"] for event in seen if event["event"] != "sandbox"]
    assert kinds[0] == "process_started" and kinds[-1] == "process_exited"
    assert set(kinds[1:-1]) == {"output"}
    assert seen[0]["data"]["process_id"] == process["id"]
    want_out = "".join(f"line {i}\n" for i in range(1, 41)).encode()
    want_err = "".join(f"err {i}\n" for i in range(1, 41)).encode()
    assert joined(seen, "stdout") == want_out and joined(seen, "stderr") == want_err
    assert seen[-1]["data"] == {"exit_code": 7, "signal": None, "timed_out": False, "out_of_memory": False, "pipe_held": False,
                                "stdout_bytes": len(want_out), "stderr_bytes": len(want_err)}
    ids = [event["id"] for event in seen if event["id"]]
    assert len(set(ids)) == len(ids)


def test_replay_from_every_event_id_is_exact(api, finished):
    _, _, session, seen = finished
    for index, event in enumerate(seen):
        with api.events(session["id"], after=event["id"]) as stream:
            rest = list(stream)
        assert rebuilt(rest, seen[:index + 1]) == rebuilt(seen, []), f"after event {index}"
        # What an EventSource takes for the end; any other answer has it come again.
        assert stream.status == (204 if index == len(seen) - 1 else 200)


def rebuilt(events, before):
    """What a client has that saw `before` and then `events`."""
    data = {"stdout": b"", "stderr": b""}
    last = None
    for event in [*before, *events]:
        if event["event"] == "output":
            stream = event["data"]["stream"]
            assert event["data"]["offset"] == len(data[stream]), event
            data[stream] += base64.b64decode(event["data"]["data"])
        last = (event["event"], event["data"])
    return data, last


def test_after_in_the_query_is_the_same(api, finished):
    _, _, session, seen = finished
    middle = seen[len(seen) // 2]["id"]
    with api.events(session["id"], after=middle) as one, api.events(session["id"], **{"after": middle}) as two:
        assert list(one) == list(two)


def test_tail_bytes_starts_near_the_end(api, finished):
    _, _, session, seen = finished
    with api.events(session["id"], tail_bytes=20) as stream:
        tail = list(stream)
    assert tail[-1]["event"] == "process_exited"
    # Of the whole path, both streams in their order.
    def path(events):
        return b"".join(base64.b64decode(e["data"]["data"]) for e in events if e["event"] == "output")
    assert path(tail) == path(seen)[-20:]


def test_disconnects_while_it_runs_lose_and_repeat_nothing(api, shared):
    process, session = api.start(shared, "for i in $(seq 1 300); do echo $i; sleep 0.005; done")
    seen, last = [], None
    rounds = 0
    while True:
        rounds += 1
        with api.events(session["id"], after=last) as stream:
            for count, event in enumerate(stream):
                seen.append(event)
                last = event["id"] or last
                if event["event"] == "process_exited" or count >= 9:
                    break
        if seen[-1]["event"] == "process_exited":
            break
    assert rounds > 3
    assert joined(seen, "stdout") == "".join(f"{i}\n" for i in range(1, 301)).encode()


def test_several_readers_see_the_same(api, shared):
    _, session = api.start(shared, "for i in $(seq 1 200); do echo $i; done")
    got = [None] * 8

    def read(index):
        with api.events(session["id"]) as stream:
            got[index] = joined(list(stream), "stdout")

    threads = [threading.Thread(target=read, args=(i,)) for i in range(len(got))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(got) == {"".join(f"{i}\n" for i in range(1, 201)).encode()}


def test_a_reader_that_reads_nothing_holds_up_no_other(api, shared):
    _, session = api.start(shared, "head -c 20000000 /dev/zero | base64 -w 0", spool_bytes=64 << 20)
    with api.events(session["id"]):
        assert len(api.output(session["id"])) == 26_666_668


def test_a_change_of_state_is_told_at_once(api, sandboxes):
    sandbox = sandboxes()["id"]
    _, session = api.start(sandbox, ["sleep", "4742"])
    with api.events(session["id"]) as events, Attached(api, session["id"]) as attached:
        assert next(events)["event"] == "process_started"
        api.delete(sandbox)
        seen = [(event["event"], event["data"]) for event in events]
        attached.read_to_end()
    assert seen == [("sandbox", {"state": "deleting"}), ("process_lost", {"reason": "deleted"})]
    told = [(event.pop("type"), event) for event in attached.events if event["type"] not in ("attached", "process_started")]
    assert told == seen


def test_output_and_events_agree(api, finished):
    _, _, session, seen = finished
    assert api.output(session["id"]) == joined(seen, "stdout")
    assert api.output(session["id"], "stderr") == joined(seen, "stderr")


def test_a_comment_line_comes_every_fifteen_seconds(silences):
    for silence in silences:
        poll.until(lambda comments=silence.comments: comments, 25, "a comment line", every=0.1)
        times = [0, *silence.comments]
        gaps = [later - earlier for earlier, later in zip(times, times[1:])]
        assert all(12 < gap < 20 for gap in gaps), gaps
        assert len(gaps) >= (time.monotonic() - silence.begin - 5) // 15, (gaps, time.monotonic() - silence.begin)
