"""Random commands with known output while clients disconnect and the daemons are killed: every byte
exactly once, order kept, the exit status right, each command run exactly once, for every reader from
wherever it resumes.

WORKERS clients run commands side by side in a few sandboxes and follow each with several readers
(events, attach, output) that break off and resume; some write to its input, over connections that
break as well. Meanwhile space-api and space-node are killed in bursts, the next kill at times before
the last restart is complete, and upgraded as docs/operations.md says: a new file in the place of the program, at times of the
supervisor's too, and `space up`, while the other one may be killed. What is expected is computed beside it, never read back.

    OUTPUT_ROUNDS=5000 tests/system/run -s campaign_output.py

runs thousands (tests/system/campaign does so in its long round), several per second on a machine
with nothing else to do. OUTPUT_ROUNDS is how many commands, OUTPUT_SECONDS after how long no more
are begun, CAMPAIGN_SEED what is chosen; seed and counts are printed."""

import base64
import collections
import http.client
import os
import random
import shutil
import threading
import time

import pytest
import websocket

from harness import machine, poll
from harness.attach import Attached
from harness.http import ApiError
from harness.installation import Installation, libexec
from harness.patient import PATIENCE_SECONDS, RETRIED, Patient

ROUNDS = int(os.environ.get("OUTPUT_ROUNDS", "200"))
SECONDS = float(os.environ.get("OUTPUT_SECONDS", "inf"))
SEED = int(os.environ.get("CAMPAIGN_SEED", str(random.SystemRandom().randrange(2**32))))
WORKERS = 16
SANDBOXES = 3
# A daemon that lived for ten seconds is started again at once, another one later and later.
CALM_SECONDS = (10.1, 12)
BROKEN = (OSError, http.client.HTTPException, websocket.WebSocketException)
RAN = "/var/tmp/ran"
KEPT = 1 << 20  # bytes of each stream in a result that says no more


