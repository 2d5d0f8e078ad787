"""A label that not every row has: from the raw column over store, loader and description to the gradients."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from dense_lime import EXACT
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from limerank.api.dataset import Dataset
from limerank.api.training import train
from limerank.batch import RequestBatch
from limerank.data.batches import RequestLoader
from limerank.data.build.append import append
from limerank.data.build.prepare import prepare
from limerank.data.describe.facts import describe
from limerank.data.describe.labels import LabelCount, count_labels
from limerank.data.draft.infer import infer
from limerank.data.draft.yaml_text import render
from limerank.data.raw import columns
from limerank.data.raw.location import Location
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.sources.table.read import read_table_log
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.manifest import MANIFEST, read_manifest
from limerank.errors import DataError
from limerank.evaluation.evaluate import evaluation_loader
from limerank.evaluation.floor import SMOOTHING, counting_floor
from limerank.metrics import measure
from limerank.models import Ranker, build_ranker
from limerank.ops.jagged import row_of
from limerank.schema import MISSING_LABEL, Feature, Role, Schema, Task
from limerank.splits import GlobalTime, Part

ROWS = 400
START = 1_700_000_000_000
LOCATION = Location("events")


def log_of(events: pl.DataFrame, buy: Task | None = None) -> RawLog:
    schema = Schema(
        features=(Feature(name="item_id", role=Role.ITEM), Feature(name="bought", role=Role.EVENT, column="buy")),
        tasks=(Task(name="click"), buy or Task(name="buy", missing="skip")),
        split=GlobalTime(validation_fraction=0.2, test_fraction=0.2),
    )
    return RawLog(schema, (EventFile.of_frame(events, "events"),), None, None, {"source": "test"})


def clicks_and_buys(rows: int = ROWS, first: int = 0) -> pl.DataFrame:
    """Whether somebody buys is known of clicked rows only."""
    generator = np.random.default_rng(first + 7)
    events = pl.DataFrame(
        {
            "user_id": generator.integers(0, 9, rows),
            "item_id": generator.integers(0, 20, rows),
            "time": START + (first + np.arange(rows)) * 1000,
            "click": generator.integers(0, 2, rows),
            "buy": generator.integers(0, 2, rows),
        }
    )
    return events.with_columns(pl.when(pl.col("click") == 1).then("buy").alias("buy"))


@pytest.fixture(scope="module")
def partly(tmp_path_factory: pytest.TempPathFactory) -> StoredDataset:
    return prepare(log_of(clicks_and_buys()), tmp_path_factory.mktemp("partly") / "d")


def test_an_empty_label_is_refused_by_default_and_the_error_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'buy' is empty, but is a label .*, or give task 'buy' missing: skip"):
        prepare(log_of(clicks_and_buys(), Task(name="buy")), tmp_path / "d")


LABELS = st.lists(st.sampled_from([0, 1, None]), min_size=1, max_size=20)


@settings(max_examples=40)
@given(labels=LABELS, written=st.sampled_from(["integers", "floats", "booleans", "texts", "words"]))
def test_every_way_to_write_a_label_may_be_empty(labels: list[int | None], written: str) -> None:
    values = {
        "integers": pl.Series("buy", labels, dtype=pl.Int64),
        "floats": pl.Series("buy", labels, dtype=pl.Float64),
        "booleans": pl.Series("buy", labels, dtype=pl.Int64).cast(pl.Boolean),
        "texts": pl.Series("buy", [" " if one is None else f"{one} " for one in labels], dtype=pl.String),
        "words": pl.Series("buy", [{0: "no", 1: "True", None: None}[one] for one in labels], dtype=pl.String),
    }[written]
    expected = [MISSING_LABEL if one is None else one for one in labels]
    assert columns.labels(values, Task(name="buy", missing="skip"), LOCATION).to_list() == expected


def test_a_rating_may_be_empty_and_what_is_wrong_stays_wrong() -> None:
    rated = pl.Series("stars", [5.0, None, 3.0, 4.0])
    task = Task(name="stars", positive_from=4, missing="skip")
    assert columns.labels(rated, task, LOCATION).to_list() == [1, MISSING_LABEL, 0, 1]
    task = Task(name="stars", missing="skip")
    with pytest.raises(DataError, match=r"is a label but not 0 or 1 \(in 3 rows, first 5.0"):
        columns.labels(rated, task, LOCATION)
    with pytest.raises(DataError, match="is not a number .*leave it empty where the label is missing"):
        columns.labels(pl.Series("stars", ["1", "maybe"]), task, LOCATION)
    with pytest.raises(DataError, match="is a label but not 0 or 1"):  # what stands for 'missing' in the store
        columns.labels(pl.Series("stars", [MISSING_LABEL]), task, LOCATION)


def raw_labels(dataset: StoredDataset, events: pl.DataFrame, rows: np.ndarray[Any, Any]) -> pl.DataFrame:
    """What the raw log says of these rows, found by their times, which are all different."""
    times = pl.DataFrame({"time": dataset.column("events/time")[rows]})
    return times.join(events, on="time", how="left", maintain_order="left").select("click", "buy")


def test_batches_hold_nan_where_the_log_has_no_label(partly: StoredDataset) -> None:
    loader = RequestLoader(partly, Part.TRAIN, batch_requests=8, max_history=5, seed=1)
    found = 0
    for requests in loader.plan():
        labels = loader.assemble(requests).labels
        expected = raw_labels(partly, clicks_and_buys(), loader.candidate_rows(requests))
        assert labels.dtype == torch.float32
        wanted = expected.cast(pl.Float32).fill_null(float("nan")).to_numpy()
        np.testing.assert_array_equal(labels.numpy(), wanted)
        found += int(labels.isnan().sum())
    assert found > 50
    assert partly.column("events/label.buy").dtype == np.uint8


def test_appended_events_follow_the_same_rule(tmp_path: Path) -> None:
    dataset = prepare(log_of(clicks_and_buys()), tmp_path / "d")
    later = clicks_and_buys(100, first=ROWS)
    grown = append(dataset.path, log_of(later))
    rows = np.arange(ROWS, ROWS + 100)
    expected = raw_labels(grown, later, rows)["buy"].cast(pl.Float32).fill_null(float("nan")).to_numpy()
    np.testing.assert_array_equal(grown.labels("buy", rows), expected)
    assert np.isnan(grown.labels("buy")).sum() == np.isnan(dataset.labels("buy")).sum() + np.isnan(expected).sum()


def test_only_a_dataset_with_missing_labels_says_something_that_older_versions_refuse(
    partly: StoredDataset, dataset: StoredDataset
) -> None:
    """An unknown key of the schema is refused; without it older versions, and fingerprints, are as they were."""
    known = {"name", "column", "positive_from", "true_probability"}
    tasks = json.loads((partly.path / MANIFEST).read_text())["dataset_schema"]["tasks"]
    assert [set(task) - known for task in tasks] == [set(), {"missing"}]
    tasks = json.loads((dataset.path / MANIFEST).read_text())["dataset_schema"]["tasks"]
    assert [set(task) for task in tasks] == [known, known]
    assert read_manifest(partly.path).dataset_schema == partly.schema
    assert partly.schema.tasks[1].missing == "skip"


def test_describe_counts_what_is_known_and_says_what_is_missing(partly: StoredDataset) -> None:
    facts = describe(partly)
    events = clicks_and_buys()
    counts = count_labels(partly)[1].parts
    assert sum(one.rows for one in counts.values()) == events["buy"].count()
    assert sum(one.missing for one in counts.values()) == events["buy"].null_count()
    assert sum(one.positives for one in counts.values()) == events["buy"].sum()
    for part, one in counts.items():
        told = facts["parts"][part.value]
        assert told["rates"]["buy"] == one.positives / one.rows
        assert told["missing_labels"] == {"click": 0, "buy": one.missing}
    (said,) = [c["text"] for c in facts["checks"] if c["check"] == "labels" and c["values"]["task"] == "buy"]
    train = counts[Part.TRAIN]
    assert f"it is missing in {train.missing / (train.rows + train.missing):.1%} of train" in said
    (leak,) = [c for c in facts["checks"] if c["check"] == "leaks" and c["values"]["task"] == "buy"]
    assert leak["level"] == "PASS"


def test_a_leak_is_found_among_the_rows_that_have_the_label(tmp_path: Path) -> None:
    """The item tells the label; if missing labels counted as 255 or as negatives, it would not."""
    events = clicks_and_buys().with_columns(
        buy=pl.when(pl.col("time") // 1000 % 3 == 0).then((pl.col("item_id") < 9).cast(pl.Int64))
    )
    checks = describe(prepare(log_of(events), tmp_path / "d"))["checks"]
    leaks = [c for c in checks if c["check"] == "leaks" and c["level"] == "FAIL"]
    assert {(c["values"]["task"], c["values"]["how"], c["values"]["auc"]) for c in leaks} == {
        ("buy", "rate in train", 1.0)
    }


def test_a_part_without_any_label_is_one_class(tmp_path: Path) -> None:
    dataset = Dataset.build(log_of(clicks_and_buys().with_columns(buy=None)), out=tmp_path / "none", quiet=True)
    assert [one.rows for one in count_labels(dataset)[1].parts.values()] == [0, 0, 0]
    (warning,) = [note for note in dataset.notes if "'buy'" in note]
    assert (
        f"is 1 in 0 of 0 train rows, 0 of 0 validation rows, 0 of 0 test rows whose label is known ({ROWS}" in warning
    )
    assert "nothing can be learned from one class" in warning
    assert describe(dataset)["worst"] == "FAIL"
    assert LabelCount(0, 0, 5).one_class


def test_the_counting_floor_counts_known_labels(partly: StoredDataset) -> None:
    """Rates of items and users are those among the train rows that have the label, counted here in a data frame."""
    start = partly.column("requests/start")
    frame = pl.DataFrame(
        {
            "user": np.repeat(partly.column("requests/user"), np.diff(start)),
            "request": np.repeat(np.arange(len(start) - 1), np.diff(start)),
            "item": partly.column("events/item"),
            "part": np.repeat(partly.column("requests/part"), np.diff(start)),
            "buy": partly.labels("buy"),
        }
    ).filter(pl.col("buy").is_not_nan())
    train, test = (frame.filter(pl.col("part") == part.code) for part in (Part.TRAIN, Part.TEST))
    base = float(train["buy"].sum() / train.height)
    score = np.full(test.height, -np.log(base / (1 - base)))
    for key in ("item", "user"):
        counted = train.group_by(key).agg(rows=pl.len().cast(pl.Float64), ones=pl.col("buy").cast(pl.Float64).sum())
        found = test.join(counted, on=key, how="left", maintain_order="left").fill_null(0)
        ones, zeros = found["ones"].to_numpy(), (found["rows"] - found["ones"]).to_numpy()
        score += np.log((ones + SMOOTHING * base) / (zeros + SMOOTHING * (1 - base)))
    labels, probability = test["buy"].to_numpy(), 1 / (1 + np.exp(-score.round(9)))
    expected = measure(labels, probability, test["user"].to_numpy(), test["request"].to_numpy())
    floor = counting_floor(evaluation_loader(partly, Part.TEST, 5))
    without = {"missing"}  # the rows without a label were left out here before
    assert floor["buy"].model_dump(exclude=without) == pytest.approx(expected.model_dump(exclude=without), abs=1e-9)
    assert 0 < floor["buy"].rows < floor["click"].rows


@pytest.mark.parametrize(("empty", "skips"), [(1, False), (150, True)])
def test_a_draft_skips_a_label_that_many_rows_lack(empty: int, skips: bool, tmp_path: Path) -> None:
    """One empty label among 400 is a mistake to look at; many are rows that nobody knows the label of."""
    events = clicks_and_buys().drop("buy")
    number = pl.int_range(pl.len())
    events = events.with_columns(click=pl.when(number * 7 % ROWS >= empty).then("click"))
    events.write_csv(tmp_path / "log.csv")
    text = render(infer(str(tmp_path / "log.csv")), tmp_path)
    (line,) = [line for line in text.splitlines() if "{name: click" in line and "role" not in line]
    assert ("missing: skip" in line) == skips
    assert ("empty in 37.5% of rows, which do not train this task" in line) == skips
    assert ("looks like 0/1, except line 2, where it is empty" in line) != skips
    if skips:
        (tmp_path / "dataset.yaml").write_text(text)
        dataset = prepare(read_table_log(tmp_path), tmp_path / "d")
        assert int(np.isnan(dataset.labels("click")).sum()) == empty


def some_requests(dataset: StoredDataset) -> RequestBatch:
    loader = RequestLoader(dataset, Part.TRAIN, batch_requests=8, max_history=20)
    batch = loader.assemble(loader.requests[10:40:4])
    return dataclasses.replace(batch, labels=batch.labels.double())


def with_gaps(batch: RequestBatch, known: Tensor) -> RequestBatch:
    labels = batch.labels.clone()
    labels[:, 1] = labels[:, 1].where(known, torch.nan)
    return dataclasses.replace(batch, labels=labels)


def only(batch: RequestBatch, kept: Tensor) -> RequestBatch:
    """The same requests with some of their candidates."""
    request = row_of(batch.candidates.offsets, len(kept))
    counts = torch.bincount(request[kept], minlength=len(batch.inputs))
    candidates = dataclasses.replace(
        batch.candidates,
        item_of_candidate=batch.candidates.item_of_candidate[kept],
        offsets=functional.pad(counts.cumsum(0), (1, 0)),
    )
    return dataclasses.replace(batch, candidates=candidates, labels=batch.labels[kept])


def gradients(ranker: Ranker, batch: RequestBatch, weights: Tensor) -> dict[str, Tensor]:
    ranker.zero_grad(set_to_none=True)
    ranker.loss(batch, weights).backward()
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in ranker.named_parameters()
    }


def check_gradients_of_the_subset(ranker: Ranker, batch: RequestBatch) -> None:
    known = torch.arange(len(batch.labels)) % 3 == 1
    known[: len(known) // 4] = False  # some requests lose all their candidates
    gaps = with_gaps(batch, known)
    first, second = torch.eye(2, dtype=torch.float64)
    subset = gradients(ranker, only(batch, known), second)
    torch.testing.assert_close(gradients(ranker, gaps, second), subset, **EXACT)
    assert sum(float(one.abs().sum()) for one in subset.values()) > 0
    whole = gradients(ranker, batch, first)
    torch.testing.assert_close(gradients(ranker, gaps, first), whole, **EXACT)
    both = gradients(ranker, gaps, torch.tensor([3.0, 1.0], dtype=torch.float64))
    mixed = {name: 0.75 * whole[name] + 0.25 * subset[name] for name in whole}
    torch.testing.assert_close(both, mixed, **EXACT)


def test_training_with_missing_labels_is_training_each_task_on_its_rows(ranker: Ranker, dataset: StoredDataset) -> None:
    """The gradients of a task are those of a batch of only the candidates that have its label, for every ranker."""
    check_gradients_of_the_subset(ranker.double(), some_requests(dataset))


def test_so_is_the_loss_that_trains_the_search_of_sim(dataset: StoredDataset) -> None:
    options = {"name": "sim", "unknown_rate": 0.0}
    ranker = build_ranker(options, dataset.encoders.space(), 2, "test").double().train()
    check_gradients_of_the_subset(ranker, some_requests(dataset))


def test_a_missing_label_is_neither_positive_nor_negative_for_inttower(dataset: StoredDataset) -> None:
    """Its contrastive loss is that of the batch without the candidates whose first label is missing."""
    options = {"name": "inttower", "contrastive": 0.3, "unknown_rate": 0.0}
    ranker = build_ranker(options, dataset.encoders.space(), 2, "test").double().train()
    batch = some_requests(dataset)
    known = torch.arange(len(batch.labels)) % 3 != 1
    labels = batch.labels.clone()
    labels[~known, 0] = torch.nan
    own = ranker.losses(dataclasses.replace(batch, labels=labels))[1]
    expected = ranker.losses(only(batch, known))[1]
    assert own is not None
    assert expected is not None
    assert float(own.detach()) > 0
    torch.testing.assert_close(own, expected, **EXACT)


def test_a_run_on_a_log_with_missing_labels_measures_each_task_on_its_rows(
    partly: StoredDataset, tmp_path: Path
) -> None:
    run = train("ttsn", partly, out=tmp_path / "run", epochs=1, max_history=5, quiet=True)
    counts = {task.task: task.parts[Part.TEST] for task in count_labels(partly)}
    assert {task: metrics.rows for task, metrics in run.record.test.items()} == {t: c.rows for t, c in counts.items()}
    losses = [metrics.logloss for metrics in run.record.test.values()]
    assert all(loss is not None and np.isfinite(loss) for loss in losses)
    assert run.record.test["buy"].positive_rate == pytest.approx(counts["buy"].rate, abs=1e-12)
