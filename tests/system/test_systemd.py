"""`space up`, `down` and `status` where systemd supervises: in a mount namespace with a `systemctl` of
our own, since the machine that tests this seldom has systemd as PID 1."""

import json
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess

import pytest

from harness import machine, poll
from harness.installation import free_low_port, free_port, space_binary
from test_supervisor import SETUP_STUB, fake_daemon, open_parents  # noqa: F401

HERE = pathlib.Path(__file__).parent


class Machine:
    """A shell inside a private mount namespace in which /run/systemd/system and /etc/space exist."""

    def __init__(self, top, fake):
        self.top, self.libexec, self.state, self.fake = top, top / "libexec", top / "systemd", fake
        (self.libexec / "setup").mkdir(parents=True)
        self.state.mkdir()
        for name in ("space-node", "space-api"):
            shutil.copy(fake, self.libexec / name)
        for name in ("volume", "user"):
            script = self.libexec / "setup" / name
            script.write_text(SETUP_STUB, encoding="ascii")
            script.chmod(0o755)
        (top / "bin").mkdir()
        shutil.copy(HERE / "fake_systemctl", top / "bin/systemctl")
        self.port = free_port()
        for name in ("upper", "work"):
            (top / name).mkdir()
        (top / "upper/space").mkdir()
        (top / "upper/space/space.conf").write_text(
            f"installation = spsysd\ndata_dir = {top}/data\nrun_dir = {top}/run\nlog_dir = {top}/log\n"
            f"admin_key_file = {top}/admin.key\nservice_user = daemon\napi.listen = 127.0.0.1:{self.port}\n", encoding="ascii")

    def run(self, *words, check=True):
        script = (f"mount -t overlay overlay -o lowerdir=/etc,upperdir={self.top}/upper,workdir={self.top}/work /etc && "
                  "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system || exit 77; exec \"$@\"")
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("SPACE_")}, "SPACE_LIBEXEC": str(self.libexec),
               "PATH": f"{self.top}/bin:{os.environ['PATH']}", "FAKE_SYSTEMD": str(self.state), "FAKE_LIBEXEC": str(self.libexec),
               "HOME": str(self.top)}
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", *words], env=env, text=True,
                              capture_output=True, check=False, timeout=60)
        if done.returncode == 77:
            pytest.skip("no overlay mount here: " + done.stderr)
        if check:
            assert done.returncode == 0, done
        return done

    def space(self, *arguments, check=True):
        return self.run(space_binary(), *arguments, check=check)

    def pid(self, unit):
        return int((self.state / f"{unit}.pid").read_text(encoding="ascii"))


@pytest.fixture
def systemd(tmp_path, fake_daemon):  # noqa: F811
    made = Machine(tmp_path, fake_daemon)
    open_parents(tmp_path)
    yield made
    for unit in made.state.glob("*.pid"):
        os.kill(int(unit.read_text(encoding="ascii")), signal.SIGKILL)


def test_up_uses_the_units_and_nothing_else(systemd):
    done = systemd.space("up")
    assert "started" in done.stdout and f":{systemd.port}" in done.stdout
    before = systemd.pid("space-node"), systemd.pid("space-api")
    again = systemd.space("up")
    assert "running" in again.stdout and "started" not in again.stdout
    assert (systemd.pid("space-node"), systemd.pid("space-api")) == before
    assert not (systemd.top / "run/space-supervisor.pid").exists()
    document = json.loads(systemd.space("status", "--json", check=False).stdout)
    assert document["supervision"] == "systemd"
    assert [(d["name"], d["state"]) for d in document["daemons"]] == [("space-node", "running"), ("space-api", "running")]


def test_a_new_program_restarts_its_unit(systemd):
    systemd.space("up")
    node, api = systemd.pid("space-node"), systemd.pid("space-api")
    fresh = systemd.libexec / "space-api.new"
    shutil.copy(systemd.fake, fresh)
    fresh.rename(systemd.libexec / "space-api")
    systemd.space("up")
    assert systemd.pid("space-node") == node and systemd.pid("space-api") != api


def test_down_stops_units_and_sandboxes(systemd):
    systemd.space("up")
    systemd.space("down", "--keep-sandboxes")
    assert not list(systemd.state.glob("*.pid")) and not (systemd.top / "run/stopped-all").exists()
    systemd.space("up")
    systemd.space("down")
    assert not list(systemd.state.glob("*.pid")) and (systemd.top / "run/stopped-all").exists()
    assert "--release" in (systemd.libexec / "setup/calls").read_text(encoding="ascii")


def test_another_settings_file_is_supervised_by_our_own(systemd):
    other = systemd.top / "other.conf"
    other.write_text((systemd.top / "upper/space/space.conf").read_text(encoding="ascii"), encoding="ascii")
    document = json.loads(systemd.space("status", "--json", "--config", str(other), check=False).stdout)
    assert document["supervision"] == "space-supervisor"


def test_systemd_takes_the_units(tmp_path):
    units = sorted((pathlib.Path(space_binary()).resolve().parents[1] / "lib/systemd/system").glob("space-*.service"))
    assert [unit.stem for unit in units] == ["space-api", "space-node"]

    def verify(*paths):
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", *map(str, paths)], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    assert verify(*units) == (0, "")
    wrong = tmp_path / "space-wrong.service"  # what is not taken is said
    wrong.write_text(units[0].read_text(encoding="utf-8").replace("KillMode=", "KillMod="), encoding="utf-8")
    assert "KillMod" in verify(wrong)[1]


def test_the_api_of_the_unit_may_have_a_low_port(tmp_path):
    """With what the unit gives it, and no other capability, as the service user."""
    prefix = pathlib.Path(space_binary()).resolve().parents[1]
    unit = (prefix / "lib/systemd/system/space-api.service").read_text(encoding="utf-8").splitlines()
    given = dict(line.split("=", 1) for line in unit if "=" in line)
    assert given["CapabilityBoundingSet"] == given["AmbientCapabilities"] == "CAP_NET_BIND_SERVICE"
    low, user = free_low_port(), pwd.getpwnam("daemon")
    open_parents(tmp_path)
    for name in ("data/store", "run"):
        (tmp_path / name).mkdir(parents=True)
        os.chown(tmp_path / name, user.pw_uid, user.pw_gid)
    config = tmp_path / "space.conf"
    config.write_text(f"installation = spcap\ndata_dir = {tmp_path}/data\nrun_dir = {tmp_path}/run\nservice_user = daemon\n"
                      f"api.listen = 127.0.0.1:{low}\n", encoding="ascii")
    argv = [str(prefix / "libexec/space/space-api"), "--config", str(config)]

    def start(*capabilities):
        return subprocess.Popen(["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--no-new-privs",
                                 *capabilities, *argv], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    with start() as without:
        assert "Permission denied" in without.stderr.read() and without.wait(10) == 1
    with start("--inh-caps=-all,+net_bind_service", "--ambient-caps=-all,+net_bind_service",
               "--bounding-set=-all,+net_bind_service") as api:
        try:
            poll.until(lambda: api.poll() is not None or answers(low), 30, "it serves")
            assert api.poll() is None, api.stderr.read()
            assert all(not any(caps.values()) for caps in machine.capabilities(api.pid))
        finally:
            api.kill()


def answers(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
            raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            return raw.recv(65536).startswith(b"HTTP/1.1 200")
    except OSError:
        return False
