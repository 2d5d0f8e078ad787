"""What a run records: times per stage, revision, curves of any version, and its page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import limerank as lr
from limerank.training.records.curves import read_curves, read_line
from limerank.training.records.page import report_of, write_report
from limerank.training.records.revision import revision
from limerank.training.records.stages import StageTimes
from limerank.training.run import FinishedRun

NEW_FIELDS = {
    "started",
    "finished",
    "revision",
    "steps",
    "stage_seconds",
    "rows_per_second",
    "device",
    "deterministic",
}


def test_stages_inside_others_are_taken_out_of_them() -> None:
    """The sum of the stages is the time that passed inside of them, and each stage comes once."""
    times = StageTimes(before={"training": 10.0})
    started = time.perf_counter()
    for _ in range(2):
        with times.stage("training"):
            time.sleep(0.01)
            with times.stage("validating"):
                time.sleep(0.02)
    with pytest.raises(ValueError, match="stop"), times.stage("testing"):
        raise ValueError("stop")
    passed = time.perf_counter() - started
    seconds = times.seconds
    assert list(seconds) == ["training", "validating", "testing"]
    assert seconds["training"] >= 10.02
    assert seconds["validating"] >= 0.04
    assert 10.0599 <= sum(seconds.values()) <= 10 + passed + 0.002  # each is rounded to the millisecond
    with times.stage("saving"):
        assert times.seconds["saving"] >= 0
        assert times.seconds["training"] == seconds["training"]


def test_the_revision_is_that_of_the_checkout(tmp_path: Path) -> None:
    """The commit, whether files differ from it, and nothing for a package that is not a checkout of its own."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    source = tmp_path / "src" / "limerank"
    source.mkdir(parents=True)
    (source / "a.py").write_text("a = 1\n")
    assert revision(tmp_path) is None
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert revision(tmp_path) == commit
    (source / "a.py").write_text("a = 2\n")
    assert revision(tmp_path) == f"{commit}-changed"
    shutil.rmtree(source)
    assert revision(tmp_path) is None


