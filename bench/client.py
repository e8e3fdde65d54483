"""A client whose own time is small: requests built in advance, one socket, one read loop."""

import base64
import json
import os
import selectors
import socket
import struct
import time


class Connection:
    def __init__(self, port, key):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=300)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.key = key

    def close(self):
        self.sock.close()

    def encode(self, method, path, body=None):
        data = json.dumps(body).encode() if body is not None else b""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.key}\r\n"
        if body is not None:
            head += "Content-Type: application/json\r\n"
        return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data

    def exchange(self, request):
        """(milliseconds, status, body) of one request with a Content-Length answer."""
        start = time.perf_counter()
        self.sock.sendall(request)
        answer = Answer()
        while not answer.feed(self.sock.recv(1 << 20)):
            pass
        return (time.perf_counter() - start) * 1e3, answer.status, answer.body

    def ask(self, method, path, body=None):
        return self.exchange(self.encode(method, path, body))

    def json(self, method, path, body=None):
        _, status, answer = self.ask(method, path, body)
        if status >= 400:
            raise RuntimeError(f"{method} {path}: {status} {answer[:300]!r}")
        return json.loads(answer)


class Answer:
    """Collects one answer; feed() is true when it is whole."""

    def __init__(self):
        self.data = b""
        self.status = 0
        self.body = b""
        self.headers = {}

    def feed(self, piece):
        if not piece:
            raise ConnectionError(f"closed after {self.data[:200]!r}")
        self.data += piece
        head, found, rest = self.data.partition(b"\r\n\r\n")
        if not found:
            return False
        if not self.status:
            lines = head.decode().split("\r\n")
            self.status = int(lines[0].split()[1])
            self.headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        if len(rest) < int(self.headers["content-length"]):
            return False
        self.body = rest
        return True


def at_once(port, key, requests):
    """Sends all requests together, each on its own connection: [(milliseconds, status, body)]."""
    connections = [Connection(port, key) for _ in requests]
    selector = selectors.DefaultSelector()
    results = []
    starts = {}
    for connection, request in zip(connections, requests):
        data = connection.encode(*request)
        starts[connection.sock] = (time.perf_counter(), Answer())
        connection.sock.sendall(data)
        selector.register(connection.sock, selectors.EVENT_READ)
    while len(results) < len(requests):
        for key_, _ in selector.select():
            start, answer = starts[key_.fileobj]
            if answer.feed(key_.fileobj.recv(1 << 20)):
                results.append(((time.perf_counter() - start) * 1e3, answer.status, answer.body))
                selector.unregister(key_.fileobj)
    for connection in connections:
        connection.close()
    return results


def read_events(port, key, session):
    """(seconds, bytes of output) of a whole event stream, not decoded while it runs."""
    connection = Connection(port, key)
    request = (f"GET /v1/sessions/{session}/events HTTP/1.1\r\nHost: localhost\r\n"
               f"Authorization: Bearer {key}\r\n\r\n").encode()
    start = time.perf_counter()
    connection.sock.sendall(request)
    total, tail = 0, b""
    while b"event: process_exited" not in tail:
        piece = connection.sock.recv(1 << 20)
        if not piece:
            raise ConnectionError("the stream was cut")
        total += len(piece)
        tail = tail[-64:] + piece
    took = time.perf_counter() - start
    connection.close()
    return took, total


def read_output(port, key, session):
    """(seconds, bytes) of the output endpoint read to its end."""
    connection = Connection(port, key)
    start = time.perf_counter()
    offset = 0
    while True:
        request = connection.encode("GET", f"/v1/sessions/{session}/output?offset={offset}&wait=30")
        connection.sock.sendall(request)
        offset, end = _read_piece(connection.sock, offset)
        if end:
            break
    took = time.perf_counter() - start
    connection.close()
    return took, offset


def _read_piece(sock, offset):
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(1 << 16)
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    if lines[0].split()[1] != "200":
        raise RuntimeError(f"output: {head!r} {rest[:200]!r}")
    left = int(headers["content-length"]) - len(rest)
    buffer = bytearray(1 << 20)
    while left > 0:
        left -= sock.recv_into(buffer, min(left, len(buffer)))
    return int(headers["x-space-next-offset"]), headers["x-space-end"] == "true"


class Attachment:
    """A session attached over WebSocket, with as little work per frame as there can be."""

    def __init__(self, port, key, session):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        nonce = base64.b64encode(os.urandom(16)).decode()
        self.sock.sendall((f"GET /v1/sessions/{session}/attach HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
                           "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                           f"Sec-WebSocket-Key: {nonce}\r\n\r\n").encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            piece = self.sock.recv(1)
            if not piece:
                raise ConnectionError(f"closed after {head!r}")
            head += piece
        if not head.startswith(b"HTTP/1.1 101 "):
            raise RuntimeError(f"attach: {head!r}")
        self.data = bytearray()

    def close(self):
        self.sock.close()

    def write(self, data):
        """At most 124 bytes of input, under the mask of zeros."""
        self.sock.sendall(struct.pack("!BB", 0x82, 0x80 | (len(data) + 1)) + bytes(5) + data)

    def frame(self):
        """(opcode, payload) of the next frame."""
        while True:
            if len(self.data) >= 2:
                at, length = 2, self.data[1]
                if length == 126 and len(self.data) >= 4:
                    at, length = 4, struct.unpack_from("!H", self.data, 2)[0]
                elif length == 127 and len(self.data) >= 10:
                    at, length = 10, struct.unpack_from("!Q", self.data, 2)[0]
                if length not in (126, 127) or at > 2:
                    if len(self.data) >= at + length:
                        opcode, payload = self.data[0] & 15, bytes(self.data[at:at + length])
                        del self.data[:at + length]
                        return opcode, payload
            piece = self.sock.recv(1 << 20)
            if not piece:
                raise ConnectionError("the attachment was cut")
            self.data += piece

    def await_output(self):
        """Reads to the next frame of output; its bytes."""
        while True:
            opcode, payload = self.frame()
            if opcode == 2:
                return payload[1:]
            if opcode == 8:
                raise ConnectionError("the session has ended")

    def echo(self):
        """Milliseconds from a key to its echo."""
        start = time.perf_counter()
        self.write(b"x")
        self.await_output()
        return (time.perf_counter() - start) * 1e3


def read_attached(port, key, session):
    """(seconds, bytes) of all output over WebSocket, to the close."""
    start = time.perf_counter()
    attachment = Attachment(port, key, session)
    total = 0
    while True:
        opcode, payload = attachment.frame()
        if opcode == 2:
            total += len(payload) - 1
        elif opcode == 8:
            break
    took = time.perf_counter() - start
    attachment.close()
    return took, total
