"""A second installation beside the first, with TLS, quotas and a small volume of its own."""

import contextlib
import copy
import json
import os
import pathlib
import signal
import sqlite3
import ssl
import subprocess
import threading
import time

import pytest

from harness import http, machine, manual, poll
from harness.installation import Installation, free_low_port


@pytest.fixture(scope="module")
def second(installation):
    """Beside the session's installation: other names, other ports, other limits."""
    made = Installation("spu", uid_first=1_300_000, volume_gib=3, node__warm_pools="base=1", node__prepared_pool=0,
                        node__disk_reserve_mib=256)
    made.prepare()
    certificate, key = made.top / "tls.crt", made.top / "tls.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
                    "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    key.chmod(0o644)
    made.write_config(api__tls_certificate=certificate, api__tls_key=key, quota__sandboxes=3, quota__vcpus=4,
                      quota__memory_mib=1536, api__key_rate=1000, api__key_burst=2000, api__header_timeout_ms=1500)
    made.scheme_tls = http.tls_context(str(certificate))
    made.up()
    yield made
    made.remove()


@pytest.fixture
def api2(second):
    yield second.api
    for item in second.api.get("/v1/sandboxes", query={"limit": 1000})["items"]:
        second.api.delete(item["id"])
    second.api.close()


def test_both_work_and_know_nothing_of_each_other(installation, second, api, api2):
    mine, theirs = api.create(name="same-name"), api2.create(name="same-name")
    assert api2.ask("GET", f"/v1/sandboxes/{mine['id']}").status == 404
    assert api.ask("GET", f"/v1/sandboxes/{theirs['id']}").status == 404
    assert api2.as_key(installation.key).ask("GET", "/v1/sandboxes").status == 401
    assert api2.check_output(theirs["id"], ["echo", "second"]) == "second\n"
    assert api.check_output(mine["id"], ["echo", "first"]) == "first\n"
    api.delete(mine["id"])
    assert api2.sandbox(theirs["id"])["state"] == "running"
    assert not set(installation.vmms()) & set(second.vmms())


class TestTls:
    def test_it_is_tls_and_nothing_else(self, second):
        with ssl.create_default_context(cafile=str(second.top / "tls.crt")).wrap_socket(
                __import__("socket").create_connection(("127.0.0.1", second.port)), server_hostname="localhost") as raw:
            assert raw.version() in ("TLSv1.2", "TLSv1.3")
            raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert raw.recv(65536).startswith(b"HTTP/1.1 200")
        plain = http.Api("127.0.0.1", second.port, second.key, second.spec)
        with pytest.raises(Exception):
            plain.ask("GET", "/healthz", check=False, timeout=10)

    def test_old_versions_are_refused(self, second):
        done = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{second.port}", "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
                              input=b"", capture_output=True, check=False, timeout=20)
        assert b"Cipher is (NONE)" in done.stdout or done.returncode != 0

    def test_streams_work_over_it(self, api2):
        sandbox = api2.create()["id"]
        _, session = api2.start(sandbox, "seq 1 50000")
        assert api2.output(session["id"]) == "".join(f"{i}\n" for i in range(1, 50001)).encode()
        with api2.events(session["id"]) as events:
            assert list(events)[-1]["event"] == "process_exited"


