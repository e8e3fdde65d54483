"""A stand-in for the API that can misbehave on purpose: cut streams, lose answers, drop output.

Commands run on this machine, as children of the test. Only what the CLI uses is here."""

import base64
import datetime
import errno
import fcntl
import hashlib
import http.server
import io
import json
import os
import random
import signal
import socket
import struct
import subprocess
import tarfile
import termios
import threading
import time
import urllib.parse

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def make_id(kind, shard=""):
    return kind + (shard + "".join(random.choices(ALPHABET, k=18)))[:18]


class Process:
    def __init__(self, sandbox, body):
        self.id, self.session = make_id("pr", sandbox["id"][2:10]), make_id("se", sandbox["id"][2:10])
        self.body = body
        self.events = []  # (name, data)
        self.spools = {"stdout": b"", "stderr": b""}
        self.starts = {"stdout": 0, "stderr": 0}
        self.changed = threading.Condition()
        self.stdin_offset = 0
        self.ended = False
        self.code = self.signal = None
        self.timed_out = False
        env = {**os.environ, "SHELL": "/bin/bash", **sandbox["env"], **body.get("env", {})}  # as a guest's user has it
        self.tty, self.master = body.get("tty"), None
        if self.tty:
            self.master, slave = os.openpty()
            self.resize(self.tty["cols"], self.tty["rows"])
            self.child = subprocess.Popen(
                body["argv"], cwd=body.get("cwd"), env={**env, "TERM": self.tty.get("term", "xterm")}, start_new_session=True,
                stdin=slave, stdout=slave, stderr=slave, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
            os.close(slave)
        else:
            self.child = subprocess.Popen(
                body["argv"], cwd=body.get("cwd"), env=env, start_new_session=True, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, stdin=subprocess.PIPE if body.get("stdin") == "open" else subprocess.DEVNULL)
        self.put("process_started", {"process_id": self.id, "pid": self.child.pid})
        self.readers = [threading.Thread(target=self.read, args=(name,), daemon=True)
                        for name in (["stdout"] if self.tty else self.spools)]
        for reader in self.readers:
            reader.start()
        threading.Thread(target=self.wait, daemon=True).start()

    def put(self, name, data):
        with self.changed:
            self.events.append((name, data))
            self.changed.notify_all()

    def resize(self, cols, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def read_piece(self, name):
        if not self.tty:
            return os.read(getattr(self.child, name).fileno(), 4096)
        try:
            return os.read(self.master, 4096)
        except OSError:
            return b""  # every end of the terminal is closed

    def write(self, data):
        if self.tty:
            while data:
                data = data[os.write(self.master, data):]
        else:
            self.child.stdin.write(data)
            self.child.stdin.flush()

    def end_input(self):
        if self.tty:
            os.write(self.master, b"\x04")
        else:
            self.child.stdin.close()

    def read(self, name):
        while piece := self.read_piece(name):
            offset = len(self.spools[name])
            self.spools[name] += piece
            self.put("output", {"stream": name, "offset": offset, "data": base64.b64encode(piece).decode()})

    def wait(self):
        try:
            code = self.child.wait(self.body.get("timeout_seconds"))
        except subprocess.TimeoutExpired:
            self.timed_out = True
            self.kill()
            code = self.child.wait()
        for reader in self.readers:
            reader.join()
        self.code, self.signal = (code, None) if code >= 0 else (None, signal.Signals(-code).name)
        self.ended = True
        self.put("process_exited", {"exit_code": self.code, "signal": self.signal, "timed_out": self.timed_out, "out_of_memory": False,
                                    "stdout_bytes": len(self.spools["stdout"]), "stderr_bytes": len(self.spools["stderr"])})

    def kill(self, number=signal.SIGKILL):
        if self.ended:
            return False
        os.killpg(self.child.pid, number)
        return True

    def record(self):
        return {"id": self.id, "pid": self.child.pid, "argv": self.body["argv"], "cwd": None, "user": "user", "tty": self.tty,
                "state": "exited" if self.ended else "running", "exit_code": self.code, "signal": self.signal,
                "timed_out": self.timed_out, "out_of_memory": False, "session_id": self.session, "started_at": "2026-01-01T00:00:00.000Z", "exited_at": None}

    def result(self):
        with self.changed:
            self.changed.wait_for(lambda: self.ended)
        return {"process_id": self.id, "exit_code": self.code, "signal": self.signal, "timed_out": self.timed_out, "out_of_memory": False,
                "stdout": self.spools["stdout"].decode(), "stderr": self.spools["stderr"].decode()}


class Attachment:
    """A session over a WebSocket, this server's end."""

    living = {}

    def __init__(self, api, process, request, accept, query):
        self.api, self.process, self.socket, self.reader = api, process, request.connection, request.rfile
        self.id = make_id("at")
        self.lock = threading.Lock()
        self.starts = {name: int(query.get(name, 0)) for name in ("stdout", "stderr")}
        self.cut_after = random.choice([1, 300, 5000]) if api.fault("cut_attach") else None
        self.is_over = False
        if before := self.living.pop(query.get("replaces"), None):
            before.cut()
        self.living[self.id] = self
        request.wfile.write((f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Accept: {accept}\r\n\r\n").encode())

    def cut(self):
        self.is_over = True
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def frame(self, opcode, data):
        n = len(data)
        head = bytes([0x80 | opcode, n]) if n < 126 else bytes([0x80 | opcode, 126]) + n.to_bytes(2, "big")
        with self.lock:
            if not self.is_over:
                self.socket.sendall(head + data)

    def event(self, name, data):
        self.frame(1, json.dumps({"type": name, **data}).encode())

    def output(self, data):
        if self.cut_after is not None:
            if self.cut_after < len(data):
                if self.cut_after > 1:
                    self.frame(2, b"\1" + data[:self.cut_after - 1])
                self.socket.sendall(b"\x82\x70\1half")
                self.cut()
                raise OSError
            self.cut_after -= len(data)
        self.frame(2, b"\1" + data)

    def run(self):
        self.event("attached", {"attachment_id": self.id, "process_id": self.process.id,
                                "stdin_offset": self.process.stdin_offset})
        threading.Thread(target=self.send, daemon=True).start()
        try:
            self.receive()
        except (OSError, IndexError, ValueError):
            pass
        self.cut()

    def send(self):
        at = 0
        try:
            while not self.is_over:
                with self.process.changed:
                    self.process.changed.wait_for(lambda: len(self.process.events) > at or self.is_over)
                name, data = self.process.events[at]
                at += 1
                if name != "output":
                    self.event(name, data)
                else:
                    raw, skip = base64.b64decode(data["data"]), self.starts[data["stream"]] - data["offset"]
                    if skip < len(raw):
                        self.output(raw[max(skip, 0):])
                if name == "process_exited":
                    self.frame(8, (1000).to_bytes(2, "big"))
                    return
        except (OSError, IndexError):
            self.cut()

    def receive(self):
        told = self.process.stdin_offset
        while True:
            head = self.reader.read(2)
            assert head[1] & 0x80, "a client masks"
            n = head[1] & 0x7f
            n = n if n < 126 else int.from_bytes(self.reader.read(2 if n == 126 else 8), "big")
            mask = self.reader.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.reader.read(n)))
            if self.is_over:
                return
            match head[0] & 0xf:
                case 2:
                    self.api.typed += data[1:]
                    self.process.stdin_offset += len(data) - 1
                    self.process.write(data[1:])
                    if self.process.stdin_offset - told >= 65536:
                        told = self.process.stdin_offset
                        self.event("stdin", {"offset": told})
                    if self.api.fault("cut_input"):
                        self.cut()
                        return
                case 1:
                    self.told(json.loads(data))
                case 8:
                    return

    def told(self, message):
        self.api.messages.append(message)
        match message["type"]:
            case "resize":
                self.process.resize(message["cols"], message["rows"])
            case "signal":
                self.process.kill(signal.Signals[message["signal"]])
            case "eof":
                self.process.end_input()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address, handler, clients):
        self.clients = clients
        super().__init__(address, handler)

    def process_request(self, request, client_address):
        self.clients.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        self.clients.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request, client_address):
        pass  # clients go away


