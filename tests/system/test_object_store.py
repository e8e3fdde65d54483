"""The S3 side of the object store: signatures, pages, parts, faults that pass and faults that do not."""

import os

import pytest

from harness.objects import NOBODY, Worker
from harness.s3 import PAGE, S3

OWNER, OTHER = "sb" + "0" * 18, "sb" + "1" * 18


@pytest.fixture
def s3():
    made = S3()
    yield made
    made.close()


def worker_of(s3, **changes):
    place = {"endpoint": s3.endpoint, "bucket": s3.bucket, "prefix": "a/b", "region": s3.region, **changes}
    return Worker(place, f"access_key = {s3.access_key}\nsecret_key = {s3.secret_key}\n".encode())


@pytest.fixture
def worker(s3):
    return worker_of(s3)


@pytest.fixture
def files(tmp_path):
    """A base image and two files, open."""
    made = {}
    for name, size in (("ram", 3_000_000), ("disk.img", 2_500_000), ("state", 300)):
        path = tmp_path / name
        path.write_bytes(os.urandom(size // 2) + bytes(size - size // 2))
        made[name] = os.open(path, os.O_RDONLY)
    yield made
    for fd in made.values():
        os.close(fd)


def put(worker, files, owner=OWNER, **more):
    return worker.put(owner, files["ram"], {name: fd for name, fd in files.items() if name != "ram"}, **more)


def fresh(path):
    path.mkdir()
    path.parent.chmod(0o755)
    return path


def content(fd):
    return os.pread(fd, 10_000_000, 0)


def test_there_and_back(s3, worker, files, tmp_path):
    put_answer = put(worker, files)
    assert put_answer["ok"], put_answer
    assert all(key.startswith("a/b/") for key in s3.objects)
    into = fresh(tmp_path / "out")
    answer = worker.get(OWNER, put_answer["manifest"], into)
    assert answer["ok"] and answer["base"] == put_answer["base"]
    for name, fd in files.items():
        assert (into / name).read_bytes() == content(fd), name
        assert (into / name).stat().st_uid == NOBODY
    before = len(s3.requests)
    again = put(worker, files, OTHER, base=put_answer["base"])
    assert again["ok"] and again["new_bytes"] < 4096, "what is there is not sent again"
    assert not any(method == "PUT" and "/chunks/" in path for method, path in s3.requests[before:])
    count = len(s3.objects)
    assert worker.run("forget", owners=[OTHER])["ok"] and len(s3.objects) == count - 1
    assert worker.run("sweep", keep_seconds=0) == {
        "ok": True, "snapshots": 1, "chunks": count - 3, "removed": 0,
        "bytes": sum(len(body) for key, (body, _) in s3.objects.items() if "/chunks/" in key)}
    assert worker.run("forget", owners=[OWNER])["ok"]
    assert worker.run("sweep", keep_seconds=3600)["removed"] == 0, "too young"
    assert worker.run("sweep", keep_seconds=0)["removed"] == count - 2
    assert not s3.objects


def test_a_large_manifest_goes_in_parts(s3, worker, tmp_path, files):
    """Every second block of a file: more pieces than fit in one part, since noise does not shrink."""
    path = tmp_path / "holes"
    with open(path, "wb") as file:
        for i in range(200):
            file.seek(i * 8192)
            file.write(os.urandom(4096))
    many = {f"n{i:04}": os.open(tmp_path / f"n{i}", os.O_RDWR | os.O_CREAT) for i in range(150)}
    for fd in many.values():
        os.write(fd, os.urandom(65536))
    with open(path, "rb") as holes:
        answer = worker.put(OWNER, files["ram"], {"disk.img": holes.fileno(), **many})
    assert answer["ok"], answer
    assert any("partNumber=2" in target for _, target in s3.requests) and not s3.uploads
    into = fresh(tmp_path / "out")
    assert worker.get(OWNER, answer["manifest"], into)["ok"]
    assert (into / "disk.img").read_bytes() == path.read_bytes()
    for name, fd in many.items():
        assert (into / name).read_bytes() == content(fd)
        os.close(fd)


def test_uploads_that_were_cut_are_aborted(s3, worker, files):
    """When they are old, and only the store's own."""
    assert put(worker, files)["ok"]
    cut = [s3.begin_upload("a/b/manifests/" + OWNER + "." + "0" * 64), s3.begin_upload("a/b/bases/" + "1" * 64)]
    others = [s3.begin_upload("a/c/manifests/x"), s3.begin_upload("a/b/manifests/x y?"), s3.begin_upload("a/b/mine")]
    assert worker.run("sweep", keep_seconds=3600)["removed"] == 0 and set(s3.uploads) == {*cut, *others}
    assert worker.run("sweep", keep_seconds=0)["removed"] == 2 and set(s3.uploads) == set(others)
    s3.faults = [None] * 20
    before = len(s3.requests)
    assert worker.run("sweep", keep_seconds=0)["removed"] == 0
    lists = [number for number, (_, target) in enumerate(s3.requests[before:]) if "uploads=" in target]
    s3.faults = [None] * lists[0] + [403, 403]  # not for this key: no reason to give up
    assert worker.run("sweep", keep_seconds=0)["ok"] and not s3.faults


def test_faults_that_pass(s3, worker, files, tmp_path):
    s3.faults = [503, "drop", 500]
    answer = put(worker, files)
    assert answer["ok"], answer
    s3.faults = ["cut", 429, "drop"]
    answer = worker.get(OWNER, answer["manifest"], fresh(tmp_path / "out"))
    assert answer["ok"], answer
    assert (tmp_path / "out/disk.img").read_bytes() == content(files["disk.img"])


@pytest.mark.long
def test_faults_that_do_not(s3, worker, files, tmp_path):
    s3.faults = [503] * 40  # whatever it tries, from several threads
    answer = put(worker, files)
    assert (answer["ok"], answer["code"]) == (False, "service_unavailable"), answer
    s3.faults = []
    stored = put(worker, files)
    refused = worker_of(s3)
    refused.keys = refused.keys.replace(b"/cret", b"/cert")
    answer = refused.run("sweep", keep_seconds=0)
    assert (answer["code"], answer["field"]) == ("failed_precondition", "object_store"), answer
    assert "SignatureDoesNotMatch" in answer["message"] and "cert" not in answer["message"]
    assert worker_of(s3, bucket="other").run("sweep", keep_seconds=0)["code"] == "failed_precondition"
    s3.close()
    answer = worker.get(OWNER, stored["manifest"], fresh(tmp_path / "out"))
    assert answer["code"] == "service_unavailable", answer
    s3.__init__()


def test_damage(s3, worker, files, tmp_path):
    stored = put(worker, files)
    keys = [next(key for key in s3.objects if f"/{kind}/" in key) for kind in ("manifests", "bases", "chunks")]
    for number, key in enumerate(keys):
        good = s3.objects[key]
        for bad in (good[0][:-1], good[0][:20] + bytes([good[0][20] ^ 1]) + good[0][21:], None):
            if bad is None:
                del s3.objects[key]
            else:
                s3.objects[key] = (bad, good[1])
            answer = worker.get(OWNER, stored["manifest"], fresh(tmp_path / f"out{number}{bad and len(bad)}{bad and bad[20]}"))
            assert not answer["ok"] and answer["code"] in ("internal", "not_found"), (key, answer)
            s3.objects[key] = good
    key = next(key for key in s3.objects if "/manifests/" in key)
    s3.objects[key] = (s3.objects[key][0][:-1], s3.objects[key][1])
    count = len(s3.objects)
    answer = worker.run("sweep", keep_seconds=0)
    assert not answer["ok"] and "damaged" in answer["message"] and len(s3.objects) == count


def test_a_list_without_an_end(s3, worker, files):
    assert put(worker, files)["ok"]
    (key,) = (key for key in s3.objects if "/manifests/" in key)
    for i in range(PAGE + 1):
        s3.put(f"{key}{i}", b"")
    count = len(s3.objects)
    s3.is_stuck = True
    answer = worker.run("sweep", keep_seconds=0)
    assert not answer["ok"] and "no end" in answer["message"] and len(s3.objects) == count
    s3.is_stuck = False