class Plan:
    """One command: what it writes, how it ends, how it is read."""

    def __init__(self, dice):
        self.mark = f"{dice.randrange(1 << 32):08x}"
        self.status = dice.choice([0, 0, 1, 7, 143, 255])
        self.signal = dice.choice([None, None, None, "TERM", "KILL"])
        self.kind = dice.choices(["lines", "bulk", "slow", "typed", "held"], [60, 12, 12, 13, 3])[0]
        self.tty = dice.random() < 0.15 and self.kind in ("lines", "bulk", "slow")
        self.collected = dice.random() < 0.15 and self.kind in ("lines", "bulk", "slow") and not self.tty
        self.block = dice.random() < 0.25 and not self.collected
        self.parts, self.input = [], None  # (stream, first, last, fill)
        getattr(self, f"plan_{self.kind}")(dice)

    def plan_lines(self, dice):
        count, errors, fill = dice.choice([0, 1, 3, 10, 50, 200]), dice.choice([0, 3, 10]), "x" * dice.choice([0, 20, 500])
        for i in range(1, count + 1):
            self.parts.append(("stdout", i, i, fill))
            if errors and i % errors == 0:
                self.parts.append(("stderr", i, i, ""))
        more = f"[ $((i % {errors})) -ne 0 ] || echo {self.mark}-e$i >&2; " if errors else ""
        self.script = f"i=0; while [ $i -lt {count} ]; do i=$((i + 1)); echo {self.mark}-${{i}}{fill}; {more}done"

    def plan_bulk(self, dice):
        at, steps = 0, []
        for _ in range(dice.choice([1, 1, 2, 6])):
            stream, count, fill = dice.choice(["stdout", "stdout", "stderr"]), dice.choice([300, 1500, 8000]), "y" * dice.choice([0, 12])
            self.parts.append((stream, at + 1, at + count, fill))
            steps.append(self.seq(*self.parts[-1]))
            at += count
        self.script = "; ".join(steps)

    def plan_slow(self, dice):
        pause, steps = dice.choice(["0.01", "0.2", "1"]), []
        for i in range(1, dice.choice([2, 4, 8]) + 1):
            self.parts.append((dice.choice(["stdout", "stderr"]), 100 * i, 100 * i + dice.choice([0, 60]), ""))
            steps.append(f"{self.seq(*self.parts[-1])}; sleep {pause}")
        self.script = "; ".join(steps)

    def plan_held(self, _dice):
        self.parts.append(("stdout", 1, 20, ""))
        self.script = f"sleep 30 & {self.seq(*self.parts[0])}"

    def plan_typed(self, dice):
        self.input = b"".join(b"%s %d\n" % (self.mark.encode(), i) for i in range(dice.choice([1, 500, 15000])))
        self.script = "cat"

    def seq(self, stream, first, last, fill):
        sign = "e" if stream == "stderr" else ""
        return f"seq -f '{self.mark}-{sign}%.0f{fill}' {first} {last}{' >&2' if sign else ''}"

    def body(self):
        end = f"kill -{self.signal} $$" if self.signal else f"exit {self.status}"
        body = {"argv": ["sh", "-c", f"echo {self.mark} >>{RAN}; {self.script}; {end}"]}
        if self.collected:
            return body
        body |= {"spool_bytes": 1 << 16 if self.block else 64 << 20, "on_full": "block" if self.block else "drop"}
        if self.tty:
            body["tty"] = {"cols": 80, "rows": 24, "term": "xterm"}
        if self.input is not None:
            body["stdin"] = "open"
        return body

    def expected(self):
        if self.input is not None:
            return {"stdout": self.input, "stderr": b""}
        texts = {"stdout": [], "stderr": []}
        for stream, first, last, fill in self.parts:
            sign = "e" if stream == "stderr" else ""
            texts["stdout" if self.tty else stream] += [f"{self.mark}-{sign}{i}{fill}\n" for i in range(first, last + 1)]
        end = "\r\n" if self.tty else "\n"
        return {name: "".join(lines).replace("\n", end).encode() for name, lines in texts.items()}

    def check_end(self, end, label):
        want = {"exit_code": None, "signal": f"SIG{self.signal}"} if self.signal else {"exit_code": self.status, "signal": None}
        want["timed_out"] = False
        if "pipe_held" in end:  # an event, not a result
            want |= {"pipe_held": self.kind == "held"}
            want |= {f"{name}_bytes": len(data) for name, data in self.expected().items()}
        wrong = {key: end[key] for key, value in want.items() if end[key] != value}
        require(not wrong, label, want, end)

    def check_result(self, result, label):
        self.check_end(result, label)
        for name, data in self.expected().items():
            got = result[name].encode() if result[f"{name}_encoding"] == "utf8" else base64.b64decode(result[name])
            left_out, left_at = result[f"{name}_omitted_bytes"], result[f"{name}_omitted_at"]
            # Of more than KEPT a result has the beginning and the end; what is read of a session that blocks is not kept.
            require(self.block or left_out == max(0, len(data) - KEPT), label, name, left_out, len(data))
            if not left_out:
                require(got == data, label, name, difference(got, data))
            elif not self.block:
                rest = data[:left_at] + data[left_at + left_out:]
                require(got == rest, label, name, left_at, difference(got, rest))


