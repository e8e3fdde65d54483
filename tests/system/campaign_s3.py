"""The object store on a real S3 server, which verifies what it is sent."""

import os
import shutil

import pytest

from harness import poll, versity
from harness.installation import WORK, Installation
from harness.objects import Worker
from test_object_store import OTHER, OWNER, content, files, fresh, put  # noqa: F401 (a fixture)
from test_objects import lose_data, suspend, wait_stored, wake

KEYS = f"access_key = {versity.ACCESS}\nsecret_key = {versity.SECRET}\n".encode()


@pytest.fixture(scope="module")
def server():
    program, why = versity.build()
    if program is None:
        pytest.skip(f"NOT TESTED against a real S3 server: {why}")
    top = WORK / "versity"
    shutil.rmtree(top, ignore_errors=True)
    made = versity.Versity(program, top)
    made.start()
    yield made
    made.kill()
    shutil.rmtree(top)


def worker_of(server, prefix="a/b", keys=KEYS):
    return Worker({"endpoint": server.endpoint, "bucket": "kept", "prefix": prefix, "region": versity.REGION}, keys)


def test_there_and_back(server, files, tmp_path):
    worker = worker_of(server)
    stored = put(worker, files)
    assert stored["ok"], stored
    answer = worker.get(OWNER, stored["manifest"], fresh(tmp_path / "out"))
    assert answer["ok"], answer
    for name, fd in files.items():
        assert (tmp_path / "out" / name).read_bytes() == content(fd), name
    again = put(worker, files, OTHER, base=stored["base"])
    assert again["ok"] and again["new_bytes"] < 4096, "what is there is not sent again"
    keys = server.keys()
    assert worker.run("forget", owners=[OTHER])["ok"] and len(server.keys()) == len(keys) - 1
    assert worker.run("sweep", keep_seconds=0)["removed"] == 0
    assert worker.run("forget", owners=[OWNER])["ok"]
    assert worker.run("sweep", keep_seconds=3600)["removed"] == 0, "too young"
    poll.until(lambda: worker.run("sweep", keep_seconds=0)["ok"] and not server.keys(), 30, "nothing is left")


def test_a_manifest_in_parts(server, tmp_path, files):
    """More than fits in one part: noise that does not shrink, inline."""
    worker = worker_of(server, "parts")
    many = {f"n{i:04}": os.open(tmp_path / f"n{i}", os.O_RDWR | os.O_CREAT) for i in range(150)}
    for fd in many.values():
        os.write(fd, os.urandom(65536))
    answer = worker.put(OWNER, files["ram"], many)
    assert answer["ok"], answer
    assert worker.get(OWNER, answer["manifest"], fresh(tmp_path / "out"))["ok"]
    for name, fd in many.items():
        assert (tmp_path / "out" / name).read_bytes() == content(fd)
        os.close(fd)
    assert worker.run("forget", owners=[OWNER])["ok"] and worker.run("sweep", keep_seconds=0)["ok"]


def test_who_is_not_known_is_refused(server, files):
    before = server.keys()
    for keys in (KEYS.replace(b"/cret", b"/cert"), KEYS.replace(b"AKV", b"AKX")):
        answer = put(worker_of(server, keys=keys), files)
        assert (answer["ok"], answer["code"], answer["field"]) == (False, "failed_precondition", "object_store"), answer
    assert server.keys() == before


def test_a_server_that_is_killed(server, files, tmp_path):
    worker = worker_of(server, "killed")
    server.kill()
    assert put(worker, files)["code"] == "service_unavailable"
    server.start()
    stored = put(worker, files)
    assert stored["ok"], stored
    server.kill()
    server.start()
    assert worker.get(OWNER, stored["manifest"], fresh(tmp_path / "out"))["ok"]
    assert worker.run("forget", owners=[OWNER])["ok"] and worker.run("sweep", keep_seconds=0)["ok"]


def test_a_node_that_has_lost_its_data(server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_bytes(KEYS)
    keys.chmod(0o600)
    made = Installation("s3", uid_first=1_280_000, volume_gib=6, node__warm_pools="base=1", node__prepared_pool=0)
    made.settings.update({"objects.store": "s3://kept/space", "objects.endpoint": server.endpoint,
                          "objects.region": versity.REGION, "objects.keys_file": keys, "objects.garbage_seconds": 1})
    made.prepare()
    made.up()
    try:
        api = made.api
        sandbox = api.create(template="base")["id"]
        api.check_output(sandbox, "echo on the disk > /home/user/file; sync")
        server.kill()
        assert suspend(api, sandbox)["durability"] == "local"
        poll.until(lambda: made.node_report()["objects"]["problem"], 60, "the node says that the server is away")
        server.start()
        wait_stored(api, f"/v1/sandboxes/{sandbox}")
        lose_data(made)
        api = made.api
        server.kill()
        refused = wake(api, sandbox, status=503)
        assert refused["error"]["retryable"] and api.sandbox(sandbox)["state"] == "suspended"
        server.start()
        assert wake(api, sandbox)["sandbox"]["state"] == "running"
        assert api.check_output(sandbox, "cat /home/user/file") == "on the disk\n"
        api.delete(sandbox)
        poll.until(lambda: not [key for key in server.keys() if key.startswith("space/")], 60, "nothing is left of it")
    finally:
        made.remove()
