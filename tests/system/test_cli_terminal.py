"""`space shell`, `exec -it` and `attach` against a stand-in of the API, each in a terminal of its own."""

import hashlib
import os
import signal
import subprocess

import pytest

import fake_api
from harness import poll
from harness.installation import space_binary
from harness.terminal import Terminal


@pytest.fixture
def api():
    made = fake_api.FakeApi()
    yield made
    made.close()


@pytest.fixture
def env(api, tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SPACE_")}
    return {**clean, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg"), "SPACE_URL": api.url,
            "SPACE_API_KEY": api.key, "TERM": "vt220", "SHELL": "/bin/bash", "PS1": "", "BASH_SILENCE_DEPRECATION_WARNING": "1"}


@pytest.fixture
def box(api):
    return api.create({"template": "base", "name": "box"})["id"]


@pytest.fixture
def run_in_terminal(env):
    made = []

    def run(*arguments, **more):
        made.append(Terminal(env, *arguments, **more))
        return made[-1]

    yield run
    for terminal in made:
        if terminal.child.poll() is None:
            terminal.child.kill()
            terminal.child.wait()


def test_shell_is_a_login_shell_with_size_and_term(run_in_terminal, box):
    terminal = run_in_terminal("shell", "box")
    terminal.type(b"stty size; echo T=$TERM; shopt -q login_shell && echo log-in; echo $((40+2))\n")
    terminal.read_until(b"33 91\r\n")
    terminal.read_until(b"T=vt220\r\n")
    terminal.read_until(b"log-in\r\n")
    terminal.read_until(b"42\r\n")
    assert terminal.is_raw()
    terminal.type(b"exit 7\n")
    assert terminal.end() == 7


def test_window_changes_reach_the_command(run_in_terminal, box):
    terminal = run_in_terminal("exec", "-it", "box", "--", "sh", "-c", "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done")
    terminal.read_until(b"ready")
    terminal.resize(123, 45)
    terminal.read_until(b"45 123")
    terminal.child.send_signal(signal.SIGTERM)
    assert terminal.end() == 143


def test_keys_go_through_as_they_are(run_in_terminal, box, api):
    terminal = run_in_terminal("exec", "-it", "box", "--", "sh", "-c", "stty raw -echo; echo ready; head -c 9 | od -An -tx1")
    terminal.read_until(b"ready")
    terminal.type(b"\x03\x04\x1a\x1c\x13\x11\r\x7f\xff")
    terminal.read_until(b"03 04 1a 1c 13 11 0d 7f ff")
    assert terminal.end() == 0


def test_control_c_interrupts_the_command_alone(run_in_terminal, box):
    terminal = run_in_terminal("shell", "box")
    terminal.type(b"sh -c \"echo rea''dy; exec sleep 1000\"\n")  # what says so is in the foreground
    terminal.read_until(b"ready\r\n")
    terminal.type(b"\x03")
    terminal.type(b"echo status=$?\n")
    terminal.read_until(b"status=130")
    terminal.type(b"exit 6\n")
    assert terminal.end() == 6


@pytest.mark.parametrize("command, status", [("exit 3", 3), ("kill -KILL $$", 137), ("sleep 0.1", 0)])
def test_exit_statuses(run_in_terminal, box, command, status):
    assert run_in_terminal("exec", "-it", "box", "--", "sh", "-c", command).end() == status


def test_timeout(run_in_terminal, box):
    terminal = run_in_terminal("exec", "-it", "--timeout", "0.3", "box", "--", "sleep", "100")
    terminal.read_until(b"space: timed out: the command was killed after 0.3 s (--timeout)\r\n")
    assert terminal.end() == 124


def test_what_cannot_run(run_in_terminal, box):
    terminal = run_in_terminal("exec", "-it", "box", "--", "/nosuch")
    assert terminal.end() == 125


def test_broken_connections_lose_and_repeat_nothing(run_in_terminal, box, api):
    api.faults["cut_attach"] = 6
    terminal = run_in_terminal("exec", "-it", "box", "--", "sh", "-c", "stty -opost; seq 1 30000; echo the-end")
    seen = terminal.read_until(b"the-end", 60)
    assert terminal.end() == 0 and api.faults["cut_attach"] == 0
    assert seen.count(b"connection lost") == 6 and b"connected again" in seen
    for said in (b"\r\nspace: connection lost, trying again (Ctrl-C leaves) \xe2\x80\xa6\r\n", b"\r\nspace: connected again\r\n"):
        seen = seen.replace(said, b"")
    assert seen == b"".join(b"%d\n" % i for i in range(1, 30001))


def test_input_is_exact_over_broken_connections(run_in_terminal, box, api):
    data = b"".join(b"%06d " % i for i in range(30_000))
    terminal = run_in_terminal("exec", "-it", "box", "--", "sh", "-c",
                               f"stty raw -echo; echo ready; head -c {len(data)} | sha256sum")
    terminal.read_until(b"ready")
    api.faults["cut_input"] = 5
    for start in range(0, len(data), 3000):
        terminal.type(data[start:start + 3000])
    terminal.read_until(hashlib.sha256(data).hexdigest().encode(), 60)
    assert terminal.end() == 0 and api.faults["cut_input"] == 0


def test_a_restart_of_the_api(run_in_terminal, box, api):
    terminal = run_in_terminal("shell", "box")
    terminal.type(b"x=kept; echo rea''dy\n")
    terminal.read_until(b"ready\r\n")
    api.stop()
    terminal.read_until(b"connection lost")
    terminal.type(b"echo $x-$((40+2))\n")
    poll.until(terminal.has_taken_all, 10, "it has read what was typed without a connection")
    api.start()
    terminal.read_until(b"connected again")
    terminal.read_until(b"kept-42\r\n")
    terminal.type(b"exit 5\n")
    assert terminal.end() == 5


def test_control_c_leaves_while_there_is_no_connection(run_in_terminal, box, api):
    terminal = run_in_terminal("shell", "box")
    terminal.type(b"echo rea''dy\n")
    terminal.read_until(b"ready\r\n")
    api.stop()
    terminal.read_until(b"connection lost")
    terminal.type(b"\x03")
    assert terminal.end() == 130
    assert b"space attach pr" in terminal.seen
    api.start()


def test_the_escape_leaves_it_running_and_attach_returns(run_in_terminal, box, api):
    terminal = run_in_terminal("shell", "box")
    terminal.type(b"x=kept; echo rea''dy\n")
    terminal.read_until(b"ready\r\n")
    terminal.type(b"echo a~.b; echo ~~\r~~tilde\r")  # no escapes: not at the beginning, or doubled
    terminal.read_until(b"a~.b\r\n")
    terminal.type(b"~.")
    assert terminal.end() == 0
    (process,) = api.processes.values()
    assert not process.ended and f"space attach {process.id}".encode() in terminal.seen
    assert b"~tilde" in api.typed and b"~~tilde" not in api.typed
    again = run_in_terminal("attach", process.id)
    again.type(b"echo $x-again\n")
    again.read_until(b"kept-again\r\n")
    again.type(b"exit 4\n")
    assert again.end() == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_hangs_up_and_restores(run_in_terminal, box, api, number):
    terminal = run_in_terminal("shell", "box")
    terminal.type(b"echo rea''dy\n")
    terminal.read_until(b"ready\r\n")
    terminal.child.send_signal(number)
    assert terminal.end() == 128 + number
    (process,) = api.processes.values()
    api.wait_for(lambda: process.ended)
    assert process.signal == "SIGHUP"


def test_a_signal_ends_it_though_the_command_does_not(run_in_terminal, box, api):
    terminal = run_in_terminal("exec", "-it", "box", "--", "sh", "-c", "trap '' HUP; echo ready; while :; do sleep 0.1; done")
    terminal.read_until(b"ready")
    terminal.child.send_signal(signal.SIGTERM)
    assert terminal.end() == 143


def test_stopped_and_continued(run_in_terminal, box):
    terminal = run_in_terminal("shell", "box")
    terminal.type(b"echo rea''dy\n")
    terminal.read_until(b"ready\r\n")
    terminal.child.send_signal(signal.SIGTSTP)
    poll.until(lambda: not terminal.is_raw(), 10, "the terminal is as it was while stopped")
    terminal.child.send_signal(signal.SIGCONT)
    poll.until(terminal.is_raw, 10, "the terminal is raw again")
    terminal.type(b"exit 2\n")
    assert terminal.end() == 2


def test_a_terminal_without_input(run_in_terminal, box, api):
    terminal = run_in_terminal("exec", "-t", "box", "--", "sh", "-c", "test -t 1 && echo terminal; exec sleep 1000")
    terminal.read_until(b"terminal\r")
    assert not terminal.is_raw()
    terminal.type(b"\x03")  # the signal comes from our own terminal
    terminal.read_until(b"^C")
    assert terminal.end() == 130
    (process,) = api.processes.values()
    assert process.signal == "SIGINT"


def test_run_with_a_terminal_deletes_its_sandbox(run_in_terminal, api):
    terminal = run_in_terminal("run", "-it", "base", "--", "sh", "-c", "test -t 0 && echo yes; read line; exit 6")
    terminal.read_until(b"yes\r\n")
    terminal.type(b"go\n")
    assert terminal.end() == 6 and not api.sandboxes


def test_a_process_that_is_gone(run_in_terminal, box, api):
    terminal = run_in_terminal("shell", "box")
    terminal.type(b"echo rea''dy\n")
    terminal.read_until(b"ready\r\n")
    process = next(iter(api.processes.values()))
    api.stop()
    api.processes.clear()
    api.start()
    assert terminal.end() == 125 and b"not_found" in terminal.seen
    process.kill()


# ---- without a terminal ----

def space(env, *arguments, **more):
    return subprocess.run([space_binary(), *arguments], env=env, text=True, capture_output=True, check=False, timeout=60, **more)


def test_a_shell_without_a_terminal_reads_commands(env, box):
    done = space(env, "shell", "box", input="echo out; echo err >&2; tty; exit 9\n")
    assert (done.returncode, done.stdout, done.stderr) == (9, "out\nnot a tty\n", "err\n")


def test_a_terminal_for_a_pipe(env, box):
    done = space(env, "exec", "-it", "box", "--", "true", input="")
    assert done.returncode == 2 and "no terminal" in done.stderr
    done = space(env, "exec", "-t", "box", "--", "sh", "-c", "tty >/dev/null && stty size")
    assert (done.returncode, done.stdout) == (0, "24 80\n")


def test_detached_with_a_terminal(env, box, api):
    done = space(env, "exec", "-dt", "box", "--", "sh", "-c", "test -t 0 && exit 3")
    process = api.processes[done.stdout.strip()]
    api.wait_for(lambda: process.ended)
    assert process.code == 3 and space(env, "exec", "-t", "--json", "box", "true").returncode == 2


def test_attach_without_a_terminal(env, box, api):
    process = space(env, "exec", "-d", "-i", "box", "--", "sh", "-c", "echo before; read a; read b; echo got $a $b; exit 8").stdout.strip()
    api.wait_for(lambda: api.processes[process].spools["stdout"])
    assert space(env, "attach", "--tail", "3", "-i", "box", process, input="one\ntwo\n").stdout == "re\ngot one two\n"
    done = space(env, "attach", process)
    assert done.returncode == 8 and "got one two" in done.stdout
