"""Runs in a sandbox: an application that shows what arrives, and misbehaves on request. Python's
standard library only. The first argument is the port, the second the address."""

import base64
import hashlib
import http.server
import json
import socket
import socketserver
import struct
import sys
import threading
import time

ECHO = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class App(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "guest", ""

    def log_message(self, *unused):
        pass

    def pieces(self):
        """The request's body, by length or in chunks."""
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return
        left = int(self.headers.get("Content-Length", 0))
        while left:
            piece = self.rfile.read(min(left, 65536))
            left -= len(piece)
            yield piece

    def reply(self, body, status=200, headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def serve(self):
        name = self.path.split("?")[0].split("/")[1]
        handler = getattr(self, f"serve_{name}", self.serve_seen)
        handler()

    def serve_seen(self):
        body = b"".join(self.pieces())
        self.reply(json.dumps({"method": self.command, "path": self.path, "headers": self.headers.items(),
                               "body": body.decode("latin-1")}).encode(), headers=[("Content-Type", "application/json")])

    def serve_sink(self):
        size, digest = 0, hashlib.sha256()
        for piece in self.pieces():
            size += len(piece)
            digest.update(piece)
        self.reply(f"{size} {digest.hexdigest()}".encode())

    def serve_flood(self):
        """/flood/BYTES, and /flood/BYTES/close for an answer that the end of the connection ends."""
        parts = self.path.split("/")
        left, piece = int(parts[2]), bytes(range(256)) * 256
        self.send_response(200)
        if len(parts) < 4:
            self.send_header("Content-Length", str(left))
        else:
            self.close_connection = True
        self.end_headers()
        while left > 0:
            self.wfile.write(piece[:left])
            left -= len(piece)

    def serve_events(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.close_connection = True
        for number in range(100000):
            self.wfile.write(f"data: {number}\n\n".encode())
            self.wfile.flush()
            time.sleep(0.05)

    def serve_headers(self):
        """Answers with the headers in the body, JSON pairs."""
        self.reply(b"page", headers=json.loads(b"".join(self.pieces())))

    def serve_raw(self):
        """Answers with exactly the bytes of the body."""
        self.wfile.write(b"".join(self.pieces()))
        self.close_connection = True

    def serve_ws(self):
        """A WebSocket that sends back what it gets."""
        key = base64.b64encode(hashlib.sha1((self.headers["Sec-WebSocket-Key"] + ECHO).encode()).digest()).decode()
        self.send_response(101)
        for pair in (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", key)):
            self.send_header(*pair)
        self.end_headers()
        self.close_connection = True
        while True:
            first, second = self.rfile.read(2)
            size = second & 127
            if size >= 126:
                size = struct.unpack(">H" if size == 126 else ">Q", self.rfile.read(2 if size == 126 else 8))[0]
            mask = self.rfile.read(4) * (size // 4 + 1)
            data = (int.from_bytes(self.rfile.read(size), "big") ^ int.from_bytes(mask[:size], "big")).to_bytes(size, "big")
            length = bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size) if size < 65536 \
                else b"\x7f" + struct.pack(">Q", size)
            self.wfile.write(bytes([first]) + length + data)
            if first & 15 == 8:
                return

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_PURGE = serve


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64
    address_family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET


def echo(port):
    """A raw service beside it: sends back all it gets, and ends when the peer ends."""
    def serve(connection):
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        threading.Thread(target=echo, args=(int(sys.argv[3]),), daemon=True).start()
    Server((sys.argv[2], int(sys.argv[1])), App).serve_forever()
