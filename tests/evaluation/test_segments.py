"""Segments: every row in exactly one, by what plain counting says; what is no segment is refused."""

from __future__ import annotations

import numpy as np
import pytest
from logs import made_up_log

from limerank.data.build.prepare import prepare
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.evaluation.evaluate import CandidateRows, candidates_of, evaluation_loader
from limerank.evaluation.segments import HISTORY_FROM, MOST_VALUES, OTHER, segmentation
from limerank.splits import Part


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> StoredDataset:
    return prepare(made_up_log(), tmp_path_factory.mktemp("segments") / "d")


@pytest.fixture(scope="module")
def scored(log: StoredDataset) -> CandidateRows:
    loader = evaluation_loader(log, Part.TEST, 5)
    return candidates_of(loader, loader.requests)


def ids(log: StoredDataset, scored: CandidateRows) -> tuple[list[str], list[str], list[int]]:
    """User, item and time of every row, as they were in the log."""
    item = log.column("events/item")[scored.rows].astype(np.int64)
    return (
        log.user_ids.gather(scored.user).to_list(),
        log.item_ids.gather(item).to_list(),
        log.column("events/time")[scored.rows].tolist(),
    )


@pytest.mark.parametrize("by", ["history", "new_users", "new_items", "item_id", "genre", "age", "hour"])
def test_every_row_is_in_exactly_one_segment(by: str, log: StoredDataset, scored: CandidateRows) -> None:
    """They partition the rows; no column has more segments than the most frequent values and the rest."""
    found = segmentation(by, log, scored)
    parts = list(found.parts())
    assert len(parts) > 1
    assert sorted(np.concatenate([chosen for _, chosen in parts]).tolist()) == list(range(len(scored.rows)))
    assert len({name for name, _ in parts}) == len(parts) <= MOST_VALUES + 1


def test_new_users_and_items_have_no_event_in_train(log: StoredDataset, scored: CandidateRows) -> None:
    """Against the ids of the train rows, in plain sets."""
    loader = evaluation_loader(log, Part.TRAIN, 5)
    train_users, train_items, _ = (set(column) for column in ids(log, candidates_of(loader, loader.requests)))
    users, items, _ = ids(log, scored)
    for by, own, known in (("new_users", users, train_users), ("new_items", items, train_items)):
        found = segmentation(by, log, scored)
        named = [found.names[number] for number in found.segment.tolist()]
        assert named == ["in train" if one in known else "new" for one in own]
        assert {"in train", "new"} == set(named)


def test_history_counts_all_earlier_events_of_the_user(log: StoredDataset, scored: CandidateRows) -> None:
    """Not only those that a ranker reads; against counting rows of the same user with an earlier time."""
    everything = CandidateRows(
        np.arange(log.manifest.counts["events"]),
        np.repeat(np.arange(log.manifest.counts["requests"]), np.diff(log.column("requests/start").astype(np.int64))),
        np.repeat(log.column("requests/user").astype(np.int64), np.diff(log.column("requests/start").astype(np.int64))),
    )
    all_users, _, all_times = ids(log, everything)
    users, _, times = ids(log, scored)
    found = segmentation("history", log, scored)
    for row in range(0, len(users), 7):
        length = sum(u == users[row] and t < times[row] for u, t in zip(all_users, all_times, strict=True))
        bucket = sum(length >= first for first in HISTORY_FROM) - 1
        assert found.segment[row] == bucket
    assert found.names[:3] == ["0", "1 to 9", "10 to 49"]
    assert found.names[-1] == "1,000 and more"


def test_columns_name_their_most_frequent_values(log: StoredDataset, scored: CandidateRows) -> None:
    """Of 14 hours the ten most frequent by name, the others together; buckets of numbers in their order."""
    found = segmentation("hour", log, scored)
    sizes = {name: len(chosen) for name, chosen in found.parts()}
    assert len(sizes) == MOST_VALUES + 1
    *frequent, other = sizes
    assert other == OTHER
    assert [sizes[name] for name in frequent] == sorted((sizes[name] for name in frequent), reverse=True)
    hours = np.array([f"h{(t - 1_700_000_000_000) // 60_000 % 14:02d}" for t in ids(log, scored)[2]])
    for name in frequent:
        assert (np.flatnonzero(hours == name) == dict(found.parts())[name]).all()
    ages = segmentation("age", log, scored)
    starts = [float(name[1:].partition(",")[0]) for name in ages.names if name.startswith("[")]
    assert starts == sorted(starts)


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ("stars", "--by stars: is an event feature, which is only known after the request"),
        ("tags", "--by tags: is multi_valued, so a row is in no one segment of it"),
        ("gener", "--by gener: no such segments; did you mean 'genre'?"),
        ("zzz", "known: age, genre, history, hour, item_id, new_items, new_users"),
    ],
)
def test_what_is_no_segment_is_refused(by: str, said: str, log: StoredDataset, scored: CandidateRows) -> None:
    with pytest.raises(UsageError) as refused:
        segmentation(by, log, scored)
    assert said in str(refused.value)
