"""An HTTP client that checks every answer against the OpenAPI document."""

import http.client
import json
import socket
import ssl
import threading
import urllib.parse

FIELD_SEPARATOR = ":"


class Answer:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json["error"]["code"] if self.status >= 400 else None

    @property
    def details(self):
        return self.json["error"]["details"]

    def __repr__(self):
        return f"<{self.status} {self.body[:400]!r}>"


class ApiError(AssertionError):
    def __init__(self, method, path, answer):
        super().__init__(f"{method} {path}: {answer!r}")
        self.answer = answer


class Api:
    """One user of one installation. Each thread has a keep-alive connection of its own."""

    def __init__(self, host, port, key, spec, tls=None):
        self.host, self.port, self.key, self.spec, self.tls = host, port, key, spec, tls
        self.local = threading.local()

    def as_key(self, key):
        return Api(self.host, self.port, key, self.spec, self.tls)

    def connect(self, timeout=330):
        if self.tls:
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self.tls)
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def raw_socket(self, timeout=60, server_name=None):
        plain = socket.create_connection((self.host, self.port), timeout=timeout)
        if self.tls:
            return self.tls.wrap_socket(plain, server_hostname=server_name or self.host)
        return plain

    def close(self):
        connection = getattr(self.local, "connection", None)
        if connection:
            connection.close()
        self.local.connection = None

    def ask(self, method, path, body=None, *, headers=None, raw=None, key=True, check=True,
            query=None, timeout=330):
        """Sends one request; any status is an answer."""
        if query:
            path += "?" + urllib.parse.urlencode(query, doseq=True)
        head = dict(headers or {})
        if key and self.key and "Authorization" not in head:
            head["Authorization"] = f"Bearer {self.key}"
        data = raw
        if body is not None:
            data = json.dumps(body).encode()
            head.setdefault("Content-Type", "application/json")
        answer = self._exchange(method, path, data, head, timeout)
        if check:
            self.spec.check(method, path, answer.status, answer.headers, answer.body)
            if 200 <= answer.status < 300:
                self.spec.check_request(method, path, head, data)
        return answer

    def _exchange(self, method, path, data, head, timeout):
        fresh = getattr(self.local, "connection", None) is None
        if fresh:
            self.local.connection = self.connect(timeout)
        try:
            self.local.connection.request(method, path, data, head)
            response = self.local.connection.getresponse()
            body = response.read()
        except (http.client.HTTPException, OSError) as error:
            self.close()
            stale = isinstance(error, (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError))
            if fresh or not stale:
                raise
            return self._exchange(method, path, data, head, timeout)
        if response.will_close:
            self.close()
        return Answer(response.status, dict(response.getheaders()), body)

    def expect(self, status, method, path, body=None, **more):
        answer = self.ask(method, path, body, **more)
        wanted = status if isinstance(status, tuple) else (status,)
        if answer.status not in wanted:
            raise ApiError(method, path, answer)
        return answer

    def get(self, path, **more):
        return self.expect(200, "GET", path, **more).json

    def post(self, path, body=None, status=200, **more):
        return self.expect(status, "POST", path, body, **more).json

    # ---- what tests do all the time ----
    def create(self, **body):
        body.setdefault("template", "base")
        # The first of a size waits for its base snapshot to be built.
        return self.post("/v1/sandboxes", body, status=201, query={"wait": 180})["sandbox"]

    def delete(self, sandbox_id):
        return self.expect(200, "DELETE", f"/v1/sandboxes/{sandbox_id}", query={"wait": 60}).json

    def sandbox(self, sandbox_id):
        return self.get(f"/v1/sandboxes/{sandbox_id}")

    def run(self, sandbox_id, command, **more):
        body = {"shell": command} if isinstance(command, str) else {"argv": command}
        body.update(more)
        return self.post(f"/v1/sandboxes/{sandbox_id}/run", body)

    def check_output(self, sandbox_id, command, **more):
        result = self.run(sandbox_id, command, **more)
        assert result["exit_code"] == 0, result
        return result["stdout"]

    def start(self, sandbox_id, command, **more):
        body = {"shell": command} if isinstance(command, str) else {"argv": command}
        body.update(more)
        answer = self.post(f"/v1/sandboxes/{sandbox_id}/commands", body, status=201)
        return answer["process"], answer["session"]

    def process(self, sandbox_id, process_id):
        return self.get(f"/v1/sandboxes/{sandbox_id}/processes/{process_id}")

    def result(self, sandbox_id, process_id, wait=60):
        return self.get(f"/v1/sandboxes/{sandbox_id}/processes/{process_id}/result", query={"wait": wait})

    def output(self, session_id, stream="stdout"):
        """All of a stream, piece by piece to its end."""
        data, offset = b"", 0
        while True:
            answer = self.expect(200, "GET", f"/v1/sessions/{session_id}/output",
                                 query={"stream": stream, "offset": offset, "wait": 30})
            data += answer.body
            offset = int(answer.headers["X-Space-Next-Offset"])
            if answer.headers["X-Space-End"] == "true":
                return data

    def events(self, session_id, after=None, **query):
        return EventStream(self, session_id, after, query)


class EventStream:
    """Server-sent events of one session, one at a time; close() is a client that goes away."""

    def __init__(self, api, session_id, after, query):
        self.connection = api.connect(timeout=60)
        path = f"/v1/sessions/{session_id}/events"
        if query:
            path += "?" + urllib.parse.urlencode(query)
        head = {"Authorization": f"Bearer {api.key}", "Accept": "text/event-stream"}
        if after is not None:
            head["Last-Event-ID"] = after
        self.connection.request("GET", path, headers=head)
        self.response = self.connection.getresponse()
        self.status = self.response.status
        if self.status not in (200, 204):
            body = self.response.read()
            answer = Answer(self.status, dict(self.response.getheaders()), body)
            self.close()
            api.spec.check("GET", path, self.status, answer.headers, body)
            raise ApiError("GET", path, answer)
        api.spec.check("GET", path, self.status, dict(self.response.getheaders()), b"")
        if self.status == 200:
            api.spec.check_request("GET", path, head, None)
        self.document = api.spec

    def __iter__(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self):
        # The response holds the socket; without this the server would not see the end.
        if self.connection.sock:
            try:
                self.connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.response.close()
        self.connection.close()

    def __next__(self):
        event = {"id": None, "event": "message", "data": []}
        filled = False
        while True:
            line = self.response.readline()
            if not line:
                raise StopIteration
            line = line.decode().rstrip("\r\n")
            if not line:
                if filled:
                    return self._finish(event)
                continue
            if line.startswith(":"):
                continue
            name, _, value = line.partition(FIELD_SEPARATOR)
            value = value.removeprefix(" ")
            filled = True
            if name == "data":
                event["data"].append(value)
            else:
                event[name] = value

    def _finish(self, event):
        from . import schema
        event["data"] = json.loads("\n".join(event["data"]))
        name = "Event" + "".join(part.capitalize() for part in event["event"].split("_"))
        schema.check(self.document.document, {"$ref": f"#/components/schemas/{name}"}, event["data"],
                     event["event"])
        assert event["id"] is not None or event["event"] == "sandbox", event
        return event


def tls_context(certificate):
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = True
    return context
