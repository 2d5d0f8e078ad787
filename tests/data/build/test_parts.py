"""Split protocols: every request has one part, and it is the one the rule says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limerank.data.build.parts import DAY_MS, Requests, assign
from limerank.errors import DataError
from limerank.schema import Schema
from limerank.splits import NO_PART, ByColumn, Days, GlobalTime, LastEvents, LastFraction, Part, Split
from limerank.typed import validate

TRAIN, VALIDATION, TEST = (part.code for part in Part)


def requests_of(rows: list[tuple[int, int]], size: list[int] | None = None, named: list[int] | None = None) -> Requests:
    """Requests from (user, time), ordered as the store orders them."""
    ordered = sorted(rows)
    return Requests(
        user=np.array([user for user, _ in ordered]),
        size=np.array(size or [1] * len(rows)),
        time=np.array([time for _, time in ordered]),
        named=np.array(named, dtype=np.uint8) if named is not None else None,
    )


users_and_times = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), min_size=20, max_size=80, unique=True)


@given(users_and_times, st.floats(0.1, 0.3), st.floats(0.1, 0.3))
def test_global_time_never_cuts_a_moment_and_keeps_the_order(
    rows: list[tuple[int, int]], validation: float, test: float
) -> None:
    requests = requests_of(rows)
    assert requests.time is not None
    try:
        parts = assign(GlobalTime(validation_fraction=validation, test_fraction=test), requests)
    except DataError:
        return  # too few different times
    bounds = [(requests.time[parts == p].min(), requests.time[parts == p].max()) for p in (TRAIN, VALIDATION, TEST)]
    assert bounds[0][1] < bounds[1][0] <= bounds[1][1] < bounds[2][0]
    without = assign(GlobalTime(test_fraction=test, select_on_test=True), requests)
    assert set(without.tolist()) == {TRAIN, TEST}
    assert ((without == TEST) == (parts == TEST)).all()


def test_days_literally_as_the_paper_says() -> None:
    """First 14 days train, last 2 days test, the days between are history only; midnight is where the users live."""
    hours = [(1, day * DAY_MS + 3_600_000 * hour) for day in range(31) for hour in (0, 15, 17)]
    requests = requests_of(hours)
    parts = assign(Days(train_days=14, validation_days=1, test_days=2, utc_offset_hours=8), requests)
    assert requests.time is not None
    local_day = (requests.time + 8 * 3_600_000) // DAY_MS
    expected = np.select(
        [local_day < 13, local_day < 14, local_day >= 30],  # 31 days of UTC reach into a 32nd day at UTC+8
        [TRAIN, VALIDATION, TEST],
        NO_PART,
    )
    assert parts.tolist() == expected.tolist()
    whole = assign(Days(test_days=2), requests)
    assert NO_PART not in whole
    assert (whole == VALIDATION).sum() == 3
    with pytest.raises(DataError, match="the log has 31 days, too few for split 'days'"):
        assign(Days(train_days=30, test_days=2), requests)


@given(users_and_times, st.integers(1, 3), st.integers(1, 3), st.data())
def test_last_events_of_each_user(rows: list[tuple[int, int]], validation: int, test: int, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=len(rows), max_size=len(rows)))
    requests = requests_of(rows, sizes)
    rule = LastEvents(validation_events=validation, test_events=test)
    try:
        parts = assign(rule, requests)
    except DataError:
        return  # some part is empty
    for user in set(requests.user.tolist()):
        mine = np.flatnonzero(requests.user == user)
        labels = np.repeat(mine, requests.size[mine])  # one entry per event
        for request in mine:
            first_event = int(np.flatnonzero(labels == request)[0])
            left = len(labels) - first_event  # events from here to the end
            expected = TEST if left <= test else VALIDATION if left <= test + validation else TRAIN
            assert parts[request] == expected


def test_last_fraction_of_each_user() -> None:
    requests = requests_of([(user, time) for user in (1, 2) for time in range(10 * user)])
    parts = assign(LastFraction(test_fraction=0.2, validation_fraction=0.1), requests)
    assert [int((parts[requests.user == user] == TEST).sum()) for user in (1, 2)] == [2, 4]
    assert [int((parts[requests.user == user] == VALIDATION).sum()) for user in (1, 2)] == [1, 2]
    assert parts[requests.user == 1].tolist() == [TRAIN] * 7 + [VALIDATION] + [TEST] * 2
    selected = assign(LastFraction(test_fraction=0.2, select_on_test=True), requests)
    assert set(selected.tolist()) == {TRAIN, TEST}


def test_a_column_names_the_parts_and_validation_is_carved_from_the_end_of_train() -> None:
    named = [TRAIN] * 10 + [TEST] * 4 + [NO_PART]
    requests = requests_of([(1, time) for time in range(15)], named=named)
    parts = assign(ByColumn(column="part", validation_fraction=0.2), requests)
    assert parts.tolist() == [TRAIN] * 8 + [VALIDATION] * 2 + [TEST] * 4 + [NO_PART]
    untimed = Requests(requests.user, requests.size, None, requests.named)
    carved = assign(ByColumn(column="part", validation_fraction=0.2), untimed)
    assert (carved == VALIDATION).sum() == 2
    assert carved[10:].tolist() == named[10:]
    assert assign(ByColumn(column="part", validation_fraction=0.2), untimed).tolist() == carved.tolist()
    assert assign(ByColumn(column="part", select_on_test=True), untimed).tolist() == named
    with pytest.raises(DataError, match="leaves no request in the validation part"):
        assign(ByColumn(column="part", validation=("v",)), untimed)


def schema_with(split: dict[str, Any]) -> Split:
    values = {"features": [{"name": "a", "role": "item"}], "tasks": [{"name": "c"}], "split": split}
    return validate(Schema, values, str(Path("dataset.yaml")), DataError).split


def test_a_split_is_typed_and_a_misspelt_key_suggests_the_near_one() -> None:
    assert schema_with({"test_fraction": 0.2}) == GlobalTime(test_fraction=0.2)
    assert schema_with({"protocol": "days", "test_days": 2}) == Days(test_days=2)
    with pytest.raises(DataError, match="unknown key 'split.tset_days'; did you mean 'test_days'?"):
        schema_with({"protocol": "days", "tset_days": 2})
    with pytest.raises(DataError, match="key 'split.protocol': unknown value 'dayz'; did you mean 'days'"):
        schema_with({"protocol": "dayz"})
    with pytest.raises(DataError, match="listed for two parts"):
        schema_with({"protocol": "column", "column": "c", "train": ["a"], "test": ["a"]})
