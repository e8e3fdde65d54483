"""Metrics of a sandbox: samples that follow what it does."""

import datetime

import pytest

from harness import poll


@pytest.fixture(scope="module")
def site(request):
    from harness.installation import Installation
    made = Installation("sptm", uid_first=1_300_000, volume_gib=5, node__warm_pools="base=1", node__metrics_interval_seconds=1)
    made.prepare()
    made.up()
    yield made
    made.remove()


def samples(api, box, **query):
    return api.get(f"/v1/sandboxes/{box}/metrics", query=query)["items"]


def test_samples_follow_what_the_sandbox_does(site):
    api = site.api
    box = api.create()["id"]
    first = poll.until(lambda: samples(api, box), 30, "a first sample")[-1]
    assert first["memory_total_bytes"] > 300 << 20 and 0 < first["memory_used_bytes"] < first["memory_total_bytes"]
    assert first["disk_total_bytes"] > 1 << 30 and first["processes"] == 0
    process, _ = api.start(box, ["python3", "-c", "x = b'1' * 150_000_000\nwhile True: pass"])
    busy = poll.until(lambda: [s for s in samples(api, box) if s["cpu_percent"] > 50
                               and s["memory_used_bytes"] > first["memory_used_bytes"] + (100 << 20)], 60, "it is seen at work")[-1]
    assert busy["cpu_seconds"] > first["cpu_seconds"] and busy["processes"] >= 1
    api.post(f"/v1/sandboxes/{box}/processes/{process['id']}/kill")
    api.check_output(box, "head -c 200000000 /dev/zero > fill; sync")
    poll.until(lambda: samples(api, box)[-1]["disk_used_bytes"] > first["disk_used_bytes"] + 150_000_000, 30, "the disk is seen")
    every = samples(api, box)
    at = [s["at"] for s in every]
    assert at == sorted(at) and len(set(at)) == len(at)
    middle = every[len(every) // 2]["at"]
    assert [s["at"] for s in samples(api, box, start=middle)][:len(at) - len(at) // 2] == at[len(at) // 2:]
    assert [s["at"] for s in samples(api, box, end=middle)] == [a for a in at if a <= middle]
    api.delete(box)
    api.close()


def test_bad_times(site):
    api = site.api
    box = api.create()["id"]
    for query in ({"start": "yesterday"}, {"end": "2026-13-01T00:00:00Z"}, {"start": "-1"}):
        answer = api.ask("GET", f"/v1/sandboxes/{box}/metrics", query=query)
        assert answer.status == 400 and answer.details["field"] in query, answer
    future = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert samples(api, box, start=future) == []
    api.delete(box)
    assert api.ask("GET", f"/v1/sandboxes/{box}/metrics").status == 404
    api.close()


@pytest.mark.long
def test_samples_go_on_over_a_restart_of_the_node(api, installation, sandboxes):
    box = sandboxes()["id"]
    poll.until(lambda: samples(api, box), 30, "a first sample")
    installation.kill_daemon("space-node")
    installation.wait_ready()
    poll.until(lambda: samples(api, box), 30, "a sample after the restart")
