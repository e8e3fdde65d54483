"""Templates made from checkpoints on the node, at length: kill -9 at every step of a making and of a deletion, a full
disk, a damaged checkpoint, a disk that does not boot, many versions at once."""

import os
import signal
import subprocess
import threading

import pytest

from harness import poll
from harness.checkpoints import COUNTER, Checkpoints
from harness.node_alone import Node, new_id


@pytest.fixture(scope="module")
def node():
    made = Node("tmc", uid_first=1_380_000, node__warm_pools="base=1", node__prepared_pool=1)
    made.prepare()
    yield made
    made.remove()


class Templates:
    def __init__(self, node):
        self.node = node
        self.volume = node.installation.data / "volume"
        self.shipped = {path.name for path in (self.volume / "templates/base").iterdir()}

    def put(self, version, checkpoint, name="tools"):
        return self.node.ask("PUT", f"/n1/templates/{version}", {"name": name, "checkpoint": checkpoint})

    def remove(self, name="tools", **body):
        return self.node.ask("POST", "/n1/templates/remove", {"name": name, **body})

    def made(self):
        items = self.node.get("/n1/templates").json["items"]
        return {item["version"]: item for item in items if item["checkpoint_id"]}

    def left(self):
        """What is on disk of templates that are not the shipped ones."""
        return ([str(p.relative_to(self.volume)) for p in (self.volume / "templates").glob("*/*") if p.parent.name != "base"]
                + [p.name for p in (self.volume / "templates").iterdir() if p.name != "base"]
                + [p.name for p in (self.volume / "checkpoints").iterdir() if p.name.startswith("tm")]
                + [p.name for p in (self.volume / "bases").iterdir() if p.name.partition("-")[0] not in self.shipped])

    def works(self, version):
        sandbox = new_id("sb")
        self.node.expect(200, "PUT", f"/n1/sandboxes/{sandbox}", {"template": "tools", "hostname": "x"})
        record = self.node.get(f"/n1/sandboxes/{sandbox}").json
        assert record["template_version"] == version
        assert self.node.output(sandbox, "cat /home/user/file") == "here\n"
        self.node.delete(sandbox)

    def end(self):
        for name in {item["name"] for item in self.made().values()}:
            assert self.remove(name).status == 200
        poll.until(lambda: self.left() == [], 60, "nothing is left")


@pytest.fixture
def templates(node):
    made = Templates(node)
    yield made
    made.end()


@pytest.fixture(scope="module")
def taken(node):
    """A checkpoint without memory, and one with it."""
    made = Checkpoints(node)
    sandbox = made.create(env={"KEPT": "yes"})
    node.output(sandbox, "echo here > /home/user/file")
    node.command(sandbox, shell=COUNTER)
    yield {memory: made.take(sandbox, memory=memory)["id"] for memory in (False, True)}
    made.remove()


def kill_when(node, order, is_there):
    """Gives an order and kills the node when that can be seen; whether the order was answered."""
    answers = []

    def give():
        try:
            answers.append(order())
        except OSError:
            pass

    thread = threading.Thread(target=give)
    thread.start()
    poll.until(lambda: is_there() or answers, 120, "the step", every=0.0005)
    seen = is_there()
    node.kill(signal.SIGKILL)
    thread.join()
    node.start()
    node.wait_ready()
    return seen, answers


@pytest.mark.parametrize("memory, step", [(memory, step) for memory, own in (
    (False, ("cloned", "booting", "booted")), (True, ("copying", "copied"))) for step in (
        "begun", *own, "recorded", "published", "current")])
