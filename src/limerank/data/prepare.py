"""Raw log to event log: check, sort, split, fit on train, encode, write aside, rename."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank import files
from limerank.data import encode, splits
from limerank.data.encode import Encoders
from limerank.data.eventlog import (
    FORMAT,
    MANIFEST,
    UNKNOWN_ROW,
    EventLog,
    Manifest,
    save_column,
    unknown_first,
)
from limerank.data.raw import RawLog
from limerank.errors import DataError
from limerank.schema import Feature, Kind, Role, Schema


def prepare(raw: RawLog, out: Path, *, overwrite: bool = False) -> EventLog:
    """Encode a raw log and publish it at `out`, whole or not at all."""
    raw.check()
    schema = raw.schema
    events = _sorted_events(raw)
    items = _all_ids(raw.items, schema.item_id, events)
    users = _all_ids(raw.users, schema.user_id, events)
    user_row = _rows_of(events[schema.user_id], users[schema.user_id])
    item_row = _rows_of(events[schema.item_id], items[schema.item_id])
    time = events[schema.time].cast(pl.Int64).to_numpy()
    start, history_end = _requests(events, schema, user_row, time)
    boundaries = splits.time_boundaries(time[start[:-1]], schema.split)
    encoders = _fit_on_train(schema, events, items, users, time < boundaries[0])

    with files.staged_directory(out, marker=MANIFEST, overwrite=overwrite) as staging:
        _write_table(staging, "items", encoders, Role.ITEM, schema, items)
        _write_table(staging, "users", encoders, Role.USER, schema, users)
        _write_ids(staging / "item_ids.arrow", items[schema.item_id])
        _write_ids(staging / "user_ids.arrow", users[schema.user_id])
        save_column(staging, "events/item", item_row)
        save_column(staging, "events/time", time)
        for role in (Role.EVENT, Role.CONTEXT):
            for feature, encoder in zip(schema.with_role(role), encoders.of(role), strict=True):
                column = encoder.encode(events[feature.source_column])
                if role is Role.CONTEXT:
                    _check_one_value_per_request(column, start, feature, raw)
                save_column(staging, f"events/{role.value}.{feature.name}", column)
        for task in schema.tasks:
            save_column(staging, f"events/label.{task.name}", events[task.source_column].cast(pl.UInt8).to_numpy())
            if task.true_probability:
                truth = events[task.true_probability].cast(pl.Float32).to_numpy()
                save_column(staging, f"events/truth.{task.name}", truth)
        save_column(staging, "requests/start", start)
        save_column(staging, "requests/user", user_row[start[:-1]])
        save_column(staging, "requests/history_end", history_end)
        save_column(staging, "requests/part", splits.assign(time[start[:-1]], boundaries))
        offsets = np.searchsorted(user_row, np.arange(users.height + 2))
        save_column(staging, "requests/user_offsets", offsets)
        records = files.record_files(staging)
        manifest = Manifest(
            format=FORMAT,
            fingerprint=files.digest_of(
                schema.model_dump_json(), encoders.model_dump_json(), *(f"{r.path} {r.sha256}" for r in records)
            ),
            origin=raw.origin,
            dataset_schema=schema,
            encoders=encoders,
            counts={
                "events": events.height,
                "requests": len(start) - 1,
                "items": items.height + 1,
                "users": users.height + 1,
            },
            validation_from=boundaries[0],
            test_from=boundaries[1],
            last_time=int(time.max()),
            files=records,
        )
        files.write_json(staging / MANIFEST, manifest.model_dump(mode="json"))
    return EventLog.open(out)


def _sorted_events(raw: RawLog) -> pl.DataFrame:
    """Events by user and time; the rest of the columns break ties, so the order of input rows does not matter."""
    schema = raw.schema
    first = [schema.user_id, schema.time, *([schema.request_id] if schema.request_id else []), schema.item_id]
    ids = [pl.col(schema.user_id).cast(pl.String), pl.col(schema.item_id).cast(pl.String)]
    rest = [name for name in raw.events.columns if name not in first]
    return raw.events.with_columns(ids).sort([*first, *rest])


def _all_ids(table: pl.DataFrame, column: str, events: pl.DataFrame) -> pl.DataFrame:
    """The table sorted by id, with a featureless row for every id that only the events know."""
    table = table.with_columns(pl.col(column).cast(pl.String))
    return table.join(events.select(column).unique(), on=column, how="full", coalesce=True).sort(column)


def _rows_of(ids: pl.Series, table_ids: pl.Series) -> NDArray[np.int64]:
    """The table row of each id; tables are sorted and complete, and row 0 is reserved for the unknown."""
    rows = pl.Series(np.arange(UNKNOWN_ROW + 1, len(table_ids) + UNKNOWN_ROW + 1))
    return ids.replace_strict(table_ids, rows, return_dtype=pl.Int64).to_numpy()


def _requests(
    events: pl.DataFrame, schema: Schema, user_row: NDArray[np.int64], time: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First row of each request (and one past the last), and where its history ends: strictly before its moment."""
    new_moment = np.ones(len(time), dtype=bool)
    new_moment[1:] = (np.diff(user_row) != 0) | (np.diff(time) != 0)
    new_request = new_moment.copy()
    if schema.request_id:
        new_request |= (events[schema.request_id] != events[schema.request_id].shift(1)).fill_null(True).to_numpy()
    start = np.flatnonzero(new_request)
    moment_start = np.flatnonzero(new_moment)
    history_end = moment_start[np.searchsorted(moment_start, start, side="right") - 1]
    return np.append(start, len(time)), history_end


def _check_one_value_per_request(
    column: NDArray[np.int64], start: NDArray[np.int64], feature: Feature, raw: RawLog
) -> None:
    """Context belongs to the request; a value per candidate would be read from the first row only."""
    differing = np.count_nonzero(column != np.repeat(column[start[:-1]], start[1:] - start[:-1]))
    if differing:
        raise DataError(
            f"{raw.names['events']}: context column '{feature.source_column}' differs within a request, in "
            f"{differing} rows; context describes the whole request: give it role 'item' or 'event', or set request_id"
        )


def _fit_on_train(
    schema: Schema, events: pl.DataFrame, items: pl.DataFrame, users: pl.DataFrame, in_train: NDArray[np.bool_]
) -> Encoders:
    train = events.filter(pl.Series(in_train))
    return encode.fit(
        schema,
        train,
        items.join(train.group_by(schema.item_id).len(encode.EVENTS), on=schema.item_id),
        users.join(train.group_by(schema.user_id).len(encode.EVENTS), on=schema.user_id),
    )


def _write_table(
    staging: Path, folder: str, encoders: Encoders, role: Role, schema: Schema, table: pl.DataFrame
) -> None:
    for feature, encoder in zip(schema.with_role(role), encoders.of(role), strict=True):
        column = table[feature.source_column]
        if feature.kind is not Kind.MULTI_VALUED:
            save_column(staging, f"{folder}/{feature.name}", unknown_first(encoder.encode(column)))
            continue
        lengths = column.list.len().fill_null(0).to_numpy()
        values = column.filter(pl.Series(lengths > 0)).explode()
        save_column(staging, f"{folder}/{feature.name}.values", encoder.encode(values))
        offsets = np.concatenate([[0, 0], np.cumsum(lengths, dtype=np.int64)])  # the unknown row's list is empty
        save_column(staging, f"{folder}/{feature.name}.offsets", offsets)


def _write_ids(path: Path, ids: pl.Series) -> None:
    pl.DataFrame({"id": pl.concat([pl.Series([""], dtype=pl.String), ids])}).write_ipc(path)
