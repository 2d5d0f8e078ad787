"""The counting floor: the same as counted in plain Python, on rows of train only, and a ranker below it is told."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from limerank.api.run import Run
from limerank.data.build.append import append
from limerank.data.build.prepare import prepare
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.sources.table.read import read_table_log
from limerank.data.store.dataset import StoredDataset
from limerank.evaluation import floor
from limerank.evaluation.evaluate import evaluation_loader
from limerank.evaluation.floor import below_floor, counting_floor
from limerank.metrics import Metrics, measure
from limerank.schema import Feature, Role, Schema, Task
from limerank.splits import GlobalTime, Part

SHARED = Path(__file__).parents[3] / "shared/data/ml-100k"


def counted_by_hand(dataset: StoredDataset, part: Part, task: str) -> Metrics:
    """Row by row, with dictionaries."""
    rows: list[tuple[Part | None, int, int, int, int]] = []
    start = dataset.column("requests/start").tolist()
    for request, user in enumerate(dataset.column("requests/user").tolist()):
        code = int(dataset.column("requests/part")[request])
        for row in range(start[request], start[request + 1]):
            item, label = (
                int(dataset.column("events/item")[[row]][0]),
                int(dataset.column(f"events/label.{task}")[[row]][0]),
            )
            rows.append((list(Part)[code] if code < len(Part) else None, user, item, label, request))
    train = [row for row in rows if row[0] is Part.TRAIN]
    base = sum(row[3] for row in train) / len(train)

    def logit(place: int, who: int) -> float:
        shown, liked = counts[place][who]
        return math.log((liked + floor.SMOOTHING * base) / (shown - liked + floor.SMOOTHING * (1 - base)))

    counts = {}
    for place in (1, 2):
        shown, liked = Counter(row[place] for row in train), Counter(row[place] for row in train if row[3])
        counts[place] = {who: (shown[who], liked[who]) for who in {row[place] for row in rows}}
    tested = [row for row in rows if row[0] is part]
    scores = [round(logit(1, user) + logit(2, item) - math.log(base / (1 - base)), 9) for _, user, item, *_ in tested]
    return measure(
        np.array([row[3] for row in tested]),
        np.array([1 / (1 + math.exp(-score)) for score in scores]),
        np.array([row[1] for row in tested]),
        np.array([row[4] for row in tested]),
    )


def agree(first: Metrics, second: Metrics) -> bool:
    return first.model_dump() == pytest.approx(second.model_dump(), abs=1e-9)


def small_log(folder: Path, seed: int = 0, rows: int = 600) -> tuple[StoredDataset, RawLog]:
    """A log, and a later day of it with new users and items."""
    generator = np.random.default_rng(seed)
    events = pl.DataFrame(
        {
            "user_id": generator.integers(0, 12, rows) + (np.arange(rows) > 450) * 4,
            "item_id": generator.integers(0, 30, rows) + (np.arange(rows) > 400) * 9,
            "time": 1_700_000_000_000 + np.arange(rows) // 3 * 1000,
            "click": generator.integers(0, 2, rows),
            "buy": (generator.random(rows) < 0.1).astype(int),
        }
    )
    schema = Schema(
        features=(Feature(name="item_id", role=Role.ITEM),),
        tasks=(Task(name="click"), Task(name="buy")),
        split=GlobalTime(test_fraction=0.3),
    )
    raws = [
        RawLog(schema, (EventFile.of_frame(part, "events"),), None, None, {"source": "test"})
        for part in (events[:501], events[501:])
    ]
    return prepare(raws[0], folder / "d"), raws[1]


@pytest.mark.parametrize("part", [Part.VALIDATION, Part.TEST])
def test_it_is_what_counting_by_hand_gives(part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, later = small_log(tmp_path)
    for grown in (False, True):
        if grown:
            dataset = append(dataset.path, later)
            assert len(dataset.segments) == 2
        found = counting_floor(evaluation_loader(dataset, part, 5))
        assert list(found) == ["click", "buy"]
        for task, metrics in found.items():
            assert agree(metrics, counted_by_hand(dataset, part, task))
    monkeypatch.setattr(floor, "REQUESTS_PER_BLOCK", 7)
    again = counting_floor(evaluation_loader(dataset, part, 5))
    assert all(agree(again[task], found[task]) for task in found)


def test_the_labels_of_other_parts_change_nothing_in_the_scores(tmp_path: Path) -> None:
    """A log whose test labels are turned around has the floor's AUC turned around, to 1 - AUC."""
    first, _ = small_log(tmp_path / "a")
    start, tested = first.column("requests/start"), first.requests_in(Part.TEST)
    labels = first.segments[0] / "events/label.click.npy"
    before = counting_floor(evaluation_loader(first, Part.TEST, 5))["click"]
    turned = np.load(labels)
    for request in tested:
        turned[start[request] : start[request + 1]] ^= 1
    np.save(labels, turned)
    after = counting_floor(evaluation_loader(StoredDataset.open(first.path), Part.TEST, 5))["click"]
    assert before.auc is not None
    assert after.auc == pytest.approx(1 - before.auc, abs=1e-12)


