"""Rankers whose history is a sum: TTSN, IntTower, linear attention and Performer.

Kept is the sum, of vectors or of one matrix f(k_j) v_j^T per head, whatever the context. Sums of vectors are fp64;
those of matrices are kept apart by window (`windows`) like all others, so that nothing is ever subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from limerank.models.base import UserState
from limerank.models.incremental.reading import Events, IncrementalUser, Reading, bytes_of
from limerank.models.incremental.windows import Summary, WindowReading
from limerank.models.inttower import IntTowerRanker
from limerank.models.linear_attention import LinearAttentionRanker
from limerank.models.performer import PerformerRanker
from limerank.models.ttsn import TTSNRanker
from limerank.nn.layers.random_features import EPSILON
from limerank.ops.linear_attention import append_one, outer_sums


class RowSums(Summary[Tensor]):
    """sum_j E_j [d], fp64."""

    def read(self, events: Events) -> Tensor:
        return events.rows.sum(0, dtype=torch.float64)

    def append(self, state: Tensor, events: Events) -> Tensor:
        return state.add_(self.read(events))

    def merge(self, states: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(states)).sum(0)

    def bytes(self, state: Tensor) -> int:
        return bytes_of([state])


class OuterSums(RowSums):
    """sum_j f(k_j) v_j^T [H, r, v] of linear attention, with the normalizer's column where it has one."""

    def __init__(self, ranker: LinearAttentionRanker) -> None:
        self.ranker = ranker

    def read(self, events: Events) -> Tensor:
        keys, values = self.ranker.to_keys_values(events.rows)
        if self.ranker.options.normalizer == "sum":
            values = append_one(values)
        return outer_sums(self.ranker.features(keys), values, _offsets(events))[0].contiguous()


class FeatureSums(NamedTuple):
    """Of features e^(x_j - largest) / sqrt(r): `largest` [H], `sums` [H, r, v + 1], and `plain` sums [H, v + 1]."""

    largest: Tensor
    sums: Tensor
    plain: Tensor


class RandomFeatureSums(Summary[FeatureSums]):
    """Performer's sums relative to the largest exponent of all events, as its features are."""

    def __init__(self, ranker: PerformerRanker) -> None:
        self.ranker = ranker

    def read(self, events: Events) -> FeatureSums:
        keys, values = self.ranker.to_keys_values(events.rows)
        values, exponents = append_one(values), self.ranker.random_features.exponents(keys)
        heads, rank = exponents.shape[1:]
        lowest = exponents.new_full((1, heads), -torch.inf)
        largest = torch.cat([lowest, exponents.amax(-1)]).amax(0)
        features = (exponents - largest[:, None]).exp().mul_(rank**-0.5)
        sums = outer_sums(features, values, _offsets(events))[0].clone()  # a view would keep twice as much
        return FeatureSums(largest, sums, values.sum(0))

    def append(self, state: FeatureSums, events: Events) -> FeatureSums:
        return self.merge([state, self.read(events)])

    def merge(self, states: Sequence[FeatureSums]) -> FeatureSums:
        each = torch.stack([state.largest for state in states])
        largest = each.amax(0)
        factors = (each - largest).exp().nan_to_num(nan=0.0)  # no event at all: any finite factor of nothing
        sums = torch.stack([state.sums for state in states]).mul_(factors[..., None, None]).sum(0)
        return FeatureSums(largest, sums, torch.stack([state.plain for state in states]).sum(0))

    def bytes(self, state: FeatureSums) -> int:
        return bytes_of(state)


class RowSumUser(IncrementalUser):
    """TTSN and IntTower: o_c, or the user tower's input, is the sum or the mean of E."""

    ranker: TTSNRanker | IntTowerRanker

    def start(self, events: Events, context: Tensor, first: int = 0) -> Reading:
        return WindowReading(RowSums(), events, first)

    def finish(self, reading: Reading, context: Tensor) -> UserState:
        assert isinstance(reading, WindowReading)
        ranker, pooled = self.ranker, reading.state()
        if ranker.options.pooling == "mean":
            pooled = pooled / max(1, reading.stop - reading.first)
        pooled = pooled.to(context.dtype)[None]
        return ranker.user_state(pooled, context)


class OuterSumUser(IncrementalUser):
    """Linear attention: the matrices themselves are the user."""

    ranker: LinearAttentionRanker

    def start(self, events: Events, context: Tensor, first: int = 0) -> Reading:
        return WindowReading(OuterSums(self.ranker), events, first)

    def finish(self, reading: Reading, context: Tensor) -> UserState:
        assert isinstance(reading, WindowReading)
        matrices = reading.state()[None]
        if self.ranker.options.normalizer == "events":
            matrices = matrices / max(1, reading.stop - reading.first)
        else:
            matrices = matrices.clone()  # the state itself grows on
        return UserState((matrices,), self.ranker.head.from_user(context))


class RandomFeatureUser(IncrementalUser):
    """Performer."""

    ranker: PerformerRanker

    def start(self, events: Events, context: Tensor, first: int = 0) -> Reading:
        return WindowReading(RandomFeatureSums(self.ranker), events, first)

    def finish(self, reading: Reading, context: Tensor) -> UserState:
        assert isinstance(reading, WindowReading)
        state = reading.state()
        matrices = torch.add(state.sums, state.plain[:, None], alpha=EPSILON)
        return UserState((matrices[None],), self.ranker.head.from_user(context))


def _offsets(events: Events) -> Tensor:
    return torch.tensor([0, len(events)])
