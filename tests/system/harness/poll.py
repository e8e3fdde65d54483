"""Waiting for a state that can be observed. Nothing in these tests sleeps to let time pass."""

import time


class Timeout(AssertionError):
    pass


def until(probe, seconds, what, every=0.02):
    """The first true value of probe(), asked again and again until the deadline."""
    deadline = time.monotonic() + seconds
    last = None
    while True:
        try:
            last = probe()
            if last:
                return last
        except (OSError, AssertionError) as error:
            last = error
        if time.monotonic() >= deadline:
            raise Timeout(f"{what}: not within {seconds} s; last seen: {last!r}")
        time.sleep(every)
