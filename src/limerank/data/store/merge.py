"""Several segments to one: the integers are copied in order, nothing is encoded again."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from limerank.data.store.column_files import ColumnWriter, save_column, write_ids
from limerank.data.store.dataset import StoredDataset
from limerank.data.store.manifest import SegmentFacts
from limerank.data.store.ranges import expand_ranges

USERS_PER_BLOCK = 20_000

Ints = NDArray[np.int64]


def merge_segments(dataset: StoredDataset, folder: Path, name: str) -> SegmentFacts:
    """Write one segment that says what all segments of a dataset say together."""
    manifest = dataset.manifest
    per_segment = _events_of_users(dataset, manifest.table_rows["users"])
    begins, ends = per_segment[..., 0], per_segment[..., 1]
    _merge_events(dataset, folder, begins, ends)
    sizes = ends - begins
    user_offsets = np.concatenate([[0], np.cumsum(sizes.sum(1))])
    _merge_requests(dataset, folder, begins, sizes, user_offsets)
    save_column(folder, "requests/user_offsets", user_offsets)
    for table in ("items", "users"):
        _merge_table(dataset, folder, table)
    write_ids(folder / "item_ids.arrow", dataset.item_ids, dataset.item_displays, unknown=False)
    write_ids(folder / "user_ids.arrow", dataset.user_ids, None, unknown=False)
    for bad in manifest.bad_rows:
        shutil.copyfile(dataset.path_of(bad), folder / bad.file)
    sizes_of = {name: manifest.counts[name] for name in ("events", "requests")} | manifest.table_rows
    return SegmentFacts(name=name, **sizes_of)


def _events_of_users(dataset: StoredDataset, users: int) -> Ints:
    """[users, segments, 2]: where each user's events begin and end, counted through all segments."""
    ranges = np.zeros((users, len(dataset.segments), 2), dtype=np.int64)
    base = 0
    for place, (piece, facts) in enumerate(
        zip(dataset.pieces("requests/user_offsets"), dataset.manifest.segments, strict=True)
    ):
        offsets = piece.astype(np.int64) + base
        ranges[: len(offsets) - 1, place, 0], ranges[: len(offsets) - 1, place, 1] = offsets[:-1], offsets[1:]
        base += facts.events
    return ranges


def _merge_events(dataset: StoredDataset, folder: Path, begins: Ints, ends: Ints) -> None:
    for path in sorted((dataset.segments[0] / "events").iterdir()):
        column = dataset.column(f"events/{path.stem}")
        dtype = np.result_type(*dataset.pieces(f"events/{path.stem}"))
        with ColumnWriter(folder / "events" / path.name, dtype) as writer:
            for start in range(0, len(begins), USERS_PER_BLOCK):
                block = slice(start, start + USERS_PER_BLOCK)
                writer.append(column[expand_ranges(begins[block].ravel(), ends[block].ravel())[0]])


def _merge_requests(dataset: StoredDataset, folder: Path, begins: Ints, sizes: Ints, user_offsets: Ints) -> None:
    user = dataset.column("requests/user").astype(np.int64)
    start = dataset.column("requests/start").astype(np.int64)
    requests_of = [facts.requests for facts in dataset.manifest.segments]
    segment = np.repeat(np.arange(len(requests_of)), requests_of)
    earlier = np.cumsum(sizes, axis=1) - sizes
    moved = user_offsets[user] + earlier[user, segment] - begins[user, segment]
    order = np.argsort(start[:-1] + moved, kind="stable")
    events = np.append((start[:-1] + moved)[order], start[-1])
    save_column(folder, "requests/start", events)
    save_column(folder, "requests/user", user[order])
    save_column(
        folder, "requests/history_end", (dataset.column("requests/history_end").astype(np.int64) + moved)[order]
    )
    if (dataset.segments[0] / "requests/named_part.npy").exists():
        save_column(folder, "requests/named_part", dataset.column("requests/named_part")[order])


def _merge_table(dataset: StoredDataset, folder: Path, table: str) -> None:
    source = dataset.segments[0] / table
    for path in sorted(source.iterdir()) if source.is_dir() else ():
        pieces = dataset.pieces(f"{table}/{path.stem}")
        if path.stem.endswith(".offsets"):
            lengths = np.concatenate([np.diff(piece.astype(np.int64)) for piece in pieces])
            merged = np.concatenate([[0], np.cumsum(lengths)])
        else:
            merged = np.concatenate(pieces)
        save_column(folder, f"{table}/{path.stem}", merged)
