"""A client of the agent protocol (docs/agent-protocol.md) for system tests and benchmarks.

    agent = Agent.connect("/path/to/agent.sock")   # or Agent(socket)
    agent.hello()                                  # WELCOME, list of PROCESS
    agent.identity(epoch=1)
    result = agent.run(["echo", "hi"])             # Result(exit_code, signal, stdout, stderr, ...)

For finer control: start(), then receive(), wait_for() or wait(); output is acknowledged every
ACK_STEP bytes unless Agent.auto_ack is False.
"""

import os
import socket
import struct
import time
from dataclasses import dataclass, field

MAGIC = b"\xf0SPACE-AGENT/1\r\n"
TAIL = b"\xa5"
PAYLOAD_MAX = 65536
FLUSH_BYTES = 12 + PAYLOAD_MAX + 1 + 12
STDIN_WINDOW = 65536
ACK_STEP = 65536  # an acknowledgement costs the guest an interrupt: not one for every frame

NAMES = [
    "?", "HELLO", "WELCOME", "IDENTITY", "IDENTITY_OK", "START", "STARTED", "START_FAILED",
    "STDIN", "STDIN_ACK", "OUTPUT", "OUTPUT_ACK", "SIGNAL", "RESULT", "EXITED", "FORGET",
    "RESUME_FROM", "PROCESS", "PROCESS_END", "SILENCE", "WAKE", "POWEROFF", "PING", "PONG",
    "RESET", "RESIZE", "WRITE_FILE",
]
TYPES = {name: number for number, name in enumerate(NAMES)}

TTY, STDIN, REHEARSAL = 1, 2, 4
FREEZE, SYNC = 1, 2
GROUP, PROCESS, TREE = 0, 1, 2
IDENTITY_ALL = 255


class ProtocolError(Exception):
    """The guest broke the protocol, or did not answer in time."""


def frame(kind, channel=0, payload=b"", flags=0):
    n = len(payload)
    number = TYPES[kind]
    check = (
        0x5350 ^ (n & 0xFFFF) ^ (n >> 16) ^ (number << 8 | flags)
        ^ (channel & 0xFFFF) ^ (channel >> 16)
    )
    return struct.pack("<IBBHI", n, number, flags, check, channel) + payload + TAIL


def block(data):
    if isinstance(data, str):
        data = data.encode()
    return struct.pack("<I", len(data)) + data


def strings(items):
    return struct.pack("<I", len(items)) + b"".join(block(i) for i in items)


@dataclass
class Event:
    kind: str
    channel: int
    flags: int
    payload: bytes

    def fields(self, layout):
        return struct.unpack_from("<" + layout, self.payload)


@dataclass
class Exit:
    kind: int
    status: int
    flags: int
    stdout_end: int
    stderr_end: int
    duration_ns: int

    pipe_held = property(lambda self: bool(self.flags & 1))
    timed_out = property(lambda self: bool(self.flags & 2))
    out_of_memory = property(lambda self: bool(self.flags & 4))
    exit_code = property(lambda self: self.status if self.kind == 0 else None)
    signal = property(lambda self: self.status if self.kind == 1 else None)


@dataclass
class Process:
    """What PROCESS said, or what was started here, with what came of it."""

    channel: int
    pid: int = 0
    stdin_offset: int = 0
    stdin_acked: int = 0
    stdin_closed: bool = False
    output: dict = field(default_factory=lambda: {1: bytearray(), 2: bytearray()})
    base: dict = field(default_factory=lambda: {1: 0, 2: 0})
    acked: dict = field(default_factory=lambda: {1: 0, 2: 0})
    exit: Exit = None
    failed: tuple = None  # (errno, what)

    stdout = property(lambda self: bytes(self.output[1]))
    stderr = property(lambda self: bytes(self.output[2]))


