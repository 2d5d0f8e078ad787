"""The rows of a table's files: as parts of the events, and as people see them in an editor, with their lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import takewhile

import polars as pl

from limerank.data.raw.log import ROWS_PER_BATCH, EventFile, WholeRows, counted, name_of_row
from limerank.data.sources.table.files import IS_ROW, TableFile, explained
from limerank.data.sources.table.lines import raw_lines


def as_events(file: TableFile, needed: Collection[str]) -> EventFile:
    """A file as a part of the events, with the columns that are needed."""
    chosen = tuple(column for column in file.columns if column in needed)
    return EventFile(str(file.path), chosen, lambda: file.batches(chosen), file.rows(), whole_rows(file, chosen))


def whole_rows(file: TableFile, columns: Sequence[str]) -> WholeRows:
    """The rows again: those of CSV with all columns and the numbers of their lines, those of Parquet as they are."""
    if not file.is_csv:
        return WholeRows(tuple(columns), lambda: counted(file.batches(columns)))
    separator = file.dialect.separator_of(file.path)
    return WholeRows(file.columns, lambda: _with_lines(file), "line", separator, file.dialect.quote)


def row_names(files: Sequence[TableFile]) -> Callable[[int], str]:
    """How to call a row of a whole table: by its line, and by its file if there are several."""
    return lambda row: name_of_row(row, [(str(file.path), whole_rows(file, file.columns)) for file in files])


def _with_lines(file: TableFile) -> Iterator[tuple[pl.Series, pl.DataFrame]]:
    """Lines count from 1 and through everything: empty lines, the header, and line breaks inside of quotes."""
    with explained(file.path, file.dialect):
        skipped = sum(1 for _ in takewhile(lambda line: not line.strip(b"\r\n"), raw_lines(file.path)))
        next_line = skipped + 2 + sum(name.count("\n") for name in file.columns)
        for batch in file.lazy.collect_batches(chunk_size=ROWS_PER_BATCH):
            breaks = pl.sum_horizontal(pl.all().str.count_matches("\n", literal=True).fill_null(0))
            lines = batch.select(1 + breaks.cast(pl.Int64)).to_series()
            first = next_line + lines.cum_sum() - lines
            next_line += int(lines.sum())
            rows = batch.select(IS_ROW).to_series()
            yield first.filter(rows), batch.filter(rows)
