"""Looks back at the whole session: what the document promises was seen, and nothing is left."""

import pathlib

import pytest

BY_CHANCE = ("429", "500", "502", "503", "504", "507")  # what only an outage or a race shows
UNSEEN = pathlib.Path(__file__).with_name("unseen.allow")


def needs_the_whole_suite(request):
    if len({item.fspath for item in request.session.items}) < 40 or request.config.option.keyword:
        pytest.skip("only some of the tests were asked for")


@pytest.mark.last
def test_every_operation_of_the_document_was_answered(installation, request):
    needs_the_whole_suite(request)
    spec = installation.spec
    wanted = {operation["operationId"] for item in spec.document["paths"].values() for operation in item.values()}
    seen = {operation for operation, status, _ in spec.seen if status < 300}
    assert wanted <= seen, sorted(wanted - seen)


@pytest.mark.last
def test_every_answer_of_the_document_was_seen_or_is_listed(installation, request):
    """Each status of each operation. What no test provokes stands in unseen.allow, which only ever shrinks."""
    needs_the_whole_suite(request)
    spec = installation.spec
    documented = {(operation["operationId"], status) for item in spec.document["paths"].values()
                  for operation in item.values() for status in operation["responses"] if status != "default"}
    lines = [line.split() for line in UNSEEN.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    listed = {(operation, status) for operation, *statuses in lines for status in statuses}
    seen = {(operation, str(status)) for operation, status, _ in spec.seen}
    say = request.config.pluginmanager.get_plugin("terminalreporter").write_line
    say(f"\n{len(documented & seen)} of {len(documented)} documented answers seen")
    # What was seen comes off the list; what only an outage or a race shows, not because of one run.
    shorter = {(operation, status) for operation, status in listed if (operation, status) not in seen or status in BY_CHANCE}
    for operation in sorted({operation for operation, _ in shorter}) if shorter < listed else ():
        say(f"unseen.allow: {operation} {' '.join(sorted(status for other, status in shorter if other == operation))}")
    assert listed <= documented, f"not in the document: {sorted(listed - documented)}"
    missing = sorted(documented - seen - listed)
    assert not missing, f"documented, and no test has seen it: {missing}"


@pytest.mark.last
def test_nothing_is_left_on_the_host(installation):
    """Sandboxes deleted, daemons down: no VMM, namespace, tap, mount, loop device or cgroup."""
    api = installation.api
    for item in api.get("/v1/sandboxes", query={"limit": 1000})["items"]:
        api.delete(item["id"])
    assert not list((installation.data / "volume/sandboxes").iterdir())
    api.close()
    installation.remove()