class Reader:
    """Follows one session to its end over as many connections as it takes, by one of three ways. One that `goes_back`
    resumes at times from a place that it had passed already, and gets the same again."""

    def __init__(self, patient, session, dice, goes_back):
        self.patient, self.api, self.session, self.dice = patient, patient.api, session, dice
        self.goes_back, self.went_back = goes_back, 0
        self.had = {"stdout": b"", "stderr": b""}  # before it went back
        self.ids = []  # of events, with the bytes that had come by then
        self.got = {"stdout": bytearray(), "stderr": bytearray()}
        self.path = []  # [stream, bytes] as they came
        self.last_id, self.end, self.connections = None, None, 0

    def follow(self, way):
        deadline = time.monotonic() + 3 * PATIENCE_SECONDS
        while self.end is None:
            self.connections += 1
            if self.goes_back and self.connections > 1 and self.dice.random() < 0.4:
                self.go_back(way)
            try:
                getattr(self, way)(self.dice.choice([1, 3, 20, 200, 10**9, 10**9]))
            except ApiError as error:
                assert error.answer.status in RETRIED, error
                self.patient.installation.wait_ready()
            except websocket.WebSocketBadStatusException as error:
                assert error.status_code in RETRIED, error
                self.patient.installation.wait_ready()
            except BROKEN:
                self.patient.installation.wait_ready()
            assert time.monotonic() < deadline, f"{way} does not end: {self.session} {({k: len(v) for k, v in self.got.items()})}"
        return self

    def go_back(self, way):
        self.went_back += 1
        for name, got in self.got.items():
            self.had[name] = max(self.had[name], bytes(got), key=len)
        if way == "output":
            for got in self.got.values():
                del got[self.dice.randrange(len(got) + 1):]
            return
        total = self.dice.randrange(sum(size for _, size in self.path) + 1)
        if way == "events":
            self.last_id, total = self.dice.choice([(None, 0), *self.ids])
            self.ids = [known for known in self.ids if known[1] <= total]
        path, left = [], total
        for stream, size in self.path:
            if left > 0:
                path.append([stream, min(size, left)])
            left -= size
        self.path = path
        for name, got in self.got.items():
            del got[sum(size for stream, size in path if stream == name):]

    def take(self, stream, data):
        self.got[stream] += data
        if self.path and self.path[-1][0] == stream:
            self.path[-1][1] += len(data)
        else:
            self.path.append([stream, len(data)])

    def events(self, patience):
        with self.api.events(self.session, after=self.last_id) as stream:
            for _, event in zip(range(patience), stream):
                if event["event"] == "output":
                    name = event["data"]["stream"]
                    assert event["data"]["offset"] == len(self.got[name]), (event["data"]["offset"], len(self.got[name]))
                    self.take(name, base64.b64decode(event["data"]["data"]))
                assert event["event"] not in ("gap", "process_lost"), event
                if event["event"] == "process_exited":
                    self.end = event["data"]
                self.last_id = event["id"] or self.last_id
                self.ids.append((self.last_id, sum(size for _, size in self.path)))

    def attach(self, patience):
        with Attached(self.api, self.session, stdout=len(self.got["stdout"]), stderr=len(self.got["stderr"])) as at:
            for _ in range(patience):
                event = at.receive()
                if event is None:
                    break
                if isinstance(event, str):
                    self.take(event, at.output[event])
                    at.output[event] = b""
                elif event["type"] == "process_exited":
                    self.end = event
                else:
                    assert event["type"] not in ("gap", "process_lost"), event

    def output(self, _patience):
        # By turns: one that blocks goes on in one stream when the other has been read.
        unfinished = list(self.got)
        while unfinished:
            for name in list(unfinished):
                got = self.got[name]
                answer = self.api.expect(200, "GET", f"/v1/sessions/{self.session}/output", query={
                    "stream": name, "offset": len(got), "wait": 0.2, "limit": self.dice.choice([1000, 1 << 20, 1 << 20])})
                got += answer.body
                assert int(answer.headers["X-Space-Next-Offset"]) == len(got)
                if answer.headers["X-Space-End"] == "true":
                    unfinished.remove(name)
        self.end = {}


