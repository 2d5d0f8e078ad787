"""New events at the end of a dataset, without reading or encoding the old ones again.

They become a segment of their own; the manifest that names it is replaced last, so whoever opens the dataset sees it
with or without them. All checks come before that. Vocabularies stay as they were fitted (trained rankers stay valid),
and the split rule is applied to the longer dataset.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from limerank import files
from limerank.data.build import parts as splits
from limerank.data.build.builder import Rows, SegmentBuilder, read_log
from limerank.data.build.newcomers import Newcomers
from limerank.data.build.reading import Intake
from limerank.data.raw.log import RawLog
from limerank.data.store import states
from limerank.data.store.bad_rows import BadRows
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.manifest import MANIFEST, SegmentFacts
from limerank.data.store.merge import merge_segments
from limerank.errors import DataError, if_interrupted
from limerank.progress import Progress
from limerank.schema import Role
from limerank.times import time_text

MOST_SEGMENTS = 8


@dataclass(frozen=True)
class Addition:
    """What an append adds to a dataset."""

    segment: SegmentFacts
    dropped: int
    """Events of items or users that the dataset does not take in."""
    first_time: int
    last_time: int
    newcomers: tuple[Newcomers, Newcomers]
    bad_rows: list[BadRows]
    """What was set aside because it cannot be read."""
    notes: list[str]


def append(
    path: Path, raw: RawLog, *, allow_undescribed: bool = False, progress: Progress | None = None
) -> StoredDataset:
    """Add the events of `raw`, whose schema is the dataset's and whose times are all later than the dataset's."""
    add(path, raw, allow_undescribed=allow_undescribed, progress=progress)
    return StoredDataset.open(path)


def add(
    path: Path,
    raw: RawLog,
    *,
    allow_undescribed: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Addition:
    """The same, telling what was added; a dry run writes into the system's temporary folder only."""
    progress = progress or Progress(quiet=True)
    with states.locked(path, dry_run=dry_run):
        dataset = StoredDataset.open(path)
        _check(dataset, raw)
        appending = _Appending(dataset, raw, states.next_name(path, "segments"), allow_undescribed, progress)
        return appending.rehearse() if dry_run else appending.commit()


def _check(dataset: StoredDataset, raw: RawLog) -> None:
    if dataset.schema.histories is not None or dataset.schema.time is None:
        raise DataError(f"{dataset.path}: its histories are ready-made, so nothing can be appended; prepare it again")
    if raw.schema != dataset.schema:
        raise DataError(f"{dataset.path / MANIFEST}: the new events have another schema; prepare a new dataset")


