"""Forks, on real VMs: what goes on in the children, what is their own, sources that rest."""

import pytest

from harness import clock, poll
from harness.attach import Attached
from harness.checkpoints import SECRETS, SOCKET, SQLITE, is_row

MIB_OF_DISK = "head -c 1M /dev/urandom | tee /home/user/file | sha256sum"


@pytest.fixture
def fork(api):
    made = []

    def make(sandbox, **body):
        answer = api.expect(201, "POST", f"/v1/sandboxes/{sandbox}/fork", body, query={"wait": 120}).json
        assert answer["operation"]["kind"] == "fork" and answer["sandbox"]["id"] == sandbox
        children = answer["operation"]["result"]["children"]
        made.extend(child["sandbox_id"] for child in children)
        return children

    make.made = made
    yield make
    for sandbox in made:
        api.expect((200, 404), "DELETE", f"/v1/sandboxes/{sandbox}", query={"wait": 60})


def output(api, session):
    return api.expect(200, "GET", f"/v1/sessions/{session}/output").body


def running(api, sandbox):
    """Its running processes by the program's text."""
    found = api.get(f"/v1/sandboxes/{sandbox}/processes")["items"]
    return {p["argv"][-1]: p for p in found if p["state"] == "running"}


def counts(api, session):
    """Whether the numbers go on, none lost or twice."""
    end = len(output(api, session))
    poll.until(lambda: len(output(api, session)) > end + 8, 60, "it counts on")
    data = output(api, session)
    return is_row(data[:data.rfind(b"\n")].decode().split())


def assert_closed(api, tokens, child, sessions):
    """None of the source's tokens opens the child, or a session that it has inherited."""
    for token in tokens:
        mine = api.as_key(token)
        for session in sessions:
            assert mine.ask("GET", f"/v1/sessions/{session}/output").status == 403
            answer = mine.ask("POST", "/v1/tokens", {"sandbox_id": child, "session_id": session})
            assert answer.status == 403, answer
        for method, path in (("GET", ""), ("POST", "/run"), ("GET", "/processes"), ("GET", "/ports")):
            answer = mine.ask(method, f"/v1/sandboxes/{child}{path}", {"argv": ["true"]} if method == "POST" else None)
            assert answer.status == 403, (path, answer)
        mine.close()


def hidden(installation):
    return [p.name for p in (installation.data / "volume/checkpoints").iterdir()]


def test_children_go_on_and_share_no_secret(api, installation, sandboxes, fork):
    source = sandboxes(env={"KEPT": "1", "CHANGED": "no"}, metadata={"team": "a"})["id"]
    api.start(source, ["python3", "-c", SOCKET])
    _, talk = api.start(source, ["python3", "-q"], tty={"cols": 80, "rows": 24, "term": "dumb"})
    with Attached(api, talk["id"]) as terminal:
        terminal.read_until(b">>> ")
        terminal.write(b"kept = 6 * 7\n")
        terminal.read_until(b">>> ", after=b"7")
    _, base = api.start(source, ["python3", "-c", SQLITE], stdin="open")
    poll.until(lambda: b"open" in output(api, base["id"]), 60, "the transaction is open")
    at = len(output(api, running(api, source)[SOCKET]["session_id"]))

    tokens = [talk["token"], api.post("/v1/tokens", {"sandbox_id": source, "access": "write"}, status=201)["token"]]
    clock.set_back(api, source)
    children = fork(source, count=2, env={"CHANGED": "yes"})
    assert [child["error"] for child in children] == [None, None]
    secrets = [api.run(source, ["python3", "-c", SECRETS])["stdout"].split()]
    for child in children:
        record, made = child["sandbox"], child["sandbox_id"]
        assert record["id"] == made and record["parent_id"] == source and record["state"] == "running"
        assert record["metadata"] == {"team": "a"} and sorted(record["env_names"]) == ["CHANGED", "KEPT"]
        assert all(record["identity"][part] for part in ("entropy", "clock", "hostname", "machine_id", "tokens"))
        assert clock.seconds_off(api, made) <= 0.05, "what was captured was an hour behind"
        assert api.check_output(made, "echo $KEPT $CHANGED; hostname") == f"1 yes\n{made}\n"
        secrets.append(api.run(made, ["python3", "-c", SECRETS])["stdout"].split())
        mine = running(api, made)
        assert_closed(api, tokens, made, [p["session_id"] for p in mine.values()])
        assert set(mine) == {SOCKET, "-q", SQLITE}
        assert {p["id"] for p in mine.values()}.isdisjoint(p["id"] for p in running(api, source).values())
        assert len(output(api, mine[SOCKET]["session_id"])) >= at - 8, "with the output so far"
        assert counts(api, mine[SOCKET]["session_id"])
        with Attached(api, mine["-q"]["session_id"]) as terminal:
            terminal.write(b"print('kept', kept)\n")
            terminal.read_until(b"kept 42")
        api.expect(200, "POST", f"/v1/sandboxes/{made}/processes/{mine[SQLITE]['id']}/stdin", raw=b"go\n")
        poll.until(lambda: b"kept 42" in output(api, mine[SQLITE]["session_id"]), 60, "the transaction ends")
    for opened in (f"/v1/sessions/{talk['id']}/output", f"/v1/sessions/{base['id']}/output"):
        assert api.as_key(tokens[1]).ask("GET", opened).status == 200, "they are good for the source"
    assert api.as_key(tokens[0]).ask("GET", f"/v1/sessions/{talk['id']}/output").status == 200
    for values in zip(*secrets):
        assert len(set(values)) == 3, f"all different: {values}"
    assert counts(api, running(api, source)[SOCKET]["session_id"])
    assert api.get(f"/v1/sandboxes/{source}/checkpoints")["items"] == []
    poll.until(lambda: hidden(installation) == [], 30, "the checkpoint is gone")


def test_sources_that_rest_and_the_command_line(api, installation, sandboxes, fork):
    source = sandboxes(name="root")["id"]
    wanted = api.check_output(source, MIB_OF_DISK)
    for verb, state in (("pause", "paused"), ("suspend", "suspended")):
        api.post(f"/v1/sandboxes/{source}/{verb}", query={"wait": 60})
        ids = installation.space("fork", "root", "--count", "2", "--metadata", f"of={state}").stdout.split()
        fork.made.extend(ids)
        assert len(ids) == 2 and len(set(ids)) == 2
        assert api.get(f"/v1/sandboxes/{source}")["state"] == state, "it is not woken for that"
        for made in ids:
            assert api.sandbox(made)["metadata"] == {"of": state}
            assert api.check_output(made, "sha256sum < /home/user/file") == wanted
    child, = fork(source, name="leaf")
    assert child["sandbox"]["name"] == "leaf" and api.check_output(child["sandbox_id"], "hostname") == "leaf\n"
    refused = api.ask("POST", f"/v1/sandboxes/{source}/fork", {"name": "leaf"})
    assert refused.status == 409 and refused.code == "conflict" and refused.details["sandbox_id"] == child["sandbox_id"]
    grandchild, = fork(child["sandbox_id"])
    assert grandchild["sandbox"]["parent_id"] == child["sandbox_id"]
    assert api.check_output(grandchild["sandbox_id"], "sha256sum < /home/user/file") == wanted
    poll.until(lambda: hidden(installation) == [], 30, "the checkpoints are gone")
