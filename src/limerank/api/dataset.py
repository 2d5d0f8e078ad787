"""A dataset as people use it: built from their log, described, lengthened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from limerank.data.build import append as appending
from limerank.data.build.append import Addition
from limerank.data.build.prepare import prepare
from limerank.data.describe.description import Description
from limerank.data.describe.labels import count_labels
from limerank.data.raw.log import RawLog
from limerank.data.sources.given import Table, read_given
from limerank.data.sources.table.read import read_description, read_table_log
from limerank.data.store import states
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.states import Undone
from limerank.errors import DataError, UsageError
from limerank.files import AnyPath
from limerank.progress import Progress
from limerank.schema import Schema

APPENDABLE = ("table", "simulated")
"""Sources whose events can be read piece by piece."""


class Dataset(StoredDataset):
    """A prepared dataset: every event once, split and encoded, opened read-only and memory-mapped.

    `build` makes one of a log, `open` finds it again; `path` is its folder and `schema` the meaning of its columns:

        data = lr.Dataset.build(events, items=items, schema=lr.Schema(...), out="datasets/mine")
        data = lr.Dataset.open("datasets/mine")
    """

    @classmethod
    def build(
        cls,
        events: Table | Sequence[Table] | RawLog,
        *,
        items: Table | None = None,
        users: Table | None = None,
        schema: Schema | AnyPath | None = None,
        out: AnyPath,
        overwrite: bool = False,
        quiet: bool = False,
    ) -> Dataset:
        """Check, split and encode a log, and publish it at `out`, whole or not at all.

        Events, items and users are frames (polars, pandas, pyarrow, duckdb: anything with an Arrow stream) or CSV and
        Parquet files; events may be a list of them. `schema` says what the columns mean: a `Schema`, or the path of a
        `dataset.yaml` as `limerank init` drafts it. Without a schema, `events` is a folder with a `dataset.yaml`, such
        a file itself, or a log that was read already (`lr.simulate(...)`).
        """
        raw = _raw_log(events, items, users, schema)
        progress = Progress(quiet=quiet)
        for note in raw.notes:
            progress.say(f"note: {note}")
        built = cls.of(prepare(raw, Path(out), overwrite=overwrite, progress=progress))
        for note in built.notes[len(raw.notes) :]:
            progress.say(f"note: {note}")
        return built

    @classmethod
    def of(cls, stored: StoredDataset) -> Dataset:
        """An opened dataset with all that can be done with it."""
        return cls(stored.path, stored.manifest, stored.encoders)

    @property
    def notes(self) -> list[str]:
        """What a person should know: what was ignored or set aside while reading, and labels that teach nothing."""
        one_class = [problem for task in count_labels(self) if (problem := task.problem())]
        return [*self.with_paths(self.manifest.notes), *one_class]

    def describe(self) -> Description:
        """What is in it, and checks of what usually goes wrong, each PASS, WARN or FAIL."""
        return Description.of(self)

    def append(
        self,
        events: Table | Sequence[Table],
        *,
        items: Table | None = None,
        users: Table | None = None,
        allow_undescribed: bool = False,
        quiet: bool = False,
    ) -> Dataset:
        """The dataset with later events, which are added without rebuilding it; runs trained on it stay valid.

        `items` and `users` describe new ones. This object stays as it was opened.
        """
        added = self.add(events, items=items, users=users, allow_undescribed=allow_undescribed, quiet=quiet)
        for note in added.notes:
            Progress(quiet=quiet).say(f"note: {note}")
        return type(self).of(StoredDataset.open(self.path))

    def add(
        self,
        events: Table | Sequence[Table],
        *,
        items: Table | None = None,
        users: Table | None = None,
        allow_undescribed: bool = False,
        dry_run: bool = False,
        quiet: bool = False,
    ) -> Addition:
        """The same as `append`, telling what was added; a dry run checks everything and changes nothing."""
        origin = self.manifest.origin
        if origin.get("source") not in APPENDABLE:
            raise DataError(
                f"{self.path}: was made by `limerank prepare {origin.get('source')}`, which only reads whole logs; "
                "prepare it again"
            )
        raw = read_given(events, items, users, self.schema, csv=origin.get("csv"), partial=True)
        return appending.add(
            self.path, raw, allow_undescribed=allow_undescribed, dry_run=dry_run, progress=Progress(quiet=quiet)
        )

    def undo_append(self, *, dry_run: bool = False) -> Undone:
        """Take the last append back; a dry run only says what that would be."""
        return states.undo(self.path, dry_run=dry_run)

    def __repr__(self) -> str:
        counts = self.manifest.counts
        tasks = ", ".join(task.name for task in self.schema.tasks)
        return (
            f"<Dataset {self.path}: {counts['events']:,} events in {counts['requests']:,} requests, "
            f"{counts['users']:,} users, {counts['items']:,} items; tasks {tasks}>"
        )


def _raw_log(
    events: Table | Sequence[Table] | RawLog, items: Table | None, users: Table | None, schema: Schema | AnyPath | None
) -> RawLog:
    if isinstance(events, RawLog):
        for name, given in (("items", items), ("users", users), ("schema", schema)):
            if given is not None:
                raise UsageError(f"{name}: the log that was read has its own; leave it out")
        return events
    if schema is None:
        if items is not None or users is not None or not isinstance(events, str | os.PathLike):
            raise UsageError("schema: is needed to say what the columns mean; pass schema=lr.Schema(...)")
        return read_table_log(Path(events))
    if isinstance(schema, Schema):
        return read_given(events, items, users, schema)
    if not isinstance(schema, str | os.PathLike):
        raise UsageError(f"schema: {type(schema).__name__} is neither lr.Schema(...) nor the path of a dataset.yaml")
    described, tables = read_description(Path(schema))
    return read_given(events, items, users, described, csv=tables.origin["csv"])
