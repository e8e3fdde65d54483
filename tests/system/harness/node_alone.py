"""space-node without space-api: the tests speak the node protocol over its unix socket."""

import json
import secrets
import signal
import socket
import subprocess
from http import client

from . import poll
from .installation import Installation, libexec

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(kind, owner=None):
    """As the API makes them: those of processes and sessions begin as their sandbox's."""
    text = "".join(secrets.choice(ALPHABET) for _ in range(18))
    return kind + ((owner[2:10] + text)[:18] if owner else text)


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Node:
    def __init__(self, name, uid_first, **settings):
        self.installation = Installation(name, uid_first=uid_first, volume_gib=6, **settings)
        self.process = None

    def prepare(self):
        self.installation.prepare()
        self.start()

    # ---- the daemon ----
    def spawn(self):
        """Until it answers: every journal has been read then, and every VMM connected to, or tried."""
        log = open(self.installation.logs / "node-alone.log", "ab")
        self.process = subprocess.Popen([str(libexec() / "space-node"), "--config", str(self.installation.config)],
                                        stdout=log, stderr=log)
        log.close()
        poll.until(lambda: self.get("/n1/node").status == 200, 60, "the node answers")

    def start(self):
        self.spawn()
        self.wait_ready()

    def wait_ready(self):
        """Until it starts VMs."""
        def starts():
            report = self.get("/n1/node").json
            return report["ready"] and report["environment"]["accelerator"]
        poll.until(starts, 180, "the node is ready", every=0.1)

    def wait_full(self):
        """Until no pool wants another VM, so that none starts by itself."""
        def is_full():
            report = self.get("/n1/node").json
            return (all(p["warm"] >= p["warm_target"] and not p["filling"] for p in report["pools"])
                    and report["prepared"] >= self.installation.settings["node.prepared_pool"])
        poll.until(is_full, 180, "the pools are full", every=0.05)

    def kill(self, sig=signal.SIGKILL):
        self.process.send_signal(sig)
        self.process.wait()

    def restart(self):
        self.kill()
        self.start()

    def remove(self):
        if self.process is not None and self.process.poll() is None:
            self.kill(signal.SIGTERM)
        self.stop_all()
        self.installation.remove()

    def stop_all(self):
        """What `space down` does when no daemon runs any more."""
        subprocess.run([str(libexec() / "space-node"), "--config", str(self.installation.config), "--stop-all"],
                       check=True, capture_output=True)

    # ---- calls ----
    def ask(self, method, path, body=None, timeout=300, headers=None):
        connection = client.HTTPConnection("node", timeout=timeout)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(timeout)
        connection.sock.connect(str(self.installation.run_dir / "node.sock"))
        try:
            raw = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
            connection.request(method, path, body=raw,
                               headers={"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path, **more):
        return self.ask("GET", path, **more)

    def expect(self, status, method, path, body=None, **more):
        answer = self.ask(method, path, body, **more)
        assert answer.status == status, f"{method} {path}: {answer.status} {answer.body[:500]!r}"
        return answer

    # ---- sandboxes ----
    def create(self, **body):
        sandbox = new_id("sb")
        self.expect(200, "PUT", f"/n1/sandboxes/{sandbox}",
                    {"template": "base", "hostname": "testing", "env": {}, **body})
        return sandbox

    def state(self, sandbox):
        return self.get(f"/n1/sandboxes/{sandbox}").json["state"]

    def suspend(self, sandbox):
        return self.expect(200, "POST", f"/n1/sandboxes/{sandbox}/suspend").json

    def wake(self, sandbox):
        return self.expect(200, "POST", f"/n1/sandboxes/{sandbox}/wake").json

    def delete(self, sandbox):
        self.expect(200, "DELETE", f"/n1/sandboxes/{sandbox}")

    def run(self, sandbox, shell, **more):
        return self.expect(200, "POST", f"/n1/sandboxes/{sandbox}/run",
                           {"shell": shell, "process_id": new_id("pr", sandbox),
                            "session_id": new_id("se", sandbox), **more}).json

    def output(self, sandbox, shell, **more):
        result = self.run(sandbox, shell, **more)
        assert result["exit_code"] == 0, result
        return result["stdout"]

    def command(self, sandbox, **body):
        """Starts one; its process and session ids."""
        process, session = new_id("pr", sandbox), new_id("se", sandbox)
        self.expect(201, "POST", f"/n1/sandboxes/{sandbox}/commands",
                    {"process_id": process, "session_id": session, **body})
        return process, session

    def spool(self, sandbox, session, offset=0, stream="stdout"):
        answer = self.expect(200, "GET", f"/n1/sandboxes/{sandbox}/sessions/{session}/output"
                                         f"?stream={stream}&offset={offset}&limit=1000000")
        return answer.body

    def write(self, sandbox, process, data):
        self.expect(200, "POST", f"/n1/sandboxes/{sandbox}/processes/{process}/stdin", data,
                    headers={"Content-Type": "application/octet-stream"})

    def folder(self, sandbox):
        return self.installation.data / "volume/sandboxes" / sandbox
