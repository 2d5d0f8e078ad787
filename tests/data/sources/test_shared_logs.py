"""The real KuaiRand subset, where it is there: prepared by one command, and the floors counted outside of limerank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from limerank.data.build.prepare import prepare
from limerank.data.sources.table.read import read_table_log
from limerank.data.store.dataset import StoredDataset
from limerank.metrics import auc

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared/data/kuairand_27k_likehate"
DESCRIPTION = ROOT / "examples/datasets/kuairand-likehate.yaml"


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


def test_sanity_floors(dataset: StoredDataset) -> None:
    """AUC on the last 20 % by time: the user's rate 0.726, the video's 0.656, the video's count 0.521."""
    per_request = np.diff(dataset.column("requests/start"))
    tested = np.repeat(dataset.column("requests/part"), per_request) == 2
    user = np.repeat(dataset.column("requests/user"), per_request).astype(np.int64)
    video = dataset.column("events/item").astype(np.int64)
    click = dataset.column("events/label.is_click").astype(np.float64)
    # the fraction is one of requests, the floors were counted on 8,366 rows
    assert tested.sum() == pytest.approx(8_366, rel=0.02)

    def counts(group: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(np.bincount(group[~tested], minlength=group.max() + 1)[group[tested]])

    def rate(group: NDArray[np.int64]) -> NDArray[np.float64]:
        clicked = np.bincount(group[~tested], weights=click[~tested], minlength=group.max() + 1)[group[tested]]
        shown = counts(group)
        return np.asarray(np.where(shown > 0, clicked / np.maximum(shown, 1), click[~tested].mean()))

    assert auc(click[tested], rate(user)) == pytest.approx(0.726, abs=0.01)
    assert auc(click[tested], rate(video)) == pytest.approx(0.656, abs=0.01)
    assert auc(click[tested], counts(video).astype(np.float64)) == pytest.approx(0.521, abs=0.01)


def test_a_history_is_strictly_earlier(dataset: StoredDataset) -> None:
    """Some events of a user share a millisecond; none of them is in another's history."""
    time = dataset.column("events/time").astype(np.int64)
    start = dataset.column("requests/start")[:-1].astype(np.int64)
    end = dataset.column("requests/history_end").astype(np.int64)
    users = dataset.column("requests/user")
    same_user_before = np.r_[False, users[1:] == users[:-1]]
    assert (time[end[same_user_before] - 1] < time[start[same_user_before]]).all()
    assert (end <= start).all()
