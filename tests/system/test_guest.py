"""Inside a sandbox: the base template, identity, kernel, no way out."""

import io
import os
import re
import signal
import threading
import time
import zipfile

import pytest

from harness import machine, poll
from harness.attach import Attached
from harness.files import Files

NO_NETWORK = "There is no network yet. apt, pip, git clone and curl reach nothing outside"


@pytest.fixture(scope="module", autouse=True)
def frozen(installation):
    """A sandbox whose VMM is stopped, and a command that asks it: its deadline passes meanwhile."""
    api = installation.api.as_key(installation.key)
    sandbox = api.create()["id"]
    pid = installation.vmm_of(sandbox)
    os.kill(pid, signal.SIGSTOP)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(
        api.ask("POST", f"/v1/sandboxes/{sandbox}/run", {"argv": ["true"], "timeout_seconds": 2})))
    asking.start()
    yield sandbox, pid, asking, answers
    api.expect((200, 404), "DELETE", f"/v1/sandboxes/{sandbox}", query={"wait": 60})


@pytest.fixture(scope="module")
def pair(installation):
    """Two sandboxes, whichever way they were made."""
    api = installation.api
    made = [api.create(name="twin-a"), api.create(name="twin-b")]
    yield made
    for sandbox in made:
        api.delete(sandbox["id"])


def each(api, pair, command, **more):
    return [api.check_output(s["id"], command, **more) for s in pair]


def wheel(name, version, code):
    """A package of one module, as pip takes it."""
    info = f"{name}-{version}.dist-info"
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(f"{name}.py", code)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return made.getvalue()


# What every sandbox is given, at a time of its own: names and ids, and what the guest's start mounts.
GIVEN = re.compile(r"/(etc(/hostname|/hosts|/machine-id)?|(dev|proc|run|sys)(/.*)?)")


def what_is_there(api, sandbox):
    """Files with mode, size, owner and time; processes but the kernel's; the console."""
    api.check_output(sandbox, "find / /run /dev/shm -xdev -printf '%p\\t%y %m %s %U %G\\t%T@\\n' > /dev/shm/.files", user="root", timeout_seconds=120)
    lines = [line.split("\t") for line in Files(api, sandbox).read("/dev/shm/.files").decode().splitlines()]
    files = {(path, what, "" if GIVEN.fullmatch(path) else changed) for path, what, changed in lines if path != "/dev/shm/.files"}
    processes = [line for line in api.check_output(sandbox, ["ps", "-eo", "args="]).splitlines()
                 if not line.startswith("[") or "defunct" in line]
    console = api.expect(200, "GET", f"/v1/sandboxes/{sandbox}/console").body.decode()
    return {"files": files, "processes": set(processes), "console": {console}}


class TestIdentity:
    @pytest.mark.parametrize("command", [
        "cat /etc/machine-id", "cat /proc/sys/kernel/random/boot_id", "cat /proc/sys/kernel/random/uuid",
        "head -c 32 /dev/urandom | xxd -p -c 99", "python3 -c 'import secrets; print(secrets.token_hex(32))'",
        "python3 -c 'import random; print(random.getrandbits(256))'", "openssl rand -hex 32", "mktemp -u",
    ])
    def test_two_sandboxes_share_no_randomness(self, api, pair, command):
        first, second = each(api, pair, command)
        assert first != second and len(first) > 10

    def test_many_sandboxes_share_no_ids(self, installation):
        api = installation.api
        seen = []
        for _ in range(6):
            result = api.post("/v1/run", {"template": "base", "shell":
                              "cat /etc/machine-id /proc/sys/kernel/random/boot_id; python3 -c "
                              "'import secrets,uuid; print(secrets.token_hex(16)); print(uuid.uuid4())'"})
            seen += result["stdout"].split()
        assert len(set(seen)) == 24

    def test_the_hostname_is_the_sandbox(self, api, pair, sandboxes):
        assert each(api, pair, "hostname; hostname -f >/dev/null; cat /etc/hostname") == ["twin-a\ntwin-a\n", "twin-b\ntwin-b\n"]
        unnamed = sandboxes()
        assert api.check_output(unnamed["id"], "hostname") == unnamed["id"] + "\n"
        assert api.run(unnamed["id"], "sudo true")["stderr"] == ""

    def test_the_clock_is_right(self, api, pair):
        for sandbox in pair:
            before = time.time()
            guest = float(api.check_output(sandbox["id"], "date +%s.%N"))
            assert before - 0.5 <= guest <= time.time() + 0.5

    def test_no_rehearsal_is_to_be_seen(self, api, pair):
        for sandbox in pair:
            files = api.check_output(sandbox["id"], "find /tmp /home/user /var/tmp -newermt '2000-01-01' -not -path '*/.*' "
                                                     "-mindepth 1 -printf '%p\\n'", user="root")
            assert files == "", files
            assert api.check_output(sandbox["id"], "ps -eo args= | grep -vE '^\\[|^ps|grep|bash -c|/init' || true") == ""
            assert api.check_output(sandbox["id"], "ls /home/user/.bash_history /root/.bash_history 2>/dev/null || true") == ""

    def test_a_warm_sandbox_is_as_one_that_never_waited(self, api, installation, sandboxes):
        """Every file, process and line of the console: of one from the warm pool and of one of a size that has no pool."""
        installation.wait_warm()
        waiting = set(installation.vmms())
        warm = sandboxes(name="alike")["id"]
        assert installation.vmm_of(warm) in waiting, "it waited"
        api.expect(200, "PATCH", f"/v1/sandboxes/{warm}", {"name": "was-alike"})
        cold = sandboxes(name="alike", memory_mib=256)["id"]
        looks = [what_is_there(api, sandbox) for sandbox in (warm, cold)]
        assert len(looks[0]["files"]) > 10000 and "/init" in looks[0]["processes"]
        for name, seen in looks[0].items():
            assert seen == looks[1][name], (name, sorted(seen ^ looks[1][name])[:20])

    def test_no_stored_seed(self, api, pair):
        assert api.check_output(pair[0]["id"], "find /var/lib -name 'random-seed*'", user="root") == ""
        assert api.check_output(pair[0]["id"], "ls /etc/ssh/ssh_host_* 2>/dev/null || true") == ""


