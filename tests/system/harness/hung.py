"""A filesystem that has stopped to answer, as a network's does when its server is gone: who asks it waits, killed or not."""

import ctypes
import os
import select
import struct
import threading

LIBC = ctypes.CDLL(None, use_errno=True)
NOSUID, NODEV, DETACH = 2, 4, 2
INIT = 26
IN_HEAD = struct.Struct("<IIQQIIII")
OUT_HEAD = struct.Struct("<IiQ")
INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")


class Hung:
    """Mounted over a directory until its end."""

    def __init__(self, path):
        self.path = str(path)
        self.fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.fuse},rootmode=40000,user_id=0,group_id=0,allow_other"
        if LIBC.mount(b"hung", self.path.encode(), b"fuse", NOSUID | NODEV, options.encode()) < 0:
            os.close(self.fuse)
            raise OSError(ctypes.get_errno(), "cannot mount")
        self.asked = threading.Event()
        self.stop, self.stopped = os.pipe()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        """It begins as one that works; then it takes what is asked, so that nobody can be interrupted."""
        while self.stop not in select.select([self.fuse, self.stop], [], [])[0]:
            _, opcode, unique, *_ = IN_HEAD.unpack_from(os.read(self.fuse, 1 << 20))
            if opcode == INIT:
                body = INIT_OUT.pack(7, 31, 65536, 0, 16, 12, 65536, 1, 16, 0, 0)
                os.write(self.fuse, OUT_HEAD.pack(OUT_HEAD.size + len(body), 0, unique) + body)
            else:
                self.asked.set()

    def end(self):
        """Who waits gets an error."""
        os.close(self.stopped)
        self.thread.join()
        os.close(self.stop)
        os.close(self.fuse)  # nobody else has it: the connection is gone
        assert LIBC.umount2(self.path.encode(), DETACH) == 0
