"""Commands of the documentation, done as they stand there, with the paths of another installation."""

import os
import re
import subprocess

from .installation import space_binary
from .spec import ROOT


def section(page, title):
    """The text below a heading of docs/PAGE."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found


def blocks(page, title):
    """Its code blocks."""
    return re.findall(r"^```\n(.*?)^```$", section(page, title), re.MULTILINE | re.DOTALL)


def inline(page, title):
    """Its commands between back quotes."""
    return re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", section(page, title), flags=re.MULTILINE | re.DOTALL))


def with_paths(script, paths):
    """The script with other paths: each is replaced where it stands, the longest first."""
    pattern = "|".join(re.escape(path) for path in sorted(paths, key=len, reverse=True))
    return re.sub(pattern, lambda match: str(paths[match.group()]), script)


def run(script, paths, config):
    """Does what a reader does who pastes it into a shell."""
    script = with_paths(script, paths)
    folder = os.path.dirname(space_binary())
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=False, timeout=300,
                          env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SPACE_CONFIG": str(config)})
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout
