"""The CLI against a stand-in of the API: what it sends, and how it bears a bad connection."""

import hashlib
import json
import os
import pathlib
import pty
import re
import signal
import stat
import subprocess

import pytest

import fake_api
from harness import machine
from harness.installation import space_binary


@pytest.fixture
def api():
    made = fake_api.FakeApi()
    yield made
    made.close()


@pytest.fixture
def env(api, tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SPACE_")}
    return {**clean, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg"), "SPACE_URL": api.url,
            "SPACE_API_KEY": api.key}


@pytest.fixture
def space(env):
    def run(*arguments, **more):
        more.setdefault("env", env)
        more.setdefault("text", True)
        return subprocess.run([space_binary(), *arguments], capture_output=True, check=False, timeout=60, **more)
    return run


@pytest.fixture
def box(api):
    return api.create({"template": "base", "name": "box"})["id"]


def start(env, *arguments, **more):
    return subprocess.Popen([space_binary(), *arguments], env=env, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **more)


# ---- run and exec ----

@pytest.mark.parametrize("verb", ["ls", "version", "help"])
def test_a_closed_standard_output_is_no_connection(env, verb):
    """What is opened next would take its number, and the answer go there."""
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", space_binary(), verb], env=env, text=True,
                          stderr=subprocess.PIPE, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, "space: cannot write the answer: Bad file descriptor\n")


