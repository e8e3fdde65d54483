"""Data directories as set-up may find them: on a filesystem that clones files, and on one that neither does nor has room for
an image of one that does, where disks are copied. Elsewhere the volume is that image, which all other tests use."""

import pytest

from harness import machine
from harness.files import Files
from harness.installation import WORK, Installation

pytestmark = pytest.mark.long

# What makes the filesystem, and what set-up makes of it.
KINDS = {
    "directory with reflink": ("mkfs.xfs", "-q", "-m", "reflink=1"),
    # Without extents it cannot allocate a file in advance, and what is not written back yet looks like a hole.
    "plain directory": ("mkfs.ext4", "-q", "-F", "-O", "^extent,^64bit,^metadata_csum"),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def made(kind):
    """An installation whose data directory is on such a filesystem."""
    disk, place = WORK / "volume-disk.img", WORK / "volume-disk"
    made = Installation("spvol", uid_first=1_640_000, volume_gib=6, node__warm_pools="base=1", node__prepared_pool=1,
                        data_dir=place / "data")
    made.data = place / "data"
    made.remove_left_overs()
    unmount(place)
    place.mkdir(parents=True, exist_ok=True)
    disk.unlink(missing_ok=True)
    with open(disk, "wb") as file:
        file.truncate(12 << 30)
    machine.output(*KINDS[kind], str(disk))
    machine.output("mount", "-o", "loop", str(disk), str(place))
    try:
        made.prepare()
        made.up()
        yield made
        made.api.close()
    finally:
        made.remove()
        unmount(place)
        disk.unlink()


def unmount(place):
    while str(place) in machine.mounts():
        machine.output("umount", str(place))


@pytest.fixture
def box(made):
    sandbox = made.api.create()["id"]
    yield sandbox
    made.api.delete(sandbox)


def disk_of(made, sandbox):
    return made.data / "volume/sandboxes" / sandbox / "disk.img"


def test_set_up_makes_a_plain_directory_of_it(made, kind):
    volume = made.data / "volume"
    assert (volume / ".space-volume").read_text(encoding="ascii") == f"{kind}\n"
    assert not (made.data / "volume.img").exists() and str(volume) not in machine.mounts()
    assert made.node_report()["disk"]["reflink"] is (kind == "directory with reflink")
    volume_is = made.cli("doctor", check=False).stdout
    assert ("no reflink: each sandbox copies its template's disk" in volume_is) is (kind == "plain directory"), volume_is


def test_a_sandbox_has_a_disk_of_its_own_and_keeps_it(made, box):
    """Its template's disk, and then what it wrote; through a suspend and a wake."""
    api = made.api
    sums = "cd / && md5sum --quiet --ignore-missing -c /var/lib/dpkg/info/{bash,coreutils,git,python3.11-minimal}.md5sums"
    assert api.check_output(box, ["bash", "-c", sums], timeout_seconds=120) == ""
    Files(api, box).put("kept", b"kept" * 100_000)
    process, _ = api.start(box, "for i in $(seq 1 1000); do echo $i; sleep 0.05; done")
    api.post(f"/v1/sandboxes/{box}/suspend", query={"wait": 60})
    assert api.sandbox(box)["state"] == "suspended"
    assert api.check_output(box, "sudo sh -c 'echo 3 > /proc/sys/vm/drop_caches'; wc -c < kept") == "400000\n"
    assert api.sandbox(box)["state"] == "running"
    assert Files(api, box).read("kept") == b"kept" * 100_000
    other = api.create()["id"]
    try:
        assert api.run(other, ["test", "-e", "kept"])["exit_code"] == 1
    finally:
        api.delete(other)
    assert api.post(f"/v1/sandboxes/{box}/processes/{process['id']}/kill")["killed"] is True


def test_a_copy_has_the_holes_of_its_template(made, box):
    disk = disk_of(made, box).stat()
    version = (made.data / "volume/templates/base/current").resolve()
    template = (version / "disk.img").stat()
    assert disk.st_blocks * 512 < disk.st_size / 2 and disk.st_blocks < template.st_blocks * 1.5


def test_checkpoints_and_forks_copy_it_too(made, box):
    api = made.api
    api.check_output(box, "echo before > mark; sync")
    taken = api.post(f"/v1/sandboxes/{box}/checkpoints", {}, status=201, query={"wait": 120})["operation"]["result"]["id"]
    api.check_output(box, "echo after > mark; sync")
    api.post(f"/v1/sandboxes/{box}/rollback", {"checkpoint_id": taken}, query={"wait": 120})
    assert api.check_output(box, "cat mark") == "before\n"
    child, = api.post(f"/v1/sandboxes/{box}/fork", {"count": 1}, status=201, query={"wait": 120})["operation"]["result"]["children"]
    assert api.check_output(child["sandbox_id"], "cat mark") == "before\n"
    api.delete(child["sandbox_id"])
    api.expect(200, "DELETE", f"/v1/checkpoints/{taken}")


def test_a_start_takes_what_is_there(made, kind, box):
    """Set-up runs at every start: what it made the first time is kept."""
    made.api.check_output(box, "echo still > mark; sync")
    made.down()
    made.up()
    made.api.post(f"/v1/sandboxes/{box}/wake", query={"wait": 120})
    assert (made.data / "volume/.space-volume").read_text(encoding="ascii") == f"{kind}\n"
    assert made.api.check_output(box, "cat mark") == "still\n"
