"""tools/install and tools/uninstall, on a build of one file."""

import subprocess

import pytest

from harness import machine
from harness.installation import ROOT, WORK


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    source = tmp_path_factory.mktemp("source")
    (source / "meson.build").write_text("project('one')\ninstall_data('one.txt', install_dir: 'share/space')\n", encoding="ascii")
    (source / "one.txt").write_text("one\n", encoding="ascii")
    machine.output("meson", "setup", str(source / "build"), str(source), "--prefix", "/opt/space-test")
    return source / "build"


def install(build, prefix, dest):
    return subprocess.run([ROOT / "tools/install"], capture_output=True, text=True, check=False,
                          env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "BUILD": str(build), "PREFIX": prefix, "DESTDIR": str(dest)})


def files(top):
    return {str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()}


def test_everything_goes_below_the_prefix_and_is_recorded(build, tmp_path):
    done = install(build, "/opt/space-test/", tmp_path)
    assert done.returncode == 0, done.stderr
    share = tmp_path / "opt/space-test/share/space"
    assert (share / "one.txt").read_text(encoding="ascii") == "one\n"
    assert {path.split("/")[1] for path in files(tmp_path)} == {"space-test"}
    recorded = (share / "manifest").read_text(encoding="ascii").splitlines()
    assert {path.lstrip("/") for path in recorded} == files(tmp_path)


def test_another_prefix_than_the_configured_one_is_refused_with_the_remedy(build, tmp_path):
    done = install(build, "/opt/elsewhere", tmp_path)
    assert done.returncode == 1 and not files(tmp_path)
    assert f"{build} is configured for the prefix /opt/space-test, not /opt/elsewhere" in done.stderr
    assert f"make install BUILD={build} PREFIX=/opt/elsewhere" in done.stderr


def test_a_build_for_another_prefix_says_why_it_compiles_again(tmp_path):
    (tmp_path / "meson.build").write_text(
        "project('one')\ncustom_target('one', output: 'one', command: ['touch', '@OUTPUT@'], install: true, install_dir: 'bin')\n",
        encoding="ascii")
    machine.output("meson", "setup", str(tmp_path / "build"), str(tmp_path), "--prefix", "/opt/space-test")

    def build(prefix):
        done = subprocess.run([ROOT / "tools/build"], capture_output=True, text=True, check=False,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "BUILD": str(tmp_path / "build"), "PREFIX": prefix})
        assert done.returncode == 0, done
        return [line for line in done.stdout.splitlines() if "again" in line]

    assert not build("/opt/space-test/")
    (line,) = build("/opt/elsewhere")
    assert "/opt/elsewhere" in line and "/opt/space-test" in line
    assert not build("/opt/elsewhere")


def run_uninstall(**variables):
    return subprocess.run([ROOT / "tools/uninstall"], capture_output=True, text=True, check=False, env={
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **{name: str(value) for name, value in variables.items()}})


