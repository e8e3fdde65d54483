"""The template `base`, built twice from its recipe: the same packages and the same bytes."""

import json
import os
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


def build(data):
    """Builds `base`; its record and package list. The next build finds nothing of it."""
    done = subprocess.run([str(libexec() / "setup/template"), "base", "--data-dir", str(data)], capture_output=True,
                          text=True, check=False, timeout=BUILD_SECONDS)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    current = data / "volume/templates/base/current"
    record = json.loads((current / "template.json").read_text(encoding="utf-8"))
    packages = (current / "packages.txt").read_text(encoding="utf-8").splitlines()
    os.rename(data / "volume/templates", data / f"templates-{record['built_at']}")
    return {key: record[key] for key in KEPT}, packages


def test_two_builds_of_one_recipe_are_the_same_to_the_byte(data):
    (first, first_packages), (second, second_packages) = build(data), build(data)
    assert set(first_packages) == set(second_packages)
    assert len(first_packages) == first["package_count"] > 200
    assert first == second
