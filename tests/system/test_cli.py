"""The `space` command as its users have it."""

import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import tarfile

import pytest

from harness import poll
from harness.installation import space_binary


@pytest.fixture(scope="module")
def box(installation):
    done = installation.space("create", "--name", "cli-box", "base")
    assert done.returncode == 0, done.stderr
    yield done.stdout.strip()
    installation.space("rm", "--yes", "cli-box")


def test_create_prints_only_the_id(box):
    assert box.startswith("sb") and len(box) == 20 and "\n" not in box


def test_run_passes_output_and_status_on(installation):
    done = installation.space("run", "base", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


def test_exec_by_name_and_by_id(installation, box):
    for name in ("cli-box", box):
        done = installation.space("exec", name, "--", "echo", "hi")
        assert (done.returncode, done.stdout) == (0, "hi\n"), done


def test_exec_statuses(installation, box):
    assert installation.space("exec", box, "--", "sh", "-c", "exit 42").returncode == 42
    assert installation.space("exec", box, "--", "sh", "-c", "kill -TERM $$").returncode == 128 + 15
    assert installation.space("exec", box, "--", "/nosuch").returncode == 125
    assert installation.space("exec", "no-such-box", "--", "true").returncode == 125


def test_exec_options(installation, box):
    done = installation.space("exec", "-e", "A=1", "-w", "/tmp", "-u", "root", box, "--", "sh", "-c", "echo $A; pwd; id -u")
    assert done.stdout == "1\n/tmp\n0\n"


def test_exec_reads_standard_input(installation, box):
    done = installation.space("exec", "-i", box, "--", "cat", input="through the pipe\n")
    assert done.stdout == "through the pipe\n"


def test_exec_streams_while_it_runs(installation, box):
    child = subprocess.Popen([space_binary(), "exec", box, "--", "sh", "-c", "echo first; sleep 30"],
                             stdout=subprocess.PIPE, env=installation.user_env(), text=True)
    assert child.stdout.readline() == "first\n"
    child.send_signal(signal.SIGINT)
    assert child.wait(30) == 130


def test_ctrl_c_kills_the_remote_process(installation, api, box):
    child = subprocess.Popen([space_binary(), "exec", box, "--", "sh", "-c", "echo ready; exec sleep 4801"],
                             stdout=subprocess.PIPE, env=installation.user_env(), text=True)
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    child.wait(30)
    poll.until(lambda: api.run(box, "pgrep -f '^sleep 480[1]'")["exit_code"] == 1, 10, "the process is gone")


def test_much_output_is_exact(installation, box):
    done = installation.space("exec", box, "--", "seq", "1", "100000")
    assert done.stdout == "".join(f"{i}\n" for i in range(1, 100001))


def test_detached_ps_logs_kill(installation, box):
    started = installation.space("exec", "-d", box, "--", "sh", "-c", "echo logged; sleep 1000")
    assert started.returncode == 0, started.stderr
    process = started.stdout.strip()
    assert process.startswith("pr")
    assert process in installation.space("ps", box).stdout
    poll.until(lambda: installation.space("logs", box, process).stdout == "logged\n", 10, "logs")
    assert installation.space("kill", box, process).returncode == 0
    listed = json.loads(installation.space("ps", "--json", box).stdout)["items"]
    assert next(p for p in listed if p["id"] == process)["signal"] == "SIGKILL"


def test_signal(installation, box):
    def ended_by(process):
        listed = json.loads(installation.space("ps", "--json", box).stdout)["items"]
        return next(p for p in listed if p["id"] == process)["signal"]

    for words, signal in (((box, "{}", "SIGTERM"), "SIGTERM"), (("{}", "int"), "SIGINT"), ((box, "{}", "9"), "SIGKILL")):
        process = installation.space("exec", "-d", box, "--", "sleep", "1000").stdout.strip()
        wrong = installation.space("signal", box, "SIGTERM", process)
        assert wrong.returncode == 2 and "unknown signal" in wrong.stderr and ended_by(process) is None, wrong
        done = installation.space("signal", *(word.format(process) for word in words))
        assert done.returncode == 0, done
        poll.until(lambda p=process, s=signal: ended_by(p) == s, 10, f"{signal} has ended it")


def test_ls_and_show(installation, box):
    table = installation.space("ls").stdout
    assert "cli-box" in table and box in table and "running" in table
    listed = json.loads(installation.space("ls", "--json").stdout)
    assert box in [item["id"] for item in listed["items"]]
    assert json.loads(installation.space("show", "--json", "cli-box").stdout)["id"] == box
    assert "running" in installation.space("show", box).stdout


def test_templates_and_version(installation):
    assert "base" in installation.space("templates").stdout
    assert "0.1.0" in installation.space("version").stdout


def test_keys(installation, tmp_path):
    out = tmp_path / "user.key"
    done = installation.space("keys", "create", "--role", "member", "--out", str(out), "a-user")
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    key = out.read_text(encoding="utf-8").strip()
    assert key not in done.stdout + done.stderr
    env = installation.user_env(SPACE_API_KEY=key)
    assert subprocess.run([space_binary(), "ls"], env=env, check=False, capture_output=True).returncode == 0
    listed = json.loads(installation.space("keys", "--json").stdout or installation.space("keys", "ls", "--json").stdout)
    assert "a-user" in [item["name"] for item in listed["items"]]


def test_refusals_are_status_1_with_code_and_message(installation):
    done = installation.space("show", "nosuch")
    assert done.returncode == 1 and "not_found" in done.stderr and done.stdout == ""
    done = installation.space("create", "nosuch-template")
    assert done.returncode == 1 and "not_found" in done.stderr


@pytest.mark.parametrize("arguments", [("nosuch",), ("create",), ("show",), ("ls", "--nosuch"), ("exec",), ("create", "--vcpus")])
def test_wrong_usage_is_status_2(installation, arguments):
    done = installation.space(*arguments)
    assert done.returncode == 2 and done.stderr and done.stdout == "", done


def test_an_api_that_cannot_be_reached_is_status_3(installation):
    env = installation.user_env(SPACE_URL="http://127.0.0.1:9")
    done = subprocess.run([space_binary(), "ls"], env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 3 and "127.0.0.1:9" in done.stderr
    done = subprocess.run([space_binary(), "run", "base", "--", "true"], env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 125


def test_env_prints_what_a_shell_can_evaluate(installation):
    done = installation.cli("env")
    script = done.stdout + f'\n"{space_binary()}" ls --json'
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SPACE_")}
    assert json.loads(subprocess.run(["sh", "-c", script], env=clean, check=True, capture_output=True, text=True).stdout)


def test_status_and_doctor(installation, api):
    status = installation.cli("status")
    assert "space-node" in status.stdout and "space-api" in status.stdout
    installation.wait_warm()
    document = json.loads(installation.cli("status", "--json").stdout)["node"]
    lines = dict(line.split(maxsplit=1) for line in installation.cli("status").stdout.splitlines())
    pool = document["pools"][0]
    assert (pool["template"], pool["warm_target"]) == ("base", 3) and pool["warm"] >= 3
    assert lines["pools"].startswith(f"base: {pool['warm']} of 3 warm; ") and lines["pools"].endswith(" prepared")
    own = api.create()  # admitted memory grows by what a sandbox may use, free disk is that of the volume
    more = json.loads(installation.cli("status", "--json").stdout)["node"]
    assert more["memory"]["admitted_mib"] == document["memory"]["admitted_mib"] + own["memory_mib"]
    api.delete(own["id"])
    volume = os.statvfs(installation.data / "volume")
    assert abs(more["disk"]["total_mib"] - volume.f_blocks * volume.f_frsize // 2**20) <= 1
    assert " of " in lines["memory"] and "admitted" in lines["memory"] and "free" in lines["disk"]
    doctor = installation.cli("doctor", check=False)
    assert "cgroup" in doctor.stdout.lower()


def test_doctor_tells_a_kvm_that_opens_from_one_that_runs_guests(installation):
    """What the node found out with a guest of its own is said as it stands, beside what is seen from here."""
    document = json.loads(installation.cli("doctor", "--json", check=False).stdout)
    found = {check["name"]: check for check in document["checks"]}
    environment = installation.node_report()["environment"]
    said = f"{environment['accelerator']}: {environment['accelerator_reason']}"
    try:
        os.close(os.open("/dev/kvm", os.O_RDWR))
        assert found["kvm"]["status"] == "ok"
        assert re.fullmatch(r"/dev/kvm opens, API version \d+; whether a guest runs is for the node to try", found["kvm"]["message"])
    except OSError as error:
        assert found["kvm"]["status"] == "degraded" and os.strerror(error.errno) in found["kvm"]["message"]
    assert environment["accelerator"] in ("kvm", "tcg") and environment["accelerator_reason"], environment
    if environment["accelerator"] == "kvm":
        assert found["accelerator"] == {"name": "accelerator", "status": "ok", "message": said, "remedy": None}
        return
    assert found["accelerator"] == {"name": "accelerator", "status": "degraded", "message": said,
                                    "remedy": "a machine whose KVM runs guests; node.accelerator = kvm forces it"}
    line = next(line for line in installation.cli("doctor", check=False).stdout.splitlines() if line.split()[1:2] == ["accelerator"])
    assert line.split()[0] == "degraded" and said in line


def test_a_bundle_has_no_secrets(installation, tmp_path):
    target = tmp_path / "2026-12-01T10:00.tar.gz"  # a colon means another machine to tar
    done = installation.cli("doctor", "--bundle", str(target), check=False)
    assert target.exists(), done
    with tarfile.open(target) as bundle:
        names = bundle.getnames()
        for member in bundle.getmembers():
            if member.isfile():
                assert installation.key.encode() not in bundle.extractfile(member).read(), member.name
    assert any("log" in name for name in names) and any(name.endswith(".conf") for name in names)


def test_up_again_changes_nothing(installation):
    before = installation.daemon("space-node"), installation.daemon("space-api")
    installation.up()
    assert (installation.daemon("space-node"), installation.daemon("space-api")) == before


def test_help_names_every_verb():
    text = subprocess.run([space_binary(), "--help"], check=True, capture_output=True, text=True).stdout
    for verb in "up down status doctor version env run create ls show rm stats exec shell attach ps signal kill logs cp watch ports forward templates keys node pause suspend wake".split():
        assert verb in text.split(), verb
        assert subprocess.run([space_binary(), verb, "--help"], check=False, capture_output=True).returncode == 0, verb


def test_rm_takes_several_and_is_gone(installation):
    made = [installation.space("create", "base").stdout.strip() for _ in range(2)]
    assert installation.space("rm", "--yes", *made).returncode == 0
    for sandbox in made:
        assert installation.space("show", sandbox).returncode == 1


def test_nobody_else_reads_the_volume(installation):
    """The image has every sandbox's files, whatever the modes of the directories in it."""
    image = installation.data / "volume.img"
    if not image.exists():  # the data directory is on a filesystem that clones files
        for path in (installation.data / "volume").iterdir():
            assert path.name in ("templates", ".space-volume") or path.stat().st_mode & 0o077 == 0, path
        return

    def found():
        checks = json.loads(installation.cli("doctor", "--json", check=False).stdout)["checks"]
        return next(check for check in checks if check["name"] == "volume image")

    assert (image.stat().st_mode & 0o777, image.stat().st_uid) == (0o600, 0) and found()["status"] == "ok"
    image.chmod(0o644)  # as earlier versions left it
    said = found()
    assert said["status"] == "missing" and "can be read by others" in said["message"] and f"chmod 0600 {image}" in said["remedy"]
    installation.cli("up")
    assert image.stat().st_mode & 0o777 == 0o600 and found()["status"] == "ok"
