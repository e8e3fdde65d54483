"""The CLI's terminals, copies, ports and watches, on real sandboxes."""

import hashlib
import json
import os
import select
import signal
import socket
import subprocess

import pytest

from harness import poll
from harness.installation import space_binary
from harness.terminal import Terminal


@pytest.fixture(scope="module")
def box(installation):
    done = installation.space("create", "--name", "cli-data", "base")
    assert done.returncode == 0, done.stderr
    yield done.stdout.strip()
    installation.space("rm", "--yes", "cli-data")


@pytest.fixture
def space(installation):
    def run(*arguments, **more):
        return installation.space(*map(str, arguments), **more)
    return run


@pytest.fixture
def terminal(installation):
    made = []

    def run(*arguments):
        made.append(Terminal({**installation.user_env(), "TERM": "vt220"}, *arguments))
        return made[-1]

    yield run
    for one in made:
        if one.child.poll() is None:
            one.child.kill()
            one.child.wait()


# ---- terminals ----

def test_shell(terminal, space, box):
    shell = terminal("shell", "cli-data")
    shell.type(b"stty size; echo T=$TERM U=$(id -un) D=$PWD; shopt -q login_shell && echo log-in\n")
    shell.read_until(b"33 91\r\n", 60)
    shell.read_until(b"T=vt220 U=user D=/home/user\r\n")
    shell.read_until(b"log-in\r\n")
    shell.resize(123, 45)
    shell.type(b"sleep 0.3; stty size\n")
    shell.read_until(b"45 123\r\n")
    shell.type(b"sleep 1000\n")
    poll.until(lambda: space("exec", box, "--", "pgrep", "-xf", "sleep 1000").returncode == 0, 30, "sleep runs")
    shell.type(b"\x03")
    shell.type(b"echo status=$?\n")
    shell.read_until(b"status=130")
    shell.type(b"exit 7\n")
    assert shell.end(60) == 7


def test_shell_as_root_with_a_full_screen_program(terminal, box):
    shell = terminal("shell", "-u", "root", "-w", "/", "-e", "A=b", box)
    shell.type(b"echo $A $(id -u) $PWD; vi --version >/dev/null 2>&1; less /etc/passwd\n")
    shell.read_until(b"b 0 /\r\n", 60)
    shell.read_until(b"root:x:0:0")
    shell.type(b"q")
    shell.type(b"exit\n")
    shell.end(60)


def test_a_shell_lives_over_restarts(installation, terminal, box):
    shell = terminal("shell", box)
    shell.type(b"x=kept; echo rea''dy\n")
    shell.read_until(b"ready\r\n", 60)
    for daemon in ("space-api", "space-node"):
        installation.kill_daemon(daemon)
        shell.read_until(b"connection lost", 60)
        shell.type(b"echo $x-$((40 + 2))\n")
        shell.read_until(b"connected again", 120)
        shell.read_until(b"kept-42\r\n", 60)
        installation.wait_ready()
    shell.type(b"exit 5\n")
    assert shell.end(60) == 5


@pytest.mark.long
def test_output_over_restarts_is_exact(installation, terminal, box):
    shell = terminal("exec", "-it", box, "--", "sh", "-c", "stty -opost; for i in $(seq 1 60); do seq 1 1000; sleep 0.1; done; echo the-end")
    shell.read_until(b"1000\n", 60)
    installation.kill_daemon("space-api")
    seen = b"1000\n" + shell.read_until(b"the-end", 120)
    assert shell.end(60) == 0
    installation.wait_ready()
    for said in (b"\r\nspace: connection lost, trying again (Ctrl-C leaves) \xe2\x80\xa6\r\n", b"\r\nspace: connected again\r\n"):
        seen = seen.replace(said, b"")
    assert seen == b"1000\n" + b"".join(b"%d\n" % i for i in range(1, 1001)) * 59