def test_exec_passes_streams_and_status_on(space, box):
    done = space("exec", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert space("exec", box, "true").returncode == 0


@pytest.mark.parametrize("command, status", [("exit 0", 0), ("exit 255", 255), ("kill -KILL $$", 137), ("kill -TERM $$", 143)])
def test_exec_statuses(space, box, command, status):
    assert space("exec", box, "--", "sh", "-c", command).returncode == status


def test_exec_timeout(space, box, api):
    done = space("exec", "--timeout", "0.2", box, "--", "sleep", "100")
    assert (done.returncode, done.stderr) == (124, "timed out: the command was killed after 0.2 s (--timeout)\n")
    assert api.requests[-2][2]["timeout_seconds"] == 0.2


def test_what_cannot_run_is_ours(space, box):
    done = space("exec", box, "--", "/nosuch")
    assert done.returncode == 125 and "invalid_request" in done.stderr and "ENOENT" in done.stderr
    assert space("exec", "nosuch", "--", "true").returncode == 125


def test_exec_sends_its_options(space, box, api, tmp_path):
    space("exec", "-e", "A=1", "-eB=2=3", "-w", str(tmp_path), "-u", "root", "--timeout", "2m", box, "--", "true")
    body = next(b for m, p, b, _ in api.requests if p.endswith("/commands"))
    assert body == {"argv": ["true"], "timeout_seconds": 120.0, "cwd": str(tmp_path), "user": "root",
                    "env": {"A": "1", "B": "2=3"}, "stdin": "closed"}


def test_a_broken_stream_is_taken_up_where_it_broke(space, box, api):
    api.faults["cut_events"] = 5
    done = space("exec", box, "--", "sh", "-c", "seq 1 20000; echo end >&2")
    assert done.returncode == 0
    assert done.stdout == "".join(f"{i}\n" for i in range(1, 20001))
    assert done.stderr == "end\n" and api.faults["cut_events"] == 0
    assert [h.get("Last-Event-ID") for m, p, _, h in api.requests if p.endswith("/events")][1] == "2"


def test_a_stream_refused_for_a_while_is_asked_again(space, box, api):
    child = start({**os.environ, "SPACE_URL": api.url, "SPACE_API_KEY": api.key}, "exec", box, "--", "sh", "-c", "echo hi")
    assert child.wait(30) == 0 and child.stdout.read() == "hi\n"
    api.faults["cut_events"] = 1
    process = space("exec", "-d", box, "--", "sh", "-c", "seq 1 3000; sleep 0.3; echo done").stdout.strip()
    child = start({**os.environ, "SPACE_URL": api.url, "SPACE_API_KEY": api.key}, "logs", "--follow", process)
    api.wait_for(lambda: api.faults["cut_events"] == 0)
    api.faults["refuse"] = 1
    assert child.wait(30) == 0
    assert child.stdout.read().endswith("3000\ndone\n")


def test_a_stream_that_is_over_is_not_asked_for_again(space, box, api):
    """The end was in what was cut, and behind the last id is nothing."""
    process = space("exec", "-d", box, "--", "sh", "-c", "seq 1 3000").stdout.strip()
    api.faults["cut_events"] = api.faults["over"] = 1
    done = space("logs", "--follow", process)
    assert done.returncode == 1 and "its end was not said" in done.stderr
    assert sum(p.endswith("/events") for _, p, _, _ in api.requests) == 2


def test_a_session_that_is_gone_ends_it(space, box, api):
    process = space("exec", "-d", box, "--", "true").stdout.strip()
    session = api.processes[process].session
    api.processes.clear()
    done = space("logs", "--follow", session)
    assert done.returncode == 1 and "not_found" in done.stderr


def test_dropped_output_is_said(space, box, api):
    process = space("exec", "-d", box, "--", "seq", "1", "1000").stdout.strip()
    api.wait_for(lambda: api.processes[process].ended)
    api.processes[process].starts["stdout"] = 1000
    whole = api.processes[process].spools["stdout"]
    done = space("logs", process)
    assert done.returncode == 0 and "no longer there" in done.stderr
    assert whole.endswith(done.stdout.encode()) and 0 < len(done.stdout) < len(whole)


def test_ctrl_c_is_passed_on_and_then_kills(env, box, api):
    child = start(env, "exec", box, "--", "sh", "-c", "trap 'echo caught' INT; echo ready; while :; do sleep 0.05; done")
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "caught\n"
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    assert next(iter(api.processes.values())).signal == "SIGKILL"


def test_one_ctrl_c_is_enough_for_most(env, box, api):
    child = start(env, "exec", box, "--", "sh", "-c", "echo ready; exec sleep 1000")
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    assert next(iter(api.processes.values())).signal == "SIGINT"


def test_a_terminated_cli_terminates_the_command(env, box, api):
    child = start(env, "exec", box, "--", "sh", "-c", "echo ready; exec sleep 1000")
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    assert child.wait(20) == 143
    assert next(iter(api.processes.values())).signal == "SIGTERM"


def test_a_reader_that_goes_away_ends_the_command(env, box, api):
    child = start(env, "exec", box, "--", "yes")
    assert child.stdout.readline() == "y\n"
    child.stdout.close()
    assert child.wait(20) == 141
    api.wait_for(lambda: next(iter(api.processes.values())).ended)


def test_a_stuck_reader_does_not_hold_signals_up(env, box, api):
    child = start(env, "exec", box, "--", "yes")
    assert child.stdout.readline() == "y\n"
    process = next(iter(api.processes.values()))
    api.wait_for(lambda: len(process.spools["stdout"]) > 1 << 20)
    for _ in range(3):  # for the command, its tree, and the CLI itself
        child.send_signal(signal.SIGINT)
        api.wait_for(lambda: child.poll() is not None or int(machine.status(child.pid)["ShdPnd"], 16) == 0)
    assert child.wait(20) == 130
    api.wait_for(lambda: process.ended)


# ---- standard input ----

def test_standard_input_is_exact(space, box, api):
    data = os.urandom(700_000)
    api.faults.update(lose_answers=3, short_stdin=2)
    done = space("exec", "-i", box, "--", "sha256sum", input=data, text=False)
    assert done.returncode == 0
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_empty_standard_input(space, box):
    done = space("exec", "-i", box, "--", "wc", "-c", input="")
    assert (done.returncode, done.stdout.strip()) == (0, "0")


def test_a_command_that_does_not_read(space, box):
    done = space("exec", "-i", box, "--", "sh", "-c", "exec <&-; echo no thanks", input="x" * 300_000)
    assert (done.returncode, done.stdout) == (0, "no thanks\n")


# ---- run ----

def test_run_makes_and_deletes(space, api):
    done = space("run", "-e", "A=b", "--memory", "1g", "--", "sh", "-c", "echo $A")
    assert (done.returncode, done.stdout) == (0, "b\n")
    assert not api.sandboxes
    body = next(b for m, p, b, _ in api.requests if m == "POST" and p.startswith("/v1/sandboxes?"))
    assert body["template"] == "base" and body["memory_mib"] == 1024 and body["name"].startswith("run-")


def test_run_keeps_when_asked(space, api):
    assert space("run", "base", "--keep", "--name", "kept", "--", "false").returncode == 1
    assert [s["name"] for s in api.sandboxes.values()] == ["kept"]


def test_run_deletes_after_ctrl_c_and_failure(space, env, api):
    child = start(env, "run", "--", "sh", "-c", "echo ready; exec sleep 1000")
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    assert not api.sandboxes
    assert space("run", "--", "/nosuch").returncode == 125
    assert not api.sandboxes


@pytest.mark.long
def test_run_deletes_what_a_dead_api_made(env, api):
    api.faults["die_after_create"] = 1
    child = start(env, "run", "--name", "left", "--", "true")
    line = child.stderr.readline()
    while "cannot be deleted yet" not in line:
        assert line, "it ended"
        line = child.stderr.readline()
    assert "left" in line and api.sandboxes
    api.start()
    assert child.wait(30) == 125
    assert not api.sandboxes and "is deleted" in child.stderr.read()


@pytest.mark.long
def test_run_says_what_it_leaves(env, api):
    api.faults["die_after_create"] = 1
    child = start(env, "run", "--name", "left", "--", "true")
    line = child.stderr.readline()
    while "cannot be deleted yet" not in line:
        line = child.stderr.readline()
    child.send_signal(signal.SIGINT)
    assert child.wait(30) == 125
    assert "`space rm left`" in child.stderr.read() and api.sandboxes


def test_run_leaves_nothing_to_say_when_nothing_was_sent(space, env):
    done = space("run", "--", "true", env={**env, "SPACE_URL": "http://127.0.0.1:9"})
    assert done.returncode == 125 and "may be left" not in done.stderr


def test_run_as_json_is_one_call(space, api):
    done = space("run", "base", "--json", "--", "sh", "-c", "echo out; exit 3")
    answer = json.loads(done.stdout)
    assert done.returncode == 3 and answer["stdout"] == "out\n" and answer["exit_code"] == 3
    assert [p for m, p, _, _ in api.requests] == ["/v1/run"]


# ---- sandboxes, processes, keys ----

def test_a_lost_answer_is_asked_for_again_with_the_same_key(space, api):
    api.faults["lose_answers"] = 1
    done = space("create", "base", "--name", "once")
    assert done.returncode == 0
    assert list(api.sandboxes) == [done.stdout.strip()]
    keys = [h["Idempotency-Key"] for m, p, _, h in api.requests if m == "POST"]
    assert len(keys) == 2 and keys[0] == keys[1]


def test_create_prints_only_the_id(space, api):
    done = space("create", "base", "--vcpus", "2", "--disk", "8g", "--metadata", "team=a", "--lifetime", "2h")
    assert list(api.sandboxes) == done.stdout.split() and done.stderr == ""
    body = api.requests[0][2]
    assert body == {"template": "base", "vcpus": 2, "disk_mib": 8192, "metadata": {"team": "a"},
                    "lifecycle": {"timeout_seconds": 7200.0, "timeout_action": "delete"}}


def test_create_sends_the_rules_of_its_options(space, api):
    space("create", "base", "--idle-timeout", "90m", "--idle-action", "delete", "--no-auto-wake")
    space("create", "base", "--idle-timeout", "30", "--idle-action", "suspend", "--keep-suspended", "30d")
    space("create", "base", "--idle-timeout", "none")
    assert [r[2]["lifecycle"] for r in api.requests if r[0] == "POST"] == [
        {"idle_timeout_seconds": 5400.0, "idle_action": "delete", "auto_wake": False},
        {"idle_timeout_seconds": 30.0, "idle_action": "suspend", "keep_suspended_seconds": 2592000.0},
        {"idle_timeout_seconds": None}]


def test_lists_are_whole(space, api):
    for i in range(1203):
        api.create({"template": "base", "name": f"n{i}"})
    listed = json.loads(space("ls", "--json").stdout)
    assert len(listed["items"]) == 1203 and listed["next_cursor"] is None
    assert len(space("ls", "-q").stdout.split()) == 1203
    assert len(space("ls", "-q", "--limit", "7").stdout.split()) == 7


def test_ls_sends_its_filters(space, api):
    space("ls", "--state", "running", "--state", "error", "--template", "a b", "--metadata", "team=x&y")
    assert api.requests[0][1] == "/v1/sandboxes?template=a%20b&state=running&state=error&metadata.team=x%26y&limit=1000"


def test_names_from_a_guest_cannot_steer_the_terminal(space, box, api):
    space("exec", "-d", box, "--", "sh", "-c", "exit 0", "\x1b[2Jevil")
    shown = space("ps", box).stdout
    assert "\x1b" not in shown and "\\x1b[2Jevil" in shown


def test_rm_takes_names_and_goes_on_after_a_failure(space, api, box):
    other = api.create({"template": "base", "name": "other"})["id"]
    done = space("rm", "--yes", "nosuch", "box", other)
    assert done.returncode == 1 and "not_found" in done.stderr
    assert not api.sandboxes


def test_json_is_one_document_of_what_the_api_answered(space, api, tmp_path):
    """One word gives the answer itself, several a list; an answer that came early is told as it is at the end."""
    one, two, three = (api.create({"template": "base"})["id"] for _ in range(3))
    done = json.loads(space("pause", "--json", one).stdout)
    assert (done["sandbox"]["id"], done["sandbox"]["state"], done["operation"]["state"]) == (one, "paused", "succeeded")
    some = space("pause", "--json", one, "nosuch", two)
    assert some.returncode == 1 and "not_found" in some.stderr
    some = json.loads(some.stdout)
    assert [item["sandbox"]["id"] for item in some["items"]] == [one, two] and some["next_cursor"] is None
    none = space("pause", "--json", "nosuch")
    assert (none.returncode, none.stdout) == (1, "")
    processes = [space("exec", "-d", one, "--", "sleep", "1000").stdout.strip() for _ in range(4)]
    assert json.loads(space("signal", "--json", processes[0], "TERM").stdout) == {}
    assert json.loads(space("kill", "--json", processes[1]).stdout) == {"killed": True}
    assert [item["killed"] for item in json.loads(space("kill", "--json", one, *processes[2:]).stdout)["items"]] == [True, True]
    assert space("keys", "create", "--out", str(tmp_path / "key"), "ci").returncode == 0
    assert json.loads(space("keys", "rm", "--json", "ci").stdout)["name"] == "ci"
    removed = json.loads(space("rm", "--json", "--yes", one).stdout)["sandbox"]
    assert (removed["id"], removed["state"]) == (one, "deleting")
    assert len(json.loads(space("rm", "--json", "--yes", two, three).stdout)["items"]) == 2


def test_rm_asks_on_a_terminal(env, api, box):
    for answer, left in ((b"n\n", 1), (b"y\n", 0)):
        master, slave = pty.openpty()
        child = subprocess.Popen([space_binary(), "rm", "box"], env=env, stdin=slave, stdout=slave, stderr=slave)
        seen = b""
        while b"[y/N]" not in seen:
            seen += os.read(master, 1000)
        os.write(master, answer)
        assert child.wait(20) == (1 if left else 0)
        os.close(slave)
        os.close(master)
        assert len(api.sandboxes) == left


def test_process_verbs_with_and_without_the_sandbox(space, box, api):
    for words in ((), (box,), ("box",)):
        process = space("exec", "-d", box, "--", "sh", "-c", "echo hi; exec sleep 1000").stdout.strip()
        api.wait_for(lambda p=process: api.processes[p].spools["stdout"])
        assert space("logs", *words, process).stdout == "hi\n"
        assert space("logs", "--tail", "2", *words, process).stdout == "i\n"
        assert space("signal", *words, process, "hup").returncode == 0
        api.wait_for(lambda p=process: api.processes[p].ended)
        assert api.processes[process].signal == "SIGHUP"
        assert space("kill", *words, process).returncode == 0
    assert space("kill", "box").returncode == 2
    assert space("signal", process, "SIGNOSUCH").returncode == 2


def test_key_files(space, api, env, tmp_path):
    out = tmp_path / "new.key"
    done = space("keys", "create", "--role", "read", "--expires", "30d", "--out", str(out), "ci")
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(out.stat().st_mode) == 0o600 and out.read_text(encoding="ascii") == "space_" + "k" * 32 + "\n"
    assert "kkkk" not in done.stdout + done.stderr
    assert space("keys", "create", "--out", str(out), "again").returncode == 1  # never overwritten
    assert space("keys", "create", "noout").returncode == 2
    assert len(api.keys) == 1 and "ci" in space("keys").stdout
    assert space("keys", "rm", "ci").returncode == 0 and not api.keys


def test_a_key_is_not_made_when_it_cannot_be_kept(space, api):
    assert space("keys", "create", "--out", "/nonexistent/x.key", "ci").returncode == 1
    assert not api.keys and not [p for m, p, _, _ in api.requests if m == "POST"]


# ---- configuration and errors ----

def test_the_users_file(space, api, env, tmp_path):
    bare = {k: v for k, v in env.items() if not k.startswith("SPACE_")}
    config = tmp_path / "xdg/space/config"
    config.parent.mkdir(parents=True)
    config.write_text(f"url = {api.url}\nkey = {api.key}\n", encoding="ascii")
    config.chmod(0o644)
    refused = space("ls", env=bare)
    assert refused.returncode == 1 and "chmod 600" in refused.stderr
    config.chmod(0o600)
    assert space("ls", env=bare).returncode == 0
    exports = space("env", env=bare).stdout
    assert f"export SPACE_URL={api.url}\n" in exports and f"export SPACE_API_KEY={api.key}\n" in exports


def test_refusals_and_what_to_do(space, env):
    done = space("ls", env={**env, "SPACE_API_KEY": "space_wrong"})
    assert done.returncode == 1 and done.stderr.startswith("space: unauthorized: ") and "keys create" in done.stderr
    bare = {k: v for k, v in env.items() if k != "SPACE_API_KEY"}
    done = space("ls", env=bare)
    assert done.returncode == 1 and "SPACE_API_KEY" in done.stderr
    done = space("ls", env={**env, "SPACE_URL": "http://127.0.0.1:9"})
    assert done.returncode == 3 and "space up" in done.stderr


@pytest.mark.parametrize("option, value", [("--url", "localhost:1"), ("--key-file", "/nonexistent"), ("--config", "/nonexistent")])
def test_a_wrong_option_is_wrong_usage(space, box, option, value):
    for verb in (("ls",), ("exec", box, "true")):
        done = space(verb[0], option, value, *verb[1:])
        assert done.returncode == 2 and value in done.stderr and "--help" in done.stderr


def test_an_unknown_template_says_where_the_known_are(space):
    for verb in (("create", "nosuch"), ("run", "nosuch", "--", "true")):
        done = space(*verb)
        assert "there is no template nosuch" in done.stderr and "`space templates`" in done.stderr


def test_refused_by_a_server_that_is_none(space, env):
    import http.server
    import threading

    class NotOurs(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *unused):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), NotOurs)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    done = space("ls", env={**env, "SPACE_URL": f"http://127.0.0.1:{server.server_port}"})
    server.shutdown()
    server.server_close()
    assert done.returncode == 1 and "not JSON" in done.stderr


