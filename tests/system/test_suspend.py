"""Suspend and wake through the API: what is carried through, what ends, what wakes, the rules, deaths of daemons."""

import base64
import http.client
import json
import threading
import time

import pytest

from harness import clock, machine, poll, rules
from harness.attach import Attached
from harness.files import Files
from harness.http import ApiError
from harness.web import Web

from test_file_watch import Watch
from test_pause import CALLS, READS, pause, state, wake
from test_ports import TestUpgrades as Upgrades

COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"
FACTS = "cat /proc/sys/kernel/random/boot_id /etc/machine-id; hostname"
TERMINAL = {"cols": 80, "rows": 24, "term": "dumb"}
SERVER = """import socket
s = socket.create_server(('127.0.0.1', 9000))
print('up', flush=True)
while True:
    c = s.accept()[0]
    try:
        c.recv(999)
        c.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok')
    except OSError:
        pass  # the connection ended with a suspend
    c.close()
"""
BEGIN = b"import sqlite3; db = sqlite3.connect('/home/user/open.db', isolation_level=None); " \
        b"_ = [db.execute(x) for x in ('create table t (n)', 'begin', 'insert into t values (41)')]; print('be' + 'gun')\n"
COMMIT = b"_ = [db.execute(x) for x in ('insert into t values (42)', 'commit')]; print('do' + 'ne')\n"
SUM = "import sqlite3; print(sqlite3.connect('/home/user/open.db').execute('select sum(n) from t').fetchone()[0])"


def suspend(api, sandbox, **query):
    """Again when its guest was too busy, which a machine with other work makes it."""
    for _ in range(3):
        answer = api.ask("POST", f"/v1/sandboxes/{sandbox}/suspend", query={"wait": 60, **query})
        if answer.status != 504 or answer.details["reason"] != "guest_busy":
            break
    assert answer.status == 200, answer
    return answer.json


def begin(api, sandbox, verb):
    """Asks for a verb and does not wait; the operation."""
    return api.expect((200, 202), "POST", f"/v1/sandboxes/{sandbox}/{verb}", query={"wait": 0}).json["operation"]


def ended(api, operation):
    return api.get(f"/v1/operations/{operation['id']}", query={"wait": 60})


def so_far(api, session, offset=0):
    """The output from an offset to where it is now, and the offset there."""
    answer = api.expect(200, "GET", f"/v1/sessions/{session}/output", query={"offset": offset})
    return answer.body, int(answer.headers["X-Space-Next-Offset"])


def behind(event):
    """The offset behind an event of output."""
    return event["data"]["offset"] + len(base64.b64decode(event["data"]["data"]))


def is_cut(raw):
    try:
        return raw.recv(1) == b""
    except ConnectionError:
        return True


def is_row(data):
    """Whether these are the counter's whole lines, none lost or twice."""
    lines = data.decode().split()
    return len(lines) > 0 and lines == [str(i) for i in range(1, len(lines) + 1)]


def goes_on(api, session, offset):
    poll.until(lambda: so_far(api, session)[1] > offset + 20, 60, "it counts on")
    data = so_far(api, session)[0]
    return is_row(data[:data.rfind(b"\n") + 1])


@pytest.fixture(scope="module")
def box(installation):
    """One with a counter, an open `cat`, and a server on port 9000."""
    api = installation.api
    sandbox = api.create()["id"]
    counter, counting = api.start(sandbox, COUNTER)
    cat, reading = api.start(sandbox, "cat", stdin="open")
    _, serving = api.start(sandbox, ["python3", "-c", SERVER])
    poll.until(lambda: so_far(api, serving["id"])[0] == b"up\n", 60, "it listens")
    yield {"id": sandbox, "counting": counting["id"], "cat": cat["id"], "reading": reading["id"], "counter": counter["id"]}
    api.delete(sandbox)


@pytest.fixture
def awake(api, box):
    """The same, running."""
    wake(api, box["id"])
    return box["id"]


class TestStored:
    def test_what_an_idle_sandbox_stores_is_small(self, api, installation):
        """What the template's programs read of its disk is in the base, and stored with no sandbox (18 MB, 4.6 without)."""
        installation.wait_warm()
        sandbox = api.create(template="base")["id"]
        suspend(api, sandbox)
        folder = installation.data / "volume/sandboxes" / sandbox / "suspended"
        stored = sum((folder / name).stat().st_size for name in ("memory", "state", "snapshot.json"))
        assert stored < 8_000_000
        api.delete(sandbox)


