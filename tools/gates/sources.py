"""What the gates that look at one source after the other share: which sources there are, whose turn it is, and what is
excused where and why."""
import json
import os
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def configure(build, compiler):
    """A build directory for its compile commands."""
    if not os.path.exists(f"{build}/build.ninja"):
        setup = subprocess.run(["meson", "setup", build], env={**os.environ, "CC": compiler},
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if setup.returncode != 0:
            sys.exit(setup.stdout[-3000:])
    else:
        subprocess.run(["ninja", "-C", build, "build.ninja"], check=True, stdout=subprocess.DEVNULL)


def name_of(entry):
    return os.path.relpath(os.path.normpath(os.path.join(entry["directory"], entry["file"])))


def _is_wanted(name):
    return (name.startswith("src/") and name.endswith(".c")
            and not name.endswith(("_test.c", "_fuzz.c", "_rig.c"))
            and not os.path.basename(name).startswith(("fake_", "rig_", "test_")))


def commands(build, share, only):
    """The compile commands of the sources of src/, not of tests nor their rigs and fakes. `share` "K/N": only every Nth
    file, from the Kth of the sorted names; `only`: parts of names."""
    entries = {}
    with open(f"{build}/compile_commands.json", encoding="utf-8") as file:
        for entry in json.load(file):
            if _is_wanted(name_of(entry)):
                entries.setdefault(name_of(entry), entry)
    names = sorted(entries)
    if share:
        first, every = (int(part) for part in share.split("/"))
        names = names[first % every::every]
    return [entries[name] for name in names if not only or any(part in name for part in only)]


class Excuses:
    """The lines `FILE WARNING reason` of an .allow file."""

    def __init__(self, path):
        self.path, self.used, self.reasons = path, set(), {}
        with open(path, encoding="utf-8") as file:
            for line in file:
                words = line.split(maxsplit=2)
                if not words or words[0] == "#":
                    continue
                if len(words) < 3:
                    sys.exit(f"{path}: a line without its reason: {line.strip()}")
                self.reasons[tuple(words[:2])] = words[2]

    def has(self, name, warning):
        if (name, warning) not in self.reasons:
            return False
        self.used.add((name, warning))
        return True

    def unused(self):
        """For a run that looked at every file."""
        return [f"{self.path}: {name} has no {warning} any more" for name, warning in sorted(set(self.reasons) - self.used)]
