"""Raw log to event log: read and check, order, split, fit on train, encode, write aside, rename."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank import files
from limerank.data import catalog, columns, segment, splits
from limerank.data.catalog import Table
from limerank.data.column_files import save_column
from limerank.data.columns import Place
from limerank.data.dictionary import Dictionary
from limerank.data.encode import Counted, Encoder, Encoders
from limerank.data.eventlog import ENCODERS, FORMAT, MANIFEST, UNKNOWN_ROW, EventLog, Manifest, SegmentFacts, seal
from limerank.data.full_disk import full_disk_named
from limerank.data.intake import ITEM, USER, Intake
from limerank.data.order import FinalRows, Ordered, Ordering
from limerank.data.raw import RawLog
from limerank.data.ready_histories import ReadHistories
from limerank.data.segment import TrainingCounts
from limerank.errors import DataError
from limerank.progress import Progress
from limerank.schema import Role

Ints = NDArray[np.int64]
FIRST_SEGMENT = "segments/0000"


def prepare(raw: RawLog, out: Path, *, overwrite: bool = False, progress: Progress | None = None) -> EventLog:
    """Encode a raw log and publish it at `out`, whole or not at all."""
    progress = progress or Progress(quiet=True)
    with full_disk_named(out), files.staged_directory(out, marker=MANIFEST, overwrite=overwrite) as staging:
        _write(raw, staging, progress)
    return EventLog.open(out)


def _write(raw: RawLog, staging: Path, progress: Progress) -> None:
    schema = raw.schema
    with files.scratch_directory(staging / "scratch") as scratch:
        intake = Intake(raw, scratch)
        with progress.bar("reading", total_rows(raw)) as bar:
            intake.read(bar)
        histories = ReadHistories(intake.histories) if intake.histories is not None else None
        items, users = read_tables(intake)
        kept = Kept.of(intake)
        items = items.of(kept.all_ids(kept.items, items, schema.minimum_item_events))
        users = users.of(kept.all_ids(kept.users, users, schema.minimum_user_events))
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
            encoders = _fit(intake, ordered, parts, items, users, histories)
            segment.encode_events(ordered, intake, encoders, bar)
        write_tables(folder, encoders, items, users, unknown=True)
        history_items = 0
        if histories is not None and histories.intake.spec.items:
            elements = _elements(items, histories)
            catalog.write_table(folder, "history_items", encoders.item, elements, unknown=True)
            history_items = elements.rows.height + 1
        by_id = histories is not None and histories.intake.spec.item_ids is not None
        segment.write_requests(ordered, histories, encoders, rows.of_item if by_id else None)
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


def total_rows(raw: RawLog) -> int:
    """How many rows there are to read; an unknown number counts as none."""
    return sum(file.rows or 0 for file in raw.events)


def read_tables(intake: Intake) -> tuple[Table, Table]:
    """The items and users as given, with what the events know of them."""
    raw, schema = intake.raw, intake.schema
    items = catalog.read_table(
        raw.items,
        raw.names["items"],
        schema.item_id,
        schema.with_role(Role.ITEM),
        intake.item_values.table(*intake.items.ordered(), schema.item_id),
    )
    users = catalog.read_table(
        raw.users,
        raw.names["users"],
        schema.user_id,
        schema.with_role(Role.USER),
        intake.user_values.table(*intake.users.ordered(), schema.user_id),
    )
    return items, users


@dataclass(frozen=True)
class Kept:
    """Which texts of the id dictionaries have enough events to stay."""

    users: NDArray[np.bool_]
    items: NDArray[np.bool_]
    intake: Intake

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
        return cls(_often(intake.users, user_events, schema.minimum_user_events), items, intake)

    def all_ids(self, kept: NDArray[np.bool_], table: Table, minimum: int) -> pl.Series:
        """The ids of the final table: those that stay, and without a minimum also those that only the table knows."""
        dictionary = self.intake.items if kept is self.items else self.intake.users
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
    ordered: Ordered,
    parts: NDArray[np.uint8],
    items: Table,
    users: Table,
    histories: ReadHistories | None,
) -> Encoders:
    """All encoders, from training rows only."""
    counts = TrainingCounts(ordered, parts, items.rows.height + 1, users.rows.height + 1)
    item_words: dict[str, Counted] = {}
    event: tuple[Encoder, ...] = ()
    if histories is not None:
        item_words, event_words = histories.count(counts.history_weights(len(histories)))
        event = segment.fit_history_events(intake.schema.with_role(Role.EVENT), histories, event_words)
    fitted = {c.name: counts.encoder(c, intake) for c in intake.columns}
    of_role = {
        role: tuple(fitted[c.name] for c in intake.columns if c.feature.role is role)
        for role in (Role.EVENT, Role.CONTEXT)
    }
    return Encoders(
        item=catalog.fit_table(items, counts.item_events[1:], item_words),
        event=event or of_role[Role.EVENT],
        user=catalog.fit_table(users, counts.user_events[1:], {}),
        context=of_role[Role.CONTEXT],
    )


def _elements(items: Table, histories: ReadHistories) -> Table:
    """The elements of ready-made histories as a table of items of which only some features are known."""
    place = Place("histories")
    found = histories.element_table()
    known = [columns.clean(f, found[f.name], place) for f in histories.intake.item_features]
    return Table(items.id_column, items.features, pl.DataFrame([pl.Series("id", [""] * found.height), *known]))


def write_tables(folder: Path, encoders: Encoders, items: Table, users: Table, *, unknown: bool) -> None:
    """Ids and encoded features of items and users."""
    catalog.write_table(folder, "items", encoders.item, items, unknown=unknown)
    catalog.write_table(folder, "users", encoders.user, users, unknown=unknown)
    for name, ids in (("item_ids.arrow", items.ids), ("user_ids.arrow", users.ids)):
        catalog.write_ids(folder / name, catalog.with_unknown(ids) if unknown else ids)
