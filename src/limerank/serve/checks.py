"""Ids as callers give them: texts, or whole numbers that stand for texts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from limerank.errors import UsageError


def checked_ids(ids: Iterable[object], name: str) -> list[str]:
    """Ids as texts, from a list, an array or a series of them; one text or a frame is a mistake."""
    if isinstance(ids, str) or not isinstance(ids, Iterable) or hasattr(ids, "columns"):
        raise UsageError(f"{name}: {type(ids).__name__} is no list of ids; pass a list, an array or a series")
    listed = list(ids)
    try:
        "".join(listed)  # type: ignore[arg-type]  # refuses what is no text, several times faster than a loop does
    except TypeError:
        return [checked_id(one, name) for one in listed]
    return listed  # type: ignore[return-value]


def checked_id(value: object, name: str) -> str:
    """An id as the text it was in the log; whole numbers may come as such."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(value)
    raise UsageError(f"{name}: {value!r} is no id; ids are texts or whole numbers")
