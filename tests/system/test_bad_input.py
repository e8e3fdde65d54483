"""Malformed requests: each is a 4xx that names the field."""

import json

import pytest

GOOD_RUN = {"argv": ["true"]}


def field_of(api, method, path, body=None, **more):
    answer = api.ask(method, path, body, **more)
    assert answer.status == 400 and answer.code == "invalid_request", (body, answer)
    return answer.details.get("field")


def check_field(got, field):
    fields = field if isinstance(field, tuple) else (field,)
    assert got in fields or any(got.startswith((f + ".", f + "[")) for f in fields), got


CREATES = [
    ({}, "template"),
    ({"template": None}, "template"),
    ({"template": 1}, "template"),
    ({"template": ""}, "template"),
    ({"template": "a" * 200}, "template"),
    ({"template": "../etc"}, "template"),
    ({"template": "base", "vcpus": 0}, "vcpus"),
    ({"template": "base", "vcpus": 9}, "vcpus"),
    ({"template": "base", "vcpus": 1.5}, "vcpus"),
    ({"template": "base", "vcpus": "1"}, "vcpus"),
    ({"template": "base", "vcpus": 1e99}, "vcpus"),
    ({"template": "base", "memory_mib": 127}, "memory_mib"),
    ({"template": "base", "memory_mib": 200}, "memory_mib"),
    ({"template": "base", "memory_mib": 16385}, "memory_mib"),
    ({"template": "base", "memory_mib": -512}, "memory_mib"),
    ({"template": "base", "disk_mib": 1}, "disk_mib"),
    ({"template": "base", "disk_mib": 1 << 40}, "disk_mib"),
    ({"template": "base", "name": ""}, "name"),
    ({"template": "base", "name": "Upper"}, "name"),
    ({"template": "base", "name": "a" * 64}, "name"),
    ({"template": "base", "name": 5}, "name"),
    ({"template": "base", "metadata": []}, "metadata"),
    ({"template": "base", "metadata": {"a": 1}}, "metadata"),
    ({"template": "base", "metadata": {"": "x"}}, "metadata"),
    ({"template": "base", "metadata": {str(i): "x" for i in range(65)}}, "metadata"),
    ({"template": "base", "env": {"A=B": "x"}}, "env"),
    ({"template": "base", "env": {"": "x"}}, "env"),
    ({"template": "base", "env": {"A": 1}}, "env"),
    ({"template": "base", "env": {"A": "a\u0000b"}}, ("env", "body")),
    ({"template": "base", "env": {f"V{i}": "x" for i in range(257)}}, "env"),
    ({"template": "base", "env": {"A": "x" * 262145}}, "env"),
    ({"template": "base", "lifecycle": 1}, "lifecycle"),
    ({"template": "base", "lifecycle": {"timeout_seconds": 0}}, "lifecycle.timeout_seconds"),
    ({"template": "base", "lifecycle": {"timeout_seconds": -1}}, "lifecycle.timeout_seconds"),
    ({"template": "base", "lifecycle": {"timeout_seconds": "1"}}, "lifecycle.timeout_seconds"),
    ({"template": "base", "lifecycle": {"nosuch": 1}}, "lifecycle.nosuch"),
    ({"template": "base", "nosuch": 1}, "nosuch"),
]


@pytest.mark.parametrize("body, field", CREATES, ids=lambda v: v if isinstance(v, str) else json.dumps(v)[:40])
def test_create(api, body, field):
    check_field(field_of(api, "POST", "/v1/sandboxes", body), field)


COMMANDS = [
    ({}, ("argv", "shell")),
    ({"argv": []}, "argv"),
    ({"argv": "true"}, "argv"),
    ({"argv": ["true", 1]}, "argv"),
    ({"argv": ["a\u0000b"]}, ("argv", "body")),
    ({"argv": ["true"], "cwd": "relative"}, "cwd"),
    ({"argv": [""]}, "argv"),
    ({"argv": ["true"] * 4097}, "argv"),
    ({"argv": ["true", "x" * 262145]}, "argv"),
    ({"shell": ""}, "shell"),
    ({"shell": 1}, "shell"),
    ({"argv": ["true"], "shell": "true"}, ("argv", "shell")),
    ({"argv": ["true"], "env": {f"V{i}": "x" for i in range(257)}}, "env"),
    ({"argv": ["true"], "env": {"A=B": "x"}}, "env"),
    ({"argv": ["true"], "cwd": 1}, "cwd"),
    ({"argv": ["true"], "user": 1.5}, "user"),
    ({"argv": ["true"], "input": 5}, "input"),
    ({"argv": ["true"], "input": "a", "input_base64": "YQ=="}, ("input", "input_base64")),
    ({"argv": ["true"], "input_base64": "!!!"}, "input_base64"),
    ({"argv": ["true"], "timeout_seconds": 0}, "timeout_seconds"),
    ({"argv": ["true"], "timeout_seconds": "1"}, "timeout_seconds"),
    ({"argv": ["true"], "on_timeout": "explode"}, "on_timeout"),
    ({"argv": ["true"], "nosuch": True}, "nosuch"),
]
RUNS = COMMANDS + [
    ({"argv": ["true"], "timeout_seconds": 3601}, "timeout_seconds"),
    ({"argv": ["true"], "max_output_bytes": -1}, "max_output_bytes"),
    ({"argv": ["true"], "encoding": "latin1"}, "encoding"),
    ({"argv": ["true"], "stdin": "open"}, "stdin"),
]
STARTS = COMMANDS + [
    ({"argv": ["true"], "stdin": "maybe"}, "stdin"),
    ({"argv": ["true"], "spool_bytes": 1}, "spool_bytes"),
    ({"argv": ["true"], "on_full": "explode"}, "on_full"),
    ({"argv": ["true"], "max_output_bytes": -5}, "max_output_bytes"),
]


