"""What dies, dies at any moment: kill -9 of each program, of VMMs, and guests that end themselves."""

import base64
import os
import signal
import threading

import pytest

from harness import machine, poll

HUNGER = "a = []\nwhile True: a.append(bytearray(1 << 20))"


def state(api, sandbox_id):
    sandbox = api.sandbox(sandbox_id)
    reason = sandbox["state_reason"] or {}
    return sandbox["state"], reason.get("code")


class TestNode:
    def test_kill_9_with_five_sandboxes_loses_nothing(self, api, installation):
        """Same sandboxes, same processes, every byte of output, an exit that came meanwhile."""
        made = [api.create(name=f"survivor-{i}")["id"] for i in range(5)]
        before = {sandbox: (installation.vmm_of(sandbox), api.check_output(sandbox, "cat /proc/sys/kernel/random/boot_id"))
                  for sandbox in made}
        long, short = {}, {}
        for sandbox in made:
            long[sandbox] = api.start(sandbox, "for i in $(seq 1 400); do echo line $i; sleep 0.02; done; exit 9")
            short[sandbox] = api.start(sandbox, "sleep 1; echo short; exit 4")
        collected = {sandbox: [] for sandbox in made}

        def follow(sandbox):
            last, seen = None, collected[sandbox]
            while not seen or seen[-1]["event"] != "process_exited":
                try:
                    with api.events(long[sandbox][1]["id"], after=last) as events:
                        for event in events:
                            seen.append(event)
                            last = event["id"] or last
                except (OSError, AssertionError) as error:
                    # Only the time without a node may refuse.
                    answer = getattr(error, "answer", None)
                    assert answer is None or answer.status in (503, 502), error
                    installation.wait_ready()

        readers = [threading.Thread(target=follow, args=(s,)) for s in made]
        for reader in readers:
            reader.start()
        poll.until(lambda: all(len(seen) > 5 for seen in collected.values()), 30, "output flows")
        for _ in range(2):
            installation.kill_daemon("space-node")
            installation.wait_ready()
        for reader in readers:
            reader.join(120)
        want = "".join(f"line {i}\n" for i in range(1, 401)).encode()
        for sandbox in made:
            data = b""
            for event in collected[sandbox]:
                if event["event"] == "output":
                    assert event["data"]["offset"] == len(data), "output lost or repeated"
                    data += base64.b64decode(event["data"]["data"])
            assert data == want
            assert collected[sandbox][-1]["data"]["exit_code"] == 9
            assert api.output(long[sandbox][1]["id"]) == want
            assert api.result(sandbox, short[sandbox][0]["id"])["exit_code"] == 4
            assert (installation.vmm_of(sandbox), api.check_output(sandbox, "cat /proc/sys/kernel/random/boot_id")) == before[sandbox]
            assert api.process(sandbox, long[sandbox][0]["id"])["pid"] == long[sandbox][0]["pid"]
            api.delete(sandbox)

    def test_kill_9_in_the_middle_of_creates_orphans_nothing(self, api, installation):
        answers = []

        def one():
            answers.append(installation.api.as_key(installation.key).ask(
                "POST", "/v1/sandboxes", {"template": "base", "metadata": {"of": "mid-create"}}, query={"wait": 60}))

        threads = [threading.Thread(target=one) for _ in range(8)]
        for thread in threads:
            thread.start()
        poll.until(lambda: api.get("/v1/sandboxes", query={"metadata.of": "mid-create"})["items"], 20, "creates have begun")
        installation.kill_daemon("space-node")
        for thread in threads:
            thread.join(120)
        installation.wait_ready()
        poll.until(lambda: is_settled(api, "mid-create"), 60, "every create is decided")
        for item in api.get("/v1/sandboxes", query={"metadata.of": "mid-create"})["items"]:
            if item["state"] == "running":
                assert api.check_output(item["id"], ["echo", "alive"]) == "alive\n"
            api.delete(item["id"])
        known = {p.name for p in (installation.data / "volume/sandboxes").iterdir()}
        living = {s["id"] for s in api.get("/v1/sandboxes", query={"limit": 1000})["items"]}
        assert known <= living

    def test_delete_during_an_outage_is_carried_out_after_it(self, api, installation):
        sandbox = api.create()["id"]
        os.kill(installation.daemon("space-node"), signal.SIGKILL)
        answer = api.ask("DELETE", f"/v1/sandboxes/{sandbox}", query={"wait": 60})
        assert answer.status in (200, 202, 503), answer
        installation.wait_ready()
        if answer.status == 503:
            api.delete(sandbox)
        poll.until(lambda: api.ask("GET", f"/v1/sandboxes/{sandbox}").status == 404, 30, "deleted")
        poll.until(lambda: not (installation.data / "volume/sandboxes" / sandbox).exists(), 30, "nothing is left")


