"""space-objects as space-node starts it: one job, by descriptors."""

import contextlib
import fcntl
import json
import os
import tempfile

from .installation import libexec

NOBODY = 1_190_000
FIRST = 6


class Worker:
    """Against one bucket, or a directory. Files are descriptors of the caller's."""

    def __init__(self, place, keys=b"", directory=None, uid=NOBODY, installation="space"):
        self.place, self.keys, self.directory, self.uid, self.installation = place, keys, directory, uid, installation

    def where(self):
        if self.directory is None:
            return {"bucket": self.place}
        device = os.stat("/proc").st_dev  # neither sandboxes nor the image of their volume are beside it
        return {"reserve_bytes": 0, "volume_device": device, "image_device": device, "image_holes": 0, "home_device": device,
                "installation": self.installation, "store": "", "may_begin": False}

    def run(self, job, fds=(), **request):
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
            files[0].write(json.dumps({"job": job, **self.where(), **request}).encode())
            files[1].write(self.keys)
            for file in files:
                file.seek(0)
            ours, theirs = os.pipe()
            # Above the numbers that they get, and above all that this process has open.
            moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 500)
                     for fd in (files[0].fileno(), theirs, files[1].fileno(), *fds)]
            os.close(theirs)
            program = str(libexec() / "space-objects")
            words = [program, str(self.uid), str(os.getpid()), str(self.directory or "-"), "-"]
            pid = os.posix_spawn(program, words, {}, file_actions=[
                (os.POSIX_SPAWN_DUP2, fd, 3 + number) for number, fd in enumerate(moved)])
            for fd in moved:
                os.close(fd)
            with os.fdopen(ours, "rb") as pipe:
                answer = pipe.read()
            assert os.waitpid(pid, 0)[1] == 0
            return json.loads(answer)

    def put(self, owner, ram, files, base=None):
        """files: name to descriptor."""
        names = sorted(files)
        return self.run("put", [ram, *(files[name] for name in names)], owner=owner, base=base, ram_fd=FIRST,
                        files=[{"name": name, "kind": "file", "fd": FIRST + 1 + number} for number, name in enumerate(names)])

    def get(self, owner, manifest, directory, have=()):
        os.chown(directory, self.uid, self.uid)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return self.run("get", [fd], owner=owner, manifest=manifest, dir_fd=FIRST, have=list(have))
        finally:
            os.close(fd)
