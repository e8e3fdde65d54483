"""A terminal of the tests' own, with `space` in it."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

from harness.installation import space_binary


class Terminal:
    """A terminal, and `space` running in it."""

    def __init__(self, env, *arguments, cols=91, rows=33):
        self.master, slave = pty.openpty()
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.seen = b""
        self.child = subprocess.Popen([space_binary(), *arguments], env=env, stdin=slave, stdout=slave, stderr=slave,
                                      start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def type(self, text):
        os.write(self.master, text)

    def read_until(self, text, seconds=20):
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, f"no {text!r} in {self.seen[-2000:]!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 65536)
        before, self.seen = self.seen.split(text, 1)
        return before

    def resize(self, cols, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def has_taken_all(self):
        """Whether `space` has read all that was typed; of a raw terminal."""
        waiting = fcntl.ioctl(self.slave, termios.FIONREAD, struct.pack("i", 0))
        return self.is_raw() and struct.unpack("i", waiting)[0] == 0

    def is_raw(self):
        return not termios.tcgetattr(self.slave)[3] & termios.ICANON

    def end(self, seconds=20):
        """The exit status; the terminal must be as it was."""
        end = time.monotonic() + seconds
        while self.child.poll() is None:
            assert time.monotonic() < end, f"it does not end: {self.seen[-2000:]!r}"
            if select.select([self.master], [], [], 0.05)[0]:
                self.seen += os.read(self.master, 65536)
        while select.select([self.master], [], [], 0)[0]:
            self.seen += os.read(self.master, 65536)
        assert termios.tcgetattr(self.slave) == self.before, "the terminal is as it was"
        os.close(self.slave)
        os.close(self.master)
        return self.child.returncode
