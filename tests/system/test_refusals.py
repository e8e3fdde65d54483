"""What every operation of the document refuses, made from the document: a call without a key, with a token of something else, about
what does not exist, with what it does not know, with a body over the cap."""

import pytest

from harness import spec

DOCUMENT = spec.Spec()
BODY_CAP = 8388608
PORTS = ("proxyPort",)  # who may visit one that exists is said in test_ports.py; what does not exist comes first
UNKNOWN = {"sandbox_id": "sb00000000000000000", "process_id": "pr00000000000000000", "session_id": "se00000000000000000",
           "checkpoint_id": "ck00000000000000000", "operation_id": "op00000000000000000", "key_id": "ky00000000000000000",
           "template_name": "nosuch", "node": "nosuch", "port": "8080", "path": "x"}


class Operation:
    """One of the document, and a call of it about what does not exist."""

    def __init__(self, template, method, operation):
        self.id, self.method, self.template = operation["operationId"], method.upper(), template
        self.answers = set(operation["responses"])
        self.path = template.format(**UNKNOWN)
        parameters = [DOCUMENT.resolve(parameter) for parameter in operation.get("parameters", [])]
        self.query = {p["name"]: "/tmp/x" for p in parameters if p["in"] == "query" and p.get("required")}
        self.body = self.raw = None
        contents = DOCUMENT.resolve(operation.get("requestBody", {})).get("content", {})
        self.headers = {"Content-Type": next(iter(contents))} if contents and "*/*" not in contents else {}
        if "101" in self.answers:
            self.headers = {"Connection": "Upgrade", "Upgrade": "space-tcp" if self.id == "openTcp" else "websocket", "Sec-WebSocket-Version": "13",
                            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        if "application/json" in contents:
            content = contents["application/json"]
            examples = [DOCUMENT.resolve(example)["value"] for example in content.get("examples", {}).values()]
            self.body = dict(content["example"] if "example" in content else examples[0])
            if "template" in self.body:
                self.body["template"] = UNKNOWN["template_name"]

    def ask(self, api, **more):
        query = {**self.query, **more.pop("query", {})}
        body = more.pop("body", self.body)
        if "raw" in more:
            body = None
        headers = {**self.headers, **more.pop("headers", {})}
        return api.ask(self.method, more.pop("path", self.path), body, query=query, headers=headers, **more)


OPERATIONS = [Operation(template, method, operation) for template, item in DOCUMENT.document["paths"].items()
              for method, operation in item.items() if operation.get("security") != []]


def with_answer(status, but=()):
    """The operations whose answers have this status, but for these (by the beginning of their names)."""
    return pytest.mark.parametrize("operation", [pytest.param(one, id=one.id) for one in OPERATIONS
                                                 if str(status) in one.answers and not one.id.startswith(but)])


@pytest.fixture(scope="module")
def stranger(installation, shared):
    """With the token of a session that none of these calls is about."""
    _, session = installation.api.start(shared, ["true"])
    return installation.api.as_key(session["token"])


@with_answer(401, but=PORTS)
def test_without_a_key(api, operation):
    assert operation.ask(api, key=False).status == 401


@with_answer(403, but=PORTS)
def test_with_a_token_of_something_else(stranger, operation):
    assert operation.ask(stranger).status == 403


@with_answer(404)
def test_about_what_does_not_exist(api, operation):
    assert operation.ask(api).status == 404


@with_answer(400, but=PORTS)
def test_with_a_parameter_that_it_does_not_know(api, operation):
    assert operation.ask(api, query={"nosuch": "1"}).status == 400


@pytest.mark.parametrize("operation", [pytest.param(one, id=one.id) for one in OPERATIONS if one.body is not None])
def test_with_a_body_that_is_no_object(api, operation):
    assert operation.ask(api, body=["nosuch"]).status == 400


@with_answer(413, but=("writeStdin",))  # a stream, whose process is looked up first
def test_with_a_body_over_the_cap(api, operation):
    """Answered from the length alone."""
    answer = operation.ask(api, raw=b"", headers={"Content-Type": "application/json", "Content-Length": str(BODY_CAP + 1)})
    api.close()
    assert answer.status == 413