def test_a_training_records_when_with_what_and_how_fast(runs: dict[str, lr.Run]) -> None:
    run = runs["ttsn"]
    record = run.record
    assert record.started is not None
    assert record.finished is not None
    assert record.started <= record.finished
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", record.finished)
    assert list(record.stage_seconds) == ["loading", "building", "training", "validating", "saving", "testing"]
    assert record.steps == record.epochs * -(-len(run.dataset().requests_in(lr.Part.TRAIN)) // 32)
    assert record.rows_per_second
    assert (record.device, record.deterministic) == ("cpu", False)


def test_records_of_older_versions_load_and_have_a_page(runs: dict[str, lr.Run], tmp_path: Path) -> None:
    """A run.json without any of the new fields, as version 0.2.0 wrote it."""
    old = copied(runs["ttsn"], tmp_path)
    values = json.loads((old / "run.json").read_text())
    assert values.keys() >= NEW_FIELDS
    (old / "run.json").write_text(json.dumps({key: values[key] for key in values.keys() - NEW_FIELDS}))
    run = FinishedRun.open(old)
    assert run.record.stage_seconds == {}
    assert "training" in report_of(run).html()


def test_lines_of_any_version_are_read_and_half_a_line_is_counted(tmp_path: Path) -> None:
    metrics = {"click": {"auc": 0.7, "ne": 0.9}}
    lines = [
        {"epoch": 1, "train_loss": 0.6, "validation": metrics},
        {"kind": "step", "step": 5, "seconds": 1.5, "train_loss": 0.5, "learning_rate": 1e-3, "rows_per_second": 9.0},
        {"kind": "progressive", "step": 6, "seconds": 2.0, "until_time": 1000, "progressive": metrics},
        {"kind": "epoch", "epoch": 2, "step": 8, "seconds": 3.0, "train_loss": 0.4, "validation": metrics},
        {"kind": "of a later version", "step": 9},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"kind": "ste')
    curves = read_curves(path)
    assert [line.epoch for line in curves.epochs] == [1, 2]
    assert [line.step for line in curves.epochs] == [None, 8]
    assert (curves.steps[0].step, curves.steps[0].learning_rate) == (5, 1e-3)
    assert (curves.windows[0].until_time, curves.windows[0].metrics) == (1000, metrics)
    assert curves.unreadable == 2
    assert curves.tasks == ["click"]
    assert read_curves(tmp_path / "nowhere").epochs == ()


@pytest.mark.parametrize("inside", [None, 3, "text", [1], {"click": 3}, {"click": None}, [["click", {}]]])
@pytest.mark.parametrize(("kind", "key"), [("epoch", "validation"), ("progressive", "progressive"), ("step", "step")])
def test_lines_that_hold_something_else_are_no_lines(kind: str, key: str, inside: object) -> None:
    """Half-written or foreign values never stop the reading."""
    line = read_line(json.dumps({"kind": kind, "step": 1, "epoch": 1, key: inside}))
    assert line is None or (kind, inside) == ("step", 3)


@given(st.text(max_size=30))
def test_no_text_can_stop_the_reading(line: str) -> None:
    assert read_line(line) is None


class Outline(HTMLParser):
    """What a reader of the page finds: headings, figures, what is inside of them, and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.figures: list[set[str]] = []
        self.addresses: list[str] = []
        self.labels: list[str] = []
        self.inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.inside.append(tag)
        if tag == "figure":
            self.figures.append(set())
        elif "figure" in self.inside:
            self.figures[-1].add(tag)
        if tag == "svg" and named.get("role") == "img":
            self.labels.append(named.get("aria-label") or "")
        self.addresses += [named[key] or "" for key in ("src", "href", "xlink:href") if key in named]

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.inside and self.inside[-1] == "h2":
            self.headings.append(data)


def copied(run: FinishedRun, folder: Path, name: str = "copy") -> Path:
    """A run folder of our own, to change."""
    return Path(shutil.copytree(run.path, folder / name))


def outline_of(html: str) -> Outline:
    outline = Outline()
    outline.feed(html)
    return outline


def test_every_run_has_a_page_that_needs_nothing_else(runs: dict[str, lr.Run]) -> None:
    """No address, a table in every figure, every picture described; the numbers are those of the record."""
    run = runs["ttsn"]
    html = (run.path / "report.html").read_text()
    outline = outline_of(html)
    assert outline.headings == ["Metrics", "Calibration", "Training", "Time", "Data", "What was asked", "Made with"]
    assert outline.addresses == []
    assert "url(" not in html
    assert len(outline.figures) == 6  # loss, learning rate and speed by step; NE, AUC and gAUC by epoch
    assert all({"svg", "table", "figcaption"} <= inside for inside in outline.figures)
    assert len(outline.labels) == 6
    assert "validation NE by epoch: click, long_view" in outline.labels
    for metrics in run.record.test.values():
        assert f"<td>{metrics.ne:.4f}</td>" in html
    assert run.record.data_fingerprint[:12] in html
    assert f"<td>train.epochs</td><td>{run.config.train.epochs}</td>" in html
    assert "prefers-color-scheme: dark" in html


def test_the_page_shows_steps_windows_calibration_and_warnings(runs: dict[str, lr.Run], tmp_path: Path) -> None:
    """A record as a later trainer writes it, with a task whose name would be markup."""
    folder = copied(runs["ttsn"], tmp_path, "a <b>")
    record = json.loads((folder / "run.json").read_text())
    task = "<script>alert(1)</script>"
    better = {**record["test"]["click"], "auc": 0.99, "calibration": 1.25, "ece": 0.0625, "ndcg": 0.5, "cutoff": 10}
    worse = {**better, "auc": 0.01}
    record |= {"test": {task: worse}, "validation": {task: worse}, "floor": {task: better}, "oracle": {}}
    record |= {"best_epoch": 2, "epochs": 2}
    (folder / "run.json").write_text(json.dumps(record))
    lines: list[dict[str, Any]] = [
        {
            "kind": "step",
            "step": step,
            "seconds": 1.0,
            "train_loss": 1 / step,
            "learning_rate": 0.1,
            "rows_per_second": 5,
        }
        for step in range(1, 1001)
    ]
    lines.append({"kind": "progressive", "step": 9, "until_time": 1_735_724_909_272, "progressive": {task: better}})
    lines += [{"kind": "epoch", "epoch": epoch, "step": 9, "validation": {task: worse}} for epoch in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + "half a li")
    write_report(folder)
    html = (folder / "report.html").read_text()
    outline = outline_of(html)
    assert task not in html
    assert "<b>" not in html
    assert outline.headings[:4] == ["Metrics", "Calibration", "Training", "Progressive metrics"]
    assert [label.split(" by ")[0] for label in outline.labels] == [
        "training loss",
        "learning rate",
        *(f"{part} {name}" for part in ("validation", "progressive") for name in ("NE", "AUC", "gAUC")),
        "rows per second",
    ]
    assert "<td>1.2500</td><td>0.0625</td>" in html
    assert "2025-01-01 09:48:29" in html
    assert html.count('class="best"') == 3
    assert re.search(r'class="warning">Below the counting floor: .* AUC 0\.0100 \(counting 0\.9900\)', html)
    assert 'class="warning">Still improving at the last epoch, 2 of 2: raise train.epochs.' in html
    assert 'class="warning">Lines of metrics.jsonl that cannot be read and are not in the curves: 1.' in html
    assert len(html) < 120_000  # a thousand steps are thinned out
