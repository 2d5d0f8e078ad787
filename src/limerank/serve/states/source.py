"""What kept states ask of a bundle: E of some events, E^C of a request, and the whole user stage if need be."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial

import numpy as np
import torch
from torch import Tensor

from limerank.batch import Features, UserInputs
from limerank.data.batches import make_history
from limerank.models import Ranker, UserState
from limerank.models.incremental import Events, incremental_user
from limerank.ops.dealing import Deal, in_order
from limerank.serve.requests import Asked, RequestReader

LEAST_EVENTS = 512
"""A shorter history is read about as quickly as its state would be grown and finished."""


class UserSource:
    """The user side of one bundle, by its `version`: states of another version are never used.

    `encode` is the user stage that computes a state from nothing, `embed` makes E without its encoding from item rows
    and encoded event features; by default both are the ranker's. Of histories shorter than `least_events` only
    finished states are kept. `stale_budget` lets LIME-XOR be approximate. `deal` does parts of long histories.
    """

    def __init__(
        self,
        version: str,
        ranker: Ranker,
        reader: RequestReader,
        *,
        encode: Callable[[UserInputs], UserState] | None = None,
        embed: Callable[[Tensor, Tensor], Tensor] | None = None,
        stale_budget: float | None = None,
        least_events: int = LEAST_EVENTS,
        deal: Deal = in_order,
    ) -> None:
        self.version = version
        self.ranker = ranker
        self.reader = reader
        self.grows = incremental_user(ranker, stale_budget, deal)
        self.least_events = least_events
        self._encode = encode or ranker.encode_user
        self._embed = embed or self._by_tower

    def of_version(self, version: str) -> UserSource:
        """The same source with states of its own: for histories with items that are not in the bundle."""
        if version == self.version:
            return self
        other = copy(self)
        other.version = version
        return other

    def is_long(self, asked: Asked) -> bool:
        """Whether the history that is read is worth a state that grows."""
        return asked.count - self.reader.first_kept(asked) >= self.least_events

    @property
    def exact(self) -> bool:
        """Whether a grown state is what would be computed from nothing."""
        return self.grows is None or self.grows.exact

    @property
    def slides(self) -> bool:
        """Whether a kept state can forget the oldest events: positions from the start shift with the window."""
        return self.grows is not None and self.grows.slides and self.ranker.options.encoding != "position"

    @property
    def reads_now(self) -> bool:
        """Whether the time of the request itself changes the state."""
        return self.ranker.reads_now

    def events(self, asked: Asked, first: int, stop: int) -> Events:
        """E and times of the events from one number up to another; `first_kept` stands at position 0."""
        items, events, happened = self.reader.columns(asked, first, stop)
        table, items = self.reader.items_of(asked, items)
        embed = self._embed if table is self.reader.bundle.item_table else partial(self._by_tower, table=table)
        rows = embed(torch.from_numpy(items), torch.from_numpy(events))
        times = None if happened is None or not self.ranker.needs_times else torch.from_numpy(happened)
        if self.ranker.encoding is not None:
            rows = self.ranker.encoding.part(rows, times, first - self.reader.first_kept(asked))
        return Events(rows, times)

    def _by_tower(self, items: Tensor, events: Tensor, table: Features | None = None) -> Tensor:
        offsets = np.array([0, len(items)])
        history = make_history(table or self.reader.bundle.item_table, items.numpy(), Features(events), offsets)
        return self.ranker.item_tower.history(history)

    def context(self, asked: Asked) -> Tensor:
        """E^C [1, c]."""
        users = self.reader.bundle.user_table.take(torch.tensor([asked.user_row]))
        context: Tensor = self.ranker.context_tower(users, Features(torch.from_numpy(asked.context)))
        return context

    def encode(self, asked: Asked) -> UserState:
        """The state from nothing."""
        return self._encode(self.reader.inputs(asked))
