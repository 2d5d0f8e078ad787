"""A run measured: on other datasets, against another run, on labels that know nothing, on a leak, on a device."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
import torch
from logs import BUY, CLICK, HASHED, made_up_log

import limerank as lr
from limerank.api.run import Run
from limerank.batch import RequestBatch
from limerank.data.build.append import append
from limerank.data.build.prepare import prepare
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError, UsageError
from limerank.evaluation.evaluate import evaluate, evaluation_loader, predict
from limerank.metrics import auc, measure
from limerank.models import Ranker
from limerank.splits import Part

SHORT: dict[str, Any] = {"epochs": 1, "batch_requests": 32, "quiet": True}


def test_segments_add_up_to_the_whole(runs: dict[str, Run]) -> None:
    """Rows and positives of all segments of a kind are those of the part, per task; with metrics of their own rows."""
    found = runs["ttsn"].evaluate(by=["topic", "history", "topic"], quiet=True)
    for task, whole in found.metrics.items():
        for by in ("topic", "history"):
            parts = [one.metrics for one in found.segments if (one.task, one.by) == (task, by)]
            assert sum(one.rows for one in parts) == whole.rows
            positives = sum(one.rows * one.positive_rate for one in parts)
            assert positives == pytest.approx(whole.rows * whole.positive_rate)
    assert [one.by for one in found.segments][:2] == ["topic", "topic"]
    assert "topic: topic1" in repr(found)
    assert "topic: topic1" in found._repr_html_()


def test_two_runs_are_compared_on_the_same_rows(runs: dict[str, Run], dataset: StoredDataset, tmp_path: Path) -> None:
    """Differences are those of the metrics, though the two read histories of other lengths, so batches differ."""
    short = lr.train("mha", dataset, out=tmp_path / "short", max_history=3, **SHORT)
    first = runs["ttsn"].evaluate(against=short, by=["topic"], intervals=True, quiet=True)
    alone, other = runs["ttsn"].evaluate(quiet=True), short.evaluate(quiet=True)
    assert first.comparison is not None
    whole = {one.task: one for one in first.comparison.compared if not one.by}
    for task, compared in whole.items():
        for name in ("auc", "gauc", "session_auc", "ne", "logloss", "calibration"):
            own, theirs = (getattr(one[task], name) for one in (alone, other))
            assert compared.differences[name].first == pytest.approx(own, abs=1e-9)
            assert compared.differences[name].difference == pytest.approx(own - theirs, abs=1e-9)
        assert first.intervals[task]["auc"].low < first[task].auc < first.intervals[task]["auc"].high  # type: ignore[operator]
    segments = {(one.by, one.segment) for one in first.comparison.compared if one.by}
    assert segments == {(one.by, one.segment) for one in first.segments}
    said = first.comparison.conclusions()
    assert said[0].startswith("click: ")
    assert "they do not know what another seed" in said[-1]
    itself = runs["ttsn"].evaluate(against=runs["ttsn"].path, quiet=True).comparison
    assert itself is not None
    assert itself.conclusions()[0] == "click: no difference can be told in AUC, gAUC, NE"


def test_scores_are_written_whole_with_the_ids_of_the_log(
    runs: dict[str, Run], dataset: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every candidate once; the metrics of the file are those of the evaluation; pieces leave nothing behind."""
    monkeypatch.setattr("limerank.evaluation.scores.ROWS_PER_GROUP", 50)
    path = tmp_path / "scores.parquet"
    found = runs["ttsn"].evaluate(scores=path, quiet=True)
    assert list(tmp_path.iterdir()) == [path]
    frame = pl.read_parquet(path)
    assert frame.columns == [
        "user_id",
        "item_id",
        "request",
        "time",
        "click",
        "score_click",
        "long_view",
        "score_long_view",
    ]
    again = measure(
        frame["click"].to_numpy(),
        frame["score_click"].to_numpy(),
        frame["user_id"].rank("dense").to_numpy().astype(int),
        frame["request"].to_numpy(),
    )
    assert again.model_dump() == pytest.approx(found["click"].model_dump(), abs=1e-12)
    requests = dataset.requests_in(Part.TEST)
    assert set(frame["request"].to_list()) == set(requests.tolist())
    first = frame.row(0, named=True)
    start = int(dataset.column("requests/start")[first["request"]])
    assert first["item_id"] == dataset.item_ids[int(dataset.column("events/item")[start])]
    assert first["time"] == int(dataset.column("events/time")[start])
    assert first["user_id"] == dataset.user_ids[int(dataset.column("requests/user")[first["request"]])]
    with pytest.raises(UsageError, match=r"--scores .*: must end in \.parquet"):
        runs["ttsn"].evaluate(scores=tmp_path / "scores.csv", quiet=True)


