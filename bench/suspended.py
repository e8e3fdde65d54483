"""What suspend and wake cost as memory is dirtied, and whether that stays the same over many of them; checkpoints, the
way back, and forks."""

import json
import re
import time

from memory import stored_mb
from report import median

# MiB of memory, and what is dirtied of it.
SIZES = {512: (0, 10, 100), 2048: (0, 10, 100, 500)}
CYCLES = 50
CHILD_MIB = 160  # of the host, for a child that does nothing


def change(connection, sandbox, verb):
    took, status, answer = connection.ask("POST", f"/v1/sandboxes/{sandbox}/{verb}?wait=120")
    if status != 200:
        raise RuntimeError(f"{verb}: {status} {answer[:300]!r}")
    return took


def dirtied(bench, connection, memory_mib, dirty_mib, times):
    """Milliseconds of suspend and of wake, and what is stored."""
    _, sandbox = bench.create(connection, memory_mib=memory_mib)
    connection.json("POST", f"/v1/sandboxes/{sandbox}/run",
                    {"shell": f"head -c {dirty_mib}M /dev/urandom > /dev/shm/dirt", "timeout_seconds": 300})
    took = {"suspend": [], "wake": []}
    for _ in range(times):
        for verb, values in took.items():
            values.append(change(connection, sandbox, verb))
    stored = stored_mb(bench, connection, sandbox)
    bench.delete(connection, sandbox)
    return took["suspend"], took["wake"], stored


def after_commands(bench, connection, count):
    """A suspend that has the output of so many commands to synchronise."""
    _, sandbox = bench.create(connection)
    for index in range(count):
        connection.json("POST", f"/v1/sandboxes/{sandbox}/run", {"argv": ["echo", str(index)]})
    bench.report.row(f"suspend, after {count} commands", change(connection, sandbox, "suspend"), "ms")
    bench.delete(connection, sandbox)


def cycles(bench, connection, count):
    _, sandbox = bench.create(connection)
    took = [change(connection, sandbox, "suspend") + change(connection, sandbox, "wake") for _ in range(count)]
    bench.delete(connection, sandbox)
    bench.report.samples("suspend_wake_cycles_ms", took)
    part = max(count // 5, 1)
    bench.report.row(f"suspend and wake, the last of {count} times", median(took[-part:]), "ms", "the first", median(took[:part]), 1.5)


# ---- checkpoints and forks ----
def ask(connection, method, path, body=None, status=200):
    took, got, answer = connection.ask(method, path, body)
    if got != status:
        raise RuntimeError(f"{method} {path}: {got} {answer[:300]!r}")
    return took, json.loads(answer)


def fork(bench, connection, sandbox, count):
    """Milliseconds until all children run; they are deleted again."""
    took, answer = ask(connection, "POST", f"/v1/sandboxes/{sandbox}/fork?wait=300", {"count": count}, 201)
    children = answer["operation"]["result"]["children"]
    failed = [child["error"] for child in children if child["error"]]
    if failed or len(children) != count:
        raise RuntimeError(f"fork x{count}: {len(children)} children, {failed[:1]}")
    for child in children:
        connection.json("DELETE", f"/v1/sandboxes/{child['sandbox_id']}?wait=0")
    for child in children:
        while connection.ask("GET", f"/v1/sandboxes/{child['sandbox_id']}")[1] != 404:
            time.sleep(0.05)
    return took


def stopped_ms(bench):
    """How long sources stood still, by the node's log."""
    log = (bench.made.logs / "space-node.log").read_text(encoding="utf-8", errors="replace")
    return [int(ms) for ms in re.findall(r"sandbox_captured\b.*\bcheckpoint=ck\S+ .*\bstopped_ms=(\d+)", log)]


def captures(bench, rounds):
    """Checkpoint, rollback and fork x1 of idle sandboxes, each beside a floor of the same moment."""
    took = {name: [] for name in ("checkpoint", "rollback", "fork_1", "stopped", "floor_suspend", "floor_resume")}
    for _ in range(rounds):
        waiting = bench.floor()
        connection = bench.connect()
        bench.made.wait_warm()
        _, sandbox = bench.create(connection)
        seen = len(stopped_ms(bench))
        ms, answer = ask(connection, "POST", f"/v1/sandboxes/{sandbox}/checkpoints?wait=120", {}, 201)
        took["checkpoint"].append(ms)
        checkpoint = answer["operation"]["result"]["id"]
        took["fork_1"].append(fork(bench, connection, sandbox, 1))
        took["stopped"] += stopped_ms(bench)[seen:]
        took["rollback"].append(ask(connection, "POST", f"/v1/sandboxes/{sandbox}/rollback?wait=120", {"checkpoint_id": checkpoint})[0])
        connection.json("DELETE", f"/v1/checkpoints/{checkpoint}")
        bench.delete(connection, sandbox)
        connection.close()
        floor = bench.finish_floor(*waiting)
        took["floor_suspend"].append(floor["suspend_ms"])
        took["floor_resume"].append(floor["resume_ms"])
    for name, values in took.items():
        bench.report.samples(f"captures_{name}_ms", values)
    mid = {name: median(values) for name, values in took.items()}
    out, back = mid["floor_suspend"], mid["floor_resume"]
    bench.report.row("checkpoint", mid["checkpoint"], "ms", "floor, bare steps of a suspend", out, 1.3)
    bench.report.row("rollback", mid["rollback"], "ms", "floor, bare steps of a wake", back)
    bench.report.row("fork x1", mid["fork_1"], "ms", "floor, bare steps of both", out + back, 1.3)
    bench.report.row("source of a fork or checkpoint stands still", mid["stopped"], "ms", limit=15)


def free_mib():
    with open("/proc/meminfo", encoding="utf-8") as lines:
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("MemAvailable"))