class TestCarried:
    def test_processes_terminals_transactions_files_and_offsets(self, api, installation, sandboxes):
        """Through suspend and wake, and through kill -9 of both daemons meanwhile."""
        made = sandboxes()
        sandbox = made["id"]
        _, counting = api.start(sandbox, COUNTER)
        _, talking = api.start(sandbox, ["python3", "-q"], tty=TERMINAL)
        before = api.check_output(sandbox, FACTS).split()
        with Attached(api, talking["id"]) as at:
            at.read_until(b">>> ")
            at.write(BEGIN)
            at.read_until(b"begun")
        with api.events(counting["id"]) as events:
            seen = [event for event in (next(events) for _ in range(5)) if event["event"] == "output"]
        assert api.check_output(sandbox, "ls /home/user; echo just before > /home/user/file") == "open.db\nopen.db-journal\n"
        clock.set_back(api, sandbox)
        vmm, admitted = installation.vmm_of(sandbox), installation.node_report()["memory"]["admitted_mib"]

        answer = suspend(api, sandbox)
        assert (answer["operation"]["kind"], answer["operation"]["state"]) == ("suspend", "succeeded")
        record = answer["sandbox"]
        assert (record["state"], record["state_reason"], record["durability"]) == ("suspended", None, "local")
        assert suspend(api, sandbox)["operation"]["state"] == "succeeded", "already there is success"
        poll.until(lambda: not machine.is_alive(vmm), 30, "the VM, and with it its memory, is gone")
        poll.until(lambda: installation.node_report()["memory"]["admitted_mib"] == admitted - 512, 30, "others may have it")
        data, end = so_far(api, counting["id"])
        assert is_row(data)

        for program in ("space-node", "space-api"):
            installation.kill_daemon(program)
        api.close()
        installation.wait_ready()
        assert state(api, sandbox) == "suspended" and api.sandbox(sandbox)["durability"] == "local"
        assert so_far(api, counting["id"], end) == (b"", end)
        assert so_far(api, counting["id"])[0] == data

        record = wake(api, sandbox)["sandbox"]
        assert (record["state"], record["durability"]) == ("running", None)
        assert record["identity"]["epoch"] == made["identity"]["epoch"] + 1
        assert all(record["identity"][part] for part in ("entropy", "clock", "hostname", "machine_id", "tokens"))
        assert clock.seconds_off(api, sandbox) <= 0.05, "what was captured was an hour behind"
        assert goes_on(api, counting["id"], end)
        with api.events(counting["id"], after=seen[-1]["id"]) as events:
            offset = behind(seen[-1])
            while offset <= end:
                event = next(events)
                if event["event"] != "sandbox":
                    assert event["data"]["offset"] == offset, "events resume where they were left"
                    offset = behind(event)
        with Attached(api, talking["id"]) as at:
            at.write(COMMIT)
            at.read_until(b"done")
        assert api.check_output(sandbox, ["python3", "-c", SUM]) == "83\n"
        assert api.check_output(sandbox, "ls /home/user; cat /home/user/file") == "file\nopen.db\njust before\n"
        after = api.check_output(sandbox, FACTS).split()
        assert after[0] != before[0], "who asks sees that it was restored"
        assert after[1:] == before[1:], "it is the same machine"

    def test_calls_and_attachments_that_wait_for_a_command_stay(self, api, awake, box):
        _, talking = api.start(awake, "read line; echo got $line; read line", tty=TERMINAL)
        result = []
        other = api.as_key(api.key)
        worker = threading.Thread(target=lambda: result.append(other.run(awake, "touch /tmp/begun; sleep 0.5; echo done")))
        with Attached(api, talking["id"]) as at:
            worker.start()
            poll.until(lambda: api.run(awake, "test -e /tmp/begun")["exit_code"] == 0, 30, "it runs")
            suspend(api, awake)
            at.write(b"typed\n")
            wake(api, awake)
            at.read_until(b"got typed")
            states = [event["state"] for event in at.events if event["type"] == "sandbox"]
            assert "suspended" in states and states[-1] == "running", states
        worker.join(60)
        other.close()
        assert result[0]["stdout"] == "done\n"

    def test_connections_to_ports_transfers_and_watches_end(self, api, awake, box):
        raw = Upgrades.tcp(api, awake, 9000)
        api.check_output(awake, "head -c 48M /dev/zero > /home/user/zeros")
        connection = api.connect(timeout=60)
        connection.request("GET", Files(api, awake).at("", path="/home/user/zeros"), headers={"Authorization": f"Bearer {api.key}"})
        download = connection.getresponse()
        download.read(1000)
        with Watch(api, awake, "/home/user") as watch:
            suspend(api, awake)
            raw.settimeout(60)
            assert is_cut(raw), "the connection to the port"
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                download.read()
            rest = watch.response.read()
            assert b"event: error" in rest or b"event: " not in rest, rest
        raw.close()
        connection.close()
        assert state(api, awake) == "suspended"
        assert api.run(awake, "rm /home/user/zeros")["exit_code"] == 0


