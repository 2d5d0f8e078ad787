"""What a bundle holds besides item rows, from a dataset to files in blocks: features, histories, seen items.

Memory is needed for some numbers per item and per user, never for all features or all events at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limerank.data.store.dataset import StoredDataset
from limerank.data.store.history import UNLIMITED, HistoryIndex
from limerank.schema import Kind, Role
from limerank.serve.bundles.tensor_file import Layout, TensorFile

Ints = NDArray[np.int64]
NUMBERS_PER_BLOCK = 2**20


def write_features(path: Path, dataset: StoredDataset, role: Role, *tables: str) -> None:
    """Write the encoded features of tables, one behind the other, as `limerank.serve.bundles.bundle.tensors_of`."""
    encoders = dataset.encoders.of(role)
    lists = [e.name for e in encoders if e.kind is Kind.MULTI_VALUED]
    vectors = [e.name for e in encoders if e.kind is Kind.VECTOR]
    single = [e.name for e in encoders if e.name not in lists and e.name not in vectors]
    rows = sum(dataset.manifest.table_rows[table] for table in tables)

    def pieces(name: str) -> list[NDArray[Any]]:
        return [piece for table in tables for piece in dataset.pieces(f"{table}/{name}")]

    layouts = {"indices": Layout.of(np.int64, rows, len(single))}
    for number, name in enumerate(lists):
        layouts[f"list{number}.offsets"] = Layout.of(np.int64, rows + 1)
        layouts[f"list{number}.values"] = Layout.of(np.int64, sum(map(len, pieces(f"{name}.values"))))
    for number, name in enumerate(vectors):
        found = pieces(name)
        layouts[f"vector{number}"] = Layout.of(np.result_type(*found), rows, found[0].shape[1])
    with TensorFile.opened(path, layouts) as file:
        for columns in zip(*(pieces(name) for name in single), strict=True):
            for first, last in _blocks(len(columns[0]), len(single)):
                file.append("indices", np.stack([column[first:last] for column in columns], axis=1, dtype=np.int64))
        for number, name in enumerate(lists):
            for piece in pieces(f"{name}.values"):
                _append(file, f"list{number}.values", piece)
            file.append(f"list{number}.offsets", np.zeros(1, dtype=np.int64))
            before = 0
            for piece in pieces(f"{name}.offsets"):
                _append(file, f"list{number}.offsets", piece[1:], before)
                before += int(piece[-1])
        for number, name in enumerate(vectors):
            for piece in pieces(name):
                _append(file, f"vector{number}", piece)


def write_histories(path: Path, dataset: StoredDataset, max_history: int) -> None:
    """Write the last events of every user, flat, oldest first; items that are not in the catalog stand behind it.

    Ready-made histories have no `times`.
    """
    history = HistoryIndex(dataset)
    ranges, offsets = history.rows_of_users(max_history)
    behind = dataset.manifest.table_rows["items"] if dataset.has_history_items else 0
    layouts = {
        "offsets": Layout.of(np.int64, len(offsets)),
        "item": Layout.of(np.int32, len(ranges)),
        "events": Layout.of(np.int32, len(ranges), len(history.events)),
    }
    if history.time is not None:
        layouts["times"] = Layout.of(np.int64, len(ranges))
    per_user = len(ranges.start) // (len(offsets) - 1)
    with TensorFile.opened(path, layouts) as file:
        _append(file, "offsets", offsets)
        for first, last in _user_blocks(offsets):
            rows = ranges.part(first * per_user, last * per_user)
            file.append("item", rows.take(history.item).astype(np.int32) + np.int32(behind))
            events = [rows.take(column).astype(np.int32) for column in history.events]
            file.append("events", np.stack(events, axis=1) if events else np.zeros((len(rows), 0), dtype=np.int32))
            if history.time is not None:
                file.append("times", rows.take(history.time))


def write_seen(path: Path, dataset: StoredDataset) -> None:
    """Write the distinct catalog items that each user ever had an event with; of ready-made histories, the latest."""
    users, items = (dataset.manifest.table_rows[table] for table in ("users", "items"))
    history = HistoryIndex(dataset)
    ranges, offsets = history.rows_of_users(UNLIMITED, beyond_limit=True)
    if dataset.has_history_items:
        ranges, offsets = ranges.part(0, 0), np.zeros(users + 1, dtype=np.int64)
    seen: Ints = np.zeros(users + 1, dtype=np.int64)
    per_user = len(ranges.start) // users
    with TensorFile.opened(
        path, {"offsets": Layout.of(np.int64, users + 1), "item": Layout.of(np.int32, len(ranges))}
    ) as file:
        for first, last in _user_blocks(offsets):
            rows = ranges.part(first * per_user, last * per_user)
            pairs = np.repeat(np.arange(last - first), np.diff(offsets[first : last + 1])) * items
            pairs += rows.take(history.item)
            pairs.sort()
            pairs = pairs[np.diff(pairs, prepend=-1) != 0]
            seen[first + 1 : last + 1] = np.bincount(pairs // items, minlength=last - first)
            file.append("item", (pairs % items).astype(np.int32))
        np.cumsum(seen, out=seen)
        _append(file, "offsets", seen)
        file.end_at(int(seen[-1]))


def _append(file: TensorFile, name: str, column: NDArray[Any], add: int = 0) -> None:
    """A column, in blocks and in the type that is written, with a number added to each value."""
    for first, last in _blocks(len(column), int(np.prod(column.shape[1:]))):
        block = column[first:last]
        file.append(name, block.astype(np.int64) + add if add else block)


def _blocks(rows: int, width: int) -> Iterator[tuple[int, int]]:
    step = max(1, NUMBERS_PER_BLOCK // max(1, width))
    return ((first, min(rows, first + step)) for first in range(0, rows, step))


def _user_blocks(offsets: Ints) -> Iterator[tuple[int, int]]:
    """Ranges of users with at most NUMBERS_PER_BLOCK events together, or of one user with more, or with none."""
    first, users = 0, len(offsets) - 1
    while first < users:
        fitting = int(np.searchsorted(offsets, offsets[first] + NUMBERS_PER_BLOCK, side="right")) - 1
        last = min(users, max(first + 1, fitting))
        yield first, last
        first = last