def test_kill_at_each_step_of_a_making(node, templates, taken, memory, step):
    version = new_id("tm")
    folder = templates.volume / "templates/tools" / version
    current = templates.volume / "templates/tools/current"
    image = templates.volume / "checkpoints"
    base = templates.volume / "bases" / f"{version}-1-512"
    is_there = {
        "begun": folder.exists,
        "cloned": (folder / "disk.img").exists,
        "recorded": (folder / "next.json").exists,
        "copying": (image / (version + ".new")).exists,
        "copied": (image / version).exists,
        "booting": base.with_name(base.name + ".new").exists,
        "booted": base.exists,
        "published": (folder / "template.json").exists,
        "current": current.is_symlink,
    }[step]
    seen, answers = kill_when(node, lambda: templates.put(version, taken[memory]), is_there)
    found = templates.made()
    print(f"memory={memory} {step}: seen {seen}, answered {bool(answers)}, {'there' if found else 'nothing'}")
    if found:
        assert list(found) == [version] and found[version]["memory"] is memory
    else:
        assert not answers and templates.left() == []
    again = templates.put(version, taken[memory])
    assert again.status == 200 and again.json["current"] is True, again.body
    templates.works(version)


@pytest.mark.parametrize("step", ["renamed", "unlinked", "asked"])
@pytest.mark.parametrize("memory", [False, True])
def test_kill_at_each_step_of_a_deletion(node, templates, taken, memory, step):
    older, version = new_id("tm"), new_id("tm")
    assert templates.put(older, taken[False]).status == 200 and templates.put(version, taken[memory]).status == 200
    folder = templates.volume / "templates/tools" / version
    is_there = {"renamed": (folder / "removed.json").exists, "unlinked": lambda: not folder.exists(), "asked": lambda: True}[step]
    kill_when(node, lambda: templates.remove(version=version), is_there)
    found = templates.made()
    if version in found:
        assert templates.remove(version=version).status == 200
    assert list(templates.made()) == [older]
    templates.works(older)
    poll.until(lambda: not folder.exists() and not (templates.volume / "checkpoints" / version).exists(), 60, "its files go")


@pytest.mark.parametrize("memory", [False, True])
def test_a_full_disk(node, templates, taken, memory):
    filler = templates.volume / "filler"
    free = os.statvfs(templates.volume).f_bavail * os.statvfs(templates.volume).f_frsize
    subprocess.run(["fallocate", "-l", str(free - 40 * 1048576), str(filler)], check=True)
    try:
        refused = templates.put(new_id("tm"), taken[memory])
        assert refused.status == 507 and refused.json["error"]["code"] == "storage_full", refused.body
    finally:
        filler.unlink()
    assert templates.left() == []


def test_a_damaged_checkpoint(node, templates, taken):
    path = templates.volume / "checkpoints" / taken[True] / "snapshot/memory"
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    try:
        refused = templates.put(new_id("tm"), taken[True])
    finally:
        path.write_bytes(good)
    assert refused.status == 500 and "damaged" in refused.json["error"]["message"], refused.body
    assert templates.left() == []


def test_a_disk_that_does_not_boot(node, templates):
    sandbox, checkpoint = node.create(), new_id("ck")
    node.expect(200, "PUT", f"/n1/checkpoints/{checkpoint}", {"sandbox": sandbox, "memory": False})
    disk = templates.volume / "checkpoints" / checkpoint / "snapshot/disk.img"
    with disk.open("r+b") as file:
        file.write(bytes(1 << 20))
    refused = templates.put(new_id("tm"), checkpoint)
    assert refused.status == 409 and refused.json["error"]["details"]["state"] == "not_bootable", refused.body
    assert templates.left() == []
    node.expect(200, "DELETE", f"/n1/checkpoints/{checkpoint}")
    node.delete(sandbox)


def test_many_at_once(node, templates, taken):
    versions = [new_id("tm") for _ in range(12)]
    answers = []
    threads = [threading.Thread(target=lambda v=v: answers.append(templates.put(v, taken[True]).status)) for v in versions]
    threads += [threading.Thread(target=lambda: answers.append(templates.put(versions[0], taken[True]).status))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 13 and set(templates.made()) == set(versions)
    assert sum(item["current"] for item in templates.made().values()) == 1
