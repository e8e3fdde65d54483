"""Terminals, and sessions attached over WebSocket."""

import base64
import json
import socket
import threading

import pytest
import websocket

from harness import poll
from harness.attach import Attached

# Waits with the signal blocked: a trap of bash loses one that comes while it runs.
SAYS_ITS_SIZES = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
print("armed", flush=True)
while True:
    signal.sigwait([signal.SIGWINCH])
    size = os.get_terminal_size()
    print(size.lines, size.columns, flush=True)
"""
SO_RCVBUFFORCE = 33  # socket.h has it, Python does not
SIZE = {"cols": 91, "rows": 33, "term": "xterm-256color"}


def terminal(api, sandbox, command=("bash", "--norc"), **more):
    command = command if isinstance(command, str) else list(command)
    return api.start(sandbox, command, tty=SIZE, env={"PS1": "ready> "}, **more)


class TestTerminal:
    def test_size_name_and_job_control(self, api, shared):
        process, session = terminal(api, shared)
        assert process["tty"] == SIZE
        with Attached(api, session["id"]) as at:
            at.read_until(b"ready> ")
            assert b"job control" not in at.output["stdout"]
            at.write(b"stty size; echo $TERM; tty; set -o | grep monitor; echo all-''said\n")
            seen = at.read_until(b"all-said")
            assert b"33 91" in seen and b"monitor        \ton" in seen and b"xterm-256color" in seen and b"/dev/pts/" in seen
            at.write(b"exit 5\n")
            last = at.read_to_end()
        assert (last["type"], last["exit_code"], last["signal"]) == ("process_exited", 5, None)

    def test_resize_is_seen_by_the_program(self, api, shared):
        process, session = terminal(api, shared, ["python3", "-c", SAYS_ITS_SIZES])
        with Attached(api, session["id"]) as at:
            at.read_until(b"armed")
            at.tell(type="resize", cols=120, rows=50)
            at.read_until(b"50 120")
            api.post(f"/v1/sandboxes/{shared}/processes/{process['id']}/resize", {"cols": 77, "rows": 22})
            at.read_until(b"22 77")
        assert api.process(shared, process["id"])["tty"] == {**SIZE, "cols": 77, "rows": 22}
        api.post(f"/v1/sandboxes/{shared}/processes/{process['id']}/kill")

    def test_a_resize_without_a_terminal_or_after_the_end_is_refused(self, api, shared):
        process, _ = api.start(shared, ["sleep", "4720"])
        path = f"/v1/sandboxes/{shared}/processes/{process['id']}"
        assert api.ask("POST", f"{path}/resize", {"cols": 80, "rows": 24}).code == "failed_precondition"
        api.post(f"{path}/kill")
        process, _ = terminal(api, shared, "true")
        api.result(shared, process["id"])
        answer = api.ask("POST", f"/v1/sandboxes/{shared}/processes/{process['id']}/resize", {"cols": 80, "rows": 24})
        assert answer.code == "failed_precondition"

    @pytest.mark.parametrize("size,field", [
        ({"cols": 0, "rows": 24}, "cols"), ({"cols": 80, "rows": 1001}, "rows"), ({"cols": "80", "rows": 24}, "cols"),
        ({"rows": 24}, "cols"), ({"cols": 80, "rows": 24, "depth": 1}, "depth")])
    def test_bad_sizes_are_refused(self, api, shared, size, field):
        answer = api.ask("POST", f"/v1/sandboxes/{shared}/commands", {"argv": ["true"], "tty": size})
        assert answer.status == 400 and answer.details["field"] == f"tty.{field}", answer

    def test_control_c_and_control_d(self, api, shared):
        _, session = terminal(api, shared)
        with Attached(api, session["id"]) as at:
            at.read_until(b"ready> ")
            at.write(b"sleep 4721\n")
            poll.until(lambda: api.run(shared, "pgrep -f '[s]leep 4721'")["exit_code"] == 0, 20, "sleep runs")
            at.write(b"\x03")
            at.read_until(b"^C")
            at.read_until(b"ready> ", after=b"^C")
            at.write(b"echo status=$?\n")
            at.read_until(b"status=130")
            at.read_until(b"ready> ", after=b"status=130")
            # What ran last was the echo.
            at.write(b"\x04")
            assert at.read_to_end()["exit_code"] == 0

    def test_a_terminal_that_is_held_is_told_of(self, api, shared):
        """By one that outlives its shell and the hang-up; it goes on, unread."""
        api.run(shared, "rm -f armed let-go mark")
        _, session = terminal(api, shared, "(trap '' HUP; touch armed; while ! [ -e let-go ]; do sleep 0.1; done; seq 1 20000 && "
                                           "echo survived >mark) & while ! [ -e armed ]; do sleep 0.1; done; echo done; exit 3")
        with Attached(api, session["id"]) as at:
            last = at.read_to_end()
        assert (last["exit_code"], last["pipe_held"]) == (3, True), last
        assert at.output["stdout"] == b"done\r\n"
        api.run(shared, ["touch", "let-go"])
        poll.until(lambda: api.run(shared, ["cat", "mark"])["stdout"] == "survived\n", 30, "the late writer survives")
        assert api.output(session["id"]) == b"done\r\n"
        _, session = terminal(api, shared, "echo alone")
        with Attached(api, session["id"]) as at:
            assert at.read_to_end()["pipe_held"] is False

    def test_the_end_of_input_is_an_event_too(self, api, shared):
        _, session = terminal(api, shared, "cat")
        with Attached(api, session["id"]) as at:
            at.write(b"line\n")
            at.read_until(b"line\r\nline\r\n")
            at.tell(type="eof")
            last = at.read_to_end()
            assert last["exit_code"] == 0, last

    def test_a_signal_over_the_attachment(self, api, shared):
        _, session = terminal(api, shared, "trap 'echo got it; exit 9' USR1; echo armed; while :; do sleep 0.05; done")
        with Attached(api, session["id"]) as at:
            at.read_until(b"armed")
            at.tell(type="signal", signal="SIGUSR1", scope="process")
            at.read_until(b"got it")
            assert at.read_to_end()["exit_code"] == 9

    def test_it_outlives_its_client_and_is_taken_up_by_offset(self, api, shared):
        _, session = terminal(api, shared)
        with Attached(api, session["id"]) as at:
            at.read_until(b"ready> ")
            at.write(b"x=kept\n")
            at.read_until(b"ready> ", "stdout")
            seen = at.output["stdout"]
        with Attached(api, session["id"], stdout=len(seen)) as at:
            at.write(b"echo $x-$((40 + 2))\n")
            at.read_until(b"kept-42")
            at.write(b"exit\n")
            at.read_to_end()
            assert api.output(session["id"]) == seen + at.output["stdout"]

    def test_a_full_screen_program_draws(self, api, shared):
        _, session = terminal(api, shared, "printf '\\033[2J\\033[H'; tput cols; tput lines; printf '\\033[31mred\\033[0m'")
        with Attached(api, session["id"]) as at:
            at.read_to_end()
        assert b"\x1b[2J\x1b[H91\r\n33\r\n\x1b[31mred\x1b[0m" in at.output["stdout"]


class TestAttach:
    def test_streams_are_apart_and_the_end_is_told(self, api, shared):
        process, session = api.start(shared, "echo out; echo err >&2; exit 3")
        with Attached(api, session["id"]) as at:
            last = at.read_to_end()
        assert at.output == {"stdout": b"out\n", "stderr": b"err\n"}
        assert at.attached["process_id"] == process["id"]
        assert {k: last[k] for k in ("type", "exit_code", "stdout_bytes", "stderr_bytes")} == {
            "type": "process_exited", "exit_code": 3, "stdout_bytes": 4, "stderr_bytes": 4}

    def test_input_with_exact_offsets_over_dropped_connections(self, api, shared):
        want = b"".join(b"%07d\n" % i for i in range(60_000))
        process, session = api.start(shared, "sha256sum; exit 4", stdin="open")
        sent, rounds, former = 0, 0, {}
        while sent < len(want):
            with Attached(api, session["id"], **former) as at:
                former = {"replaces": at.attached["attachment_id"]}
                sent = at.attached["stdin_offset"]
                for _ in range(5):
                    at.write(want[sent:sent + 12_345])
                    sent += len(want[sent:sent + 12_345])
            rounds += 1
        with Attached(api, session["id"], **former) as at:
            at.write(want[at.attached["stdin_offset"]:])
            at.tell(type="eof")
            assert at.read_to_end()["exit_code"] == 4
        import hashlib
        assert api.output(session["id"]).split()[0].decode() == hashlib.sha256(want).hexdigest()
        assert rounds > 3

    def test_output_is_taken_up_anywhere(self, api, shared):
        _, session = api.start(shared, "seq 1 20000; seq 1 5000 >&2")
        want = {"stdout": api.output(session["id"]), "stderr": api.output(session["id"], "stderr")}
        for out, err in ((0, 0), (17, 4), (len(want["stdout"]), 0), (54_321, len(want["stderr"]))):
            with Attached(api, session["id"], stdout=out, stderr=err) as at:
                at.read_to_end()
            assert at.output == {"stdout": want["stdout"][out:], "stderr": want["stderr"][err:]}

    def test_an_offset_beyond_the_output_is_refused(self, api, shared):
        process, session = api.start(shared, "echo short")
        api.result(shared, process["id"])
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            Attached(api, session["id"], stdout=999)
        assert refused.value.status_code == 400

    def test_two_writers_and_a_reader(self, api, shared):
        _, session = api.start(shared, "cat", stdin="open")
        with Attached(api, session["id"]) as one, Attached(api, session["id"]) as two, Attached(api, session["id"]) as three:
            one.write(b"from one\n")
            two.write(b"from two\n")
            for at in (one, two, three):
                at.read_until(b"from one\n")
                at.read_until(b"from two\n")
            one.tell(type="eof")
            for at in (one, two, three):
                assert at.read_to_end()["exit_code"] == 0

    def test_broken_messages_close_with_a_reason_and_hurt_nobody(self, api, shared):
        _, session = api.start(shared, "cat", stdin="open")
        with Attached(api, session["id"]) as good:
            for text in ("{", "[]", '{"type": 7}', '{"type":"resize","cols":-1,"rows":2}', "\x00", "x" * 70_000):
                with Attached(api, session["id"]) as bad:
                    bad.socket.send(text)
                    got = bad.receive()
                    while isinstance(got, dict) and got["type"] == "process_started":
                        got = bad.receive()
                    assert got is None or got["type"] == "error", (text[:20], got)
            with Attached(api, session["id"]) as odd:
                odd.tell(type="from_the_future", x=1)
                assert odd.next_event("error")
                odd.write(b"still open\n")
                odd.read_until(b"still open\n")
            good.read_until(b"still open\n")
            good.tell(type="eof")
            assert good.read_to_end()["exit_code"] == 0

    def test_start_on_attach(self, api, shared):
        process, session = api.start(shared, "echo begun", start="on_attach")
        assert process["state"] == "starting" and process["pid"] is None
        assert api.process(shared, process["id"])["state"] == "starting"
        with Attached(api, session["id"]) as at:
            assert at.read_to_end()["exit_code"] == 0
        assert at.output["stdout"] == b"begun\n"

    def test_plain_http_is_told_what_it_needs(self, api, shared):
        _, session = api.start(shared, "true")
        answer = api.ask("GET", f"/v1/sessions/{session['id']}/attach")
        assert answer.status == 400 and answer.details["field"], answer

    def test_a_session_that_never_was(self, api):
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            Attached(api, "se" + "0" * 18)
        assert refused.value.status_code == 404

    def test_many_readers_of_one_flood(self, api, shared):
        _, session = api.start(shared, "head -c 3000000 /dev/zero | tr '\\0' x")
        got = [None] * 16

        def read(index):
            with Attached(api, session["id"]) as at:
                at.read_to_end()
                got[index] = at.output["stdout"]

        threads = [threading.Thread(target=read, args=(i,)) for i in range(len(got))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert all(data == b"x" * 3_000_000 for data in got)


class TestBlock:
    def test_a_blocked_command_waits_for_its_reader_and_loses_nothing(self, api, shared):
        process, session = api.start(shared, "seq 1 400000; echo finished >&2", spool_bytes=65536, on_full="block")
        want = b"".join(b"%d\n" % i for i in range(1, 400_001))
        # Nobody reads, so it cannot end; it has written at least what the spool holds.
        poll.until(lambda: len(api.expect(200, "GET", f"/v1/sessions/{session['id']}/output",
                                          query={"stream": "stdout", "offset": 0}).body) > 10_000, 30, "output begins")
        assert api.process(shared, process["id"])["state"] == "running"
        with Attached(api, session["id"]) as at:
            assert at.read_to_end()["exit_code"] == 0
        assert at.output["stdout"] == want
        assert not [e for e in at.events if e["type"] == "gap"]

    @pytest.mark.parametrize("way", ["attach", pytest.param("events", marks=pytest.mark.long)])
    def test_what_a_cut_connection_held_can_be_read_again(self, api, sandboxes, way):
        """The sockets of a client that does not read take more than the whole spool may hold."""
        box = sandboxes()["id"]
        process, session = api.start(box, "for i in $(seq 100); do head -c 1000000 /dev/zero; echo $i > /tmp/pieces; done",
                                     spool_bytes=65536, on_full="block")
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        lazy.connect((api.host, api.port))
        upgrade = "" if way == "events" else ("Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                                              f"Sec-WebSocket-Key: {'A' * 21}w==\r\n")
        lazy.sendall(f"GET /v1/sessions/{session['id']}/{way} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
                     f"{upgrade}\r\n".encode())
        written = self.wait_until_it_waits(api, box)
        assert 8_000_000 < written < 100_000_000, written
        assert api.process(box, process["id"])["state"] == "running"
        lazy.close()
        got = 0
        with Attached(api, session["id"]) if way == "attach" else api.events(session["id"]) as reader:
            while got < written:
                if way == "attach":
                    event = reader.receive()
                    kind, more = (event["type"], b"") if isinstance(event, dict) else ("output", reader.output.pop("stdout"))
                    reader.output["stdout"] = b""
                else:
                    event = next(reader)
                    kind, more = event["event"], b""
                    if kind == "output":
                        assert event["data"]["offset"] == got
                        more = base64.b64decode(event["data"]["data"])
                assert kind in ("process_started", "output", "sandbox"), (event, got)
                got += len(more)
        assert api.post(f"/v1/sandboxes/{box}/processes/{process['id']}/kill")["killed"] is True

    @staticmethod
    def wait_until_it_waits(api, box):
        """Until nothing has been written for a while; how much was."""
        seen = [0]

        def stands():
            before, text = seen[-1], api.run(box, "sleep 1; cat /tmp/pieces")["stdout"]
            seen.append(int(text or 0) * 1_000_000)
            return seen[-1] == before > 0

        poll.until(stands, 120, "the writer waits")
        return seen[-1]

    def test_dropping_reports_what_is_gone(self, api, shared):
        process, session = api.start(shared, "seq 1 400000", spool_bytes=65536)
        assert api.result(shared, process["id"])["exit_code"] == 0
        total = sum(len(b"%d\n" % i) for i in range(1, 400_001))
        with Attached(api, session["id"]) as at:
            at.read_to_end()
        gaps = [e for e in at.events if e["type"] == "gap"]
        assert gaps and sum(e["bytes"] for e in gaps) + len(at.output["stdout"]) == total
        assert at.output["stdout"].endswith(b"399999\n400000\n")


def test_the_text_frames_are_documented(api, shared):
    _, session = api.start(shared, "echo x")
    with Attached(api, session["id"]) as at:
        at.read_to_end()
    assert {e["type"] for e in at.events} <= {"attached", "process_started", "process_exited", "sandbox"}
    assert json.dumps(at.events)
