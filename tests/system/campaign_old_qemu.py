"""A round on Debian 12's own QEMU 7.2, which machines without backports have: other options, guests
without address randomisation, guest memory in a sealed memfd instead of a read-only file."""

import os
import pathlib

import pytest

from harness import machine, old_qemu
from harness.installation import WORK, Installation


def release():
    lines = pathlib.Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line).get("VERSION_CODENAME")


@pytest.fixture(scope="module")
def old():
    if release() != "bookworm":
        pytest.skip(f"QEMU 7.2 is Debian 12's, this is {release()}")
    folder = WORK / "qemu-7.2"
    machine.output("rm", "-rf", str(folder))
    program = old_qemu.unpack(folder)  # not to be had on Debian 12: a failure, no skip
    made = Installation("spq", uid_first=1_700_000, volume_gib=4, node__warm_pools="base=1", node__prepared_pool=1,
                        node__qemu=program)
    made.prepare()
    made.up()
    yield made
    if made.config.exists():
        made.remove()
    machine.output("rm", "-rf", str(folder))


def test_the_node_and_doctor_name_the_old_qemu(old):
    environment = old.node_report()["environment"]
    assert environment["vmm_version"].startswith("7.2")
    said = old.cli("doctor", check=False).stdout
    if environment["accelerator"] == "tcg":
        assert "norandmaps" in said


def test_a_sandbox_works_without_address_randomisation(old):
    sandbox = old.api.create()["id"]
    pid = old.vmm_of(sandbox)
    assert machine.runs(pid, old.settings["node.qemu"]), os.readlink(f"/proc/{pid}/exe")
    if old.node_report()["environment"]["accelerator"] == "tcg":
        assert old.api.check_output(sandbox, "cat /proc/sys/kernel/randomize_va_space") == "0\n"
    maps = machine.read(f"/proc/{pid}/maps").decode()
    assert "memfd:" in maps and "/bases/" not in maps
    assert old.api.check_output(sandbox, "python3 -c 'print(6 * 7)'") == "42\n"
    old.api.delete(sandbox)


def test_a_size_of_its_own_and_a_grown_disk(old):
    sandbox = old.api.create(memory_mib=256, disk_mib=5120)["id"]
    assert int(old.api.check_output(sandbox, "df --output=size -m / | tail -1")) > 4500
    assert int(old.api.check_output(sandbox, "grep -o '[0-9]*' /proc/meminfo | head -1")) < 256 * 1024
    old.api.delete(sandbox)


def test_adoption_after_kill_9(old):
    """Same VMM, same process, no output lost; and the sealed memory serves new sandboxes again."""
    sandbox = old.api.create()["id"]
    pid = old.vmm_of(sandbox)
    process, session = old.api.start(sandbox, "for i in $(seq 1 200); do echo $i; sleep 0.02; done; exit 3")
    old.kill_daemon("space-node")
    old.wait_ready()
    assert old.vmm_of(sandbox) == pid
    assert old.api.result(sandbox, process["id"])["exit_code"] == 3
    assert old.api.output(session["id"]) == "".join(f"{i}\n" for i in range(1, 201)).encode()
    other = old.api.create()["id"]
    assert old.api.check_output(other, "echo new") == "new\n"
    for made in (sandbox, other):
        old.api.delete(made)


def test_nothing_is_left(old):
    old.remove()
    assert not os.path.exists(old.top)
