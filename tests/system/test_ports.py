"""Ports of sandboxes: HTTP by name and by path, WebSocket, raw streams, who gets in, hostile pages."""

import hashlib
import http.client
import json
import os
import pathlib
import re
import socket
import threading
import time

import pytest
import websocket

from harness import poll
from harness.web import Web

APP = pathlib.Path(__file__).with_name("harness") / "guest_app.py"
PORT, ECHO = 8080, 8079


@pytest.fixture(scope="module")
def box(installation):
    api = installation.api
    sandbox = api.create()["id"]
    api.run(sandbox, "cat > app.py", input=APP.read_text(encoding="utf-8"))
    api.start(sandbox, f"python3 app.py {PORT} 127.0.0.1 {ECHO}")
    api.get(f"/v1/sandboxes/{sandbox}/ports/{PORT}", query={"wait": 60})
    yield sandbox
    api.delete(sandbox)


@pytest.fixture
def web(api, box):
    return Web(api, box, PORT)


def token(api, box, port=PORT, **body):
    return api.post("/v1/tokens", {"sandbox_id": box, "port": port, "access": "write", **body}, status=201)


class TestList:
    def test_what_listens(self, api, box):
        items = {item["port"]: item for item in api.get(f"/v1/sandboxes/{box}/ports")["items"]}
        assert {PORT, ECHO} <= set(items)
        item = items[PORT]
        assert item["address"] == "127.0.0.1" and item["public"] is False
        assert item["url"] == f"http://{PORT}-{box}.space.localhost:{api.port}/"
        assert item["process_id"].startswith("pr")
        assert api.get(f"/v1/sandboxes/{box}/ports/{PORT}") == item

    def test_pages_and_fields(self, api, box):
        path, query, seen = f"/v1/sandboxes/{box}/ports", {"fields": "port,public", "limit": 1}, []
        while len(seen) < 100:
            answer = api.expect(200, "GET", path, query=query, check=False).json
            seen += answer["items"]
            assert len(answer["items"]) == 1
            if answer["next_cursor"] is None:
                break
            query["cursor"] = answer["next_cursor"]
        assert [item["port"] for item in seen] == [item["port"] for item in api.get(path)["items"]]
        assert {tuple(item) for item in seen} == {("port", "public")}
        for bad, field in (({"fields": "port,nosuch"}, "fields"), ({"limit": 0}, "limit"), ({"cursor": "x"}, "cursor")):
            assert api.ask("GET", path, query=bad).details["field"] == field

    def test_waiting_for_one(self, api, box):
        path = f"/v1/sandboxes/{box}/ports/8050"
        assert api.ask("GET", path).code == "not_found"
        begin = time.monotonic()
        assert api.ask("GET", path, query={"wait": 1}).details["resource"] == "port"
        assert time.monotonic() - begin >= 0.9
        waiter = threading.Thread(target=lambda: found.append(api.get(path, query={"wait": 60})))
        found = []
        waiter.start()
        process, _ = api.start(box, "exec python3 app.py 8050 127.0.0.1")
        waiter.join(70)
        assert found and found[0]["port"] == 8050 and found[0]["process_id"] == process["id"]
        api.post(f"/v1/sandboxes/{box}/processes/{process['id']}/kill")

    @pytest.mark.parametrize("port,address", [(8101, "127.0.0.1"), (8102, "0.0.0.0"), (8103, "::1"), (8104, "::"),
                                              (8105, "192.0.2.5"), (8106, "10.111.0.2")])
    def test_every_address_is_reached(self, api, box, port, address):
        if address.startswith("192."):
            # A sandbox has no network and eth0 leads nowhere, but whoever is root can give its interfaces addresses.
            api.check_output(box, ["ip", "addr", "add", f"{address}/32", "dev", "lo"], user="root")
        process, _ = api.start(box, f"exec python3 app.py {port} {address}")
        item = api.get(f"/v1/sandboxes/{box}/ports/{port}", query={"wait": 60})
        assert item["address"] == address
        assert Web(api, box, port).ask("/x").json["path"] == "/x"
        api.post(f"/v1/sandboxes/{box}/processes/{process['id']}/kill")

    def test_bad_ports(self, api, box):
        for port in ("0", "65536", "08", "x", "-1"):
            assert api.ask("GET", f"/v1/sandboxes/{box}/ports/{port}").code == "invalid_request"
        answer = api.ask("PUT", f"/v1/sandboxes/{box}/ports/80", {"public": "yes"})
        assert (answer.code, answer.details["field"]) == ("invalid_request", "public")