def test_it_is_finite_for_a_user_who_always_clicks(tmp_path: Path) -> None:
    rows = 3000
    events = pl.DataFrame(
        {"user_id": np.arange(rows) % 2, "item_id": np.arange(rows) % 3, "time": 1_700_000_000_000 + np.arange(rows)}
    ).with_columns(click=pl.col("user_id"))
    schema = Schema(features=(Feature(name="item_id", role=Role.ITEM),), tasks=(Task(name="click"),))
    raw = RawLog(schema, (EventFile.of_frame(events, "events"),), None, None, {"source": "test"})
    found = counting_floor(evaluation_loader(prepare(raw, tmp_path / "d"), Part.TEST, 5))["click"]
    assert found.auc == 1.0
    assert found.ne is not None
    assert 0 < found.ne < 0.1
    assert found.gauc is None


def test_a_run_records_it_and_older_runs_still_open(
    runs: dict[str, Run], dataset: StoredDataset, tmp_path: Path
) -> None:
    run = runs["ttsn"]
    assert run.record.floor == counting_floor(evaluation_loader(dataset, Part.TEST, 20))
    old = tmp_path / "old"
    old.mkdir()
    for path in run.path.iterdir():
        (old / path.name).write_bytes(path.read_bytes())
    record = json.loads((old / "run.json").read_text())
    assert set(record.pop("floor")) == {"click", "long_view"}
    (old / "run.json").write_text(json.dumps(record))
    assert Run.open(old).record.floor == {}


def test_a_ranker_below_it_is_named_with_both_numbers() -> None:
    def metrics(auc: float | None, gauc: float | None) -> Metrics:
        return Metrics(auc=auc, gauc=gauc, ne=0.9, logloss=0.6, rows=10, positive_rate=0.5)

    counted = {"click": metrics(0.7, 0.6565), "like": metrics(0.6, None)}
    assert below_floor({"click": metrics(0.71, 0.64123), "like": metrics(0.5, 0.5)}, counted) == [
        "click gAUC 0.6412 (counting 0.6565)",
        "like AUC 0.5000 (counting 0.6000)",
    ]
    assert below_floor({"click": metrics(0.7, 0.6565), "like": metrics(None, 0.1)}, counted) == []


def test_the_floor_of_movielens_is_the_known_one(tmp_path: Path) -> None:
    """../shared/data/README.md: the last 20 % of each user, AUC of the sum of user's and item's rates 0.771."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED.name} is not beside the repository; it must not be shipped")
    description = tmp_path / "log.yaml"
    description.write_text(
        f"tables: {{events: {SHARED}/ratings.csv.gz, items: [], users: []}}\n"
        "time: timestamp\ntime_unit: s\nfeatures: [{name: item_id, role: item}]\n"
        "tasks: [{name: liked, column: rating, positive_from: 4}]\n"
        "split: {protocol: last_fraction, test_fraction: 0.2, select_on_test: true}\n"
    )
    dataset = prepare(read_table_log(description), tmp_path / "d")
    found = counting_floor(evaluation_loader(dataset, Part.TEST, 5))["liked"]
    assert found.auc == pytest.approx(0.771, abs=0.01)
