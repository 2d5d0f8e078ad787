"""A dataset that has grown: which requests are new since a fingerprint, and what a run that goes on may learn from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limerank.data.batches import RequestLoader
from limerank.data.build import append as appending
from limerank.data.build.append import append
from limerank.data.build.prepare import prepare
from limerank.data.raw.log import EventFile, RawLog
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.manifest import MANIFEST
from limerank.data.store.new_day import NewDay, new_day
from limerank.data.store.states import undo
from limerank.errors import DataError
from limerank.schema import Feature, Role, Schema, Task
from limerank.splits import ByColumn, Days, GlobalTime, LastEvents, LastFraction, Part, Split
from limerank.times import time_text

DAY = 86_400_000
START = 20_000 * DAY
ROWS = 40  # a day


def day_of(number: int, **columns: object) -> pl.DataFrame:
    """One day of a log; every request is one event, and some have the same time as another user's."""
    generator = np.random.default_rng(number)
    return pl.DataFrame(
        {
            "user_id": np.arange(ROWS) % 4,
            "item_id": generator.integers(0, 9, ROWS),
            "time": START + number * DAY + np.arange(ROWS) // 2 * 60_000,
            "click": generator.integers(0, 2, ROWS),
            **columns,
        }
    )


def raw_of(*days: pl.DataFrame, split: Split) -> RawLog:
    schema = Schema(features=(Feature(name="item_id", role=Role.ITEM),), tasks=(Task(name="click"),), split=split)
    events = tuple(EventFile.of_frame(day, "events") for day in days)
    return RawLog(schema, events, None, None, {"source": "test"})


def grown(folder: Path, split: Split, days: int = 4, appended: int = 1) -> tuple[StoredDataset, str]:
    """A dataset that has grown, and the fingerprint that it had."""
    first = prepare(raw_of(*map(day_of, range(days)), split=split), folder)
    dataset = first
    for day in range(days, days + appended):
        dataset = append(folder, raw_of(day_of(day), split=split))
    return dataset, first.fingerprint


