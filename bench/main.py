"""Runs the measurements of design budgets: floors, peers and product in turn, then the table."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "system")]

import client  # noqa: E402
import data_plane  # noqa: E402
import memory  # noqa: E402
import peers  # noqa: E402
import stored  # noqa: E402
import suspended  # noqa: E402
from harness import machine  # noqa: E402
from harness.installation import Installation  # noqa: E402
from report import Report, machine_facts, median, percentile  # noqa: E402

SMOKE_FACTOR = 10
COLD_MIB = 640  # a size without a warm pool
TRUE = {"argv": ["/bin/true"]}
PARTS = ("latency", "idle", "suspended", "forks", "stored", "streams", "transfers", "terminals", "readers", "crowd")


class Bench:
    def __init__(self, options):
        self.options = options
        self.report = Report(machine_facts(), options.only_ratios)
        # An emulated machine is slow, and small. What is only held against a budget is not measured there.
        slow = {"node__start_timeout_ms": 600_000, "node__probe_timeout_ms": 60_000, "node__boot_timeout_ms": 600_000,
                "node__disk_reserve_mib": 256, "node__prepared_pool": 1} if options.only_ratios else {}
        self.child = None  # the last floor
        self.has_plain = not options.smoke and not options.only_ratios
        self.made = Installation("spbench", uid_first=1_400_000, volume_gib=options.volume, log_level="info", node__spool_bytes=1 << 30,
                                 node__warm_pools=f"base={options.warm}" + (f",{memory.PLAIN}=2" if self.has_plain else ""),
                                 api__key_rate=100000, api__key_burst=100000, api__idle_timeout_ms=600_000, **slow)

    def say(self, text):
        print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)

    # ---- the installation ----
    def connect(self):
        return client.Connection(self.made.port, self.made.key)

    def create(self, connection, **body):
        took, status, answer = connection.ask("POST", "/v1/sandboxes?wait=300", {"template": "base", **body})
        if status != 201:
            raise RuntimeError(f"create: {status} {answer[:300]!r}")
        return took, json.loads(answer)["sandbox"]["id"]

    def run_true(self, connection, **body):
        """Milliseconds of `true` in a sandbox of its own."""
        took, status, answer = connection.ask("POST", "/v1/run", {"template": "base", **TRUE, **body})
        if status != 200:
            raise RuntimeError(f"run: {status} {answer[:300]!r}")
        return took

    def delete(self, connection, sandbox):
        connection.json("DELETE", f"/v1/sandboxes/{sandbox}?wait=60")

    # ---- floors ----
    def prepare_floor(self):
        """QEMU's command line as the product has it, without the jail."""
        version = os.readlink(self.made.data / "volume/templates/base/current")
        base = self.made.data / f"volume/bases/{version}-1-512"
        pid = next(p for p in self.made.vmms() if f"{base}/" in " ".join(machine.cmdline(p)))
        words, argv = machine.cmdline(pid), []
        skip = {"-run-with", "-sandbox", "-chroot", "-runas"}
        index = 0
        while index < len(words):
            if words[index] in skip:
                index += 2
                continue
            argv.append(words[index])
            index += 1
        argv[0] = shutil.which(words[0])
        assert machine.runs(pid, argv[0]), f"{argv[0]} is not what process {pid} runs"
        self.base, self.qemu = base, argv
        self.disk = self.made.data / "volume" / "bench-floor.img"
        connection = self.connect()
        answer = connection.json("POST", "/v1/run", {"template": "base", "argv": ["cat", "/proc/cmdline"]})
        self.kernel_line = answer["stdout"].strip()
        connection.close()

    def start_floor(self, *arguments):
        machine.output("cp", "--reflink=auto", "--sparse=always", str(self.base / "disk.img"), str(self.disk))
        self.disk.chmod(0o600)
        self.child = subprocess.Popen([self.options.floor, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
        return self.child

    def finish_floor(self, child, begun=""):
        out, err = child.communicate("\n\n")
        self.disk.unlink()
        if child.returncode != 0:
            raise RuntimeError(err)
        return json.loads(begun + out)

    def floor(self):
        """A floor that waits as the product's machines do; finish_floor goes on. Emulated ones are rehearsed before. A connection to
        the API is opened after it: an idle one would be closed meanwhile on a slow machine."""
        rehearsed = self.report.data["environment"]["accelerator"] == "tcg"
        child = self.start_floor("restore" if rehearsed else "waiting", str(self.base / "state"), str(self.disk), "20", "--", *self.qemu)
        return child, child.stdout.readline()

    @staticmethod
    def run_floor(child):
        """The machine of a floor that waits runs from here on, and has run its first command."""
        child.stdin.write("\n")
        child.stdin.flush()
        return child.stdout.readline()

    @staticmethod
    def floor_vmm(child):
        """The process of the machine that a floor has."""
        return int(machine.read(f"/proc/{child.pid}/task/{child.pid}/children").split()[0])

    def bulk_floor(self, size):
        """MB/s out of and into the same machine, booted, by a second port."""
        argv = [*self.qemu]
        argv[argv.index("-incoming"):argv.index("-incoming") + 2] = []
        argv.remove("-S")
        for index, word in enumerate(argv):
            if word.startswith("memory-backend-file,id=ram,"):
                argv[index] = f"memory-backend-ram,{','.join(w for w in word.split(',')[1:] if w.startswith(('id=', 'size=')))}"
            elif word.startswith("virtio-serial-device"):
                argv[index] = "virtio-serial-device,max_ports=3"
        guest = self.made.data / "guest"
        argv += ["-chardev", "socket,id=bulk,fd=8,server=on,wait=off", "-device", "virtserialport,chardev=bulk,name=bulk,nr=2",
                 "-kernel", str(guest / "vmlinuz"), "-initrd", str(guest / "initramfs.cpio"), "-append", self.kernel_line]
        rates = self.finish_floor(self.start_floor("bulk", str(self.disk), str(size), "--", *argv))
        return rates["bulk_mb_s"], rates["bulk_in_mb_s"]

    # ---- interleaved latencies ----
    def latencies(self, bundle):
        names = ("create_warm", "run_warm", "create_cold", "run_cold", "run_inside", "pause", "wake", "suspend", "resume")
        bundle.write_config(["/bin/true"])
        runtimes, missing = peers.available(bundle)
        self.report.data["missing_peers"] = missing
        for name, why in missing.items():
            self.say(f"without the peer {name}: {why}")
        samples = {name: [] for name in (*names, *runtimes)}
        floors = []
        connection = self.connect()
        self.delete(connection, self.create(connection, memory_mib=COLD_MIB)[1])
        connection.close()
        for index in range(self.options.rounds):
            self.say(f"round {index + 1} of {self.options.rounds}")
            waiting = self.floor()
            connection = self.connect()
            self.made.wait_warm()
            took, sandbox = self.create(connection)
            samples["create_warm"].append(took)
            path = f"/v1/sandboxes/{sandbox}/run"
            request = connection.encode("POST", path, TRUE)
            inside = [connection.exchange(request) for _ in range(21)][1:]
            samples["run_inside"] += [took for took, status, _ in inside if status == 200]
            self.changes(connection, sandbox, (("pause", "pause"), ("wake", "wake")), 20, samples)
            self.delete(connection, sandbox)
            self.made.wait_warm()
            _, sandbox = self.create(connection)  # an idle one: what commands leave has to be synchronised too
            self.made.wait_warm()  # the floor has no other machine made beside it either
            self.changes(connection, sandbox, (("suspend", "suspend"), ("wake", "resume")), 1, samples)
            self.delete(connection, sandbox)
            self.made.wait_warm()
            samples["run_warm"].append(self.run_true(connection))
            self.made.wait_warm()
            took, sandbox = self.create(connection, memory_mib=COLD_MIB)
            samples["create_cold"].append(took)
            self.delete(connection, sandbox)
            self.made.wait_warm()
            samples["run_cold"].append(self.run_true(connection, memory_mib=COLD_MIB))
            connection.close()
            self.made.wait_warm()
            floors.append(self.finish_floor(*waiting))
            for name, command in runtimes.items():
                samples[name].append(bundle.time_run(*command))
        self.latency_rows(samples, floors)

    @staticmethod
    def changes(connection, sandbox, verbs, times, samples):
        """Verbs in turn, and the names of their samples."""
        for _ in range(times):
            for verb, name in verbs:
                took, status, answer = connection.ask("POST", f"/v1/sandboxes/{sandbox}/{verb}")
                if status != 200:
                    raise RuntimeError(f"{verb}: {status} {answer[:300]!r}")
                samples[name].append(took)

    def latency_rows(self, samples, floors):
        report = self.report
        for name, values in samples.items():
            report.samples(name, values)
        for floor in floors:
            if "cold_true_ms" not in floor:  # it was not rehearsed: its first run was the cold one
                floor.update((f"cold_{key}_ms", floor["restore_ms"] + floor[f"warm_{key}_ms"]) for key in ("identity", "true"))
        flat = {key: [f[key] for f in floors] for key in
                ("restore_ms", "cold_identity_ms", "cold_true_ms", "cont_ms", "warm_identity_ms", "warm_true_ms", "suspend_ms",
                 "resume_ms", "suspend_bytes", "migrate_ms", "migrate_back_ms", "migrate_bytes")}
        for key in ("true_ms", "ping_ms", "echo_ms"):
            flat[key] = [value for f in floors for value in f[key]]
        for index, key in enumerate(("pause_ms", "wake_ms")):
            flat[key] = [both[index] for f in floors for both in f["pause_wake_ms"]]
        for key, values in flat.items():
            report.samples(f"floor_{key}", values)
        mid = {key: median(values) for key, values in {**flat, **samples}.items() if values}
        report.row("floor: restore (spawn to loaded)", mid["restore_ms"], "ms")
        report.row("floor: channel round trip", mid["ping_ms"], "ms")
        report.row("create, warm", mid["create_warm"], "ms", "floor cont+handshake", mid["warm_identity_ms"], 1.5)
        report.row("POST /v1/run of true, warm", mid["run_warm"], "ms", "floor warm true", mid["warm_true_ms"], 1.25)
        if "runc" in mid:
            report.row("POST /v1/run of true, warm", mid["run_warm"], "ms", "runc run", mid["runc"], 0.8)
        if "runsc" in mid:
            report.row("POST /v1/run of true, warm", mid["run_warm"], "ms", "runsc ptrace run", mid["runsc"])
        report.row("create, no warm sandbox", mid["create_cold"], "ms", "floor restore+handshake", mid["cold_identity_ms"], 1.3)
        report.row("the same with a first result", mid["run_cold"], "ms", "floor restore+true", mid["cold_true_ms"], 1.3)
        report.row("run true in a running sandbox", mid["run_inside"], "ms", "floor true", mid["true_ms"], 1.4)
        report.row("pause", mid["pause"], "ms", "floor silence+stop", mid["pause_ms"])
        report.row("wake", mid["wake"], "ms", "floor cont+handshake", mid["wake_ms"])
        report.row("suspend", mid["suspend"], "ms", "floor, its bare steps", mid["suspend_ms"], 1.3)
        report.row("wake from suspended", mid["resume"], "ms", "floor, its bare steps", mid["resume_ms"], 1.3)
        report.row("suspend", mid["suspend"], "ms", "QEMU's own, to a file", mid["migrate_ms"])
        report.row("wake from suspended", mid["resume"], "ms", "QEMU's own, from that file", mid["migrate_back_ms"])

    # ---- many at once ----
    def crowd(self, count):
        self.made.wait_warm()
        self.say(f"{count} creates at once")
        results = client.at_once(self.made.port, self.made.key,
                                 [("POST", "/v1/sandboxes?wait=300", {"template": "base"})] * count)
        times = [took for took, _, _ in results]
        good = [json.loads(body)["sandbox"]["id"] for _, status, body in results if status == 201]
        connection = self.connect()
        for sandbox in good:
            self.delete(connection, sandbox)
        self.report.samples(f"create_{count}", times)
        self.report.row(f"{count} creates at once: p50", median(times), "ms")
        self.report.row(f"{count} creates at once: p99", percentile(times, 99), "ms", "their p50", median(times), 10)
        self.report.row(f"{count} creates at once: succeeded", len(good), "", None, None, count, True)
        self.made.wait_warm()
        self.say(f"{count} runs at once")
        results = client.at_once(self.made.port, self.made.key,
                                 [("POST", "/v1/run", {"template": "base", "timeout_seconds": 300, **TRUE})] * count)
        times = [took for took, _, _ in results]
        good = sum(status == 200 for _, status, _ in results)
        self.report.samples(f"run_{count}", times)
        self.report.row(f"{count} runs at once: p50", median(times), "ms")
        self.report.row(f"{count} runs at once: p99", percentile(times, 99), "ms", "their p50", median(times), 10)
        self.report.row(f"{count} runs at once: succeeded", good, "", None, None, count, True)
        connection.close()

    # ---- streams ----
    def streams(self, bulk):
        rates = {"floor": [], "output": [], "events": []}
        growth = {"space-node": [], "space-api": []}
        for index in range(3):
            self.say(f"streams, round {index + 1} of 3")
            rates["floor"].append(self.bulk_floor(bulk)[0])
            for name, reader in (("output", client.read_output), ("events", client.read_events)):
                connection = self.connect()
                _, sandbox = self.create(connection)
                body = {"argv": ["head", "-c", str(bulk), "/dev/zero"], "spool_bytes": 2 * bulk}
                with memory.Growth(self.made) as grown:
                    start = time.perf_counter()
                    answer = connection.json("POST", f"/v1/sandboxes/{sandbox}/commands", body)
                    _, total = reader(self.made.port, self.made.key, answer["session"]["id"])
                    if total < bulk:
                        raise RuntimeError(f"{total} bytes of {bulk} by {name}")
                    rates[name].append(bulk / 1e6 / (time.perf_counter() - start))
                for program, values in growth.items():
                    values.append(grown.mib(program))
                self.delete(connection, sandbox)
                connection.close()
        floor = median(rates["floor"])
        for name, values in rates.items():
            self.report.samples(f"stream_{name}_mb_s", values)
        self.report.row("floor: pipe to port to file, nothing else", floor, "MB/s")
        self.report.row("output, guest to client by `output`", median(rates["output"]), "MB/s", "floor", floor, 0.8, True)
        self.report.row("output, guest to client by events", median(rates["events"]), "MB/s", "floor", floor, 0.5, True)
        for program, values in growth.items():
            self.report.row(f"{program}: growth during {bulk // 1_000_000} MB of output", max(values), "MiB", limit=8)

    # ---- all ----
    def run(self):
        self.say("preparing an installation of its own")
        self.made.prepare()
        try:
            if self.has_plain:
                memory.add_plain_template(self.made)
            self.made.up()
            self.made.wait_warm()
            self.report.data["environment"] = self.made.node_report()["environment"]
            self.prepare_floor()
            self.measure()
        except Exception:
            print(self.made.log_tail(), flush=True)  # the logs go with the installation
            raise
        finally:
            if self.child is not None:
                self.child.kill()  # of a floor that has ended it changes nothing
                self.child.wait()
            self.made.remove()
        path = self.report.write(HERE / "results")
        print(json.dumps(self.report.data["machine"]), json.dumps(self.report.data["environment"]), sep="\n")
        print(self.report.table())
        print(f"results in {path}")
        print(self.report.verdict())
        return self.report

    def measure(self):
        wanted = self.options.only
        if "latency" in wanted:
            with peers.Bundle(self.base / "disk.img", self.made.top / "bundle") as bundle:
                self.latencies(bundle)
        if "idle" in wanted:
            memory.idle(self)
        if "suspended" in wanted:
            suspended.measure(self, self.options.quick)
        if "forks" in wanted:
            suspended.measure_forks(self, self.options.quick)
        if "stored" in wanted:
            stored.measure(self, self.options.quick)
        bulk = 64_000_000 if self.options.quick else 256_000_000
        if "streams" in wanted:
            self.streams(bulk)
        if "transfers" in wanted:
            data_plane.transfers(self, bulk)
        if "terminals" in wanted:
            data_plane.terminals(self, self.finish_floor(*self.floor())["echo_ms"])
        if "readers" in wanted:
            data_plane.readers(self)
        if "crowd" in wanted:
            for count in (20,) if self.options.quick else (20, 100):
                self.crowd(count)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--floor", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--warm", type=int, default=8)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--strict", action="store_true", help="a missed budget, or a missing peer, is a failure")
    parser.add_argument("--smoke", action="store_true",
                        help=f"latency once: whether it measures at all; fails only beyond {SMOKE_FACTOR} times a budget")
    parser.add_argument("--volume", type=int, default=12, metavar="GIB", help="size of the installation's data volume")
    parser.add_argument("--only-ratios", action="store_true", help="where absolute values mean nothing, as in an emulated machine")
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    options = parser.parse_args()
    options.floor = os.path.abspath(options.floor)
    options.only = set(options.only.split(","))
    if not options.only.issubset(PARTS):
        parser.error(f"--only takes {', '.join(PARTS)}")
    if options.smoke:
        options.quick, options.rounds, options.warm, options.only = True, 1, 1, {"latency"}
    if options.quick:
        options.rounds = min(options.rounds, 3)
    report = Bench(options).run()
    factor = SMOKE_FACTOR if options.smoke else 1
    missed = report.missed(factor) if options.strict or options.smoke else []
    if options.strict and not options.only_ratios:
        missed += [f"no {name} to compare with" for name in report.data["missing_peers"]]
    if missed:
        sys.exit(f"{'more than tenfold over budget' if options.smoke else 'over budget'}: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