class TestQuotas:
    def test_sandboxes(self, api2):
        for _ in range(3):
            api2.create(memory_mib=256)
        answer = api2.ask("POST", "/v1/sandboxes", {"template": "base", "memory_mib": 128})
        assert (answer.status, answer.code, answer.details["limit"]) == (409, "limit_exceeded", "sandboxes")

    def test_vcpus_and_memory(self, api2):
        answer = api2.ask("POST", "/v1/sandboxes", {"template": "base", "vcpus": 5})
        assert (answer.status, answer.code, answer.details["limit"]) == (409, "limit_exceeded", "vcpus")
        answer = api2.ask("POST", "/v1/sandboxes", {"template": "base", "memory_mib": 2048})
        assert (answer.status, answer.code, answer.details["limit"]) == (409, "limit_exceeded", "memory_mib")

    def test_at_once_they_are_never_exceeded(self, second, api2):
        codes = []

        def one():
            codes.append(second.api.ask("POST", "/v1/sandboxes", {"template": "base", "memory_mib": 256}).status)

        threads = [threading.Thread(target=one) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert sorted(codes) == [201] * 3 + [409] * 7

    def test_they_are_per_key(self, api2):
        other = api2.post("/v1/keys", {"name": "other", "role": "member"}, status=201)
        for _ in range(3):
            api2.create(memory_mib=256)
        assert api2.as_key(other["key"]).create(memory_mib=256)["state"] == "running"
        api2.expect(200, "DELETE", f"/v1/keys/{other['id']}")


class TestVolume:
    def test_an_image_is_allocated_in_full_and_read_past_the_page_cache(self, second):
        """Where the data directory's own filesystem cannot clone files; doctor says when its loop device has no direct I/O."""
        image, volume = second.data / "volume.img", second.data / "volume"

        def check():
            document = json.loads(second.cli("doctor", "--json", check=False).stdout)
            return next(check for check in document["checks"] if check["name"] == "volume")

        assert check()["status"] == "ok"
        if (volume / ".space-volume").read_text(encoding="ascii") == "directory with reflink\n":
            assert not image.exists() and str(volume) not in machine.mounts()
            return
        stat = image.stat()
        assert stat.st_size == 3 << 30 and stat.st_blocks * 512 >= stat.st_size
        filler = volume / "filler"
        filler.write_bytes(os.urandom(64 << 20))
        machine.output("sync", "-f", str(volume))
        filler.unlink()
        machine.output("sync", "-f", str(volume))
        assert image.stat().st_blocks == stat.st_blocks, "nothing is given back to others"
        device = machine.output("findmnt", "--noheadings", "--output", "SOURCE", str(volume)).strip()

        def direct():
            return machine.output("losetup", "--noheadings", "--output", "DIO", device).strip()

        assert direct() == "1"
        machine.output("losetup", "--direct-io=off", device)
        try:
            assert direct() == "0"
            now = check()
            assert now["status"] == "degraded" and "without direct I/O" in now["message"] and "space down" in now["remedy"], now
        finally:
            machine.output("losetup", "--direct-io=on", device)
        assert check()["status"] == "ok"

    @pytest.mark.long
    def test_an_image_that_gave_back_what_was_free_is_allocated_again_at_the_next_start(self, second, api2):
        image = second.data / "volume.img"
        if not image.exists():
            assert (second.data / "volume/.space-volume").read_text(encoding="ascii") == "directory with reflink\n"
            return
        machine.output("fstrim", str(second.data / "volume"))
        assert image.stat().st_blocks * 512 < image.stat().st_size
        second.down()
        api2.close()
        second.up()
        assert image.stat().st_blocks * 512 >= image.stat().st_size


def fill(path, keep_bytes):
    """Takes the volume's space until keep_bytes are left."""
    stat = os.statvfs(path.parent)
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(stat.f_bavail * stat.f_frsize - keep_bytes, 4096))


# Piece by piece past the page cache, so that the first that finds no room says so.
FILL = """exec python3 - <<'END'
import mmap, os
piece = mmap.mmap(-1, 1 << 20)
piece.write(b'x' * (1 << 20))
fd = os.open('big', os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
try:
    for _ in range(400):
        os.write(fd, piece)
except OSError as error:
    print(error.strerror)
END"""


class TestFullDisk:
    def test_creates_end_at_the_reserve_and_come_back(self, second, api2):
        sandbox = api2.create()["id"]
        filler = second.data / "volume" / "filler"
        fill(filler, 128 << 20)
        try:
            answer = poll.until(
                lambda: (a := api2.ask("POST", "/v1/sandboxes", {"template": "base"})).status != 201 and a, 20, "refused")
            assert (answer.status, answer.code) == (507, "storage_full"), answer
            assert api2.check_output(sandbox, ["echo", "still here"]) == "still here\n"
        finally:
            filler.unlink()
        poll.until(lambda: api2.ask("POST", "/v1/sandboxes", {"template": "base"}).status == 201, 20, "creates work again")

    def test_a_guest_on_a_full_host_disk_gets_an_error_and_corrupts_nothing(self, second, api2):
        sandbox, other = api2.create()["id"], api2.create()["id"]
        api2.check_output(other, "echo precious > file; sync")
        filler = second.data / "volume" / "filler"
        fill(filler, 16 << 20)
        try:
            result = api2.run(sandbox, FILL, timeout_seconds=60)
            assert (result["timed_out"], result["stdout"]) == (False, "Input/output error\n"), result
            assert api2.get("/v1/sandboxes")["items"]
        finally:
            filler.unlink()
        assert api2.check_output(other, "sudo sh -c 'echo 3 > /proc/sys/vm/drop_caches'; cat file") == "precious\n"
        api2.delete(sandbox)
        assert api2.create()["state"] == "running"


