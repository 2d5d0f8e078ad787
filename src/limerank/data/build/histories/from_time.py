"""Histories that follow from time: the events of a user before a request are its history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from numpy.typing import NDArray

from limerank.data.build.histories.source import HistorySource, Ints, Pointers
from limerank.data.store.column_files import save_column
from limerank.data.store.encoders import Encoders
from limerank.schema import Role

HISTORY_END = "history_end"


class FromTime(HistorySource):
    """The events themselves are the histories: there is nothing to read, fit or write but where each ends."""

    event_roles = (Role.EVENT, Role.CONTEXT)

    def pointers(self, block: pl.DataFrame, start: Ints, time_start: Ints) -> dict[str, NDArray[Any]]:
        """Everything of the user before the request's time is history; events of the same time are not."""
        return {HISTORY_END: time_start}

    def write(self, folder: Path, pointers: Pointers, encoders: Encoders, item_rows: Ints) -> int:
        """Write where histories end; where they begin follows from the user and `max_history`."""
        save_column(folder, f"requests/{HISTORY_END}", pointers[HISTORY_END])
        return 0
