"""Statistics, the table, the JSON file."""

import datetime
import json
import os
import pathlib
import shutil
import subprocess

NONE = "none"


def median(values):
    return percentile(values, 50)


def percentile(values, p):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round((len(ordered) - 1) * p / 100))]


def summary(values):
    return {"n": len(values), "min": round(min(values), 3), "p50": round(median(values), 3),
            "p99": round(percentile(values, 99), 3), "max": round(max(values), 3)}


def first_line(*command):
    """What a program says first; NONE of one that is not there, fails or says nothing."""
    if shutil.which(command[0]) is None:
        return NONE
    said = subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()
    return said[0] if said else NONE


def machine_facts():
    cpu = next(line.partition(":")[2].strip() for line in open("/proc/cpuinfo", encoding="utf-8")
               if line.startswith("model name"))
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo", encoding="utf-8")
                  if line.startswith("MemTotal"))
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu, "cores": os.cpu_count(), "memory_mib": memory // 1024, "kernel": os.uname().release,
        "load_before": os.getloadavg(),
        "qemu": first_line("qemu-system-x86_64", "--version"),
        "runc": first_line("runc", "--version"), "runsc": first_line("runsc", "--version"),
        "commit": first_line("git", "rev-parse", "--short=12", "HEAD"),
        "modified": first_line("git", "status", "--porcelain", "--untracked-files=no") != NONE,
    }


class Report:
    """Rows of a measured value, what it is held against, and the budget for it."""

    def __init__(self, facts, only_ratios=False):
        self.only_ratios = only_ratios  # where absolute values mean nothing, they have no budget and are not in the table
        self.data = {"machine": facts, "rows": [], "samples": {}, "missing_peers": {}}

    def samples(self, name, values):
        self.data["samples"][name] = [round(v, 3) for v in values]

    def row(self, what, value, unit, against=None, reference=None, limit=None, at_least=False):
        """limit: of value / reference, or of the value itself without a reference."""
        ratio = value / reference if reference else None
        measured = ratio if reference else value
        met = None
        if self.only_ratios and not reference:
            limit = None
        if limit is not None:
            met = measured >= limit if at_least else measured <= limit
        self.data["rows"].append({
            "what": what, "value": round(value, 3), "unit": unit, "against": against,
            "reference": round(reference, 3) if reference else None,
            "ratio": round(ratio, 2) if ratio else None, "limit": limit, "at_least": at_least, "met": met})

    def table(self):
        lines = [f"{'what':<52} {'value':>10} {'':<5} {'ratio':>6}  {'budget':>8}  against"]
        for row in self.data["rows"]:
            if self.only_ratios and row["ratio"] is None:
                continue
            sign = ">=" if row["at_least"] else "<="
            budget = f"{sign} {row['limit']}" if row["limit"] is not None else ""
            mark = {True: "ok", False: "MISSED", None: ""}[row["met"]]
            against = f"{row['against']} {row['reference']:g}" if row["reference"] else (row["against"] or "")
            lines.append(f"{row['what']:<52} {row['value']:>10g} {row['unit']:<5} "
                         f"{row['ratio'] if row['ratio'] is not None else '':>6}  {budget:>8}  {against}  {mark}")
        lines += [f"no comparison with {name}: {why}" for name, why in self.data["missing_peers"].items()]
        return "\n".join(lines)

    def missed(self, factor=1):
        """Rows that are more than so many times over their budget."""
        def is_met(row):
            measured = row["value"] / row["reference"] if row["reference"] else row["value"]
            return measured * factor >= row["limit"] if row["at_least"] else measured <= row["limit"] * factor
        return [row["what"] for row in self.data["rows"] if row["limit"] is not None and not is_met(row)]

    def verdict(self):
        """One line: which budgets were missed."""
        held = [row for row in self.data["rows"] if row["met"] is not None]
        missed = [row["what"] for row in held if not row["met"]]
        return f"{len(missed)} of {len(held)} budgets MISSED: {'; '.join(missed)}" if missed else f"all {len(held)} budgets met"

    def write(self, folder):
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        facts = self.data["machine"]
        path = folder / f"{facts['time'].replace(':', '').replace('+0000', 'Z')}-{facts['commit']}.json"
        path.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
        return path
