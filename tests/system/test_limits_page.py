"""docs/limits.md against the settings: the numbers that stand there are the defaults."""

import re

from harness.spec import ROOT

# What a number of a row may be multiplied by, for each end of a setting's name.
UNITS = {"ms": {"s": 1000}, "seconds": {"s": 1}, "minutes": {"minutes": 1}, "hours": {"h": 1}, "mib": {"MiB": 1},
         "bytes": {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20}, "overcommit": {"times": 100}}


def defaults():
    """deploy/space.conf, which a unit test holds against the table of settings."""
    lines = (ROOT / "deploy/space.conf").read_text(encoding="utf-8").splitlines()
    return dict((part.strip() for part in line.split("=", 1)) for line in lines if "=" in line and not line.startswith("#"))


def rows():
    """(limit, settings) of each row that names settings."""
    for line in (ROOT / "docs/limits.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and cells[0] != "what":
            _, limit, _, names = cells
            if settings := re.findall(r"`([a-z]+\.[a-z_]+)`", names):
                yield limit, settings


def says(limit, name, default):
    """Whether a limit has this default, in a unit of this setting."""
    if limit.startswith("as "):
        return True  # another row has the number
    if default == "0":
        return "none" in limit or (name == "node.memory_reserve_mib" and "the reserve" in limit)
    units = UNITS.get(name.rpartition("_")[2], {"": 1})
    return any(int(number.replace(",", "")) * factor == int(default)
               for unit, factor in units.items() for number in re.findall(rf"\b([0-9][0-9,]*)\b(?= ?{unit})", limit))


def test_each_number_of_a_setting_is_its_default():
    known, found = defaults(), list(rows())
    assert len(found) > 20
    for limit, settings in found:
        for name in settings:
            assert name in known, f"{name} is no setting"
            assert says(limit, name, known[name]), f"{name} is {known[name]}; docs/limits.md: {limit}"


def test_each_setting_that_is_a_limit_is_there():
    there = {name for _, settings in rows() for name in settings}
    wanted = {name for name in defaults() if re.search(r"^quota\.|^api\.key_|\.max_|_keep_|_reserve_|_versions$|spool|_per_|_timeout_ms$", name)}
    # How long a start may take is no limit of a client's: it is in the settings file alone.
    assert wanted - there <= {"node.boot_timeout_ms", "node.start_timeout_ms", "node.silence_timeout_ms", "node.probe_timeout_ms"}


def test_the_comparison_can_fail():
    assert says("8 MiB, 32 levels deep", "api.max_body_bytes", "8388608") and not says("8 MiB", "api.max_body_bytes", "8388609")
    assert says("30 s", "api.header_timeout_ms", "30000") and not says("30 s", "api.header_timeout_ms", "31000")
    assert not says("1,000", "node.max_sandboxes", "100") and not says("none", "node.max_sandboxes", "5")
