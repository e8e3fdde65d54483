"""A client that retries as docs/api.md says, while daemons die under it."""

import http.client
import time
import uuid

RETRIED = (0, 429, 502, 503, 504)
PATIENCE_SECONDS = 120


class Patient:
    def __init__(self, installation):
        self.installation = installation
        self.api = installation.api.as_key(installation.key)

    def ask(self, method, path, body=None, **more):
        """Repeats one request under one Idempotency-Key until it has a definite answer."""
        key = {"Idempotency-Key": uuid.uuid4().hex} if method != "GET" else {}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                answer = self.api.ask(method, path, body, headers=key, **more)
                status = answer.status
            except (OSError, http.client.HTTPException):
                self.api.close()
                answer, status = None, 0
            if status not in RETRIED:
                return answer
            assert time.monotonic() < deadline, f"no definite answer: {method} {path}: {answer}"
            self.installation.wait_ready()

    def close(self):
        self.api.close()
