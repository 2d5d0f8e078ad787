"""A prepared dataset back to texts, to compare it row by row with the file it was made from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from limerank.data.store.dataset import StoredDataset
from limerank.data.store.history import HistoryIndex
from limerank.schema import Kind, Role


class Row(NamedTuple):
    """One candidate with its user and history; an element of a history is its item part and its event part."""

    part: int
    user: str
    history: tuple[tuple[str, ...], ...]
    item: str
    label: int


def decoded_rows(dataset: StoredDataset, item_features: tuple[str, ...] = ()) -> list[Row]:
    """Every candidate, sorted. Elements are item ids, or the values of `item_features`; then the event features."""
    index = HistoryIndex(dataset)
    single = [e for e in dataset.encoders.of(Role.ITEM) if e.kind not in (Kind.MULTI_VALUED, Kind.VECTOR)]
    chosen = [(column, e) for column, e in enumerate(single) if e.name in item_features]
    starts, users = dataset.column("requests/start"), dataset.column("requests/user")
    (task,) = dataset.schema.tasks
    rows: list[Row] = []
    for request in range(dataset.manifest.counts["requests"]):
        found, _ = index.rows(np.array([request]), 10**6)
        history = []
        for element in found.rows:
            row = int(index.item[element])
            known = [e.decode(int(index.table.indices[row, at])) for at, e in chosen]
            encoded = zip(dataset.encoders.of(Role.EVENT), index.events, strict=True)
            event = [encoder.decode(int(values[element])) for encoder, values in encoded]
            history.append((*(known if item_features else [dataset.item_ids[row]]), *event))
        for event_row in range(int(starts[request]), int(starts[request + 1])):
            rows.append(
                Row(
                    int(dataset.column("requests/part")[request]),
                    dataset.user_ids[int(users[request])],
                    tuple(history),
                    dataset.item_ids[int(dataset.column("events/item")[event_row])],
                    int(dataset.column(f"events/label.{task.name}")[event_row]),
                )
            )
    return sorted(rows)
