"""Tokens: what each opens, how long, and what ends it. Keys that only look."""

import datetime
import json
import select
import time
import urllib.parse

import pytest

from harness import poll
from harness.attach import Attached
from harness.files import Files


@pytest.fixture(scope="module")
def box(installation):
    sandbox = installation.api.create()["id"]
    yield sandbox
    installation.api.delete(sandbox)


def token(api, box, **body):
    return api.expect(201, "POST", "/v1/tokens", {"sandbox_id": box, **body}).json


class TestSessionTokens:
    def test_every_session_comes_with_one(self, api, box):
        _, session = api.start(box, "echo hello")
        assert session["token"] and session["token_expires_at"] and session["url"].endswith(session["id"])
        mine = api.as_key(session["token"])
        assert mine.output(session["id"]) == b"hello\n"
        with mine.events(session["id"]) as events:
            assert [e["event"] for e in events][-1] == "process_exited"
        with Attached(mine, session["id"]) as at:
            at.read_to_end()
        assert at.output["stdout"] == b"hello\n"

    def test_it_works_from_a_browser_by_query(self, api, box):
        _, session = api.start(box, "cat", stdin="open")
        with Attached(api, session["id"], token=session["token"]) as at:
            at.write(b"typed\n")
            at.read_until(b"typed\n")
            at.tell(type="eof")
            at.read_to_end()
        answer = api.ask("GET", f"/v1/sessions/{session['id']}/output", key=False,
                         query={"stream": "stdout", "token": session["token"]})
        assert answer.status == 200 and answer.body == b"typed\n"

    def test_it_opens_nothing_else(self, api, box):
        _, session = api.start(box, "true")
        _, other = api.start(box, "true")
        mine = api.as_key(session["token"])
        for method, path in (("GET", f"/v1/sessions/{other['id']}/output?stream=stdout"), ("GET", f"/v1/sandboxes/{box}"),
                             ("GET", "/v1/sandboxes"), ("POST", f"/v1/sandboxes/{box}/run"), ("DELETE", f"/v1/sandboxes/{box}"),
                             ("GET", "/v1/keys"), ("GET", f"/v1/sandboxes/{box}/files?path=/etc/hosts"), ("POST", "/v1/sandboxes")):
            answer = mine.ask(method, path, {"argv": ["true"]} if method == "POST" else None)
            assert answer.status == 403, (method, path, answer)

    def test_a_query_token_counts_only_where_it_may(self, api, box):
        made = token(api, box)["token"]
        for path in (f"/v1/sandboxes/{box}", "/v1/sandboxes", f"/v1/sandboxes/{box}/files?path=/etc/hosts"):
            joined = path + ("&" if "?" in path else "?") + f"token={made}"
            answer = api.ask("GET", joined, key=False)
            assert (answer.status, answer.code) == (401, "unauthorized"), (path, answer)


class TestLife:
    @staticmethod
    def seconds(text):
        return datetime.datetime.fromisoformat(text).timestamp() - time.time()

    def test_five_minutes_unless_asked(self, api, box):
        _, session = api.start(box, "true")
        assert 290 < self.seconds(session["token_expires_at"]) <= 300
        for body in ({}, {"session_id": session["id"]}, {"port": 80, "access": "write"}):
            assert 290 < self.seconds(token(api, box, **body)["expires_at"]) <= 300, body
        assert 50 < self.seconds(token(api, box, ttl_seconds=60)["expires_at"]) <= 60

    def test_it_is_renewed_by_itself_and_by_the_key(self, api, box):
        _, session = api.start(box, "echo hello")
        short = token(api, box, session_id=session["id"], ttl_seconds=2)
        renewed = token(api.as_key(short["token"]), box, session_id=session["id"])
        assert self.seconds(renewed["expires_at"]) > 290 and renewed["token"] != short["token"]
        poll.until(lambda: api.as_key(short["token"]).ask("GET", f"/v1/sessions/{session['id']}/output").status == 401,
                   10, "the first one expires")
        assert api.as_key(renewed["token"]).output(session["id"]) == b"hello\n"
        answer = api.as_key(short["token"]).ask("POST", "/v1/tokens", {"sandbox_id": box, "session_id": session["id"]})
        assert answer.status == 401, answer
        again = token(api, box, session_id=session["id"])
        assert api.as_key(again["token"]).output(session["id"]) == b"hello\n"


