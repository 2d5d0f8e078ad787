"""Your own log: CSV or Parquet files of events, items and users, and the `dataset.yaml` that says what they mean.

The description is the keys of `limerank.schema.Schema`, plus `tables`: where the files are and how CSV is written.
Without it they are `events`, `items` and `users` with any known ending, or folders of these names. Items and users may
be left out: what describes them is then looked for in the events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from limerank.config import RunConfig, read_yaml
from limerank.data.raw.log import RawLog
from limerank.data.sources.folders import check_folder, near
from limerank.data.sources.table.files import (
    ENDINGS,
    Dialect,
    TableFile,
    described,
    find_default_files,
    find_files,
    load,
    open_files,
)
from limerank.data.sources.table.rows import as_events, row_names
from limerank.errors import DataError, UsageError, did_you_mean
from limerank.files import staged_directory, write_text
from limerank.schema import Role, Schema
from limerank.splits import ByColumn
from limerank.typed import validate

DESCRIPTION = "dataset.yaml"
DESCRIPTION_ENDINGS = (".yaml", ".yml")
ROWS_PER_PART = 1_000_000
NAMES_SHOWN = 12

Files = dict[str, tuple[TableFile, ...]]


def _as_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Paths = Annotated[tuple[str, ...], BeforeValidator(_as_list)]
Character = Annotated[str, Field(pattern=r"^[\x00-\x7f]$")]


class Tables(BaseModel):
    """Where the tables are (files, folders or patterns, relative to the folder of the log) and how CSV is written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    events: Paths | None = Field(default=None, description="default: events.* or the folder events")
    items: Paths | None = Field(default=None, description="default: items.* or the folder items, if there; []: none")
    users: Paths | None = Field(default=None, description="default: users.* or the folder users, if there; []: none")
    separator: Character | None = Field(default=None, description="between CSV fields; default ',', in .tsv a tab")
    quote: Character | None = Field(default='"', description="around CSV fields; null: quotes are ordinary characters")
    null_values: tuple[str, ...] = Field(default=(), description="CSV fields that mean missing, besides the empty one")

    @property
    def dialect(self) -> Dialect:
        """How to read the CSV files."""
        return Dialect(self.separator, self.quote, self.null_values)

    @property
    def origin(self) -> dict[str, Any]:
        """What a dataset records of tables it was made from, so that more can be read like them."""
        return {"source": "table", "csv": self.model_dump(mode="json", include={"separator", "quote", "null_values"})}


class Description(Schema):
    """A whole `dataset.yaml`."""

    tables: Tables = Tables()


def read_description(path: Path) -> tuple[Schema, Tables]:
    """The meaning of a log and where its tables are."""
    values = read_yaml(path, DataError)
    if values.keys() & RunConfig.model_fields.keys() and not describes_a_log(values):
        raise UsageError(
            f"{path}: says what to train, it describes no log; limerank init --from LOG drafts a description, "
            f"limerank train {path} --out RUN trains"
        )
    tables = validate(Description, values, str(path), DataError).tables
    schema = {key: value for key, value in values.items() if key != "tables"}
    return validate(Schema, schema, str(path), DataError), tables


def describes_a_log(values: Mapping[str, Any]) -> bool:
    """Whether a YAML file looks like a description of a log rather than a run configuration."""
    return len(values.keys() & Description.model_fields.keys()) > len(values.keys() & RunConfig.model_fields.keys())


def read_table_log(folder_or_yaml: Path, *, schema_file: Path | None = None) -> RawLog:
    """A raw log from a folder (described by its `dataset.yaml` or by `schema_file`) or from a description itself.

    Events are not read yet, only looked at; every problem names the file.
    """
    description, base = _locate(folder_or_yaml, schema_file)
    schema, tables = read_description(description)
    return _read_log(schema, tables, base, str(description))


