"""An installation of its own: configuration, data, run and log directories, own names on the host.

Started and stopped by the real `space up` and `space down`. The guest kernel and the template are
copied from an installation that has them (SPACE_TEST_ASSETS, else the machine's own) or built."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import zlib
from http import client

from . import http, machine, poll, spec

ROOT = spec.ROOT
WORK = pathlib.Path(os.environ.get("SPACE_TEST_DIR", "/var/tmp/space-tests"))
ASSETS = [os.environ.get("SPACE_TEST_ASSETS"), "/var/lib/space"]


def space_binary():
    return os.environ.get("SPACE") or shutil.which("space") or "/usr/local/bin/space"


def libexec():
    return pathlib.Path(space_binary()).resolve().parent.parent / "libexec" / "space"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def free_low_port():
    """One that takes a capability."""
    for port in range(1023, 511, -1):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass
    raise AssertionError("every port below 1024 is taken")


def find_assets():
    """A data directory with a guest and a base template, or None."""
    for name in ASSETS:
        if not name:
            continue
        path = pathlib.Path(name)
        if (path / "guest/current").exists() and (path / "volume/templates/base/current").exists():
            return path
    return None


def root_tag():
    """Tells this root and test directory from others on the same kernel, whose cgroups, network
    namespaces and uids are in the same tables: tests in a chroot and beside it do not meet."""
    root = os.stat("/")
    return (root.st_ino * 31 + root.st_dev + zlib.crc32(str(WORK).encode())) % 0x10000


class Installation:
    def __init__(self, name, uid_first, volume_gib, **settings):
        self.name = f"{name[:4]}{root_tag():04x}"
        uid_first += root_tag() % 2000 * 1_000_000
        self.top = WORK / name
        self.config = self.top / "space.conf"
        self.data = self.top / "data"
        self.run_dir = self.top / "run"
        self.logs = self.top / "log"
        self.key_file = self.top / "admin.key"
        self.port = free_port()
        self.uid_first = uid_first
        self.scheme_tls = None
        self.settings = {
            "installation": self.name,
            "data_dir": self.data,
            "run_dir": self.run_dir,
            "log_dir": self.logs,
            "log_level": "debug",
            "admin_key_file": self.key_file,
            "volume_size_gib": volume_gib,
            "api.listen": f"127.0.0.1:{self.port}",
            "node.vmm_uid_first": uid_first,
            "node.vmm_uid_count": 4096,
            "objects.store": "none",  # what is stored has tests of its own (test_objects.py)
        }
        self.settings.update({key.replace("__", "."): value for key, value in settings.items()})
        self.spec = spec.Spec()
        self._api = None
        self.asking = threading.Lock()

    # ---- making and removing ----
    def write_config(self, **changes):
        self.settings.update({key.replace("__", "."): value for key, value in changes.items()})
        lines = [f"{key} = {value}" for key, value in self.settings.items()]
        self.config.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def prepare(self, templates=True):
        self.remove_left_overs()
        for path in (self.top, self.run_dir, self.logs):
            path.mkdir(parents=True, exist_ok=True)
        self.top.chmod(0o755)
        self.write_config()
        self.set_up("user")
        self.set_up("volume")
        assets = find_assets()
        if assets is None:
            self.set_up("guest")
            if templates:
                self.set_up("template", "base")
            return
        self._copy(assets / "guest", self.data / "guest")
        self.set_up("guest")  # nothing to do when the assets have this very space-init
        if not templates:
            return
        (self.data / "volume/templates").mkdir(mode=0o755, exist_ok=True)
        self._copy(assets / "volume/templates/base", self.data / "volume/templates/base")

    @staticmethod
    def _copy(source, target):
        machine.output("cp", "-a", "--reflink=auto", "--sparse=always", str(source), str(target))

    def set_up(self, step, *arguments):
        """One of the set-up steps that quickstart takes, with this configuration."""
        done = subprocess.run(
            [str(libexec() / "setup" / step), *arguments], capture_output=True, text=True,
            env={**os.environ, "SPACE_CONFIG": str(self.config)}, check=False)
        assert done.returncode == 0, f"set-up step {step}:\n{done.stdout}\n{done.stderr}"

    def remove_left_overs(self):
        """Of an earlier run that was killed; a run that ends properly leaves nothing."""
        if self.config.exists():
            self.cli("down", check=False)
            subprocess.run([str(libexec() / "setup" / "volume"), "--release"], check=False, capture_output=True,
                           env={**os.environ, "SPACE_CONFIG": str(self.config)})
        if self.top.exists():
            assert not [m for m in machine.mounts() if m.startswith(f"{self.top}/")]
            shutil.rmtree(self.top)

    def remove(self):
        """Ends it and takes its files away. That it cannot be ended, or leaves something on the host, is a failure."""
        ended = self.cli("down", check=False)
        self.set_up("volume", "--release")
        try:
            poll.until(lambda: not self.leaks(), 30, "everything is gone")
            left = []
        except poll.Timeout:
            left = self.leaks()
        if not [m for m in machine.mounts() if m.startswith(f"{self.top}/")]:
            shutil.rmtree(self.top)
        assert ended.returncode == 0, f"space down: {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
        assert not left, left

    # ---- the programs ----
    def cli(self, *arguments, check=True, env=None, **more):
        more.setdefault("capture_output", True)
        done = subprocess.run(
            [space_binary(), *arguments, *(["--config", str(self.config)] if env is None else [])],
            text=True, check=False, timeout=more.pop("timeout", 300), env=env, **more)
        if check:
            assert done.returncode == 0, f"space {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def user_env(self, **more):
        """The environment of a user of the CLI: address and key, no configuration file."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("SPACE_")}
        return {**env, "SPACE_URL": self.url, "SPACE_API_KEY": self.key, **more}

    def space(self, *arguments, **more):
        """The CLI as a user has it."""
        return self.cli(*arguments, env=self.user_env(), check=False, **more)

    def up(self):
        self.cli("up", timeout=300)
        self.wait_ready()
        self.wait_started()

    def down(self):
        self.cli("down")

    @property
    def url(self):
        return f"{'https' if self.scheme_tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def key(self):
        return self.key_file.read_text(encoding="utf-8").strip()

    @property
    def api(self):
        if self._api is None:
            self._api = http.Api("127.0.0.1", self.port, self.key, self.spec, self.scheme_tls)
        return self._api

    def is_ready(self):
        api = http.Api("127.0.0.1", self.port, None, self.spec, self.scheme_tls)
        try:
            return api.ask("GET", "/readyz", key=False, timeout=10).status == 200
        except OSError:
            return False
        finally:
            api.close()

    def node_report(self):
        """GET /n1/node, by root over the node's own socket."""
        connection = client.HTTPConnection("node", timeout=30)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(self.run_dir / "node.sock"))
        connection.request("GET", "/n1/node")
        report = json.loads(connection.getresponse().read())
        connection.close()
        return report

    def wait_warm(self, seconds=180):
        """Until the warm pools are full and nothing is being filled."""
        def are_full():
            pools = self.node_report()["pools"]
            return pools and all(p["warm"] >= p["warm_target"] > 0 and not p["filling"] for p in pools)
        poll.until(are_full, seconds, "the warm pools are full", every=0.1)

    def wait_ready(self, seconds=120):
        with self.asking:  # one asks at a time, however many threads wait
            poll.until(self.is_ready, seconds, f"installation {self.name} is ready")

    def wait_started(self, seconds=120):
        """Until VMs are started: it is known which accelerator works."""
        poll.until(lambda: self.node_report()["environment"]["accelerator"], seconds, "the accelerator is known")

    def log_tail(self, lines=40):
        text = ""
        for path in sorted(self.logs.glob("*.log")):
            text += f"---- {path.name}\n" + "\n".join(
                path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]) + "\n"
        return text

    # ---- looking in from the host ----
    def daemons(self, program):
        """Pids of a program of this installation, by its configuration file in argv."""
        return machine.programs(program, str(self.config))

    def daemon(self, program):
        (pid,) = self.daemons(program)
        return pid

    def kill_daemon(self, program, sig=signal.SIGKILL):
        """Kills it and waits until another one has taken its place."""
        pid = self.daemon(program)
        start = machine.start_time(pid)
        os.kill(pid, sig)
        poll.until(lambda: machine.start_time(pid) != start or not machine.is_alive(pid), 10,
                   f"{program} is dead")
        poll.until(lambda: [p for p in self.daemons(program) if p != pid], 30, f"{program} is back")

    def uids(self):
        return range(self.uid_first, self.uid_first + 4096)

    def vmms(self):
        """Its VMMs."""
        return [pid for pid in self.of_uids() if machine.status(pid).get("Name") != "space-objects"]

    def of_uids(self):
        """Pids of processes that run under this installation's uids: VMMs, and the object store's, which has the first."""
        found = []
        for pid in machine.pids():
            status = machine.status(pid)
            uid = int(status.get("Uid", "-1").split()[0])
            if uid in self.uids() and status["State"][0] not in "ZX":
                found.append(pid)
        return found

    def vmm_of(self, sandbox_id):
        """The VMM that has this sandbox's disk open."""
        folder = f"/sandboxes/{sandbox_id}/"
        for pid in self.vmms():
            try:
                if any(folder in machine.link(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")):
                    return pid
            except OSError:
                pass  # it has ended
        raise AssertionError(f"no VMM has the disk of {sandbox_id}")

    def leaks(self):
        """What a stopped and released installation left on the host."""
        found = [f"process {pid}: {machine.cmdline(pid)[:1]}" for pid in self.of_uids()]
        for program in ("space-node", "space-api", "space-supervisor"):
            found += [f"{program} {pid}" for pid in self.daemons(program)]
        found += [f"netns {n}" for n in machine.network_namespaces() if n.startswith(f"{self.name}-")]
        found += [f"mount {m}" for m in machine.mounts() if m.startswith(f"{self.top}/")]
        # Where the root's mounts are private, a mount namespace that somebody else made meanwhile
        # keeps a copy of ours, and with it the device.
        held = machine.mounted_devices()
        found += [f"loop {file}" for device, file in machine.loop_files().items()
                  if file.startswith(f"{self.top}/") and device not in held]
        found += [f"cgroup {c}" for c in machine.cgroups(self.name)]
        links = machine.output("ip", "-o", "link")
        found += [f"link {line.split()[1]}" for line in links.splitlines()
                  if line.split()[1].startswith(self.name)]
        return found