class TestSandboxTokens:
    def test_write_and_read(self, api, box):
        write = api.as_key(token(api, box, access="write")["token"])
        assert write.check_output(box, ["echo", "x"]) == "x\n"
        Files(write, box).put("by-token", b"1")
        read = api.as_key(token(api, box, access="read")["token"])
        assert read.sandbox(box)["id"] == box
        for method, path, body in (("POST", f"/v1/sandboxes/{box}/run", {"argv": ["true"]}),
                                   ("POST", f"/v1/sandboxes/{box}/commands", {"argv": ["true"]}),
                                   ("DELETE", f"/v1/sandboxes/{box}", None)):
            assert read.ask(method, path, body).status == 403, path
        assert Files(read, box).ask("PUT", raw=b"x", path="nope").status == 403

    def test_another_sandbox_is_closed(self, api, box, sandboxes):
        other = sandboxes()["id"]
        mine = api.as_key(token(api, box)["token"])
        for path in (f"/v1/sandboxes/{other}", f"/v1/sandboxes/{other}/processes"):
            assert mine.ask("GET", path).status == 403

    def test_bad_requests(self, api, box):
        for body, field in (({}, "sandbox_id"), ({"sandbox_id": box, "ttl_seconds": 0}, "ttl_seconds"),
                            ({"sandbox_id": box, "ttl_seconds": 86401}, "ttl_seconds"), ({"sandbox_id": box, "access": "admin"}, "access"),
                            ({"sandbox_id": box, "port": 0}, "port"), ({"sandbox_id": box, "port": 80, "session_id": "se" + "0" * 18}, None)):
            answer = api.ask("POST", "/v1/tokens", body)
            assert answer.status == 400 and (field is None or answer.details["field"] == field), (body, answer)
        assert api.ask("POST", "/v1/tokens", {"sandbox_id": "sb" + "0" * 18}).status == 404

    def test_forged_and_cut_tokens(self, api, box):
        good = token(api, box)["token"]
        for bad in (good[:-1], good + "A", good[:-3] + ("AAA" if good[-3:] != "AAA" else "BBB"), good.swapcase(), good[:20]):
            assert api.as_key(bad).ask("GET", f"/v1/sandboxes/{box}").status == 401, bad

    def test_it_expires(self, api, box):
        short = token(api, box, ttl_seconds=1)
        mine = api.as_key(short["token"])
        assert mine.ask("GET", f"/v1/sandboxes/{box}").status == 200
        poll.until(lambda: mine.ask("GET", f"/v1/sandboxes/{box}").status == 401, 10, "expired")

    def test_expiry_cuts_no_open_stream(self, api, box):
        short = token(api, box, ttl_seconds=1)["token"]
        _, session = api.start(box, "cat", stdin="open")
        with Attached(api.as_key(short), session["id"]) as at:
            poll.until(lambda: api.as_key(short).ask("GET", f"/v1/sandboxes/{box}").status == 401, 10, "expired")
            at.write(b"still here\n")
            at.read_until(b"still here\n")
            at.tell(type="eof")
            at.read_to_end()

    def test_a_replayed_answer_has_a_good_token(self, api, box):
        head = {"Idempotency-Key": "token-replay"}
        first = api.ask("POST", f"/v1/sandboxes/{box}/commands", {"argv": ["true"]}, headers=head).json
        second = api.ask("POST", f"/v1/sandboxes/{box}/commands", {"argv": ["true"]}, headers=head).json
        assert first["process"] == second["process"]
        assert api.as_key(second["session"]["token"]).output(second["session"]["id"]) == b""