def read_tables_log(schema: Schema, tables: Tables, *, partial: bool = False) -> RawLog:
    """A raw log from files that are named themselves, relative to the current folder.

    With `partial`, tables may be left out, and events need not repeat what describes items and users: they are for a
    dataset that knows most of it.
    """
    return _read_log(schema, tables, Path(), "the dataset" if partial else "the schema", prefix="", partial=partial)


def _read_log(
    schema: Schema, tables: Tables, base: Path, description: str, *, prefix: str = "tables.", partial: bool = False
) -> RawLog:
    notes: list[str] = []
    named = {name: getattr(tables, name) for name in ("events", "items", "users")}
    files: Files = {}
    for name, patterns in named.items():
        if patterns is None:
            paths = find_default_files(base, name, notes)
        else:
            paths = find_files(base, patterns, f"{prefix}{name}", notes)
        files[name] = open_files(paths, tables.dialect)
    if not files["events"]:
        raise DataError(
            f"{base / 'events'}.csv: no such file, nor events.parquet, any other ending of {', '.join(ENDINGS)}, or a "
            f"folder events; put the log there, or name it as tables.events in {description}"
        )
    used = _used_columns(schema, files, description, partial)
    for name, its_files in files.items():
        _check_same_columns(its_files, used[name])
        notes += _unused(its_files, used[name])
    items, users = files["items"], files["users"]
    return RawLog(
        schema=schema,
        events=tuple(as_events(file, used["events"]) for file in files["events"]),
        items=load(items) if items else None,
        users=load(users) if users else None,
        origin=tables.origin,
        called={name: row_names(files[name]) for name in ("items", "users")},
        names={name: described([f.path for f in files[name]]) if files[name] else name for name in ("items", "users")},
        notes=tuple(notes),
    )


