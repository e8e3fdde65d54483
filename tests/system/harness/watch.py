"""A reader of a watch on files."""

import json

from harness.files import Files
from harness.http import Answer, ApiError


class Watch:
    """One reader of a watch."""

    def __init__(self, api, sandbox, path, after=None, **query):
        self.connection = api.connect(timeout=60)
        head = {"Authorization": f"Bearer {api.key}"}
        if after is not None:
            head["Last-Event-ID"] = after
        url = Files(api, sandbox).at("/watch", path=path, **query)
        self.connection.request("GET", url, headers=head)
        self.response = self.connection.getresponse()
        headers = dict(self.response.getheaders())
        if self.response.status != 200:
            answer = Answer(self.response.status, headers, self.response.read())
            self.connection.close()
            api.spec.check("GET", url, answer.status, headers, answer.body)
            raise ApiError("GET", url, answer)
        api.spec.check("GET", url, 200, headers, b"")
        api.spec.check_request("GET", url, head, None)
        self.last = after

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self):
        if self.connection.sock:
            self.connection.sock.close()
        self.response.close()
        self.connection.close()

    def next(self):
        event, data = None, None
        while True:
            line = self.response.readline().decode().rstrip("\n")
            if line.startswith("event: "):
                event = line[7:]
            elif line.startswith("id: "):
                self.last = line[4:]
            elif line.startswith("data: "):
                data = json.loads(line[6:])
            elif not line and event:
                return event, data

    def until(self, event, path):
        """Reads on to this event of this path; all that came, it included."""
        seen = []
        while True:
            got = self.next()
            seen.append(got)
            if got[0] == event and got[1].get("path") == path:
                return seen