def test_attach_returns(terminal, box, space):
    shell = terminal("shell", box)
    shell.type(b"x=kept; echo rea''dy\n")
    shell.read_until(b"ready\r\n", 60)
    shell.type(b"~.")
    assert shell.end(60) == 0
    process = shell.seen.split(b"space attach ")[1].split(b"`")[0].decode()
    again = terminal("attach", process)
    again.type(b"echo $x-again\n")
    again.read_until(b"kept-again\r\n", 60)
    again.type(b"exit 4\n")
    assert again.end(60) == 4


def test_a_closed_terminal_ends_the_shell(terminal, box, api):
    shell = terminal("shell", box)
    shell.type(b"exec -a hung-up-4711 sleep 4711\n")
    poll.until(lambda: api.run(box, "pgrep -f '[h]ung-up-4711'")["exit_code"] == 0, 60, "it runs")
    shell.child.send_signal(signal.SIGHUP)
    assert shell.end(60) == 129
    poll.until(lambda: api.run(box, "pgrep -f '[h]ung-up-4711'")["exit_code"] == 1, 20, "it is gone")


def test_shell_without_a_terminal(space, box):
    done = space("shell", box, input="echo out; echo err >&2; tty; exit 9\n")
    assert (done.returncode, done.stdout, done.stderr) == (9, "out\nnot a tty\n", "err\n")


def test_exec_with_input_from_a_pipe(installation, box):
    data = os.urandom(2_000_000)
    done = subprocess.run([space_binary(), "exec", "-i", box, "--", "sha256sum"], input=data, env=installation.user_env(),
                          capture_output=True, check=False)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_attach_to_a_command_without_a_terminal(space, box):
    process = space("exec", "-d", "-i", box, "--", "sh", "-c", "echo before; read a; echo got $a; exit 8").stdout.strip()
    poll.until(lambda: space("logs", process).stdout == "before\n", 20, "it has begun")
    done = space("attach", "-i", process, input="one\n")
    assert (done.returncode, done.stdout) == (8, "before\ngot one\n")


def test_logs_follow_from_the_tail(installation, space, box):
    process = space("exec", "-d", "-i", box, "--", "sh", "-c", "seq 1 1000; read go; echo last").stdout.strip()
    poll.until(lambda: space("logs", process).stdout.endswith("1000\n"), 20, "it has begun")
    with subprocess.Popen([space_binary(), "logs", "--follow", "--tail", "5", box, process], env=installation.user_env(),
                          stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout.readline() == "1000\n"
        assert space("attach", "-i", "--tail", "0", process, input="go\n").returncode == 0
        assert following.stdout.read() == "last\n"
    assert following.returncode == 0


# ---- copies ----

def make_tree(top):
    (top / "sub/deep").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "a.txt").write_text("hello", encoding="ascii")
    (top / "sub/run").write_bytes(os.urandom(300_000))
    (top / "sub/run").chmod(0o751)
    (top / "sub/deep/new\nline").write_text("x", encoding="ascii")
    (top / "sub/deep/\u00e4\u20ac").write_text("unicode", encoding="ascii")
    (top / ("long" * 60)).write_text("long name", encoding="ascii")
    os.symlink("../a.txt", top / "sub/link")
    os.symlink("/nonexistent/target", top / "dangling")
    os.symlink("sub", top / "dirlink")
    os.utime(top / "a.txt", (10**9, 10**9))
    (top / "sub/deep").chmod(0o700)


def same_trees(one, two):
    listing = ["find", ".", "-printf", r"%P %y %m %l\n"]
    lists = [sorted(subprocess.run(listing, cwd=top, check=True, capture_output=True).stdout.splitlines()[1:]) for top in (one, two)]
    assert lists[0] == lists[1]
    assert subprocess.run(["diff", "-r", "--no-dereference", one, two], check=False).returncode == 0
    return True