class TestReadKeys:
    @pytest.fixture
    def reader(self, api):
        made = api.post("/v1/keys", {"name": "looker", "role": "read"}, status=201)
        yield api.as_key(made["key"])
        api.expect(200, "DELETE", f"/v1/keys/{made['id']}")

    def test_they_only_look(self, api, box, reader):
        process, session = api.start(box, "cat", stdin="open")
        with Attached(reader, session["id"]) as at, Attached(api, session["id"]) as writer:
            writer.write(b"seen by both\n")
            at.read_until(b"seen by both\n")
            at.write(b"not taken\n")
            assert at.next_event("error")
            at.tell(type="signal", signal="SIGKILL")
            assert at.next_event("error")
            writer.tell(type="eof")
            assert writer.read_to_end()["exit_code"] == 0
            at.read_to_end()
        assert api.output(session["id"]) == b"seen by both\n"
        path = f"/v1/sandboxes/{box}"
        for method, rest, body in (("POST", "/run", {"argv": ["true"]}), ("POST", f"/processes/{process['id']}/kill", {}),
                                   ("PUT", "/files?path=x", None), ("GET", "/ports/80/proxy/", None), ("PUT", "/ports/80", {"public": True}),
                                   ("GET", "/ports/80/tcp", None)):
            answer = reader.ask(method, path + rest, body, check=False)
            assert (answer.status, answer.code) == (403, "forbidden"), (method, rest, answer)

    def test_they_forward_no_port(self, api, box, reader):
        """Neither the key nor a token of it, or one that only reads, where somebody listens and others get through."""
        api.start(box, ["python3", "-c", LISTENER.replace("8070", "8071")])
        api.get(f"/v1/sandboxes/{box}/ports/8071", query={"wait": 60})
        path = f"/v1/sandboxes/{box}/ports/8071/tcp"
        refused = api.ask("POST", "/v1/tokens", {"sandbox_id": box, "port": 8071, "access": "read"})
        assert (refused.status, refused.details["field"]) == (400, "access"), refused
        for credential in (reader.key, token(api, box, access="read")["token"]):
            head = Open(api, credential, "GET", path, Connection="Upgrade", Upgrade="space-tcp").head
            assert head.startswith(b"HTTP/1.1 403 "), head
        head = Open(api, token(api, box, port=8071, access="write")["token"], "GET", path, Connection="Upgrade", Upgrade="space-tcp").head
        assert head.startswith(b"HTTP/1.1 101 "), head

    def test_a_read_token_writes_nothing_and_starts_nothing(self, api, box):
        process, session = api.start(box, "echo begun; cat", stdin="open", start="on_attach")
        looks = api.as_key(token(api, box, session_id=session["id"], access="read")["token"])
        sees = api.as_key(token(api, box, access="read")["token"])
        answer = sees.ask("POST", f"/v1/sandboxes/{box}/commands", {"argv": ["true"], "start": "on_attach"})
        assert (answer.status, answer.code) == (403, "forbidden"), answer
        for mine in (looks, sees):
            with Attached(mine, session["id"]) as at:
                for message in ({"type": "signal", "signal": "SIGKILL"}, {"type": "eof"}, {"type": "resize", "cols": 80, "rows": 24}):
                    at.tell(**message)
                    assert at.next_event("error")["code"] == "forbidden"
                at.write(b"not taken\n")
                assert at.next_event("error")["code"] == "forbidden"
                assert at.output["stdout"] == b"" and api.process(box, process["id"])["state"] == "starting"
        with Attached(looks, session["id"]) as at, Attached(api, session["id"]) as writer:
            at.read_until(b"begun\n")
            at.write(b"not taken either\n")
            assert at.next_event("error")["code"] == "forbidden"
            writer.tell(type="eof")
            assert writer.read_to_end()["exit_code"] == 0
        assert api.output(session["id"]) == b"begun\n"

    def test_no_token_of_theirs_writes(self, api, box, reader):
        answer = reader.ask("POST", "/v1/tokens", {"sandbox_id": box, "access": "write"})
        assert answer.status == 403, answer
        made = reader.ask("POST", "/v1/tokens", {"sandbox_id": box, "access": "read"})
        assert made.status == 201, made
        assert api.as_key(made.json["token"]).ask("POST", f"/v1/sandboxes/{box}/run", {"argv": ["true"]}).status == 403


LISTENER = "import socket; s = socket.create_server(('127.0.0.1', 8070)); c = s.accept()[0]; c.recv(1)"


