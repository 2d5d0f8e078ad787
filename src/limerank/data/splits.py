"""Named split protocols: which requests train, which select and which test."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from limerank.errors import DataError
from limerank.schema import Split


class Part(StrEnum):
    """The three parts of a split, in the order their codes have on disk."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"

    @property
    def code(self) -> int:
        """The number that stands for this part in the store."""
        return list(Part).index(self)


def time_boundaries(request_time: NDArray[np.int64], split: Split) -> tuple[int, int]:
    """First time of the validation part and of the test part; a moment is never cut in two."""
    ordered = np.sort(request_time)
    count = len(ordered)
    test = int(ordered[min(count - 1, int(count * (1 - split.test_fraction)))])
    validation = int(ordered[int(count * (1 - split.test_fraction - split.validation_fraction))])
    if not ordered[0] < validation < test:
        raise DataError(
            f"the log has too few different request times ({len(np.unique(ordered))}) to split by time; "
            "give it a longer log or smaller fractions"
        )
    return validation, test


def assign(request_time: NDArray[np.int64], boundaries: tuple[int, int]) -> NDArray[np.uint8]:
    """The part code of each request."""
    return np.searchsorted(np.array(boundaries), request_time, side="right").astype(np.uint8)