def days_in(dataset: StoredDataset, requests: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[int, int]:
    """How many of these requests each day has."""
    times = dataset.column("events/time")[dataset.column("requests/start")[requests]]
    days, counts = np.unique((times - START) // DAY, return_counts=True)
    return dict(zip(days.tolist(), counts.tolist(), strict=True))


def forget_times(path: Path) -> StoredDataset:
    """The dataset as an older version would have left it, which did not keep when each state ended."""
    manifest = json.loads((path / MANIFEST).read_text())
    assert len(manifest.pop("grown_until")) == len(manifest["grown_from"])
    manifest["before"].pop("grown_until", None)
    (path / MANIFEST).write_text(json.dumps(manifest))
    return StoredDataset.open(path)


def test_requests_since_every_state_through_appends_and_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five days the last two, three, ... are new, while segments are apart and after they were merged."""
    monkeypatch.setattr(appending, "MOST_SEGMENTS", 3)
    dataset = prepare(raw_of(day_of(0), day_of(1), split=GlobalTime()), tmp_path / "d")
    assert "grown_until" not in json.loads((dataset.path / MANIFEST).read_text())  # older versions open it
    states, segments = [dataset.fingerprint], []
    for day in range(2, 7):
        dataset = append(dataset.path, raw_of(day_of(day), split=GlobalTime()))
        segments.append(len(dataset.segments))
        for known, state in enumerate(states):
            expected = dict.fromkeys(range(2 + known, day + 1), ROWS)
            assert days_in(dataset, dataset.requests_since(state)) == expected
        states.append(dataset.fingerprint)
    assert segments == [2, 3, 1, 2, 3]
    assert len(dataset.requests_since(dataset.fingerprint)) == 0
    for part in Part:
        inside = np.intersect1d(dataset.requests_since(states[1]), dataset.requests_in(part))
        assert dataset.requests_since(states[1], part).tolist() == inside.tolist()
    older = forget_times(dataset.path)  # two segments were appended since the merge
    assert days_in(older, older.requests_since(states[-2])) == {6: ROWS}
    assert days_in(older, older.requests_since(states[-3])) == {5: ROWS, 6: ROWS}
    with pytest.raises(DataError, match=f"older limerank merged what was appended since .*{states[0][:12]}"):
        older.requests_since(states[0])
    again = append(older.path, raw_of(day_of(7), split=GlobalTime()))
    assert len(again.manifest.grown_until) == 1 < len(again.manifest.grown_from)
    assert days_in(again, again.requests_since(states[-1])) == {7: ROWS}


def test_what_was_taken_back_is_not_new(tmp_path: Path) -> None:
    dataset, before = grown(tmp_path / "d", GlobalTime(), appended=2)
    gone = dataset.fingerprint
    undo(dataset.path)
    dataset = StoredDataset.open(dataset.path)
    assert days_in(dataset, dataset.requests_since(before)) == {4: ROWS}
    with pytest.raises(DataError, match=f"never had the fingerprint {gone[:12]}.* taken back"):
        dataset.requests_since(gone)
    dataset = append(dataset.path, raw_of(day_of(6), split=GlobalTime()))
    assert days_in(dataset, dataset.requests_since(before)) == {4: ROWS, 6: ROWS}
    assert len(dataset.manifest.grown_until) == len(dataset.manifest.grown_from) == 2


PARTS_OF_A_NEW_DAY: dict[str, tuple[Split, dict[Part, int]]] = {
    "by time, one day of five": (GlobalTime(), {Part.VALIDATION: ROWS // 2, Part.TEST: ROWS // 2}),
    "by time, the test part as long as a day": (GlobalTime(test_fraction=0.2), {Part.TEST: ROWS}),
    "by days": (Days(), {Part.TEST: ROWS}),
    "by days, training days fixed": (Days(train_days=2), {Part.TEST: ROWS}),
    "per user, one event each": (LastEvents(), {Part.TRAIN: ROWS - 8, Part.VALIDATION: 4, Part.TEST: 4}),
    "per user, a fraction": (LastFraction(), {Part.VALIDATION: 0, Part.TEST: ROWS}),
}


@pytest.mark.parametrize("name", PARTS_OF_A_NEW_DAY)
def test_the_parts_of_a_new_day_are_not_for_training_but_time_is(name: str, tmp_path: Path) -> None:
    """What `append` makes of a new day differs by protocol; what a run that goes on makes of it does not."""
    split, parts = PARTS_OF_A_NEW_DAY[name]
    dataset, before = grown(tmp_path / "d", split)
    counted = {part: len(dataset.requests_since(before, part)) for part in Part}
    assert {part: count for part, count in counted.items() if count} == {p: c for p, c in parts.items() if c}
    day = new_day(dataset, before)
    check(dataset, before, day)
    assert [len(one) for one in (day.train_requests, day.validation_requests, day.test_requests)] == [32, 4, 4]
    assert day.text == (
        f"40 new requests from {time_text(START + 4 * DAY)} to {time_text(START + 4 * DAY + 19 * 60_000)}: "
        "32 train, 4 select, 4 measure"
    )


def check(dataset: StoredDataset, since: str, day: NewDay) -> None:
    """All new requests are used once, and what trains is before what selects, and that before what measures."""
    assert day.requests.tolist() == dataset.requests_since(since).tolist()
    start, time = dataset.column("requests/start"), dataset.column("events/time")
    train, select, measure = (
        time[start[one]] for one in (day.train_requests, day.validation_requests, day.test_requests)
    )
    assert train.max() < select.min()
    assert select.max() == day.trained_until < measure.min()
    assert (day.first_time, day.last_time) == (train.min(), measure.max())


def cut_by_hand(times: list[int], validation: float, test: float) -> tuple[int, int, int]:
    """How many train, select and measure: the last fraction, and all that happened at the same time as its first."""
    measured = [time for time in times if time >= sorted(times)[int(len(times) * (1 - test))]]
    rest = sorted(time for time in times if time < min(measured))
    if len(rest) < 2:
        return len(rest), 0, len(measured)
    selected = [time for time in rest if time >= rest[int(len(rest) * (1 - validation / (1 - test)))]]
    return len(rest) - len(selected), len(selected), len(measured)


@settings(max_examples=12)
@given(
    times=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    validation=st.sampled_from([0.05, 0.1, 0.4]),
    test=st.sampled_from([0.05, 0.1, 0.4]),
)
def test_any_new_day_is_cut_by_time_or_refused(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], validation: float, test: float
) -> None:
    folder = tmp_path_factory.mktemp("day") / "d"
    before = prepare(raw_of(*map(day_of, range(2)), split=GlobalTime()), folder).fingerprint
    later = pl.DataFrame(
        {
            "user_id": np.arange(len(times)),
            "item_id": 1,
            "time": START + 3 * DAY + np.array(times) * 1000,
            "click": 0,
        }
    )
    dataset = append(folder, raw_of(later, split=GlobalTime()))
    counts = cut_by_hand(times, validation, test)
    if 0 in counts:
        with pytest.raises(DataError, match=f"the {len(times)} requests appended since .* leave none for"):
            new_day(dataset, before, validation_fraction=validation, test_fraction=test)
    else:
        day = new_day(dataset, before, validation_fraction=validation, test_fraction=test)
        check(dataset, before, day)
        assert (len(day.train_requests), len(day.validation_requests), len(day.test_requests)) == counts


def test_three_new_requests_are_enough_and_none_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    dataset, before = grown(tmp_path / "d", GlobalTime(), appended=0)
    with pytest.raises(DataError, match="nothing was appended since .* limerank append .*d --events FILE"):
        new_day(dataset, before)
    few = day_of(5)[::2][:3]
    dataset = append(dataset.path, raw_of(few, split=GlobalTime()))
    day = new_day(dataset, before)
    check(dataset, before, day)
    assert len(day.requests) == 3


def test_what_a_column_says_of_new_rows_holds(tmp_path: Path) -> None:
    """History-only rows stay so, named test rows are tested on though earlier; the rest is cut by time."""
    split = ByColumn(column="part")
    old = [day_of(number, part=np.resize(["train", "train", "test"], ROWS)) for number in range(3)]
    before = prepare(raw_of(*old, split=split), tmp_path / "d").fingerprint
    named = np.resize(["train", "train", "none", "test"], ROWS)
    dataset = append(tmp_path / "d", raw_of(day_of(3, part=named), split=split))
    day = new_day(dataset, before)
    assert len(day.requests) == ROWS * 3 // 4 < len(dataset.requests_since(before))
    assert set(dataset.column("requests/named_part")[day.test_requests]) == {Part.TEST.code}
    assert len(day.test_requests) == ROWS // 4
    rest = np.concatenate([day.train_requests, day.validation_requests])
    assert set(dataset.column("requests/named_part")[rest]) == {Part.TRAIN.code}
    start, time = dataset.column("requests/start"), dataset.column("events/time")
    assert time[start[day.train_requests]].max() < time[start[day.validation_requests]].min()
    assert day.trained_until == time[start[rest]].max()
    between = dataset.fingerprint
    dataset = append(tmp_path / "d", raw_of(day_of(4, part=["train"] * ROWS), split=split))
    check(dataset, between, new_day(dataset, between))  # a day of training rows only is cut by time


def test_a_loader_takes_the_requests_of_a_new_day(tmp_path: Path) -> None:
    """In order of time, with the histories that reach back into the days before."""
    dataset, before = grown(tmp_path / "d", GlobalTime(), appended=2)
    day = new_day(dataset, before)
    loader = RequestLoader(dataset, day.train_requests, batch_requests=16, max_history=30, order="time")
    planned = np.concatenate(loader.plan())
    assert sorted(planned.tolist()) == day.train_requests.tolist()
    assert (np.diff(loader.times(planned)) >= 0).all()
    first = next(iter(loader))
    assert first.inputs.history.offsets.diff().tolist() == [30] * 16
