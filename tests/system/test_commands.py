"""Commands: run, start, results, output, stdin, signals, time limits."""

import base64
import datetime
import hashlib
import threading

import pytest

from harness import poll


class TestRun:
    def test_the_result_of_a_program(self, api, shared):
        result = api.run(shared, ["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (result["exit_code"], result["signal"], result["timed_out"]) == (3, None, False)
        assert (result["stdout"], result["stderr"]) == ("out\n", "err\n")
        assert 0 < result["duration_seconds"] < 30

    def test_argv_is_not_read_by_a_shell(self, api, shared):
        assert api.check_output(shared, ["echo", "$HOME", "*", ";", "a b"]) == "$HOME * ; a b\n"

    def test_shell_is_bash(self, api, shared):
        assert api.check_output(shared, "shopt -q extglob; echo ${BASH_VERSION%%.*}; [[ a == a ]] && echo yes") == "5\nyes\n"

    def test_the_environment(self, api, shared):
        seen = dict(line.split("=", 1) for line in api.check_output(shared, ["env"]).splitlines())
        assert seen["HOME"] == "/home/user" and seen["USER"] == "user"
        assert "/usr/bin" in seen["PATH"] and seen["LANG"]
        assert api.check_output(shared, "id -un; pwd") == "user\n/home/user\n"
        assert api.check_output(shared, ["env"], env={"EXTRA": "a b=c"}).count("EXTRA=a b=c\n") == 1

    def test_cwd_and_user(self, api, shared):
        assert api.check_output(shared, "pwd; id -u", cwd="/tmp", user="root") == "/tmp\n0\n"
        assert api.check_output(shared, ["id", "-un"], user="0") == "root\n"

    def test_input(self, api, shared):
        assert api.check_output(shared, ["cat"], input="grüße\n") == "grüße\n"
        data = bytes(range(256)) * 300
        coded = base64.b64encode(data).decode()
        seen = api.check_output(shared, ["sha256sum"], input_base64=coded)
        assert seen.split()[0] == hashlib.sha256(data).hexdigest()
        assert api.check_output(shared, ["cat"]) == ""

    def test_input_that_is_not_read_hangs_nothing(self, api, shared):
        assert api.run(shared, ["true"], input="x" * 1_000_000)["exit_code"] == 0

    def test_encodings(self, api, shared):
        raw = ["printf", r"a\377b"]
        auto = api.run(shared, raw)
        assert (auto["stdout_encoding"], base64.b64decode(auto["stdout"])) == ("base64", b"a\xffb")
        assert api.run(shared, raw, encoding="utf8")["stdout"] == "a\ufffdb"
        coded = api.run(shared, ["echo", "plain"], encoding="base64")
        assert (coded["stdout_encoding"], coded["stdout"]) == ("base64", base64.b64encode(b"plain\n").decode())

    def test_output_over_the_cap_keeps_both_ends(self, api, shared):
        result = api.run(shared, "seq 1 100000", max_output_bytes=2000)
        assert result["stdout"].startswith("1\n2\n") and result["stdout"].endswith("\n99999\n100000\n")
        total = len("".join(f"{i}\n" for i in range(1, 100001)))
        assert len(result["stdout"]) + result["stdout_omitted_bytes"] == total
        assert 0 < result["stdout_omitted_at"] <= 1000

    def test_the_cap_cuts_at_characters(self, api, shared):
        result = api.run(shared, ["python3", "-c", "print('€' * 5000, end='')"], max_output_bytes=1001)
        assert result["stdout_encoding"] == "utf8" and set(result["stdout"]) == {"€"}
        assert len(result["stdout"].encode()) + result["stdout_omitted_bytes"] == 15000

    def test_a_signal_is_no_exit_code(self, api, shared):
        result = api.run(shared, "kill -TERM $$")
        assert (result["exit_code"], result["signal"]) == (None, "SIGTERM")

    def test_a_timeout_kills_the_tree(self, api, shared):
        result = api.run(shared, "sleep 4711 & sleep 4712", timeout_seconds=0.5)
        assert result["timed_out"] is True and result["exit_code"] is None
        assert 0.5 <= result["duration_seconds"] < 5
        assert api.run(shared, "pgrep -f 'sleep 471[12]'")["exit_code"] == 1

    def test_a_timeout_can_leave_it_running(self, api, shared):
        result = api.run(shared, "echo before; sleep 4713", timeout_seconds=0.5, on_timeout="leave")
        assert result["timed_out"] is True and result["stdout"] == "before\n"
        assert api.process(shared, result["process_id"])["state"] == "running"
        path = f"/v1/sandboxes/{shared}/processes/{result['process_id']}"
        assert api.post(path + "/kill")["killed"] is True
        ended = api.process(shared, result["process_id"])
        assert (ended["state"], ended["signal"]) == ("exited", "SIGKILL")

    def test_what_stays_in_the_background_is_not_waited_for(self, api, shared):
        result = api.run(shared, "nohup sleep 4714 >/dev/null 2>&1 & echo done")
        assert result["stdout"] == "done\n" and result["duration_seconds"] < 10
        assert api.run(shared, "pkill -f 'sleep 471[4]'")["exit_code"] == 0

    def test_a_background_child_that_holds_the_pipe_does_not_hold_the_answer(self, api, shared):
        result = api.run(shared, "sleep 4715 & echo done", timeout_seconds=30)
        assert result["stdout"] == "done\n" and result["timed_out"] is False
        api.run(shared, "pkill -f 'sleep 471[5]'")

    @pytest.mark.parametrize("habit", ["sleep 0.1", "echo more; sleep 0.1"])
    def test_a_held_pipe_is_told_of_and_its_writer_goes_on(self, api, shared, habit):
        api.run(shared, "rm -f stop mark")
        # The child writes more than a pipe holds when nobody reads it any more.
        process, session = api.start(shared, f"(while ! [ -e stop ]; do {habit}; done; head -c 300000 /dev/zero && "
                                             "echo survived >mark) & echo $EPOCHREALTIME >&2; echo done")
        with api.events(session["id"]) as events:
            end = list(events)[-1]
        assert end["event"] == "process_exited" and end["data"]["exit_code"] == 0
        assert end["data"]["pipe_held"] is True, end
        began = float(api.output(session["id"], "stderr"))
        seconds = datetime.datetime.fromisoformat(api.process(shared, process["id"])["exited_at"]).timestamp() - began
        # Half a second of silence, or two seconds: by the guest's clock, and with time for the news to travel.
        assert 0.45 < seconds < 4, seconds
        before = api.output(session["id"])
        assert b"done\n" in before
        assert api.run(shared, ["test", "-e", "mark"])["exit_code"] == 1
        api.run(shared, ["touch", "stop"])
        poll.until(lambda: api.run(shared, ["cat", "mark"])["stdout"] == "survived\n", 30, "the late writer survives")
        # What it wrote after the end is in no session.
        assert api.output(session["id"]) == before

    def test_nobody_holds_the_pipe_of_a_program_that_ends_alone(self, api, shared):
        _, session = api.start(shared, ["echo", "x"])
        with api.events(session["id"]) as events:
            assert list(events)[-1]["data"]["pipe_held"] is False

    def test_no_zombies_are_left(self, api, shared):
        api.check_output(shared, "for i in 1 2 3; do (sleep 0.01 &) ; done; sleep 0.2")
        assert api.check_output(shared, "ps -eo stat= | grep -c '^Z' || true") == "0\n"


class TestRunOnce:
    def test_the_sandbox_goes_after_the_answer(self, api):
        result = api.post("/v1/run", {"template": "base", "argv": ["echo", "hello"]})
        assert (result["exit_code"], result["stdout"]) == (0, "hello\n")
        poll.until(lambda: api.ask("GET", f"/v1/sandboxes/{result['sandbox_id']}").status == 404, 10, "deleted")
        answer = api.ask("GET", f"/v1/sandboxes/{result['sandbox_id']}/processes/{result['process_id']}/result")
        assert (answer.status, answer.code, answer.details["resource"]) == (410, "gone", "process"), answer

    def test_keep(self, api):
        result = api.post("/v1/run", {"template": "base", "shell": "echo kept > file", "keep": True})
        assert api.check_output(result["sandbox_id"], ["cat", "file"]) == "kept\n"
        assert api.process(result["sandbox_id"], result["process_id"])["state"] == "exited"
        api.delete(result["sandbox_id"])

    def test_files_come_first(self, api):
        body = {"template": "base", "shell": "python3 pkg/main.py; cat /tmp/raw | xxd -p; stat -c '%U' pkg/main.py",
                "files": [{"path": "pkg/main.py", "text": "print('from a file')\n"},
                          {"path": "/tmp/raw", "base64": "AP8="}]}
        assert api.post("/v1/run", body)["stdout"] == "from a file\n00ff\nuser\n"

    def test_the_most_files_and_one_more(self, api):
        files = [{"path": f"many/{number}", "text": f"{number}\n"} for number in range(1024)]
        body = {"template": "base", "shell": "cd many && ls | wc -l && cat $(seq 0 1023) | sha256sum", "files": files}
        count, digest = api.post("/v1/run", body)["stdout"].splitlines()
        assert count == "1024"
        assert digest.split()[0] == hashlib.sha256("".join(f["text"] for f in files).encode()).hexdigest()
        answer = api.ask("POST", "/v1/run", {**body, "files": [*files, {"path": "one-more", "text": ""}]}, check=False)
        assert (answer.status, answer.details["field"]) == (400, "files"), answer

    def test_output_with_a_nul_byte(self, api):
        assert api.post("/v1/run", {"template": "base", "shell": "printf 'a\\0b'"})["stdout"] == "a\0b"

    def test_env_is_for_both(self, api):
        result = api.post("/v1/run", {"template": "base", "shell": "echo $A", "env": {"A": "1"}, "keep": True})
        assert result["stdout"] == "1\n"
        assert api.check_output(result["sandbox_id"], "echo $A") == "1\n"
        assert api.sandbox(result["sandbox_id"])["env_names"] == ["A"]
        api.delete(result["sandbox_id"])

    def test_a_failing_program_is_still_200(self, api):
        assert api.post("/v1/run", {"template": "base", "shell": "exit 41"})["exit_code"] == 41

    def test_what_cannot_be_executed_leaves_no_sandbox(self, api):
        before = {s["id"] for s in api.get("/v1/sandboxes", query={"limit": 1000})["items"]}
        answer = api.ask("POST", "/v1/run", {"template": "base", "argv": ["/nosuch"]})
        assert answer.status == 400 and answer.details["errno"] == "ENOENT", answer
        poll.until(lambda: {s["id"] for s in api.get("/v1/sandboxes", query={"limit": 1000})["items"]} <= before,
                   10, "nothing is left")


class TestCommands:
    def test_a_record_from_start_to_end(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        process, session = api.start(sandbox, ["sh", "-c", "cat; exit 5"], stdin="open")
        assert process["state"] == "running" and process["pid"] > 1 and process["argv"][0] == "sh"
        assert process["session_id"] == session["id"] and process["user"] == "user"
        assert session["url"].endswith(f"/v1/sessions/{session['id']}") and session["token"]
        listed = api.get(f"/v1/sandboxes/{sandbox}/processes")["items"]
        assert [p["id"] for p in listed] == [process["id"]]
        path = f"/v1/sandboxes/{sandbox}/processes/{process['id']}"
        assert api.expect(202, "GET", path + "/result")
        api.expect(200, "POST", path + "/stdin?eof=true", raw=b"bye\n")
        result = api.result(sandbox, process["id"])
        assert (result["exit_code"], result["stdout"]) == (5, "bye\n")
        ended = api.process(sandbox, process["id"])
        assert (ended["state"], ended["exit_code"]) == ("exited", 5) and ended["exited_at"]

    def test_processes_are_paged_newest_first(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        made = [api.start(sandbox, ["true"])[0]["id"] for _ in range(5)]
        got, cursor = [], None
        while True:
            query = {"limit": 2, **({"cursor": cursor} if cursor else {})}
            page = api.get(f"/v1/sandboxes/{sandbox}/processes", query=query)
            got += [p["id"] for p in page["items"]]
            cursor = page["next_cursor"]
            if not cursor:
                break
        assert got == made[::-1]

    def test_result_waits_for_the_end(self, api, shared):
        process, _ = api.start(shared, "sleep 0.7; echo late")
        assert api.result(shared, process["id"], wait=30)["stdout"] == "late\n"

    def test_results_are_gone_with_the_sandbox(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        process, session = api.start(sandbox, ["echo", "x"])
        path = f"/v1/sandboxes/{sandbox}/processes/{process['id']}"
        assert api.result(sandbox, process["id"])["stdout"] == "x\n"
        api.delete(sandbox)
        for gone, resource in ((path + "/result", "process"), (f"/v1/sessions/{session['id']}/output", "session"),
                               (f"/v1/sessions/{session['id']}/events", "session")):
            answer = api.ask("GET", gone)
            assert (answer.status, answer.code, answer.details["resource"]) == (410, "gone", resource), (gone, answer)
        assert api.ask("GET", path).details["resource"] == "sandbox"
        other = f"/v1/sandboxes/{sandbox}/processes/pr{'0' * 18}/result"
        assert api.ask("GET", other).status == 404

    def test_a_timeout(self, api, shared):
        process, _ = api.start(shared, ["sleep", "4720"], timeout_seconds=0.5)
        result = api.result(shared, process["id"])
        assert result["timed_out"] is True and result["signal"] == "SIGKILL"


class TestOutput:
    def test_pieces_of_any_size_make_the_whole(self, api, shared):
        process, session = api.start(shared, "seq 1 20000; seq 1 100 >&2")
        api.result(shared, process["id"])
        want = "".join(f"{i}\n" for i in range(1, 20001)).encode()
        assert api.output(session["id"]) == want
        assert api.output(session["id"], "stderr") == "".join(f"{i}\n" for i in range(1, 101)).encode()
        got, offset = b"", 0
        for size in (1, 7, 4096, 65536, 1 << 20):
            answer = api.expect(200, "GET", f"/v1/sessions/{session['id']}/output",
                                query={"offset": offset, "limit": size})
            assert len(answer.body) <= size
            got += answer.body
            offset = int(answer.headers["X-Space-Next-Offset"])
            assert offset == len(got)
        assert got == want and answer.headers["X-Space-End"] == "true"

    def test_wait_holds_until_there_is_something(self, api, shared):
        process, session = api.start(shared, "read line; echo got $line", stdin="open")
        path = f"/v1/sessions/{session['id']}/output"
        empty = api.expect(200, "GET", path)
        assert empty.body == b"" and empty.headers["X-Space-End"] == "false"
        seen = []
        reader = threading.Thread(target=lambda: seen.append(api.expect(200, "GET", path, query={"wait": 60})))
        reader.start()
        api.expect(200, "POST", f"/v1/sandboxes/{shared}/processes/{process['id']}/stdin", raw=b"it\n")
        reader.join(60)
        assert seen[0].body == b"got it\n"

    def test_binary_output_is_exact(self, api, shared):
        code = "import os,hashlib;d=os.urandom(3000000);os.write(2,hashlib.sha256(d).hexdigest().encode());" \
               "import sys;sys.stdout.buffer.write(d)"
        process, session = api.start(shared, ["python3", "-c", code])
        api.result(shared, process["id"])
        data = api.output(session["id"])
        assert len(data) == 3_000_000
        assert hashlib.sha256(data).hexdigest().encode() == api.output(session["id"], "stderr")

    def test_an_offset_past_the_end_is_refused_and_at_the_end_nothing_comes(self, api, shared):
        process, session = api.start(shared, ["echo", "x"])
        api.result(shared, process["id"])
        answer = api.ask("GET", f"/v1/sessions/{session['id']}/output", query={"offset": 3})
        assert (answer.status, answer.details["field"]) == (400, "offset"), answer
        answer = api.ask("GET", f"/v1/sessions/{session['id']}/output", query={"offset": 2})
        assert (answer.status, answer.body, answer.headers["X-Space-End"]) == (200, b"", "true"), answer

    def test_a_full_spool_drops_the_oldest_with_a_gap(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        process, session = api.start(sandbox, "head -c 1000000 /dev/zero | tr '\\0' x; echo; echo end",
                                     spool_bytes=65536)
        api.result(sandbox, process["id"])
        answer = api.ask("GET", f"/v1/sessions/{session['id']}/output", query={"offset": 0})
        assert (answer.status, answer.code) == (410, "gone"), answer
        with api.events(session["id"]) as events:
            seen = list(events)
        gaps = [e["data"] for e in seen if e["event"] == "gap"]
        kept = sum(len(base64.b64decode(e["data"]["data"])) for e in seen if e["event"] == "output")
        assert sum(g["bytes"] for g in gaps) + kept == 1_000_005
        assert kept >= 65536 // 2
        assert seen[-1]["data"]["stdout_bytes"] == 1_000_005

    def test_a_spool_keeps_64_mib_unless_told_otherwise(self, api, sandboxes):
        sandbox = sandboxes()["id"]
        process, session = api.start(sandbox, ["head", "-c", str(72 << 20), "/dev/zero"])
        assert api.result(sandbox, process["id"])["exit_code"] == 0
        with api.events(session["id"]) as events:
            gap = next(e["data"] for e in events if e["event"] == "gap")
        # What it keeps is cut in pieces.
        assert 8 << 20 <= gap["bytes"] <= 12 << 20, gap


class TestStdin:
    def test_offsets_make_retries_exact(self, api, shared):
        process, session = api.start(shared, ["cat"], stdin="open")
        path = f"/v1/sandboxes/{shared}/processes/{process['id']}/stdin"
        assert api.post(path + "?offset=0", raw=b"hello ")["offset"] == 6
        assert api.post(path + "?offset=0", raw=b"hello ")["offset"] == 6
        assert api.post(path + "?offset=3", raw=b"lo world\n")["offset"] == 12
        answer = api.ask("POST", path + "?offset=99", raw=b"x")
        assert (answer.status, answer.details["field"]) == (400, "offset"), answer
        assert api.post(path + "?offset=12&eof=true", raw=b"")["offset"] == 12
        assert api.result(shared, process["id"])["stdout"] == "hello world\n"

    def test_much_of_it(self, api, shared):
        process, _ = api.start(shared, ["sha256sum"], stdin="open")
        path = f"/v1/sandboxes/{shared}/processes/{process['id']}/stdin"
        data = bytes((i * 7 + i // 251) % 256 for i in range(1_500_000))
        offset = 0
        while offset < len(data):
            offset = api.post(f"{path}?offset={offset}", raw=data[offset:offset + 400_000])["offset"]
        api.post(f"{path}?offset={offset}&eof=true", raw=b"")
        assert api.result(shared, process["id"])["stdout"].split()[0] == hashlib.sha256(data).hexdigest()

    def test_a_closed_input_is_refused(self, api, shared):
        process, _ = api.start(shared, ["sleep", "4730"])
        path = f"/v1/sandboxes/{shared}/processes/{process['id']}"
        answer = api.ask("POST", path + "/stdin", raw=b"x")
        assert (answer.status, answer.code) == (409, "failed_precondition"), answer
        api.post(path + "/kill")


class TestSignals:
    def test_scopes(self, api, shared):
        code = "trap 'echo got' INT; echo ready; while :; do sleep 0.1; done"
        process, session = api.start(shared, code)
        path = f"/v1/sandboxes/{shared}/processes/{process['id']}"
        with api.events(session["id"]) as events:
            assert next(e for e in events if e["event"] == "output")["data"]["data"] == base64.b64encode(b"ready\n").decode()
            api.post(path + "/signal", {"signal": "SIGINT", "scope": "process"})
            assert next(e for e in events if e["event"] == "output")["data"]["data"] == base64.b64encode(b"got\n").decode()
        api.post(path + "/signal", {"signal": "SIGTERM", "scope": "group"})
        assert api.result(shared, process["id"])["signal"] == "SIGTERM"

    def test_kill_takes_the_whole_tree(self, api, shared):
        code = "setsid sleep 4741 & (setsid sh -c 'sleep 4742' &) ; sleep 4743"
        process, _ = api.start(shared, code)
        poll.until(lambda: api.run(shared, "pgrep -fc 'sleep 474[123]'")["stdout"] >= "3", 20, "all three run")
        path = f"/v1/sandboxes/{shared}/processes/{process['id']}"
        assert api.post(path + "/kill")["killed"] is True
        assert api.run(shared, "pgrep -f '^sleep 474[123]'")["exit_code"] == 1
        assert api.result(shared, process["id"])["signal"] == "SIGKILL"
        assert api.post(path + "/kill")["killed"] is False

    def test_a_signal_to_the_tree_reaches_other_groups(self, api, shared):
        process, _ = api.start(shared, "setsid sleep 4751 & sleep 4752")
        path = f"/v1/sandboxes/{shared}/processes/{process['id']}"
        poll.until(lambda: api.run(shared, "pgrep -fc '^sleep 475[12]'")["stdout"] == "2\n", 20, "both run")
        api.post(path + "/signal", {"signal": "SIGTERM", "scope": "tree"})
        assert api.result(shared, process["id"])["signal"] == "SIGTERM"
        poll.until(lambda: api.run(shared, "pgrep -f '^sleep 475[12]'")["exit_code"] == 1, 20, "the other group has ended too")

    def test_a_signal_to_an_exited_process_is_refused(self, api, shared):
        process, _ = api.start(shared, ["true"])
        api.result(shared, process["id"])
        answer = api.ask("POST", f"/v1/sandboxes/{shared}/processes/{process['id']}/signal", {"signal": "SIGTERM"})
        assert (answer.status, answer.code) == (409, "failed_precondition")


def test_a_client_that_goes_away_kills_nothing(api, installation, sandboxes):
    sandbox = sandboxes()["id"]
    body = b'{"shell": "sleep 1; echo finished > /tmp/mark"}'
    with api.raw_socket() as raw:
        raw.sendall((f"POST /v1/sandboxes/{sandbox}/run HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {installation.key}\r\n"
                     f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body)
        poll.until(lambda: api.get(f"/v1/sandboxes/{sandbox}/processes")["items"], 10, "it has started")
    poll.until(lambda: api.run(sandbox, ["cat", "/tmp/mark"])["stdout"] == "finished\n", 20, "it went on")


@pytest.mark.parametrize("count", [20])
def test_many_commands_at_once_in_one_sandbox(api, shared, count):
    results = [None] * count

    def one(index):
        results[index] = api.check_output(shared, f"echo {index}")

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert results == [f"{i}\n" for i in range(count)]