class Agent:
    def __init__(self, sock, timeout=30.0):
        self.sock = sock
        self.timeout = timeout
        self.buffer = bytearray()
        self.processes = {}
        self.next_channel = 1
        self.next_id = 1
        self.auto_ack = True
        self.welcome = None
        self.pending = []

    @classmethod
    def connect(cls, path, timeout=30.0):
        deadline = time.monotonic() + timeout
        while True:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(path)
                return cls(sock, timeout)
            except OSError:
                sock.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def close(self):
        self.sock.close()

    def reconnect(self, sock):
        """Another connection to the same agent; call hello() next."""
        self.sock = sock
        self.buffer.clear()
        self.pending.clear()

    # ---- frames ----

    def send(self, *args, **kwargs):
        self.send_raw(frame(*args, **kwargs))

    def send_raw(self, data):
        self.sock.settimeout(self.timeout)
        self.sock.sendall(data)

    def _fill(self, deadline):
        left = deadline - time.monotonic()
        if left <= 0:
            raise ProtocolError("no answer in time")
        self.sock.settimeout(left)
        try:
            data = self.sock.recv(262144)
        except socket.timeout:
            raise ProtocolError("no answer in time") from None
        if not data:
            raise ProtocolError("connection closed")
        self.buffer += data

    def _take(self):
        if len(self.buffer) < 12:
            return None
        n, number, flags, check, channel = struct.unpack_from("<IBBHI", self.buffer)
        expected = (
            0x5350 ^ (n & 0xFFFF) ^ (n >> 16) ^ (number << 8 | flags)
            ^ (channel & 0xFFFF) ^ (channel >> 16)
        )
        if n > PAYLOAD_MAX or not 0 < number < len(NAMES) or check != expected:
            raise ProtocolError("bad head %r" % bytes(self.buffer[:12]))
        if len(self.buffer) < 12 + n + 1:
            return None
        payload = bytes(self.buffer[12:12 + n])
        if self.buffer[12 + n] != TAIL[0]:
            raise ProtocolError("bad tail")
        del self.buffer[:12 + n + 1]
        return Event(NAMES[number], channel, flags, payload)

    def receive(self, timeout=None):
        """The next frame, after its effect on self.processes was noted."""
        if self.pending:
            return self.pending.pop(0)
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            event = self._take()
            if event is not None:
                self._note(event)
                return event
            self._fill(deadline)

    def wait_for(self, kind, channel=None, ident=None, timeout=None):
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            event = self.receive(max(0.001, deadline - time.monotonic()))
            if event.kind != kind or (channel is not None and event.channel != channel):
                continue
            if ident is None or event.fields("I")[0] == ident:
                return event

    def _note(self, event):
        process = self.processes.get(event.channel)
        if event.kind == "OUTPUT":
            stream, offset = event.fields("BQ")
            data = event.payload[9:]
            have = process.base[stream] + len(process.output[stream])
            if offset != have:
                raise ProtocolError("output at %d instead of %d" % (offset, have))
            process.output[stream] += data
            end = offset + len(data)
            if self.auto_ack and end - process.acked[stream] >= ACK_STEP:
                process.acked[stream] = end
                self.ack(event.channel, stream, end)
        elif event.kind == "STARTED":
            process.pid = event.fields("I")[0]
        elif event.kind == "START_FAILED":
            process.failed = event.fields("IB")
        elif event.kind == "EXITED":
            process.exit = Exit(*event.fields("BBHQQQ"))
            for stream, end in ((1, process.exit.stdout_end), (2, process.exit.stderr_end)):
                if process.base[stream] + len(process.output[stream]) != end:
                    raise ProtocolError("EXITED before the end of output")
        elif event.kind == "STDIN_ACK":
            process.stdin_acked = event.fields("Q")[0]
            process.stdin_closed = bool(event.flags & 1)

    # ---- conversation ----

    def hello(self, flush=False, timeout=None):
        """Synchronises; returns {channel: PROCESS fields}."""
        nonce = os.urandom(16)
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        payload = MAGIC + nonce + struct.pack("<HH", 1, 0)
        self.send_raw((b"\0" * FLUSH_BYTES if flush else b"") + frame("HELLO", 0, payload))
        start = frame("WELCOME", 0, MAGIC + nonce + b"\0" * 28)[:44]
        self.pending.clear()
        while True:
            at = self.buffer.find(start)
            if at >= 0:
                del self.buffer[:at]
                break
            self._fill(deadline)
        event = self.receive()
        version, flags, epoch = struct.unpack_from("<HHQ", event.payload, 32)
        self.welcome = {"version": version, "flags": flags, "epoch": epoch,
                        "boot_id": event.payload[44:60]}
        reported = {}
        while True:
            event = self.receive()
            if event.kind == "PROCESS_END":
                return reported
            if event.kind == "PROCESS":
                names = ("pid", "state", "stdout_start", "stdout_end", "stderr_start",
                         "stderr_end", "stdin_offset")
                reported[event.channel] = dict(zip(names, event.fields("IBQQQQQ")))

    def resume(self, reported):
        """RESUME_FROM what this client has, for every channel reported and known."""
        for channel in reported:
            process = self.processes.get(channel)
            if process is None:
                self.send("FORGET", channel)
                continue
            process.exit = None
            offsets = [process.base[s] + len(process.output[s]) for s in (1, 2)]
            self.send("RESUME_FROM", channel, struct.pack("<QQ", *offsets))

    def ident(self):
        self.next_id += 1
        return self.next_id

    def identity_frame(self, epoch=1, hostname="sandbox", env=(), disk_bytes=0, ident=1,
                       machine_id=None, boot_id=None):
        payload = (
            struct.pack("<IQ", ident, epoch) + block(os.urandom(64))
            + struct.pack("<Q", time.time_ns()) + block(hostname)
            + (machine_id or os.urandom(16)) + (boot_id or os.urandom(16))
            + strings(list(env)) + struct.pack("<Q", disk_bytes)
        )
        return frame("IDENTITY", 0, payload)

    def identity(self, **kwargs):
        """Returns (epoch, done bits, errno)."""
        self.send_raw(self.identity_frame(**kwargs))
        return self.wait_for("IDENTITY_OK").fields("IQII")[1:]

    def ping(self):
        ident = self.ident()
        self.send("PING", 0, struct.pack("<I", ident))
        self.wait_for("PONG", ident=ident)

    def request(self, kind, flags=0, timeout=None):
        """SILENCE, WAKE, RESET or POWEROFF; returns the errno of its RESULT."""
        ident = self.ident()
        payload = struct.pack("<I", ident)
        if kind == "WAKE":
            payload += struct.pack("<Q", time.time_ns())
        self.send(kind, 0, payload, flags)
        return self.wait_for("RESULT", 0, ident, timeout).fields("II")[1]

    # ---- processes ----

    def start_frames(self, argv, env=(), cwd="", user="", flags=0, timeout_ms=0, cols=80,
                     rows=24, term="", channel=None):
        if channel is None:
            channel = self.next_channel
            self.next_channel += 1
        self.processes[channel] = Process(channel)
        payload = (
            struct.pack("<I", flags) + strings(list(argv)) + strings(list(env)) + block(cwd)
            + block(user) + struct.pack("<QHH", timeout_ms, cols, rows) + block(term)
        )
        data = b""
        while True:
            part, payload = payload[:PAYLOAD_MAX], payload[PAYLOAD_MAX:]
            data += frame("START", channel, part, 1 if payload else 0)
            if not payload:
                return channel, data

    def start(self, argv, **kwargs):
        """Sends START; returns the Process without waiting."""
        channel, data = self.start_frames(argv, **kwargs)
        self.send_raw(data)
        return self.processes[channel]

    def ack(self, channel, stream, offset):
        self.send("OUTPUT_ACK", channel, struct.pack("<BQ", stream, offset))

    def stdin(self, process, data, end=False):
        """Sends input within the window, waiting for acknowledgements as needed."""
        view = memoryview(data)
        while True:
            room = STDIN_WINDOW - (process.stdin_offset - process.stdin_acked)
            part = view[:min(room, 32768)]
            if process.stdin_closed:
                return
            if len(part) > 0 or len(view) == 0:
                last = end and len(part) == len(view)
                if len(part) > 0 or last:
                    self.send("STDIN", process.channel,
                              struct.pack("<Q", process.stdin_offset) + bytes(part),
                              1 if last else 0)
                process.stdin_offset += len(part)
                view = view[len(part):]
                if len(view) == 0:
                    return
            else:
                self.receive()

    def signal(self, process, number, scope=GROUP):
        ident = self.ident()
        self.send("SIGNAL", process.channel, struct.pack("<IBB", ident, number, scope))
        return self.wait_for("RESULT", process.channel, ident).fields("II")[1]

    def wait(self, process, timeout=None):
        """Waits for EXITED or START_FAILED; returns the process."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while process.exit is None and process.failed is None:
            self.receive(max(0.001, deadline - time.monotonic()))
        return process

    def forget(self, process):
        self.send("FORGET", process.channel)
        self.processes.pop(process.channel, None)

    def run(self, argv, timeout=None, **kwargs):
        process = self.wait(self.start(argv, **kwargs), timeout)
        if process.failed is None:
            self.forget(process)
        return process

    def write_file(self, path, data, mode=0o644, uid=0, gid=0):
        """Returns 0 or the first errno."""
        for offset in range(0, max(len(data), 1), 49152):
            ident = self.ident()
            payload = (
                struct.pack("<I", ident) + block(path) + struct.pack("<IIIQ", mode, uid, gid, offset)
                + block(data[offset:offset + 49152])
            )
            self.send("WRITE_FILE", 0, payload, 1 if offset == 0 else 0)
            errno = self.wait_for("RESULT", 0, ident).fields("II")[1]
            if errno != 0:
                return errno
        return 0
