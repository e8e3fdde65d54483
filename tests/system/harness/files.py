"""The files of one sandbox, as a client of the API has them."""

import urllib.parse


class Files:
    def __init__(self, api, sandbox):
        self.api, self.base = api, f"/v1/sandboxes/{sandbox}/files"

    def at(self, rest="", **query):
        pairs = urllib.parse.urlencode({k: v for k, v in query.items() if v is not None}, doseq=True,
                                       quote_via=urllib.parse.quote)
        return self.base + rest + (f"?{pairs}" if pairs else "")

    def ask(self, method, rest="", body=None, raw=None, headers=None, **query):
        return self.api.ask(method, self.at(rest, **query), body, raw=raw, headers=headers)

    def put(self, path, data, headers=None, **query):
        return self.api.expect((200, 201), "PUT", self.at(path=path, **query), raw=data, headers=headers).json

    def read(self, path, **query):
        return self.api.expect(200, "GET", self.at(path=path, **query)).body

    def stat(self, path, **query):
        return self.api.get(self.at("/stat", path=path, **query))

    def list(self, path, **query):
        return self.api.get(self.at("/list", path=path, **query))

    def list_all(self, path, **query):
        items, cursor = [], None
        while True:
            page = self.list(path, cursor=cursor, **query)
            items += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return items

    def post(self, what, status=200, **body):
        return self.api.post(self.at(f"/{what}"), body, status=status)

    def delete(self, path, **query):
        return self.api.expect(200, "DELETE", self.at(path=path, **query))
