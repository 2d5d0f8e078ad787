"""The real logs, where they are there: prepared by one command each, and the floors counted outside of limerank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from limerank.data.build.prepare import prepare
from limerank.data.sources.movielens.read import read_movielens
from limerank.data.sources.table.read import read_table_log
from limerank.data.store.dataset import StoredDataset
from limerank.metrics import auc
from limerank.splits import Part

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared/data/kuairand_27k_likehate"
MOVIELENS = SHARED.parent / "ml-100k"
DESCRIPTION = ROOT / "examples/datasets/kuairand-likehate.yaml"

Labels = NDArray[np.float64]
Rates = NDArray[np.float64]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> StoredDataset:
    if not SHARED.is_dir():
        pytest.skip(f"the KuaiRand subset is not in {SHARED}; it is not shipped")
    return prepare(read_table_log(SHARED, schema_file=DESCRIPTION), tmp_path_factory.mktemp("likehate") / "out")


def test_everything_is_there(dataset: StoredDataset) -> None:
    raw = pl.read_csv(SHARED / "log.csv.gz")
    counts = dataset.manifest.counts
    assert (counts["events"], counts["users"], counts["items"]) == (41_828, 664, 9_359)
    assert counts["requests"] == raw.select("user_id", "time_ms").n_unique()
    assert dataset.column("events/label.is_click").astype(float).mean() == pytest.approx(0.657, abs=0.001)
    assert dataset.column("events/label.long_view").astype(float).mean() == pytest.approx(0.462, abs=0.001)


def rates(dataset: StoredDataset, task: str) -> tuple[Labels, dict[str, Rates]]:
    """Labels of the test part, and what counting on all the rest says of its rows, unsmoothed."""
    per_request = np.diff(dataset.column("requests/start"))
    tested = np.repeat(dataset.column("requests/part"), per_request) == Part.TEST.code
    user = np.repeat(dataset.column("requests/user"), per_request).astype(np.int64)
    item = dataset.column("events/item").astype(np.int64)
    label = dataset.column(f"events/label.{task}").astype(np.float64)

    def counts(group: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(np.bincount(group[~tested], minlength=group.max() + 1)[group[tested]])

    def rate(group: NDArray[np.int64]) -> NDArray[np.float64]:
        positive = np.bincount(group[~tested], weights=label[~tested], minlength=group.max() + 1)[group[tested]]
        shown = counts(group)
        return np.asarray(np.where(shown > 0, positive / np.maximum(shown, 1), label[~tested].mean()))

    by_user, by_item = rate(user), rate(item)
    found = {"user": by_user, "item": by_item, "sum": by_user + by_item, "count": counts(item).astype(np.float64)}
    return label[tested], found


def test_sanity_floors(dataset: StoredDataset) -> None:
    """AUC on the last 20 % by time: the user's rate 0.726, the video's 0.656, the video's count 0.521."""
    click, found = rates(dataset, "is_click")
    # the fraction is one of requests, the floors were counted on 8,366 rows
    assert len(click) == pytest.approx(8_366, rel=0.02)
    assert auc(click, found["user"]) == pytest.approx(0.726, abs=0.01)
    assert auc(click, found["item"]) == pytest.approx(0.656, abs=0.01)
    assert auc(click, found["count"]) == pytest.approx(0.521, abs=0.01)


def test_sanity_floors_of_movielens(tmp_path: Path) -> None:
    """AUC on the last 20 % of each user: the user's rate 0.665, the movie's 0.728, their sum 0.771."""
    if not MOVIELENS.is_dir():
        pytest.skip(f"{MOVIELENS.name} is not in {MOVIELENS.parent}; it must not be shipped")
    movielens = prepare(read_movielens(MOVIELENS), tmp_path / "out")
    like, found = rates(movielens, "like")
    assert 18_000 < len(like) < 19_633  # ratings of one second are not separated, so a little less than a fifth tests
    assert len(movielens.requests_in(Part.VALIDATION)) > 0
    for score, known in (("user", 0.665), ("item", 0.728), ("sum", 0.771)):
        assert auc(like, found[score]) == pytest.approx(known, abs=0.015)


def test_a_history_is_strictly_earlier(dataset: StoredDataset) -> None:
    """Some events of a user share a millisecond; none of them is in another's history."""
    time = dataset.column("events/time").astype(np.int64)
    start = dataset.column("requests/start")[:-1].astype(np.int64)
    end = dataset.column("requests/history_end").astype(np.int64)
    users = dataset.column("requests/user")
    same_user_before = np.r_[False, users[1:] == users[:-1]]
    assert (time[end[same_user_before] - 1] < time[start[same_user_before]]).all()
    assert (end <= start).all()
