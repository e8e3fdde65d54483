"""`space cp` against a stand-in of the API, whose sandboxes have a directory of this machine as their files."""

import hashlib
import io
import json
import os
import pty
import re
import signal
import stat
import subprocess
import tarfile
import time

import pytest

import fake_api
from harness.installation import space_binary


@pytest.fixture
def api(tmp_path):
    made = fake_api.FakeApi()
    made.root = tmp_path / "guest"
    made.root.mkdir()
    made.create({"template": "base", "name": "box"})
    yield made
    made.close()


@pytest.fixture
def guest(api):
    return api.root


@pytest.fixture
def here(tmp_path):
    made = tmp_path / "here"
    made.mkdir()
    return made


@pytest.fixture
def env(api, tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SPACE_")}
    return {**clean, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg"), "SPACE_URL": api.url,
            "SPACE_API_KEY": api.key, "LC_ALL": "C"}


@pytest.fixture
def cp(env, here):
    def run(*arguments, **more):
        more.setdefault("text", True)
        return subprocess.run([space_binary(), "cp", *map(str, arguments)], env=env, cwd=here, capture_output=True,
                              check=False, timeout=120, **more)
    return run


def tree(top):
    """What a tree is: kinds, modes, contents, targets of links."""
    found = {}
    for root, dirs, files in os.walk(top):
        for name in dirs + files:
            path = os.path.join(root, name)
            st = os.lstat(path)
            key = os.path.relpath(path, top)
            if stat.S_ISLNK(st.st_mode):
                found[key] = ("link", os.readlink(path))
            elif stat.S_ISDIR(st.st_mode):
                found[key] = ("dir", st.st_mode & 0o777)
            else:
                with open(path, "rb") as file:
                    found[key] = ("file", st.st_mode & 0o777, int(st.st_mtime), hashlib.sha256(file.read()).hexdigest())
    return found


def make_tree(top):
    (top / "sub/deep").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "a.txt").write_text("hello", encoding="ascii")
    (top / "sub/run").write_bytes(os.urandom(300_000))
    (top / "sub/run").chmod(0o751)
    (top / "sub/deep/new\nline").write_text("x", encoding="ascii")
    (top / "sub/deep/\u00e4\u20ac").write_text("unicode", encoding="ascii")
    os.symlink("../a.txt", top / "sub/link")
    os.symlink("/nonexistent/target", top / "dangling")
    os.symlink("sub", top / "dirlink")
    os.utime(top / "a.txt", (10**9, 10**9))
    (top / "sub/deep").chmod(0o700)
    return tree(top)


# ---- files ----

def test_a_file_goes_in_and_comes_out(cp, here, guest):
    data = os.urandom(3_000_000)
    (here / "f").write_bytes(data)
    (here / "f").chmod(0o640)
    assert cp("f", "box:/in").returncode == 0
    assert (guest / "in").read_bytes() == data and stat.S_IMODE((guest / "in").stat().st_mode) == 0o640
    os.utime(guest / "in", (10**9, 10**9))
    done = cp("box:/in", "back")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    back = (here / "back").stat()
    assert (here / "back").read_bytes() == data and stat.S_IMODE(back.st_mode) == 0o640 and back.st_mtime == 10**9


def test_into_a_directory_a_file_keeps_its_name(cp, here, guest):
    (guest / "dir").mkdir()
    (here / "f").write_text("1", encoding="ascii")
    for target in ("box:/dir", "box:/dir/", "box:dir"):
        assert cp("f", target).returncode == 0
        assert (guest / "dir/f").read_text(encoding="ascii") == "1"
        (guest / "dir/f").unlink()
    os.symlink("dir", guest / "link")
    assert cp("f", "box:/link").returncode == 0 and (guest / "dir/f").exists()
    (here / "local").mkdir()
    for target in ("local", "local/", "."):
        assert cp("box:/dir/f", target).returncode == 0
    assert (here / "local/f").read_text(encoding="ascii") == "1"


def test_what_is_missing_is_said(cp, here, guest):
    (here / "f").write_text("1", encoding="ascii")
    done = cp("f", "box:/nodir/")
    assert done.returncode == 1 and "there is no directory /nodir/" in done.stderr
    done = cp("box:/nothing", ".")
    assert done.returncode == 1 and "there is no /nothing in the sandbox" in done.stderr
    done = cp("nothing", "box:/x")
    assert done.returncode == 1 and "nothing: No such file" in done.stderr
    done = cp("f", "nosuch:/x")
    assert done.returncode == 1 and "not_found" in done.stderr
    (guest / "f").write_text("1", encoding="ascii")
    assert cp("box:/f", "nodir/").returncode == 1 and not (here / "nodir").exists()


