"""Commands as a user types them. In this process, because importing torch takes longer than most commands do;
a few tests (tests/e2e, tests/data/build/test_faults.py, `in_a_process`) start real ones.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from limerank.cli import main


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def limerank(*arguments: str | Path, cwd: Path | None = None) -> Done:
    """The real command, through its real entry point."""
    out, err = io.StringIO(), io.StringIO()
    before, threads, code = sys.argv, torch.get_num_threads(), 0
    sys.argv = ["limerank", *map(str, arguments)]
    try:
        with redirect_stdout(out), redirect_stderr(err), chdir(cwd) if cwd else nullcontext():
            main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.argv = before
        torch.set_num_threads(threads)
    return Done(code, out.getvalue(), err.getvalue())


def in_a_process(*arguments: str | Path) -> Done:
    """The same in a process of its own."""
    return python("-m", "limerank", *arguments)


def python(
    *arguments: str | Path,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
    seconds: float = 300,
) -> Done:
    """A script or module as somebody at a prompt starts it, on one thread; so many seconds are too many."""
    command = [sys.executable, *map(str, arguments)]
    environment = {
        **os.environ,
        "NO_COLOR": "1",
        "COLUMNS": "160",
        "OMP_NUM_THREADS": "1",
        "NO_MKDOCS_2_WARNING": "1",  # the theme of the docs advertises
        **(variables or {}),
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=seconds, cwd=cwd)
    return Done(done.returncode, done.stdout, done.stderr)


def answer(*arguments: str | Path, cwd: Path | None = None) -> dict[str, Any]:
    """The JSON object of a command that succeeds."""
    done = limerank(*arguments, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def refusal(code: int, *arguments: str | Path) -> str:
    """What a command says when it refuses with this exit code."""
    done = limerank(*arguments)
    assert done.returncode == code, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stderr