def test_the_train_part_has_no_floor(runs: dict[str, Run]) -> None:
    """Counting would see the labels it is measured on."""
    found = runs["ttsn"].evaluate("train", quiet=True)
    assert (found.floor, found.below_floor) == ({}, [])
    assert found["click"].rows > runs["ttsn"].evaluate("validation", quiet=True)["click"].rows


def test_a_dataset_that_grew_elsewhere_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy to which a day was appended: other test rows, told; the run's own dataset stays as it was."""
    prepare(made_up_log(), tmp_path / "d")
    run = lr.train("ttsn", tmp_path / "d", out=tmp_path / "run", **SHORT)
    shutil.copytree(tmp_path / "d", tmp_path / "grown")
    append(tmp_path / "grown", made_up_log(300, first=10_000))
    own, trained = run.evaluate(quiet=True)["click"], run.record.test["click"]
    assert own.rows == trained.rows
    assert own.model_dump() == pytest.approx(trained.model_dump(), abs=1e-9)  # in other batches, so rounded otherwise
    found = run.evaluate(dataset=tmp_path / "grown")
    assert "grown has grown since this run was trained" in capsys.readouterr().err
    grown = StoredDataset.open(tmp_path / "grown")
    expected = evaluate(run.ranker(grown), evaluation_loader(grown, Part.TEST, run.config.train.max_history))
    assert found["click"].rows == expected["click"].rows != run.record.test["click"].rows
    assert found["click"].auc == pytest.approx(expected["click"].auc, abs=1e-9)