def uninstall(**variables):
    done = run_uninstall(**variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def staged(build, tmp_path):
    done = install(build, "/opt/space-test", tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_installing_again_leaves_files_alone_and_drops_what_is_no_more(build, staged):
    share = staged / "opt/space-test/share/space"
    manifest = share / "manifest"
    before = {name: (staged / name).stat().st_ino for name in files(staged)}
    old = share / "of-an-earlier-version"
    old.touch()
    with manifest.open("a", encoding="ascii") as more:
        more.write(f"/opt/space-test/share/space/{old.name}\n")
    assert install(build, "/opt/space-test", staged).returncode == 0
    after = {name: (staged / name).stat().st_ino for name in files(staged)}
    assert not old.exists() and before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} <= {str(manifest.relative_to(staged))}


def test_uninstall_takes_its_own_files_and_no_others(staged):
    kept = staged / "opt/space-test/bin/of-somebody-else"
    kept.parent.mkdir(exist_ok=True)
    kept.touch()
    uninstall(PREFIX="/opt/space-test", DESTDIR=staged)
    assert files(staged) == {str(kept.relative_to(staged))}
    assert not (staged / "opt/space-test/share/space").exists()


@pytest.fixture
def two(staged):
    """Programs of a prefix, the data of an installation, and what starts a daemon of a prefix."""
    top = WORK / "uninstall-two"
    machine.output("rm", "-rf", str(top))
    top.mkdir(parents=True)
    prefix = top / "usr"
    machine.output("cp", "-a", str(staged / "opt/space-test"), str(prefix))
    manifest = prefix / "share/space/manifest"
    manifest.write_text(manifest.read_text(encoding="ascii").replace("/opt/space-test/", f"{prefix}/"), encoding="ascii")
    (top / "data").mkdir()
    config = top / "second.conf"
    config.write_text(f"installation = spu2\nadmin_key_file = {top}/key\n" +
                      "".join(f"{name}_dir = {top}/{name}\n" for name in ("data", "run", "log")), encoding="ascii")
    started = []

    def start(below, settings):
        program = below / "libexec/space/space-node"
        program.parent.mkdir(parents=True, exist_ok=True)
        machine.output("cp", "/bin/dash", str(program))
        started.append(subprocess.Popen([program, "-c", "echo up; read x", "space-node", "--config", str(settings)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        started[-1].stdout.readline()

    yield top, prefix, config, start
    for child in started:
        child.kill()
        child.wait()
    machine.output("rm", "-rf", str(top))


def test_uninstall_does_not_take_the_programs_of_another_installation(two):
    top, prefix, _, start = two
    start(prefix, top / "other.conf")
    done = run_uninstall(PREFIX=prefix)
    assert done.returncode != 0 and f"{top}/other.conf" in done.stderr and "space down --config" in done.stderr
    assert (prefix / "share/space/one.txt").exists()


def test_a_second_installation_is_removed_alone(two):
    top, prefix, config, start = two
    start(prefix, top / "other.conf")
    said = uninstall(PREFIX=prefix, CONFIG=config, PURGE="yes")
    assert f"kept: the programs below {prefix}, which {top}/other.conf uses" in said
    assert (prefix / "share/space/one.txt").exists() and not config.exists() and not (top / "data").exists()


def test_another_prefix_is_removed_without_the_installation(two):
    top, prefix, config, start = two
    start(top / "elsewhere", config)
    done = run_uninstall(PREFIX=prefix, CONFIG=config, PURGE="yes")
    assert done.returncode == 0 and f"run from {top}/elsewhere" in done.stderr
    assert config.exists() and (top / "data").exists()
    assert not prefix.exists(), "no empty directories"


def test_uninstall_keeps_data_unless_purged(staged):
    top = WORK / "uninstall"
    machine.output("rm", "-rf", str(top))
    (top / "etc").mkdir(parents=True)
    try:
        prefix = top / "usr"
        machine.output("cp", "-a", str(staged / "opt/space-test"), str(prefix))
        manifest = prefix / "share/space/manifest"
        manifest.write_text(manifest.read_text(encoding="ascii").replace("/opt/space-test/", f"{prefix}/"), encoding="ascii")
        data = {name: top / name for name in ("data", "run", "log")}
        for path in data.values():
            path.mkdir()
            (path / "precious").touch()
        config, key = top / "etc/space.conf", top / "etc/admin.key"
        key.touch()
        config.write_text(f"installation = spui\nadmin_key_file = {key}\n" +
                          "".join(f"{name}_dir = {path}\n" for name, path in data.items()), encoding="ascii")

        said = uninstall(PREFIX=prefix, CONFIG=config)
        assert f"kept: {data['data']}" in said and "PURGE=yes" in said
        assert not files(prefix)
        assert all((path / "precious").exists() for path in data.values()) and key.exists() and config.exists()

        uninstall(PREFIX=prefix, CONFIG=config, PURGE="yes")
        again = run_uninstall(PREFIX=prefix, CONFIG=config, PURGE="yes")
        assert again.returncode != 0 and f"there is no {config}" in again.stderr, "not the default's directories"
        assert not any(path.exists() for path in (*data.values(), key, config))
    finally:
        machine.output("rm", "-rf", str(top))