class Worker(threading.Thread):
    """Runs command after command until the common count is reached."""

    def __init__(self, installation, count, boxes):
        super().__init__()
        self.installation, self.count, self.boxes = installation, count, boxes
        self.patient = Patient(installation)
        self.problem = None

    def run(self):
        try:
            while (index := self.count.take()) is not None:
                self.round(random.Random(f"{SEED}:{index}"), index)
        except Exception as error:  # a thread's failure must reach the test
            self.problem = error
            self.count.stop()
        finally:
            self.patient.close()

    def round(self, dice, index):
        plan = Plan(dice)
        box = dice.choice(self.boxes)
        label = (SEED, index, box, plan.body())
        self.count.begin(box, plan)
        if plan.collected:
            answer = self.patient.ask("POST", f"/v1/sandboxes/{box}/run", plan.body())
            require(answer.status == 200, label, answer)
            self.count.note(plan, answer.json["process_id"])
            plan.check_result(answer.json, label)
        else:
            answer = self.patient.ask("POST", f"/v1/sandboxes/{box}/commands", plan.body())
            require(answer.status == 201, label, answer)
            self.count.note(plan, answer.json["process"]["id"])
            self.follow(plan, box, answer.json["process"]["id"], answer.json["session"]["id"], dice, label)
        self.count.finish(plan)

    def follow(self, plan, box, process, session, dice, label):
        # One that blocks is read by one reader: what that one has taken, another cannot ask for.
        number = 1 if plan.block else dice.choice([1, 2, 3])
        ways = dice.sample(["events", "attach", "output"], number)
        readers = [Reader(Patient(self.installation), session, random.Random(dice.random()), not plan.block) for _ in ways]
        failures = []

        def follow(reader, way):
            try:
                reader.follow(way)
            except Exception as error:  # pylint: disable=broad-except
                failures.append((way, error))
            finally:
                reader.patient.close()

        threads = [threading.Thread(target=follow, args=pair) for pair in zip(readers, ways)]
        for thread in threads:
            thread.start()
        if plan.input is not None:
            if dice.random() < 0.5:
                self.type_attached(session, plan.input, dice)
            else:
                self.type_by_requests(f"/v1/sandboxes/{box}/processes/{process}/stdin", plan.input, dice)
        for thread in threads:
            thread.join(4 * PATIENCE_SECONDS)
        require(not failures, label, ways, failures)
        want = plan.expected()
        for reader, way in zip(readers, ways):
            require(reader.end is not None, label, way)
            for name, data in want.items():
                require(reader.got[name] == data, label, way, name, difference(reader.got[name], data))
                require(data.startswith(reader.had[name]), label, way, name, difference(reader.had[name], data))
            if reader.end:
                plan.check_end(reader.end, (label, way))
        paths = [reader.path for reader, way in zip(readers, ways) if way != "output"]
        require(all(path == paths[0] for path in paths), label, ways, [path[:20] for path in paths])
        self.count.add_connections(sum(reader.connections for reader in readers), sum(reader.went_back for reader in readers))
        result = self.patient.ask("GET", f"/v1/sandboxes/{box}/processes/{process}/result", query={"wait": 60})
        require(result.status == 200, label, result)
        plan.check_result(result.json, label)
        if not plan.block:
            self.check_random_offsets(session, want, dice, label)

    def type_attached(self, session, data, dice):
        """Input over connections that drop, each going on where the session says."""
        finished, former = False, {}
        while not finished:
            try:
                with Attached(self.patient.api, session, **former) as at:
                    former = {"replaces": at.attached["attachment_id"]}
                    sent = at.attached["stdin_offset"]
                    pieces = dice.choice([1, 4, 10**9])
                    while sent < len(data) and pieces > 0:
                        piece = data[sent:sent + dice.choice([1, 1000, 40_000])]
                        at.write(piece)
                        sent, pieces = sent + len(piece), pieces - 1
                    if sent == len(data):
                        at.tell(type="eof")
                        at.read_to_end()
                        finished = at.events[-1]["type"] == "process_exited"
            except BROKEN:
                self.installation.wait_ready()

    def type_by_requests(self, path, data, dice):
        """Input by requests with offsets, each repeated until it is answered."""
        sent = 0
        while True:
            piece = data[sent:sent + dice.choice([1000, 30_000, 300_000])]
            last = sent + len(piece) == len(data)
            answer = self.patient.ask("POST", path, raw=piece, query={"offset": sent, "eof": "true" if last else "false"})
            if last and answer.status == 409:
                return  # taken, and its answer was lost: the output tells
            require(answer.status == 200 and answer.json["offset"] == sent + len(piece), path, sent, len(piece), answer)
            if last:
                return
            sent += len(piece)

    def check_random_offsets(self, session, want, dice, label):
        for name, data in want.items():
            offset = dice.randrange(len(data) + 1)
            answer = self.patient.ask("GET", f"/v1/sessions/{session}/output", query={"stream": name, "offset": offset, "limit": 5000})
            require(answer.status == 200 and answer.body == data[offset:offset + 5000], label, name, offset, answer)


def require(condition, *what):
    """An assertion whose message is what it is given, whole."""
    if not condition:
        raise AssertionError(what)


def difference(got, want):
    at = next((i for i, pair in enumerate(zip(got, want)) if pair[0] != pair[1]), min(len(got), len(want)))
    return f"{len(got)} bytes of {len(want)}, first difference at {at}: {got[at:at + 60]!r} for {want[at:at + 60]!r}"


class Count:
    """What is still to be done, and what was."""

    def __init__(self, rounds, seconds):
        self.lock, self.left, self.until = threading.Lock(), rounds, time.monotonic() + seconds
        self.taken, self.finished, self.bytes, self.connections, self.went_back = 0, 0, 0, 0, 0
        self.marks = collections.defaultdict(list)
        self.kinds = collections.Counter()
        self.what = {}  # by mark, for the message of a failure

    def note(self, plan, process):
        with self.lock:
            self.what[plan.mark] = (process, plan.kind, plan.collected)

    def take(self):
        with self.lock:
            if self.left <= 0 or time.monotonic() >= self.until:
                return None
            self.left -= 1
            self.taken += 1
            return self.taken - 1

    def begin(self, box, plan):
        with self.lock:
            self.marks[box].append(plan.mark)

    def finish(self, plan):
        with self.lock:
            self.finished += 1
            self.bytes += sum(len(data) for data in plan.expected().values())
            for name in (plan.kind, *(n for n in ("tty", "block", "collected") if getattr(plan, n))):
                self.kinds[name] += 1

    def add_connections(self, number, went_back):
        with self.lock:
            self.connections += number
            self.went_back += went_back

    def stop(self):
        with self.lock:
            self.left = 0


