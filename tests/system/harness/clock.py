"""The wall clock of a guest, held against the host's."""

import time


def seconds_off(api, sandbox):
    """By how much it is wrong, as far as that can be told: it was read at some time during the call."""
    before = time.time()
    guest = float(api.check_output(sandbox, ["date", "+%s.%N"]))
    after = time.time()
    return max(before - guest, guest - after, 0)


def set_back(api, sandbox):
    """As though it had been captured an hour ago."""
    api.check_output(sandbox, ["date", "-s", "-1 hour"], user="root")
    assert 3500 < seconds_off(api, sandbox) < 3700
