"""A ranker whose item tower knows the events of a catalog by their rows: the same numbers, found, not computed."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from limerank.batch import Features, History
from limerank.models.base import Ranker
from limerank.models.serving.events import EventTable, distinct_history
from limerank.nn.features import EVENTS_PER_PAIR, ItemTower
from limerank.ops.gathered import Gathered

LONG = 1024
"""Events from which on it is worth looking for those that occur repeatedly."""


class TabledTower(ItemTower):
    """The item tower of a ranker, with a table for histories that name their items by row of `items`."""

    def __init__(self, tower: ItemTower, items: Features, bytes_allowed: int) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(tower.__dict__)  # the same parameters, not a copy of them
        self.items = items
        self.table = EventTable(tower, items, bytes_allowed=bytes_allowed)

    def distinct_history(self, history: History) -> Gathered:
        """E, gathered from the table where the history is named by rows."""
        if history.items is not self.items:
            return super().distinct_history(history)
        rows, events = history.item_of_event, history.events.indices
        found = self.table.find(rows, events)
        if found is None:
            compact = distinct_history(self.items, rows, events)
            return super().distinct_history(replace(compact, events=history.events))
        vectors, slots = found
        if len(slots) >= LONG:
            once, index = np.unique(slots.numpy(), return_inverse=True)
            if EVENTS_PER_PAIR * len(once) <= len(slots):
                return Gathered(vectors.index_select(0, torch.from_numpy(once)), torch.from_numpy(index))
        return Gathered(vectors.index_select(0, slots))


def with_tabled_tower(ranker: Ranker, items: Features, bytes_allowed: int) -> Ranker:
    """The same ranker, sharing its parameters, that looks events of `items` up."""
    served = copy(ranker)
    served._modules = dict(ranker._modules)
    served.item_tower = TabledTower(ranker.item_tower, items, bytes_allowed)
    return served