def write_table_log(raw: RawLog, folder: Path) -> None:
    """Write a raw log as such a folder, in Parquet, batch by batch; reading it back gives the same dataset.

    A small log gets `events.parquet`, a large one (or one whose files differ in their columns) a folder of parts.
    """
    with staged_directory(folder, marker=DESCRIPTION) as staging:
        last = -1
        for number, part in enumerate(_parts(batch for file in raw.events for batch in file.batches())):
            (staging / "events").mkdir(exist_ok=True)
            part.write_parquet(staging / "events" / f"part-{number:05}.parquet")
            last = number
        if last == 0:
            (staging / "events" / "part-00000.parquet").rename(staging / "events.parquet")
            (staging / "events").rmdir()
        for name, table in (("items", raw.items), ("users", raw.users)):
            if table is not None:
                table.write_parquet(staging / f"{name}.parquet")
        values = raw.schema.model_dump(mode="json", exclude_defaults=True)
        values["split"] = raw.schema.split.model_dump(mode="json")  # `protocol` is a default that must be said
        write_text(staging / DESCRIPTION, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def _parts(batches: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Batches joined to parts of about a million rows, all rows of a part with the same columns and types."""
    held: list[pl.DataFrame] = []
    rows = 0
    for batch in batches:
        if held and (held[0].schema != batch.schema or rows + batch.height > ROWS_PER_PART):
            yield pl.concat(held)
            held, rows = [], 0
        held.append(batch)
        rows += batch.height
    if held:
        yield pl.concat(held)


def _locate(path: Path, schema_file: Path | None) -> tuple[Path, Path]:
    """The description and the folder that its paths are relative to."""
    if path.is_dir():
        description = schema_file or path / DESCRIPTION
        if not description.is_file():
            raise DataError(
                f"{description}: no such file; describe the log there: limerank init --from LOG --out {description}"
                f"{near(description)}"
            )
        return description, path
    if not path.exists() and path.name.lower().endswith((*DESCRIPTION_ENDINGS, *ENDINGS)):
        raise DataError(
            f"{path}: no such file; --raw is a description, or a folder with {DESCRIPTION} in it{near(path)}"
        )
    if not path.exists():
        check_folder(path, f"it should hold {DESCRIPTION} and events.csv or events.parquet")
    if path.name.lower().endswith(ENDINGS):
        raise UsageError(
            f"--raw {path}: is a table; pass the folder it is in, or describe it first: limerank init --from {path}"
        )
    if schema_file is not None:
        raise UsageError(f"--schema {schema_file}: --raw {path} is a description already; pass the folder as --raw")
    return path, path.parent


def needed_columns(schema: Schema) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Each column the schema names, the tables it may be in, and what needs it."""
    ready = schema.histories
    yield schema.user_id, ("events",), "user_id"
    yield schema.item_id, ("events",), "item_id"
    for key, column in (("time", schema.time), ("request_id", schema.request_id)):
        if column is not None:
            yield column, ("events",), key
    if isinstance(schema.split, ByColumn):
        yield schema.split.column, ("events",), "split.column"
    for task in schema.tasks:
        yield task.source_column, ("events",), f"task '{task.name}'"
        if task.true_probability is not None:
            yield task.true_probability, ("events",), f"true_probability of task '{task.name}'"
    tables = {Role.ITEM: ("items", "events"), Role.USER: ("users", "events")}
    for feature in schema.features:
        if ready is None or feature.role is not Role.EVENT:  # ready-made histories bring their own event columns
            yield feature.source_column, tables.get(feature.role, ("events",)), f"feature '{feature.name}'"
    if schema.display is not None:
        yield schema.display, ("items", "events"), "display"
    if ready is not None:
        for column in ready.columns:
            yield column, ("users",) if ready.length else ("events",), "histories"
        if ready.length:
            yield ready.length, ("events",), "histories.length"


def _used_columns(schema: Schema, files: Files, description: str, partial: bool) -> dict[str, set[str]]:
    """The columns of each table that are needed; a column that is nowhere is reported with the nearest name."""
    used: dict[str, set[str]] = {name: set() for name in files}
    for column, names, needed_by in needed_columns(schema):
        found = [name for name in names if any(column in file.columns for file in files[name])]
        if not found and partial and names != ("events",):
            continue
        if not found:
            raise DataError(_missing(column, [files[name] for name in names if files[name]], needed_by, description))
        used[found[0]].add(column)
    for name, id_column in (("items", schema.item_id), ("users", schema.user_id)):
        used[name].add(id_column)
        for file in files[name]:
            if id_column not in file.columns:
                needed_by = f"{name.removesuffix('s')}_id"
                raise DataError(_missing(id_column, [(file,)], needed_by, description))
    return used


def _missing(column: str, tables: list[tuple[TableFile, ...]], needed_by: str, description: str) -> str:
    if not tables:
        return f"{description}: {needed_by} needs column '{column}', but there is no such table; name it under tables"
    where = " and ".join(described([file.path for file in files]) for files in tables)
    columns = [name for files in tables for name in files[0].columns]
    if len(columns) == 1 and any(separator in columns[0] for separator in ",;\t|"):
        hint = f"; its header is one column {columns[0]!r}, so set tables.separator"
    else:
        hint = did_you_mean(column, columns)
    return f"{where}: column '{column}' is missing{hint} ({needed_by} in {description} needs it)"


def _check_same_columns(files: tuple[TableFile, ...], used: set[str]) -> None:
    for file in files[1:]:
        lacking = sorted((set(files[0].columns) ^ set(file.columns)) & used)
        if lacking:
            without, having = (file, files[0]) if lacking[0] in files[0].columns else (files[0], file)
            missing = _quoted([column for column in lacking if column not in without.columns])
            raise DataError(
                f"{without.path}: no column {missing}, which {having.path} of the same table has; "
                f"give all files the same columns"
            )


def _unused(files: tuple[TableFile, ...], used: set[str]) -> list[str]:
    columns = dict.fromkeys(column for file in files for column in file.columns if column not in used)
    return (
        [f"{described([file.path for file in files])}: columns not used: {_quoted(list(columns))}"] if columns else []
    )


def _quoted(columns: list[str]) -> str:
    more = len(columns) - NAMES_SHOWN
    return ", ".join(f"'{column}'" for column in columns[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
