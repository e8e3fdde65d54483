#!/usr/bin/env python3
"""A complete client in Python, with the standard library only: an example to copy from, not a library.

    eval "$(sudo space env)"        # SPACE_URL and SPACE_API_KEY
    python3 docs/client.py

It makes a sandbox, follows a command's output while it comes, reads it once more from the begin, gets a result
at once, and deletes the sandbox. A connection that breaks costs nothing: calls are repeated under their
Idempotency-Key and so done once, output goes on behind the last event that came."""

import base64
import http.client
import json
import os
import secrets
import sys
import time
import urllib.error
import urllib.request

URL = os.environ["SPACE_URL"].rstrip("/")
KEY = os.environ["SPACE_API_KEY"]
TRIES, PAUSE_S = 60, 1
BROKEN = (OSError, http.client.HTTPException)  # of a connection, and nothing else: refusals are answers


class Refused(Exception):
    """What the API answers instead. Decide by code and retryable, never by the message."""

    def __init__(self, error, retry_after=None):
        super().__init__(f"{error['code']}: {error['message']}")
        self.code, self.details = error["code"], error.get("details", {})
        self.retryable = error.get("retryable", False)
        self.pause_s = float(retry_after or 1)


def ask(method, path, body=None, **headers):
    """One attempt; the answer is open, to be read."""
    head = {"Authorization": f"Bearer {KEY}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    data = None
    if body is not None:
        data, head["Content-Type"] = json.dumps(body).encode(), "application/json"
    try:
        return urllib.request.urlopen(urllib.request.Request(URL + path, data, head, method=method), timeout=90)
    except urllib.error.HTTPError as answer:
        with answer:
            raise Refused(json.load(answer)["error"], answer.headers["Retry-After"]) from None


def call(method, path, body=None):
    """The answer's JSON. Asked again while the API is away or says that it may work later."""
    headers = {} if method == "GET" else {"Idempotency_Key": secrets.token_hex(16)}
    for left in reversed(range(TRIES)):
        try:
            with ask(method, path, body, **headers) as answer:
                return json.load(answer)
        except Refused as refused:
            if not refused.retryable or not left:
                raise
            time.sleep(refused.pause_s)
        except BROKEN:
            if not left:
                raise
            time.sleep(PAUSE_S)


def create(**what):
    """A sandbox that runs; its id."""
    answer = call("POST", "/v1/sandboxes?wait=60", what)
    operation = answer["operation"]
    while operation["state"] in ("pending", "running"):
        operation = call("GET", f"/v1/operations/{operation['id']}?wait=60")
    if operation["state"] == "failed":
        raise Refused(operation["error"])
    return answer["sandbox"]["id"]


def parse(stream):
    """(id, name, data) of each whole event of an event stream; one that broke off does not count."""
    event = {"data": ""}
    for line in stream:
        name, _, value = line.decode().rstrip("\r\n").partition(":")
        if name:  # without a name it is a comment: a sign of life
            event[name] = value.removeprefix(" ")
        elif not line.strip() and event["data"]:
            yield event.get("id"), event.get("event"), json.loads(event["data"])
            event = {"data": ""}


def follow(session):
    """(name, data) of all events from the begin, each once, over broken connections."""
    headers = {}
    tries = TRIES
    while tries > 0:
        try:
            with ask("GET", f"/v1/sessions/{session}/events", **headers) as stream:
                tries = TRIES
                for number, name, data in parse(stream):
                    headers = {"Last_Event_ID": number} if number else headers
                    yield name, data
                    if name in ("process_exited", "process_lost"):
                        return
        except Refused as refused:
            if not refused.retryable:
                raise
        except BROKEN:
            pass  # the command goes on, and what it says is kept
        tries -= 1
        time.sleep(PAUSE_S)
    raise TimeoutError("the API is away")


def show(session):
    """Writes the output as it comes; {exit_code, signal, timed_out, …} at the end."""
    for name, data in follow(session):
        if name == "output":
            to = sys.stdout if data["stream"] == "stdout" else sys.stderr
            to.buffer.write(base64.b64decode(data["data"]))
            to.flush()
        elif name == "gap":  # more was written than is kept, before we asked
            print(f"({data['bytes']} bytes of {data['stream']} are not kept any more)", file=sys.stderr, flush=True)
        elif name == "process_exited":
            return data
        elif name == "process_lost":
            raise RuntimeError(f"the command was lost: {data['reason']}")
    raise AssertionError("follow ends with one of the two")


def main():
    sandbox = create(template="base", lifecycle={"timeout_seconds": 600})  # it goes by itself, should we not come to it
    print(f"sandbox {sandbox}", flush=True)
    try:
        command = "for i in 1 2 3; do echo step $i; sleep 0.1; done; echo trouble >&2; exit 3"
        session = call("POST", f"/v1/sandboxes/{sandbox}/commands", {"shell": command})["session"]["id"]
        print("exit status", show(session)["exit_code"], flush=True)
        print("once more, from the begin:", flush=True)
        show(session)
        result = call("POST", f"/v1/sandboxes/{sandbox}/run", {"argv": ["python3", "-c", "print(6*7)"]})
        print("6*7 =", result["stdout"].strip(), flush=True)
    finally:
        call("DELETE", f"/v1/sandboxes/{sandbox}?wait=60")
    print("deleted", flush=True)


if __name__ == "__main__":
    main()
