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


def decoded_rows(log: StoredDataset, item_features: tuple[str, ...] = ()) -> list[Row]:
    """Every candidate, sorted. Elements are item ids, or the values of `item_features`; then the event features."""
    index = HistoryIndex(log)
    single = [e for e in log.encoders.of(Role.ITEM) if e.kind not in (Kind.MULTI_VALUED, Kind.VECTOR)]
    chosen = [(place, e) for place, e in enumerate(single) if e.name in item_features]
    starts, users = log.column("requests/start"), log.column("requests/user")
    (task,) = log.schema.tasks
    rows: list[Row] = []
    for request in range(log.manifest.counts["requests"]):
        places, _ = index.rows(np.array([request]), 10**6)
        history = []
        for place in places.rows:
            row = int(index.item[place])
            known = [e.decode(int(index.table.indices[row, at])) for at, e in chosen]
            event = [e.decode(int(c[place])) for e, c in zip(log.encoders.of(Role.EVENT), index.events, strict=True)]
            history.append((*(known if item_features else [log.item_ids[row]]), *event))
        for event_row in range(int(starts[request]), int(starts[request + 1])):
            rows.append(
                Row(
                    int(log.column("requests/part")[request]),
                    log.user_ids[int(users[request])],
                    tuple(history),
                    log.item_ids[int(log.column("events/item")[event_row])],
                    int(log.column(f"events/label.{task.name}")[event_row]),
                )
            )
    return sorted(rows)
