"""Labels that are there, and labels that are missing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from limerank.schema import MISSING_LABEL

MISSING = MISSING_LABEL

Labels = NDArray[np.generic]
Bools = NDArray[np.bool_]


def present(labels: Labels) -> Bools:
    """Where there is a label: not NaN, not 255."""
    if labels.dtype.kind == "f":
        return ~np.isnan(labels)
    return np.asarray(labels != MISSING)


def labeled(labels: Labels, *columns: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Labels and columns of the rows that have a label; the same ones where all have."""
    there = present(labels)
    if there.all():
        return labels, *columns
    return labels[there], *(column[there] for column in columns)


def positive(labels: NDArray[Any]) -> Bools:
    """Where the label is one; for rows that have a label."""
    return np.asarray(labels > 0)
