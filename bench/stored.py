"""Whether what a checkpoint costs stays the same when many are stored: taken of a sandbox that is suspended, by links and
a clone each."""

import threading
import time

from report import median
from suspended import ask, change

TIMES = 10
CLIENTS = 4


def take(connection, sandbox):
    took, answer = ask(connection, "POST", f"/v1/sandboxes/{sandbox}/checkpoints?wait=120", {}, 201)
    return took, answer["operation"]["result"]["id"]


def fill(bench, sandbox, count):
    problems = []

    def work(share):
        connection = bench.connect()
        try:
            for _ in range(share):
                take(connection, sandbox)
        except Exception as error:  # a thread's failure must reach the run
            problems.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(count // CLIENTS,)) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def costs(bench, connection, running, asleep):
    """Medians in ms: of one more, of a look at it, of a page of them, of a sandbox of it, and of its deletion."""
    found = {name: [] for name in ("checkpoint", "checkpoint of a suspended one", "get", "list", "create from it", "delete")}
    for _ in range(TIMES):
        took, checkpoint = take(connection, running)
        found["checkpoint"].append(took)
        took, other = take(connection, asleep)
        found["checkpoint of a suspended one"].append(took)
        found["get"].append(ask(connection, "GET", f"/v1/checkpoints/{checkpoint}")[0])
        found["list"].append(ask(connection, "GET", f"/v1/sandboxes/{asleep}/checkpoints?limit=100")[0])
        took, answer = ask(connection, "POST", "/v1/sandboxes?wait=120", {"checkpoint_id": checkpoint}, 201)
        found["create from it"].append(took)
        bench.delete(connection, answer["sandbox"]["id"])
        for one in (checkpoint, other):
            found["delete"].append(ask(connection, "DELETE", f"/v1/checkpoints/{one}")[0])
    return {name: median(values) for name, values in found.items()}


def restart(bench):
    start = time.perf_counter()
    bench.made.kill_daemon("space-node")
    bench.made.wait_ready()
    return 1e3 * (time.perf_counter() - start)


def measure(bench, quick):
    count = 400 if quick else 10_000
    connection = bench.connect()
    bench.made.wait_warm()
    running, asleep = (bench.create(connection)[1] for _ in range(2))
    change(connection, asleep, "suspend")
    fill(bench, asleep, 100)  # a page of them
    bench.say("checkpoints, with 100 stored")
    first, started = costs(bench, connection, running, asleep), restart(bench)
    bench.say(f"{count} checkpoints")
    begun = time.perf_counter()
    fill(bench, asleep, count)
    bench.report.row(f"{count} checkpoints of a suspended sandbox", count / (time.perf_counter() - begun), "/s")
    last = costs(bench, connection, running, asleep)
    for name, value in last.items():
        bench.report.row(f"{name}, with {count} stored", value, "ms", "with 100", first[name], 1.5)
    bench.report.row(f"restart of space-node, with {count} stored", restart(bench), "ms", "with 100", started)
    connection.close()