def test_trees_go_in_and_come_out(space, box, tmp_path):
    source = tmp_path / "source"
    make_tree(source)
    done = space("cp", source, f"{box}:copy")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert space("exec", box, "--", "sh", "-c", "stat -c '%U %a' copy/sub/run; readlink copy/dirlink; cat copy/a.txt").stdout == \
        "user 751\nsub\nhello"
    assert space("cp", f"{box}:/home/user/copy", tmp_path / "back").returncode == 0
    same_trees(source, tmp_path / "back")
    assert (tmp_path / "back/a.txt").stat().st_mtime == 10**9
    assert space("cp", source, "cli-data:copy").returncode == 0  # into it
    assert space("exec", box, "--", "test", "-f", "copy/source/a.txt").returncode == 0
    assert space("cp", f"{source}/.", f"{box}:copy/source").returncode == 0
    assert space("cp", f"{box}:copy/source/.", tmp_path / "again").returncode == 0
    same_trees(source, tmp_path / "again")


def test_files_go_in_and_come_out(space, box, tmp_path):
    data = os.urandom(20_000_000)
    (tmp_path / "f").write_bytes(data)
    (tmp_path / "f").chmod(0o640)
    assert space("cp", tmp_path / "f", f"{box}:/tmp/").returncode == 0
    done = space("exec", box, "--", "sh", "-c", "sha256sum /tmp/f; stat -c %a /tmp/f")
    assert done.stdout.split()[0] == hashlib.sha256(data).hexdigest() and done.stdout.endswith("640\n")
    assert space("cp", f"{box}:/tmp/f", tmp_path / "back").returncode == 0
    assert (tmp_path / "back").read_bytes() == data
    assert space("cp", tmp_path / "f", f"{box}:/root/").returncode == 1
    assert space("cp", "-u", "root", tmp_path / "f", f"{box}:/root/").returncode == 0
    done = space("cp", f"{box}:/no/such", tmp_path)
    assert done.returncode == 1 and "there is no /no/such in the sandbox" in done.stderr
    assert json.loads(space("cp", "--json", tmp_path / "f", f"{box}:/tmp/g").stdout)["size_bytes"] == len(data)


def test_archives(space, box, tmp_path, installation):
    source = tmp_path / "source"
    make_tree(source)
    packed = subprocess.run(["tar", "cf", "-", "-C", tmp_path, "source"], check=True, capture_output=True).stdout
    env = installation.user_env()
    subprocess.run([space_binary(), "cp", "-", f"{box}:packed"], input=packed, env=env, check=True)
    out = subprocess.run([space_binary(), "cp", f"{box}:packed/source", "-"], env=env, check=True, capture_output=True).stdout
    (tmp_path / "x").mkdir()
    subprocess.run(["tar", "xpf", "-", "-C", tmp_path / "x"], input=out, check=True)
    assert os.listdir(tmp_path / "x") == ["source"] and same_trees(source, tmp_path / "x/source")


def test_a_tree_that_the_user_may_not_read_is_refused_and_named(space, box, tmp_path):
    assert space("exec", box, "--", "sh", "-c", "mkdir -p mixed/sub && echo 1 > mixed/a && sudo install -m 0600 /dev/null mixed/sub/secret").returncode == 0
    (tmp_path / "there").mkdir()
    for target in ("new", "there"):
        done = space("cp", f"{box}:mixed", str(tmp_path / target))
        assert done.returncode == 1 and "mixed/sub/secret" in done.stderr and "-u root" in done.stderr, done
    assert list(tmp_path.iterdir()) == [tmp_path / "there"] and not list((tmp_path / "there").iterdir())
    assert space("cp", "-u", "root", f"{box}:/home/user/mixed", str(tmp_path / "new")).returncode == 0
    assert (tmp_path / "new/a").exists() and (tmp_path / "new/sub/secret").exists()


def test_what_a_guest_has_does_not_get_out(space, box, tmp_path):
    space("exec", "-u", "root", box, "--", "sh", "-c",
          "mkdir -p /tmp/evil && cd /tmp/evil && mkfifo pipe && mknod null c 1 3 && ln -s /etc out && cp /bin/true suid && "
          "chmod 6755 suid && echo x > a && ln a b && chmod -R a+rX .")
    done = space("cp", f"{box}:/tmp/evil", tmp_path / "evil")
    assert done.returncode == 1 and "left out" in done.stderr
    assert sorted(os.listdir(tmp_path / "evil")) == ["a", "b", "out", "suid"]
    assert (tmp_path / "evil/suid").stat().st_mode & 0o7777 == 0o755
    assert os.readlink(tmp_path / "evil/out") == "/etc"


