"""`space up`, `down`, `status` and space-supervisor, with stand-ins for the daemons: no VM is made."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import tarfile

import pytest

from harness import machine, poll
from harness.installation import free_port, space_binary

HERE = pathlib.Path(__file__).parent
SETUP_STUB = "#!/bin/sh\necho \"$(basename \"$0\") $* $SPACE_CONFIG\" >>\"$(dirname \"$0\")/calls\"\nexit 0\n"


def supervisor_binary():
    beside = pathlib.Path(space_binary()).parent / "space-supervisor"
    return beside if beside.exists() else pathlib.Path(space_binary()).parents[1] / "libexec/space/space-supervisor"


@pytest.fixture(scope="module")
def fake_daemon(tmp_path_factory):
    out = tmp_path_factory.mktemp("fake") / "daemon"
    subprocess.run(["cc", "-O1", "-D_GNU_SOURCE", "-o", str(out), str(HERE / "fake_daemon.c")], check=True)
    return out


class Site:
    """One installation of stand-ins below a directory."""

    def __init__(self, top, fake):
        self.top, self.run_dir, self.logs = top, top / "run", top / "log"
        self.config, self.libexec = top / "space.conf", top / "libexec"
        (self.libexec / "setup").mkdir(parents=True)
        for name in ("space-node", "space-api"):
            shutil.copy(fake, self.libexec / name)
        shutil.copy(supervisor_binary(), self.libexec / "space-supervisor")
        for name in ("volume", "user"):
            script = self.libexec / "setup" / name
            script.write_text(SETUP_STUB, encoding="ascii")
            script.chmod(0o755)
        self.port = free_port()
        self.write_config()
        top.chmod(0o755)

    def write_config(self, **more):
        lines = {"installation": "spsup", "data_dir": self.top / "data", "run_dir": self.run_dir, "log_dir": self.logs,
                 "admin_key_file": self.top / "admin.key", "service_user": "daemon", "api.listen": f"127.0.0.1:{self.port}",
                 **more}
        self.config.write_text("".join(f"{k} = {v}\n" for k, v in lines.items()), encoding="ascii")

    def space(self, *arguments, check=True, timeout=60):
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("SPACE_")}, "SPACE_LIBEXEC": str(self.libexec),
               "HOME": str(self.top)}
        done = subprocess.run([space_binary(), *arguments, "--config", str(self.config)], env=env, text=True,
                              capture_output=True, check=False, timeout=timeout)
        if check:
            assert done.returncode == 0, done
        return done

    def checks(self, changes="true"):
        """What doctor says, by name; `changes` run before it in a mount namespace of its own."""
        script = f"mount --make-rprivate / && {changes} && exec \"$@\""
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", space_binary(), "doctor", "--json", "--config",
                               str(self.config)], env={**os.environ, "SPACE_LIBEXEC": str(self.libexec)}, text=True,
                              capture_output=True, check=False, timeout=60)
        assert done.returncode in (0, 1), done.stderr
        return {check["name"]: check for check in json.loads(done.stdout)["checks"]}

    def daemons(self, name):
        return machine.programs(name, str(self.config))

    def daemon(self, name):
        (pid,) = self.daemons(name)
        return pid

    def all(self):
        return {name: self.daemons(name) for name in ("space-supervisor", "space-node", "space-api")}


def open_parents(top):
    """For the service user, as the parents of a real installation are."""
    for parent in (top, *top.parents):
        if "pytest" in str(parent):
            parent.chmod(parent.stat().st_mode | 0o055)


@pytest.fixture
def site(tmp_path_factory, fake_daemon):
    made = Site(tmp_path_factory.mktemp("site"), fake_daemon)
    open_parents(made.top)
    yield made
    made.space("down", check=False)
    for pids in made.all().values():
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def test_up_is_idempotent_and_down_leaves_nothing(site):
    done = site.space("up")
    assert f"http://127.0.0.1:{site.port}" in done.stdout and "started" in done.stdout
    key = site.top / "admin.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and key.read_text(encoding="ascii").startswith("space_")
    assert stat.S_IMODE((site.top / "data/store").stat().st_mode) == 0o700
    before = site.all()
    assert [len(pids) for pids in before.values()] == [1, 1, 1]
    again = site.space("up")
    assert site.all() == before and "running" in again.stdout and "started" not in again.stdout
    assert machine.status(site.daemon("space-api"))["Uid"].split()[0] != "0"
    assert machine.status(site.daemon("space-node"))["Uid"].split()[0] == "0"
    site.space("down")
    assert not any(site.all().values())
    assert (site.run_dir / "stopped-all").exists()
    assert f"volume --config {site.config} --release" in (site.libexec / "setup/calls").read_text(encoding="ascii")
    assert not list(site.run_dir.glob("*.pid"))
    site.space("down")  # of nothing
    assert site.space("up").returncode == 0


def put_guest(site):
    """A guest made of the space-init that is installed, as setup/guest leaves it."""
    guest = site.top / "data/guest"
    guest.mkdir(parents=True, exist_ok=True)
    (guest / "vmlinuz").touch()
    digest = hashlib.sha256((site.libexec / "space-init").read_bytes()).hexdigest()
    (guest / "guest.json").write_text(json.dumps({"init_sha256": digest}), encoding="ascii")


def test_up_renews_the_guests_agent_after_an_upgrade(site):
    """And nothing when it is the installed one; its node is restarted, its kernel stays."""
    calls, script = site.libexec / "setup/calls", site.libexec / "setup/guest"
    script.write_text(SETUP_STUB.replace("exit 0", f"cp {site.top}/renewed {site.top}/data/guest/guest.json"), encoding="ascii")
    script.chmod(0o755)
    (site.libexec / "space-init").write_bytes(b"first")
    put_guest(site)
    site.space("up")
    before = site.all()
    assert "guest" not in calls.read_text(encoding="ascii")
    assert site.checks()["guest kernel"]["status"] == "ok"

    (site.libexec / "space-init").write_bytes(b"second")
    expect_check(site.checks(), "guest kernel", "degraded", "of another version than what is installed", "space up")
    record = site.top / "data/guest/guest.json"
    old = record.read_text(encoding="ascii")
    put_guest(site)
    record.rename(site.top / "renewed")
    record.write_text(old, encoding="ascii")
    os.utime(record, (0, 0))
    site.space("up")
    assert calls.read_text(encoding="ascii").count(f"guest --keep-kernel {site.config}") == 1
    assert site.checks()["guest kernel"]["status"] == "ok"
    after = site.all()
    assert after["space-api"] == before["space-api"] and after["space-node"] != before["space-node"]
    site.space("up")
    assert site.all() == after and calls.read_text(encoding="ascii").count("guest ") == 1


def test_nothing_ties_the_daemons_to_the_caller(site):
    site.space("up")  # with pipes as stdout and stderr: it came back, so nobody holds them
    for name in ("space-supervisor", "space-node", "space-api"):
        for fd in pathlib.Path(f"/proc/{site.daemon(name)}/fd").iterdir():
            assert not os.readlink(fd).startswith("pipe:"), (name, fd)
    assert os.getsid(site.daemon("space-node")) != os.getsid(0)


@pytest.mark.parametrize("name", ["space-node", "space-api"])
def test_a_killed_daemon_is_started_again(site, name):
    site.space("up")
    for _ in range(3):
        before = site.all()
        os.kill(before[name][0], signal.SIGKILL)
        poll.until(lambda b=before: site.daemons(name) not in ([], b[name]), 20, f"{name} is back")
        after = site.all()
        assert {k: v for k, v in after.items() if k != name} == {k: v for k, v in before.items() if k != name}


def pauses(site, name):
    """How long the supervisor waited before each start, in milliseconds, and whether the daemon had served."""
    text = (site.logs / "space-supervisor.log").read_text(encoding="utf-8")
    return [(int(ms), served) for ms, served in re.findall(rf"daemon waits.*daemon={name} pause_ms=(\d+) served=(yes|no)", text)]


def is_served(site):
    with socket.create_connection(("127.0.0.1", site.port), timeout=5) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        return client.recv(100).startswith(b"HTTP/1.1 200")


def test_one_that_served_is_not_waited_for_long(site):
    site.space("up")
    pid = None
    for _ in range(6):
        (pid,) = poll.until(lambda last=pid: [p for p in site.daemons("space-api") if p != last], 20, "it runs")
        poll.until(lambda: is_served(site), 20, "it serves")
        os.kill(pid, signal.SIGKILL)
    poll.until(lambda: len(pauses(site, "space-api")) == 6, 20, "it has ended six times")
    assert pauses(site, "space-api") == [(ms, "yes") for ms in (100, 200, 400, 800, 1000, 1000)]


def test_one_that_never_serves_is_started_less_and_less(site):
    site.run_dir.mkdir()
    (site.run_dir / "api-dies").touch()
    site.space("up", check=False, timeout=60)
    poll.until(lambda: len(pauses(site, "space-api")) >= 5, 20, "it has died five times")
    assert pauses(site, "space-api")[:5] == [(ms, "no") for ms in (100, 200, 400, 800, 1600)]


def test_a_killed_supervisor_is_replaced_and_adopts(site):
    site.space("up")
    before = site.all()
    os.kill(before["space-supervisor"][0], signal.SIGKILL)
    poll.until(lambda: not site.daemons("space-supervisor"), 10, "the supervisor is dead")
    site.space("up")
    after = site.all()
    assert after["space-node"] == before["space-node"] and after["space-api"] == before["space-api"]
    assert len(after["space-supervisor"]) == 1 != before["space-supervisor"]
    # And it watches what it adopted.
    os.kill(after["space-node"][0], signal.SIGKILL)
    poll.until(lambda: site.daemons("space-node") not in ([], after["space-node"]), 20, "the adopted one is back")
    site.space("down")
    assert not any(site.all().values())


def test_down_without_a_supervisor(site):
    site.space("up")
    os.kill(site.daemon("space-supervisor"), signal.SIGKILL)
    poll.until(lambda: not site.daemons("space-supervisor"), 10, "the supervisor is dead")
    site.space("down")
    assert not any(site.all().values())


def test_keep_sandboxes_leaves_them(site):
    site.space("up")
    site.space("down", "--keep-sandboxes")
    assert not any(site.all().values()) and not (site.run_dir / "stopped-all").exists()
    assert "--release" not in (site.libexec / "setup/calls").read_text(encoding="ascii")


@pytest.mark.long
def test_a_stopped_daemon_is_killed(site):
    """One that does not react to SIGTERM must not hold `down` up for ever."""
    site.space("up")
    os.kill(site.daemon("space-node"), signal.SIGSTOP)
    site.space("down", timeout=90)
    assert not any(site.all().values())


def test_a_second_supervisor_is_refused(site):
    site.space("up")
    before = site.all()
    done = subprocess.run([site.libexec / "space-supervisor", "--foreground", "--config", str(site.config), "--libexec",
                           str(site.libexec)], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1 and "another space-supervisor" in done.stderr
    assert site.all() == before


def test_a_reused_pid_is_not_adopted(site):
    site.space("up")
    node = site.daemon("space-node")
    for pids in site.all().values():
        os.kill(pids[0], signal.SIGKILL)
    poll.until(lambda: not any(site.all().values()), 10, "all are dead")
    # A record of the right pid with another start time, and one of a living process that is no daemon.
    (site.run_dir / "space-node.pid").write_text(f"{node} 1\n", encoding="ascii")
    (site.run_dir / "space-api.pid").write_text(f"{os.getpid()} {machine.start_time(os.getpid())}\n", encoding="ascii")
    site.space("up")
    assert [len(pids) for pids in site.all().values()] == [1, 1, 1]


def test_a_new_program_or_new_settings_restart_what_they_concern(site, fake_daemon):
    site.space("up")
    before = site.all()
    fresh = site.libexec / "space-api.new"
    shutil.copy(fake_daemon, fresh)
    fresh.rename(site.libexec / "space-api")
    assert "stale" in site.space("status", check=False).stdout
    done = site.space("up")
    after = site.all()
    assert "installed program is another" in done.stdout
    assert after["space-api"] != before["space-api"] and after["space-node"] == before["space-node"]
    fresh = site.libexec / "space-supervisor.new"
    shutil.copy(supervisor_binary(), fresh)
    fresh.rename(site.libexec / "space-supervisor")
    site.space("up")
    newer = site.all()
    assert newer["space-supervisor"] != after["space-supervisor"]
    assert newer["space-api"] == after["space-api"] and newer["space-node"] == after["space-node"]
    site.write_config(log_level="debug")
    os.utime(site.config, (os.path.getmtime(site.config) + 1,) * 2)
    site.space("up")
    last = site.all()
    assert all(last[name] != newer[name] for name in last)


def test_copied_settings_with_another_data_dir_harm_nobody(site):
    site.space("up")
    before = site.all()
    (site.top / "other").mkdir()
    site.write_config(data_dir=site.top / "other")
    for command in ("up", "down"):
        done = site.space(command, check=False)
        assert done.returncode != 0 and site.all() == before, done
        assert (f"runs in {site.run_dir} for the data_dir {site.top}/data, not for {site.top}/other: set another run_dir"
                in done.stderr), done
    assert not list((site.top / "other").iterdir())
    (site.top / "link").symlink_to(site.top / "data")
    site.write_config(data_dir=site.top / "link")
    site.space("down")
    assert not any(site.all().values())


def test_a_daemon_that_dies_at_once_fails_up_with_its_reason(site):
    site.run_dir.mkdir()
    (site.run_dir / "api-dies").touch()
    done = site.space("up", check=False, timeout=60)
    assert done.returncode == 1
    assert "space-api does not stay up" in done.stderr and done.stderr.count("the store is newer") == 1
    assert "log of space-node" not in done.stderr
    (site.run_dir / "api-dies").unlink()
    site.space("up")


def test_a_taken_port_is_named(site):
    with socket.socket() as other:
        other.bind(("127.0.0.1", site.port))
        other.listen()
        done = site.space("up", check=False)
    assert done.returncode == 1 and str(site.port) in done.stderr and "api.listen" in done.stderr
    assert not any(site.all().values())


def test_a_broken_settings_file_is_named(site):
    with open(site.config, "a", encoding="ascii") as file:
        file.write("nosuch.key = 1\n")
    done = site.space("up", check=False)
    assert done.returncode == 1 and f"{site.config} line 8" in done.stderr and "nosuch.key" in done.stderr
    assert "nosuch.key" in site.space("doctor", check=False).stdout


def test_logs_are_rotated_without_loss(site):
    site.space("up")
    os.kill(site.daemon("space-supervisor"), signal.SIGUSR1)
    poll.until(lambda: not site.daemons("space-supervisor"), 10, "the supervisor has left")
    subprocess.run([site.libexec / "space-supervisor", "--config", str(site.config), "--libexec", str(site.libexec),
                    "--log-limit", "20000"], check=True, timeout=30)
    log = site.logs / "space-node.log"
    os.kill(site.daemon("space-node"), signal.SIGUSR2)
    poll.until(lambda: (site.logs / "space-node.log.1").exists() and log.stat().st_size < 20000, 20, "it is rotated")
    os.kill(site.daemon("space-node"), signal.SIGUSR2)
    poll.until(lambda: sum(p.read_text(encoding="ascii").count("line 000999 ") for p in site.logs.glob("space-node.log*")) == 2,
               20, "the second burst is there")
    lines = [line for name in ("log.2", "log.1", "log") if (site.logs / f"space-node.{name}").exists()
             for line in (site.logs / f"space-node.{name}").read_text(encoding="ascii").splitlines() if line.startswith("line ")]
    assert len(lines) == 2000


def test_status(site):
    stopped = site.space("status", check=False)
    assert stopped.returncode == 1 and "stopped" in stopped.stdout and "space up" in stopped.stdout
    assert len(stopped.stdout.splitlines()) == 2
    site.space("up")
    document = json.loads(site.space("status", "--json", check=False).stdout)
    assert document["supervision"] == "space-supervisor" and document["api"]["state"] == "ready"
    assert [d["state"] for d in document["daemons"]] == ["running"] * 3
    # The stand-in of the node has no socket.
    assert document["healthy"] is False and "node.sock" in document["node_error"] and "port" not in document["node_error"]


def test_doctor_finds_a_stopped_installation(site):
    (site.top / "data/volume").mkdir(parents=True)
    (site.top / "data/format").write_text("999\n", encoding="ascii")
    done = site.space("doctor", "--json", check=False)
    checks = {c["name"]: c for c in json.loads(done.stdout)["checks"]}
    assert done.returncode == 1
    assert checks["space-node"]["status"] == "missing" and checks["space-node"]["remedy"] == "space up starts it"
    assert checks["data directory"]["status"] == "missing" and "999" in checks["data directory"]["message"]
    assert checks["port"]["status"] == "ok" and checks["settings"]["status"] == "ok"
    assert {"kvm", "cgroup", "qemu", "netns", "loop", "tun", "clock", "uid range", "volume"} <= set(checks)
    for check in checks.values():
        assert check["status"] == "ok" or check["remedy"], check


def expect_check(checks, name, status, message, remedy):
    check = checks[name]
    assert check["status"] == status and message in check["message"] and remedy in check["remedy"], check


def test_doctor_names_what_the_machine_lacks(site):
    """Each part is taken away in a mount namespace of doctor's own; before, it was there."""
    packages = site.libexec / "packages"
    packages.mkdir()
    shutil.copy(HERE.parents[1] / "tools/packages/runtime.list", packages)
    dpkg = site.top / "status"
    paragraphs = pathlib.Path("/var/lib/dpkg/status").read_text(encoding="utf-8").split("\n\n")
    dpkg.write_text("\n\n".join(p for p in paragraphs if not p.startswith("Package: xfsprogs\n")), encoding="utf-8")
    before = site.checks()
    assert {name: before[name]["status"] for name in ("cgroup", "tun", "loop", "packages")} == \
        {"cgroup": "ok", "tun": "ok", "loop": "ok", "packages": "ok"}

    expect_check(site.checks(f"mount --bind {dpkg} /var/lib/dpkg/status"), "packages", "missing", "xfsprogs", "setup/packages")
    lacking = site.checks("mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/cpu && mount -t tmpfs none /dev/net && "
                          "mount --bind /dev/null /dev/loop-control && mount --bind /dev/null /dev/kvm")
    expect_check(lacking, "cgroup", "missing", "without: memory pids", "cgroup_enable=memory")
    expect_check(lacking, "tun", "missing", "/dev/net/tun", "modprobe tun")
    expect_check(lacking, "kvm", "degraded", "is no KVM", "kvm_amd")
    expect_check(site.checks("mount -t tmpfs none /sys/fs"), "cgroup", "missing", "/sys/fs/cgroup is not there", "mount")