def test_no_key_in_argv(space):
    assert space("ls", "--key", "space_x").returncode == 2


def test_version_with_and_without_a_server(space, env):
    assert "server  0.1.0" in space("version").stdout
    done = space("version", "--json", env={**env, "SPACE_URL": "http://127.0.0.1:9"})
    assert done.returncode == 0 and json.loads(done.stdout)["server"] is None


# ---- completions, man page ----

@pytest.mark.parametrize("words, has, lacks", [
    (["e"], {"env", "exec"}, {"ls"}), (["exec", "b"], {"box"}, {"base"}), (["create", ""], {"base"}, {"box"}),
    (["exec", "--d"], {"--detach"}, {"--env"}), (["help", "s"], {"show", "signal", "status"}, {"ls"}),
    (["cp", "bo"], {"box:"}, {"base"}), (["cp", "/et"], {"/etc/"}, {"/bin/"}), (["s"], {"shell", "stats", "show"}, {"cp"}),
    (["exec", "box", "--", "l"], set(), {"ls"}), (["--c"], {"--config"}, set())])
def test_candidates(space, box, words, has, lacks):
    given = set(space("__complete", "--", *words).stdout.split())
    assert has <= given and not lacks & given


# Each prints, for every line `WORDS` of its input, the words and what the shell makes of the last one, between tabs.
SHELLS = {
    "bash": """. "$SCRIPT"
while IFS= read -r line; do
    IFS=' ' read -ra COMP_WORDS <<<"space $line"
    case "space $line" in *' ') COMP_WORDS+=('') ;; esac
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=(); _space
    printf '%s' "$line"; printf '\\t%s' "${COMPREPLY[@]}"; echo
done""",
    "zsh": """autoload() { : }
compadd() { given=("${(@P)2}") }
_files() { given=(files) }
while IFS= read -r line; do
    words=("${(@s: :)${:-space $line}}"); CURRENT=${#words}; given=(); . "$SCRIPT"
    printf '%s' "$line"; printf '\\t%s' "${given[@]}"; echo
done""",
    "fish": """source $SCRIPT
while read line
    printf '%s' $line; printf '\\t%s' (complete -C "space $line" | string replace -r '\\t.*' ''); echo
end""",
}
SCRIPTS = {"bash": "space.bash", "zsh": "_space", "fish": "space.fish"}
BARE = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}