@pytest.fixture
def small_store(second):
    """Its records on a filesystem of 16 MiB."""
    store = second.data / "store"
    owner = store.stat()
    second.down()
    second.api.close()
    aside = second.top / "store-aside"
    machine.output("cp", "-a", str(store), str(aside))
    machine.output("mount", "-t", "tmpfs", "-o", f"size=16m,mode=0750,uid={owner.st_uid},gid={owner.st_gid}", "tmpfs", str(store))
    try:
        machine.output("cp", "-a", f"{aside}/.", str(store))
        second.up()
        yield store
    finally:
        second.down()
        second.api.close()
        machine.output("umount", str(store))
        machine.output("rm", "-r", str(aside))
        second.up()


class TestFullStore:
    def test_what_cannot_be_recorded_is_refused_and_nothing_is_lost(self, second, small_store, api2):
        heavy = {f"k{i}": "x" * 1024 for i in range(64)}
        box = api2.create(name="stays", metadata=heavy)["id"]
        filler = small_store / "filler"
        fill(filler, 0)
        try:
            answer = poll.until(lambda: (a := api2.ask("POST", "/v1/sandboxes", {"template": "base", "metadata": heavy})).status != 201 and a,
                                30, "refused")
            assert (answer.status, answer.code) == (507, "storage_full") and "store's disk is full" in answer.json["error"]["message"], answer
            assert api2.sandbox(box)["metadata"] == heavy and api2.check_output(box, "echo still here") == "still here\n"
            second.kill_daemon("space-api")
            api2.close()
        finally:
            filler.unlink()
        second.wait_ready()
        with contextlib.closing(sqlite3.connect(f"file:{small_store}/space.db?mode=ro", uri=True)) as database:
            assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
        assert api2.sandbox(box)["metadata"] == heavy and api2.check_output(box, "echo same") == "same\n"
        assert api2.post("/v1/run", {"template": "base", "shell": "echo again"})["stdout"] == "again\n"

    def test_a_delete_has_room_of_its_own(self, small_store, api2):
        box = api2.create()["id"]
        filler = small_store / "filler"
        fill(filler, 0)
        try:
            api2.delete(box)
        finally:
            filler.unlink()


