"""The document, and what holds for every route: keys, request ids, envelopes, methods, limits."""

import json
import os
import subprocess
import sys

import pytest

from harness import schema, spec
from harness.installation import WORK

def test_the_document_is_valid_openapi():
    """By an independent validator, in an environment of its own."""
    venv = WORK / "validator"
    python = venv / "bin" / "python"
    if not python.exists():
        made = subprocess.run([sys.executable, "-m", "venv", str(venv)], check=False, capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"no environment for the OpenAPI validator (python3-venv): {made.stdout[-300:]}")
    if subprocess.run([str(python), "-c", "import openapi_spec_validator"], check=False,
                      capture_output=True).returncode:
        got = subprocess.run([str(python), "-m", "pip", "-q", "install", "openapi-spec-validator==0.9.0"],
                             check=False, capture_output=True, text=True, timeout=180)
        if got.returncode:
            pytest.skip(f"the OpenAPI validator cannot be installed: {got.stderr[-300:]}")
    done = subprocess.run([str(python), "-m", "openapi_spec_validator", str(spec.DOCUMENT)],
                          check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_operation_has_examples_that_fit_their_schemas():
    document = spec.Spec()
    for template, item in document.document["paths"].items():
        for method, operation in item.items():
            contents = [("request", operation.get("requestBody", {}))]
            contents += list(operation["responses"].items())
            assert operation.get("summary") and operation.get("operationId")
            for status, holder in contents:
                holder = document.resolve(holder)
                for media, content in holder.get("content", {}).items():
                    label = f"{method} {template} {status}"
                    examples = [content["example"]] if "example" in content else []
                    examples += [document.resolve(e)["value"] for e in content.get("examples", {}).values()]
                    assert examples, f"{label}: no example"
                    for example in examples:
                        if media == "application/json":
                            schema.check(document.document, content["schema"], example, label)


@pytest.mark.parametrize("wanted, value", [
    ({"type": "string", "format": "date-time"}, "2026-11-29 18:20:31Z"), ({"type": "string", "format": "unheard-of"}, ""),
    ({"const": 1}, 2), ({"type": "object", "properties": {"a": {}}}, {"b": 1}), ({"type": "integer"}, True), ({"heard": 1}, 1),
    ({"patternProperties": {"^a": {}}, "additionalProperties": False}, {"b": 1}), ({"patternProperties": {"^a": {"const": 1}}}, {"a": 2}),
])
def test_the_check_of_answers_can_fail(wanted, value):
    with pytest.raises(schema.Mismatch):
        schema.check({}, wanted, value)


def test_the_served_document_is_the_source(api):
    assert api.get("/openapi.json", key=False) == json.loads(spec.DOCUMENT.read_text(encoding="utf-8"))


def test_service_routes_need_no_key(api):
    assert api.get("/healthz", key=False)["status"] == "ok"
    assert api.get("/readyz", key=False)["status"] == "ready"
    version = api.get("/version", key=False)["version"]
    assert version == json.loads(spec.DOCUMENT.read_text(encoding="utf-8"))["info"]["version"]


@pytest.mark.parametrize("authorization", [
    None, "Bearer ", "Bearer wrong", "Basic dXNlcjpwYXNz", "Bearer " + "x" * 4000, "bearer",
])
def test_a_missing_or_wrong_key_is_401(api, authorization):
    headers = {"Authorization": authorization} if authorization is not None else {}
    answer = api.ask("GET", "/v1/sandboxes", key=False, headers=headers)
    assert (answer.status, answer.code) == (401, "unauthorized")


def test_a_key_counts_nowhere_but_in_the_header(api, installation):
    for name in ("key", "token", "api_key", "access_token"):
        answer = api.ask("GET", f"/v1/sandboxes?{name}={installation.key}", key=False)
        assert (answer.status, answer.code) == (401, "unauthorized"), answer


def test_unknown_routes_are_not_found(api):
    for path in ("/", "/v1", "/v1/", "/v2/sandboxes", "/v1/sandbox", "/v1/sandboxes/", "/favicon.ico"):
        answer = api.ask("GET", path)
        assert (answer.status, answer.code) == (404, "not_found"), (path, answer)
        for place in ("/v1/", "/openapi.json", "/readyz", "/version"):
            assert place in answer.json["error"]["message"], answer
        assert api.ask("GET", "/openapi.json", key=False).status == 200


def test_later_fields_are_invalid(api):
    for body, field in [
        ({"template": "base", "network_policy": {}}, "network_policy"),
    ]:
        answer = api.ask("POST", "/v1/sandboxes", body)
        assert (answer.status, answer.details.get("field")) == (400, field), answer


def test_a_method_that_a_path_lacks_is_405_with_allow(api, shared):
    for method, path, allowed in [
        ("PUT", "/v1/sandboxes", {"GET", "POST"}),
        ("POST", f"/v1/sandboxes/{shared}", {"GET", "PATCH", "DELETE"}),
        ("DELETE", "/v1/templates", {"GET", "POST"}),
        ("GET", "/v1/run", {"POST"}),
        ("POST", "/healthz", {"GET"}),
    ]:
        answer = api.ask(method, path, {})
        assert (answer.status, answer.code) == (405, "method_not_allowed"), (path, answer)
        have = {word.strip() for word in answer.headers["Allow"].split(",")}
        assert allowed <= have and method not in have, (path, have)


def test_request_ids_are_kept_or_made(api):
    answer = api.ask("GET", "/v1/templates", headers={"X-Request-Id": "my.id_1-2"})
    assert answer.headers["X-Request-Id"] == "my.id_1-2"
    for bad in ("a b", "x" * 65, "a/b", "é".encode().decode("latin-1")):
        answer = api.ask("GET", "/v1/templates", headers={"X-Request-Id": bad})
        assert answer.headers["X-Request-Id"] != bad
    first, second = (api.ask("GET", "/v1/templates").headers["X-Request-Id"] for _ in range(2))
    assert first != second


def test_head_is_get_without_a_body(api):
    answer = api.ask("HEAD", "/v1/templates")
    assert answer.status == 200 and answer.body == b""


def test_rate_limit_headers_count_down(api):
    answers = [api.ask("GET", "/v1/templates") for _ in range(2)]
    limit = int(answers[0].headers["RateLimit-Limit"])
    assert all(0 <= int(a.headers["RateLimit-Remaining"]) <= limit for a in answers)


@pytest.mark.parametrize("method, path, body, status", [
    ("POST", "/v1/sandboxes", {}, 400), ("GET", "/v1/sandboxes/sbxxxxxxxxxxxxxxxxxx", None, 404),
])
def test_errors_to_a_key_have_them_too(api, method, path, body, status):
    answer = api.ask(method, path, body)
    assert answer.status == status and set(spec.RATE) <= set(answer.headers)
    stripped = {name: value for name, value in answer.headers.items() if name != "RateLimit-Reset"}
    with pytest.raises(AssertionError, match="RateLimit-Reset is missing"):
        api.spec.check(method, path, status, stripped, answer.body)
    answer = api.ask(method, path, body, key=False)
    assert answer.status == 401 and not set(spec.RATE) & set(answer.headers)


OF_SANDBOX = "/v1/sandboxes/sb4kq7m2xw9c5t3n8h6d"


@pytest.mark.parametrize("method, path, headers, body, wrong", [
    ("POST", "/v1/sandboxes", {}, {"template": "base", "nosuch": 1}, "key nosuch is not documented"),
    ("POST", "/v1/sandboxes", {}, {"template": 1}, "1 is not string"),
    ("POST", "/v1/sandboxes?wait=1s", {}, {"template": "base"}, "'1s' is not number"),
    ("POST", "/v1/sandboxes?wait=301", {}, {"template": "base"}, "301 is out of range"),
    ("POST", "/v1/sandboxes?nosuch=1", {}, {"template": "base"}, "'nosuch'. not documented"),
    ("POST", "/v1/sandboxes", {}, None, "no body"),
    ("GET", "/v1/sandboxes", {}, {}, "a body that the document does not know"),
    ("GET", "/v1/sandboxes?state=odd", {}, None, "'odd' is none of"),
    ("GET", "/v1/sandboxes?limit=1&limit=2", {}, None, "is given 2 times"),
    ("GET", "/v1/sandboxes?created_after=yesterday", {}, None, "is no date-time"),
    ("GET", f"{OF_SANDBOX}/files", {}, None, "path is missing"),
    ("PUT", f"{OF_SANDBOX}/files?path=a", {"content-encoding": "br"}, "x", "'br' is none of"),
    ("POST", f"{OF_SANDBOX}/files?path=a", {"content-type": "text/plain"}, "x", "Content-Type 'text/plain'"),
])
def test_a_request_that_the_document_does_not_describe_is_found(method, path, headers, body, wrong):
    raw = None if body is None else json.dumps(body).encode()
    with pytest.raises(AssertionError, match=wrong):
        spec.Spec().check_request(method, path, headers, raw)


def test_requests_that_the_document_describes_pass():
    described = spec.Spec()
    described.check_request("POST", "/v1/sandboxes?wait=1.5", {"Idempotency-Key": "a"}, b'{"template": "base"}')
    described.check_request(
        "GET", "/v1/sandboxes?state=running&state=error&metadata.of=x&created_after=2026-01-01T00:00:00%2B01:00", {}, None)
    described.check_request("GET", f"{OF_SANDBOX}/files?path=%ff", {"Range": "bytes=0-1"}, None)


def refused(raw):
    """(status, headers, error) of the answer that closes the connection, held against the document."""
    answer = b""
    while piece := raw.recv(65536):
        answer += piece
    head, _, body = answer.decode("latin-1").partition("\r\n\r\n")
    start, *lines = head.split("\r\n")
    names = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status = int(start.split()[1])
    # Whom such a request was meant for is not known, so only what holds for every error is held.
    spec.Spec().check_error(start, None, None, status, names, body)
    return status, names, json.loads(body)["error"]


NO_REQUESTS = [
    (b"BROKEN\r\n\r\n", "method"),
    (b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", "version"),
    (b"GET /v1/sandboxes HTTP/1.1\r\n\r\n", "Host"),
    (b"GET /v1/sandboxes HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "Host"),
    (b"GET / HTTP/1.1\r\nHost: a\r\n bad: folded\r\n\r\n", "headers"),
    (b"GET / HTTP/1.1\r\nHost: a\r\nNo colon here\r\n\r\n", "headers"),
    (b"GET / HTTP/1.1\r\nHost: a\r\nX-Odd: a\x01b\r\n\r\n", "X-Odd"),
    (b"GET / HTTP/1.1\r\nHost: a\r\nX-Odd: a\nb: c\r\n\r\n", "head"),
    (b"POST /v1/run HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "Content-Length"),
    (b"POST /v1/run HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", "Content-Length"),
    (b"POST /v1/run HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "Transfer-Encoding"),
    (b"POST /v1/run HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", "Transfer-Encoding"),
    (b"POST /v1/run HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n", "Expect"),
    (b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n", "target"),
    (b"GET http://a/v1/sandboxes HTTP/1.1\r\nHost: a\r\n\r\n", "target"),
    (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "target"),
]


@pytest.mark.parametrize("sent, field", NO_REQUESTS, ids=lambda v: v if isinstance(v, str) else "")
def test_what_no_http_library_would_send_is_refused_by_field(api, sent, field):
    with api.raw_socket() as raw:
        raw.sendall(sent)
        status, _, error = refused(raw)
    assert (status, error["code"], error["details"]) == (400, "invalid_request", {"field": field})


def test_an_escape_that_is_none_is_no_route(api):
    with api.raw_socket() as raw:
        raw.sendall(b"GET /%zz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert refused(raw)[0] in (400, 404)


@pytest.mark.parametrize("more, field, limit", [
    (b"X: " + b"y" * 70000 + b"\r\n\r\n", "head", "65536 bytes"),
    (b"".join(b"X%d: y\r\n" % i for i in range(300)) + b"\r\n", "headers", "more than 100 headers"),
], ids=["bytes", "headers"])
def test_a_head_over_its_limits_is_413(api, more, field, limit):
    with api.raw_socket() as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n" + more)
        status, _, error = refused(raw)
    assert (status, error["code"], error["details"]) == (413, "payload_too_large", {"field": field})
    assert limit in error["message"], error


@pytest.mark.parametrize("chunks, field", [
    (b"xyz\r\n", "body"), (b"2\r\n{}x", "body"), (b"2;=\x01\r\n{}\r\n", "body"), (b"0\r\n: x\r\n\r\n", "trailers"),
], ids=["size", "end", "extension", "trailer"])
def test_malformed_chunks_are_refused_by_field(api, installation, shared, chunks, field):
    process, _ = api.start(shared, ["cat"], stdin="open")
    for method, path in [
        ("POST", "/v1/run"), ("POST", f"/v1/sandboxes/{shared}/run"),
        ("PUT", f"/v1/sandboxes/{shared}/files?path=chunks"), ("PUT", f"/v1/sandboxes/{shared}/files/tar?path=chunks"),
        ("POST", f"/v1/sandboxes/{shared}/files"), ("POST", f"/v1/sandboxes/{shared}/processes/{process['id']}/stdin"),
    ]:
        kind = "multipart/form-data; boundary=x" if path.endswith("/files") else "application/json"
        with api.raw_socket() as raw:
            raw.sendall((f"{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {installation.key}\r\n"
                         f"Content-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n").encode() + chunks)
            status, names, error = refused(raw)
        assert (status, error["code"], error["details"]["field"]) == (400, "invalid_request", field), (path, error)
        assert "ratelimit-limit" in names, path
    api.ask("POST", f"/v1/sandboxes/{shared}/processes/{process['id']}/kill", {})


def test_a_head_split_into_single_bytes_is_served(api, installation):
    request = (f"GET /v1/templates HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {installation.key}\r\n"
               "Connection: close\r\n\r\n").encode()
    with api.raw_socket() as raw:
        for index in range(len(request)):
            raw.sendall(request[index:index + 1])
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200 "), answer[:200]


def test_chunked_bodies_are_read(api, installation, shared):
    body = json.dumps({"argv": ["echo", "chunked"]}).encode()
    head = (f"POST /v1/sandboxes/{shared}/run HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {installation.key}\r\n"
            "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n").encode()
    with api.raw_socket() as raw:
        raw.sendall(head)
        for index in range(0, len(body), 7):
            piece = body[index:index + 7]
            raw.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        raw.sendall(b"0\r\n\r\n")
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200 ") and b"chunked\\n" in answer, answer


def test_a_body_over_the_cap_is_413(api, installation, shared):
    """Answered from the length alone; a client that sends on all the same can still read the answer."""
    size = 8388608 + 1
    with api.raw_socket() as raw:
        raw.sendall((f"POST /v1/sandboxes/{shared}/run HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {installation.key}\r\n"
                     f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n").encode())
        try:
            for _ in range(size // 65536):
                raw.sendall(b" " * 65536)
        except OSError:
            pass
        status, _, error = refused(raw)
    assert (status, error["code"], error["details"]) == (413, "payload_too_large", {"field": "body"})
    assert "8388608 bytes" in error["message"] and "api.max_body_bytes" in error["message"], error


def test_requests_after_each_other_share_a_connection(api, installation):
    with api.raw_socket() as raw:
        for _ in range(3):
            raw.sendall(f"GET /v1/templates HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {installation.key}\r\n\r\n".encode())
            answer = b""
            while b'"next_cursor"' not in answer:
                piece = raw.recv(65536)
                assert piece, "the server closed a keep-alive connection"
                answer += piece
            assert answer.startswith(b"HTTP/1.1 200 ")


def test_the_log_never_holds_a_key(installation):
    for path in installation.logs.glob("*"):
        assert installation.key not in path.read_text(encoding="utf-8", errors="replace")
    assert oct(os.stat(installation.key_file).st_mode & 0o777) == "0o600"
