"""What suspend and wake cost as memory is dirtied, and whether that stays the same over many of them."""

from memory import stored_mb
from report import median

# MiB of memory, and what is dirtied of it.
SIZES = {512: (0, 10, 100), 2048: (0, 10, 100, 500)}
CYCLES = 50


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
