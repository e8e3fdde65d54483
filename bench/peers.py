"""What people would use instead: runc and gVisor's runsc on the same root filesystem."""

import json
import os
import pathlib
import shutil
import subprocess
import time


class Bundle:
    """An OCI bundle over a read-only mount of the template's disk."""

    def __init__(self, disk, folder):
        self.folder = pathlib.Path(folder)
        self.root = self.folder / "rootfs"
        self.root.mkdir(parents=True)
        subprocess.run(["mount", "-o", "loop,ro,noload", str(disk), str(self.root)], check=True)
        self.count = 0

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        subprocess.run(["umount", str(self.root)], check=True)
        shutil.rmtree(self.folder)

    def write_config(self, command):
        path = self.folder / "config.json"
        if path.exists():
            path.unlink()
        if shutil.which("runc") is None:
            return  # no peer will run
        subprocess.run(["runc", "spec", "--bundle", str(self.folder)], check=True)
        config = json.loads(path.read_text(encoding="utf-8"))
        config["process"].update({"terminal": False, "args": command})
        config["root"] = {"path": str(self.root), "readonly": True}
        path.write_text(json.dumps(config), encoding="utf-8")

    def time_run(self, *runtime):
        """Milliseconds of one `RUNTIME run`, from spawn to exit."""
        self.count += 1
        name = f"bench-{os.getpid()}-{self.count}"
        start = time.perf_counter()
        done = subprocess.run([*runtime, "run", "--bundle", str(self.folder), name], check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        took = (time.perf_counter() - start) * 1e3
        if done.returncode != 0:
            raise RuntimeError(f"{runtime[0]}: {done.stderr.decode()[-300:]}")
        return took


RUNTIMES = {
    "runc": ("runc",),
    "runsc": ("runsc", "--platform=ptrace", "--network=none", "--ignore-cgroups"),
}


def available(bundle):
    """Those that are installed and run a command here; of the others, why not."""
    found, missing = {}, {}
    for name, command in RUNTIMES.items():
        try:
            if shutil.which(command[0]) is None:
                raise RuntimeError("it is not installed")
            if not (bundle.folder / "config.json").exists():
                raise RuntimeError("runc, which makes its bundle, is not installed")
            bundle.time_run(*command)
            found[name] = command
        except (OSError, RuntimeError) as why:
            missing[name] = " ".join(str(why).split())
    return found, missing