@pytest.mark.parametrize("words", [("a", "b"), ("box:/a", "box:/b"), ("box:/a",), ("-", "-")])
def test_usage(cp, words):
    assert cp(*words).returncode == 2


def test_local_names_with_colons(cp, here, guest):
    (here / "a:b").write_text("1", encoding="ascii")
    assert cp("./a:b", "box:/c:d").returncode == 0 and (guest / "c:d").exists()


def test_a_cut_download_leaves_nothing(cp, here, guest, api):
    (guest / "f").write_bytes(os.urandom(1_000_000))
    (here / "f").write_text("before", encoding="ascii")
    api.faults["cut_download"] = 1
    assert cp("box:/f", "f").returncode in (1, 3)
    assert (here / "f").read_text(encoding="ascii") == "before" and os.listdir(here) == ["f"]


def test_a_device_that_was_named_is_written_to(cp, guest):
    (guest / "f").write_text("1", encoding="ascii")
    assert cp("box:/f", "/dev/null").returncode == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_link_that_the_user_named_is_followed_one_in_a_directory_is_not(cp, here, guest):
    (guest / "f").write_text("new", encoding="ascii")
    (here / "d").mkdir()
    (here / "real").write_text("old", encoding="ascii")
    os.symlink("real", here / "typed")
    assert cp("box:/f", "typed").returncode == 0
    assert (here / "real").read_text(encoding="ascii") == "new" and (here / "typed").is_symlink()


# ---- trees ----

def test_a_tree_goes_in_and_comes_out(cp, here, guest):
    want = make_tree(here / "src")
    assert cp("src", "box:/copy").returncode == 0
    assert tree(guest / "copy") == want
    done = cp("box:/copy", "back")
    assert (done.returncode, done.stderr) == (0, "")
    assert tree(here / "back") == want


def test_a_tree_into_a_directory_that_exists(cp, here, guest):
    want = make_tree(here / "src")
    (guest / "dir").mkdir()
    assert cp("src", "box:/dir").returncode == 0 and tree(guest / "dir/src") == want
    assert cp("src/.", "box:/dir").returncode == 0 and (guest / "dir/a.txt").exists()
    (here / "dir").mkdir()
    assert cp("box:/dir/src", "dir").returncode == 0 and tree(here / "dir/src") == want
    assert cp("box:/dir/src/.", "dir").returncode == 0 and (here / "dir/a.txt").exists()
    assert cp("box:/dir/src", "dir").returncode == 0 and tree(here / "dir/src") == want  # over itself
    (here / "file").write_text("", encoding="ascii")
    (guest / "file").write_text("", encoding="ascii")
    assert cp("src", "box:/file").returncode == 1 and cp("box:/dir", "file").returncode == 1


def test_links_are_links(cp, here, guest):
    os.symlink("/etc/passwd", here / "l")
    assert cp("l", "box:/l2").returncode == 0 and os.readlink(guest / "l2") == "/etc/passwd"
    (guest / "dir").mkdir()
    assert cp("l", "box:/dir").returncode == 0 and os.readlink(guest / "dir/l") == "/etc/passwd"
    assert cp("box:/l2", "back").returncode == 0 and os.readlink(here / "back") == "/etc/passwd"
    assert cp("box:/l2", ".").returncode == 0 and os.readlink(here / "l2") == "/etc/passwd"


def test_what_cannot_be_copied_is_left_out_and_said(cp, here, guest):
    (here / "src").mkdir()
    os.mkfifo(here / "src/pipe")
    (here / "src/a").write_text("1", encoding="ascii")
    done = cp("src", "box:/copy")
    assert done.returncode == 1 and "left out pipe" in done.stderr and (guest / "copy/a").exists()
    os.mkfifo(guest / "copy/pipe2")
    done = cp("box:/copy", "back")
    assert done.returncode == 1 and "left out pipe2" in done.stderr and (here / "back/a").exists()


def test_sparse_and_large(cp, here, guest):
    with open(here / "big", "wb") as file:
        file.truncate(200 << 20)
        file.seek(100 << 20)
        file.write(b"middle")
    child = subprocess.run(["true"], check=True)
    assert child.returncode == 0
    assert cp("big", "box:/big").returncode == 0
    assert (guest / "big").stat().st_size == 200 << 20
    assert cp("box:/big", "back").returncode == 0
    assert subprocess.run(["cmp", here / "big", here / "back"], check=False).returncode == 0


