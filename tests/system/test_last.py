"""Looks back at the whole session: what the document promises was seen, and nothing is left."""

import pytest

from harness import poll


@pytest.mark.last
def test_every_operation_of_the_document_was_answered(installation, request):
    if len({item.fspath for item in request.session.items}) < 10 or request.config.option.keyword:
        pytest.skip("only some of the tests were asked for")
    spec = installation.spec
    wanted = {operation["operationId"] for item in spec.document["paths"].values() for operation in item.values()}
    seen = {operation for operation, status, _ in spec.seen if status < 300}
    assert wanted <= seen, sorted(wanted - seen)


@pytest.mark.last
def test_nothing_is_left_on_the_host(installation):
    """Sandboxes deleted, daemons down: no VMM, namespace, tap, mount, loop device or cgroup."""
    api = installation.api
    for item in api.get("/v1/sandboxes", query={"limit": 1000})["items"]:
        api.delete(item["id"])
    assert not list((installation.data / "volume/sandboxes").iterdir())
    api.close()
    installation.down()
    installation.set_up("volume", "--release")
    try:
        poll.until(lambda: not installation.leaks(), 10, "everything is gone")
    except AssertionError:
        pass
    assert not installation.leaks()
    installation.remove_left_overs()
