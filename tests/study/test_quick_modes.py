"""Every study shows in its quick mode that it works, from nothing to a page, with no option but where to put it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from calling import in_a_process

from limerank.study.pages import open_result


@pytest.mark.parametrize("study", ["accuracy", "latency", "spectrum", "scaling", "ablation", "complexity"])
def test_a_quick_mode_needs_nothing(study: str, tmp_path: Path) -> None:
    """Logs that it draws itself, trainings, figures, and a page that is made of the file alone."""
    done = in_a_process("study", study, "--quick", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    written = tmp_path / "quick" / f"{study}.json"
    assert json.loads(written.read_text())["made"]["quick"]
    assert open_result(written).result.study == study
    assert "</html>" in written.with_suffix(".html").read_text()
