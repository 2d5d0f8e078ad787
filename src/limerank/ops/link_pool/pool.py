"""Softmax pooling of one history by links, as a stream: the state of `state.py` grows chunk by chunk or event by event.

A recency bias is linear in age: `x_j - decay_h (now - t_j)`. In a softmax `now` cancels, so the score is
`x_j + decay_h t_j` and a state never has to be touched because time passed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from limerank.errors import ArgumentError
from limerank.ops.checks import (
    check_layout,
    check_same_kind,
    check_same_size,
    check_summable,
    refuse_non_finite,
    shape_of,
)
from limerank.ops.link_pool.state import PoolState

CHUNK = 1024  # events whose scores and rows stay in a core's cache
HEADROOM = 16.0  # scores may exceed the level by this much before sums are rescaled; e^16 is far from fp32's limits


@dataclass(frozen=True)
class LinkPool:
    """Links that pool histories: queries [H, l, a], already scaled, and an optional recency `decay` [H] per time unit.

    Events come as keys [n, H, a] and values [n, H, v], or, absorbed, as rows [n, 1, d] that serve all heads as both
    (`absorb_keys` and `project_pooled` move the projections to the links' side).
    """

    queries: Tensor
    decay: Tensor | None = None
    _flat: Tensor = field(init=False, repr=False, compare=False)
    """The queries as [H * l, a]."""

    def __post_init__(self) -> None:
        check_layout("queries", self.queries, "[H, l, a]")
        check_summable("queries", self.queries)
        object.__setattr__(self, "_flat", self.queries.reshape(-1, self.queries.shape[-1]))
        if self.decay is not None:
            check_layout("decay", self.decay, "[H]")
            check_same_size("decay", self.decay, 0, "queries", self.queries, 0)
            check_same_kind({"queries": self.queries, "decay": self.decay})

    def pool(self, keys: Tensor, values: Tensor, times: Tensor | None = None) -> PoolState:
        """The state of a whole history."""
        heads, links, _ = self.queries.shape
        empty = PoolState.empty(heads, links, values.shape[-1], dtype=keys.dtype, device=keys.device)
        return self.append(empty, keys, values, times)

    @torch.no_grad()
    def append(self, state: PoolState, keys: Tensor, values: Tensor, times: Tensor | None = None) -> PoolState:
        """Add one event or many to a state, in place; returns the state. Events that are refused leave no trace."""
        self.check(state, keys, values, times)
        grown = state if len(keys) <= CHUNK else state.copy()  # a later chunk may still be refused
        for start in range(0, len(keys), CHUNK):
            part = slice(start, start + CHUNK)
            self.add_chunk(grown, keys[part], values[part], None if times is None else times[part])
        if grown is not state:
            state.replace(grown)
        return state

    def append_row(self, state: PoolState, row: Tensor, time: float | None = None) -> PoolState:
        """`append` for a single absorbed event, row [d]: the hot path of a service, with as few calls as possible."""
        if row.shape != self.queries.shape[2:] or state.total.shape != self.queries.shape:
            raise ArgumentError(
                f"row {shape_of(row)} and state {shape_of(state.total)} do not fit queries {shape_of(self.queries)}: "
                f"they must be [{self.queries.shape[2]}] and {shape_of(self.queries)}"
            )
        self._check_time(time)
        weights = self._weights_below(state, torch.mv(self._flat, row), time)
        if weights is None:
            shared = row[None, None]
            return self.append(state, shared, shared, _as_times(time, row))
        state.flat_mass.add_(weights)
        state.flat_total.addcmul_(weights[:, None], row)
        return state

    def append_event(self, state: PoolState, key: Tensor, value: Tensor, time: float | None = None) -> PoolState:
        """`append` for a single event with a key [H, a] and a value [H, v] per head, with as few calls as possible."""
        heads, links, _ = self.queries.shape
        if key.shape != (heads, self.queries.shape[2]) or state.total.shape != (heads, links, value.shape[-1]):
            raise ArgumentError(
                f"key {shape_of(key)}, value {shape_of(value)} and state {shape_of(state.total)} do not fit queries "
                f"{shape_of(self.queries)}"
            )
        self._check_time(time)
        # a product and a sum: quicker than a batch of matrices times one vector each
        weights = self._weights_below(state, (self.queries * key[:, None]).sum(-1).view(-1), time)
        if weights is None or not math.isfinite(value.sum().item()):
            return self.append(state, key[None], value[None], _as_times(time, key))
        state.flat_mass.add_(weights)
        state.total.addcmul_(weights.view(heads, links, 1), value[:, None])
        return state

    def _weights_below(self, state: PoolState, scores: Tensor, time: float | None) -> Tensor | None:
        """The weights [H * l] of one event by its scores, which are used up; None if the level has to rise first."""
        if self.decay is None or time is None:
            scores.sub_(state.low)
        else:
            scores.sub_((state.level - (self.decay.double() * time)[:, None]).view(-1).to(scores.dtype))
        lowest, highest = scores.aminmax()
        # or the event is not a number: infinity may hide in scores of either end
        if not highest.item() <= HEADROOM or lowest.item() == -math.inf:
            return None
        return scores.exp_()

    def _check_time(self, time: float | None) -> None:
        if (time is None) != (self.decay is None):
            raise ArgumentError(
                "time and decay belong together: a recency bias needs the time of the event, and only it"
            )

    def add_chunk(
        self, state: PoolState, keys: Tensor, values: Tensor, times: Tensor | None, buffer: Tensor | None = None
    ) -> None:
        """One chunk of a stream, unchecked; `buffer` [n, H * l] is for scores of keys that all heads share."""
        heads, links, _ = self.queries.shape
        shared = keys.shape[1] == 1
        started = math.isfinite(state.level.view(-1)[0].item())
        if started and shared and self.decay is None and self._add_below(state, keys[:, 0], values[:, 0], buffer):
            return
        # a row per event: [1, n, H * l] or [H, n, l]; a batch of one would run on one thread
        if shared:
            scores = torch.mm(keys[:, 0], self._flat.T, out=buffer)[None]
        else:
            scores = torch.bmm(keys.transpose(0, 1), self.queries.mT)
        shift = None
        if self.decay is not None and times is not None:
            latest = times.amax()
            shift = (self.decay.double() * latest)[:, None]
            bias = (times - latest).to(scores.dtype)[:, None] * self.decay
            per_head = scores.view(len(keys), heads, links) if shared else scores.transpose(0, 1)
            per_head.add_(bias[..., None])
        add_scores(state, scores, values.transpose(0, 1), shift)

    def _add_below(self, state: PoolState, keys: Tensor, values: Tensor, buffer: Tensor | None) -> bool:
        """Add a chunk on the chance that no score is far above the level; False, and nothing done, if one is.

        Nearly every chunk but the first: the level goes into the product, and the mass tells whether it was enough.
        """
        scores = torch.addmm(state.low, keys, self._flat.T, beta=-1, out=buffer)
        weights = scores.exp_()
        mass = weights.sum(0)
        if not float(mass.amax()) <= len(keys) * math.exp(HEADROOM):  # NaN is not below anything
            return False
        state.mass.view(-1).add_(mass)
        state.total.view(-1, values.shape[1]).addmm_(weights.T, values)
        return True

    def check(self, state: PoolState, keys: Tensor, values: Tensor, times: Tensor | None) -> None:
        """Whether events fit the queries and a state, and hold numbers."""
        heads, links, width = self.queries.shape
        if keys.shape[1:] not in ((heads, width), (1, width)) or keys.dim() != 3:
            raise ArgumentError(
                f"keys {shape_of(keys)} do not fit queries {shape_of(self.queries)}: they must be "
                f"[n, {heads}, {width}], or [n, 1, {width}] when all heads share them"
            )
        if values.dim() != 3 or values.shape[:2] != keys.shape[:2]:
            raise ArgumentError(f"values {shape_of(values)} do not fit keys {shape_of(keys)}: one value for every key")
        if state.total.shape != (heads, links, values.shape[2]):
            raise ArgumentError(
                f"state {shape_of(state.total)} does not fit queries {shape_of(self.queries)} and values "
                f"{shape_of(values)}: it must be {[heads, links, values.shape[2]]}"
            )
        check_same_kind({"queries": self.queries, "keys": keys, "values": values, "state": state.total})
        refuse_non_finite({"keys": keys} if values is keys else {"keys": keys, "values": values})
        if (times is None) != (self.decay is None):
            raise ArgumentError(
                "times and decay belong together: a recency bias needs the times of events, and only it"
            )
        if times is not None and (times.shape != keys.shape[:1] or times.dtype not in (torch.int64, torch.float64)):
            raise ArgumentError(
                f"times {shape_of(times)} of {times.dtype} must be one int64 or float64 per event, [{len(keys)}]"
            )
        if times is not None:
            refuse_non_finite({"times": times})


def _as_times(time: float | None, like: Tensor) -> Tensor | None:
    return None if time is None else torch.tensor([time], dtype=torch.float64, device=like.device)


def add_scores(state: PoolState, scores: Tensor, values: Tensor, shift: Tensor | None = None) -> None:
    """Add events by their scores [1, n, H * l] or [H, n, l], which are used up, and values [1, n, w] or [H, n, w].

    `shift` [H, 1] was taken off the scores beforehand; a state's levels include it.
    """
    level = _as_scores(state.level, shift, scores)
    highest = scores.amax(1, keepdim=True)
    if not float((highest - level).amax()) <= HEADROOM:  # NaN is not below anything
        if not bool(torch.isfinite(highest).all()):
            raise ArgumentError("keys: the scores of an event are not finite numbers; its row holds NaN or infinity")
        _raise_level(state, highest.view(state.level.shape), shift)
        level = _as_scores(state.level, shift, scores)
    weights = scores.sub_(level).exp_()
    state.mass.view(level.shape).add_(weights.sum(1, keepdim=True))
    if len(scores) == 1:
        state.total.view(-1, values.shape[-1]).addmm_(weights[0].T, values[0])
    else:
        state.total.baddbmm_(weights.mT, values)


def _as_scores(level: Tensor, shift: Tensor | None, scores: Tensor) -> Tensor:
    """Levels [H, l] in the scores' dtype and layout, relative to the latest event of the chunk."""
    relative = level if shift is None else level - shift
    return relative.to(scores.dtype).view(scores.shape[0], 1, scores.shape[2])


def _raise_level(state: PoolState, highest: Tensor, shift: Tensor | None) -> None:
    """Bring a state's sums to the highest score seen."""
    seen = highest.double() if shift is None else highest + shift
    raised = torch.maximum(state.level, seen)
    fading = torch.exp(state.level - raised).to(state.mass.dtype)
    state.raise_to(raised)
    state.mass.mul_(fading)
    state.total.mul_(fading[..., None])