def test_doctor_names_what_the_installation_lacks(site):
    site.write_config(**{"node.qemu": "/bin/false"})
    expect_check(site.checks(), "qemu", "missing", "/bin/false does not run", "node.qemu")
    volume = site.top / "data/volume"
    volume.mkdir(parents=True)
    (volume / ".space-volume").write_text("plain directory\n", encoding="ascii")
    expect_check(site.checks(), "volume", "degraded", "no reflink", "XFS or btrfs")


    (volume / ".space-volume").unlink()
    checks = site.checks()
    expect_check(checks, "volume", "missing", "not mounted", "space up mounts it")
    assert "template base" not in checks and "free space" not in checks, "what is on a volume that is not there"


def test_doctor_tells_a_volume_that_gives_its_room_away(site):
    volume, image = site.top / "data/volume", site.top / "image"
    volume.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(320 << 20)
    machine.output("mkfs.xfs", "-q", str(image))

    def checks(option):
        return site.checks(f"mount -o loop,{option} {image} {volume} && echo xfs image >{volume}/.space-volume")

    expect_check(checks("discard"), "volume", "degraded", "mounted with discard", "space down, then space up")
    assert "discard" not in checks("nodiscard")["volume"]["message"]


def test_an_open_address_without_tls_is_said(site):
    assert site.checks()["listen"]["status"] == "ok"
    site.write_config(**{"api.listen": f"0.0.0.0:{site.port}"})
    expect_check(site.checks(), "listen", "degraded", f"0.0.0.0:{site.port} without TLS", "api.tls_certificate")
    done = site.space("up")
    assert f"warning: api.listen = 0.0.0.0:{site.port}" in done.stderr and "tls_key" in done.stderr
    assert f"listens on        0.0.0.0:{site.port}" in done.stdout
    assert f"http://127.0.0.1:{site.port}, listening on 0.0.0.0:{site.port}" in site.space("status", check=False).stdout


