"""versitygw, an S3 server that verifies signatures, over a directory: built from its module by Go."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess

from . import poll
from .installation import WORK, free_port

MODULE = "github.com/versity/versitygw/cmd/versitygw@latest"
BUILD_SECONDS = int(os.environ.get("VERSITYGW_BUILD_SECONDS", "900"))
REGION = "eu-test-1"
ACCESS, SECRET = "AKVERSITY", "se/cret+KEY"


def find_go():
    return shutil.which("go") or next((p for p in ("/usr/local/go/bin/go", "/usr/lib/go/bin/go") if os.access(p, os.X_OK)), None)


def build():
    """(program, why there is none). VERSITYGW names one that was built before."""
    given = os.environ.get("VERSITYGW")
    if given:
        return given, None
    top = WORK / "versitygw"
    program = top / "bin/versitygw"
    if program.exists():
        return str(program), None
    go = find_go()
    if go is None:
        return None, "there is no Go (Debian: golang-go of the backports)"
    env = {**os.environ, "GOBIN": str(top / "bin"), "GOPATH": str(top / "path"), "GOCACHE": str(top / "cache"),
           "GOFLAGS": "-modcacherw", "CGO_ENABLED": "0"}
    try:
        done = subprocess.run([go, "install", MODULE], env=env, cwd="/", capture_output=True, text=True, check=False,
                              timeout=BUILD_SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"versitygw is not built within {BUILD_SECONDS} s"
    return (str(program), None) if done.returncode == 0 else (None, f"versitygw cannot be built: {done.stderr[-300:]}")


class Versity:
    """One bucket, `kept`."""

    def __init__(self, program, top):
        self.program, self.top, self.port = program, pathlib.Path(top), free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.process = None
        (self.top / "data/kept").mkdir(parents=True)
        (self.top / "sidecar").mkdir()
        self.log = (self.top / "log").open("wb")

    def start(self):
        self.process = subprocess.Popen(
            [self.program, "--port", f"127.0.0.1:{self.port}", "--access", ACCESS, "--secret", SECRET, "--region", REGION,
             "posix", "--sidecar", str(self.top / "sidecar"), str(self.top / "data")],
            stdout=self.log, stderr=self.log, env={"HOME": str(self.top), "PATH": os.environ["PATH"]})
        poll.until(self.answers, 60, "versitygw answers", every=0.1)

    def answers(self):
        assert self.process.poll() is None, (self.top / "log").read_text()
        """Whoever asks without a signature is refused."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"GET /kept HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return connection.recv(4096).startswith(b"HTTP/1.1 4")

    def kill(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def keys(self):
        top = self.top / "data/kept"
        return sorted(str(path.relative_to(top)) for path in top.rglob("*")
                      if path.is_file() and not str(path.relative_to(top)).startswith(".sgwtmp"))