def test_datasets_that_are_encoded_alike_are_read_and_others_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hashed ids and the same hours: another log is read. Another vocabulary or task: an error that says which."""
    prepare(made_up_log(features=HASHED), tmp_path / "a")
    run = lr.train("ttsn", tmp_path / "a", out=tmp_path / "run", **SHORT)
    other = prepare(made_up_log(features=HASHED, seed=1), tmp_path / "b")
    assert other.fingerprint != run.record.data_fingerprint
    found = run.evaluate(dataset=other)
    assert "b is not what" in capsys.readouterr().err.replace("\n", "")
    assert found["click"].rows == len(predict(run.ranker(other), evaluation_loader(other, Part.TEST, 20)).rows)
    prepare(made_up_log(features=HASHED, tasks=(BUY, CLICK)), tmp_path / "tasks")
    prepare(made_up_log(), tmp_path / "features")
    with pytest.raises(DataError, match=r"tasks: .*run cannot read it: its tasks are buy, click, not click, buy"):
        run.evaluate(dataset=tmp_path / "tasks", quiet=True)
    with pytest.raises(DataError, match=r"its item features are item_id, genre, tags, not item_id.*limerank append"):
        run.evaluate(dataset=tmp_path / "features", quiet=True)
    categorical = lr.train("ttsn", tmp_path / "features", out=tmp_path / "run2", **SHORT)
    prepare(made_up_log(60), tmp_path / "fewer")
    with pytest.raises(
        DataError, match=r"feature 'item_id' has another vocabulary \(\d+ values, \d+ of them among the"
    ):
        categorical.evaluate(dataset=tmp_path / "fewer", quiet=True)
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(
        DataError, match="nobody can tell whether .*run can read it, since its own dataset is not there"
    ):
        run.evaluate(dataset=other, quiet=True)


def test_permuted_labels_have_an_auc_of_one_half_and_a_leak_shows(tmp_path: Path) -> None:
    """A context that tells the label: AUC 1. The same run on permuted labels: 0.5 within five standard deviations.

    Var(AUC) <= (P + N + 1) / (12 P N) when labels are independent of the scores; ties only lower it.
    """
    generator = np.random.default_rng(0)
    rows = 4000
    click = (generator.random(rows) < 0.4).astype(int)
    events = pl.DataFrame(
        {
            "user_id": generator.integers(0, 40, rows),
            "item_id": generator.integers(0, 30, rows),
            "time": 1_700_000_000_000 + np.arange(rows) * 1000,
            "told": np.where(click, "yes", "no"),
            "click": click,
        }
    )
    features = (lr.Feature(name="item_id", role=lr.Role.ITEM), lr.Feature(name="told", role=lr.Role.CONTEXT))
    schema = lr.Schema(features=features, tasks=(CLICK,), split=lr.GlobalTime(test_fraction=0.3))
    data = lr.Dataset.build(events, schema=schema, out=tmp_path / "d", quiet=True)
    run = lr.train("ttsn", data, out=tmp_path / "run", learning_rate=0.01, epochs=2, batch_requests=64, quiet=True)
    leaked = run.evaluate(quiet=True)["click"]
    assert leaked.auc is not None
    assert leaked.auc > 0.99
    path = data.segments[0] / "events/label.click.npy"
    labels = np.load(path)
    np.save(path, generator.permutation(labels))
    permuted = run.evaluate(dataset=StoredDataset.open(data.path), quiet=True)["click"]
    positives = round(permuted.rows * permuted.positive_rate)
    margin = 5 * np.sqrt((permuted.rows + 1) / (12 * positives * (permuted.rows - positives)))
    assert margin < 0.1
    assert permuted.auc == pytest.approx(0.5, abs=margin)


class OnMeta(torch.nn.Module):
    """Stands on a device that no CPU tensor can reach; its logits say which candidates it was given."""

    def forward(self, batch: RequestBatch) -> torch.Tensor:
        def checked(tensor: torch.Tensor) -> torch.Tensor:
            assert tensor.device.type == "meta"
            return tensor

        batch.map(checked)
        return torch.zeros(len(batch.labels), 2, dtype=torch.bfloat16)


def test_batches_follow_the_ranker_and_probabilities_come_back(dataset: StoredDataset, runs: dict[str, Run]) -> None:
    """Every tensor of a batch is moved, if a device is given; what returns is float32 on the CPU, in order."""
    loader = evaluation_loader(dataset, Part.TEST, 5)
    found = predict(cast(Ranker, OnMeta()), loader, device=torch.device("meta"))
    assert found.probability.dtype == np.float32
    assert set(found.probability.ravel().tolist()) == {0.5}
    assert found.in_stored_order().rows.tolist() == sorted(found.rows.tolist())
    own, moved = (runs["ttsn"].evaluate(device=device, quiet=True) for device in (None, "cpu"))
    assert own.metrics == moved.metrics
    with pytest.raises(UsageError, match="device: there is no device 'gpu'"):
        runs["ttsn"].evaluate(device="gpu", quiet=True)


def test_labels_of_an_evaluation_may_be_missing(runs: dict[str, Run], dataset: StoredDataset, tmp_path: Path) -> None:
    """A stored 255 is left out of metrics, floor and comparison, counted, and null in the scores."""
    shutil.copytree(dataset.path, tmp_path / "d")
    path = StoredDataset.open(tmp_path / "d").segments[0] / "events/label.click.npy"
    labels = np.load(path)
    labels[::5] = 255
    np.save(path, labels)
    opened = StoredDataset.open(tmp_path / "d")
    found = runs["ttsn"].evaluate(dataset=opened, scores=tmp_path / "s.parquet", intervals=True, quiet=True)
    frame = pl.read_parquet(tmp_path / "s.parquet")
    assert found["click"].missing == frame["click"].null_count() == found.floor["click"].missing > 0
    assert found["long_view"].missing == 0
    known = frame.drop_nulls("click")
    assert found["click"].auc == pytest.approx(
        auc(known["click"].to_numpy(), known["score_click"].to_numpy()), abs=1e-12
    )
    assert found["click"].rows == known.height
