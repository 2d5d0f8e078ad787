"""A new day of a dataset that has grown: what a run that knows the days before may learn from it, and what measures it.

The parts of a dataset do not say that. `append` applies the split rule to the longer log: by time, the new events are
the test part, wholly or nearly so, and with a fixed number of training days nothing new ever trains; per user, the last
events of everybody are tested on, new or not. Who goes on training needs another rule, and has a natural one:

    the new requests in order of time:   train  |  validation  |  test

Nothing is trained on that is as late as what selects or measures, so a run from before, which knows none of them, and
the run that goes on from it are measured on the same requests, which neither has seen. Where the split is by a column,
what it says holds: rows that it gives to no part stay history only, what it calls validation or test stays so, and only
what it does not name at all is cut by time, from the end of the rows that it calls training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.splits import NO_PART, ByColumn, Part
from limerank.times import time_text

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class NewDay:
    """The requests that a dataset has gained since one of its fingerprints, by what they are for.

    Request numbers, as `RequestLoader` takes them in place of a part; each of the three has at least one. They are the
    numbers of the dataset as it was opened: another append may change them, but not which requests they mean.
    """

    train_requests: Ints
    validation_requests: Ints
    """They choose the weights; later than all of `train_requests`, unless a column names them."""
    test_requests: Ints
    """They measure the run before and the run that goes on; later than all others, unless a column names them."""
    first_time: int
    last_time: int
    trained_until: int
    """The time of the last request that trains or selects, in milliseconds since 1970. The parts of the dataset may
    well call such requests its test part: what is not later than this must not measure a run that went on here."""

    @property
    def requests(self) -> Ints:
        """All of them, for measuring the run before on the whole day (predict, then train)."""
        return np.sort(np.concatenate([self.train_requests, self.validation_requests, self.test_requests]))

    @property
    def text(self) -> str:
        """`1,200 new requests from ... to ...: 960 train, 120 select, 120 measure`."""
        return (
            f"{len(self.requests):,} new requests from {time_text(self.first_time)} to {time_text(self.last_time)}: "
            f"{len(self.train_requests):,} train, {len(self.validation_requests):,} select, "
            f"{len(self.test_requests):,} measure"
        )


def new_day(
    dataset: StoredDataset, since: str, *, validation_fraction: float = 0.1, test_fraction: float = 0.1
) -> NewDay:
    """What was appended since the dataset had the fingerprint `since`, cut by time into train, validation and test.

    `since` is usually the fingerprint of the data that a run was trained on (`run.record.data_fingerprint`). Fractions
    are of the new requests; requests of one time are never cut in two. Nothing new, or too little to cut, is an error.
    """
    new = dataset.requests_since(since)
    if not len(new):
        raise DataError(
            f"{dataset.path}: nothing was appended since the fingerprint {since[:12]}; add the new events first: "
            f"limerank append {dataset.path} --events FILE"
        )
    time = dataset.column("events/time")[dataset.column("requests/start")[new]].astype(np.int64)
    parts = np.full(len(new), Part.TRAIN.code, dtype=np.uint8)
    if isinstance(dataset.schema.split, ByColumn):
        parts = dataset.column("requests/named_part")[new].astype(np.uint8)
    _cut(parts, time, validation_fraction, test_fraction)
    train, validation, test = (new[parts == part.code] for part in Part)
    for requests, part in ((train, Part.TRAIN), (validation, Part.VALIDATION), (test, Part.TEST)):
        if not len(requests):
            raise DataError(
                f"{dataset.path}: the {len(new):,} requests appended since the fingerprint {since[:12]} leave none for "
                f"{part.value}; append more events before going on"
            )
    used = time[parts != NO_PART]
    until = int(time[(parts == Part.TRAIN.code) | (parts == Part.VALIDATION.code)].max())
    return NewDay(train, validation, test, int(used.min()), int(used.max()), until)


def _cut(parts: NDArray[np.uint8], time: Ints, validation_fraction: float, test_fraction: float) -> None:
    """Carve what the column does not name, validation and test, from the end of what would train."""
    for part, fraction in ((Part.TEST, test_fraction), (Part.VALIDATION, validation_fraction / (1 - test_fraction))):
        left = np.flatnonzero(parts == Part.TRAIN.code)
        if len(left) > 1 and not np.any(parts == part.code):
            boundary = np.sort(time[left])[min(len(left) - 1, int(len(left) * (1 - fraction)))]
            parts[left[time[left] >= boundary]] = part.code
