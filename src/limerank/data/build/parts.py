"""Split protocols applied: which requests train, which select and which test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from limerank.errors import DataError
from limerank.splits import NO_PART, ByColumn, Days, GlobalTime, LastEvents, LastFraction, Part, Split

Ints = NDArray[np.int64]
Codes = NDArray[np.uint8]
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
CARVING_SEED = 20_260


@dataclass(frozen=True)
class Requests:
    """What a split needs to know of every request; for one user they stand in order of time."""

    user: Ints
    size: Ints
    """Number of events."""
    time: Ints | None
    named: Codes | None
    """The part that a column names."""

    def __len__(self) -> int:
        return len(self.user)


def assign(split: Split, requests: Requests) -> Codes:
    """The part code of each request; an empty part is an error that says what to change."""
    parts = _assign(split, requests)
    for part in Part:
        if part is Part.VALIDATION and split.select_on_test:
            continue
        if not np.any(parts == part.code):
            cut = isinstance(split, LastEvents | LastFraction) and requests.size.max() > 1
            hint = f" (a request goes where its first event is; some have {requests.size.max()})" if cut else ""
            counted = f"{part.value} part of {len(requests):,} requests{hint}"
            raise DataError(
                f"split '{split.protocol}' leaves no request in the {counted}; "
                "give a longer log, or change 'split' in the description of the dataset"
            )
    return parts


def _assign(split: Split, requests: Requests) -> Codes:
    if isinstance(split, ByColumn):
        return _by_column(split, requests)
    if requests.time is None:
        raise DataError(f"split '{split.protocol}' needs times; a log without them is split by a column")
    if isinstance(split, GlobalTime):
        return _global_time(split, requests.time)
    if isinstance(split, Days):
        return _days(split, requests.time)
    return _last_of_user(split, requests)


def _global_time(split: GlobalTime, time: Ints) -> Codes:
    """Requests of one time are never cut in two."""
    ordered = np.sort(time)
    count = len(ordered)
    test = ordered[min(count - 1, int(count * (1 - split.test_fraction)))]
    if split.select_on_test:
        validation = test
    else:
        validation = ordered[int(count * (1 - split.test_fraction - split.validation_fraction))]
    if not ordered[0] < validation or not (validation < test or split.select_on_test):
        raise DataError(
            f"the log has too few different request times ({len(np.unique(ordered))}) to split by time; "
            "give it a longer log or smaller fractions"
        )
    return np.searchsorted(np.array([validation, test]), time, side="right").astype(np.uint8)


def _days(split: Days, time: Ints) -> Codes:
    day = (time + int(split.utc_offset_hours * HOUR_MS)) // DAY_MS
    first, last = int(day.min()), int(day.max())
    test_from = last + 1 - split.test_days
    train_until = test_from if split.train_days is None else first + split.train_days
    validation_from = train_until - (0 if split.select_on_test else split.validation_days)
    if validation_from <= first:
        raise DataError(
            f"split 'days': {train_until - first} training days of a log of {last - first + 1} days leave none beside "
            f"{split.validation_days} validation days; change 'split' or give a longer log"
        )
    if train_until > test_from:
        raise DataError(
            f"the log has {last - first + 1} days, too few for split 'days' (train {split.train_days}, validation "
            f"among them, test {split.test_days}); change 'split' or give a longer log"
        )
    parts = np.full(len(time), NO_PART, dtype=np.uint8)
    parts[day < validation_from] = Part.TRAIN.code
    parts[(day >= validation_from) & (day < train_until)] = Part.VALIDATION.code
    parts[day >= test_from] = Part.TEST.code
    return parts


def _last_of_user(split: LastEvents | LastFraction, requests: Requests) -> Codes:
    """A request goes where its first event is."""
    order = np.argsort(requests.user, kind="stable")
    user, size = requests.user[order], requests.size[order]
    first = np.flatnonzero(np.r_[True, user[1:] != user[:-1]])
    of_user = np.repeat(np.arange(len(first)), np.diff(np.r_[first, len(user)]))
    before = np.cumsum(size) - size
    position = before - before[first][of_user]
    total = np.add.reduceat(size, first)[of_user]
    if isinstance(split, LastFraction):
        test = np.floor(total * split.test_fraction).astype(np.int64)
        validation = np.floor(total * split.validation_fraction).astype(np.int64)
    else:
        test = np.full_like(total, split.test_events)
        validation = np.full_like(total, split.validation_events)
    if split.select_on_test:
        validation = np.zeros_like(validation)
    ordered = (position >= total - test - validation).astype(np.uint8) * Part.VALIDATION.code
    ordered[position >= total - test] = Part.TEST.code
    parts = np.empty(len(user), dtype=np.uint8)
    parts[order] = ordered
    return parts


def _by_column(split: ByColumn, requests: Requests) -> Codes:
    assert requests.named is not None
    parts = requests.named.copy()
    if split.validation or split.select_on_test:
        return parts
    train = np.flatnonzero(parts == Part.TRAIN.code)
    if not len(train):
        return parts
    if requests.time is not None:
        time = requests.time[train]
        boundary = np.sort(time)[int(len(train) * (1 - split.validation_fraction))]
        carved = train[time >= boundary]
    else:
        shuffled = np.random.default_rng(CARVING_SEED).permutation(train)
        carved = shuffled[: max(1, round(len(train) * split.validation_fraction))]
    parts[carved] = Part.VALIDATION.code
    return parts
