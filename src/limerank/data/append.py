"""New events at the end of a dataset, without reading or encoding the old ones again.

They become a segment of their own; the manifest that names it is replaced last, so whoever opens the dataset sees it
with or without them. Vocabularies stay as they were fitted (trained rankers stay valid), and the split rule is applied
to the longer log.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from limerank import files
from limerank.data import segment, splits
from limerank.data.catalog import Table
from limerank.data.column_files import save_column
from limerank.data.dictionary import Dictionary
from limerank.data.eventlog import MANIFEST, EventLog, Manifest, SegmentFacts, fingerprint_of
from limerank.data.full_disk import full_disk_named
from limerank.data.intake import Intake
from limerank.data.merge import merge_segments
from limerank.data.order import FinalRows, Ordering
from limerank.data.prepare import read_tables, rows_of_codes, total_rows, write_tables
from limerank.data.raw import RawLog
from limerank.errors import ConflictError, DataError
from limerank.progress import Progress

MOST_SEGMENTS = 8
LOCK = "append.lock"


def append(path: Path, raw: RawLog, *, progress: Progress | None = None) -> EventLog:
    """Add the events of `raw`, whose schema is the dataset's and whose times are all later than the dataset's."""
    progress = progress or Progress(quiet=True)
    with _locked(path), full_disk_named(path):
        log = EventLog.open(path)
        before = {one.name for one in log.manifest.segments}
        _check(log, raw)
        name = _next_name(log, "segments")
        with (
            files.staged_directory(path / name, marker="item_ids.arrow") as staging,
            files.scratch_directory(staging / "scratch") as scratch,
        ):
            facts, intake = _write_segment(log, raw, staging, scratch, name, progress)
        grown = log.manifest.model_copy(
            update={
                "segments": [*log.manifest.segments, facts],
                "last_time": intake.last_time,
                "notes": [*log.manifest.notes, *(note for note in raw.notes if note not in log.manifest.notes)],
                "dropped": {"events": log.manifest.dropped["events"] + intake.rows - facts.events},
                "grown_from": [*log.manifest.grown_from, log.fingerprint],
            }
        )
        log = _publish(log, grown)
        if len(log.segments) > MOST_SEGMENTS:
            progress.say(f"merging {len(log.segments)} segments")
            name = _next_name(log, "segments")
            with files.staged_directory(path / name, marker="item_ids.arrow") as staging:
                merged = merge_segments(log, staging, name)
            before.add(facts.name)
            grown_from = [*log.manifest.grown_from, log.fingerprint]
            log = _publish(log, log.manifest.model_copy(update={"segments": [merged], "grown_from": grown_from}))
        _forget(log, before)
    return EventLog.open(path)


def _check(log: EventLog, raw: RawLog) -> None:
    if log.schema.histories is not None or log.schema.time is None:
        raise DataError(f"{log.path}: its histories are ready-made, so nothing can be appended; prepare it again")
    if raw.schema != log.schema:
        raise DataError(f"{log.path / MANIFEST}: the new events have another schema; prepare a new dataset")


def _write_segment(
    log: EventLog, raw: RawLog, staging: Path, scratch: Path, name: str, progress: Progress
) -> tuple[SegmentFacts, Intake]:
    intake = Intake(raw, scratch, partial=True)
    with progress.bar("reading", total_rows(raw)) as bar:
        intake.read(bar)
    last = log.manifest.last_time
    if last is not None and intake.first_time <= last:
        raise DataError(
            f"{', '.join(file.name for file in raw.events)}: has events of {_moment(intake.first_time)}, but "
            f"{log.path} already reaches {_moment(last)}; append only later events, or prepare all of them again"
        )
    items, users = read_tables(intake)
    new_items = _new_ids(log.item_ids, intake.items, items, log.schema.minimum_item_events)
    new_users = _new_ids(log.user_ids, intake.users, users, log.schema.minimum_user_events)
    all_items = pl.concat([log.item_ids[1:], new_items.alias("id")])
    all_users = pl.concat([log.user_ids[1:], new_users.alias("id")])
    rows = FinalRows(
        of_user=rows_of_codes(intake.users, _known(intake.users, all_users), all_users),
        of_item=rows_of_codes(intake.items, _known(intake.items, all_items), all_items),
        users=len(all_users) + 1,
        items=len(all_items) + 1,
    )
    with progress.bar("sorting", 2 * intake.rows) as bar:
        ordered = Ordering(intake, rows, None, staging).run(bar)
    if not ordered.events:
        raise DataError(f"none of {intake.rows:,} new events is of a known user and item; nothing was appended")
    with progress.bar("encoding", ordered.events * max(1, len(intake.columns))) as bar:
        segment.encode_events(ordered, intake, log.encoders, bar)
    write_tables(staging, log.encoders, items.of(new_items), users.of(new_users), unknown=False)
    segment.write_requests(ordered, None, None, log.encoders, None)
    facts = SegmentFacts(
        name=name, events=ordered.events, requests=len(ordered.user), items=len(new_items), users=len(new_users)
    )
    return facts, intake


def _new_ids(known: pl.Series, dictionary: Dictionary, table: Table, minimum: int) -> pl.Series:
    """Ids that the dataset does not have, in order; a dataset that drops rare ones takes no new ones at all."""
    if minimum > 1:
        return pl.Series("id", [], dtype=pl.String)
    found = pl.concat([dictionary.ordered()[0].alias("id"), table.ids.alias("id")]).unique()
    return found.filter(~found.is_in(known.implode())).sort()


def _known(dictionary: Dictionary, ids: pl.Series) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = dictionary.ordered()[0].is_in(ids.implode()).to_numpy()
    return known


def _publish(log: EventLog, manifest: Manifest) -> EventLog:
    """Write the parts of all requests anew, hash what is new, and replace the manifest."""
    name = _next_name(log, "parts")
    view = EventLog(log.path, manifest, log.encoders)
    requests = splits.Requests(
        user=view.column("requests/user").astype(np.int64),
        size=np.diff(view.column("requests/start").astype(np.int64)),
        time=view.column("events/time")[view.column("requests/start")[:-1]],
        named=view.column("requests/named_part") if log.schema.split.protocol == "column" else None,
    )
    save_column(log.path, name, splits.assign(log.schema.split, requests))
    folders = tuple(f"{one.name}/" for one in manifest.segments)
    known = {record.path: record for record in log.manifest.files}
    wanted = [
        path.relative_to(log.path).as_posix()
        for folder in folders
        for path in sorted((log.path / folder).rglob("*"))
        if path.is_file()
    ]
    records = [
        known.get(path) or files.record_file(log.path, path)
        for path in sorted([*wanted, f"{name}.npy", "encoders.json"])
    ]
    files.fsync(log.path / f"{name}.npy")
    files.fsync(log.path / "parts")
    sealed = manifest.model_copy(
        update={"parts": name, "files": records, "fingerprint": fingerprint_of(manifest, records)}
    )
    files.write_json(log.path / MANIFEST, sealed.model_dump(mode="json"))
    return EventLog(log.path, sealed, log.encoders)


def _forget(log: EventLog, before: set[str]) -> None:
    """Delete segments that neither this state of the dataset nor the one before it names, and the oldest parts."""
    keep = {one.name for one in log.manifest.segments} | before
    for path in (log.path / "segments").iterdir():
        if f"segments/{path.name}" not in keep:
            shutil.rmtree(path, ignore_errors=True)
    for path in sorted((log.path / "parts").iterdir(), key=_number)[:-MOST_SEGMENTS]:
        path.unlink()


def _next_name(log: EventLog, folder: str) -> str:
    """A name that was never used: after a kill there may be files that no manifest names."""
    return f"{folder}/{max(map(_number, (log.path / folder).iterdir())) + 1:04}"


def _number(path: Path) -> int:
    """The number a segment or parts file is called by; 0 for anything else."""
    digits = path.name.partition(".")[0]
    return int(digits) if digits.isdigit() else 0


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One append at a time; the lock vanishes with the process that holds it."""
    import fcntl  # Windows has none, and must be able to say so

    if not (path / MANIFEST).is_file():
        raise DataError(f"{path}: no dataset here; `limerank prepare` makes one")
    with (path / LOCK).open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(f"{path}: another process is appending to it; try again when it is done") from None
        yield


def _moment(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}"
