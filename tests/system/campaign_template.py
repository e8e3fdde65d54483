"""The template `base`, built twice from its recipe: the same packages and the same bytes. And with a rehearsal of its own."""

import json
import os
import shutil
import subprocess

import pytest

from harness.installation import WORK, libexec

BUILD_SECONDS = 1800
KEPT = {"name", "version", "vcpus", "memory_mib", "disk_mib", "user", "suite", "package_count", "recipe_sha256", "disk_sha256"}


@pytest.fixture
def data():
    """A data directory on a filesystem with room for two disks."""
    folder = WORK / "template"
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    (folder / "volume").mkdir(parents=True)
    (folder / "volume/.space-volume").touch()
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def run(data, recipe):
    return subprocess.run([str(libexec() / "setup/template"), recipe, "--data-dir", str(data)], capture_output=True,
                          text=True, check=False, timeout=BUILD_SECONDS)


def build(data, recipe="base"):
    """Builds `base`; its record and package list. The next build finds nothing of it."""
    done = run(data, recipe)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    current = data / "volume/templates/base/current"
    record = json.loads((current / "template.json").read_text(encoding="utf-8"))
    packages = (current / "packages.txt").read_text(encoding="utf-8").splitlines()
    os.rename(data / "volume/templates", data / f"templates-{record['built_at']}")
    return record, packages


def test_two_builds_of_one_recipe_are_the_same_to_the_byte(data):
    (first, first_packages), (second, second_packages) = build(data), build(data)
    assert set(first_packages) == set(second_packages)
    assert len(first_packages) == first["package_count"] > 200
    assert {key: first[key] for key in KEPT} == {key: second[key] for key in KEPT}
    assert "prime" not in first


def test_a_recipe_says_what_is_rehearsed(data, tmp_path):
    recipe = tmp_path / "base"
    shutil.copytree(libexec().parents[1] / "share/space/templates/base", recipe, symlinks=True)
    commands = ["python3 -c 'print(\"a\\n\")'", "true"]
    for bad in (b"a\tb\n", b"\xff\n", b"true\n" * 33):
        (recipe / "rehearsal").write_bytes(bad)
        done = run(data, str(recipe))
        assert done.returncode != 0 and "rehearsal" in done.stderr, done
    (recipe / "rehearsal").write_text("# what agents do first\n\n" + "\n".join(commands) + "\n", encoding="utf-8")
    record, _ = build(data, str(recipe))
    assert record["prime"] == [["/bin/sh", "-c", command] for command in commands]