def is_settled(api, of):
    items = api.get("/v1/sandboxes", query={"metadata.of": of})["items"]
    return all(item["state"] in ("running", "error") for item in items)


class TestApi:
    def test_kill_9_in_the_middle_of_a_create_ends_in_a_definite_state(self, api, installation):
        stop = threading.Event()

        def one():
            user = installation.api.as_key(installation.key)
            while not stop.is_set():
                try:
                    user.ask("POST", "/v1/sandboxes", {"template": "base", "metadata": {"of": "api-kill"}}, check=False)
                except OSError:
                    return

        threads = [threading.Thread(target=one) for _ in range(2)]
        for thread in threads:
            thread.start()
        poll.until(lambda: len(api.get("/v1/sandboxes", query={"metadata.of": "api-kill"})["items"]) >= 3, 60, "creates run")

        def open_creates():
            return {o["id"] for s in ("pending", "running") for o in api.get("/v1/operations", query={"state": s, "kind": "create"})["items"]}

        # While the node stands still no create ends: both clients wait for theirs when space-api dies.
        node = installation.daemon("space-node")
        os.kill(node, signal.SIGSTOP)
        try:
            caught = poll.until(lambda: (now := open_creates()) == open_creates() and len(now) >= 2 and now, 30, "creates are open")
            installation.kill_daemon("space-api")
        finally:
            os.kill(node, signal.SIGCONT)
        stop.set()
        for thread in threads:
            thread.join(60)
        api.close()
        installation.wait_ready()
        poll.until(lambda: not [o for s in ("pending", "running") for o in
                                api.get("/v1/operations", query={"state": s, "kind": "create"})["items"]],
                   60, "no operation is open")
        assert {api.get(f"/v1/operations/{operation}")["state"] for operation in caught} <= {"succeeded", "failed"}
        items = poll.until(lambda: [i for i in api.get("/v1/sandboxes", query={"metadata.of": "api-kill"})["items"]], 10, "list")
        for item in items:
            assert item["state"] in ("running", "error"), item
            if item["state"] == "running":
                assert api.check_output(item["id"], ["echo", "alive"]) == "alive\n"
            api.delete(item["id"])
        living = {s["id"] for s in api.get("/v1/sandboxes", query={"limit": 1000})["items"]}
        poll.until(lambda: {p.name for p in (installation.data / "volume/sandboxes").iterdir()} <= living, 90,
                   "the node has nothing that the API does not know")

    def test_kill_9_loses_no_sandbox_and_no_output(self, api, installation, sandboxes):
        sandbox = sandboxes()["id"]
        process, session = api.start(sandbox, "for i in $(seq 1 200); do echo $i; sleep 0.01; done")
        installation.kill_daemon("space-api")
        api.close()
        installation.wait_ready()
        assert api.result(sandbox, process["id"])["exit_code"] == 0
        assert api.output(session["id"]) == "".join(f"{i}\n" for i in range(1, 201)).encode()


