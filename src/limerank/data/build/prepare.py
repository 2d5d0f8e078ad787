"""Raw log to event log: read and check, order, split, fit on train, encode, write aside, rename."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank import files
from limerank.data.build import entities, segment
from limerank.data.build import parts as splits
from limerank.data.build.dictionary import Dictionary
from limerank.data.build.entities import Table
from limerank.data.build.fit import Counted
from limerank.data.build.reading import ITEM, USER, Intake
from limerank.data.build.ready_histories import HistoryUse, ReadHistories
from limerank.data.build.segment import TrainingCounts
from limerank.data.build.sorting import FinalRows, Ordered, Ordering
from limerank.data.raw import columns
from limerank.data.raw.location import Location
from limerank.data.raw.log import RawLog
from limerank.data.store.column_files import save_column, write_ids
from limerank.data.store.dataset import (
    ENCODERS,
    FORMAT,
    MANIFEST,
    UNKNOWN_ROW,
    Manifest,
    SegmentFacts,
    StoredDataset,
    seal,
)
from limerank.data.store.encoders import Encoders
from limerank.errors import DataError, if_interrupted
from limerank.progress import Progress
from limerank.schema import Role, Schema

Ints = NDArray[np.int64]
FIRST_SEGMENT = "segments/0000"


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
        intake = Intake(raw, scratch)
        with progress.bar("reading", total_rows(raw)) as bar:
            intake.read(bar)
        histories = ReadHistories(intake.histories) if intake.histories is not None else None
        items, users = read_tables(intake)
        kept = Kept.of(intake)
        items = items.of(_final_ids(intake.items, kept.items, items, schema.minimum_item_events))
        users = users.of(_final_ids(intake.users, kept.users, users, schema.minimum_user_events))
        rows = FinalRows(
            of_user=rows_of_codes(intake.users, kept.users, users.ids),
            of_item=rows_of_codes(intake.items, kept.items, items.ids),
            users=users.rows.height + 1,
            items=items.rows.height + 1,
        )
        folder = staging / FIRST_SEGMENT
        with progress.bar("sorting", 2 * intake.rows) as bar:
            ordered = Ordering(intake, rows, histories, folder).run(bar)
        if not ordered.events:
            raise DataError(
                f"no event is left of {intake.rows:,}: minimum_item_events ({schema.minimum_item_events}) or "
                f"minimum_user_events ({schema.minimum_user_events}) drops them all; lower them"
            )
        parts = splits.assign(schema.split, segment.requests_of(ordered))
        with progress.bar("encoding", ordered.events * max(1, len(intake.columns))) as bar:
            counts = TrainingCounts(ordered, parts, rows.items, rows.users)
            use = counts.history_use() if histories is not None else None
            encoders = _fit(intake, counts, items, users, histories, use, rows)
            segment.encode_events(ordered, intake, encoders, bar)
        write_tables(folder, encoders, items, users, unknown=True)
        history_items = 0
        if histories is not None and histories.intake.spec.items:
            elements = _elements(items, histories)
            entities.write_table(folder, "history_items", encoders.item, elements, unknown=True)
            history_items = elements.rows.height + 1
        by_id = histories is not None and histories.intake.spec.item_ids is not None
        segment.write_requests(ordered, histories, use, encoders, rows.of_item if by_id else None)
        intake.set_aside.write(folder, FIRST_SEGMENT)
    save_column(staging, "parts/0000", parts)
    files.write_json(staging / ENCODERS, encoders.model_dump(mode="json"))
    seal(
        staging,
        Manifest(
            format=FORMAT,
            fingerprint="",
            origin=raw.origin,
            dataset_schema=schema,
            dropped={"events": intake.rows - ordered.events},
            notes=[*raw.notes, *intake.notes(), *notes_on(ordered, schema)],
            bad_rows=intake.set_aside.written,
            first_time=intake.first_time if schema.time else None,
            last_time=intake.last_time if schema.time else None,
            segments=[
                SegmentFacts(
                    name=FIRST_SEGMENT,
                    events=ordered.events,
                    requests=len(ordered.user),
                    items=rows.items,
                    users=rows.users,
                    history_items=history_items,
                )
            ],
            parts="parts/0000",
            grown_from=[],
            files=[],
        ),
    )


def notes_on(ordered: Ordered, schema: Schema) -> list[str]:
    """What a person should know of how events became requests."""
    if not ordered.stretched_requests:
        return []
    return [
        f"{ordered.stretched_requests:,} requests have events of several times under one '{schema.request_id}'; "
        "the earliest counts for all of them"
    ]


def total_rows(raw: RawLog) -> int:
    """How many rows there are to read; an unknown number counts as none."""
    return sum(file.rows or 0 for file in raw.events)


def read_tables(intake: Intake) -> tuple[Table, Table]:
    """The items and users as given, with what the events know of them."""
    raw, schema = intake.raw, intake.schema
    items = entities.read_table(
        raw.items,
        Location(raw.names["items"], called=raw.called.get("items")),
        schema.item_id,
        schema.with_role(Role.ITEM),
        intake.item_values.table(*intake.items.ordered()),
        schema.display_column,
    )
    users = entities.read_table(
        raw.users,
        Location(raw.names["users"], called=raw.called.get("users")),
        schema.user_id,
        schema.with_role(Role.USER),
        intake.user_values.table(*intake.users.ordered()),
    )
    return items, users


@dataclass(frozen=True)
class Kept:
    """Which texts of the id dictionaries have enough events to stay."""

    users: NDArray[np.bool_]
    items: NDArray[np.bool_]

    @classmethod
    def of(cls, intake: Intake) -> Kept:
        """Rare items are dropped first, then the users who are rare without them."""
        schema = intake.schema
        items = _often(intake.items, intake.item_events.of_code, schema.minimum_item_events)
        user_events = intake.user_events.of_code
        if schema.minimum_user_events > 1 and not items.all():
            user_events = np.zeros_like(user_events)
            place = intake.items.ordered()[1]
            for run in intake.runs:
                codes = pl.read_ipc(run, columns=[USER, ITEM])
                stays = items[place[codes[ITEM].to_numpy()]]
                user_events += np.bincount(codes[USER].to_numpy()[stays], minlength=len(user_events))
        return cls(_often(intake.users, user_events, schema.minimum_user_events), items)


def _final_ids(dictionary: Dictionary, kept: NDArray[np.bool_], table: Table, minimum: int) -> pl.Series:
    """The ids of a final table: those that stay, and without a minimum also those that only the given table knows."""
    stay = dictionary.ordered()[0].filter(pl.Series(kept))
    return stay if minimum > 1 else pl.concat([stay, table.ids.alias(stay.name)]).unique().sort()


def rows_of_codes(dictionary: Dictionary, kept: NDArray[np.bool_], ids: pl.Series) -> Ints:
    """The table row of each code, row 0 for texts that are not kept; tables begin with the unknown row."""
    texts, place = dictionary.ordered()
    numbered = pl.DataFrame({"id": ids}).with_row_index("row", offset=UNKNOWN_ROW + 1)
    found = pl.DataFrame({"id": texts}).join(numbered, on="id", how="left", maintain_order="left")["row"]
    of_text = np.where(kept, found.fill_null(UNKNOWN_ROW).to_numpy().astype(np.int64), UNKNOWN_ROW)
    rows: Ints = of_text[place]
    return rows


def _often(dictionary: Dictionary, events_of_code: Ints, minimum: int) -> NDArray[np.bool_]:
    texts, place = dictionary.ordered()
    if minimum == 1:
        return np.ones(len(texts), dtype=bool)
    events = np.zeros(len(texts), dtype=np.int64)
    events[place[: len(events_of_code)]] = events_of_code
    return events >= minimum


def _fit(
    intake: Intake,
    counts: TrainingCounts,
    items: Table,
    users: Table,
    histories: ReadHistories | None,
    use: HistoryUse | None,
    rows: FinalRows,
) -> Encoders:
    """All encoders, from training rows only."""
    fitted = {c.name: counts.encoder(c, intake) for c in intake.columns}
    of_role = {
        role: tuple(fitted[c.name] for c in intake.columns if c.feature.role is role)
        for role in (Role.EVENT, Role.CONTEXT)
    }
    in_histories = np.zeros(rows.items, dtype=np.int64)
    words: dict[str, Counted] = {}
    if histories is not None and use is not None:
        per_element, event_words = histories.count(use)
        events = intake.schema.with_role(Role.EVENT)
        of_role[Role.EVENT] = segment.fit_history_events(events, histories, use, event_words)
        if histories.intake.spec.item_ids:
            np.add.at(in_histories, rows.of_item, per_element[histories.place])
        else:
            words = histories.count_features(per_element)
    return Encoders(
        item=entities.fit_table(items, counts.item_events[1:], in_histories[1:], words),
        event=of_role[Role.EVENT],
        user=entities.fit_table(users, counts.user_events[1:], None, {}),
        context=of_role[Role.CONTEXT],
    )


def _elements(items: Table, histories: ReadHistories) -> Table:
    """The elements of ready-made histories as a table of items of which only some features are known."""
    place = Location("histories")
    found = histories.element_table()
    known = [columns.clean(f, found[f.name], place) for f in histories.intake.item_features]
    return Table(items.id_column, items.features, pl.DataFrame([pl.Series(columns.ID, [""] * found.height), *known]))


def write_tables(folder: Path, encoders: Encoders, items: Table, users: Table, *, unknown: bool) -> None:
    """Ids and encoded features of items and users."""
    entities.write_table(folder, "items", encoders.item, items, unknown=unknown)
    entities.write_table(folder, "users", encoders.user, users, unknown=unknown)
    for name, table in (("item_ids.arrow", items), ("user_ids.arrow", users)):
        write_ids(folder / name, table.ids, table.displays, unknown=unknown)
