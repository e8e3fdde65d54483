"""What the set-up scripts share (tools/setup/lib.sh)."""

import signal
import subprocess

from harness.installation import ROOT

# One with a directory of its own and a file there, which says where it is and ends when its input does.
RUN = f"set -euo pipefail; . {ROOT}/tools/setup/lib.sh; setup_begin one; setup_tmpdir \"$1\"; touch \"$setup_tmp/file\"; echo \"$setup_tmp\"; read -r line || true"


def start(parent):
    run = subprocess.Popen(["bash", "-c", RUN, "bash", str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return run, run.stdout.readline().strip()


def left(parent):
    return sorted(str(path.parent) for path in parent.rglob("file"))


def names(parent):
    return [path.name for path in parent.iterdir()]


def test_who_can_look_into_the_directory_cannot_hold_it_up(tmp_path):
    holder = subprocess.Popen(["flock", str(tmp_path), "sh", "-c", "echo held; read -r line"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    run, its = start(tmp_path)
    assert left(tmp_path) == [its] and (tmp_path / ".tmp-lock").stat().st_mode & 0o777 == 0o600
    run.communicate("\n")
    holder.communicate("\n")
    assert run.returncode == 0


def test_two_runs_at_once_leave_each_other_their_directories(tmp_path):
    first, its = start(tmp_path)
    second, other = start(tmp_path)
    assert its != other and left(tmp_path) == sorted((its, other))
    first.communicate("\n")
    assert first.returncode == 0 and left(tmp_path) == [other]
    second.communicate("\n")
    assert second.returncode == 0 and names(tmp_path) == [".tmp-lock"]


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path):
    killed, its = start(tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert left(tmp_path) == [its]
    run, other = start(tmp_path)
    assert left(tmp_path) == [other]
    run.communicate("\n")
    assert run.returncode == 0


def test_what_takes_long_to_remove_is_said(tmp_path):
    """With an `rm` that waits until it was said; another says nothing."""
    slow, parent = tmp_path / "bin/rm", tmp_path / "parent"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.05; done\nexec /bin/rm "$@"\n', encoding="ascii")
    slow.chmod(0o755)
    run = subprocess.Popen(["bash", "-c", RUN, "bash", str(parent)], env={"PATH": f"{slow.parent}:/usr/bin:/bin"}, text=True,
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    run.stdout.readline()
    run.stdin.close()
    assert "removing temporary files" in run.stdout.readline() and left(parent) != []
    (tmp_path / "go").touch()
    assert "temporary files removed" in run.stdout.read() and run.wait(60) == 0 and names(parent) == [".tmp-lock"]
    quick, _ = start(parent)
    assert quick.communicate("\n")[0] == "" and names(parent) == [".tmp-lock"]
