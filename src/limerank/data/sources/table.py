"""Your own log: a folder with `dataset.yaml` and the tables `events`, `items` and `users`, each .csv or .parquet.

The items and users tables may be left out when no feature has that role beyond the id itself. In CSV files, values of a
multi-valued feature are separated by '|'.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import yaml

from limerank.config import read_yaml, validate
from limerank.data.raw import RawLog
from limerank.errors import DataError, did_you_mean
from limerank.files import staged_directory, write_text
from limerank.schema import Kind, Role, Schema

DESCRIPTION = "dataset.yaml"
LIST_SEPARATOR = "|"


def read_table_log(folder: Path) -> RawLog:
    """Read a raw log from a folder; every problem names the file."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; it should hold {DESCRIPTION} and events.csv or events.parquet")
    schema = validate(Schema, read_yaml(folder / DESCRIPTION, DataError), str(folder / DESCRIPTION), DataError)
    events, events_name = _read(folder, "events", schema)
    items, items_name = _read_or_ids(folder, "items", events, events_name, schema.item_id, schema)
    users, users_name = _read_or_ids(folder, "users", events, events_name, schema.user_id, schema)
    return RawLog(
        schema=schema,
        events=events,
        items=_split_lists(items, schema),
        users=users,
        origin={"source": "table"},
        names={"events": events_name, "items": items_name, "users": users_name},
    )


def write_table_log(raw: RawLog, folder: Path) -> None:
    """Write a raw log as such a folder, in Parquet; reading it back gives the same dataset."""
    with staged_directory(folder, marker=DESCRIPTION) as staging:
        raw.events.write_parquet(staging / "events.parquet")
        raw.items.write_parquet(staging / "items.parquet")
        raw.users.write_parquet(staging / "users.parquet")
        values = raw.schema.model_dump(mode="json", exclude_defaults=True)
        write_text(staging / DESCRIPTION, yaml.safe_dump(values, sort_keys=False))


def _read(folder: Path, name: str, schema: Schema) -> tuple[pl.DataFrame, str]:
    path = _find(folder, name)
    if path is None:
        raise DataError(f"{folder / name}.csv: no such file, nor {name}.parquet; a log needs its {name}")
    try:
        return (pl.read_parquet(path) if path.suffix == ".parquet" else _read_csv(path, schema)), str(path)
    except (pl.exceptions.PolarsError, OSError) as broken:
        reason = str(broken).splitlines()[0]
        raise DataError(f"{path}: cannot be read as a table ({reason}); check that it is whole") from None


def _read_csv(path: Path, schema: Schema) -> pl.DataFrame:
    """Types from the whole file, except that ids and categories are text: '007' and '7' are different items."""
    labels = {task.source_column for task in schema.tasks}
    texts = {schema.user_id, schema.item_id, schema.request_id} | {
        feature.source_column for feature in schema.features if feature.kind is not Kind.CONTINUOUS
    }
    header = pl.read_csv(path, n_rows=0).columns
    overrides = {column: pl.String for column in header if column in texts - labels}
    return pl.read_csv(path, schema_overrides=overrides, infer_schema_length=None)


def _read_or_ids(
    folder: Path, name: str, events: pl.DataFrame, events_name: str, id_column: str, schema: Schema
) -> tuple[pl.DataFrame, str]:
    """The table, or the bare ids of the events where there is no such table."""
    if _find(folder, name) is not None:
        return _read(folder, name, schema)
    if id_column not in events.columns:
        raise DataError(f"{events_name}: column '{id_column}' is missing{did_you_mean(id_column, events.columns)}")
    return events.select(pl.col(id_column).drop_nulls().unique()), f"{events_name} (there is no {name} table)"


def _find(folder: Path, name: str) -> Path | None:
    candidates = (folder / f"{name}.parquet", folder / f"{name}.csv")
    return next((path for path in candidates if path.exists()), None)


def _split_lists(items: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    texts = [
        feature.source_column
        for feature in schema.with_role(Role.ITEM)
        if feature.kind is Kind.MULTI_VALUED and items.schema.get(feature.source_column) == pl.String
    ]
    return items.with_columns(pl.col(column).str.split(LIST_SEPARATOR) for column in texts)