class TestRequests:
    def test_as_the_application_sees_it(self, api, web):
        seen = web.ask("/a//../%2e?x=1&token=theirs", "PATCH", body=b"body", headers=[
            ("X-A", "1"), ("Authorization", "Basic dTpw"), ("Cookie", "a=1; space_port_token=spt_x"), ("x-a", "2"),
            ("Connection", "X-Hop"), ("X-Hop", "1"), ("TE", "trailers"), ("X-Forwarded-For", "192.0.2.9")]).json
        names = [(name.lower(), value) for name, value in seen["headers"]]
        assert (seen["method"], seen["path"], seen["body"]) == ("PATCH", "/a//../%2e?x=1&token=theirs", "body")
        assert [v for n, v in names if n == "x-a"] == ["1", "2"]
        assert dict(names)["host"] == web.host and dict(names)["authorization"] == "Basic dTpw"
        assert dict(names)["cookie"] == "a=1" and dict(names)["x-forwarded-for"] == "192.0.2.9, 127.0.0.1"
        assert dict(names)["x-forwarded-proto"] == "http" and dict(names)["x-forwarded-host"] == web.host
        assert not {"x-hop", "te", "x-space-token", "expect"} & set(dict(names))
        assert api.key not in json.dumps(seen)

    def test_by_path(self, api, box, web):
        seen = web.ask_path("/deep/er?b=%20&c", headers={"Cookie": "a=1"}).json
        assert seen["path"] == "/deep/er?b=%20&c"
        names = {name.lower(): value for name, value in seen["headers"]}
        assert names["host"] == f"localhost:{PORT}" and "cookie" not in names

    def test_no_credential_arrives(self, api, box, web):
        made = token(api, box)["token"]
        for more in ({"headers": {"Authorization": f"Bearer {api.key}"}, "key": False},
                     {"headers": {"Authorization": f"bearer {made}", "Referer": f"http://x/?token={made}"}, "key": False},
                     {"key": made}):
            assert re.search("spt_|space_[0-9a-z]{32}", json.dumps(web.ask("/", **more).json)) is None
            assert re.search("spt_|space_[0-9a-z]{32}", json.dumps(web.ask_path("/", **more).json)) is None
        seen = web.ask(f"/?a=1&token={made}&b=2", key=False).json
        assert seen["path"] == "/?a=1&b=2"

    @pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"])
    def test_methods(self, web, method):
        assert web.ask("/m", method).json["method"] == method
        assert web.ask_path("/m", method).json["method"] == method

    def test_head_and_bodiless_answers(self, web):
        page = web.ask("/flood/1000", "HEAD")
        assert page.status == 200 and page.all("Content-Length") == ["1000"] and page.body == b""
        assert web.ask_path("/flood/1000", "HEAD").all("Content-Length") == ["1000"]
        for status in (204, 304):
            raw = f"HTTP/1.1 {status} X\r\nETag: \"a\"\r\n\r\n".encode()
            page = web.ask("/raw", "POST", body=raw)
            assert (page.status, page.body, page.all("ETag")) == (status, b"", ['"a"'])

    def test_large_bodies(self, web):
        data = os.urandom(1 << 20) * 32
        want = f"{len(data)} {hashlib.sha256(data).hexdigest()}".encode()
        assert web.ask("/sink", "POST", body=data, timeout=300).body == want
        pieces = (data[i:i + 100_000] for i in range(0, len(data), 100_000))
        assert web.ask_path("/sink", "POST", body=pieces, timeout=300).body == want
        pattern = (bytes(range(256)) * 256)
        for path in ("/flood/33554432", "/flood/33554432/close"):
            page = web.ask(path, timeout=300)
            assert len(page.body) == 33554432 and page.body == pattern * 512

    def test_events_come_at_once(self, web):
        connection, response = web.open("GET", "/events")
        begin = time.monotonic()
        assert [response.readline() for _ in range(3)] == [b"data: 0\n", b"\n", b"data: 1\n"]
        assert time.monotonic() - begin < 5
        response.close()
        connection.close()

    def test_many_at_once(self, web):
        results = []
        threads = [threading.Thread(target=lambda n=n: results.append(web.ask(f"/n{n}").json["path"] == f"/n{n}"))
                   for n in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert results == [True] * 40


class TestUpgrades:
    def connect(self, web, **more):
        more.setdefault("header", [f"X-Space-Token: {web.api.key}"])
        raw = socket.create_connection((web.api.host, web.api.port), timeout=60)
        return websocket.create_connection(f"ws://{web.host}:{web.api.port}{more.pop('path', '/ws')}", socket=raw,
                                           timeout=60, **more)

    def test_websocket(self, web):
        ws = self.connect(web)
        for text in ("hello", "x" * 70000, "ü" * 1000):
            ws.send(text)
            assert ws.recv() == text
        ws.send_binary(bytes(range(256)))
        assert ws.recv() == bytes(range(256))
        ws.close()

    def test_websocket_by_token_and_path(self, api, box, web):
        made = token(api, box)["token"]
        ws = self.connect(web, header=[], path=f"/ws?token={made}")
        ws.send("a")
        assert ws.recv() == "a"
        ws.close()
        raw = socket.create_connection((api.host, api.port), timeout=60)
        ws = websocket.create_connection(f"ws://{api.host}:{api.port}{web.path}/ws", socket=raw, timeout=60,
                                         header=[f"Authorization: Bearer {api.key}"])
        ws.send("b")
        assert ws.recv() == "b"
        ws.close()

    def test_raw(self, api, box):
        with self.tcp(api, box, ECHO) as raw:
            data = os.urandom(1 << 20) * 8
            got = []
            reader = threading.Thread(target=lambda: got.append(self.read_all(raw)))
            reader.start()
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            reader.join(120)
            assert got[0] == data

    def test_raw_needs_write_access(self, api, box):
        read = api.post("/v1/tokens", {"sandbox_id": box, "access": "read"}, status=201)["token"]
        path = f"/v1/sandboxes/{box}/ports/{ECHO}/tcp"
        head = {"Connection": "Upgrade", "Upgrade": "space-tcp"}
        assert api.as_key(read).ask("GET", path, headers=head).code == "forbidden"
        assert api.ask("GET", path).code == "invalid_request"
        answer = api.ask("GET", f"/v1/sandboxes/{box}/ports/1/tcp", headers=head)
        assert (answer.status, answer.code) == (502, "bad_gateway") and "port 1" in answer.json["error"]["message"]

    @staticmethod
    def tcp(api, box, port, credential=None):
        raw = api.raw_socket()
        raw.sendall(f"GET /v1/sandboxes/{box}/ports/{port}/tcp HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
                    f"Upgrade: space-tcp\r\nAuthorization: Bearer {credential or api.key}\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += raw.recv(1)
        assert head.startswith(b"HTTP/1.1 101 "), head
        api.spec.seen.add(("openTcp", 101, None))
        return raw

    @staticmethod
    def read_all(raw):
        data = b""
        while piece := raw.recv(1 << 20):
            data += piece
        return data

    def test_revoking_the_key_cuts(self, api, box, web):
        made = api.post("/v1/keys", {"name": "tunnels", "role": "member"}, status=201)
        other = Web(api.as_key(made["key"]), box, PORT)
        raw = self.tcp(api, box, ECHO, made["key"])
        ws = self.connect(other)
        connection, response = other.open("GET", "/events")
        response.readline()
        raw.settimeout(30)
        api.expect(200, "DELETE", f"/v1/keys/{made['id']}")
        begin = time.monotonic()
        assert self.is_cut(lambda: raw.recv(1)) and self.is_cut(ws.recv)
        assert self.is_cut(response.read)
        assert time.monotonic() - begin <= 1
        connection.close()

    @staticmethod
    def is_cut(read):
        try:
            return read() in (b"", "")
        except (OSError, http.client.HTTPException, websocket.WebSocketException):
            return True


class TestAccess:
    def test_private(self, api, box, web):
        for page in (web.ask("/", key=False), web.ask("/", key="spt_nonsense"), web.ask_path("/", key=False)):
            assert (page.status, page.error) == (401, "unauthorized"), page
        other = token(api, box, port=1)["token"]
        read = api.post("/v1/tokens", {"sandbox_id": box, "access": "read"}, status=201)["token"]
        for credential in (other, read):
            assert (web.ask("/", key=credential).error, web.ask_path("/", key=credential).error) == ("forbidden",) * 2
        assert web.ask("/", key=token(api, box)["token"]).status == 200

    def test_public(self, api, box, web):
        path = f"/v1/sandboxes/{box}/ports/{PORT}"
        assert api.expect(200, "PUT", path, {"public": True}).json["public"] is True
        assert web.ask("/", key=False).status == 200 and web.ask_path("/", key=False).status == 200
        assert api.get(path)["public"] is True
        connection, response = web.open("GET", "/events", key=False)
        response.readline()
        api.expect(200, "PUT", path, {"public": False})
        assert TestUpgrades.is_cut(response.read)
        connection.close()
        assert web.ask("/", key=False).error == "unauthorized"

    def test_a_browser_logs_in(self, api, box, web):
        url = token(api, box)["url"]
        target = url.partition(f":{api.port}")[2]
        page = web.ask(target + "&a=1", key=False, headers={"Sec-Fetch-Mode": "navigate"})
        assert (page.status, page.all("Location")) == (303, ["/?a=1"])
        cookie = page.all("Set-Cookie")[0]
        assert all(part in cookie for part in ("; HttpOnly", "; SameSite=Lax", "; Path=/")) and "Domain" not in cookie
        mine = {"Cookie": "b=1; " + cookie.partition(";")[0]}
        seen = web.ask("/", key=False, headers=mine).json
        assert dict(seen["headers"])["Cookie"] == "b=1"
        assert web.at(ECHO).ask("/", key=False, headers=mine).error == "unauthorized"
        for origin, status in ((f"http://{web.host}:{api.port}", 200), ("http://evil.example", 403), ("null", 403)):
            page = web.ask("/", "POST", key=False, headers={**mine, "Origin": origin}, body=b"")
            assert page.status == status, (origin, page)
        # A program with the same URL needs no cookie.
        assert web.ask(target, key=False).json["path"] == "/"

    def test_pages_of_other_origins(self, api, box, web):
        """What a browser asks before it sends our token, and the answer to the token."""
        origin, allowed = {"Origin": "https://app.example"}, "Access-Control-Allow-Origin"
        first = {**origin, "Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "x-space-token"}
        for page in (web.ask("/", "OPTIONS", key=False, headers=first), web.ask_path("/", "OPTIONS", key=False, headers=first)):
            assert (page.status, page.body, page.all(allowed)) == (204, b"", ["*"])
            assert (page.all("Access-Control-Allow-Methods"), page.all("Access-Control-Allow-Headers")) == (["PATCH"], ["x-space-token"])
        made = token(api, box)["token"]
        for page in (web.ask("/", "PATCH", key=made, headers=origin, body=b""), web.ask(f"/?token={made}", key=False, headers=origin)):
            assert page.json["path"] == "/" and page.all(allowed) == ["*"]
        page = web.ask("/", key="spt_nonsense", headers=origin)
        assert (page.error, page.all(allowed)) == ("unauthorized", ["*"])

    def test_names(self, api, box, web):
        for host in ("www.space.localhost", f"0-{box}.space.localhost", f"{PORT}-{box[:-1]}.space.localhost"):
            page = web.ask("/healthz", host=host)
            assert (page.status, page.error) == (404, "not_found"), page
        assert web.ask("/healthz").json["path"] == "/healthz"
        assert web.ask("/x", host=web.host.upper() + f":{api.port}").json["path"] == "/x"
        assert web.ask("/healthz", host="space.localhost").json == {"status": "ok"}


class TestErrors:
    def test_nothing_listens(self, web):
        page = web.at(4).ask("/")
        assert (page.status, page.error) == (502, "bad_gateway") and b"port 4" in page.body
        page = web.at(4).ask("/", headers={"Accept": "text/html"})
        assert page.all("Content-Type") == ["text/html; charset=utf-8"] and b"port 4" in page.body
        assert web.at(4).ask_path("/").json["error"]["code"] == "bad_gateway"

    def test_no_such_sandbox(self, api):
        gone = Web(api, "sb000000000000000000", 80)
        for page in (gone.ask("/"), gone.ask("/", key=False), gone.ask_path("/")):
            assert (page.status, page.error) == (404, "not_found") and b"sb000000000000000000" in page.body

    def test_deleted_sandbox(self, api, sandboxes):
        box = sandboxes()["id"]
        api.expect(200, "PUT", f"/v1/sandboxes/{box}/ports/80", {"public": True})
        page = Web(api, box, 80).ask("/", key=False)
        assert (page.status, page.error) == (502, "bad_gateway")
        api.delete(box)
        assert Web(api, box, 80).ask("/", key=False).error == "not_found"

    @pytest.mark.parametrize("answer", [
        b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        b"HTTP/1.1 200 OK\nX: a\n\n", b"HTTP/1.1 200 OK\r\nX: \x01\r\n\r\n", b"HTTP/1.1 101 Up\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 200 + b"\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70000 + b"\r\n\r\n"])
    def test_broken_answers(self, web, answer):
        page = web.ask("/raw", "POST", body=answer)
        assert (page.status, page.error) == (502, "bad_gateway"), page

    def test_an_answer_that_breaks_off_is_cut(self, web):
        connection, response = web.open("POST", "/raw", body=b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        with pytest.raises(http.client.IncompleteRead) as caught:
            response.read()
        assert response.status == 200 and caught.value.partial == b"half"
        connection.close()

    @pytest.mark.parametrize("bad", [
        "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n",
        "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", "X: a\n\r\n", "Host: b\r\n\r\n", "X: a\r\n folded\r\n\r\n"])
    def test_smuggling(self, web, bad):
        answer = web.raw(f"POST /s HTTP/1.1\r\nHost: {web.host}\r\nConnection: close\r\n"
                         f"X-Space-Token: {web.api.key}\r\n{bad}".encode())
        assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1


class TestHostilePages:
    HOSTILE = [["Set-Cookie", "a=1; Domain=space.localhost; Path=/"], ["Set-Cookie", "space_port_token=evil"],
               ["Set-Cookie", "=__Host-space_port_token=evil"], ["Service-Worker-Allowed", "/"],
               ["Clear-Site-Data", '"*"'], ["Strict-Transport-Security", "max-age=9"], ["X-Space-Error", "internal"],
               ["Content-Security-Policy", "default-src *"], ["Location", "http://127.0.0.1:8080/x"],
               ["Alt-Svc", 'h2=":9"'], ["Access-Control-Allow-Origin", "*"]]

    def test_by_name(self, web):
        page = web.ask("/headers", "POST", body=json.dumps(self.HOSTILE).encode())
        assert page.all("Set-Cookie") == ["a=1; Path=/"] and page.error is None
        assert page.all("Content-Security-Policy") == ["default-src *"] and page.all("Service-Worker-Allowed") == ["/"]
        assert page.all("Clear-Site-Data") == page.all("Alt-Svc") == []
        assert page.all("Location") == ["http://127.0.0.1:8080/x"] and page.all("Access-Control-Allow-Origin") == ["*"]

    def test_by_path(self, web):
        page = web.ask_path("/headers", "POST", body=json.dumps(self.HOSTILE).encode())
        for name in ("Set-Cookie", "Service-Worker-Allowed", "Clear-Site-Data", "Strict-Transport-Security", "Alt-Svc"):
            assert page.all(name) == [], name
        assert page.all("Content-Security-Policy") == ["default-src *", "sandbox"]
        assert page.all("X-Content-Type-Options") == ["nosniff"] and page.error is None
        page = web.ask_path("/sw.js", headers={"Service-Worker": "script"})
        assert (page.status, page.error) == (403, "forbidden")


def test_the_log_has_no_secrets(installation, api, box, web):
    made = token(api, box)["token"]
    web.ask(f"/secret-path?secret-query=1&token={made}", key=False)
    poll.until(lambda: "{port}-{id}.{domain}" in (installation.logs / "space-api.log").read_text(), 10, "the log")
    log = (installation.logs / "space-api.log").read_text()
    assert "secret-path" not in log and "secret-query" not in log and made not in log and api.key not in log


def test_restart_of_the_daemons(installation, api, box, web):
    """What was public stays so; a raw stream ends with the daemon, and can be opened again."""
    path = f"/v1/sandboxes/{box}/ports/{PORT}"
    api.expect(200, "PUT", path, {"public": True})
    for program in ("space-api", "space-node"):
        raw = TestUpgrades.tcp(api, box, ECHO)
        installation.kill_daemon(program)
        installation.wait_ready()
        raw.settimeout(60)
        assert TestUpgrades.is_cut(lambda raw=raw: raw.recv(1))
        assert poll.until(lambda: web.ask("/", key=False).status == 200, 60, f"the page after {program}")
    api.expect(200, "PUT", path, {"public": False})
