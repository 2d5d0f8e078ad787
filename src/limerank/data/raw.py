"""A raw log in memory: three tables and their meaning, checked before anything is encoded."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from limerank.errors import DataError, did_you_mean
from limerank.schema import Feature, Kind, Role, Schema

LATEST_TIME = 253_402_300_800_000  # the year 10000


@dataclass(frozen=True)
class RawLog:
    """Events (one row per shown item), items and users, the schema that explains them, and where they came from."""

    schema: Schema
    events: pl.DataFrame
    items: pl.DataFrame
    users: pl.DataFrame
    origin: dict[str, str | int | float]
    names: dict[str, str]
    """How to call each table in an error: usually its file."""

    def check(self) -> None:
        """Raise a `DataError` naming table, column and fix for anything that cannot be encoded."""
        schema = self.schema
        _require_columns(self.events, self.names["events"], [schema.user_id, schema.item_id, schema.time])
        if schema.request_id:
            _require_columns(self.events, self.names["events"], [schema.request_id])
        for task in schema.tasks:
            _check_labels(self.events, self.names["events"], task.source_column)
            if task.true_probability:
                _check_probabilities(self.events, self.names["events"], task.true_probability)
        _check_ids(self.items, self.names["items"], schema.item_id)
        _check_ids(self.users, self.names["users"], schema.user_id)
        tables = {Role.ITEM: "items", Role.USER: "users", Role.EVENT: "events", Role.CONTEXT: "events"}
        for feature in schema.features:
            _check_feature(getattr(self, tables[feature.role]), self.names[tables[feature.role]], feature)
        if self.events.is_empty():
            raise DataError(f"{self.names['events']}: has no rows; a log needs at least one event")
        for column in (schema.user_id, schema.item_id):
            _check_id_type(self.events, self.names["events"], column)
        for column in (schema.user_id, schema.item_id, schema.time):
            empty = self.events[column].null_count()
            if empty:
                raise DataError(
                    f"{self.names['events']}: column '{column}' is empty in {empty} rows; drop or fill them"
                )
        _check_time(self.events, self.names["events"], schema.time)


def _require_columns(table: pl.DataFrame, name: str, columns: list[str]) -> None:
    for column in columns:
        if column not in table.columns:
            raise DataError(f"{name}: column '{column}' is missing{did_you_mean(column, table.columns)}")


def _check_labels(table: pl.DataFrame, name: str, column: str) -> None:
    _require_columns(table, name, [column])
    labels = table[column]
    if not (labels.dtype.is_numeric() or labels.dtype == pl.Boolean):
        raise DataError(f"{name}: label column '{column}' holds {labels.dtype}, not numbers; labels must be 0 or 1")
    wrong = (~labels.cast(pl.Float64).is_in([0.0, 1.0])).fill_null(True).arg_true()
    if len(wrong):
        raise DataError(
            f"{name}: label column '{column}' has {len(wrong)} values that are not 0 or 1, "
            f"first {labels[wrong[0]]!r} at row {wrong[0] + 1}; turn the label into 0/1 before preparing"
        )


def _check_probabilities(table: pl.DataFrame, name: str, column: str) -> None:
    _require_columns(table, name, [column])
    values = table[column]
    if not values.dtype.is_numeric() or not values.is_between(0, 1).fill_null(False).all():
        raise DataError(f"{name}: column '{column}' must hold true probabilities, numbers from 0 to 1")


def _check_id_type(table: pl.DataFrame, name: str, column: str) -> None:
    if table[column].dtype.is_float():
        raise DataError(f"{name}: id column '{column}' holds {table[column].dtype}; store ids as integers or text")


def _check_ids(table: pl.DataFrame, name: str, column: str) -> None:
    _require_columns(table, name, [column])
    _check_id_type(table, name, column)
    if table[column].null_count():
        raise DataError(f"{name}: column '{column}' has empty ids; drop those rows")
    if table[column].n_unique() != table.height:
        twice = table.group_by(column).len().filter(pl.col("len") > 1).sort(column)[column][0]
        raise DataError(f"{name}: id {twice!r} of column '{column}' stands in several rows; keep one")


def _check_feature(table: pl.DataFrame, name: str, feature: Feature) -> None:
    _require_columns(table, name, [feature.source_column])
    dtype = table[feature.source_column].dtype
    if feature.kind is Kind.CONTINUOUS and not dtype.is_numeric():
        raise DataError(
            f"{name}: column '{feature.source_column}' holds {dtype}, but feature '{feature.name}' is continuous; "
            "make it a number or declare kind: categorical"
        )
    if feature.kind is Kind.MULTI_VALUED and not isinstance(dtype, pl.List):
        raise DataError(
            f"{name}: column '{feature.source_column}' holds {dtype}, but feature '{feature.name}' is multi_valued; "
            "use a list column, or text with values separated by '|'"
        )
    if feature.kind is Kind.CATEGORICAL and dtype.is_float():
        raise DataError(
            f"{name}: column '{feature.source_column}' holds {dtype}, but feature '{feature.name}' is categorical; "
            "store categories as integers or text, or declare kind: continuous"
        )


def _check_time(table: pl.DataFrame, name: str, column: str) -> None:
    if not table[column].dtype.is_integer():
        raise DataError(f"{name}: time column '{column}' holds {table[column].dtype}; give integer epoch milliseconds")
    lowest, highest = table[column].min(), table[column].max()
    if isinstance(highest, int) and highest > LATEST_TIME:
        raise DataError(f"{name}: time column '{column}' goes up to {highest}; use epoch milliseconds")
    if isinstance(lowest, int) and lowest < 0:
        raise DataError(f"{name}: time column '{column}' has negative values (lowest {lowest}); use epoch milliseconds")