class TestAutoWake:
    @pytest.mark.parametrize("name", ["run", "stdin", "stat", "upload", "attach"])
    def test_calls_that_need_the_guest_wake_it(self, api, awake, box, name):
        suspend(api, awake)
        CALLS[name](api, awake, box["cat"], box["reading"])
        assert state(api, awake) == "running"

    def test_looks_that_are_under_way_when_it_begins_are_made_again(self, api, awake):
        path, refused = Files(api, awake).at("/stat", path="/etc/hostname"), []

        def look():
            mine = api.as_key(api.key)
            refused.extend(answer for answer in (mine.ask("GET", path) for _ in range(40)) if answer.status != 200)
            mine.close()

        looking = [threading.Thread(target=look) for _ in range(6)]
        for one in looking:
            one.start()
        suspend(api, awake)
        for one in looking:
            one.join(120)
        assert not refused, refused[:3]

    def test_port_traffic_wakes_it(self, api, awake):
        suspend(api, awake)
        page = Web(api, awake, 9000).ask_path("/")
        assert (page.status, page.body) == (200, b"ok"), "a socket that listened still does"
        suspend(api, awake)
        raw = Upgrades.tcp(api, awake, 9000)
        raw.sendall(b"x")
        raw.settimeout(60)
        assert Upgrades.read_all(raw).endswith(b"ok")
        assert state(api, awake) == "running"

    def test_reads_and_refused_calls_leave_it(self, api, awake, box):
        """Without auto_wake, and with a key that only reads; records, output and events never wake."""
        path = f"/v1/sandboxes/{awake}"
        key = api.post("/v1/keys", {"name": "looks too", "role": "read"}, status=201)
        reader = api.as_key(key["key"])
        suspend(api, awake)
        answer = reader.ask("GET", Files(api, awake).at("/stat", path="/etc/hostname"))
        assert (answer.code, answer.details["state"]) == ("failed_precondition", "suspended")
        assert reader.ask("POST", f"{path}/wake").status == reader.ask("POST", f"{path}/suspend").status == 403
        reader.close()
        api.expect(200, "DELETE", f"/v1/keys/{key['id']}")
        api.expect(200, "PATCH", path, {"lifecycle": {"auto_wake": False}, "metadata": {"is": "asleep"}})
        try:
            for name, call in CALLS.items():
                if name == "attach":
                    continue
                try:
                    answer = call(api, awake, box["cat"], box["reading"])
                except ApiError as error:
                    answer = error.answer
                assert (answer.code, answer.details["state"]) == ("failed_precondition", "suspended"), name
            for read in READS:
                api.expect((200, 202), "GET", path + read.format(pr=box["cat"]))
            with api.events(box["counting"]) as events:
                assert next(events)["event"] == "process_started"
            data, end = so_far(api, box["counting"])
            assert is_row(data) and so_far(api, box["counting"], end) == (b"", end)
            assert state(api, awake) == "suspended" and api.sandbox(awake)["metadata"] == {"is": "asleep"}
        finally:
            api.expect(200, "PATCH", path, {"lifecycle": {"auto_wake": True}})
        wake(api, awake)
        assert goes_on(api, box["counting"], end)


