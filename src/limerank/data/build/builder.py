"""One segment from a log: read, sort, encode, write.

`prepare` and `append` go the same way. They tell which items and users the segment adds to which rows that are there
already, and whether encoders are fitted on it or given.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank.data.build import entities
from limerank.data.build.dictionary import Dictionary
from limerank.data.build.encoding import TrainingEvents, encode_events
from limerank.data.build.entities import Table
from limerank.data.build.parts import Requests
from limerank.data.build.reading import Intake
from limerank.data.build.sorting import FinalRows, SortedEvents, Sorting
from limerank.data.raw.location import Location
from limerank.data.raw.log import RawLog
from limerank.data.store.column_files import map_column, save_column, write_ids
from limerank.data.store.encoders import Encoders
from limerank.data.store.manifest import UNKNOWN_ROW, SegmentFacts
from limerank.progress import Progress
from limerank.schema import Role

Ints = NDArray[np.int64]


def read_log(raw: RawLog, scratch: Path, progress: Progress, *, partial: bool = False) -> tuple[Intake, Table, Table]:
    """The events read once, and the items and users as given, with what the events know of them."""
    intake = Intake(raw, scratch, partial=partial)
    with progress.bar("reading", sum(file.rows or 0 for file in raw.events)) as bar:
        intake.read(bar)
    items = entities.read_table(
        raw.items,
        Location(raw.names["items"], called=raw.called.get("items")),
        raw.schema.item_id,
        raw.schema.with_role(Role.ITEM),
        intake.item_values.table(*intake.items.ordered()),
        raw.schema.display_column,
    )
    users = entities.read_table(
        raw.users,
        Location(raw.names["users"], called=raw.called.get("users")),
        raw.schema.user_id,
        raw.schema.with_role(Role.USER),
        intake.user_values.table(*intake.users.ordered()),
    )
    return intake, items, users


@dataclass(frozen=True)
class Rows:
    """The rows of the items or users of a dataset that a segment is built for."""

    new: Table
    """Those that the segment adds, in order."""
    before: pl.Series
    """The ids that have rows already, beginning with the unknown row; none, not even that, in a new dataset."""

    @property
    def first(self) -> bool:
        """Whether the unknown row is among those that the segment adds."""
        return not len(self.before)

    @property
    def added(self) -> int:
        """How many rows the segment adds."""
        return int(self.first) + self.new.rows.height

    @property
    def total(self) -> int:
        """How many rows there are with these."""
        return len(self.before) + self.added

    def of_codes(self, dictionary: Dictionary) -> Ints:
        """The row of each code; that of the unknown for texts that have none."""
        texts, position = dictionary.ordered()
        ids = pl.concat([self.before[1:].alias("id"), self.new.ids.alias("id")])
        numbered = pl.DataFrame({"id": ids}).with_row_index("row", offset=UNKNOWN_ROW + 1)
        found = pl.DataFrame({"id": texts}).join(numbered, on="id", how="left", maintain_order="left")["row"]
        rows: Ints = found.fill_null(UNKNOWN_ROW).to_numpy().astype(np.int64)[position]
        return rows


class SegmentBuilder:
    """A segment on its way: its events are sorted, now encoders are needed to write it."""

    def __init__(self, intake: Intake, items: Rows, users: Rows, folder: Path, progress: Progress) -> None:
        self.intake = intake
        self.items, self.users = items, users
        self.folder = folder
        self.progress = progress
        self.rows = FinalRows(
            of_user=users.of_codes(intake.users),
            of_item=items.of_codes(intake.items),
            users=users.total,
            items=items.total,
        )
        self.events = self._sort()

    @property
    def dropped(self) -> int:
        """How many events are not taken in, because their item or user has no row."""
        return self.intake.rows - self.events.count

    def requests(self) -> Requests:
        """What a split needs to know."""
        start = self.events.start
        timed = self.intake.schema.time is not None
        return Requests(
            user=self.events.user,
            size=np.diff(start),
            time=map_column(self.folder / "events/time.npy")[start[:-1]] if timed else None,
            named=self.events.named_part,
        )

    def fit(self, parts: NDArray[np.uint8]) -> Encoders:
        """All encoders, from training rows only."""
        with self.progress.bar("fitting", 0):
            training = TrainingEvents(self.events, parts, self.rows)
            of_role = {
                role: tuple(training.encoder(c, self.intake) for c in self.intake.columns if c.feature.role is role)
                for role in (Role.EVENT, Role.CONTEXT)
            }
            shown = self.intake.histories.shown(
                self.events.pointers, training.weights, self.rows.of_item, self.rows.items
            )
            item_counts = [count[1:] for count in (training.of_item, *shown.items)]
            return Encoders(
                item=entities.fit_table(self.items.new, item_counts, shown.words),
                event=(*of_role[Role.EVENT], *shown.events),
                user=entities.fit_table(self.users.new, [training.of_user[1:]], {}),
                context=of_role[Role.CONTEXT],
            )

    def write(self, encoders: Encoders, name: str) -> SegmentFacts:
        """Encode and write everything; the segment will be called `name`, wherever its folder is now."""
        events = self.events
        with self.progress.bar("encoding", events.count * max(1, len(self.intake.columns))) as bar:
            encode_events(events, self.intake, encoders, bar)
        for what, rows, features in (("item", self.items, encoders.item), ("user", self.users, encoders.user)):
            entities.write_table(self.folder, f"{what}s", features, rows.new, unknown=rows.first)
            write_ids(self.folder / f"{what}_ids.arrow", rows.new.ids, rows.new.displays, unknown=rows.first)
        save_column(self.folder, "requests/start", events.start)
        save_column(self.folder, "requests/user", events.user)
        save_column(self.folder, "requests/user_offsets", events.user_offsets)
        if events.named_part is not None:
            save_column(self.folder, "requests/named_part", events.named_part)
        history_items = self.intake.histories.write(self.folder, events.pointers, encoders, self.rows.of_item)
        self.intake.set_aside.write(self.folder, name)
        return SegmentFacts(
            name=name,
            events=events.count,
            requests=len(events.user),
            items=self.items.added,
            users=self.users.added,
            history_items=history_items,
        )

    def notes(self) -> list[str]:
        """What a person should know of how the log became this segment, once it is written."""
        notes = [*self.intake.raw.notes, *self.intake.notes()]
        if self.events.stretched_requests:
            notes.append(
                f"{self.events.stretched_requests:,} requests have events of several times under one "
                f"'{self.intake.schema.request_id}'; the earliest counts for all of them"
            )
        return notes

    def _sort(self) -> SortedEvents:
        with self.progress.bar("sorting", 2 * self.intake.rows) as bar:
            return Sorting(self.intake, self.rows, self.folder).run(bar)
