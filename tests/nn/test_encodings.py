"""Encodings: which row of the table each event gets, and which of them stay when an event is added or time passes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from limerank.batch import Features, History, UserInputs
from limerank.errors import DataError
from limerank.nn.encodings import (
    AGE_BUCKETS,
    KEEPS_CACHES,
    TIMED,
    Encoding,
    HistoryEncoding,
    age_buckets,
    hour_and_weekday,
)

WIDTH = 3
NOON = 1_769_860_800_000  # Saturday, 2026-01-31T12:00:00Z
ENCODINGS: list[Encoding] = [encoding for encoding in get_args(Encoding) if encoding != "none"]


def inputs_of(lengths: list[int], times: list[int] | None = None, request_times: list[int] | None = None) -> UserInputs:
    """Requests with histories of these lengths; encodings read nothing but offsets and times."""
    total = sum(lengths)
    nothing = Features(torch.zeros(len(lengths), 0, dtype=torch.long))
    history = History(
        items=Features(torch.zeros(1, 0, dtype=torch.long)),
        item_of_event=torch.zeros(total, dtype=torch.long),
        events=Features(torch.zeros(total, 0, dtype=torch.long)),
        offsets=torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]),
        times=None if times is None else torch.tensor(times, dtype=torch.long),
    )
    return UserInputs(nothing, nothing, history, None if request_times is None else torch.tensor(request_times))


def module_of(encoding: Encoding, positions: int = 64) -> HistoryEncoding:
    """An encoding whose rows are all different."""
    module = HistoryEncoding(encoding, WIDTH, positions)
    torch.nn.init.normal_(module.table, generator=torch.Generator().manual_seed(1))
    return module


def added(module: HistoryEncoding, inputs: UserInputs) -> Tensor:
    """What is added to each event."""
    encoded: Tensor = module(torch.zeros(inputs.history.item_of_event.shape[0], WIDTH), inputs)
    return encoded.detach()


@given(st.lists(st.integers(-62_135_596_800_000, 253_402_300_799_999), min_size=1, max_size=20))
def test_the_calendar_is_that_of_datetime(times: list[int]) -> None:
    """Every millisecond from the year 1 to 9999, before 1970 too."""
    hour, weekday = hour_and_weekday(torch.tensor(times))
    dates = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time) for time in times]
    assert hour.tolist() == [date.hour for date in dates]
    assert weekday.tolist() == [date.weekday() for date in dates]


def test_the_calendar_turns_exactly_at_the_hour_and_at_midnight() -> None:
    midnight = NOON + 12 * 3_600_000
    hour, weekday = hour_and_weekday(torch.tensor([NOON - 1, NOON, midnight - 1, midnight, -1, 0]))
    assert hour.tolist() == [11, 12, 23, 0, 23, 0]
    assert weekday.tolist() == [5, 5, 5, 6, 2, 3]


def test_calendar_rows_do_not_mix_hours_and_days() -> None:
    """An event gets the row of its hour and the row of its day, behind the 24 hours."""
    module = module_of("calendar")
    assert module.table.shape[0] == 24 + 7
    times = [NOON, NOON + 3_600_000, NOON + 86_400_000]
    expected = module.table[[12, 13, 12]] + module.table[[24 + 5, 24 + 5, 24 + 6]]
    assert torch.equal(added(module, inputs_of([2, 1], times)), expected)


@given(st.lists(st.integers(-(10**13), 10**15), min_size=2, max_size=20))
def test_age_buckets_grow_with_age(ages: list[int]) -> None:
    buckets = age_buckets(torch.tensor(sorted(ages))).tolist()
    assert buckets == sorted(buckets)
    whole_seconds = [max(1, age // 1000) for age in sorted(ages)]
    assert buckets == [min(seconds.bit_length() - 1, AGE_BUCKETS - 1) for seconds in whole_seconds]


def test_age_buckets_begin_exactly_at_powers_of_two() -> None:
    for power in range(1, AGE_BUCKETS):
        start = 1000 * 2**power
        assert age_buckets(torch.tensor([start - 1, start, start + 1])).tolist() == [power - 1, power, power]
    assert age_buckets(torch.tensor([-5, 0, 999, 1000, 1999])).tolist() == [0] * 5
    assert age_buckets(torch.tensor([10**18])).tolist() == [AGE_BUCKETS - 1]


def test_ages_count_from_the_request_of_the_event() -> None:
    """The same event is an hour old for one request and a day for another."""
    module = module_of("age")
    inputs = inputs_of([1, 0, 2], [NOON, NOON, NOON + 1], [NOON + 3_600_000, NOON, NOON + 86_400_000])
    assert torch.equal(added(module, inputs), module.table[[11, 16, 16]])  # 2^11 s <= 1 h < 2^12 s, 2^16 s <= 1 d


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_positions_count_within_each_request(lengths: list[int]) -> None:
    """From the start and from the end, whatever the lengths beside; beyond the table the last row is shared."""
    forwards, backwards = module_of("position", 7), module_of("recent_position", 7)
    inputs = inputs_of(lengths)
    expected = [min(position, 6) for length in lengths for position in range(length)]
    assert torch.equal(added(forwards, inputs), forwards.table[expected])
    expected = [min(length - 1 - position, 6) for length in lengths for position in range(length)]
    assert torch.equal(added(backwards, inputs), backwards.table[expected])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_no_event_at_all(encoding: Encoding) -> None:
    assert added(module_of(encoding), inputs_of([0], [], [NOON])).shape == (0, WIDTH)
    assert added(module_of(encoding), inputs_of([0, 0], [], [NOON, NOON])).shape == (0, WIDTH)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_row_that_is_used_is_learned(encoding: Encoding) -> None:
    """The gradient of a row counts how often it was added."""
    module = module_of(encoding)
    module(torch.zeros(2, WIDTH), inputs_of([2], [NOON, NOON + 1], [NOON + 2])).sum().backward()
    assert module.table.grad is not None
    assert int(module.table.grad[:, 0].sum()) == (4 if encoding == "calendar" else 2)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_caches_are_kept_exactly_where_old_rows_stay(encoding: Encoding) -> None:
    """An event is appended, below the longest history, and time passes: the rows of the old events stay or change."""
    module = module_of(encoding)
    times = [NOON - 3_600_000 * age for age in (700, 40, 3, 1)]
    before = added(module, inputs_of([4], times, [NOON]))
    appended = added(module, inputs_of([5], [*times, NOON], [NOON + 1]))[:4]
    later = added(module, inputs_of([4], times, [NOON + 30 * 86_400_000]))
    assert (torch.equal(appended, before) and torch.equal(later, before)) == KEEPS_CACHES[encoding]
    assert set(KEEPS_CACHES) == set(get_args(Encoding))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_without_times_only_positions_work(encoding: Encoding) -> None:
    module, inputs = module_of(encoding), inputs_of([2], None, [NOON])
    if encoding not in TIMED:
        assert torch.isfinite(added(module, inputs)).all()
        return
    with pytest.raises(DataError, match=f"key 'model.encoding': '{encoding}' needs the time of every event"):
        added(module, inputs)