class FakeApi:
    """`faults` are counted down as they happen:
    cut_events: streams that end after two events; refuse: 503 answers; lose_answers: requests that
    are done but not answered; short_stdin: stdin calls that take one byte only; die_after_create: creates after which the
    server stops without an answer; cut_download: contents that end in the middle; slow_download: contents that come as through a
    line of 1 MB/s;
    cut_attach: attachments that break in the middle of output; cut_input: … after a frame of input."""

    def __init__(self):
        self.key = "space_" + "".join(random.choices(ALPHABET, k=32))
        self.faults = {"cut_events": 0, "over": 0, "refuse": 0, "lose_answers": 0, "short_stdin": 0, "die_after_create": 0, "cut_download": 0, "slow_download": 0, "cut_attach": 0, "cut_input": 0}
        self.typed, self.messages = b"", []  # of attachments
        self.root = None  # where the files of sandboxes are
        self.changes, self.samples = [], []  # of watches, of metrics
        self.evil_tar = None  # what every download of a tree gets
        self.sandboxes, self.processes, self.keys = {}, {}, {}
        self.checkpoints = []
        self.pending = {}  # operations that end when they are read, with their sandboxes
        self.node_names = ["local"]
        self.node_states = ["ready"]  # each reading takes one, the last one stays
        self.requests = []  # (method, path, body or None, headers)
        self.remembered = {}
        self.lock = threading.RLock()
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *unused):
                pass

            def do_GET(self):
                api.handle(self)

            do_POST = do_DELETE = do_PUT = do_GET

        self.handler = Handler
        self.open = set()  # sockets of clients
        self.server = None
        self.port = 0
        self.start()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self):
        """(Again) on the same port."""
        self.server = Server(("127.0.0.1", self.port), self.handler, self.open)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self):
        """As a daemon that dies: every connection is cut."""
        self.server.shutdown()
        self.server.server_close()
        for client in list(self.open):
            try:
                client.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        for process in self.processes.values():
            process.kill()
        self.stop()

    def fault(self, name):
        with self.lock:
            if self.faults[name] > 0:
                self.faults[name] -= 1
                return True
            return False

    # ---- answers ----
    def answer(self, request, status, body):
        data = json.dumps(body).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def fail(self, request, status, code, message, **details):
        self.answer(request, status, {"error": {"code": code, "message": message, "details": details,
                                                "retryable": status == 503, "request_id": "r"}})

    @staticmethod
    def read_body(request):
        if request.headers.get("Transfer-Encoding") != "chunked":
            return request.rfile.read(int(request.headers.get("Content-Length") or 0))
        body = b""
        while size := int(request.rfile.readline(), 16):
            body += request.rfile.read(size)
            request.rfile.readline()
        request.rfile.readline()
        return body

    def handle(self, request):
        url = urllib.parse.urlsplit(request.path)
        query = {k: v[0] for k, v in urllib.parse.parse_qs(url.query).items()}
        raw = self.read_body(request)
        body = json.loads(raw) if raw and request.headers.get("Content-Type") == "application/json" else raw
        parts = url.path.strip("/").split("/")
        self.requests.append((request.command, request.path, body, dict(request.headers)))
        if parts == ["version"]:
            return self.answer(request, 200, {"version": "0.1.0", "api": "v1"})
        if parts == ["readyz"]:
            return self.answer(request, 200, {"status": "ready"})
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            return self.fail(request, 401, "unauthorized", "no such key")
        if self.fault("refuse"):
            return self.fail(request, 503, "service_unavailable", "the node is not connected", waiting_for=["node"])
        again = request.headers.get("Idempotency-Key")
        if again and again in self.remembered:
            return self.answer(request, *self.remembered[again])
        done = self.route(request, request.command, parts[1:], query, body)
        if done is None:
            return None
        if again:
            self.remembered[again] = done
        if request.command != "GET" and self.fault("lose_answers"):
            request.close_connection = True
            return None
        return self.answer(request, *done)

    def refusal(self, status, code, message, **details):
        return status, {"error": {"code": code, "message": message, "details": details, "retryable": False, "request_id": "r"}}

    def node(self, name):
        state = self.node_states.pop(0) if len(self.node_states) > 1 else self.node_states[0]
        problem = {"sandbox_id": "sb4kq7m2xw9c5t3n8h6d", "code": "storage_full", "message": "no \x1b[31mroom", "failed_at": "", "attempts": 2}
        return {"name": name, "state": state, "connected": True, "drain_requested_at": None, "drained_at": None,
                "sandboxes": {"running": 2 if state == "draining" else 0, "suspended": 3, "error": 1}, "version": "0.1.0",
                "vcpus": None, "disk": None, "memory": None, "problems": [problem] if state == "draining" else []}

    def route(self, request, method, parts, query, body):
        match (method, *parts):
            case ("GET", "checkpoints"):
                items = [c for c in self.checkpoints if query.get("name") in (None, c["name"])
                         and query.get("sandbox_id") in (None, c["sandbox_id"])]
                return 200, {"items": items, "next_cursor": None}
            case ("DELETE", "checkpoints", checkpoint):
                self.checkpoints = [c for c in self.checkpoints if c["id"] != checkpoint]
                return 200, {"id": checkpoint}
            case ("POST", "sandboxes", _, "rollback"):
                return 200, {"operation": {"id": make_id("op"), "state": "succeeded"}}
            case ("POST", "sandboxes"):
                if "checkpoint_id" in body:
                    body = {"template": "base", **body}
                if body["template"] != "base":
                    return self.refusal(404, "not_found", f"there is no template {body['template']}", resource="template")
                made = self.create(body)
                if self.fault("die_after_create"):
                    self.stop()  # cuts this very request too
                return 201, {"sandbox": made, "operation": {"id": make_id("op"), "state": "succeeded"}}
            case ("GET", "sandboxes"):
                items = [s for s in self.sandboxes.values() if query.get("name") in (None, s["name"])
                         and query.get("state") in (None, s["state"])]
                limit, start = int(query.get("limit", 100)), int(query.get("cursor", 0))
                more = start + limit < len(items)
                return 200, {"items": items[start:start + limit], "next_cursor": str(start + limit) if more else None}
            case ("GET", "templates"):
                return 200, {"items": [{"name": "base", "version": "tm1", "vcpus": 1, "memory_mib": 512, "disk_mib": 4096,
                                        "user": "user", "created_at": "2026-01-01T00:00:00.000Z"}], "next_cursor": None}
            case ("POST", "tokens"):
                return 201, {"token": "t", "token_expires_at": "", "url": f"http://{body['port']}-x.example/?token=t"}
            case ("POST", "keys"):
                made = {"id": make_id("ky"), "created_at": "2026-01-01T00:00:00.000Z", "expires_at": None, **body}
                self.keys[made["id"]] = made
                return 201, {**made, "key": "space_" + "k" * 32}
            case ("GET", "nodes"):
                return 200, {"items": [self.node(name) for name in self.node_names], "next_cursor": None}
            case ("GET", "nodes", name) | ("POST", "nodes", name, "drain" | "undrain") if name in self.node_names:
                return 200, self.node(name)
            case ("GET", "keys"):
                return 200, {"items": list(self.keys.values()), "next_cursor": None}
            case ("DELETE", "keys", key):
                gone = self.keys.pop(key, None)
                return (200, gone) if gone else self.refusal(404, "not_found", "no such key", resource="key")
            case ("GET", "operations", operation):
                self.sandboxes[self.pending[operation]]["state"] = "paused"
                return 200, {"id": operation, "state": "succeeded"}
            case ("POST", "run"):
                sandbox = self.create(body)
                result = Process(sandbox, body).result()
                if not body.get("keep"):
                    del self.sandboxes[sandbox["id"]]
                return 200, {**result, "sandbox_id": sandbox["id"]}
            case ("GET", "sessions", session, "events"):
                return self.stream(request, session, query)
            case ("GET", "sessions", session, "attach"):
                return self.attach(request, session, query)
            case ("GET", "sessions", session, "output"):
                return self.output(request, session, query)
            case (_, "sandboxes", sandbox, *rest):
                if sandbox not in self.sandboxes:
                    return self.refusal(404, "not_found", "no such sandbox", resource="sandbox")
                return self.of_sandbox(request, method, self.sandboxes[sandbox], rest, query, body)
        return self.refusal(404, "not_found", "no such route", resource="route")

    def create(self, body):
        made = {"id": make_id("sb"), "name": body.get("name"), "template": body["template"], "state": "running",
                "state_reason": None, "vcpus": body.get("vcpus", 1), "memory_mib": body.get("memory_mib", 512),
                "metadata": body.get("metadata", {}), "created_at": "2026-01-01T00:00:00.000Z", "env": body.get("env", {}), "ports": [], "public": {}}
        self.sandboxes[made["id"]] = made
        return made

    def of_sandbox(self, request, method, sandbox, rest, query, body):
        match (method, *rest):
            case ("GET",):
                return 200, sandbox
            case ("DELETE",):
                del self.sandboxes[sandbox["id"]]
                return 200, {"sandbox": {**sandbox, "state": "deleting"}, "operation": {"id": make_id("op"), "state": "succeeded"}}
            case ("POST", "pause"):
                operation = make_id("op")
                self.pending[operation] = sandbox["id"]
                return 202, {"sandbox": {**sandbox, "state": "pausing"}, "operation": {"id": operation, "state": "pending"}}
            case ("POST", "fork"):
                children = [{"sandbox_id": make_id("sb"), "sandbox": {}, "error": None} for _ in range(body["count"])]
                if body["count"] > 2:
                    children[1].update(sandbox=None, error={"code": "capacity_unavailable", "message": "no memory"})
                return 201, {"sandbox": sandbox, "operation": {"id": make_id("op"), "state": "succeeded",
                                                               "result": {"children": children}}}
            case ("POST", "commands"):
                try:
                    process = Process(sandbox, body)
                except OSError:
                    return self.refusal(400, "invalid_request", f"cannot execute {body['argv'][0]}", errno="ENOENT")
                self.processes[process.id] = process
                return 201, {"process": process.record(), "session": {"id": process.session, "url": "", "token": None}}
            case ("POST", "run"):
                return 200, Process(sandbox, body).result()
            case ("GET", "files", "watch"):
                return self.watch(request, query)
            case ("GET", "metrics"):
                return 200, {"items": self.samples}
            case (_, "files", *what):
                return self.files(request, method, what, query, body)
            case ("GET", "ports"):
                start = int(query.get("cursor", 0))
                end = start + int(query.get("limit", 100))
                return 200, {"items": [self.port_record(sandbox, n) for n in sandbox["ports"][start:end]],
                             "next_cursor": str(end) if end < len(sandbox["ports"]) else None}
            case ("GET" | "PUT", "ports", port):
                if method == "GET" and int(port) not in sandbox["ports"]:
                    return self.refusal(404, "not_found", f"nothing listens on port {port}", resource="port")
                if method == "PUT":
                    sandbox["public"][int(port)] = body["public"]
                return 200, self.port_record(sandbox, int(port))
            case ("GET", "ports", port, "tcp"):
                return self.tunnel(request, int(port))
            case ("GET", "processes"):
                of = [p for p in self.processes.values() if p.id[2:10] == sandbox["id"][2:10]]
                return 200, {"items": [p.record() for p in of], "next_cursor": None}
            case (_, "processes", process, *verb):
                process = self.processes.get(process)
                if process is None or process.id[2:10] != sandbox["id"][2:10]:
                    return self.refusal(404, "not_found", "no such process", resource="process")
                return self.of_process(process, verb, query, body)
        return self.refusal(404, "not_found", "no such route", resource="route")

    # ---- files: those of this machine below `root` ----
    def local(self, path):
        return os.path.join(self.root, path.lstrip("/"))

    def entry(self, path):
        st = os.lstat(self.local(path))
        kind = {0o100000: "file", 0o040000: "directory", 0o120000: "symlink"}.get(st.st_mode & 0o170000, "other")
        return {"path": path, "name": os.path.basename(path), "type": kind, "size_bytes": st.st_size,
                "mode": f"{st.st_mode & 0o7777:04o}", "uid": st.st_uid, "gid": st.st_gid, "user": "user", "group": "user",
                "modified_at": datetime.datetime.fromtimestamp(st.st_mtime, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
                "symlink_target": os.readlink(self.local(path)) if kind == "symlink" else None}

    def watch(self, request, query):
        """What is put into `changes`, from Last-Event-ID on."""
        if query["path"] == "/nowhere":
            return self.refusal(404, "not_found", "no such directory", errno="ENOENT", resource="file")
        at = int(request.headers.get("Last-Event-ID") or 0)
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.send_header("Connection", "close")
        request.end_headers()
        request.close_connection = True
        request.wfile.write(b"event: watching\ndata: {}\n\n")
        for number, (name, data) in enumerate(self.changes[at:], at + 1):
            self.send(request, number, name, data)
            if self.fault("cut_events"):
                return None
        while self.changes and self.changes[-1][0] != "error":
            time.sleep(0.05)
        return None

    def files(self, request, method, what, query, body):
        path = query["path"]
        try:
            match (method, *what):
                case ("GET", "stat"):
                    return 200, self.entry(path)
                case ("GET",):
                    return self.send_file(request, self.local(path))
                case ("PUT",):
                    with open(self.local(path), "wb") as file:
                        file.write(body)
                    os.chmod(self.local(path), int(query.get("mode", "0644"), 8))
                    return 200, self.entry(path)
                case ("GET", "tar"):
                    return self.send_tar(request, self.local(path))
                case ("PUT", "tar"):
                    os.makedirs(self.local(path), exist_ok=True)
                    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
                        archive.extractall(self.local(path))
                        return 200, {"entries": len(archive.getnames())}
        except OSError as error:
            name = errno.errorcode[error.errno]
            return self.refusal(404 if name == "ENOENT" else 409, "not_found" if name == "ENOENT" else "conflict",
                                str(error), errno=name, resource="file")
        return self.refusal(404, "not_found", "no such route", resource="route")

    def send_file(self, request, path):
        with open(path, "rb") as file:
            request.send_response(200)
            request.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            request.end_headers()
            sent = 0
            slow = self.fault("slow_download")
            while piece := file.read(65536):
                time.sleep(0.065 if slow else 0)
                if sent > 100_000 and self.fault("cut_download"):
                    request.close_connection = True
                    return None
                request.wfile.write(piece)
                sent += len(piece)
        return None

    def send_tar(self, request, path):
        data = self.evil_tar
        if data is None:
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode="w") as archive:
                for top, _, names in sorted(os.walk(path)):
                    archive.add(top, arcname=os.path.relpath(top, path), recursive=False)
                    for name in sorted(names):
                        full = os.path.join(top, name)
                        archive.add(full, arcname=os.path.relpath(full, path), recursive=False)
                    for name in os.listdir(top):
                        full = os.path.join(top, name)
                        if os.path.islink(full) and os.path.isdir(full):
                            archive.add(full, arcname=os.path.relpath(full, path), recursive=False)
            data = out.getvalue()
        request.send_response(200)
        request.send_header("Content-Type", "application/x-tar")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        for start in range(0, len(data), 50_000):
            piece = data[start:start + 50_000]
            if start and self.fault("cut_download"):
                request.close_connection = True
                return None
            request.wfile.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
        request.wfile.write(b"0\r\n\r\n")
        return None

    def port_record(self, sandbox, port):
        return {"port": port, "address": "127.0.0.1", "process_id": None, "public": sandbox["public"].get(port, False),
                "url": f"http://{port}-{sandbox['id']}.example/"}

    def tunnel(self, request, port):
        """Raw bytes to a port of this machine, each direction with its own end."""
        if request.headers.get("Upgrade") != "space-tcp":
            return self.refusal(400, "invalid_request", "this needs Upgrade: space-tcp", field="Upgrade")
        try:
            there = socket.create_connection(("127.0.0.1", port), timeout=5)
        except OSError:
            return self.refusal(502, "bad_gateway", f"nothing listens on port {port}")
        there.settimeout(None)
        here = request.connection
        request.close_connection = True
        here.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: space-tcp\r\n\r\n")

        def copy(source, target):
            try:
                while piece := source.recv(65536):
                    target.sendall(piece)
                target.shutdown(socket.SHUT_WR)
            except OSError:
                for side in (source, target):
                    side.close()

        back = threading.Thread(target=copy, args=(there, here), daemon=True)
        back.start()
        copy(here, there)
        back.join()
        there.close()
        return None

    def of_process(self, process, verb, query, body):
        match verb:
            case []:
                return 200, process.record()
            case ["signal"]:
                process.kill(signal.Signals[body["signal"]])
                return 200, {}
            case ["kill"]:
                return 200, {"killed": process.kill()}
            case ["stdin"]:
                return self.stdin(process, query, body)
        return self.refusal(404, "not_found", "no such route", resource="route")

    def stdin(self, process, query, body):
        skip = process.stdin_offset - int(query.get("offset", process.stdin_offset))
        fresh = (body or b"")[skip:] if skip >= 0 else None
        if fresh is None:
            return self.refusal(409, "conflict", "offset past the end")
        if len(fresh) > 1 and self.fault("short_stdin"):
            fresh = fresh[:1]
        try:
            process.write(fresh)
            process.stdin_offset += len(fresh)
            if query.get("eof") == "true":
                process.end_input()
        except (OSError, ValueError):
            return self.refusal(409, "failed_precondition", "stdin is closed")
        return 200, {"offset": process.stdin_offset}

    # ---- sessions ----
    def of_session(self, session):
        return next((p for p in self.processes.values() if p.session == session), None)

    def stream(self, request, session, query):
        process = self.of_session(session)
        if process is None:
            return self.refusal(404, "not_found", "no such session", resource="session")
        at = int(request.headers.get("Last-Event-ID") or 0)
        if at > 0 and self.fault("over"):
            request.send_response(204)
            request.end_headers()
            return None
        cut = self.fault("cut_events")
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.send_header("Connection", "close")
        request.end_headers()
        request.close_connection = True
        sent = 0
        starts = dict(process.starts)
        if at == 0 and "tail_bytes" in query:
            starts = {name: max(starts[name], len(spool) - int(query["tail_bytes"])) for name, spool in process.spools.items()}
        try:
            for stream, start in process.starts.items():
                if at == 0 and start > 0:
                    self.send(request, 0, "gap", {"stream": stream, "offset": 0, "bytes": start})
            while True:
                with process.changed:
                    while not process.changed.wait_for(lambda: len(process.events) > at, 0.2):
                        request.wfile.write(b": still here\n\n")
                name, data = process.events[at]
                at += 1
                if name == "output" and data["offset"] < starts[data["stream"]]:
                    raw = base64.b64decode(data["data"])[starts[data["stream"]] - data["offset"]:]
                    if not raw or "tail_bytes" not in query:
                        continue
                    data = {**data, "offset": starts[data["stream"]], "data": base64.b64encode(raw).decode()}
                if cut and sent >= 2:
                    request.wfile.write(b"id: half\nevent: output\ndata: {\"stre")
                    return None
                self.send(request, at, name, data)
                sent += 1
                if name == "process_exited":
                    return None
        except OSError:
            return None

    @staticmethod
    def send(request, event_id, name, data):
        request.wfile.write(f"id: {event_id}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode())

    def attach(self, request, session, query):
        process = self.of_session(session)
        if process is None:
            return self.refusal(404, "not_found", "no such session", resource="session")
        key = request.headers.get("Sec-WebSocket-Key")
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        request.close_connection = True
        Attachment(self, process, request, accept, query).run()
        return None

    def output(self, request, session, query):
        process = self.of_session(session)
        stream, offset = query.get("stream", "stdout"), int(query.get("offset", 0))
        if process is None:
            return self.refusal(404, "not_found", "no such session", resource="session")
        if offset < process.starts[stream]:
            return self.refusal(410, "gone", "that output is no longer there", resource="output")
        piece = process.spools[stream][offset:offset + int(query.get("limit", 1 << 30))]
        request.send_response(200)
        request.send_header("Content-Length", str(len(piece)))
        request.send_header("X-Space-Next-Offset", str(offset + len(piece)))
        request.send_header("X-Space-End", "false")
        request.end_headers()
        request.wfile.write(piece)
        return None

    def wait_for(self, what, seconds=20):
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.01)