def test_doctor_names_a_stale_daemon(site):
    site.space("up")
    assert site.checks()["space-api"]["status"] == "ok"
    program = site.libexec / "space-api"
    shutil.copy(program, site.top / "newer")
    (site.top / "newer").rename(program)
    expect_check(site.checks(), "space-api", "degraded", "stale", "space up")


def test_doctor_names_damaged_journals(site):
    sandboxes = site.top / "data/volume/sandboxes"
    good = {"format": 1, "state": "running", "reason_code": "", "reason_message": "", "template": "base",
            "template_version": "tm1", "hostname": "h", "user": "user", "vcpus": 1, "memory_mib": 512, "disk_mib": 4096,
            "created_at_ms": 1, "identity_epoch": 1}
    names = ["sb" + letter * 18 for letter in "abcdef"]
    for name in names:
        (sandboxes / name).mkdir(parents=True)
    for name in names[:4]:
        (sandboxes / name / "journal.json").write_text(json.dumps({**good, "id": name}), encoding="ascii")

    def check():
        done = site.space("doctor", "--json", check=False)
        return next(c for c in json.loads(done.stdout)["checks"] if c["name"] == "journals")

    assert check()["status"] == "ok"
    (sandboxes / names[0] / "journal.json").write_text("{\"format\": 1", encoding="ascii")
    (sandboxes / names[1] / "journal.json").write_text(json.dumps({**good, "id": names[2]}), encoding="ascii")
    (sandboxes / names[2] / "env.json").write_text("[]", encoding="ascii")
    damaged = check()
    assert damaged["status"] == "degraded" and damaged["message"].startswith("3 damaged")
    assert f"{names[0]}/journal.json" in damaged["message"] and f"{names[2]}/env.json" in damaged["message"]
    assert "disk.img" in damaged["remedy"] and "space rm" in damaged["remedy"]


