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


def test_every_error_has_the_envelope_over_bare_connections(api):
    """Requests that no HTTP library would send."""
    cases = [
        (b"BROKEN\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", 400),
        (b"GET /v1/sandboxes HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/sandboxes HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n bad: folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nNo colon here\r\n\r\n", 400),
        (b"POST /v1/run HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
        (b"POST /v1/run HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/run HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /v1/run HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (b"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", (400, 404)),
        (b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 70000 + b"\r\n\r\n", (400, 413)),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X%d: y\r\n" % i for i in range(300)) + b"\r\n", (400, 413)),
    ]
    for sent, wanted in cases:
        with api.raw_socket() as raw:
            raw.sendall(sent)
            answer = b""
            while b"\r\n\r\n" not in answer or b'"request_id"' not in answer:
                piece = raw.recv(65536)
                if not piece:
                    break
                answer += piece
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1]) if head else 0
        assert status in (wanted if isinstance(wanted, tuple) else (wanted,)), (sent[:60], answer[:300])
        error = json.loads(body)["error"]
        assert error["code"] and error["request_id"], sent[:60]


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
        answer = b""
        while b'"request_id"' not in answer:
            piece = raw.recv(65536)
            assert piece, answer
            answer += piece
    assert answer.startswith(b"HTTP/1.1 413 ") and b'"payload_too_large"' in answer, answer[:300]


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
