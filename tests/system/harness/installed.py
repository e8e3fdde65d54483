"""The machine's own installation, under systemd, with the paths that every user has (SPACE_TEST_INSTALLED=yes)."""

import pathlib
import shutil
import subprocess
import threading

from . import machine, spec
from .installation import Installation, libexec


class Installed(Installation):
    def __init__(self):
        # Not the constructor of what makes installations: everything is there already.
        self.name = "space"
        self.config = pathlib.Path("/etc/space/space.conf")
        self.settings = dict(
            (part.strip() for part in line.split("=", 1)) for line in self.config.read_text(encoding="utf-8").splitlines()
            if "=" in line and not line.lstrip().startswith("#"))
        self.name = self.settings["installation"]
        self.top = self.data = pathlib.Path(self.settings["data_dir"])
        self.run_dir = pathlib.Path(self.settings["run_dir"])
        self.logs = pathlib.Path(self.settings["log_dir"])
        self.key_file = pathlib.Path(self.settings["admin_key_file"])
        self.port = int(self.settings["api.listen"].rpartition(":")[2])
        self.uid_first = int(self.settings["node.vmm_uid_first"])
        self.scheme_tls = None
        self.spec = spec.Spec()
        self._api = None
        self.asking = threading.Lock()

    def uids(self):
        return range(self.uid_first, self.uid_first + int(self.settings["node.vmm_uid_count"]))

    def remove_left_overs(self):
        raise AssertionError("this installation is the machine's")

    def log_tail(self, lines=40):
        return machine.output("journalctl", "--no-pager", "--output=short-monotonic", f"--lines={lines}",
                              "--unit=space-node", "--unit=space-api")

    # ---- systemd ----
    @staticmethod
    def systemctl(*arguments):
        done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"systemctl {arguments}: {done.stderr}"
        return done.stdout.strip()

    def main_pid(self, program):
        return int(self.systemctl("show", "--property=MainPID", "--value", program))

    def upgrade(self, *programs):
        """What `make install` of another version does with a program: a new file by the same name."""
        for program in programs:
            path = libexec() / program
            new = path.with_name(f"{program}.new")
            shutil.copy(path, new)
            with open(new, "ab") as file:
                file.write(b"\0")  # another version: behind what the loader reads
            new.rename(path)
        self.systemctl("daemon-reload")
