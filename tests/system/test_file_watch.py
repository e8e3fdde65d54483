"""Watching files: events in order, new directories included, replay, overflow, limits."""

import pytest

from harness.files import Files
from harness.http import ApiError
from harness.watch import Watch


@pytest.fixture(scope="module")
def box(installation):
    sandbox = installation.api.create()["id"]
    yield sandbox
    installation.api.delete(sandbox)


@pytest.fixture
def folder(api, box, request):
    path = "/home/user/" + request.node.name.partition("[")[0]
    api.check_output(box, ["mkdir", "-p", path])
    return path


def test_what_happens_is_told(api, box, folder):
    with Watch(api, box, folder) as watch:
        assert watch.next()[0] == "watching"
        api.check_output(box, f"cd {folder} && echo 1 > a && echo 2 >> a && mv a b && rm b && mkdir d")
        seen = watch.until("created", f"{folder}/d")
    kinds = [(kind, data.get("path", "").removeprefix(folder + "/")) for kind, data in seen]
    assert ("created", "a") in kinds and ("modified", "a") in kinds and ("deleted", "b") in kinds
    moved = next(data for kind, data in seen if kind == "moved")
    assert (moved["from"], moved["path"]) == (f"{folder}/a", f"{folder}/b")
    assert seen[-1][1]["is_directory"] is True


def test_new_directories_are_watched_without_a_hole(api, box, folder):
    with Watch(api, box, folder, recursive="true") as watch:
        watch.next()
        api.check_output(box, f"cd {folder} && for i in 1 2 3 4 5; do mkdir -p $i/x/y && touch $i/x/y/f; done; touch last")
        seen = watch.until("created", f"{folder}/last")
        api.check_output(box, f"touch {folder}/3/x/y/later")
        seen += watch.until("created", f"{folder}/3/x/y/later")
    created = {data["path"].removeprefix(folder + "/") for kind, data in seen if kind == "created"}
    for index in range(1, 6):
        assert {f"{index}", f"{index}/x", f"{index}/x/y", f"{index}/x/y/f"} <= created


def test_a_flat_watch_stays_flat(api, box, folder):
    api.check_output(box, ["mkdir", f"{folder}/sub"])
    with Watch(api, box, folder) as watch:
        watch.next()
        api.check_output(box, f"touch {folder}/sub/hidden {folder}/seen")
        assert not [d for k, d in watch.until("created", f"{folder}/seen") if "hidden" in d.get("path", "")]


def test_a_dropped_reader_misses_nothing(api, box, folder):
    with Watch(api, box, folder, recursive="true") as watch:
        watch.next()
        api.check_output(box, ["touch", f"{folder}/first"])
        watch.until("created", f"{folder}/first")
        after = watch.last
    api.check_output(box, f"cd {folder} && touch $(seq 1 100)")
    with Watch(api, box, folder, after=after, recursive="true") as watch:
        seen = watch.until("created", f"{folder}/100")
    names = [d["path"].removeprefix(folder + "/") for k, d in seen if k == "created"]
    assert names == [str(i) for i in range(1, 101)]
    assert not [k for k, _ in seen if k == "overflow"]


def test_what_cannot_be_replayed_is_an_overflow(api, box, folder):
    with Watch(api, box, folder, after="9999-1", recursive="true") as watch:
        assert "overflow" in (watch.next()[0], watch.next()[0])


def test_a_restart_of_the_node_is_an_overflow_and_then_goes_on(api, installation, box, folder):
    with Watch(api, box, folder) as watch:
        watch.next()
        after = watch.last
    installation.kill_daemon("space-node")
    installation.wait_ready()
    with Watch(api, box, folder, after=after) as watch:
        kinds = [watch.next()[0]]
        api.check_output(box, ["touch", f"{folder}/x"])
        kinds += [k for k, _ in watch.until("created", f"{folder}/x")]
    assert "overflow" in kinds


def test_hostile_names_and_the_end_of_the_directory(api, box, folder):
    with Watch(api, box, folder) as watch:
        watch.next()
        api.check_output(box, f"cd {folder} && touch $'new\\nline' $'\\xff\\xfe'")
        first, second = (watch.next() for _ in range(2))
        assert first[1]["path"] == f"{folder}/new\nline"
        while second[1].get("path_base64") is None:
            second = watch.next()
        api.check_output(box, ["rm", "-rf", folder])
        kinds = []
        while "deleted" not in kinds or kinds[-1] != "error":
            try:
                kinds.append(watch.next()[0])
            except (OSError, ValueError):
                break
            if len(kinds) > 20:
                break
    assert "deleted" in kinds


def test_errors(api, box):
    for path, status in (("/no/such", 404), ("/root", 403), ("", 400)):
        with pytest.raises(ApiError) as refused:
            Watch(api, box, path)
        assert refused.value.answer.status == status, refused.value


def test_the_quota_of_watches(api, installation):
    box = api.create()["id"]
    api.check_output(box, "mkdir $(seq -f w%g 1 70)")
    open_ones = []
    try:
        with pytest.raises(ApiError) as refused:
            for index in range(1, 71):
                open_ones.append(Watch(api, box, f"w{index}"))
        assert len(open_ones) == 64
        assert refused.value.answer.code == "limit_exceeded" and refused.value.answer.details["limit"]
    finally:
        for watch in open_ones:
            watch.close()
        api.delete(box)
