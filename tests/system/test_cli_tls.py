"""Through TLS: the command line's upgraded connections, and ports by name and path."""

import os
import pathlib
import socket
import subprocess

import pytest
import websocket

from harness import http, poll
from harness.installation import Installation, space_binary
from harness.terminal import Terminal
from harness.web import Web

APP = pathlib.Path(__file__).with_name("harness") / "guest_app.py"


@pytest.fixture(scope="module")
def site():
    made = Installation("spct", uid_first=1_300_000, volume_gib=3, node__warm_pools="base=1", node__prepared_pool=0,
                        node__disk_reserve_mib=256)
    made.prepare()
    certificate, key = made.top / "tls.crt", made.top / "tls.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:*.space.localhost",
                    "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    key.chmod(0o644)
    made.write_config(api__tls_certificate=certificate, api__tls_key=key)
    made.scheme_tls = http.tls_context(str(certificate))
    made.up()
    yield made
    made.remove()


@pytest.fixture(scope="module")
def box(site):
    return site.cli("create", "base", "--name", "tls").stdout.strip()


def test_a_terminal(site, box):
    shell = Terminal({**site.user_env(), "TERM": "xterm", "HOME": str(site.top)}, "shell", "tls", "--config", str(site.config))
    shell.type(b"echo $((40 + 2)); seq 1 20000 | tail -1; exit 3\n")
    shell.read_until(b"42\r\n", 60)
    shell.read_until(b"20000\r\n", 60)
    assert shell.end(60) == 3


def test_half_close_and_bulk_through_a_forward(site, box):
    script = ("import socket\ns = socket.create_server(('127.0.0.1', 7000))\nwhile True:\n c, _ = s.accept()\n d = b''\n"
              " while p := c.recv(65536): d += p\n c.sendall(d.upper())\n c.close()\n")
    subprocess.run([space_binary(), "exec", "--config", str(site.config), "-d", box, "--", "python3", "-c", script], check=True,
                   env={**os.environ, "HOME": str(site.top)}, capture_output=True)
    poll.until(lambda: "7000" in site.cli("ports", box).stdout, 60, "it listens")
    child = subprocess.Popen([space_binary(), "forward", "--config", str(site.config), box, "0:7000"], text=True,
                             env={**os.environ, "HOME": str(site.top)}, stdout=subprocess.PIPE)
    host, port = child.stdout.readline().strip().split(":")
    data = os.urandom(1 << 20)
    for _ in range(3):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            got = b""
            while piece := connection.recv(65536):
                got += piece
        assert got == data.upper()
    child.kill()
    child.wait()


def test_copies(site, box, tmp_path):
    data = os.urandom(5_000_000)
    (tmp_path / "f").write_bytes(data)
    site.cli("cp", str(tmp_path / "f"), f"{box}:f")
    site.cli("cp", f"{box}:f", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data


def test_a_port_by_name_and_path(site, box):
    api, path = site.api, f"/v1/sandboxes/{box}/ports/8080"
    web = Web(api, box, 8080)
    api.run(box, "cat > app.py", input=APP.read_text(encoding="utf-8"))
    api.start(box, "exec python3 app.py 8080 127.0.0.1")
    assert api.get(path, query={"wait": 60})["url"] == f"https://{web.host}:{site.port}/"
    url = api.post("/v1/tokens", {"sandbox_id": box, "port": 8080, "access": "write"}, status=201)["url"]
    assert url.startswith(f"https://{web.host}:{site.port}/?token=")
    page = web.ask(url.partition(f":{site.port}")[2], key=False, headers={"Sec-Fetch-Mode": "navigate"})
    cookie = page.all("Set-Cookie")[0]
    assert page.status == 303 and cookie.startswith("__Host-") and "; Secure" in cookie
    seen = {name.lower(): value for name, value in web.ask("/", key=False, headers={"Cookie": cookie.partition(";")[0]}).json["headers"]}
    assert "cookie" not in seen and (seen["x-forwarded-proto"], seen["host"]) == ("https", web.host)
    data = os.urandom(3 << 20)
    for ask in (web.ask, web.ask_path):
        assert ask("/sink", "POST", body=data, timeout=120).body.startswith(b"%d " % len(data))
        assert len(ask(f"/flood/{len(data)}", timeout=120).body) == len(data)
    for name, target, header in ((web.host, "/ws", f"X-Space-Token: {api.key}"), (None, f"{web.path}/ws", f"Authorization: Bearer {api.key}")):
        raw = api.raw_socket(server_name=name)  # the certificate is good for both
        ws = websocket.create_connection(f"wss://{name or 'localhost'}:{site.port}{target}", socket=raw, timeout=60, header=[header])
        ws.send("x" * 70000)
        assert ws.recv() == "x" * 70000
        ws.close()
