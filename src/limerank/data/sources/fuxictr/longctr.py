"""LongCTR's side tables: `user_info` with one full sequence per user, `item_info` with the features of items.

Rows of both are addressed by their number; row 0 of `item_info` is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from limerank.data.sources.fuxictr import files
from limerank.data.sources.fuxictr.config import Column, Configuration
from limerank.data.sources.fuxictr.files import Reader
from limerank.errors import DataError
from limerank.schema import Feature, Kind, Role

SEQUENCE = "full_item_seq"
SEQUENCE_LENGTH = "seq_len"


@dataclass(frozen=True)
class SideTables:
    """The two tables, not read yet."""

    user_info: Path
    item_info: Path
    user_id: str
    item_id: str
    columns: tuple[Column, ...]
    user_columns: tuple[str, ...]
    item_columns: tuple[str, ...]

    @property
    def names(self) -> dict[str, str]:
        """How to call them in an error."""
        return {"items": str(self.item_info), "users": str(self.user_info)}

    def has(self, column: Column) -> bool:
        """Whether a feature stands in one of the tables, not in the rows."""
        return column.copied_from in self.item_columns or column.copied_from in self.user_columns

    def located(self) -> dict[str, Role]:
        """Features that stand in one of the tables, which says whom they describe."""
        found = {column.name: Role.USER for column in self.columns if column.copied_from in self.user_columns}
        return found | {column.name: Role.ITEM for column in self.columns if column.copied_from in self.item_columns}

    def frames(self, features: Sequence[Feature], processed: bool) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Items without the padding row, and users with their sequences."""
        items = self._read(self.item_info, self.item_id, self.item_columns, features, Role.ITEM, processed)
        users = self._read(self.user_info, self.user_id, self.user_columns, features, Role.USER, processed)
        sequences = files.scan(self.user_info, "parquet").select(pl.col(SEQUENCE)).collect()[SEQUENCE]
        return items.slice(1), users.with_columns(sequences)

    def _read(
        self, path: Path, id_column: str, there: Sequence[str], features: Sequence[Feature], role: Role, processed: bool
    ) -> pl.DataFrame:
        named = {feature.name: feature for feature in features if feature.role is role}
        chosen = [column for column in self.columns if column.name in named and column.copied_from in there]
        chosen = [column for column in chosen if column.name != id_column]
        lists = [column.name for column in chosen if named[column.name].kind is Kind.MULTI_VALUED]
        reader = Reader(
            "parquet",
            tuple(files.wanted_column(column, processed=processed) for column in chosen),
            tuple((name,) for name in lists) if processed else (),
        )
        rows = files.scan(path, "parquet").select(pl.len()).collect().item()
        numbers = pl.Series(id_column, range(rows), dtype=pl.Int64)
        if id_column in there:
            stored = files.scan(path, "parquet").select(pl.col(id_column).cast(pl.Int64)).collect()[id_column]
            wrong = (stored != numbers).fill_null(True).arg_true()
            if len(wrong):
                raise DataError(
                    f"{path}: row {wrong[0]} has {id_column} {stored[wrong[0]]}; rows are addressed by their number, "
                    f"so sort the file by {id_column}, without gaps from 0"
                )
        return reader.table(path).insert_column(0, numbers) if chosen else numbers.to_frame()


def read_side_tables(
    configuration: Configuration, columns: Sequence[Column], user_id: str, item_id: str, data_root: Path | None
) -> SideTables | None:
    """The side tables of a configuration, if it has them."""
    dataset = configuration.dataset
    if dataset.user_info is None and dataset.item_info is None:
        return None
    if dataset.user_info is None or dataset.item_info is None:
        missing = "item_info" if dataset.item_info is None else "user_info"
        raise DataError(f"{configuration.where}: {missing} is missing; LongCTR's layout needs user_info and item_info")
    (user_info,) = files.find_files(configuration, dataset.user_info, "user_info", data_root)
    (item_info,) = files.find_files(configuration, dataset.item_info, "item_info", data_root)
    user_columns = files.scan(user_info, "parquet").collect_schema().names()
    if SEQUENCE not in user_columns:
        raise DataError(f"{user_info}: column '{SEQUENCE}' is missing; it holds the full sequence of each user")
    item_columns = files.scan(item_info, "parquet").collect_schema().names()
    return SideTables(user_info, item_info, user_id, item_id, tuple(columns), tuple(user_columns), tuple(item_columns))
