"""Which revision of limerank is running, when it runs from a checkout of its repository."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import limerank

SECONDS = 10  # a repository on a slow disk is not worth waiting for
CHANGED = "-changed"


def revision(root: Path | None = None) -> str | None:
    """The commit of the checkout that limerank runs from, `-changed` if files that git knows differ from it.

    None for an installed package, or where git cannot tell. `root` is the folder of the checkout.
    """
    root = root or Path(limerank.__file__).parents[2]
    git = shutil.which("git")
    if git is None or not (root / ".git").exists() or not (root / "src" / "limerank").is_dir():
        return None  # a package inside of somebody else's repository is not that repository
    commit = _said(git, root, "rev-parse", "HEAD")
    if not commit:
        return None
    changed = _said(git, root, "status", "--porcelain", "--untracked-files=no", "--", "src")
    return commit + (CHANGED if changed else "")


def _said(git: str, root: Path, *arguments: str) -> str | None:
    command = [git, "--no-optional-locks", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)  # noqa: S603 (fixed arguments)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
