"""Pause and wake: memory, sessions, transfers and clocks; verbs in every state; idle and absolute timeouts."""

import json
import os
import signal
import socket
import threading
import time

import pytest

from harness import clock, machine, poll, rules
from harness.attach import Attached
from harness.files import Files
from harness.http import ApiError
from harness.watch import Watch

from test_ports import TestUpgrades as Upgrades

COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"


def pause(api, sandbox, **query):
    return api.post(f"/v1/sandboxes/{sandbox}/pause", query={"wait": 60, **query})


def wake(api, sandbox, **query):
    return api.post(f"/v1/sandboxes/{sandbox}/wake", query={"wait": 60, **query})


def state(api, sandbox):
    return api.sandbox(sandbox)["state"]


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class TestPause:
    def test_pause_and_wake_answer_sandbox_and_operation(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        answer = pause(api, sandbox)
        assert answer["sandbox"]["state"] == "paused" and answer["sandbox"]["state_reason"] is None
        assert (answer["operation"]["kind"], answer["operation"]["state"]) == ("pause", "succeeded")
        assert pause(api, sandbox)["operation"]["state"] == "succeeded", "already there is success"
        answer = wake(api, sandbox)
        assert (answer["sandbox"]["state"], answer["operation"]["kind"]) == ("running", "wake")
        assert wake(api, sandbox)["operation"]["state"] == "succeeded"
        assert api.check_output(sandbox, "echo back") == "back\n"

    def test_a_paused_sandbox_costs_no_processor_and_keeps_counting(self, api, installation, sandboxes):
        sandbox = sandboxes()["id"]
        process, session = api.start(sandbox, COUNTER)
        poll.until(lambda: len(api.expect(200, "GET", f"/v1/sessions/{session['id']}/output").body) > 60, 30, "it counts")
        pause(api, sandbox)
        vmm = installation.vmm_of(sandbox)
        before = cpu_seconds(vmm)
        end = api.expect(200, "GET", f"/v1/sessions/{session['id']}/output").headers["X-Space-Next-Offset"]
        time.sleep(2)
        assert cpu_seconds(vmm) - before <= 0.02
        assert api.expect(200, "GET", f"/v1/sessions/{session['id']}/output").headers["X-Space-Next-Offset"] == end
        assert state(api, sandbox) == "paused", "reading wakes nothing"
        wake(api, sandbox)
        api.post(f"/v1/sandboxes/{sandbox}/processes/{process['id']}/kill")
        lines = api.output(session["id"]).decode().split()
        assert lines == [str(i) for i in range(1, len(lines) + 1)], "not a line lost or twice"
        assert len(lines) > 20

    def test_the_clock_is_right_after_a_pause(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        off = []
        for _ in range(2):
            pause(api, sandbox)
            time.sleep(3)
            wake(api, sandbox)
            off.append(clock.seconds_off(api, sandbox))
        assert max(off) <= 0.05, off

    def test_a_terminal_is_carried_through(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        _, session = api.start(sandbox, ["python3", "-q"], tty={"cols": 80, "rows": 24, "term": "dumb"})
        with Attached(api, session["id"]) as at:
            at.read_until(b">>> ")
            at.write(b"kept = 6 * 7\n")
            at.read_until(b">>> ")
            pause(api, sandbox)
            at.tell(type="resize", cols=100, rows=40)
            at.write(b"print('kept', kept)\n")
            time.sleep(0.3)
            assert b"kept 42" not in at.output["stdout"]
            wake(api, sandbox)
            at.read_until(b"kept 42")
            at.write(b"import os; print('size', os.get_terminal_size().columns)\n")
            at.read_until(b"size 100")
            states = [event["state"] for event in at.events if event.get("type") == "sandbox"]
            assert [s for s in states if s in ("paused", "running")][-2:] == ["paused", "running"], states

    def test_ends_of_input_wait_for_the_wake(self, api, sandboxes):
        """The end of a command's input, of a connection's and of an upload: said while nobody can take it."""
        sandbox = sandboxes()["id"]
        _, session = api.start(sandbox, "cat; echo all", stdin="open")
        server = "import socket; s = socket.create_server(('127.0.0.1', 9000)); print('up', flush=True); c = s.accept()[0]\n" \
                 "while d := c.recv(9): pass\nc.sendall(b'seen the end')"
        _, serving = api.start(sandbox, ["python3", "-c", server])
        poll.until(lambda: api.expect(200, "GET", f"/v1/sessions/{serving['id']}/output").body == b"up\n", 30, "it listens")
        raw = Upgrades.tcp(api, sandbox, 9000)
        upload = api.connect(timeout=60)
        upload.putrequest("PUT", Files(api, sandbox).at("", path="/home/user/sent"))
        upload.putheader("Authorization", f"Bearer {api.key}")
        upload.putheader("Transfer-Encoding", "chunked")
        upload.endheaders()
        upload.send(b"4\r\nsent\r\n")
        with Attached(api, session["id"]) as at:
            at.write(b"typed\n")
            at.read_until(b"typed\n")
            pause(api, sandbox)
            at.tell(type="eof")
            raw.shutdown(socket.SHUT_WR)
            upload.send(b"0\r\n\r\n")
            wake(api, sandbox)
            assert at.read_to_end()["exit_code"] == 0
            assert at.output["stdout"] == b"typed\nall\n"
        raw.settimeout(60)
        assert Upgrades.read_all(raw) == b"seen the end"
        assert upload.getresponse().status in (200, 201)
        assert api.check_output(sandbox, "cat /home/user/sent") == "sent"

    def test_transfers_and_a_watch_stall_and_go_on(self, api, installation, sandboxes):
        sandbox = sandboxes()["id"]
        api.check_output(sandbox, "head -c 48M /dev/urandom > /home/user/big; sha256sum /home/user/big")
        want = api.check_output(sandbox, "sha256sum < /home/user/big").split()[0]
        connection = api.connect(timeout=120)
        connection.request("GET", Files(api, sandbox).at("", path="/home/user/big"),
                           headers={"Authorization": f"Bearer {api.key}"})
        response = connection.getresponse()
        got = [response.read(100_000)]
        with Watch(api, sandbox, "/home/user") as watch:
            pause(api, sandbox)
            reader = threading.Thread(target=lambda: got.append(response.read()))
            reader.start()
            time.sleep(1)
            assert reader.is_alive(), "a paused guest cannot have sent all"
            wake(api, sandbox)
            reader.join(120)
            api.check_output(sandbox, "touch /home/user/new")
            event = watch.next()
            while "new" not in json.dumps(event):
                event = watch.next()
        connection.close()
        import hashlib
        assert hashlib.sha256(b"".join(got)).hexdigest() == want

    def test_a_run_that_is_under_way_does_not_time_out(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        result = []
        other = api.as_key(api.key)
        worker = threading.Thread(target=lambda: result.append(other.run(sandbox, "sleep 1; echo done", timeout_seconds=3)))
        worker.start()
        poll.until(lambda: api.get(f"/v1/sandboxes/{sandbox}/processes")["items"], 30, "it runs")
        pause(api, sandbox)
        time.sleep(4)
        wake(api, sandbox)
        worker.join(60)
        other.close()
        assert result[0]["stdout"] == "done\n" and not result[0]["timed_out"], result

    def test_50_times_costs_the_same_each_time(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        took = []
        for _ in range(50):
            begin = time.monotonic()
            pause(api, sandbox)
            wake(api, sandbox)
            took.append(time.monotonic() - begin)
        assert api.check_output(sandbox, "echo alive") == "alive\n"
        first, last = sorted(took[:10])[5], sorted(took[-10:])[5]
        assert last < 3 * first + 0.05, (first, last)


ARCHIVE = bytes(10240)  # of nothing
FORM = b'--b0\r\nContent-Disposition: form-data; name="f"; filename="of-a-form"\r\n\r\ncontent\r\n--b0--\r\n'
FORM_TYPE = {"Content-Type": "multipart/form-data; boundary=b0"}
WEBSOCKET = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
             "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
SPACE_TCP = {"Connection": "Upgrade", "Upgrade": "space-tcp"}
# Every call that needs the guest (docs/api.md).
CALLS = {
    "run": lambda api, sb, pr, se: api.run(sb, "true"),
    "commands": lambda api, sb, pr, se: api.start(sb, "true"),
    "stdin": lambda api, sb, pr, se: api.expect(200, "POST", f"/v1/sandboxes/{sb}/processes/{pr}/stdin", raw=b"x"),
    "signal": lambda api, sb, pr, se: api.post(f"/v1/sandboxes/{sb}/processes/{pr}/signal", {"signal": "SIGCONT"}),
    "resize": lambda api, sb, pr, se: api.ask("POST", f"/v1/sandboxes/{sb}/processes/{pr}/resize", {"cols": 80, "rows": 24}),
    "stat": lambda api, sb, pr, se: Files(api, sb).api.get(Files(api, sb).at("/stat", path="/etc/hostname")),
    "upload": lambda api, sb, pr, se: api.expect((200, 201), "PUT", Files(api, sb).at("", path="/tmp/up"), raw=b"content"),
    "ports": lambda api, sb, pr, se: api.get(f"/v1/sandboxes/{sb}/ports"),
    "download": lambda api, sb, pr, se: Files(api, sb).read("/etc/hostname"),
    "list": lambda api, sb, pr, se: Files(api, sb).list("/etc"),
    "watch": lambda api, sb, pr, se: Watch(api, sb, "/tmp").close(),
    "mkdir": lambda api, sb, pr, se: Files(api, sb).post("mkdir", path="/tmp/made"),
    "move": lambda api, sb, pr, se: Files(api, sb).post("move", **{"from": "/tmp/up", "to": "/tmp/made/up"}),
    "chmod": lambda api, sb, pr, se: Files(api, sb).post("chmod", path="/tmp/made/up", mode="0700"),
    "chown": lambda api, sb, pr, se: Files(api, sb).post("chown", path="/tmp/made/up", owner="root:root", user="root"),
    "tar": lambda api, sb, pr, se: api.expect(200, "GET", Files(api, sb).at("/tar", path="/tmp/made", user="root")),
    "tar in": lambda api, sb, pr, se: api.expect(200, "PUT", Files(api, sb).at("/tar", path="/tmp/made"), raw=ARCHIVE),
    "delete": lambda api, sb, pr, se: Files(api, sb).delete("/tmp/made", recursive="true", user="root"),
    "multipart": lambda api, sb, pr, se: api.expect((200, 201), "POST", Files(api, sb).at(path="/tmp"), raw=FORM, headers=FORM_TYPE),
    "port": lambda api, sb, pr, se: api.ask("GET", f"/v1/sandboxes/{sb}/ports/9", query={"wait": 0.1}),
    "tcp": lambda api, sb, pr, se: api.ask("GET", f"/v1/sandboxes/{sb}/ports/9/tcp", headers=SPACE_TCP),
    "proxy": lambda api, sb, pr, se: api.ask("GET", f"/v1/sandboxes/{sb}/ports/9/proxy/", check=False),
    "attach": lambda api, sb, pr, se: Attached(api, se).drop(),
    "kill": lambda api, sb, pr, se: api.post(f"/v1/sandboxes/{sb}/processes/{pr}/kill"),
}
# What some of them answer when it runs: there is no terminal, and nothing listens.
AWAKE = {"resize": 409, "port": 404, "tcp": 502, "proxy": 502}
READS = ["", "/processes", "/processes/{pr}", "/processes/{pr}/result", "/console", "/metrics"]


class TestAutoWake:
    def test_each_call_that_needs_the_guest_wakes_it(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        process, session = api.start(sandbox, "cat", stdin="open")
        for name, call in CALLS.items():
            pause(api, sandbox)
            answer = call(api, sandbox, process["id"], session["id"])
            assert state(api, sandbox) == "running", name
            assert name not in AWAKE or answer.status == AWAKE[name], (name, answer)

    def test_without_auto_wake_they_are_refused(self, api, sandboxes):
        sandbox = sandboxes(lifecycle={"auto_wake": False})["id"]
        process, session = api.start(sandbox, "cat", stdin="open")
        pause(api, sandbox)
        for name, call in CALLS.items():
            if name in AWAKE:
                answer = call(api, sandbox, process["id"], session["id"])
            elif name == "attach":
                answer = api.ask("GET", f"/v1/sessions/{session['id']}/attach", headers=WEBSOCKET)
            else:
                with pytest.raises(ApiError) as refused:
                    call(api, sandbox, process["id"], session["id"])
                answer = refused.value.answer
            assert (answer.code, answer.details["state"]) == ("failed_precondition", "paused"), name
        assert state(api, sandbox) == "paused"
        wake(api, sandbox)
        assert api.check_output(sandbox, "echo yes") == "yes\n"

    def test_reading_never_wakes(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        process, session = api.start(sandbox, "echo out; cat", stdin="open")
        poll.until(lambda: api.expect(200, "GET", f"/v1/sessions/{session['id']}/output").body, 30, "its output")
        pause(api, sandbox)
        for path in READS:
            api.expect((200, 202), "GET", f"/v1/sandboxes/{sandbox}{path.format(pr=process['id'])}")
        with api.events(session["id"]) as events:
            assert next(iter(events))["event"] == "process_started"
        assert api.expect(200, "GET", f"/v1/sessions/{session['id']}/output").body == b"out\n"
        assert state(api, sandbox) == "paused"

    def test_many_calls_at_once_wake_it_once(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        pause(api, sandbox)
        results = []

        def one():
            mine = api.as_key(api.key)
            results.append(mine.run(sandbox, "echo x")["stdout"])
            mine.close()

        threads = [threading.Thread(target=one) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results == ["x\n"] * 8
        wakes = [o for o in api.get("/v1/operations", query={"sandbox_id": sandbox})["items"] if o["kind"] == "wake"]
        assert len(wakes) == 1


class TestVerbs:
    """The table of docs/api.md."""

    def test_a_failed_sandbox(self, api, installation, sandboxes):
        sandbox = sandboxes()["id"]
        pause(api, sandbox)
        os.kill(installation.vmm_of(sandbox), signal.SIGKILL)
        poll.until(lambda: state(api, sandbox) == "error", 30, "the VMM's end is seen")
        assert api.sandbox(sandbox)["state_reason"]["code"] in ("vmm_crashed", "out_of_memory")
        for verb in ("pause", "suspend"):
            answer = api.ask("POST", f"/v1/sandboxes/{sandbox}/{verb}")
            assert (answer.status, answer.code, answer.details["state"]) == (409, "failed_precondition", "error")
        assert api.delete(sandbox)["operation"]["state"] == "succeeded"

    def test_delete_in_every_state(self, api, sandboxes):
        for verb in ("pause", "wake"):
            sandbox = api.create()["id"]
            pause(api, sandbox)
            if verb == "wake":
                api.expect((200, 202), "POST", f"/v1/sandboxes/{sandbox}/wake", query={"wait": 0})
            assert api.delete(sandbox)["operation"]["state"] == "succeeded"
            assert api.ask("GET", f"/v1/sandboxes/{sandbox}").status == 404
            assert api.ask("POST", f"/v1/sandboxes/{sandbox}/{verb}").status == 404

    def test_verbs_go_in_the_order_they_came(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        asked = ["pause", "wake", "pause", "wake", "pause"]
        made = [api.expect((200, 202), "POST", f"/v1/sandboxes/{sandbox}/{verb}", query={"wait": 0}).json["operation"]
                for verb in asked]
        ended = [api.get(f"/v1/operations/{o['id']}", query={"wait": 60}) for o in made]
        assert [o["state"] for o in ended] == ["succeeded"] * 5, ended
        times = [o["finished_at"] for o in ended]
        assert times == sorted(times)
        assert state(api, sandbox) == "paused"

    def test_pause_waits_for_the_create(self, api, sandboxes):
        made = api.expect((201, 202), "POST", "/v1/sandboxes", {"template": "base"}, query={"wait": 0}).json
        sandbox = made["sandbox"]["id"]
        answer = pause(api, sandbox)
        assert (answer["sandbox"]["state"], answer["operation"]["state"]) == ("paused", "succeeded")
        assert api.get(f"/v1/operations/{made['operation']['id']}")["state"] == "succeeded"
        api.delete(sandbox)

    def test_delete_ends_what_waits(self, api):
        sandbox = api.create()["id"]
        waiting = [api.expect((200, 202), "POST", f"/v1/sandboxes/{sandbox}/{verb}", query={"wait": 0}).json["operation"]["id"]
                   for verb in ("pause", "wake", "pause", "wake")]
        assert api.delete(sandbox)["operation"]["state"] == "succeeded"
        ended = [api.get(f"/v1/operations/{o}") for o in waiting]
        assert all(o["finished_at"] for o in ended)
        assert {o["error"]["code"] for o in ended if o["state"] == "failed"} <= {"conflict"}

    def test_a_read_key_wakes_nothing(self, api, installation, sandboxes):
        sandbox = sandboxes()["id"]
        pause(api, sandbox)
        key = api.post("/v1/keys", {"name": "looks", "role": "read"}, status=201)
        reader = api.as_key(key["key"])
        assert reader.ask("POST", f"/v1/sandboxes/{sandbox}/wake").status == 403
        answer = reader.ask("GET", Files(api, sandbox).at("/stat", path="/etc/hostname"))
        assert (answer.code, answer.details["state"]) == ("failed_precondition", "paused")
        reader.close()
        assert state(api, sandbox) == "paused"
        api.expect(200, "DELETE", f"/v1/keys/{key['id']}")


class TestLifecycle:
    def test_an_idle_sandbox_is_paused_and_woken_by_use(self, api, sandboxes):
        sandbox = sandboxes(lifecycle={"idle_timeout_seconds": 2, "idle_action": "pause"})
        assert (sandbox["lifecycle"]["idle_action"], sandbox["lifecycle"]["idle_timeout_seconds"]) == ("pause", 2)
        sandbox = sandbox["id"]
        since = time.time()
        api.check_output(sandbox, "true")
        poll.until(lambda: state(api, sandbox) == "paused", 30, "it is paused")
        active = rules.active_at(api, sandbox)
        assert active >= since and 0 <= rules.begun_at(api, sandbox, "pause") - (active + 2) <= 1
        assert api.sandbox(sandbox)["state_reason"]["code"] == "idle_timeout"
        assert api.check_output(sandbox, "echo again") == "again\n"
        assert api.sandbox(sandbox)["state_reason"] is None

    @pytest.mark.long
    def test_activity_keeps_it_running(self, api, sandboxes):
        sandbox = sandboxes(lifecycle={"idle_timeout_seconds": 1.5, "idle_action": "pause"})["id"]
        assert api.run(sandbox, "sleep 4")["exit_code"] == 0  # a call that lasts
        assert state(api, sandbox) == "running"
        _, session = api.start(sandbox, "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.5; done")
        begin = time.monotonic()
        while time.monotonic() < begin + 4:
            assert state(api, sandbox) == "running", "its output is activity"
            time.sleep(0.1)
        _, session = api.start(sandbox, "cat", tty={"cols": 80, "rows": 24, "term": "dumb"})
        with Attached(api, session["id"]):
            begin = time.monotonic()
            while time.monotonic() < begin + 4:
                assert state(api, sandbox) == "running", "an open attachment is activity"
                time.sleep(0.1)
        poll.until(lambda: state(api, sandbox) == "paused", 30, "it is paused then")

    def test_idle_delete_and_timeout_pause(self, api, sandboxes):
        gone = api.create(lifecycle={"idle_timeout_seconds": 1, "idle_action": "delete"})["id"]
        poll.until(lambda: api.ask("GET", f"/v1/sandboxes/{gone}").status == 404, 30, "it is deleted")
        sandbox = sandboxes(lifecycle={"timeout_seconds": 2, "timeout_action": "pause"})["id"]
        poll.until(lambda: state(api, sandbox) == "paused", 30, "it is paused")
        record = api.sandbox(sandbox)
        assert (record["state_reason"]["code"], record["expires_at"]) == ("timeout", None)
        wake(api, sandbox)
        time.sleep(1)
        assert state(api, sandbox) == "running", "once"

    def test_patch_merges(self, api, sandboxes):
        sandbox = sandboxes(lifecycle={"idle_timeout_seconds": 600, "idle_action": "delete"})["id"]
        record = api.expect(200, "PATCH", f"/v1/sandboxes/{sandbox}", {"lifecycle": {"auto_wake": False}}).json
        assert record["lifecycle"] == {
            "idle_timeout_seconds": 600, "idle_action": "delete", "timeout_seconds": None, "timeout_action": "delete",
            "auto_wake": False, "keep_suspended_seconds": None}
        record = api.expect(200, "PATCH", f"/v1/sandboxes/{sandbox}", {"lifecycle": {"idle_timeout_seconds": None}}).json
        assert record["lifecycle"]["idle_timeout_seconds"] is None
        record = api.expect(200, "PATCH", f"/v1/sandboxes/{sandbox}",
                            {"lifecycle": {"idle_timeout_seconds": 1, "idle_action": "pause"}}).json
        poll.until(lambda: state(api, sandbox) == "paused", 30, "a rule that a PATCH set")

    @pytest.mark.parametrize("lifecycle,field", [
        ({"idle_action": "hibernate"}, "idle_action"), ({"timeout_action": "wake"}, "timeout_action"),
        ({"idle_timeout_seconds": 0}, "idle_timeout_seconds"), ({"idle_timeout_seconds": "1"}, "idle_timeout_seconds"),
        ({"auto_wake": "yes"}, "auto_wake"), ({"keep_suspended_seconds": 0}, "keep_suspended_seconds"),
        ({"idle": 5}, "idle")])
    def test_bad_rules_are_refused(self, api, lifecycle, field):
        answer = api.ask("POST", "/v1/sandboxes", {"template": "base", "lifecycle": lifecycle}, check=False)
        assert answer.status == 400 and answer.details["field"] == f"lifecycle.{field}", answer


class TestCrash:
    """kill -9 at many moments of pause and wake: definite afterwards, retry works, nothing lost."""

    @pytest.mark.parametrize("program", ["space-node", "space-api"])
    def test_a_paused_sandbox_survives_its_daemons(self, api, installation, sandboxes, program):
        sandbox = sandboxes()["id"]
        process, session = api.start(sandbox, COUNTER)
        poll.until(lambda: api.expect(200, "GET", f"/v1/sessions/{session['id']}/output").body, 30, "it counts")
        pause(api, sandbox)
        vmm = installation.vmm_of(sandbox)
        installation.kill_daemon(program)
        api.close()
        installation.wait_ready()
        assert (state(api, sandbox), installation.vmm_of(sandbox)) == ("paused", vmm)
        before = cpu_seconds(vmm)
        time.sleep(1)
        assert cpu_seconds(vmm) - before <= 0.02
        wake(api, sandbox)
        now = time.time()
        assert abs(float(api.check_output(sandbox, ["date", "+%s.%N"])) - now) < 1
        api.post(f"/v1/sandboxes/{sandbox}/processes/{process['id']}/kill")
        lines = api.output(session["id"]).decode().split()
        assert lines == [str(i) for i in range(1, len(lines) + 1)]


class TestRulesOverRestarts:
    @pytest.mark.parametrize("sig", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
    def test_an_attachment_counts_until_the_api_is_gone(self, api, installation, sandboxes, sig):
        """A silent one, which space-api writes down once per idle period: the rule is never early for that."""
        idle = 4
        sandbox = sandboxes(lifecycle={"idle_timeout_seconds": idle, "idle_action": "pause"})["id"]
        _, session = api.start(sandbox, "cat", stdin="open")
        attached = Attached(api, session["id"])
        first = rules.active_at(api, sandbox)
        poll.until(lambda: rules.active_at(api, sandbox) >= first + idle, 30, "it is found to be used")
        # Shortly before it is written down again.
        poll.until(lambda: time.time() >= rules.active_at(api, sandbox) + idle - 1, 30, "the rule is nearly due")
        killed = time.time()
        installation.kill_daemon(program="space-api", sig=sig)
        dead = time.time()
        attached.drop()
        api.close()
        installation.wait_ready()
        ready = time.time()
        poll.until(lambda: state(api, sandbox) == "paused", 30, "it is paused")
        carried_out = rules.begun_at(api, sandbox, "pause")
        assert killed + idle <= carried_out <= max(dead + idle, ready) + 1, (killed, dead, ready, carried_out)

    @pytest.mark.parametrize("program", ["space-api", pytest.param("space-node", marks=pytest.mark.long)])
    def test_rules_that_wait_when_a_daemon_dies(self, api, installation, sandboxes, program):
        idle = sandboxes(lifecycle={"idle_timeout_seconds": 4, "idle_action": "pause"})["id"]
        kept = api.create(lifecycle={"keep_suspended_seconds": 4})["id"]
        api.post(f"/v1/sandboxes/{kept}/suspend", query={"wait": 60})
        suspended = rules.suspended_at(installation, kept)
        api.check_output(idle, "true")
        installation.kill_daemon(program)
        api.close()
        installation.wait_ready()
        ready = time.time()
        poll.until(lambda: state(api, idle) == "paused", 30, "it is paused")
        poll.until(lambda: api.ask("GET", f"/v1/sandboxes/{kept}").status == 404, 30, "it is deleted")
        for due, at in ((rules.active_at(api, idle) + 4, rules.begun_at(api, idle, "pause")),
                        (suspended + 4, rules.begun_at(api, kept, "delete"))):
            assert due <= at <= max(due, ready) + 1, (due, ready, at)


class TestCli:
    def test_pause_wake_and_options(self, api, installation):
        made = installation.space("create", "base", "--idle-timeout", "1h", "--idle-action", "delete", "--no-auto-wake").stdout.strip()
        rules = api.sandbox(made)["lifecycle"]
        assert (rules["idle_timeout_seconds"], rules["idle_action"], rules["auto_wake"]) == (3600, "delete", False)
        installation.space("pause", made)
        assert "paused" in installation.space("ls").stdout
        refused = installation.space("exec", made, "--", "true")
        assert refused.returncode == 125 and "auto_wake" in refused.stderr
        woken = json.loads(installation.space("wake", made, "--json").stdout)
        assert (woken["sandbox"]["id"], woken["sandbox"]["state"], woken["operation"]["state"]) == (made, "running", "succeeded")
        assert "lifecycle.idle_action" in installation.space("show", made).stdout
        installation.space("rm", "--yes", made)