class TestTemplate:
    def test_it_is_debian_12_with_a_kernel_of_its_own(self, api, shared):
        assert api.check_output(shared, ". /etc/os-release; echo $VERSION_ID") == "12\n"
        assert api.check_output(shared, "uname -r").strip() != os.uname().release
        assert api.check_output(shared, "tr '\\0' '\\n' < /proc/1/cmdline | head -n 1", user="root") == "/init\n"

    @pytest.mark.parametrize("tool", [
        "python3", "pip", "git", "curl", "gcc", "make", "sudo", "jq", "rg", "tar", "xz", "zstd", "unzip", "tmux", "vim",
        "sqlite3", "openssl", "strace", "less", "wget", "rsync", "bash",
    ])
    def test_tools_are_there(self, api, shared, tool):
        assert api.run(shared, ["which", tool])["exit_code"] == 0

    @pytest.mark.long
    def test_python_makes_environments(self, api, sandboxes):
        """And pip installs into one what was brought along. Its own copy of pip would take a minute under emulation: that it
        could be had is seen by ensurepip's wheel."""
        sandbox = sandboxes()["id"]
        Files(api, sandbox).put("/home/user/brought-1.0-py3-none-any.whl", wheel("brought", "1.0", "def said():\n    return 'brought along'\n"))
        said = api.check_output(sandbox, "python3 -m venv --without-pip --system-site-packages env && "
                                         "env/bin/python -m pip -q install --no-index ./brought-1.0-py3-none-any.whl && "
                                         "env/bin/python -c 'import brought, ssl, sqlite3, ctypes; print(brought.said(), brought.__file__)' && "
                                         "python3 -c 'import ensurepip; ensurepip.version()'", timeout_seconds=120)
        assert said == "brought along /home/user/env/lib/python3.11/site-packages/brought.py\n"

    @pytest.mark.long
    def test_an_environment_has_a_pip_of_its_own(self, api, sandboxes):
        """As everybody types it."""
        sandbox = sandboxes()["id"]
        Files(api, sandbox).put("/home/user/brought-1.0-py3-none-any.whl", wheel("brought", "1.0", "def said():\n    return 'brought along'\n"))
        said = api.check_output(sandbox, "python3 -m venv env && . env/bin/activate && which pip && "
                                         "pip -q install --no-index ./brought-1.0-py3-none-any.whl && "
                                         "python -c 'import brought; print(brought.said(), brought.__file__)'", timeout_seconds=280)
        assert said == "/home/user/env/bin/pip\nbrought along /home/user/env/lib/python3.11/site-packages/brought.py\n"

    def test_a_c_program_builds_and_runs(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        code = "printf '#include <stdio.h>\\nint main(void){puts(\"built\");}' > a.c && gcc -O2 -o a a.c && ./a"
        assert api.check_output(sandbox, code, timeout_seconds=120) == "built\n"

    def test_git_works_offline(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        code = "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --oneline | wc -l"
        assert api.check_output(sandbox, code, timeout_seconds=60) == "1\n"

    def test_the_user_and_sudo(self, api, shared):
        assert api.check_output(shared, "id -u; id -un; sudo -n id -u") == "1000\nuser\n0\n"

    def test_root_owns_the_whole_guest(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        api.check_output(sandbox, "mount -t tmpfs t /mnt && echo x > /mnt/y && sysctl -q vm.swappiness=10 && "
                                  "unshare -n true && umount /mnt", user="root")

    def test_ca_certificates_are_there(self, api, shared):
        assert int(api.check_output(shared, "grep -c BEGIN /etc/ssl/certs/ca-certificates.crt")) > 50

    def test_the_greeting_says_that_there_is_no_network(self, api, shared):
        said = " ".join(api.check_output(shared, ["cat", "/etc/motd"]).split())
        assert f"{NO_NETWORK}. To bring things in: - files: `space cp SOURCE SANDBOX:PATH`" in said
        assert "- packages: on the host, copy the template recipe" in said and "step `template NAME`" in said

    @pytest.mark.parametrize("shell", [["bash"], ["bash", "--login"]])
    def test_an_interactive_shell_shows_it_once(self, api, shared, shell):
        _, session = api.start(shared, shell, tty={"cols": 100, "rows": 30, "term": "dumb"})
        with Attached(api, session["id"]) as at:
            at.write(b"echo the-''first\n")
            at.read_until(b"the-first")
            at.write(b"bash\n")  # one in it is no other visit
            at.write(b"echo the-''second\n")
            at.read_until(b"the-second")
            at.write(b"exit\nexit\n")
            at.read_to_end()
        assert at.output["stdout"].count(NO_NETWORK.encode()) == 1, at.output

    def test_a_command_shows_none(self, api, shared):
        assert NO_NETWORK not in api.check_output(shared, "bash -l -c true; bash -c true 2>&1")

    def test_the_package_list_is_recorded(self, installation):
        current = installation.data / "volume/templates/base/current"
        listed = (current / "packages.txt").read_text(encoding="utf-8")
        assert "python3" in listed and "gcc" in listed

    def test_the_disk_keeps_what_is_written(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        api.check_output(sandbox, "dd if=/dev/urandom of=f bs=1M count=64 status=none; sync; sha256sum f > s; "
                                  "sudo sh -c 'echo 3 > /proc/sys/vm/drop_caches'; sha256sum -c s", timeout_seconds=120)


class TestNoWayOut:
    def test_no_address_but_loopback_answers(self, api, shared):
        assert api.check_output(shared, "ip -o link | awk -F': ' '{print $2}' | sort").split() == ["eth0", "lo"]
        for command in ("ping -c 1 -W 1 1.1.1.1", "timeout 3 bash -c '</dev/tcp/10.0.0.1/80'", "timeout 3 getent hosts debian.org",
                        "timeout 5 curl -sS -m 3 http://192.168.0.1/", "timeout 3 bash -c 'echo x > /dev/udp/8.8.8.8/53'; exit 1"):
            assert api.run(shared, command)["exit_code"] != 0, command

    def test_not_even_for_root_with_addresses_of_its_own(self, installation, api, sandboxes):
        sandbox = sandboxes()["id"]
        api.check_output(sandbox, "ip link set eth0 up && ip addr replace 10.1.1.2/8 dev eth0 && ip route replace default via 10.1.1.1",
                         user="root")
        assert "dev eth0" in api.check_output(sandbox, "ip route get 172.17.0.1", user="root")
        own = [host for host in machine.output("hostname", "-I").split() if ":" not in host][:2]
        for host in ("10.1.1.1:80", "169.254.169.254:80", *(f"{host}:{installation.port}" for host in ("172.17.0.1", *own))):
            done = api.run(sandbox, f"timeout 1 bash -c '</dev/tcp/{host.replace(':', '/')}' 2>&1", user="root")
            assert done["exit_code"] == 124 or "No route to host" in done["stdout"], (host, done)
        sent = api.check_output(sandbox, "cat /sys/class/net/eth0/statistics/tx_packets", user="root")
        assert int(sent) > 0, "it was tried"

    def test_the_user_cannot_speak_as_the_agent(self, api, shared):
        """The ports on which agent and host speak are root's."""
        ports = api.check_output(shared, "ls /dev/vport*").split()
        assert ports
        for port in ports:
            for way in ("<", ">"):
                done = api.run(shared, f"true {way} {port}")
                assert done["exit_code"] != 0 and "Permission denied" in done["stderr"], (port, way, done)

    def test_the_host_is_not_reachable_from_the_netns(self, installation, shared):
        # The tap's host side lives in a namespace that has loopback and that tap, nothing else.
        names = [n for n in machine.network_namespaces() if n.startswith(f"{installation.name}-")]
        assert names
        for name in names:
            links = [line.split(": ")[1].split("@")[0] for line in
                     machine.output("ip", "-n", name, "-o", "link").splitlines()]
            assert set(links) <= {"lo", "tap0"}, (name, links)
            assert "default" not in machine.output("ip", "-n", name, "route")


def test_a_guest_that_answers_nothing_fails_within_its_deadline(api, frozen):
    sandbox, pid, asking, answers = frozen
    asking.join(90)
    assert answers and answers[0].status in (409, 504), answers
    record = poll.until(lambda: api.sandbox(sandbox) if api.sandbox(sandbox)["state_reason"] else None, 10, "the record says why")
    assert (record["state"], record["state_reason"]["code"]) == ("error", "agent_timeout"), record
    api.delete(sandbox)
    assert not machine.is_alive(pid)