@pytest.fixture(scope="module")
def vocabulary():
    """What `space help` and the help of each verb name: all that there is to complete."""
    def helped(*words):
        return subprocess.run([space_binary(), "help", *words], check=True, capture_output=True, text=True).stdout

    def options(text):
        return set(re.findall(r"^  (?:-\w,|   ) (--[a-z-]+)", text, re.MULTILINE))

    verbs = re.findall(r"^  ([a-z]+) ", helped(), re.MULTILINE)
    assert len(verbs) > 30 and "--config" in options(helped())
    return {"": set(verbs), "--": options(helped()), **{f"{verb} --": options(helped(verb)) for verb in verbs}}


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete_every_verb_and_option(env, tmp_path, vocabulary, shell):
    script = pathlib.Path(__file__).parents[2] / "deploy/completions" / SCRIPTS[shell]
    subprocess.run([shell, *BARE[shell], "-n", str(script)], check=True, timeout=60)
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(
        [shell, *BARE[shell], "-c", SHELLS[shell]], input="".join(f"{line}\n" for line in vocabulary), cwd=empty,
        env={**env, "SCRIPT": str(script), "PATH": f"{pathlib.Path(space_binary()).parent}:{env['PATH']}"},
        capture_output=True, text=True, check=True, timeout=240)
    given = {line: set(words) for line, *words in (row.split("\t") for row in done.stdout.splitlines())}
    assert given == vocabulary, done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete_names(env, box, shell):
    script = pathlib.Path(__file__).parents[2] / "deploy/completions" / SCRIPTS[shell]
    done = subprocess.run(
        [shell, *BARE[shell], "-c", SHELLS[shell]], input="show bo\n", capture_output=True, text=True, check=True, timeout=60,
        env={**env, "SCRIPT": str(script), "PATH": f"{pathlib.Path(space_binary()).parent}:{env['PATH']}"})
    assert done.stdout == "show bo\tbox\n", done.stderr