class TestStoppedNode:
    def test_what_is_not_done_yet_says_so_and_is_done_when_it_goes_on(self, api, installation, sandboxes):
        boxes = {verb: sandboxes()["id"] for verb in ("pause", "suspend", "wake")}
        api.post(f"/v1/sandboxes/{boxes['wake']}/pause", query={"wait": 60})
        gone = api.create()["id"]
        node = installation.daemon("space-node")
        os.kill(node, signal.SIGSTOP)
        try:
            answers = [api.ask("POST", f"/v1/sandboxes/{box}/{verb}", query={"wait": 0}) for verb, box in boxes.items()]
            answers.append(api.ask("DELETE", f"/v1/sandboxes/{gone}", query={"wait": 0}))
            assert [answer.status for answer in answers] == [202] * 4, answers
            operations = [answer.json["operation"]["id"] for answer in answers]
            for operation in operations:
                answer = api.ask("GET", f"/v1/operations/{operation}", query={"wait": 0})
                assert answer.status == 202 and answer.json["state"] in ("pending", "running"), answer
        finally:
            os.kill(node, signal.SIGCONT)
        for operation in operations:
            poll.until(lambda: api.ask("GET", f"/v1/operations/{operation}", query={"wait": 10}).json["state"] == "succeeded", 60, "done")
        assert [state(api, box)[0] for box in boxes.values()] == ["paused", "suspended", "running"]
        assert api.ask("GET", f"/v1/sandboxes/{gone}").status == 404

    def test_without_a_node_it_is_not_ready(self, api, installation):
        supervisor = installation.daemon("space-supervisor")
        os.kill(supervisor, signal.SIGSTOP)  # it would start the next one
        try:
            os.kill(installation.daemon("space-node"), signal.SIGKILL)
            answer = poll.until(lambda: (now := api.ask("GET", "/readyz", key=False)).status != 200 and now, 20, "it is not ready")
            assert (answer.status, answer.code) == (503, "service_unavailable"), answer
            assert api.get("/healthz", key=False)
        finally:
            os.kill(supervisor, signal.SIGCONT)
        installation.wait_ready()