class Killer(threading.Thread):
    """Kills one of the daemons in bursts, and upgrades it after the first and after some of the others."""

    upgrade = threading.Lock()  # one at a time, as there is one who does it

    def __init__(self, installation, victim, over):
        super().__init__()
        self.installation, self.victim, self.over = installation, victim, over
        self.dice = random.Random(f"{SEED}:{victim}")
        self.killed = self.upgraded = 0
        self.problem = None

    def run(self):
        try:
            # Any moment will do; this waits for chance and not for an event.
            calm = self.dice.uniform(1, 3)
            while not self.over.wait(calm):
                for _ in range(self.dice.choice([1, 1, 2, 3])):
                    self.installation.kill_daemon(self.victim)
                    self.killed += 1
                    self.over.wait(self.dice.random() * self.dice.choice([0, 0.1, 1]))
                if self.upgraded == 0 or self.dice.random() < 0.4:
                    with self.upgrade:
                        self.install()
                calm = self.dice.uniform(*CALM_SECONDS)
        except Exception as error:  # a thread's failure must reach the test
            self.problem = error

    def install(self):
        """Another version of it, and what restarts it in good order."""
        names = [self.victim, *self.dice.choice([[], [], ["space-supervisor"]])]
        for name in names:
            path = self.installation.libexec / name
            new = path.with_name(f"{name}.new")
            shutil.copy(path, new)
            with new.open("ab") as file:
                file.write(b"\0")  # behind what the loader reads
            new.rename(path)
        self.installation.cli("up")
        for name in names:
            poll.until(lambda name=name: machine.runs(self.installation.daemon(name), self.installation.libexec / name),
                       30, f"the new {name} runs")
        self.upgraded += 1


def test_every_byte_exactly_once(installation):
    api = installation.api
    boxes = [api.create(metadata={"of": "output"})["id"] for _ in range(SANDBOXES)]
    count, over = Count(ROUNDS, SECONDS), threading.Event()
    killers = [Killer(installation, name, over) for name in ("space-node", "space-api")]
    workers = [Worker(installation, count, boxes) for _ in range(WORKERS)]
    began = time.monotonic()
    for thread in (*workers, *killers):
        thread.start()
    for worker in workers:
        worker.join()
    over.set()
    for killer in killers:
        killer.join()
    problems = [t.problem for t in (*workers, *killers) if t.problem]
    print(f"seed {SEED}: {count.finished} of {count.taken} commands right in {time.monotonic() - began:.0f} s, "
          f"{count.bytes} bytes, {count.connections} connections of readers, "
          f"{count.went_back} of them from an earlier place, "
          f"killed {({k.victim: k.killed for k in killers})}, upgraded {({k.victim: k.upgraded for k in killers})}, "
          f"{dict(count.kinds)}, {len(problems)} problems", flush=True)
    require(not problems, *(str(problem)[:3000] for problem in problems))
    assert count.finished == count.taken and count.finished > 0 and all(k.killed and k.upgraded for k in killers)
    assert count.went_back > 0
    assert count.taken == ROUNDS or SECONDS != float("inf")
    installation.wait_ready()
    for box in boxes:
        ran = api.expect((200, 404), "GET", f"/v1/sandboxes/{box}/files", query={"path": RAN})
        marks = ran.body.decode().split()
        more = {mark: count.what[mark] for mark in marks if marks.count(mark) > 1}
        assert not more, f"these commands ran more than once: {more}"
        assert sorted(marks) == sorted(count.marks[box]), "each command ran exactly once"
        api.delete(box)
    api.close()


@pytest.fixture(scope="module", name="installation")
def own_installation():
    """Without pools: filling them anew after each kill would leave the commands little of the processor. With programs
    of its own, which are upgraded."""
    made = Installation("spo", uid_first=1_800_000, volume_gib=6, node__warm_pools="base=0", node__prepared_pool=0)
    made.prepare()
    made.libexec = made.top / "libexec"
    shutil.copytree(libexec(), made.libexec, symlinks=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPACE_LIBEXEC", str(made.libexec))
        made.up()
        yield made
        if made.config.exists():
            made.remove()


@pytest.mark.last
def test_nothing_is_left(installation):
    installation.remove()
