"""kill -9 of the daemons at many moments of pause and wake: definite afterwards, retry works, nothing lost."""

import threading
import time

import pytest

from harness import poll

from test_pause import COUNTER, pause, state, wake


@pytest.mark.parametrize("program", ["space-node", "space-api"])
def test_kill_9_at_any_moment_of_pause_and_wake(api, installation, sandboxes, program):
    sandbox = sandboxes()["id"]
    process, session = api.start(sandbox, COUNTER)
    for i in range(8):  # each death of a daemon is followed by a longer pause of its supervisor
        verb = ("pause", "wake")[i % 2]
        client = api.as_key(api.key)
        thread = threading.Thread(target=lambda v=verb, c=client: attempt(c, sandbox, v))
        thread.start()
        time.sleep(0.003 * (i // 2))
        installation.kill_daemon(program)
        thread.join(60)
        client.close()
        api.close()
        installation.wait_ready()
        settled = poll.until(lambda: state(api, sandbox) in ("running", "paused") and state(api, sandbox), 60, "a definite state")
        assert settled in ("running", "paused")
        done = (pause if verb == "pause" else wake)(api, sandbox)
        assert done["sandbox"]["state"] == {"pause": "paused", "wake": "running"}[verb], (i, done)
    assert api.check_output(sandbox, "echo alive") == "alive\n"
    api.post(f"/v1/sandboxes/{sandbox}/processes/{process['id']}/kill")
    lines = api.output(session["id"]).decode().split()
    assert lines == [str(n) for n in range(1, len(lines) + 1)]


def attempt(client, sandbox, verb):
    try:
        client.ask("POST", f"/v1/sandboxes/{sandbox}/{verb}", query={"wait": 10}, check=False)
    except OSError:
        pass
