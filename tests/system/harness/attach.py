"""A session attached over WebSocket, by a client library that is not ours (python3-websocket)."""

import json
import time

import websocket

OUT, ERR = 1, 2
STREAMS = {OUT: "stdout", ERR: "stderr"}


class Attached:
    """One attachment. Collects output by stream; close() is a client that goes away."""

    def __init__(self, api, session_id, credential=None, timeout=60, sockopt=(), **query):
        pairs = "&".join(f"{name}={value}" for name, value in query.items())
        self.timeout = timeout
        scheme = "wss" if api.tls else "ws"
        header = [] if "token" in query else [f"Authorization: Bearer {credential or api.key}"]
        self.socket = websocket.create_connection(
            f"{scheme}://{api.host}:{api.port}/v1/sessions/{session_id}/attach" + (f"?{pairs}" if pairs else ""),
            timeout=timeout, header=header, sockopt=sockopt)
        api.spec.seen.add(("attachSession", 101, None))
        self.output = {"stdout": b"", "stderr": b""}
        self.events = []
        self.attached = self.next_event("attached")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.drop()

    def receive(self):
        """The next message: an event as a dict, the name of the stream that grew, None at the end."""
        # Pings keep a silent connection from running into the socket's own time limit.
        deadline = time.monotonic() + self.timeout
        kind = websocket.ABNF.OPCODE_PING
        while kind in (websocket.ABNF.OPCODE_PING, websocket.ABNF.OPCODE_PONG):
            assert time.monotonic() < deadline, f"nothing came for {self.timeout} s: {self.events} {self.output}"
            kind, data = self.socket.recv_data(control_frame=True)
        if kind == websocket.ABNF.OPCODE_CLOSE:
            return None
        if kind == websocket.ABNF.OPCODE_BINARY:
            name = STREAMS[data[0]]
            self.output[name] += data[1:]
            return name
        event = json.loads(data)
        self.events.append(event)
        return event

    def next_event(self, kind):
        """Reads on to the next event of this type."""
        while True:
            got = self.receive()
            assert got is not None, f"closed before {kind}: {self.events} {self.output}"
            if isinstance(got, dict) and got["type"] == kind:
                return got

    def read_until(self, text, stream="stdout", after=b""):
        """Reads on until the stream holds this text (behind `after`); returns what it holds."""
        while text not in self.output[stream][self.output[stream].find(after) + len(after):]:
            got = self.receive()
            assert got is not None, f"closed before {text!r}: {self.events} {self.output}"
        return self.output[stream]

    def read_to_end(self):
        """Reads to the close; the last event."""
        while self.receive() is not None:
            pass
        return self.events[-1]

    def write(self, data):
        self.socket.send_binary(b"\0" + data)

    def tell(self, **message):
        self.socket.send(json.dumps(message))

    def drop(self):
        self.socket.shutdown()