@pytest.mark.parametrize("body, field", RUNS, ids=lambda v: json.dumps(v)[:40])
def test_run(api, shared, body, field):
    check_field(field_of(api, "POST", f"/v1/sandboxes/{shared}/run", body), field)


@pytest.mark.parametrize("body, field", STARTS, ids=lambda v: json.dumps(v)[:40])
def test_commands(api, shared, body, field):
    check_field(field_of(api, "POST", f"/v1/sandboxes/{shared}/commands", body), field)


RUN_ONCE = [
    ({"argv": ["true"]}, "template"),
    ({"template": "base"}, ("argv", "shell")),
    ({"template": "base", "argv": ["true"], "files": {}}, "files"),
    ({"template": "base", "argv": ["true"], "files": [{}]}, "files"),
    ({"template": "base", "argv": ["true"], "files": [{"path": "a"}]}, "files"),
    ({"template": "base", "argv": ["true"], "files": [{"path": "a", "text": "x", "base64": "eA=="}]}, "files"),
    ({"template": "base", "argv": ["true"], "files": [{"path": "a", "base64": "%"}]}, "files"),
    ({"template": "base", "argv": ["true"], "files": [{"path": "", "text": "x"}]}, "files"),
    ({"template": "base", "argv": ["true"], "files": [{"path": "a\u0000", "text": "x"}]}, ("files", "body")),
    ({"template": "base", "argv": ["true"], "files": [{"path": "a", "text": "x", "mode": 1}]}, "files"),
    ({"template": "base", "argv": ["true"], "files": [{"path": "a", "text": "x" * 1048577}]}, "files"),
    ({"template": "base", "argv": ["true"], "keep": "yes"}, "keep"),
    ({"template": "base", "argv": ["true"], "vcpus": 99}, "vcpus"),
]


@pytest.mark.parametrize("body, field", RUN_ONCE, ids=lambda v: json.dumps(v)[:40])
def test_run_once(api, body, field):
    before = len(api.get("/v1/sandboxes", query={"limit": 1000})["items"])
    answer = api.ask("POST", "/v1/run", body)
    assert answer.status in (400, 413), answer
    check_field(answer.details["field"], field)
    assert len(api.get("/v1/sandboxes", query={"limit": 1000})["items"]) == before


def test_an_unknown_signal_is_refused(api, sandboxes):
    sandbox = sandboxes()["id"]
    process, _ = api.start(sandbox, ["sleep", "100"])
    path = f"/v1/sandboxes/{sandbox}/processes/{process['id']}/signal"
    for body, field in [({}, "signal"), ({"signal": "SIGNOSUCH"}, "signal"), ({"signal": 9}, "signal"),
                        ({"signal": "SIGTERM", "scope": "world"}, "scope"),
                        ({"signal": "SIGTERM", "nosuch": 1}, "nosuch")]:
        assert field_of(api, "POST", path, body) == field


@pytest.mark.parametrize("raw, field", [
    (b"", "body"), (b"{", "body"), (b"[]", "body"), (b"null", "body"), (b'"text"', "body"),
    (b'{"template": "base"} trailing', "body"), (b'{"template": "base", "template": "x"}', None),
    (b'{"template": "\xff"}', "body"), (b"\x00", "body"),
    (b'{"a":' * 5000 + b"1" + b"}" * 5000, None), (b'{"template": "base", "vcpus": 1e999}', None),
])
def test_a_body_that_is_no_json_object(api, raw, field):
    for path in ("/v1/sandboxes", "/v1/run", "/v1/keys"):
        answer = api.ask("POST", path, raw=raw, headers={"Content-Type": "application/json"})
        assert answer.status == 400, (path, answer)
        assert field is None or answer.details["field"] == field, (path, answer)


