"""The scripts of examples/ run as somebody who tries them would run them."""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import python

SCRIPTS = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_examples_run(script: Path, tmp_path: Path) -> None:
    """They write below the folder they are given and nowhere else."""
    here, out = tmp_path / "here", tmp_path / "out"
    here.mkdir()
    done = python(script, out, cwd=here)
    assert done.returncode == 0, done.stderr
    assert f"everything is in {out}" in done.stdout
    assert not list(here.iterdir())
