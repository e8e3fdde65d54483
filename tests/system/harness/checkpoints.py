"""Checkpoints, and what goes on over them: what tests of them share."""

from . import poll
from .node_alone import new_id

COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
# An open transaction: its rows are there only when it commits, which it does when told to.
SQLITE = """
import sqlite3, sys
db = sqlite3.connect('/home/user/kept.db', isolation_level=None)
db.execute('create table t (n)')
db.execute('begin')
db.execute('insert into t values (41)')
print('open', flush=True)
sys.stdin.readline()
db.execute('update t set n = n + 1')
db.execute('commit')
print('kept', db.execute('select n from t').fetchone()[0], flush=True)
"""

# Numbers over a connection, each sent when the one before it came back.
SOCKET = """
import socket, threading, time
server = socket.create_server(('127.0.0.1', 0))
def echo():
    stream = server.accept()[0]
    while data := stream.recv(64):
        stream.sendall(data)
threading.Thread(target=echo, daemon=True).start()
client = socket.create_connection(server.getsockname())
n = 0
while True:
    n += 1
    client.sendall(b'%d' % n)
    print(client.recv(64).decode(), flush=True)
    time.sleep(0.05)
"""

# What no two sandboxes may share, each on a line, of new processes but for the last two.
SECRETS = """
import pathlib, secrets, socket, ssl
print(pathlib.Path('/proc/sys/kernel/random/uuid').read_text().strip())
print(secrets.token_hex(16))
out = ssl.MemoryBIO()
hello = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out)
try:
    hello.do_handshake()
except ssl.SSLWantReadError:
    pass
print(out.read()[11:43].hex())
print(pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip())
print(pathlib.Path('/etc/machine-id').read_text().strip())
print(socket.gethostname())
"""


class Checkpoints:
    """Makes sandboxes and checkpoints, and removes them at the end."""

    def __init__(self, node):
        self.node = node
        self.sandboxes = []
        self.taken = []

    def create(self, **body):
        self.sandboxes.append(self.node.create(**body))
        return self.sandboxes[-1]

    def take(self, sandbox, **body):
        self.taken.append(new_id("ck"))
        return self.node.expect(200, "PUT", f"/n1/checkpoints/{self.taken[-1]}", {"sandbox": sandbox, **body}).json

    def child(self, checkpoint, **body):
        """Its id and its record."""
        self.sandboxes.append(new_id("sb"))
        sandbox = self.sandboxes[-1]
        answer = self.node.expect(200, "PUT", f"/n1/sandboxes/{sandbox}",
                                  {"checkpoint": checkpoint["id"], "hostname": "child-" + sandbox[2:8], **body})
        return sandbox, answer.json["sandbox"]

    def rollback(self, sandbox, checkpoint):
        return self.node.expect(200, "POST", f"/n1/sandboxes/{sandbox}/rollback", {"checkpoint": checkpoint["id"]}).json

    def remove(self):
        for sandbox in self.sandboxes:
            self.node.delete(sandbox)
        for checkpoint in self.taken:
            self.node.expect(200, "DELETE", f"/n1/checkpoints/{checkpoint}")
        assert self.left() == []

    # ---- what is there ----
    def processes(self, sandbox, **want):
        found = self.node.get(f"/n1/sandboxes/{sandbox}/processes").json["items"]
        return [p for p in found if all(p[key] == value for key, value in want.items())]

    def lines(self, sandbox, session):
        return self.node.spool(sandbox, session).decode().split()

    def counts(self, sandbox, session, more=10):
        """A counter goes on."""
        end = len(self.lines(sandbox, session))
        poll.until(lambda: len(self.lines(sandbox, session)) > end + more, 60, "it counts")
        assert is_row(self.lines(sandbox, session)), "not a line lost or twice"

    def place(self):
        return self.node.installation.data / "volume/checkpoints"

    def left(self):
        return sorted(p.name for p in self.place().iterdir())


def is_row(found):
    return found == [str(i) for i in range(1, len(found) + 1)]
