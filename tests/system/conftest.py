"""Fixtures. One installation serves the whole session; what must disturb others has its own."""

import os
import pathlib
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness.installation import Installation  # noqa: E402
from harness.installed import Installed  # noqa: E402

SKIPS = pathlib.Path(__file__).resolve().parents[1] / "skips.allow"
REFUSED_SKIPS = pytest.StashKey()


def pytest_configure(config):
    # What a background job of a shell inherits as ignored would stay so in every program that is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # ignored here (nohup), and not by what is started
    if os.geteuid() != 0:
        raise pytest.UsageError("the system tests make network namespaces and cgroups: run as root")
    config.addinivalue_line("markers", "last: runs after all others of its session")
    config.addinivalue_line("markers", "long: runs in the campaign (`-m long`), not in `make check`, which has no time for it")


def pytest_collection_modifyitems(config, items):
    if config.option.markexpr != "long" and not any(".py" in name for name in config.args):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    elif "LONG_SHARE" in os.environ:
        # N/M: the files whose turn it is, of those that have long tests, and the files of LONG_ALWAYS.
        turn, of = map(int, os.environ["LONG_SHARE"].split("/"))
        always = os.environ.get("LONG_ALWAYS", "").split()
        files = sorted({item.path for item in items if item.get_closest_marker("long") and item.path.name not in always})
        wanted = {path for i, path in enumerate(files) if i % of == turn % of} | {item.path for item in items if item.path.name in always}
        others = [item for item in items if item.path not in wanted]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    if "ITEM_SHARE" in os.environ:
        # N/M: each M-th test, from the N-th on.
        turn, of = map(int, os.environ["ITEM_SHARE"].split("/"))
        others = [item for i, item in enumerate(items) if i % of != turn % of]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    # Conformance coverage and the leak check look back at everything before them.
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed and "installation" in item.fixturenames and call.when == "call":
        report.sections.append(("logs of the installation", item.funcargs["installation"].log_tail()))


def pytest_terminal_summary(terminalreporter, config):
    """Says loudly what was skipped, and gives the counts in the form that `make check` adds up."""
    stats = terminalreporter.stats
    for report in stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"NOT TESTED: {report.nodeid}: {reason}", red=True)
    count = {name: len(stats.get(name, [])) for name in ("passed", "failed", "error", "skipped")}
    refused = config.stash.get(REFUSED_SKIPS, [])
    for name in refused:
        terminalreporter.write_line(f"FAILED {name}: skipped, and not in {SKIPS.name}", red=True)
    count["failed"] += len(refused)
    count["skipped"] -= len(refused)
    terminalreporter.write_line(
        f"system: {count['passed']} passed, {count['failed'] + count['error']} failed, {count['skipped']} skipped")


def pytest_sessionfinish(session):
    """`make check` and the campaign take no skip for a pass, but those of tests/skips.allow."""
    if not os.environ.get("SPACE_TEST_NO_SKIPS"):
        return
    lines = [line.split("#")[0].split() for line in SKIPS.read_text(encoding="utf-8").splitlines()]
    allowed = {words[0] for words in lines if len(words) == 1 or os.environ.get("CAMPAIGN_ROUND") in words[1:]}
    skipped = session.config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", [])
    refused = [r.nodeid for r in skipped if allowed.isdisjoint((r.nodeid, r.nodeid.partition("::")[0]))]
    session.config.stash[REFUSED_SKIPS] = refused
    if refused and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def installation():
    if os.environ.get("SPACE_TEST_INSTALLED"):
        yield Installed()
        return
    made = Installation("spt", uid_first=1_200_000, volume_gib=6, node__warm_pools="base=3",
                        node__prepared_pool=2)
    made.prepare()
    made.up()
    yield made
    # The leak check has ended it already, unless it was not selected.
    if made.config.exists():
        made.remove()


@pytest.fixture
def api(installation):
    yield installation.api
    installation.api.close()


@pytest.fixture
def sandboxes(installation):
    """Creates sandboxes that are deleted after the test."""
    made = []

    def create(**body):
        sandbox = installation.api.create(**body)
        made.append(sandbox["id"])
        return sandbox

    yield create
    for sandbox_id in made:
        installation.api.expect((200, 404), "DELETE", f"/v1/sandboxes/{sandbox_id}", query={"wait": 60})


@pytest.fixture(scope="session")
def shared(installation):
    """A sandbox for tests that leave no trace in it."""
    return installation.api.create(name="shared", metadata={"of": "tests"})["id"]