@pytest.mark.long
def test_memory_is_constant(env, here, guest):
    (guest / "t").mkdir()
    (guest / "t/f").write_bytes(os.urandom(1 << 20) * 60)
    for words in (("box:/t", "out"), ("out", "box:/t2"), ("box:/t/f", "single"), ("single", "box:/f2")):
        child = subprocess.Popen([space_binary(), "cp", *words], env=env, cwd=here)
        peak = 0
        while child.poll() is None:
            with open(f"/proc/{child.pid}/status", encoding="ascii") as status:
                peak = max([peak] + [int(line.split()[1]) for line in status if line.startswith("VmHWM")])
            time.sleep(0.002)
        assert child.returncode == 0 and 0 < peak < 30_000, (words, peak)  # of 60 MB
    assert (guest / "t2/f").stat().st_size == (guest / "f2").stat().st_size == 60 << 20


# ---- streams ----

def test_a_tree_as_an_archive(cp, here, guest):
    want = make_tree(guest / "src")
    done = cp("box:/src", "-", text=False)
    assert done.returncode == 0, done.stderr
    (here / "x").mkdir()
    subprocess.run(["tar", "xpf", "-", "-C", here / "x"], input=done.stdout, check=True)
    assert os.listdir(here / "x") == ["src"] and tree(here / "x/src") == want
    done = cp("box:/src/.", "-", text=False)
    (here / "y").mkdir()
    subprocess.run(["tar", "xpf", "-", "-C", here / "y"], input=done.stdout, check=True)
    assert tree(here / "y") == want
    done = cp("box:/src/a.txt", "-", text=False)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        assert archive.getnames() == ["a.txt"] and archive.extractfile("a.txt").read() == b"hello"
    done = cp("box:/src/dangling", "-", text=False)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        assert archive.getmember("dangling").linkname == "/nonexistent/target"


def test_an_archive_goes_in(cp, here, guest):
    want = make_tree(here / "src")
    packed = subprocess.run(["tar", "cf", "-", "-C", here, "src"], check=True, capture_output=True).stdout
    assert cp("-", "box:/in", input=packed, text=False).returncode == 0
    assert tree(guest / "in/src") == want


# ---- a hostile guest ----

