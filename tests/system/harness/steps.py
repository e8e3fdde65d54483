"""Steps of the daemons (src/base/step.h): what they pass is read from them, and they can be stopped at one."""

import collections
import mmap
import shutil
import struct

from . import poll

PROGRAMS = ("space-node", "space-api", "space-objects")
SIZE, ARMED, COUNT, REACHED, GO, NAME = 4096, 0, 4, 8, 12, 16
QUIET_LOOKS = 15  # so many looks without a new step are the end


class Steps:
    """Of an installation that is not up yet."""

    def __init__(self, installation):
        self.place = installation.run_dir / "steps"
        self.place.mkdir(mode=0o755)
        self.memory = {}
        for program in PROGRAMS:
            # Each daemon trusts files of root's or its own only, and space-api has another user.
            owner = installation.settings.get("service_user", "space") if program == "space-api" else "root"
            self._make(self.place / f"{program}.log", b"", owner)
            path = self.place / program
            self._make(path, bytes(SIZE), owner)
            with path.open("r+b") as file:
                self.memory[program] = mmap.mmap(file.fileno(), SIZE)

    @staticmethod
    def _make(path, content, owner):
        path.write_bytes(content)
        path.chmod(0o600)
        shutil.chown(path, owner)

    def _get(self, program, at):
        return struct.unpack_from("<I", self.memory[program], at)[0]

    def _set(self, program, at, value):
        struct.pack_into("<I", self.memory[program], at, value)

    # ---- what is passed ----
    def names(self, program):
        return (self.place / f"{program}.log").read_text(encoding="utf-8").splitlines()

    def mark(self):
        return {program: len(self.names(program)) for program in PROGRAMS}

    def since(self, mark):
        """Once no more come: (program, name) and how often."""
        seen, looks = None, 0

        def is_quiet():
            nonlocal seen, looks
            now = self.mark()
            looks = looks + 1 if now == seen else 0
            seen = now
            return looks >= QUIET_LOOKS

        poll.until(is_quiet, 60, "no more steps come")
        return collections.Counter((program, name) for program in PROGRAMS
                                   for name in self.names(program)[mark[program]:seen[program]])

    # ---- stops ----
    def arm(self, program, name, count):
        memory = self.memory[program]
        for at in (ARMED, REACHED, GO):
            self._set(program, at, 0)
        self._set(program, COUNT, count)
        memory[NAME:NAME + 120] = name.encode().ljust(120, b"\0")
        self._set(program, ARMED, 1)

    def is_reached(self, program):
        return self._get(program, REACHED) == 1

    def release(self, program):
        """Nobody waits any more, there or for it."""
        self._set(program, ARMED, 0)
        self._set(program, GO, 1)
