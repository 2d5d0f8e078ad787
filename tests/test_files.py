"""Directories appear whole or not at all, and nobody else's is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from limerank.errors import ConflictError
from limerank.files import joined, staged_directory


def publish(final: Path, text: str, *, overwrite: bool = False) -> None:
    with staged_directory(final, marker="mark", overwrite=overwrite) as staging:
        (staging / "mark").write_text(text)


def test_replace_only_what_is_ours(tmp_path: Path) -> None:
    final = tmp_path / "d"
    publish(final, "one")
    with pytest.raises(ConflictError, match="exists already"):
        publish(final, "two")
    publish(final, "two", overwrite=True)
    assert (final / "mark").read_text() == "two"
    (final / "mark").rename(final / "other")
    with pytest.raises(ConflictError, match="not ours to replace"):
        publish(final, "three", overwrite=True)
    assert (final / "other").read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_a_failure_while_writing_changes_nothing(tmp_path: Path) -> None:
    publish(tmp_path / "d", "one")
    with pytest.raises(RuntimeError, match="broken"), staged_directory(tmp_path / "d", marker="mark", overwrite=True):
        raise RuntimeError("broken")
    assert (tmp_path / "d" / "mark").read_text() == "one"
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_a_failed_swap_puts_the_old_one_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path / "d", "one")
    rename = Path.rename

    def refuse_the_new_one(self: Path, target: Path) -> Path:
        if self.name.startswith("d.staging") and not self.name.endswith("-old"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new_one)
    with pytest.raises(OSError, match="Input/output error"):
        publish(tmp_path / "d", "two", overwrite=True)
    assert (tmp_path / "d" / "mark").read_text() == "one"
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_the_current_directory_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("x")
    with pytest.raises(ConflictError, match="not ours"):
        publish(Path(), "one", overwrite=True)


def test_a_path_is_shown_the_short_way_unless_a_link_leads_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/x", "datasets/y", "other/runs", "other/datasets/y"):
        Path(folder).mkdir(parents=True)
    assert joined(Path("runs/x"), Path("../../datasets/y")) == Path("datasets/y")
    assert joined(Path("runs/x"), Path("../../nowhere")) == Path("nowhere")
    assert joined(Path(), Path("./datasets/../runs")) == Path("runs")
    assert joined(Path("runs"), tmp_path / "datasets") == tmp_path / "datasets"
    Path("linked").symlink_to(tmp_path / "other/runs")
    detour = joined(Path("linked"), Path("../datasets/y"))
    assert detour.samefile("other/datasets/y")
    Path("other/datasets/y").rmdir()
    assert joined(Path("linked"), Path("../datasets/y")) == Path("datasets/y")