class TestVmm:
    def test_a_killed_vmm_is_an_error_that_can_be_deleted(self, api, installation):
        sandbox = api.create()["id"]
        process, session = api.start(sandbox, "echo before; sleep 1000")
        with api.events(session["id"]) as events:
            assert next(e for e in events if e["event"] == "output")
            os.kill(installation.vmm_of(sandbox), signal.SIGKILL)
            seen = list(events)
        assert [(e["event"], e["data"]) for e in seen[-2:]] == [
            ("sandbox", {"state": "error"}), ("process_lost", {"reason": "crashed"})]
        poll.until(lambda: state(api, sandbox) == ("error", "vmm_crashed"), 10, "state error")
        assert api.process(sandbox, process["id"])["state"] == "lost"
        answer = api.ask("POST", f"/v1/sandboxes/{sandbox}/run", {"argv": ["true"]})
        assert (answer.status, answer.code, answer.details["state"]) == (409, "failed_precondition", "error")
        answer = api.ask("GET", f"/v1/sandboxes/{sandbox}/processes/{process['id']}/result")
        assert (answer.status, answer.code) == (409, "failed_precondition")
        assert api.output(session["id"]) == b"before\n"
        api.delete(sandbox)

    def test_a_vmm_over_its_memory_limit_ends_alone_and_says_why(self, api, installation, shared):
        sandbox = api.create()["id"]
        usage, limit = machine.memory_group(installation.vmm_of(sandbox))
        limit.write_text(str(int(usage.read_text()) + (32 << 20)))
        answer = api.ask("POST", f"/v1/sandboxes/{sandbox}/run",
                         {"argv": ["python3", "-c", "print(len(b'x' * (250 << 20)))"]})
        assert (answer.status, answer.code) == (409, "failed_precondition"), answer
        poll.until(lambda: state(api, sandbox) == ("error", "out_of_memory"), 20, "state error, out_of_memory")
        assert api.check_output(shared, ["echo", "undisturbed"]) == "undisturbed\n"
        api.delete(sandbox)

    def test_a_run_that_loses_its_vmm_is_answered(self, api, installation):
        sandbox = api.create()["id"]
        got = []
        thread = threading.Thread(target=lambda: got.append(
            installation.api.ask("POST", f"/v1/sandboxes/{sandbox}/run", {"argv": ["sleep", "1000"], "timeout_seconds": 600})))
        thread.start()
        poll.until(lambda: api.get(f"/v1/sandboxes/{sandbox}/processes")["items"], 10, "it has started")
        os.kill(installation.vmm_of(sandbox), signal.SIGKILL)
        thread.join(30)
        assert (got[0].status, got[0].code) == (409, "failed_precondition"), got
        api.delete(sandbox)

    @pytest.mark.parametrize("command, code", [
        ("poweroff -f || (echo o > /proc/sysrq-trigger)", "guest_poweroff"),
        ("echo c > /proc/sysrq-trigger", "guest_panic"),
        ("kill -9 1; kill -SEGV 1; echo c > /proc/sysrq-trigger", "guest_panic"),
    ])
    def test_a_guest_that_ends_itself(self, api, command, code):
        sandbox = api.create()["id"]
        api.ask("POST", f"/v1/sandboxes/{sandbox}/commands", {"shell": command, "user": "root"})
        poll.until(lambda: state(api, sandbox) == ("error", code), 30, f"error {code}")
        if code == "guest_panic":
            assert b"panic" in api.ask("GET", f"/v1/sandboxes/{sandbox}/console").body.lower()
        api.delete(sandbox)

    def test_a_guest_that_reboots_is_no_running_sandbox(self, api):
        sandbox = api.create()["id"]
        api.ask("POST", f"/v1/sandboxes/{sandbox}/commands", {"shell": "echo b > /proc/sysrq-trigger", "user": "root"})
        poll.until(lambda: state(api, sandbox)[0] == "error", 30, "error")
        api.delete(sandbox)

    def test_an_agent_that_root_kills_or_floods_hurts_only_itself(self, api, sandboxes, shared):
        sandbox = api.create()["id"]
        flood = "for p in /dev/vport*; do (cat /dev/urandom > $p) & done; sleep 3"
        api.ask("POST", f"/v1/sandboxes/{sandbox}/commands", {"shell": flood, "user": "root"})
        assert api.check_output(shared, ["echo", "undisturbed"]) == "undisturbed\n"
        poll.until(lambda: state(api, sandbox)[0] in ("error", "running"), 10, "a definite state")
        api.delete(sandbox)

    @pytest.mark.long
    def test_memory_hunger_ends_inside_the_guest_or_with_a_reason(self, api, sandboxes, shared):
        sandbox = api.create(memory_mib=256)["id"]
        api.run(sandbox, "python3 -c 'a=[]\nwhile True: a.append(bytearray(1<<20))'", timeout_seconds=60)
        assert state(api, sandbox) in (("running", None), ("error", "guest_panic"), ("error", "out_of_memory"))
        assert api.check_output(shared, ["echo", "undisturbed"]) == "undisturbed\n"
        api.delete(sandbox)

    @pytest.mark.parametrize("command, code, signal", [
        (["python3", "-c", HUNGER], None, "SIGKILL"),  # the command itself
        (f"python3 -c '{HUNGER}'; echo after $?", 0, None),  # what it had started
    ])
    def test_who_was_ended_for_want_of_memory_is_told_so(self, api, sandboxes, command, code, signal):
        box = sandboxes()["id"]
        process, session = api.start(box, command, timeout_seconds=120)
        with api.events(session["id"]) as events:
            end = list(events)[-1]
        result = api.result(box, process["id"])
        for one in (end["data"], result, api.process(box, process["id"])):
            assert (one["exit_code"], one["signal"], one["out_of_memory"], one["timed_out"]) == (code, signal, True, False), one
        if code == 0:
            assert result["stdout"] == "after 137\n"
        assert b"Out of memory: Killed process" in api.ask("GET", f"/v1/sandboxes/{box}/console").body
        # Others of the same sandbox are not, and a kill is only a kill.
        assert api.run(box, "kill -KILL $$")["out_of_memory"] is False
        assert api.run(box, ["true"])["out_of_memory"] is False

    def test_the_command_line_says_what_ran_out_of_memory(self, installation, sandboxes):
        box = sandboxes()["id"]
        done = installation.space("exec", box, "--", "python3", "-c", HUNGER)
        assert done.returncode == 137 and "out of memory" in done.stderr, done
        assert "out of memory" in installation.space("ps", box).stdout

    def test_a_fork_bomb_stays_inside(self, api, shared):
        sandbox = api.create()["id"]
        api.start(sandbox, ":(){ :|:& };:")
        assert api.check_output(shared, ["echo", "undisturbed"]) == "undisturbed\n"
        api.delete(sandbox)


def test_everything_dies_at_once_and_comes_back(api, installation):
    """Daemons and supervisor killed, as a crash of the machine's user space would; `space up` again."""
    sandbox = api.create(name="phoenix")["id"]
    process, session = api.start(sandbox, "sleep 2; echo phoenix")
    for program in ("space-supervisor", "space-api", "space-node"):
        for pid in installation.daemons(program):
            os.kill(pid, signal.SIGKILL)
    api.close()
    poll.until(lambda: not installation.daemons("space-node") and not installation.daemons("space-api"), 10, "all dead")
    installation.up()
    assert api.sandbox(sandbox)["state"] == "running"
    assert api.result(sandbox, process["id"])["stdout"] == "phoenix\n"
    api.delete(sandbox)
