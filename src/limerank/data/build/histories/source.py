"""What building a segment asks of histories, wherever they come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.build.dictionary import Codes
from limerank.data.build.fit import Counted
from limerank.data.raw.location import Location
from limerank.data.store.encoders import Encoder, Encoders
from limerank.schema import Role

Ints = NDArray[np.int64]
Pointers = Mapping[str, Ints]
"""By name, what a source notes of every request while events are sorted."""


@dataclass(frozen=True)
class Shown:
    """What histories of training requests show besides the training events themselves."""

    events: tuple[Encoder, ...] = ()
    """Fitted encoders of event features that stand in histories only."""
    items: tuple[Ints, ...] = ()
    """How often each row of the item table is shown."""
    words: dict[str, Counted] = field(default_factory=dict)
    """Texts of item features that histories show themselves, by feature."""


class HistorySource(ABC):
    """Asked from top to bottom: while events are read, while they are sorted, when encoders are fitted, at the end.

    Where it is not said otherwise, a source has nothing to answer.
    """

    event_roles: tuple[Role, ...]
    """The roles of the features that stand in the events, as opposed to the histories."""
    needed: Sequence[str] = ()
    """The columns of the events that the source reads itself."""

    def clean(self, batch: pl.DataFrame, location: Location) -> dict[str, pl.Series]:
        """Columns of a spill that are checked together with the other values of a batch."""
        return {}

    def take(self, batch: pl.DataFrame, location: Location) -> dict[str, pl.Series]:
        """More of them, of a batch whose bad rows are set aside; what it holds is remembered."""
        return {}

    def finish(self) -> None:  # noqa: B027
        """All events are read."""

    def close(self) -> None:  # noqa: B027
        """Close files, also when reading ended with an error."""

    def final_columns(self, spill: pl.DataFrame, users: Codes) -> dict[str, pl.Series]:
        """Columns to add to a spill, or to replace in it, before its events are sorted; `users` are its user codes."""
        return {}

    def order_keys(self, context: list[str]) -> list[str]:
        """Columns that order requests of one user and time, and tell them apart; `context` names those of context."""
        return []

    identity_keys: Sequence[str] = ()
    """Columns that tell them apart too, but depend on the order of arrival, so nothing may be sorted by them."""

    @abstractmethod
    def pointers(self, block: pl.DataFrame, start: Ints, time_start: Ints) -> dict[str, NDArray[Any]]:
        """What to note of requests: `start` is the first row of each in a block of sorted events.

        `time_start` is the first event, counted through the segment, of the request's user and time.
        """

    def shown(self, pointers: Pointers, weights: Ints, item_rows: Ints, items: int) -> Shown:
        """What training shows in histories; `weights` says how many training events each request has.

        `item_rows` is the item-table row of each code of an item id, `items` the size of that table.
        """
        return Shown()

    @abstractmethod
    def write(self, folder: Path, pointers: Pointers, encoders: Encoders, item_rows: Ints) -> int:
        """Write where the history of each request is, and histories that no events hold.

        Returns how many rows the table of their items has, if they are not those of the catalog.
        """
