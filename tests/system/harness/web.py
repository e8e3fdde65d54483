"""A plain HTTP client for ports of sandboxes: any Host, any header, the answer as it came."""

import json
import socket


class Page:
    def __init__(self, response, body):
        self.status, self.body = response.status, body
        self.pairs = response.getheaders()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The code of an answer of ours, or None for one of the application."""
        return self.all("X-Space-Error")[0] if self.all("X-Space-Error") else None

    def all(self, name):
        return [value for key, value in self.pairs if key.lower() == name.lower()]

    def __repr__(self):
        return f"<{self.status} {self.pairs} {self.body[:300]!r}>"


class Web:
    """One port of one sandbox, by its own name and by path."""

    domain = "space.localhost"

    def __init__(self, api, sandbox_id, port):
        self.api, self.sandbox_id, self.port = api, sandbox_id, port
        self.host = f"{port}-{sandbox_id}.{self.domain}"
        self.path = f"/v1/sandboxes/{sandbox_id}/ports/{port}/proxy"

    def at(self, port):
        return Web(self.api, self.sandbox_id, port)

    def open(self, method, path, headers=None, body=None, host=None, key=True, timeout=60):
        """Sends a request and gives the connection with its response not yet read."""
        connection = self.api.connect(timeout)
        pairs = [("Host", host or self.host)] + ([("X-Space-Token", self.api.key)] if key is True else [])
        pairs += [("X-Space-Token", key)] if isinstance(key, str) else []
        pairs += headers.items() if isinstance(headers, dict) else headers or []
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        chunked = body is not None and not isinstance(body, bytes)
        if isinstance(body, bytes):
            pairs.append(("Content-Length", str(len(body))))
        elif chunked:
            pairs.append(("Transfer-Encoding", "chunked"))
        for name, value in pairs:
            connection.putheader(name, value)
        connection.endheaders(body, encode_chunked=chunked)
        return connection, connection.getresponse()

    def ask(self, path="/", method="GET", **more):
        connection, response = self.open(method, path, **more)
        with connection.sock if connection.sock else socket.socket():
            try:
                return Page(response, response.read())
            finally:
                connection.close()

    def ask_path(self, path="/", method="GET", **more):
        page = self.ask(self.path + path, method, host=f"{self.api.host}:{self.api.port}", **more)
        self.api.spec.seen.add(("proxyPort" + ("" if method == "GET" else method.capitalize()), page.status, None))
        return page

    def raw(self, text):
        """Sends bytes and reads to the end."""
        with socket.create_connection((self.api.host, self.api.port), timeout=60) as connection:
            connection.sendall(text)
            data = b""
            while piece := connection.recv(65536):
                data += piece
            return data
