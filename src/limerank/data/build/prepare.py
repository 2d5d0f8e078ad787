"""A raw log to a dataset: read, choose who stays, sort, split, fit on train, encode, write aside, rename."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank import files
from limerank.data.build import parts as splits
from limerank.data.build.builder import Rows, SegmentBuilder, read_log
from limerank.data.build.dictionary import Dictionary
from limerank.data.build.entities import Table
from limerank.data.build.reading import ITEM, USER, Intake
from limerank.data.raw.log import RawLog
from limerank.data.store.column_files import save_column
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.manifest import ENCODERS, FORMAT, MANIFEST, Manifest, seal
from limerank.errors import DataError, if_interrupted
from limerank.progress import Progress

FIRST_SEGMENT, FIRST_PARTS = "segments/0000", "parts/0000"
NO_ROWS = pl.Series("id", [], dtype=pl.String)

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


def prepare(raw: RawLog, out: Path, *, overwrite: bool = False, progress: Progress | None = None) -> StoredDataset:
    """Encode a raw log and publish it at `out`, whole or not at all."""
    progress = progress or Progress(quiet=True)
    with (
        files.full_disk_named(out),
        files.staged_directory(out, marker=MANIFEST, overwrite=overwrite) as staging,
        if_interrupted(f"interrupted; no dataset was written to {out}"),
    ):
        _write(raw, staging, progress)
    return StoredDataset.open(out)


def _write(raw: RawLog, staging: Path, progress: Progress) -> None:
    schema = raw.schema
    with files.scratch_directory(staging / "scratch") as scratch:
        intake, items, users = read_log(raw, scratch, progress)
        kept_items, kept_users = _kept(intake)
        new_items = items.of(_final_ids(intake.items, kept_items, items, schema.minimum_item_events))
        new_users = users.of(_final_ids(intake.users, kept_users, users, schema.minimum_user_events))
        folder = staging / FIRST_SEGMENT
        builder = SegmentBuilder(intake, Rows(new_items, NO_ROWS), Rows(new_users, NO_ROWS), folder, progress)
        if not builder.events.count:
            raise DataError(
                f"no event is left of {intake.rows:,}: minimum_item_events ({schema.minimum_item_events}) or "
                f"minimum_user_events ({schema.minimum_user_events}) drops them all; lower them"
            )
        parts = splits.assign(schema.split, builder.requests())
        encoders = builder.fit(parts)
        segment = builder.write(encoders, FIRST_SEGMENT)
    save_column(staging, FIRST_PARTS, parts)
    files.write_json(staging / ENCODERS, encoders.model_dump(mode="json"))
    seal(
        staging,
        Manifest(
            format=FORMAT,
            fingerprint="",
            origin=raw.origin,
            dataset_schema=schema,
            dropped={"events": builder.dropped},
            notes=builder.notes(),
            bad_rows=intake.set_aside.written,
            first_time=intake.first_time if schema.time else None,
            last_time=intake.last_time if schema.time else None,
            segments=[segment],
            parts=FIRST_PARTS,
            grown_from=[],
            files=[],
        ),
    )


def _kept(intake: Intake) -> tuple[Mask, Mask]:
    """Which texts of the item and user dictionaries have enough events to stay.

    Rare items are dropped first, then the users who are rare without them.
    """
    schema = intake.schema
    items = _often(intake.items, intake.item_events.of_code, schema.minimum_item_events)
    user_events = intake.user_events.of_code
    if schema.minimum_user_events > 1 and not items.all():
        user_events = np.zeros_like(user_events)
        position = intake.items.ordered()[1]
        for spill in intake.spills:
            codes = pl.read_ipc(spill, columns=[USER, ITEM])
            stays = items[position[codes[ITEM].to_numpy()]]
            user_events += np.bincount(codes[USER].to_numpy()[stays], minlength=len(user_events))
    return items, _often(intake.users, user_events, schema.minimum_user_events)


def _often(dictionary: Dictionary, events_of_code: Ints, minimum: int) -> Mask:
    texts, position = dictionary.ordered()
    if minimum == 1:
        return np.ones(len(texts), dtype=bool)
    events = np.zeros(len(texts), dtype=np.int64)
    events[position[: len(events_of_code)]] = events_of_code
    return events >= minimum


def _final_ids(dictionary: Dictionary, kept: Mask, table: Table, minimum: int) -> pl.Series:
    """The ids that get rows: those that stay, and without a minimum also those that only the given table knows."""
    stay = dictionary.ordered()[0].filter(pl.Series(kept))
    return stay if minimum > 1 else pl.concat([stay, table.ids.alias(stay.name)]).unique().sort()