def test_node_drain_waits_and_names_what_stands_in_its_way(space, api):
    def sent():
        return [(m, p.split("?")[0]) for m, p, _, _ in api.requests if "/nodes" in p]

    api.node_states = ["ready", "draining"]  # the only node is looked for, then drained
    done = space("node", "drain")
    assert (done.returncode, done.stdout) == (0, "") and "sb4kq7m2xw9c5t3n8h6d: storage_full: no " in done.stderr
    assert "\x1b" not in done.stderr
    assert sent() == [("GET", "/v1/nodes"), ("POST", "/v1/nodes/local/drain")]

    api.requests.clear()
    api.node_states = ["draining", "draining", "draining", "drained"]
    done = space("node", "drain", "local", "--wait", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["state"] == "drained"
    assert sent() == [("POST", "/v1/nodes/local/drain")] + 3 * [("GET", "/v1/nodes/local")]

    api.node_states = ["draining", "ready"]
    done = space("node", "drain", "local", "--wait")
    assert done.returncode == 1 and "undrained meanwhile" in done.stderr


def test_node_names_and_wrong_words(space, api):
    api.node_states = ["drained"]
    listed = space("node", "ls").stdout.split("\n")
    assert listed[0].split()[:3] == ["NAME", "STATE", "LIVE"] and listed[1].split()[:4] == ["local", "drained", "0", "3"]
    assert space("node", "undrain", "local").returncode == 0
    assert "node local is drained" in space("status").stdout
    assert space("node", "undrain", "other").returncode == 1
    assert space("node", "drain", "a", "b").returncode == 2
    assert space("node", "up").returncode == 2
    api.node_names = ["a", "b"]
    done = space("node", "drain")
    assert done.returncode == 1 and "which node" in done.stderr
    assert not [p for m, p, _, _ in api.requests if m == "POST" and p.startswith("/v1/nodes/a/")]


def test_fork_prints_the_ids_of_those_that_are_there(space, api, box):
    done = space("fork", box, "--count", "2", "--name-is-no-option")
    assert done.returncode == 2 and not [p for m, p, _, _ in api.requests if p.endswith("/fork")]
    done = space("fork", box, "-c", "2", "-e", "A=1", "--metadata", "team=a", "--lifetime", "60")
    assert done.returncode == 0 and done.stderr == "" and [len(line) for line in done.stdout.split("\n")] == [20, 20, 0]
    done = space("fork", box, "--count", "3")
    assert done.returncode == 1 and len(done.stdout.split()) == 2 and "no memory (capacity_unavailable)" in done.stderr
    done = space("fork", box, "--count", "3", "--json")
    assert done.returncode == 1 and len(json.loads(done.stdout)["operation"]["result"]["children"]) == 3
    for count in ("0", "101", "x"):
        assert space("fork", box, "--count", count).returncode == 2


def test_the_man_page_names_every_verb(space):
    page = space("help", "--man").stdout
    verbs = re.findall(r"^  ([a-z]+) ", space("help").stdout, re.MULTILINE)
    assert {"up", "down", "status", "doctor", "version", "env", "create", "ls", "show", "rm", "ps", "signal", "kill", "templates",
            "run", "exec", "keys", "logs", "shell", "cp", "forward", "watch", "ports", "attach", "stats", "pause", "suspend",
            "wake", "fork", "checkpoint", "rollback", "node"} <= set(verbs)
    described = re.findall(r"^\.SS space ([a-z]+)", page, re.MULTILINE)
    assert sorted(described) == sorted(verbs), "each once, and no other"
    assert ".SH EXIT STATUS" in page and "__complete" not in page


def test_the_man_page_of_the_settings_is_the_commented_file(space):
    """Each key with its default and all that the file says of it, and no other."""
    text = (pathlib.Path(__file__).parents[2] / "deploy/space.conf").read_text(encoding="utf-8")
    paragraphs = [part.strip().splitlines() for part in text.split("\n\n")][1:]
    said = [(key.strip(), "\n".join(line.removeprefix("# ") for line in comment)) for *comment, key in paragraphs]
    page = space("help", "--man-settings").stdout
    keys = page.partition(".SH KEYS AND DEFAULTS\n.TP\n")[2].partition(".SH SEE ALSO")[0].split(".TP\n")
    shown = [entry.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\").split("\n", 1) for entry in keys]
    assert len(said) > 50 and all(comment for _, comment in said)
    assert [(key.removeprefix("\\fB").removesuffix("\\fR").strip(), comment.strip()) for key, comment in shown] == said


def test_progress_only_on_a_terminal(env):
    master, slave = pty.openpty()
    child = subprocess.Popen([space_binary(), "create", "base"], env=env, stdout=subprocess.PIPE, stderr=slave)
    assert child.wait(20) == 0
    assert b"creating" in os.read(master, 1000) and child.stdout.read().startswith(b"sb")
    os.close(slave)
    os.close(master)