class TestVerbs:
    """The table of docs/api.md on real VMs; all of its cells are in src/api/verbs_test.c."""

    def test_a_paused_one_can_be_suspended_and_a_suspended_one_not_paused(self, api, awake, box):
        pause(api, awake)
        assert suspend(api, awake)["sandbox"]["state"] == "suspended"
        answer = api.ask("POST", f"/v1/sandboxes/{awake}/pause")
        assert (answer.status, answer.code, answer.details["state"]) == (409, "failed_precondition", "suspended")
        end = so_far(api, box["counting"])[1]
        wake(api, awake)
        assert goes_on(api, box["counting"], end)

    def test_verbs_go_in_the_order_they_came(self, api, awake):
        asked = ["suspend", "wake", "pause", "suspend", "pause"]
        done = [ended(api, o) for o in [begin(api, awake, verb) for verb in asked]]
        assert [o["state"] for o in done] == ["succeeded"] * 4 + ["failed"], done
        assert done[4]["error"]["code"] == "failed_precondition" and done[4]["error"]["details"]["state"] == "suspended"
        assert [o["finished_at"] for o in done] == sorted(o["finished_at"] for o in done)
        assert state(api, awake) == "suspended"

    def test_suspend_waits_for_the_create(self, api, sandboxes):
        made = api.expect((201, 202), "POST", "/v1/sandboxes", {"template": "base"}, query={"wait": 0}).json
        sandbox = made["sandbox"]["id"]
        assert suspend(api, sandbox)["sandbox"]["state"] == "suspended"
        assert api.get(f"/v1/operations/{made['operation']['id']}")["state"] == "succeeded"
        api.delete(sandbox)

    @pytest.mark.parametrize("verbs", [["suspend"], ["suspend", None], ["suspend", None, "wake"]])
    def test_delete_wins(self, api, installation, verbs):
        """While it is suspending, when it is suspended, while it wakes."""
        sandbox = api.create()["id"]
        last = None
        for verb in verbs:
            last = begin(api, sandbox, verb) if verb else ended(api, last) and None
        assert api.delete(sandbox)["operation"]["state"] == "succeeded"
        assert api.ask("GET", f"/v1/sandboxes/{sandbox}").status == 404
        assert api.ask("POST", f"/v1/sandboxes/{sandbox}/suspend").status == 404
        assert last is None or ended(api, last)["finished_at"]
        assert not (installation.data / "volume/sandboxes" / sandbox).exists()


class TestLifecycle:
    def test_rules_suspend_and_what_was_suspended_for_long_is_deleted(self, api, installation, sandboxes):
        idle = api.create(lifecycle={"idle_timeout_seconds": 1, "keep_suspended_seconds": 2})
        timed = sandboxes(lifecycle={"timeout_seconds": 1, "timeout_action": "suspend"})["id"]
        assert (idle["lifecycle"]["idle_action"], idle["lifecycle"]["keep_suspended_seconds"]) == ("suspend", 2)
        poll.until(lambda: state(api, timed) == "suspended", 30, "the timeout")
        record = api.sandbox(timed)
        assert (record["state_reason"]["code"], record["expires_at"]) == ("timeout", None)
        poll.until(lambda: state(api, idle["id"]) == "suspended", 30, "the idle rule")
        assert 0 <= rules.begun_at(api, idle["id"], "suspend") - (rules.active_at(api, idle["id"]) + 1) <= 1
        assert api.sandbox(idle["id"])["state_reason"]["code"] == "idle_timeout"
        assert api.check_output(timed, "echo woken") == "woken\n"
        record = api.sandbox(timed)
        assert (record["state"], record["state_reason"]) == ("running", None), "once"
        poll.until(lambda: api.ask("GET", f"/v1/sandboxes/{idle['id']}").status == 404, 30, "it is deleted")
        suspended = rules.suspended_at(installation, idle["id"])
        assert 0 <= rules.begun_at(api, idle["id"], "delete") - (suspended + 2) <= 1


class TestCrash:
    @pytest.mark.parametrize("verb", ["suspend", "wake"])
    @pytest.mark.parametrize("program", ["space-node", "space-api"])
    def test_kill_9_in_the_middle(self, api, installation, box, program, verb):
        """Definite afterwards, the same verb succeeds, nothing lost."""
        sandbox = box["id"]
        (wake if verb == "suspend" else suspend)(api, sandbox)
        end = so_far(api, box["counting"])[1]
        made = begin(api, sandbox, verb)
        installation.kill_daemon(program)
        api.close()
        installation.wait_ready()
        assert ended(api, made)["finished_at"], "a definite end"
        want = {"suspend": "suspended", "wake": "running"}[verb]
        assert (suspend if verb == "suspend" else wake)(api, sandbox)["sandbox"]["state"] == want
        wake(api, sandbox)
        assert goes_on(api, box["counting"], end)


class TestCli:
    def test_suspend_wake_and_options(self, api, installation):
        made = installation.space("create", "base", "--keep-suspended", "30d", "--idle-timeout", "none").stdout.strip()
        rules = api.sandbox(made)["lifecycle"]
        assert (rules["idle_timeout_seconds"], rules["keep_suspended_seconds"]) == (None, 2592000)
        assert json.loads(installation.space("suspend", made, "--json").stdout)["sandbox"]["state"] == "suspended"
        assert "suspended" in installation.space("ls", "--state", "suspended").stdout
        shown = installation.space("show", made).stdout
        assert "durability" in shown and "local" in shown
        assert installation.space("exec", made, "--", "echo", "woken").stdout == "woken\n"
        assert installation.space("suspend", made).returncode == 0
        assert json.loads(installation.space("wake", made, "--json").stdout)["operation"]["kind"] == "wake"
        installation.space("rm", "--yes", made)
