"""docs/client.py: it works as it stands there, and over connections that break."""

import importlib.util
import os
import subprocess
import sys

import pytest

from harness.spec import ROOT

CLIENT = ROOT / "docs/client.py"


@pytest.fixture
def environment(installation):
    """What `space env` prints."""
    lines = installation.space("env").stdout.splitlines()
    return dict(line.removeprefix("export ").replace("'", "").split("=", 1) for line in lines if line.startswith("export "))


def test_it_runs_as_it_stands_there(environment, api):
    done = subprocess.run([sys.executable, "-S", CLIENT], env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "trouble\ntrouble\n"), done
    first, *lines = done.stdout.splitlines()
    steps = ["step 1", "step 2", "step 3"]
    assert lines == [*steps, "exit status 3", "once more, from the begin:", *steps, "6*7 = 42", "deleted"]
    assert api.ask("GET", f"/v1/sandboxes/{first.split()[1]}").status == 404


class Cut:
    """An answer whose connection breaks in the middle of the event behind the first output."""

    def __init__(self, answer):
        self.answer = answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.answer.close()

    def __iter__(self):
        outputs = 0
        for line in self.answer:
            outputs += line.startswith(b"event: output")
            yield line
            if outputs == 2:
                raise ConnectionResetError


def test_output_goes_on_where_a_connection_broke(environment, shared, monkeypatch, capsysbinary):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    made = importlib.util.spec_from_file_location("client", CLIENT)
    client = importlib.util.module_from_spec(made)
    made.loader.exec_module(client)
    monkeypatch.setattr(client, "PAUSE_S", 0)
    asked = []

    def ask(method, path, body=None, **headers):
        asked.append(headers)
        if len(asked) == 2:
            raise ConnectionRefusedError
        return Cut(whole(method, path, body, **headers)) if len(asked) == 3 else whole(method, path, body, **headers)

    whole = client.ask
    monkeypatch.setattr(client, "ask", ask)
    command = "for i in 1 2 3; do echo step $i; sleep 0.2; done"
    session = client.call("POST", f"/v1/sandboxes/{shared}/commands", {"shell": command})["session"]["id"]
    assert client.show(session)["exit_code"] == 0
    assert capsysbinary.readouterr().out == b"step 1\nstep 2\nstep 3\n"
    assert len(asked) == 4 and asked[3]["Last_Event_ID"].startswith("7-0-"), asked
    with pytest.raises(client.Refused) as refused:
        client.call("GET", "/v1/sandboxes/sb00000000000000none")
    assert refused.value.code == "not_found" and not refused.value.retryable
