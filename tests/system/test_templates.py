"""Versions of a template: what is made from which, and when old ones go."""

import json
import os
import re

from harness import machine, manual, poll
from harness.spec import ROOT


def add_version(folder, source, name, age):
    """A copy of a version that was published `age` seconds before the current one."""
    target = folder / name
    machine.output("cp", "-a", "--reflink=auto", "--sparse=always", str(source), str(target))
    record = target / "template.json"
    published = record.stat().st_mtime
    content = json.loads(record.read_text(encoding="utf-8"))
    record.chmod(0o644)
    record.write_text(json.dumps({**content, "version": name}), encoding="utf-8")
    os.utime(record, (published - age, published - age))
    return target


def switch(folder, version):
    link = folder / "current.new"
    link.symlink_to(version)
    link.rename(folder / "current")


def test_old_versions_go_when_no_sandbox_is_left(api, installation):
    folder = installation.data / "volume/templates/base"
    newest = os.readlink(folder / "current")
    unused = add_version(folder, folder / newest, "tm0000000000000000aa", 2000)
    used = add_version(folder, folder / newest, "tm0000000000000000bb", 1000)
    switch(folder, used.name)
    try:
        sandbox = api.create(memory_mib=256)
        assert sandbox["template_version"] == used.name
    finally:
        switch(folder, newest)
    installation.kill_daemon("space-node")
    installation.wait_ready()
    poll.until(lambda: not unused.exists(), 30, "the version without a sandbox is gone")
    assert used.exists()
    assert api.check_output(sandbox["id"], "echo works") == "works\n"
    api.delete(sandbox["id"])
    installation.kill_daemon("space-node")
    installation.wait_ready()
    poll.until(lambda: not used.exists(), 30, "the version whose sandbox was deleted is gone")
    assert not list((installation.data / "volume/bases").glob(f"{used.name}-*"))
    assert (folder / newest / "template.json").exists()


def test_one_of_set_up_is_deleted_as_its_page_says(api, installation, tmp_path):
    folder = installation.data / "volume/templates"
    newest = os.readlink(folder / "base/current")
    (folder / "data").mkdir()
    version = add_version(folder / "data", folder / "base" / newest, "tm0000000000000000cc", 0)
    record = version / "template.json"
    record.write_text(json.dumps({**json.loads(record.read_text(encoding="utf-8")), "name": "data"}), encoding="utf-8")
    switch(folder / "data", version.name)
    assert api.get("/v1/templates/data")["version"] == version.name
    (tmp_path / "recipe").mkdir()
    page = (ROOT / "templates/README.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^    cd /var/lib/space/volume/templates/data\n(?:    .*\n)+", page, re.MULTILINE)
    manual.run(lines, {"/var/lib/space": installation.data, "/etc/space/templates/data": tmp_path / "recipe"}, installation.config)
    assert not (tmp_path / "recipe").exists()
    assert api.ask("GET", "/v1/templates/data").status == 404
    refused = api.ask("POST", "/v1/sandboxes", {"template": "data"})
    assert (refused.status, refused.details) == (404, {"resource": "template"}), refused
    installation.kill_daemon("space-node")
    installation.wait_ready()
    poll.until(lambda: not version.exists(), 30, "the deleted version is gone")
    assert api.get("/v1/templates/base")["version"] == newest


def test_the_recorded_packages_are_those_inside_and_those_of_the_recipe(api, installation, shared):
    current = installation.data / "volume/templates/base/current"
    recorded = (current / "packages.txt").read_text(encoding="utf-8")
    assert api.check_output(shared, "dpkg-query -W -f '${Package} ${Version}\\n' | LC_ALL=C sort") == recorded
    record = json.loads((current / "template.json").read_text(encoding="utf-8"))
    assert len(recorded.splitlines()) == record["package_count"]
    recipe = (ROOT / "templates/base/packages").read_text(encoding="utf-8")
    named = {line.partition("#")[0].strip() for line in recipe.splitlines()} - {""}
    assert named and not named - {line.split()[0] for line in recorded.splitlines()}
