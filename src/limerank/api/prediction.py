"""New rows scored by a run: a frame at once, or files of any length block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import torch

from limerank.data.new_rows import ROWS, RowReader
from limerank.data.raw.location import Location
from limerank.data.raw.log import EventFile
from limerank.data.sources.given import Table, read_one
from limerank.data.store.dataset import StoredDataset
from limerank.errors import UsageError
from limerank.evaluation.evaluate import EVALUATION_BATCH
from limerank.progress import Bar
from limerank.training.run import FinishedRun

PREDICTED = "predicted_"
ROWS_PER_BLOCK = 65_536


@dataclass
class Scored:
    """What was scored: how many rows, into which columns, and how many are of ids that the dataset does not know."""

    columns: list[str]
    rows: int = 0
    strangers: dict[str, int] = field(default_factory=lambda: {"items": 0, "users": 0})

    def note(self) -> str:
        """What to know of strangers, once for all rows; empty if there are none."""
        told = [
            f"{count:,} are of {what} that the dataset does not know" for what, count in self.strangers.items() if count
        ]
        return f"of {self.rows:,} rows {' and '.join(told)}" if told else ""


class RowScorer:
    """A run, ready to score raw rows; `items` and `users` describe ids that its dataset does not know."""

    def __init__(
        self, run: FinishedRun, dataset: StoredDataset, items: Table | None = None, users: Table | None = None
    ) -> None:
        csv = dataset.manifest.origin.get("csv")
        described = {"items": items, "users": users}
        tables = [None if table is None else read_one(table, name, csv) for name, table in described.items()]
        self.reader = RowReader(dataset, *tables)
        self.ranker = run.ranker(dataset)
        self.max_history = run.config.train.max_history
        self.done = Scored([f"{PREDICTED}{task.name}" for task in dataset.schema.tasks])

    def check_columns(self, columns: Sequence[str], where: str = ROWS) -> None:
        """Refuse rows that have a column of the name of a result already."""
        taken = [name for name in self.done.columns if name in columns]
        if taken:
            raise UsageError(f"{where}: column '{taken[0]}' is there already; rename or drop it")

    def score(self, rows: pl.DataFrame, bar: Bar, location: Location | None = None) -> pl.DataFrame:
        """Rows with a probability per task beside them, in the order in which they came."""
        new = self.reader.read(rows, location)
        probabilities = np.zeros((rows.height, len(self.done.columns)), dtype=np.float32)
        with torch.inference_mode():
            for numbers, batch in new.batches(EVALUATION_BATCH, self.max_history, with_times=self.ranker.needs_times):
                probabilities[numbers] = self.ranker(batch).sigmoid().numpy()
                bar.advance(len(numbers))
        self.done.rows += rows.height
        for what, count in new.strangers.items():
            self.done.strangers[what] += count
        return rows.with_columns(
            pl.Series(name, probabilities[:, number]) for number, name in enumerate(self.done.columns)
        )

    def score_files(
        self, files: Iterable[EventFile], bar: Bar, block_rows: int = ROWS_PER_BLOCK
    ) -> Iterator[pl.DataFrame]:
        """The rows of files in their order, a block at a time; errors name the file and the line."""
        columns: Sequence[str] | None = None
        for file in files:
            columns = columns or file.columns
            first_row = 1
            for batch in file.batches():
                for block in batch.select(columns).iter_slices(block_rows):
                    yield self.score(block, bar, Location(file.name, first_row, called=file.whole.name_of))
                    first_row += block.height