class TestFullMemory:
    def test_sandboxes_over_the_limit_of_all_end_with_a_reason(self, second, api2):
        """Before the host is short of memory: all VMMs are in one group, the daemons are not."""
        boxes = [api2.create(memory_mib=512)["id"] for _ in range(2)]
        usage, limit = machine.memory_group(second.vmm_of(boxes[0]))
        usage, limit = usage.parents[1] / usage.name, limit.parents[1] / limit.name
        total = int(next(line.split()[1] for line in open("/proc/meminfo", encoding="ascii") if line.startswith("MemTotal"))) // 1024
        whole = limit.read_text()
        assert int(whole) == (total - max(total // 8, 1024)) << 20, "the default reserve"
        daemons = {program: second.daemon(program) for program in ("space-node", "space-api", "space-supervisor")}
        assert not set(daemons.values()) & set(machine.cgroup_procs(limit.parent))
        limit.write_text(str(int(usage.read_text()) + (64 << 20)))
        try:
            for box in boxes:
                api2.start(box, ["python3", "-c", "x = b'1' * (380 << 20)\nwhile True: pass"])
            ended = poll.until(lambda: [s for s in map(api2.sandbox, boxes) if s["state"] == "error"], 60, "one has ended")
            assert {s["state_reason"]["code"] for s in ended} == {"out_of_memory"}, ended
            assert {program: second.daemon(program) for program in daemons} == daemons
        finally:
            limit.write_text(whole)
        for box in boxes:
            now = api2.sandbox(box)
            assert now["state"] == "error" or api2.check_output(box, "echo lives") == "lives\n"
            api2.delete(box)
        assert api2.check_output(api2.create()["id"], "echo new") == "new\n"


def plant(installation, name, number):
    """What an installation of this name might have left as its VM of that number: a process in its control groups, a network
    namespace with a tap, and in ours, whose name it may be, a socket's directory and a disk's."""
    process = subprocess.Popen(["sleep", "1000"])
    groups = []
    for top in machine.cgroups(installation.name):
        group = pathlib.Path(top).parent / name / f"vm-{number}"
        group.mkdir(parents=True)
        (group / "cgroup.procs").write_text(str(process.pid))
        groups.append(group)
    machine.output("ip", "netns", "add", f"{name}-{number}")
    machine.output("ip", "-n", f"{name}-{number}", "tuntap", "add", "tap0", "mode", "tap")
    folders = []
    if name == installation.name:
        folders = [installation.run_dir / name / "vm" / str(number), installation.data / "volume/vms" / str(number)]
        for folder in folders:
            folder.mkdir()
            (folder / "disk.img").write_bytes(b"left")
    return process, groups, pathlib.Path("/run/netns") / f"{name}-{number}", folders


class TestReaping:
    def test_what_nobody_owns_goes_and_what_others_own_stays(self, second, api2):
        """Also where the other installation's name begins as this one's."""
        box = api2.create()["id"]
        process, _ = api2.start(box, "sleep 2; echo same")
        own, other = plant(second, second.name, 3999), plant(second, f"{second.name}x", 3999)
        half_made = second.data / "volume/sandboxes" / "sb0123456789abcdefgh"
        half_made.mkdir()
        try:
            second.kill_daemon("space-node")
            second.wait_ready()
            assert own[0].wait(10) == -signal.SIGKILL
            left = [str(path) for path in (*own[1], own[2], *own[3]) if path.exists()]
            assert not left
            poll.until(lambda: not half_made.exists(), 10, "what a create left without a record is gone")
            assert other[0].poll() is None and other[2].exists() and all(path.exists() for path in other[1])
            assert api2.result(box, process["id"])["stdout"] == "same\n"
        finally:
            for left in (own, other):
                left[0].kill()
                left[0].wait()
                for group in left[1]:
                    if group.exists():
                        group.rmdir()
                if left[2].exists():
                    machine.output("ip", "netns", "delete", left[2].name)
            for group in other[1]:
                group.parent.rmdir()


@pytest.fixture
def third():
    """Directories and a port of its own, without a template; not up."""
    made = Installation("spw", uid_first=1_310_000, volume_gib=1, node__warm_pools="base=0", node__prepared_pool=0)
    name = made.name
    made.prepare(templates=False)
    yield made
    made.write_config(installation=name)
    made.remove()


def refused_up(installation):
    """What `space up` says when it fails."""
    done = installation.cli("up", "--timeout", "60", check=False, timeout=180)
    assert done.returncode != 0, done
    return done.stdout + done.stderr


class TestNamesOnTheHost:
    @pytest.mark.long
    def test_a_copy_of_the_settings_with_the_same_name_harms_nobody(self, second, api2, third):
        """`up` and `down` are refused, while the daemons of the first run and while only its sandboxes do."""
        sandbox = api2.create()["id"]
        vmm = second.vmm_of(sandbox)
        third.write_config(installation=second.name)

        def is_refused():
            said = refused_up(third)
            assert f"the name {second.name} is taken by the installation in {second.data}: set another `installation`" in said, said
            down = third.cli("down", check=False)
            assert down.returncode != 0 and f"the name {second.name} is taken" in down.stderr, down
            assert second.vmm_of(sandbox) == vmm

        is_refused()
        assert api2.check_output(sandbox, ["echo", "untouched"]) == "untouched\n"
        second.cli("down", "--keep-sandboxes")
        api2.close()
        is_refused()
        second.up()
        assert api2.check_output(sandbox, ["echo", "untouched"]) == "untouched\n"
        assert second.vmm_of(sandbox) == vmm
        api2.delete(sandbox)

    def test_the_same_path_in_another_container_is_another(self, second, api2):
        """Whose data directory has an id of its own, while the sandboxes of the first run without its daemons."""
        sandbox = api2.create()["id"]
        vmm = second.vmm_of(sandbox)
        record = second.data / "id"
        own = record.read_text(encoding="ascii")
        second.cli("down", "--keep-sandboxes")
        api2.close()
        record.unlink()
        try:
            said = refused_up(second)
            assert f"in {second.data} of another container, with the id {own.strip()}: set another `installation`" in said, said
            down = second.cli("down", check=False)
            assert down.returncode != 0 and "of another container" in down.stderr, down
            assert second.vmm_of(sandbox) == vmm and not record.exists()
        finally:
            record.write_text(own, encoding="ascii")
        second.up()
        assert second.vmm_of(sandbox) == vmm and api2.check_output(sandbox, ["echo", "untouched"]) == "untouched\n"
        assert record.read_text(encoding="ascii") == own
        api2.delete(sandbox)

    def test_uids_of_another_installation_are_refused(self, second, third):
        third.write_config(node__vmm_uid_first=second.uid_first + 4000)
        said = refused_up(third)
        assert f"the VMM uids of {third.name}, {second.uid_first + 4000} to {second.uid_first + 8095}" in said, said
        assert f"the installation {second.name}, {second.uid_first} to {second.uid_first + 4095}: set another" in said, said


def test_a_first_key_that_cannot_be_kept_is_not_made(third):
    third.write_config(admin_key_file=third.top / "missing/admin.key")
    assert f"{third.top}/missing/admin.key" in refused_up(third)
    store = third.data / "store/space.db"
    if store.exists():
        with sqlite3.connect(store) as database:
            assert database.execute("select count(*) from keys").fetchone() == (0,)
    third.write_config(admin_key_file=third.key_file)


class Bystander:
    """A process that runs a program as a VMM might, and has nothing to do with this installation."""

    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.pid = self.process.pid
        self.binary = os.path.realpath(command[0])
        poll.until(lambda: machine.runs(self.pid, self.binary), 10, "it runs its program")
        self.start_time = machine.start_time(self.pid)

    def end(self):
        self.process.kill()
        self.process.wait()


class TestRestart:
    def test_who_has_the_pid_of_a_vmm_is_not_taken_for_it(self, second, api2):
        """The VMMs died and other processes have their numbers: one of the same program that began later, one that began
        at the very same time and runs another, and one from before a restart of the host of whom nothing differs."""
        boxes = [api2.create(memory_mib=256)["id"] for _ in range(3)]
        vmms = [second.vmm_of(box) for box in boxes]
        journals = [second.data / "volume/sandboxes" / box / "journal.json" for box in boxes]
        second.cli("down", "--keep-sandboxes")
        api2.close()
        others = []
        try:
            for vmm in vmms:
                os.kill(vmm, signal.SIGKILL)
                poll.until(lambda: not machine.is_alive(vmm), 10, "the VMM is dead")
            records = [json.loads(journal.read_bytes()) for journal in journals]
            binary = records[0]["vm"]["binary"]
            others = [Bystander(binary, "-machine", "none", "-nodefaults", "-display", "none", "-S"),
                      Bystander("/bin/sleep", "1000"), Bystander("/bin/sleep", "1000")]
            changes = [{"start_time": others[0].start_time - 1}, {"start_time": others[1].start_time},
                       {"start_time": others[2].start_time, "binary": others[2].binary,
                        "boot_id": "00000000-0000-4000-8000-000000000000"}]
            for journal, record, other, change in zip(journals, records, others, changes):
                record["vm"].update({"pid": other.pid, **change})
                journal.write_text(json.dumps(record), encoding="utf-8")
            second.up()
            said = [(api2.sandbox(box)["state"], api2.sandbox(box)["state_reason"]["code"]) for box in boxes]
            assert said == [("error", "vmm_crashed"), ("error", "vmm_crashed"), ("error", "host_restarted")]
            assert [other.process.poll() for other in others] == [None] * 3, "nobody else was touched"
        finally:
            for other in others:
                other.end()
            if not second.daemons("space-node"):
                second.up()

    def test_a_stop_ends_sandboxes_and_says_so(self, second, api2):
        sandbox = api2.create()["id"]
        api2.check_output(sandbox, "echo written > /home/user/file")  # nobody types sync: a stop powers off
        process, session = api2.start(sandbox, "echo said; echo so >&2; echo > /tmp/told; exec sleep 1000")
        poll.until(lambda: api2.run(sandbox, "cat /tmp/told")["exit_code"] == 0, 60, "it has said what it says")
        api2.check_output(sandbox, "true")  # the guest sends in order: the node has it too
        second.down()
        second.up()
        now = api2.sandbox(sandbox)
        assert (now["state"], now["state_reason"]["code"]) == ("error", "host_restarted")
        # Nobody has read it before; what it said is there, and that it did not end by itself is said.
        assert api2.output(session["id"]) == b"said\n" and api2.output(session["id"], stream="stderr") == b"so\n"
        logs = second.cli("logs", process["id"], check=False)
        assert (logs.stdout, logs.returncode) == ("said\n", 0) and "so\n" in logs.stderr and "lost" in logs.stderr, logs
        woken = api2.post(f"/v1/sandboxes/{sandbox}/wake", query={"wait": 120})["sandbox"]
        assert (woken["state"], woken["state_reason"], woken["identity"]["epoch"]) == ("running", None, 2)
        assert api2.check_output(sandbox, "cat /home/user/file") == "written\n"
        api2.delete(sandbox)

    def test_a_stop_of_the_daemons_alone_keeps_them(self, second, api2):
        sandbox = api2.create()["id"]
        process, _ = api2.start(sandbox, "sleep 1; echo same")
        vmm = second.vmm_of(sandbox)
        second.cli("down", "--keep-sandboxes")
        api2.close()
        assert not second.daemons("space-node") and second.vmm_of(sandbox) == vmm
        second.up()
        assert api2.result(sandbox, process["id"])["stdout"] == "same\n"
        assert api2.sandbox(sandbox)["state"] == "running"
        api2.delete(sandbox)

    def test_a_changed_limit_is_in_force_after_up(self, second, api2):
        second.down()
        second.write_config(api__key_burst=20, api__key_rate=5, api__idle_timeout_ms=1000)
        second.up()
        try:
            with second.api.raw_socket(timeout=30) as raw:
                raw.sendall((f"POST /v1/run HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {second.key}\r\n"
                             "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{").encode())
                ended = b""
                while piece := raw.recv(65536):  # a socket that stays open is a timeout here
                    ended += piece
                assert not ended or ended.startswith(b"HTTP/1.1 4"), ended
            answers = [second.api.ask("GET", "/v1/templates") for _ in range(40)]
            refused = [a for a in answers if a.status == 429]
            assert refused and refused[0].code == "rate_limited" and int(refused[0].headers["Retry-After"]) >= 1
            poll.until(lambda: second.api.ask("GET", "/v1/templates").status == 200, 10, "served again", every=0.5)
        finally:
            second.down()
            second.write_config(api__key_burst=2000, api__key_rate=1000, api__idle_timeout_ms=75000)
            second.up()

    def test_capacity_is_refused_with_retry_after(self, second, api2):
        second.down()
        second.write_config(node__max_sandboxes=1, node__warm_pools="base=0")
        second.up()
        try:
            api2.create()
            answer = api2.ask("POST", "/v1/sandboxes", {"template": "base"})
            assert (answer.status, answer.code) == (503, "capacity_unavailable"), answer
            assert answer.json["error"]["retryable"] is True
        finally:
            second.down()
            second.write_config(node__max_sandboxes=1000, node__warm_pools="base=1")
            second.up()

    def test_a_guest_that_does_not_boot_in_time_is_an_error_with_a_reason(self, second, api2):
        """Of a size that has no base snapshot yet, with a deadline that no boot can meet."""
        second.down()
        second.write_config(node__boot_timeout_ms=1000)
        second.up()
        try:
            begun = time.monotonic()
            answer = api2.ask("POST", "/v1/sandboxes", {"template": "base", "memory_mib": 384}, query={"wait": 60})
            took = time.monotonic() - begun
            assert answer.status in (500, 504), answer
            sandbox = api2.sandbox(answer.details["sandbox_id"])
            assert (sandbox["state"], sandbox["state_reason"]["code"]) == ("error", "start_failed"), sandbox
            assert "in time" in sandbox["state_reason"]["message"], sandbox["state_reason"]
            assert 1 <= took < 30, took
            operation = api2.get(f"/v1/operations/{answer.details['operation_id']}")
            assert operation["state"] == "failed" and operation["error"]["code"] == answer.code
            api2.delete(sandbox["id"])
        finally:
            second.down()
            second.write_config(node__boot_timeout_ms=120000)
            second.up()

    def test_memory_admission(self, second, api2):
        """One that would fit alone does not beside another, by less than a step of 128 MiB; and none when the host itself is short."""
        total, available = (int(next(line.split()[1] for line in open("/proc/meminfo", encoding="ascii") if line.startswith(name))) // 1024
                            for name in ("MemTotal:", "MemAvailable:"))
        reserve = max(total - 16384, 1)
        limit = total - reserve
        rest = (limit - 512) // 128 * 128 + 128
        second.down()
        second.write_config(node__memory_overcommit=100, node__memory_reserve_mib=reserve, quota__memory_mib=65536)
        second.up()
        try:
            assert reserve < available and second.node_report()["memory"]["limit_mib"] == limit
            first = api2.create(memory_mib=512)["id"]
            answer = api2.ask("POST", "/v1/sandboxes", {"template": "base", "memory_mib": rest})
            assert (answer.status, answer.code) == (503, "capacity_unavailable"), answer
            assert f"{rest} MiB of memory do not fit: 512 of {limit} MiB are given to sandboxes" in answer.json["error"]["message"]
            api2.delete(first)
            second.down()
            api2.close()
            second.write_config(node__memory_reserve_mib=total)
            second.up()
            answer = api2.ask("POST", "/v1/sandboxes", {"template": "base", "memory_mib": 512})
            assert (answer.status, answer.code) == (503, "capacity_unavailable"), answer
        finally:
            second.down()
            second.write_config(node__memory_overcommit=400, node__memory_reserve_mib=0, quota__memory_mib=1536)
            second.up()


class TestFormats:
    def test_a_newer_store_is_refused(self, second):
        store = second.data / "store/space.db"
        second.down()
        insert = "insert into migrations (version, applied_at, program) values (999, 0, 'later')"
        with sqlite3.connect(store) as database:
            database.execute(insert)
        done = second.cli("up", "--timeout", "20", check=False, timeout=120)
        assert done.returncode != 0
        assert "schema version 999" in done.stderr + done.stdout + second.log_tail(), done
        second.cli("down", check=False)
        with sqlite3.connect(store) as database:
            database.execute("delete from migrations where version = 999")
        second.up()

    def test_a_newer_data_directory_is_refused(self, second):
        second.down()
        marker = second.data / "format"
        text = marker.read_text(encoding="ascii")
        marker.write_text("999\n", encoding="ascii")
        done = second.cli("up", "--timeout", "20", check=False, timeout=120)
        assert done.returncode != 0 and "has data format '999', this version reads 1" in done.stderr + done.stdout, done
        second.cli("down", check=False)
        marker.write_text(text, encoding="ascii")
        second.up()

    @pytest.mark.parametrize("line, key", [
        ("nosuch.key = 1", "nosuch.key"), ("api.key_rate = many", "api.key_rate"), ("node.prepared_pool = 9999", "node.prepared_pool"),
        ("run_dir = relative", "run_dir"), ("log_level = info", "log_level"), ("no equals sign", ""),
    ])
    def test_a_wrong_setting_is_named_with_file_and_line(self, second, tmp_path, line, key):
        broken = tmp_path / "broken.conf"
        text = second.config.read_text(encoding="utf-8")
        broken.write_text(text + line + "\n", encoding="utf-8")
        from harness.installation import space_binary
        done = subprocess.run([space_binary(), "up", "--config", str(broken)], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode != 0
        said = done.stderr + done.stdout
        assert str(broken) in said and key in said and f"line {len(text.splitlines()) + 1}" in said, said

    def test_settings_of_a_later_format_are_refused(self, second, tmp_path):
        later = tmp_path / "later.conf"
        lines = [line for line in second.config.read_text(encoding="utf-8").splitlines() if not line.startswith("format")]
        later.write_text("\n".join(["format = 2", *lines]) + "\n", encoding="utf-8")
        from harness.installation import space_binary
        done = subprocess.run([space_binary(), "up", "--config", str(later)], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode != 0 and str(later) in done.stderr and "format" in done.stderr and "line 1" in done.stderr, done

    def test_a_backup_of_the_store_restores(self, second, api2, tmp_path):
        """As docs/operations.md says it."""
        paths = {"/var/lib/space": second.data, "/etc/space": second.config, "/root": tmp_path}
        made = api2.post("/v1/keys", {"name": "kept", "role": "read"}, status=201)
        manual.run(manual.blocks("operations.md", "Backup")[0], paths, second.config)
        api2.expect(200, "DELETE", f"/v1/keys/{made['id']}")
        later = api2.create(name="later")["id"]
        (restore,) = manual.blocks("operations.md", "Restore")
        manual.run(restore, paths, second.config)
        second.wait_ready()
        assert api2.as_key(made["key"]).ask("GET", "/v1/templates").status == 200
        assert api2.ask("GET", f"/v1/sandboxes/{later}").status == 404


def test_a_taken_port_is_an_error_with_its_remedy(installation, second):
    second.down()
    second.write_config(api__listen=f"127.0.0.1:{installation.port}")
    try:
        done = second.cli("up", "--timeout", "20", check=False, timeout=120)
        assert done.returncode != 0
        assert str(installation.port) in done.stderr + done.stdout + second.log_tail()
    finally:
        second.cli("down", check=False)
        second.write_config(api__listen=f"127.0.0.1:{second.port}")
        second.up()
    assert installation.is_ready()


def test_a_port_below_1024(second):
    """Bound by the service user, who has no capability left when it serves."""
    second.down()
    high, low = second.port, free_low_port()
    second.write_config(api__listen=f"127.0.0.1:{low}")
    try:
        done = second.cli("up", timeout=300)
        assert f"https://127.0.0.1:{low}" in done.stdout, done
        pid = second.daemon("space-api")
        assert machine.status(pid)["Uid"].split()[0] != "0"
        assert all(not any(caps.values()) for caps in machine.capabilities(pid)), machine.capabilities(pid)
    finally:
        second.down()
        second.write_config(api__listen=f"127.0.0.1:{high}")
        second.up()


def test_a_volume_whose_making_was_cut_off_is_finished(second):
    """Mounted, and not marked yet: what a kill between the two leaves."""
    mark = second.data / "volume/.space-volume"
    kind = mark.read_text()
    mark.unlink()
    second.set_up("volume")
    assert mark.read_text() == kind
    assert second.logs.stat().st_uid == 0, "root opens its logs in no directory of another user's"


def moved(installation, top):
    """The installation as it is on another machine: the same but for its paths."""
    made = copy.copy(installation)
    made.top, made.config, made.key_file = top, top / "etc/space.conf", top / "etc/admin.key"
    made.data, made.run_dir, made.logs = top / "data", top / "run", top / "log"
    for path in (made.run_dir, made.logs):
        path.mkdir(parents=True)
    made.settings = {**installation.settings, "data_dir": made.data, "run_dir": made.run_dir, "log_dir": made.logs,
                     "admin_key_file": made.key_file}
    return made


@pytest.mark.long
def test_it_moves_to_another_place(second, api2):
    """As docs/operations.md says it; another directory stands for another machine."""
    sandbox = api2.create(name="mover", metadata={"of": "move"})
    api2.check_output(sandbox["id"], "echo precious > /home/user/file")  # nobody types sync: a stop powers off
    member = api2.post("/v1/keys", {"name": "member", "role": "member"}, status=201)
    templates = api2.get("/v1/templates")["items"]
    old_etc = second.top / "etc"
    old_etc.mkdir()
    for path in (second.config, second.key_file):
        machine.output("cp", "-a", str(path), str(old_etc))
    second.down()
    api2.close()
    new = moved(second, second.top / "elsewhere")
    paths = {"/etc/space": old_etc, "new:/etc/space": new.config.parent, "/var/lib/space": second.data,
             "new:/var/lib/space": new.data, "ssh new ": ""}
    (block,) = manual.blocks("operations.md", "Move to another machine")
    *copies, start = block.splitlines()
    manual.run("\n".join(copies), paths, second.config)
    new.write_config()
    try:
        manual.run(start, paths, new.config)
        new.wait_ready()
        now = api2.sandbox(sandbox["id"])
        assert (now["state"], now["state_reason"]["code"]) == ("error", "host_restarted")
        assert (now["name"], now["metadata"]) == ("mover", {"of": "move"})
        disk = new.data / "volume/sandboxes" / sandbox["id"] / "disk.img"
        assert machine.output("debugfs", "-R", "cat /home/user/file", str(disk)) == "precious\n", "its disk is there"
        assert api2.get("/v1/templates")["items"] == templates
        other = api2.as_key(member["key"]).create()
        assert other["template_version"] == sandbox["template_version"]
        assert api2.check_output(other["id"], "echo moved") == "moved\n"
        for made in (sandbox, other):
            api2.delete(made["id"])
    finally:
        api2.close()
        new.down()
        second.up()