def evil(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind, value in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o6777
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                info.linkname = value
            elif kind == tarfile.REGTYPE:
                info.size = len(value)
            archive.addfile(info, io.BytesIO(value if kind == tarfile.REGTYPE else b""))
    return out.getvalue()


FILE, LINK, HARD, DIR = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
ATTACKS = {
    "absolute": [("/{outside}/planted", FILE, b"x")],
    "up": [("../planted", FILE, b"x")],
    "up in the middle": [("a/../../planted", FILE, b"x")],
    "through a link": [("l", LINK, "{outside}"), ("l/planted", FILE, b"x")],
    "through a link to a link": [("a", LINK, "."), ("a/b", LINK, "{outside}"), ("a/b/planted", FILE, b"x")],
    "through a link that becomes a directory": [("l", LINK, "{outside}"), ("l", DIR, None), ("l/planted", FILE, b"x")],
    "onto a link": [("victim", LINK, "{outside}/victim"), ("victim", FILE, b"overwritten")],
    "hard link out": [("h", HARD, "../outside/victim"), ("h", FILE, b"overwritten")],
    "hard link absolute": [("h", HARD, "{outside}/victim"), ("h", FILE, b"overwritten")],
    "hard link through a link": [("l", LINK, "{outside}"), ("h", HARD, "l/victim"), ("h", FILE, b"overwritten")],
    "hard link to a link": [("l", LINK, "{outside}/victim"), ("h", HARD, "l"), ("h", FILE, b"overwritten")],
    "hard link to a file of the user": [("h", HARD, "mine"), ("h", FILE, b"overwritten")],
    "the top is a link": [(".", LINK, "{outside}"), ("planted", FILE, b"x")],
    "devices": [("null", tarfile.CHRTYPE, None), ("disk", tarfile.BLKTYPE, None)],
}


@pytest.mark.parametrize("members", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("way", ["tree", "stream"])
def test_a_hostile_archive_changes_nothing_outside(cp, here, guest, api, members, way):
    outside = here / "outside"
    outside.mkdir()
    (outside / "victim").write_text("untouched", encoding="ascii")
    (here / "target").mkdir()
    (here / "target/mine").write_text("mine", encoding="ascii")
    (guest / "t").mkdir()
    api.evil_tar = evil(*((name.format(outside=outside).replace("//", "/"), kind,
                           value.format(outside=outside) if isinstance(value, str) else value) for name, kind, value in members))
    if way == "tree":
        cp("box:/t/.", "target")
    else:
        done = cp("box:/t/.", "-", text=False)
        for member in tarfile.open(fileobj=io.BytesIO(done.stdout)) if done.returncode == 0 else ():
            assert not member.name.startswith("/") and ".." not in member.name.split("/") and not member.isdev()
    assert os.listdir(outside) == ["victim"] and (outside / "victim").read_text(encoding="ascii") == "untouched"
    assert sorted(os.listdir(here)) == ["outside", "target"]
    assert (here / "target/mine").read_text(encoding="ascii") == "mine"
    for root, _, files in os.walk(here / "target"):
        for name in files:
            st = os.lstat(os.path.join(root, name))
            assert not st.st_mode & 0o6000 and not name.startswith(".space-")


def test_a_link_of_an_earlier_copy_is_not_entered(cp, here, guest):
    (here / "outside").mkdir()
    (guest / "work").mkdir()
    (guest / "work/planted").write_text("x", encoding="ascii")
    os.symlink("outside", here / "work")  # as an earlier copy could have left it
    done = cp("box:/work", ".")
    assert done.returncode == 1 and not os.listdir(here / "outside")


def test_no_setuid_comes_out(cp, here, guest):
    (guest / "f").write_text("x", encoding="ascii")
    (guest / "f").chmod(0o6755)
    assert cp("box:/f", "f").returncode == 0 and stat.S_IMODE((here / "f").stat().st_mode) == 0o755


def test_an_archive_that_is_none(cp, here, guest, api):
    (guest / "t").mkdir()
    for data in (b"no archive at all" * 100, os.urandom(5000), evil(("a", FILE, b"x" * 200_000))[:100_000]):
        api.evil_tar = data
        assert cp("box:/t", "out").returncode == 1
        assert not (here / "out").exists(), "the next copy would go into it"


def test_a_cut_tree_is_an_error(cp, here, guest, api):
    (guest / "t").mkdir()
    (guest / "t/f").write_bytes(os.urandom(400_000))
    api.faults["cut_download"] = 1
    done = cp("box:/t", "out")
    assert done.returncode in (1, 3) and not (here / "out/f").exists()


# ---- manners ----

def test_progress_on_a_terminal_only(env, here, guest):
    (guest / "f").write_bytes(b"x" * 1000)
    master, slave = pty.openpty()
    done = subprocess.run([space_binary(), "cp", "box:/f", "f"], env=env, cwd=here, stderr=slave, stdout=subprocess.PIPE,
                          check=False)
    assert done.returncode == 0 and done.stdout == b"" and b"copied 1000 B" in os.read(master, 1000)
    os.close(slave)
    os.close(master)


def test_a_bar_grows_on_a_terminal_and_goes(env, here, guest, api):
    (guest / "f").write_bytes(b"x" * 1_200_000)
    api.faults["slow_download"] = 1
    master, slave = pty.openpty()
    child = subprocess.Popen([space_binary(), "cp", "box:/f", "f"], env=env, cwd=here, stderr=slave, stdin=slave, stdout=subprocess.PIPE)
    os.close(slave)
    seen = b""
    try:
        while piece := os.read(master, 4096):
            seen += piece
    except OSError:
        pass  # the terminal's other end is closed
    os.close(master)
    assert child.wait(60) == 0 and child.stdout.read() == b"" and (here / "f").stat().st_size == 1_200_000
    lines = seen.split(b"\r\x1b[K")
    # Nothing but bars on one line that is written anew, then it is cleared for the last word.
    assert lines[0] == b"" and re.fullmatch(rb"copied 1\.\d MiB in \d\.\d s\r\n", lines[-1]), lines
    shown = [re.fullmatch(rb"\S*f [0-9.]+ [KM]?i?B(?:, [0-9.]+ [KM]?i?B/s)? \[(#*)(\.*)\] +(\d+) %", line) for line in lines[1:-1]]
    assert len(shown) >= 3 and all(shown), lines
    percents = [int(one[3]) for one in shown]
    assert percents == sorted(percents) and percents[0] < 80 and percents[-1] > percents[0], percents
    for one in shown:
        assert len(one[1]) + len(one[2]) == 20 and abs(len(one[1]) - int(one[3]) / 5) <= 1, one[0]


def test_json(cp, here, guest):
    (here / "f").write_text("abc", encoding="ascii")
    assert json.loads(cp("--json", "f", "box:/f").stdout)["size_bytes"] == 3


def test_ctrl_c_leaves_no_half_file(env, here, api):
    os.mkfifo(here / "slow")
    child = subprocess.Popen([space_binary(), "cp", "-", "box:/x"], env=env, cwd=here, stdin=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    api.wait_for(lambda: any("PUT" == m for m, *_ in api.requests) or child.poll() is not None or
                 int(next(line.split()[1] for line in open(f"/proc/{child.pid}/status", encoding="ascii")
                          if line.startswith("SigBlk")), 16) & 2)
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    child.stdin.close()