QUERIES = [
    ("/v1/sandboxes?limit=0", "limit"), ("/v1/sandboxes?limit=1001", "limit"), ("/v1/sandboxes?limit=x", "limit"),
    ("/v1/sandboxes?limit=", "limit"), ("/v1/sandboxes?limit=1&limit=2", "limit"),
    ("/v1/sandboxes?cursor=garbage", "cursor"), ("/v1/sandboxes?cursor=", "cursor"),
    ("/v1/sandboxes?state=flying", "state"), ("/v1/sandboxes?nosuch=1", "nosuch"),
    ("/v1/sandboxes?created_after=yesterday", "created_after"),
    ("/v1/sandboxes?created_before=2026-13-01T00:00:00Z", "created_before"),
    ("/v1/sandboxes?fields=id,nosuch", "fields"), ("/v1/sandboxes?fields=", "fields"),
    ("/v1/sandboxes?name=UPPER%20", "name"),
    ("/v1/operations?state=flying", "state"), ("/v1/operations?kind=flying", "kind"),
    ("/v1/operations?sandbox_id=x", "sandbox_id"), ("/v1/templates?limit=0", "limit"),
    ("/v1/keys?limit=0", "limit"), ("/v1/sandboxes?limit=%zz", "limit"),
]


@pytest.mark.parametrize("path, field", QUERIES, ids=lambda v: v)
def test_queries(api, path, field):
    assert field_of(api, "GET", path) == field


def test_every_kind_of_operation_is_a_filter(api):
    """Those that the API document names."""
    parameters = api.spec.document["paths"]["/v1/operations"]["get"]["parameters"]
    (kinds,) = [p["schema"]["enum"] for p in parameters if p.get("name") == "kind"]
    for kind in kinds:
        assert all(o["kind"] == kind for o in api.get("/v1/operations", query={"kind": kind})["items"])


@pytest.mark.parametrize("wait", ["-1", "301", "x", "", "1e9", "nan"])
def test_wait(api, shared, wait):
    assert field_of(api, "POST", f"/v1/sandboxes?wait={wait}", {"template": "base"}) == "wait"
    assert field_of(api, "DELETE", f"/v1/sandboxes/{shared}?wait={wait}") == "wait"


def test_ids_of_the_wrong_form_are_not_found(api, shared):
    for path, resource in [
        ("/v1/sandboxes/x", "sandbox"), ("/v1/sandboxes/sbxxxxxxxxxxxxxxxxxx", "sandbox"),
        ("/v1/sandboxes/..%2f..%2fetc", "sandbox"), (f"/v1/sandboxes/{shared.upper()}", "sandbox"),
        ("/v1/operations/opxxxxxxxxxxxxxxxxxx", "operation"), ("/v1/operations/x", "operation"),
        (f"/v1/sandboxes/{shared}/processes/x", "process"),
        (f"/v1/sandboxes/{shared}/processes/prxxxxxxxxxxxxxxxxxx", "process"),
        (f"/v1/sandboxes/{shared}/processes/prxxxxxxxxxxxxxxxxxx/result", "process"),
        ("/v1/sessions/x/events", "session"), ("/v1/sessions/sexxxxxxxxxxxxxxxxxx/events", "session"),
        ("/v1/sessions/sexxxxxxxxxxxxxxxxxx/output", "session"),
    ]:
        answer = api.ask("GET", path)
        assert (answer.status, answer.code) == (404, "not_found"), (path, answer)
        assert answer.details["resource"] == resource, (path, answer)
    assert api.ask("DELETE", "/v1/keys/kyxxxxxxxxxxxxxxxxxx").status == 404


PATCHES = [
    ({"name": "UP"}, "name"), ({"metadata": {"a": 1}}, "metadata"), ({"env": {"A=": "x"}}, "env"),
    ({"vcpus": 2}, "vcpus"), ({"lifecycle": {"idle_action": "hibernate"}}, "lifecycle.idle_action"),
    ({"lifecycle": {"timeout_seconds": 0}}, "lifecycle.timeout_seconds"), ({"state": "running"}, "state"),
]


@pytest.mark.parametrize("body, field", PATCHES, ids=lambda v: json.dumps(v)[:40])
def test_patch(api, shared, body, field):
    check_field(field_of(api, "PATCH", f"/v1/sandboxes/{shared}", body), field)


@pytest.mark.parametrize("query, field", [
    ("stream=stdlog", "stream"), ("offset=-1", "offset"), ("offset=x", "offset"), ("limit=0", "limit"),
    ("wait=301", "wait"), ("nosuch=1", "nosuch"),
])
def test_output_queries(api, shared, query, field):
    _, session = api.start(shared, ["true"])
    assert field_of(api, "GET", f"/v1/sessions/{session['id']}/output?{query}") == field


