"""Commands of one shell state: directory and exported variables go from one to the next."""

import threading

import pytest


@pytest.fixture(scope="module")
def box(installation):
    sandbox = installation.api.create()["id"]
    yield sandbox
    installation.api.delete(sandbox)


def run(api, box, command, name="main", **more):
    return api.run(box, command, shell_state=name, **more)


def test_directory_and_exported_variables_are_kept(api, box):
    assert run(api, box, "cd /tmp; export A='one two' B=$'new\\nline \"quoted\" $x `y`'; unexported=1")["exit_code"] == 0
    seen = run(api, box, "pwd; printf '%s|%s|%s\\n' \"$A\" \"$B\" \"$unexported\"")
    assert seen["stdout"] == "/tmp\none two|new\nline \"quoted\" $x `y`|\n"
    assert api.check_output(box, "pwd; echo ${A-unset}") == "/home/user\nunset\n"


def test_names_are_apart(api, box):
    run(api, box, "cd /usr; export WHO=left", "left")
    run(api, box, "cd /var; export WHO=right", "right")
    assert run(api, box, "pwd; echo $WHO", "left")["stdout"] == "/usr\nleft\n"
    assert run(api, box, "pwd; echo $WHO", "right")["stdout"] == "/var\nright\n"


def test_an_unset_variable_stays_unset(api, box):
    run(api, box, "export GONE=1", "unset")
    run(api, box, "unset GONE HOME", "unset")
    assert run(api, box, "echo ${GONE-none}", "unset")["stdout"] == "none\n"


@pytest.mark.parametrize("command,code,signal", [
    ("false", 1, None), ("exit 7", 7, None), ("set -e; false; echo no", 1, None), ("(exit 9)", 9, None), ("true; cd /; exit", 0, None),
    ("kill -TERM $$", None, "SIGTERM"), ("nosuchcommand 2>/dev/null", 127, None), ("if", 2, None)])
def test_the_end_is_as_without_a_state(api, box, command, code, signal):
    plain = api.run(box, command)
    kept = run(api, box, command, "ends")
    assert (kept["exit_code"], kept["signal"]) == (code, signal) == (plain["exit_code"], plain["signal"])


def test_the_state_is_kept_over_an_exit_and_not_over_a_kill(api, box):
    run(api, box, "cd /usr; export N=1; exit 3", "exits")
    assert run(api, box, "pwd; echo $N", "exits")["stdout"] == "/usr\n1\n"
    run(api, box, "cd /var; export N=2; kill -KILL $$", "exits")
    assert run(api, box, "pwd; echo $N", "exits")["stdout"] == "/usr\n1\n"
    timed = run(api, box, "export N=3; sleep 60", "exits", timeout_seconds=0.3)
    assert timed["timed_out"] and run(api, box, "echo $N", "exits")["stdout"] == "1\n"


def test_the_state_is_kept_by_an_exit_with_a_trap_of_its_own(api, box):
    ended = run(api, box, "trap 'echo cleaned up' EXIT; cd /usr; export T=1; exit 3", "traps")
    assert (ended["exit_code"], ended["stdout"], ended["stderr"]) == (3, "cleaned up\n", "")
    assert run(api, box, "pwd; echo $T", "traps")["stdout"] == "/usr\n1\n"


def test_one_at_a_time_in_order(api, box):
    run(api, box, "export LOG=", "queue")
    threads = [threading.Thread(target=lambda: (run(api, box, "export LOG=$LOG.; sleep 0.05", "queue"), api.close()))
               for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert run(api, box, "echo ${#LOG}", "queue")["stdout"] == "12\n"


def test_a_waiting_one_starts_when_its_turn_comes(api, box):
    first, _ = api.start(box, "sleep 4730", shell_state="turns")
    second, session = api.start(box, "echo second", shell_state="turns")
    assert api.process(box, second["id"])["state"] == "starting"
    other = run(api, box, "echo free", "another")
    assert other["stdout"] == "free\n"
    api.post(f"/v1/sandboxes/{box}/processes/{first['id']}/kill")
    assert api.result(box, second["id"])["exit_code"] == 0
    assert api.output(session["id"]) == b"second\n"


def test_a_waiting_one_can_be_killed(api, box):
    first, _ = api.start(box, "sleep 4731", shell_state="killed")
    second, _ = api.start(box, "touch /tmp/ran-anyway", shell_state="killed")
    api.post(f"/v1/sandboxes/{box}/processes/{second['id']}/kill")
    api.post(f"/v1/sandboxes/{box}/processes/{first['id']}/kill")
    assert api.process(box, second["id"])["state"] in ("exited", "lost")
    assert run(api, box, "ls /tmp/ran-anyway", "killed")["exit_code"] != 0


def test_it_survives_restarts_of_the_daemons(api, installation, box):
    run(api, box, "cd /usr/lib; export LIVES=on", "restart")
    first, _ = api.start(box, "sleep 2; export LIVES=longer", shell_state="restart")
    second, session = api.start(box, "echo $LIVES", shell_state="restart")
    installation.kill_daemon("space-node")
    installation.wait_ready()
    assert api.result(box, second["id"])["exit_code"] == 0
    assert api.output(session["id"]) == b"longer\n"


def test_users_have_states_of_their_own(api, box):
    run(api, box, "export MINE=user", "shared-name")
    assert run(api, box, "echo ${MINE-nothing}; id -u", "shared-name", user="root")["stdout"] == "nothing\n0\n"


def test_what_is_asked_wins(api, box):
    run(api, box, "cd /usr; export V=state", "wins")
    assert run(api, box, "pwd; echo $V", "wins", cwd="/tmp", env={"V": "asked"})["stdout"] == "/tmp\nasked\n"


@pytest.mark.parametrize("body,field", [
    ({"argv": ["true"], "shell_state": "a"}, "shell_state"), ({"shell": "true", "shell_state": "no spaces"}, "shell_state"),
    ({"shell": "true", "shell_state": ""}, "shell_state"), ({"shell": "true", "shell_state": "x" * 65}, "shell_state"),
    ({"shell": "true", "shell_state": "../../etc"}, "shell_state"), ({"shell": "true", "shell_state": 7}, "shell_state")])
def test_bad_names(api, box, body, field):
    answer = api.ask("POST", f"/v1/sandboxes/{box}/run", body)
    assert answer.status == 400 and answer.details["field"] == field, answer