class Open:
    """One open request, told ended by what its socket says: its end, or the end that a WebSocket's close frame is."""

    def __init__(self, api, credential, method, path, answered=True, **head):
        self.socket = api.raw_socket()
        lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {credential}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in head.items()]
        self.socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        self.head = b""
        while answered and b"\r\n\r\n" not in self.head:
            self.head += self.socket.recv(1)
        self.socket.setblocking(False)

    def has_ended(self):
        """Takes what has come."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not data or self.is_end(data)

    def is_end(self, data):
        return False


class OpenOnce(Open):
    """One that is not answered before its end: any answer is the end."""

    def is_end(self, data):
        return True


class Upload(OpenOnce):
    def has_ended(self):
        try:
            self.socket.send(bytes(4096))
        except BlockingIOError:
            pass
        except OSError:
            return True
        return super().has_ended()


class OpenSocket(Open):
    def is_end(self, data):
        return data[0] & 15 == 8


class TestRevocation:
    def test_everything_open_is_cut_within_a_second(self, api, box):
        made = api.post("/v1/keys", {"name": "doomed", "role": "member"}, status=201)
        mine = api.as_key(made["key"])
        by_token = api.as_key(token(mine, box, ttl_seconds=600)["token"])
        api.check_output(box, "truncate -s 8G endless; mkdir -p watched")
        _, session = api.start(box, "while :; do echo tick; sleep 0.05; done")
        _, silent = by_token.start(box, "cat", stdin="open")
        api.start(box, ["python3", "-c", LISTENER])
        api.get(f"/v1/sandboxes/{box}/ports/8070", query={"wait": 60})
        files, path = Files(api, box), f"/v1/sessions/{silent['id']}"
        web = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": 13,
               "Sec_WebSocket_Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
        still_open = {
            "events": Open(api, mine.key, "GET", f"/v1/sessions/{session['id']}/events"),
            "events by token": Open(api, by_token.key, "GET", path + "/events"),
            "download": Open(api, mine.key, "GET", files.at(path="endless")),
            "watch": Open(api, by_token.key, "GET", files.at("/watch", path="watched")),
            "attach": OpenSocket(api, mine.key, "GET", path + "/attach", **web),
            "attach by token": OpenSocket(api, by_token.key, "GET", path + "/attach", **web),
            "port": Open(api, mine.key, "GET", f"/v1/sandboxes/{box}/ports/8070/tcp", Connection="Upgrade", Upgrade="space-tcp"),
            "output": OpenOnce(api, mine.key, "GET", path + "/output?wait=120", answered=False),
            "upload": Upload(api, mine.key, "PUT", files.at(path="uploaded"), answered=False, Content_Length=1 << 30)}
        for name, one in still_open.items():
            status = b" 101 " if name.startswith(("attach", "port")) else b" 200 "
            assert not one.head or status in one.head.split(b"\r\n")[0], (name, one.head)
        assert not [name for name, one in still_open.items() if one.has_ended()]
        ends = {}
        api.expect(200, "DELETE", f"/v1/keys/{made['id']}")
        answered = time.monotonic()
        while still_open and time.monotonic() - answered < 20:
            select.select([one.socket for one in still_open.values()], [], [], 0.01)
            for name in [name for name, one in still_open.items() if one.has_ended()]:
                ends[name] = time.monotonic() - answered
                still_open.pop(name).socket.close()
        assert not still_open and max(ends.values()) <= 1, (ends, list(still_open))
        assert by_token.ask("GET", f"/v1/sandboxes/{box}").status == 401
        assert mine.ask("GET", f"/v1/sandboxes/{box}").status == 401
        assert api.sandbox(box)["state"] == "running"
        assert files.ask("GET", "/stat", path="uploaded").status == 404


class TestCors:
    def test_preflight_and_answers(self, api, box):
        _, session = api.start(box, "echo x")
        path = f"/v1/sessions/{session['id']}/output?stream=stdout"
        answer = api.ask("OPTIONS", path, key=False, check=False, headers={
            "Origin": "https://app.example", "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "authorization"})
        assert answer.status == 204 and answer.headers["Access-Control-Allow-Origin"] == "*"
        assert "authorization" in answer.headers["Access-Control-Allow-Headers"].lower()
        answer = api.ask("GET", path, headers={"Origin": "https://app.example"})
        assert answer.headers["Access-Control-Allow-Origin"] == "*" and "Access-Control-Allow-Credentials" not in answer.headers
        assert "x-space-next-offset" in answer.headers["Access-Control-Expose-Headers"].lower()


def test_no_token_is_in_a_log(api, installation, box):
    made = token(api, box)["token"]
    _, session = api.start(box, "true")
    for value in (made, session["token"]):
        api.ask("GET", f"/v1/sessions/{session['id']}/output", key=False, query={"stream": "stdout", "token": value})
        api.ask("GET", f"/v1/sessions/{session['id']}/events?after=zzz&token={urllib.parse.quote(value)}", key=False, check=False)
        for path in installation.logs.glob("*"):
            text = path.read_text(encoding="utf-8", errors="replace")
            assert value not in text and value.split(".")[-1] not in text, path
    assert json.dumps(session)
