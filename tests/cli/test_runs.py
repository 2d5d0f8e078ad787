"""`limerank runs`: lists whatever is there, compares, and makes reports again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from calling import answer, limerank, refusal

import limerank as lr

SMALL = {"batch_requests": 64, "max_history": 5, "quiet": True}


@pytest.fixture(scope="module")
def folder(dataset: lr.Dataset, runs: dict[str, lr.Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two whole runs, one deeper than the other, one that is under way, and three that are damaged."""
    folder = tmp_path_factory.mktemp("listed") / "runs"
    lr.train("ttsn", dataset, out=folder / "a", epochs=1, seed=7, **SMALL)  # type: ignore[arg-type]
    lr.train("mha", dataset, out=folder / "deep" / "b", epochs=2, **SMALL)  # type: ignore[arg-type]
    under_way = shutil.copytree(folder / "a", folder / "c.unfinished")
    for name in ("run.json", "model.safetensors", "report.html"):
        (under_way / name).unlink()
    (under_way / "tensorboard").mkdir()
    for name, file, text in (("d", "run.json", "{"), ("e", "config.yaml", "x: ["), ("f", "run.json", "[1]")):
        shutil.copytree(folder / "a", folder / name)
        (folder / name / file).write_text(text)
    shutil.copytree(folder / "a", folder / "g")
    (folder / "g" / "model.safetensors").unlink()
    (folder / "not a run").mkdir()
    (folder / "not a run" / "config.yaml").write_text("of: something else")
    return folder


def test_every_run_is_listed_and_damage_is_told(folder: Path) -> None:
    frame = lr.runs(folder)
    assert frame["name"].to_list() == ["a", "c.unfinished", "d", "deep/b", "e", "f", "g"]
    states = dict(frame.select("name", "state").iter_rows())
    assert [name for name, state in states.items() if state == "damaged"] == ["d", "e", "f", "g"]
    assert states["c.unfinished"] == "unfinished"
    damaged = frame.filter(state="damaged")
    assert all("/" in problem for problem in damaged["problem"])
    a, record = frame.row(0, named=True), lr.Run.open(folder / "a").record
    assert (a["ranker"], a["seed"], a["epochs"], a["changed"]) == ("ttsn", 7, 1, record.finished)
    assert a["test.click.auc"] == record.test["click"].auc
    assert a["validation.ne"] == pytest.approx(sum(one.ne or 0 for one in record.validation.values()) / 2)
    under_way = frame.row(1, named=True)
    assert (under_way["ranker"], under_way["epochs"], under_way["dataset"]) == ("ttsn", 1, None)
    assert under_way["validation.click.ne"] == a["validation.click.ne"]
    assert under_way["test.click.ne"] is None


def test_the_command_says_the_same(folder: Path) -> None:
    shown = limerank("runs", folder)
    assert shown.returncode == 0
    assert shown.stdout.count("damaged: ") == 4
    assert "next: limerank runs compare" in shown.stdout
    assert shown.stdout == limerank("runs", "list", folder).stdout
    listed = answer("runs", folder)["runs"]
    assert listed == json.loads(json.dumps(lr.runs(folder).to_dicts()))
    assert limerank("runs", cwd=folder.parent).returncode == 0
    assert "no runs below" in limerank("runs", folder / "not a run").stdout
    assert "compare" in limerank("runs", "--help").stdout


def test_sorting_puts_the_best_first_and_what_is_unknown_last(folder: Path) -> None:
    by_ne, by_auc = lr.runs(folder, by="test.click.ne"), lr.runs(folder, by="test.auc")
    values = by_ne["test.click.ne"].drop_nulls()
    assert values.to_list() == sorted(values)
    values = by_auc["test.auc"].drop_nulls()
    assert values.to_list() == sorted(values, reverse=True)
    assert by_ne["test.click.ne"][:2].null_count() == 0
    names = [row["name"] for row in answer("runs", folder, "--by", "test.auc")["runs"]]
    assert names == by_auc["name"].to_list()
    assert "did you mean 'test.auc'?" in refusal(2, "runs", folder, "--by", "tst.auc")