def test_doctor_sees_a_uid_range_that_is_not_free(site):
    site.write_config(**{"node.vmm_uid_first": 60000, "node.vmm_uid_count": 10000})
    checks = {c["name"]: c for c in json.loads(site.space("doctor", "--json", check=False).stdout)["checks"]}
    assert checks["uid range"]["status"] == "degraded" and "nobody" in checks["uid range"]["message"]


def test_a_bundle_leaves_every_secret_out(site):
    site.space("up")
    secrets = ["hunter2-planted", "space_00000000000000000000000000000000", "space_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz",
               "MIIEplanted", "enV-planted-value"]
    with open(site.logs / "space-api.log", "a", encoding="ascii") as log:
        log.write(f"authorization: Bearer {secrets[0]}\nkey={secrets[1]} other {secrets[2]}\n"
                  f"-----BEGIN PRIVATE KEY-----\n{secrets[3]}\n-----END PRIVATE KEY-----\nGET /x?token={secrets[0]} done\n")
    with open(site.config, "a", encoding="ascii") as config:
        config.write(f"# password = {secrets[0]}\n")
    sandbox = site.top / "data/volume/sandboxes/sb000000000000000000"
    sandbox.mkdir(parents=True)
    (sandbox / "journal.json").write_text(json.dumps({"id": sandbox.name, "env": {"A": secrets[4]}, "api_token": secrets[0],
                                                      "inner": [{"env": {"B": secrets[4]}}]}), encoding="ascii")
    (sandbox / "env.json").write_text(json.dumps({"A": secrets[4]}), encoding="ascii")
    target = site.top / "b.tar.gz"
    site.space("doctor", "--bundle", str(target), check=False)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with tarfile.open(target) as bundle:
        content = {m.name: bundle.extractfile(m).read().decode() for m in bundle.getmembers() if m.isfile()}
    for name, text in content.items():
        for secret in secrets:
            assert secret not in text, name
    names = {name.removeprefix("space-bundle/") for name in content}
    assert {"doctor.json", "space.conf", "version.txt", "logs/space-api.log", f"journals/{sandbox.name}.json"} <= names
    assert "other space_[removed]" in content["space-bundle/logs/space-api.log"]
    assert not list(pathlib.Path("/var/tmp").glob("space-bundle-*"))


def test_root_makes_a_key_without_one(site):
    site.space("up")
    (site.top / "admin.key").unlink()
    out = site.top / "mine.key"
    site.space("keys", "create", "--role", "admin", "--out", str(out), "mine")
    assert out.read_text(encoding="ascii") == "space_00000000000000000000000000000000\n"
