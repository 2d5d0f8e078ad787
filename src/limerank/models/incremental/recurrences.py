"""Rankers that carry a state from event to event: Mamba and Lightning.

An event costs one step of every layer. The state knows the events in their order, so it cannot forget the oldest: once
the window is full, it is computed anew.
"""

from __future__ import annotations

import torch
from torch import Tensor

from limerank.models.base import UserState
from limerank.models.incremental.reading import Events, IncrementalUser, Reading, bytes_of
from limerank.models.lightning import LightningRanker
from limerank.models.mamba import MambaRanker
from limerank.nn.layers.mamba import MambaState


class CarriedReading(Reading):
    """States of all layers, and the last row behind them."""

    def __init__(
        self, user: RecurrentUser, first: int, stop: int, states: list[tuple[Tensor, ...]], last: Tensor
    ) -> None:
        self.user = user
        self.first, self.stop = first, stop
        self.states, self.last = states, last

    def append(self, events: Events) -> None:
        for row in events.rows.split(1):
            self.states, self.last = self.user.step(row, self.states)
        self.stop += len(events)

    @property
    def bytes(self) -> int:
        return bytes_of([self.last, *(tensor for state in self.states for tensor in state)])


class RecurrentUser(IncrementalUser):
    """One step per event; every step makes new tensors, so a finished state may hold them."""

    slides = False

    def step(self, row: Tensor, states: list[tuple[Tensor, ...]]) -> tuple[list[tuple[Tensor, ...]], Tensor]:
        """The states behind one more event [1, d], and its row after all layers."""
        raise TypeError(f"{type(self).__name__} takes no steps")


class MambaUser(RecurrentUser):
    """The recurrence's state and the convolution's last inputs of every block."""

    ranker: MambaRanker

    def start(self, events: Events, context: Tensor, first: int = 0) -> Reading:
        rows, states, last = events.rows, [], events.rows.new_zeros(1, events.rows.shape[1])
        offsets = torch.tensor([0, len(events)])
        for block in self.ranker.stack.blocks():
            rows, state = block(rows, offsets)
            states.append(tuple(state))
        return CarriedReading(self, first, first + len(events), states, rows[-1:].clone() if len(rows) else last)

    def step(self, row: Tensor, states: list[tuple[Tensor, ...]]) -> tuple[list[tuple[Tensor, ...]], Tensor]:
        after: list[tuple[Tensor, ...]] = []
        for block, (hidden, recent) in zip(self.ranker.stack.blocks(), states, strict=True):
            row, state = block.advance(row, MambaState(hidden, recent))
            after.append(tuple(state))
        return after, row

    def finish(self, reading: Reading, context: Tensor) -> UserState:
        assert isinstance(reading, CarriedReading)
        head_part = self.ranker.head.from_user(context)
        if self.ranker.factorized:
            return UserState((reading.last,), head_part)
        return UserState(tuple(tensor for state in reading.states for tensor in state), head_part)


class LightningUser(RecurrentUser):
    """The decayed sum of every layer [1, H, a, v]; the last one is what candidates read."""

    ranker: LightningRanker

    def start(self, events: Events, context: Tensor, first: int = 0) -> Reading:
        rows, offsets = events.rows, torch.tensor([0, len(events)])
        states: list[tuple[Tensor, ...]] = []
        for layer in self.ranker.decayed_layers():
            states.append((layer.state_after(rows, offsets),))
            rows = layer(rows, offsets)
        states.append((self.ranker.state_after(rows, offsets),))
        # nothing reads the last row, and a view of no rows would keep all of them
        return CarriedReading(self, first, first + len(events), states, rows.new_zeros(0, rows.shape[1]))

    def step(self, row: Tensor, states: list[tuple[Tensor, ...]]) -> tuple[list[tuple[Tensor, ...]], Tensor]:
        after: list[tuple[Tensor, ...]] = []
        *earlier, (last,) = states
        for layer, (state,) in zip(self.ranker.decayed_layers(), earlier, strict=True):
            row, state = layer.advance(row, state)
            after.append((state,))
        own = self.ranker.state_after(row, torch.tensor([0, 1]))
        after.append((torch.addcmul(own, last, torch.exp(-self.ranker.rates)[:, None, None]),))
        return after, row[:0]

    def finish(self, reading: Reading, context: Tensor) -> UserState:
        assert isinstance(reading, CarriedReading)
        return UserState(reading.states[-1], self.ranker.head.from_user(context))
