"""What an ended process left can be read for the time of node.session_keep_minutes, over restarts of
both daemons, and not longer than its sandbox exists. Afterwards it is `gone`, not unknown."""

import json
import signal

import pytest

from harness import poll
from harness.http import ApiError

HOUR_MS = 3_600_000  # more is not kept: node.session_keep_minutes is 60


class Ended:
    """A process that has ended, and all that can be read of it."""

    def __init__(self, api, sandbox, word):
        self.api, self.sandbox = api, sandbox
        process, session = api.start(sandbox, f"echo {word}; echo {word}-err >&2; exit 3")
        self.session = session["id"]
        self.path = f"/v1/sandboxes/{sandbox}/processes/{process['id']}"
        assert api.result(sandbox, process["id"])["exit_code"] == 3
        self.stdout, self.stderr = f"{word}\n", f"{word}-err\n"

    def check_kept(self):
        result = self.api.get(f"{self.path}/result")
        assert (result["exit_code"], result["stdout"], result["stderr"]) == (3, self.stdout, self.stderr)
        assert self.api.get(self.path)["state"] == "exited"
        for stream in ("stdout", "stderr"):
            assert self.api.output(self.session, stream).decode() == getattr(self, stream)
        with self.api.events(self.session) as events:
            assert [e["data"]["exit_code"] for e in events if e["event"] == "process_exited"] == [3]

    def output_code(self):
        return self.api.ask("GET", f"/v1/sessions/{self.session}/output", query={"stream": "stdout"}).code

    def events_code(self):
        try:
            self.api.events(self.session).close()
        except ApiError as error:
            assert error.answer.status == 410
            return error.answer.code
        return None

    def is_gone(self):
        return self.output_code() == "gone" and self.events_code() == "gone"


def kill_daemons(installation):
    for program in ("space-node", "space-api"):
        installation.kill_daemon(program, signal.SIGKILL)
    installation.api.close()
    installation.wait_ready()


def let_an_hour_pass(folder, ended):
    """For this process, while the node is down: its record says when it ended."""
    path = folder / f"{ended.session}.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    for part, key in ((record, "started_at_ms"), (record, "exited_at_ms"), (record["start"], "created_at_ms")):
        part[key] -= HOUR_MS
    path.write_text(json.dumps(record), encoding="utf-8")


@pytest.mark.long
def test_results_and_output_are_kept_for_their_time_and_then_gone(api, installation):
    sandbox = api.create()["id"]
    old, young = Ended(api, sandbox, "old"), Ended(api, sandbox, "young")
    folder = installation.data / "volume/sandboxes" / sandbox / "sessions"
    for ended in (old, young):
        ended.check_kept()
    kill_daemons(installation)
    for ended in (old, young):
        ended.check_kept()

    installation.cli("down", "--keep-sandboxes")
    api.close()
    let_an_hour_pass(folder, old)
    installation.up()
    poll.until(old.is_gone, 30, "the output of an hour ago is gone")
    answer = api.ask("GET", f"{old.path}/result")
    assert (answer.status, answer.code) == (410, "gone")
    assert not list(folder.glob(f"{old.session}*")), "its files are there"
    young.check_kept()
    kill_daemons(installation)
    assert old.is_gone()
    young.check_kept()

    api.delete(sandbox)
    assert young.is_gone() and old.is_gone()
    for _ in range(2):
        answer = api.ask("GET", f"{young.path}/result")
        assert (answer.status, answer.code) == (410, "gone")
        kill_daemons(installation)
        assert young.is_gone() and old.is_gone()
