"""A learned bias of attention scores for how far apart two events are, in positions, in time or in both.

As in the research code of HSTU: one table for all heads, another in every layer, added to the scores before SiLU or
softmax. A candidate stands at the position behind the history and at the time of the request, whichever it is and
whoever is asked for with it, so its bias for an event depends on the event alone.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from limerank.errors import DataError
from limerank.ops.causal_attention import TIME_BUCKETS, PairBias
from limerank.ops.causal_attention.relative import age_bias, distance_bias
from limerank.ops.jagged import row_of

RelativeBias = Literal["none", "position", "time", "position-time"]
TIMED_BIASES: tuple[RelativeBias, ...] = ("time", "position-time")


class EventTimes(NamedTuple):
    """Of each event [sum_n] and of each request [B], in milliseconds since 1970."""

    events: Tensor
    requests: Tensor


class RelativeBiasTables(nn.Module):
    """The tables of one layer; `positions` rows for distances, farther ones share the last."""

    def __init__(self, kind: RelativeBias, positions: int) -> None:
        super().__init__()
        self.kind: RelativeBias = kind
        self.position = nn.Parameter(0.02 * torch.randn(positions)) if kind in ("position", "position-time") else None
        self.time = nn.Parameter(0.02 * torch.randn(TIME_BUCKETS)) if kind in TIMED_BIASES else None

    def pairs(self, times: EventTimes | None) -> PairBias:
        """What attention along the history adds to the score of each pair of events."""
        return PairBias(self.position, self.time, None if self.time is None else self._known(times).events)

    def of_events(self, count: int, offsets: Tensor, times: EventTimes | None) -> Tensor:
        """What every candidate's score of each of the `count` events gets, [sum_n]."""
        request, parts = row_of(offsets, count), []
        if self.position is not None:
            behind = offsets[1:].index_select(0, request) - torch.arange(count, device=offsets.device)
            parts.append(distance_bias(self.position, behind))
        if self.time is not None:
            events, requests = self._known(times)
            parts.append(age_bias(self.time, requests.index_select(0, request) - events))
        return torch.stack(parts).sum(0)

    def of_itself(self) -> Tensor:
        """What the score of a candidate for itself gets, []: no distance, no time between."""
        return torch.stack([table[0] for table in (self.position, self.time) if table is not None]).sum()

    def _known(self, times: EventTimes | None) -> EventTimes:
        if times is None:
            raise DataError(
                f"key 'model.relative_bias': '{self.kind}' needs the time of every event and request, which this "
                "dataset does not have; use none or position"
            )
        return times
