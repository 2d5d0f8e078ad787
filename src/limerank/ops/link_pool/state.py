"""What links remember of a history: a commutative monoid, so histories can grow, be cut up and be put together.

For head h and link i over events j with scores x_j and values v_j, softmax pooling is `sum e^(x_j) v_j / sum e^(x_j)`.
The state keeps both sums relative to a level, which may be any number near the largest score:

    mass = sum_j e^(x_j - level),    total = sum_j e^(x_j - level) v_j,    pooled = total / mass

Two states merge by bringing them to one level. Merging is associative and commutative, the empty state is neutral, and
an event is a state too: per-day blocks, sharded histories and "long term offline plus today online" are all exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.checks import shape_of


@dataclass(frozen=True)
class PoolState:
    """Sums of one history for [H, l] links; `total` [H, l, w]. Levels are fp64: recency makes them large."""

    level: Tensor
    mass: Tensor
    total: Tensor
    low: Tensor = field(init=False, repr=False, compare=False)
    """The levels [H * l] in the sums' precision: what single events are compared with."""
    flat_mass: Tensor = field(init=False, repr=False, compare=False)
    flat_total: Tensor = field(init=False, repr=False, compare=False)
    """The sums as [H * l] and [H * l, w]: views that appending one event would otherwise make anew each time."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", self.level.flatten().to(self.mass.dtype, copy=True))
        object.__setattr__(self, "flat_mass", self.mass.view(-1))
        object.__setattr__(self, "flat_total", self.total.view(-1, self.total.shape[-1]))

    def raise_to(self, level: Tensor) -> None:
        """Set the levels; the sums are the caller's to rescale."""
        self.level.copy_(level)
        self.low.copy_(level.flatten())

    @classmethod
    def empty(
        cls,
        heads: int,
        links: int,
        width: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> PoolState:
        """The state of an empty history: neutral for `merge`, pools to zero."""
        level = torch.full((heads, links), -torch.inf, dtype=torch.float64, device=device)
        mass = torch.zeros(heads, links, dtype=dtype, device=device)
        return cls(level, mass, torch.zeros(heads, links, width, dtype=dtype, device=device))

    def copy(self) -> PoolState:
        """A state of its own: `append` changes a state in place."""
        return PoolState(self.level.clone(), self.mass.clone(), self.total.clone())

    def replace(self, other: PoolState) -> None:
        """Become another state, in place."""
        self.raise_to(other.level)
        self.mass.copy_(other.mass)
        self.total.copy_(other.total)

    def finalize(self) -> Tensor:
        """The pooled values [H, l, w]; zero for an empty history."""
        return self.total / self.mass.masked_fill(self.mass == 0, 1)[..., None]

    def merge(self, other: PoolState) -> PoolState:
        """The state of both histories together."""
        return merge_states([self, other])

    @property
    def bytes(self) -> int:
        """Memory of the state."""
        tensors = (self.level, self.low, self.mass, self.total)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def merge_states(states: Sequence[PoolState]) -> PoolState:
    """The state of all histories together; all states have the same shape."""
    if not states:
        raise ArgumentError("states: there is nothing to merge; PoolState.empty is the state of an empty history")
    first = states[0].total
    for position, state in enumerate(states):
        if state.total.shape != first.shape:
            raise ArgumentError(
                f"states[{position}].total {shape_of(state.total)} does not fit states[0].total {shape_of(first)}"
            )
    levels = torch.stack([state.level for state in states])
    level = levels.amax(0)
    # an empty state has level -inf and sums of zero: any finite factor leaves it neutral
    factors = torch.exp(levels - level).nan_to_num(nan=0.0).to(first.dtype)
    mass = sum(
        (state.mass * factor for state, factor in zip(states, factors, strict=True)), torch.zeros_like(states[0].mass)
    )
    total = torch.zeros_like(first)
    for state, factor in zip(states, factors, strict=True):
        total.addcmul_(state.total, factor[..., None])
    return PoolState(level, mass, total)


def add_states(states: Sequence[PoolState]) -> PoolState:
    """The sums of all histories together where weights are no exponentials, so that levels mean nothing."""
    mass = torch.stack([state.mass for state in states]).sum(0)
    return PoolState(states[0].level.clone(), mass, torch.stack([state.total for state in states]).sum(0))