def crowds(bench, connection, counts):
    """Whether a child costs the same among many."""
    per_child = {}
    for count in counts:
        if free_mib() < count * CHILD_MIB + 2048:
            bench.say(f"fork x{count}: not enough memory here")
            continue
        bench.say(f"fork x{count}")
        bench.made.wait_warm()
        _, sandbox = bench.create(connection)
        per_child[count] = fork(bench, connection, sandbox, count) / count
        bench.delete(connection, sandbox)
        first = per_child[counts[0]]
        bench.report.row(f"fork x{count}, for each child", per_child[count], "ms", f"x{counts[0]}", first, 1.25)


def dirtied_captures(bench, connection, memory_mib, dirty_mib):
    _, sandbox = bench.create(connection, memory_mib=memory_mib)
    connection.json("POST", f"/v1/sandboxes/{sandbox}/run",
                    {"shell": f"head -c {dirty_mib}M /dev/urandom > /dev/shm/dirt", "timeout_seconds": 300})
    took, answer = ask(connection, "POST", f"/v1/sandboxes/{sandbox}/checkpoints?wait=120", {}, 201)
    checkpoint = answer["operation"]["result"]["id"]
    back, _ = ask(connection, "POST", f"/v1/sandboxes/{sandbox}/rollback?wait=120", {"checkpoint_id": checkpoint})
    connection.json("DELETE", f"/v1/checkpoints/{checkpoint}")
    label = f"{memory_mib} MiB with {dirty_mib} dirtied"
    bench.report.row(f"checkpoint, {label}", took, "ms")
    bench.report.row(f"rollback, {label}", back, "ms")
    bench.report.row(f"fork x1, {label}", fork(bench, connection, sandbox, 1), "ms")
    bench.delete(connection, sandbox)


def measure_forks(bench, quick):
    bench.say("checkpoint, rollback, fork")
    captures(bench, 2 if quick else 8)
    connection = bench.connect()
    for memory_mib, amounts in ({512: (100,)} if quick else {512: (10, 100), 2048: (0, 10, 100, 500)}).items():
        for dirty_mib in amounts:
            dirtied_captures(bench, connection, memory_mib, dirty_mib)
    crowds(bench, connection, (1, 4) if quick else (1, 10, 100))
    connection.close()


def measure(bench, quick):
    connection = bench.connect()
    for memory_mib, amounts in ({512: (0, 100)} if quick else SIZES).items():
        for dirty_mib in amounts:
            bench.say(f"suspend and wake, {memory_mib} MiB with {dirty_mib} dirtied")
            bench.made.wait_warm()
            out, back, stored = dirtied(bench, connection, memory_mib, dirty_mib, 2 if quick else 5)
            label = f"{memory_mib} MiB with {dirty_mib} dirtied"
            bench.report.samples(f"suspend_{memory_mib}_{dirty_mib}_ms", out)
            bench.report.samples(f"wake_{memory_mib}_{dirty_mib}_ms", back)
            bench.report.row(f"suspend, {label}", median(out), "ms")
            bench.report.row(f"wake, {label}", median(back), "ms")
            bench.report.row(f"stored, {label}", stored, "MB")
    bench.say("suspend after commands, then suspend and wake again and again")
    bench.made.wait_warm()
    after_commands(bench, connection, 20 if quick else 100)
    bench.made.wait_warm()
    cycles(bench, connection, 10 if quick else CYCLES)
    connection.close()