# ---- ports ----

def test_forward_and_ports(installation, space, box):
    space("exec", "-d", "-w", "/tmp", box, "--", "sh", "-c", "echo from-the-guest > index.txt; exec python3 -m http.server --bind 127.0.0.1 8123")
    poll.until(lambda: "8123" in space("ports", box).stdout, 60, "it listens")
    (item,) = [i for i in json.loads(space("ports", "--json", box).stdout)["items"] if i["port"] == 8123]
    assert item["public"] is False
    child = subprocess.Popen([space_binary(), "forward", box, "0:8123", "0:8124"], env=installation.user_env(), text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    address, silent = (tuple(child.stdout.readline().strip().split(":")) for _ in range(2))

    def get():
        with socket.create_connection((address[0], int(address[1])), timeout=30) as connection:
            connection.sendall(b"GET /index.txt HTTP/1.0\r\n\r\n")
            data = b""
            while piece := connection.recv(65536):
                data += piece
            return data

    assert get().endswith(b"from-the-guest\n")
    installation.kill_daemon("space-api")
    installation.wait_ready()
    assert get().endswith(b"from-the-guest\n")
    with pytest.raises(OSError), socket.create_connection((silent[0], int(silent[1])), timeout=30) as connection:
        connection.sendall(b"x")
        while not connection.recv(1):
            raise OSError
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=20)
    assert child.returncode == 130 and "nothing listens on port 8124" in said
    assert space("ports", box, "--public", "8123").returncode == 0
    (item,) = [i for i in json.loads(space("ports", "--json", box).stdout)["items"] if i["port"] == 8123]
    assert item["public"] is True
    assert space("ports", box, "--private", "8123").returncode == 0
    done = space("ports", box, "--link", "8123", "--ttl", "1m")
    assert done.stdout.startswith("http") and "token=" in done.stdout, done


# ---- watch, stats ----

def is_readable(process):
    return bool(select.select([process.stdout], [], [], 0.2)[0])


def test_watch(installation, space, box):
    space("exec", box, "--", "mkdir", "-p", "watched")
    child = subprocess.Popen([space_binary(), "watch", "--json", box, "watched"], env=installation.user_env(), text=True,
                             stdout=subprocess.PIPE)
    text = subprocess.Popen([space_binary(), "watch", box, "watched"], env=installation.user_env(), text=True, stdout=subprocess.PIPE)
    # A change that both have seen: they watch.
    poll.until(lambda: space("exec", box, "--", "touch", "watched/probe") and is_readable(child) and is_readable(text), 30, "both watch")
    space("exec", box, "--", "sh", "-c", "cd watched && mkdir -p d/e && echo 1 > d/e/f && mv d/e/f d/g && rm d/g")
    events = []
    while not events or events[-1]["event"] != "deleted":
        events.append(json.loads(child.stdout.readline()))
    assert {"created", "moved", "deleted"} <= {e["event"] for e in events}
    moved = next(e for e in events if e["event"] == "moved")
    assert moved["from"].endswith("watched/d/e/f") and moved["path"].endswith("watched/d/g")
    while "watched/d" not in (line := text.stdout.readline()):
        pass
    assert "created" in line
    text.kill()
    text.wait()
    installation.kill_daemon("space-api")
    installation.wait_ready()
    space("exec", box, "--", "touch", "watched/later")
    while not events[-1].get("path", "").endswith("watched/later"):
        events.append(json.loads(child.stdout.readline()))
    child.send_signal(signal.SIGINT)
    child.wait(20)
    assert space("watch", box, "/no/such").returncode == 1


def test_stats(space, box):
    poll.until(lambda: json.loads(space("stats", "--json", box).stdout)["items"], 60, "a sample")
    done = space("stats", "cli-data")
    assert done.returncode == 0 and "MiB" in done.stdout and "CPU" in done.stdout
    assert space("stats", "--last", "10m", box).returncode == 0