def test_a_run_itself_and_the_same_folder_twice_are_listed_once(folder: Path) -> None:
    assert lr.runs(folder / "a")["name"].to_list() == ["a"]
    assert lr.runs(folder, folder / "deep").height == lr.runs(folder).height
    assert "no such folder" in refusal(3, "runs", folder / "nowhere")


def test_comparing_shows_what_differs(folder: Path) -> None:
    facts = answer("runs", "compare", folder / "a", folder / "deep" / "b")
    assert facts["differing"]["model.name"] == ["ttsn", "mha"]
    assert facts["differing"]["train.epochs"] == [1, 2]
    assert facts["differing"]["seed"] == [7, 1]
    assert "train.max_history" not in facts["differing"]
    assert "dataset" not in facts["differing"]
    assert facts["comparable"] is True
    assert facts["data"].startswith("all on the same dataset")
    records = [lr.Run.open(folder / name).record for name in ("a", "deep/b")]
    assert facts["metrics"]["test.click.auc"] == [record.test["click"].auc for record in records]
    shown = limerank("runs", "compare", folder / "a", folder / "deep" / "b").stdout
    assert "train.epochs" in shown
    assert f"{records[0].test['click'].ne:.4f}" in shown
    unfinished = answer("runs", "compare", folder / "a", folder / "c.unfinished")
    assert unfinished["comparable"] is False
    assert unfinished["metrics"]["test.click.ne"][1] is None
    assert "two runs" in refusal(2, "runs", "compare", folder / "a")
    assert "not valid JSON" in refusal(3, "runs", "compare", folder / "a", folder / "d")
    assert "no run here" in refusal(3, "runs", "compare", folder / "a", folder / "nowhere")


def test_runs_on_other_data_are_said_to_be_not_comparable(raw_log: object, folder: Path, tmp_path: Path) -> None:
    """Another dataset, and the same one after it has grown, told apart."""
    shutil.copytree(folder / "a", tmp_path / "a")
    for name, fingerprint in (("other", "f" * 64), ("before", "b" * 64)):
        shutil.copytree(folder / "a", tmp_path / name)
        record = json.loads((tmp_path / name / "run.json").read_text())
        (tmp_path / name / "run.json").write_text(json.dumps(record | {"data_fingerprint": fingerprint}))
    facts = answer("runs", "compare", tmp_path / "a", tmp_path / "other")
    assert facts["comparable"] is False
    assert facts["data"].startswith("on different datasets")
    manifest = json.loads((lr.Run.open(folder / "a").config.dataset / "dataset.json").read_text())
    (tmp_path / "grown").mkdir()
    (tmp_path / "grown" / "dataset.json").write_text(json.dumps(manifest | {"grown_from": ["b" * 64]}))
    for name in ("a", "before"):
        config = (tmp_path / name / "config.yaml").read_text().splitlines()
        changed = ["dataset: ../grown" if line.startswith("dataset:") else line for line in config]
        (tmp_path / name / "config.yaml").write_text("\n".join(changed))
    assert "it has grown" in answer("runs", "compare", tmp_path / "a", tmp_path / "before")["data"]


def test_a_report_is_made_again(folder: Path, tmp_path: Path) -> None:
    """The same page, also in a folder of another name, without its dataset."""
    page = folder / "a" / "report.html"
    before = page.read_text()
    page.unlink()
    assert answer("runs", "report", folder / "a")["report"] == str(page)
    assert page.read_text() == before
    assert lr.Run.open(folder / "a").report() == page
    shutil.copytree(folder / "a", tmp_path / "moved")
    assert "wrote" in limerank("runs", "report", tmp_path / "moved").stdout
    assert "not there any more" in (tmp_path / "moved" / "report.html").read_text()
    assert "run.json: no such file" in refusal(3, "runs", "report", folder / "c.unfinished")


def test_an_empty_folder_gives_an_empty_frame(tmp_path: Path) -> None:
    assert lr.runs(tmp_path).is_empty()
    assert isinstance(lr.runs(tmp_path), pl.DataFrame)