@dataclass(frozen=True)
class _Appending:
    """New events on their way into a dataset."""

    dataset: StoredDataset
    raw: RawLog
    name: str
    """Of the new segment."""
    allow_undescribed: bool
    progress: Progress

    def rehearse(self) -> Addition:
        """Everything but the change."""
        fix = "free some, or name another place in TMPDIR"
        with (
            tempfile.TemporaryDirectory(prefix="limerank-") as folder,
            files.full_disk_named(Path(folder).parent, fix),
        ):
            longer, addition = self._lengthen(Path(folder) / "new")
            _parts_of(longer)
        return addition

    def commit(self) -> Addition:
        """Write a segment aside, put it into its place, replace the manifest."""
        path = self.dataset.path
        with files.full_disk_named(path):
            with (
                files.staged_directory(path / self.name, marker="item_ids.arrow") as staging,
                if_interrupted(f"interrupted; nothing was appended to {path}"),
            ):
                if len(self.dataset.segments) < MOST_SEGMENTS:
                    longer, addition = self._lengthen(staging)
                else:
                    longer, addition = self._merge(staging)
                parts = _parts_of(longer)
            *others, last = longer.manifest.segments
            segments = [*others, last.model_copy(update={"name": self.name})]
            try:
                states.publish(self.dataset, longer.manifest.model_copy(update={"segments": segments}), parts)
            finally:
                states.forget(path)
        return addition

    def _merge(self, staging: Path) -> tuple[StoredDataset, Addition]:
        """The new events and all others in one segment, so that histories do not fall into ever more pieces."""
        with files.scratch_directory(staging / "new") as folder:
            longer, addition = self._lengthen(folder)
            self.progress.say(f"merging {len(longer.segments)} segments")
            merged = merge_segments(longer, staging, str(staging))
        manifest = longer.manifest.model_copy(update={"segments": [merged]})
        return StoredDataset(longer.path, manifest, longer.encoders), addition

    def _lengthen(self, folder: Path) -> tuple[StoredDataset, Addition]:
        """Check the new events, write them as a segment, and view the dataset as it is with them."""
        with files.scratch_directory(folder / "scratch") as scratch:
            addition = self._write_segment(folder, scratch)
        now = self.dataset.manifest
        notes = [*self.raw.notes, *(bad.text for bad in addition.bad_rows)]
        update = {
            "segments": [*now.segments, addition.segment],
            "last_time": addition.last_time,
            "notes": [*now.notes, *(note for note in notes if note not in now.notes)],
            "bad_rows": [*now.bad_rows, *addition.bad_rows],
            "dropped": {"events": now.dropped["events"] + addition.dropped},
        }
        return StoredDataset(self.dataset.path, now.model_copy(update=update), self.dataset.encoders), addition

    def _write_segment(self, folder: Path, scratch: Path) -> Addition:
        dataset, raw = self.dataset, self.raw
        intake, items, users = read_log(raw, scratch, self.progress, partial=True)
        self._check_later(intake)
        new_items = Newcomers.of(Role.ITEM, raw, dataset.item_ids, intake.items, items)
        new_users = Newcomers.of(Role.USER, raw, dataset.user_ids, intake.users, users)
        notes = self._notes_on(new_items, new_users)
        item_rows = Rows(items.of(new_items.ids), dataset.item_ids)
        user_rows = Rows(users.of(new_users.ids), dataset.user_ids)
        builder = SegmentBuilder(intake, item_rows, user_rows, folder, self.progress)
        if not builder.events.count:
            raise DataError(f"none of {intake.rows:,} new events is of a known user and item; nothing was appended")
        segment = builder.write(dataset.encoders, self.name)
        return Addition(
            segment=segment.model_copy(update={"name": str(folder.absolute())}),
            dropped=builder.dropped,
            first_time=intake.first_time,
            last_time=intake.last_time,
            newcomers=(new_items, new_users),
            bad_rows=intake.set_aside.written,
            notes=[*builder.notes(), *notes],
        )

    def _check_later(self, intake: Intake) -> None:
        now = self.dataset.manifest
        if now.last_time is None or intake.first_time > now.last_time:
            return
        reached = f"{self.dataset.path} already reaches {time_text(now.last_time)}"
        problem = f"has events of {time_text(intake.first_time)}, but {reached}"
        fix = "prepare all of them again"
        if now.before is not None and now.before.last_time is not None and intake.first_time > now.before.last_time:
            fix = f"take the last append back first: limerank append {self.dataset.path} --undo"
            rows = [one.counts["events"] + one.dropped["events"] for one in (now, now.before)]
            if (intake.rows, intake.last_time) == (rows[0] - rows[1], now.last_time):
                problem = (
                    f"was appended already, it seems: the last append brought {intake.rows:,} events "
                    f"up to {time_text(now.last_time)} too"
                )
        raise DataError(f"{self.raw.event_names}: {problem}; append only later events, or {fix}")

    def _notes_on(self, *newcomers: Newcomers) -> list[str]:
        """What to know of new items and users; refused are those without a description, unless that is allowed."""
        complaining = [one for one in newcomers if one.complaint]
        if complaining and not self.allow_undescribed:
            raise DataError(
                f"{self.raw.event_names}: {' and '.join(one.complaint for one in complaining)}; nothing was appended: "
                f"describe them with {' and '.join(f'--{one.what} FILE' for one in complaining)}, "
                "or pass --allow-undescribed to take them in with unknown features"
            )
        notes = [f"{one.complaint}, taken in with unknown features" for one in complaining]
        return notes + [one.note for one in newcomers if one.note]


def _parts_of(dataset: StoredDataset) -> NDArray[np.uint8]:
    """The part of every request, by the split rule applied to the whole dataset."""
    start = dataset.column("requests/start").astype(np.int64)
    requests = splits.Requests(
        user=dataset.column("requests/user").astype(np.int64),
        size=np.diff(start),
        time=dataset.column("events/time")[start[:-1]],
        named=dataset.column("requests/named_part") if dataset.schema.split.protocol == "column" else None,
    )
    return splits.assign(dataset.schema.split, requests)