def test_event_ids_that_were_never_given(api, shared):
    process, session = api.start(shared, ["true"])
    api.result(shared, process["id"])
    for bad in ("garbage", "-1", "9" * 30, "99999999"):
        answer = api.ask("GET", f"/v1/sessions/{session['id']}/events", headers={"Last-Event-ID": bad})
        assert answer.status == 400, (bad, answer)
    assert field_of(api, "GET", f"/v1/sessions/{session['id']}/events?tail_bytes=-1") == "tail_bytes"


def test_idempotency_keys_of_the_wrong_form(api):
    for bad in ("", "x" * 256, "a\tb"):
        answer = api.ask("POST", "/v1/sandboxes", {"template": "base"}, headers={"Idempotency-Key": bad})
        assert answer.status == 400 and answer.details["field"].lower() == "idempotency-key", (bad, answer)


def test_what_cannot_be_executed_says_why(api, shared):
    for body, errno in [
        ({"argv": ["/nosuch/program"]}, "ENOENT"), ({"argv": ["nosuch-program"]}, "ENOENT"),
        ({"argv": ["/etc/passwd"]}, "EACCES"), ({"argv": ["true"], "cwd": "/nosuch"}, "ENOENT"),
        ({"argv": ["true"], "cwd": "/root"}, "EACCES"),
    ]:
        answer = api.ask("POST", f"/v1/sandboxes/{shared}/run", body)
        assert answer.status == 400 and answer.details["errno"] == errno, (body, answer)
    answer = api.ask("POST", f"/v1/sandboxes/{shared}/run", {"argv": ["true"], "user": "nosuch"})
    assert answer.status == 400 and answer.details["field"] == "user", answer


def test_argv_and_env_at_their_limits_work(api, shared):
    words = ["sh", "-c", "echo $#"] + ["x"] * 4093
    assert api.check_output(shared, words) == "4092\n"
    env = {f"V{i}": "x" for i in range(256)}
    assert api.check_output(shared, "env | grep -c '^V[0-9]'", env=env) == "256\n"


STRING, ALL = 131_071, 262_144  # bytes of one, and of all together


def shell_of(size, text="echo ${#BASH_EXECUTION_STRING}"):
    return text + " " * (size - len(text) - 1) + "#"


def test_as_many_bytes_as_there_may_be_work(api, shared):
    command = ["bash", "-c", "echo ${#1} ${#2} ${#3}", "z"]
    rest = ALL - len("".join(command)) - STRING
    env = {"A": "a" * (STRING - 2), "B": "b" * (STRING - 2), "C": ""}
    for more in ({}, {"env": env}):
        assert api.check_output(shared, command + ["x" * STRING, "y" * (rest - 9), "z" * 9], **more) == f"{STRING} {rest - 9} 9\n"
    assert api.check_output(shared, "echo ${#A} ${#B}", env=env) == f"{STRING - 2} {STRING - 2}\n"
    assert api.check_output(shared, shell_of(STRING)) == f"{STRING}\n"
    assert api.check_output(shared, shell_of(STRING), shell_state="long") == f"{STRING}\n"


@pytest.mark.parametrize("body, field", [
    ({"argv": ["true", "x" * (STRING + 1)]}, "argv"), ({"argv": ["x" * (STRING + 1)]}, "argv"),
    ({"argv": ["true"] + ["x" * 65_536] * 4}, "argv"),
    ({"shell": shell_of(STRING + 1)}, "shell"), ({"shell": shell_of(STRING + 1), "shell_state": "long"}, "shell"),
    ({"argv": ["true"], "env": {"A": "x" * (STRING - 1)}}, "env"),
    ({"argv": ["true"], "env": {f"V{i}": "x" * 65_536 for i in range(4)}}, "env"),
    ({"shell": "true", "shell_state": "long", "env": {"A" * 100_000: ""}}, "env"),
], ids=lambda v: v if isinstance(v, str) else json.dumps(v)[:30])
def test_a_byte_more_is_refused_by_field(api, shared, body, field):
    for verb in ("run", "commands"):
        assert field_of(api, "POST", f"/v1/sandboxes/{shared}/{verb}", body) == field
    if "shell_state" not in body or field != "env":  # there it is the sandbox's, which the wrapper does not name
        assert field_of(api, "POST", "/v1/run", {**body, "template": "base"}) == field


def test_a_variable_of_a_sandbox_has_the_same_limit(api, shared):
    body = {"env": {"A": "x" * (STRING - 1)}}
    assert field_of(api, "POST", "/v1/sandboxes", {**body, "template": "base"}) == "env"
    assert field_of(api, "PATCH", f"/v1/sandboxes/{shared}", body) == "env"
