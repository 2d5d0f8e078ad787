"""What a ranker reads of an event by itself, computed once and kept: E, or keys and values of it.

An event is an item and a way in which something happened with it (a value of every event feature), so its vector is
the same in every history. Vectors are computed when a pair of item and way first occurs and are kept in a table of
bounded size; a history that the table knows costs a gather.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limerank.batch import Features, History
from limerank.nn.features import ItemTower

BYTES_ALLOWED = 2**28
"""Of one table: keys and values of 131,072 pairs at d = 256, of a million at d = 32."""
Ints = NDArray[np.integer]


@dataclass
class _Held:
    """Vectors by slot, and the slot of each pair; slot 0 is no pair's. A slot that was handed out never changes."""

    vectors: Tensor
    slot_of_pair: NDArray[np.int32]
    used: int = 1


class EventTable:
    """Vectors [n, w] of events, by item row and encoded event features; safe to read from many threads.

    `read` maps E [n, d] to the vectors row by row. A full table is replaced by an empty one, in which what still occurs
    is soon found again; requests that still read the old one keep it.
    """

    def __init__(
        self,
        tower: ItemTower,
        items: Features,
        read: Callable[[Tensor], Tensor] | None = None,
        bytes_allowed: int = BYTES_ALLOWED,
    ) -> None:
        self.tower = tower
        self.items = items
        self._read = read or (lambda rows: rows)
        self._ways = math.prod(tower.event_sizes)
        self._strides = np.array([math.prod(tower.event_sizes[i + 1 :]) for i in range(len(tower.event_sizes))])
        self._pairs = len(items) * self._ways
        with torch.no_grad():
            self.width = self._read(torch.zeros(1, tower.to_output.out_features)).shape[1]
        row_bytes = 4 * self.width
        kept = (bytes_allowed - 4 * self._pairs) // row_bytes
        self.capacity = max(0, min(kept, self._pairs))
        self._filling = Lock()
        self._held = self._empty()

    def __call__(self, item_rows: Tensor, events: Tensor) -> Tensor:
        """The vectors of events, from rows of the item table [n] and encoded event features [n, features]."""
        found = self.find(item_rows, events)
        return self._computed(item_rows, events) if found is None else found[0].index_select(0, found[1])

    def find(self, item_rows: Tensor, events: Tensor) -> tuple[Tensor, Tensor] | None:
        """The table and the slots [n] of events in it; None if there are more pairs than it may hold."""
        if not self.capacity:
            return None
        pairs = item_rows.numpy()
        if self._ways > 1:
            pairs = pairs * self._ways + events.numpy() @ self._strides
        held = self._held
        slots = held.slot_of_pair[pairs]
        if not slots.all():
            filled = self._fill(pairs)
            if filled is None:
                return None
            held, slots = filled
        return held.vectors, torch.from_numpy(slots)

    @property
    def bytes(self) -> int:
        """Memory of the vectors that are kept."""
        return 4 * self.width * (self._held.used - 1)

    def _empty(self) -> _Held:
        # neither is touched before it is written, so memory is taken as it fills
        with torch.inference_mode(False):  # or only inference mode could ever fill it
            vectors = torch.empty(self.capacity + 1, self.width)
        return _Held(vectors, np.zeros(self._pairs if self.capacity else 0, dtype=np.int32))

    def _fill(self, pairs: Ints) -> tuple[_Held, NDArray[np.int32]] | None:
        """Compute the pairs that are missing; None if all of these pairs do not fit at once."""
        with self._filling, torch.no_grad():
            held = self._held
            missing = np.unique(pairs[held.slot_of_pair[pairs] == 0])
            if held.used + len(missing) > self.capacity + 1:
                missing = np.unique(pairs)
                if len(missing) > self.capacity:
                    return None
                held = self._empty()
            rows, ways = np.divmod(missing, self._ways)
            sizes = np.array(self.tower.event_sizes, dtype=np.int64)
            events = ways[:, None] // self._strides % sizes if len(sizes) else np.zeros((len(rows), 0), dtype=np.int64)
            end = held.used + len(missing)
            held.vectors[held.used : end] = self._computed(torch.from_numpy(rows), torch.from_numpy(events))
            held.slot_of_pair[missing] = np.arange(held.used, end, dtype=np.int32)  # only now are they found
            held.used = end
            self._held = held
            return held, held.slot_of_pair[pairs]

    def _computed(self, item_rows: Tensor, events: Tensor) -> Tensor:
        """The vectors by the tower, each item's part once."""
        return self._read(self.tower.history(distinct_history(self.items, item_rows, events)))


def distinct_history(items: Features, item_rows: Tensor, events: Tensor) -> History:
    """One history named by rows of a table of items, with the features of each item once."""
    rows, item_of_event = np.unique(item_rows.numpy(), return_inverse=True)
    return History(
        items.take(torch.from_numpy(rows.astype(np.int64))),
        torch.from_numpy(item_of_event),
        Features(events),
        torch.tensor([0, len(item_of_event)]),
    )
