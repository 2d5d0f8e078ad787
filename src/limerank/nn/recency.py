"""A recency bias for softmax attention: the score of an event falls linearly with its age.

    x_j - decay_h (now - t_j),  decay_h > 0 per head

In a softmax `now` cancels, so the bias equals x_j + decay_h t_j up to a constant: a user state that has read an event
never has to be touched because time passed (docs/explanation/how-a-ranking-is-computed.md). SiLU attention has no such
form.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.errors import DataError
from limerank.ops.jagged import row_of

DAY = 86_400_000
FIRST_HALF_LIFE, LAST_HALF_LIFE = 1.0, 64.0  # days, of the first and the last head at the start


class Recency(nn.Module):
    """One decay per head, learned; half-lives start between a day and two months."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        exponents = torch.linspace(math.log2(FIRST_HALF_LIFE), math.log2(LAST_HALF_LIFE), heads)
        per_day = math.log(2) / 2**exponents
        self.raw = nn.Parameter(per_day.expm1().log())

    def decay(self) -> Tensor:
        """[H], per day."""
        return functional.softplus(self.raw)

    def forward(self, times: Tensor | None, offsets: Tensor) -> Tensor:
        """The bias [sum_n, H] of each event, against its user's latest."""
        return -self.decay() * days_before_latest(times, offsets)[:, None].to(self.raw.dtype)


def days(times: Tensor) -> Tensor:
    """Milliseconds since 1970 as days, float64: the unit of the decay."""
    return times.double() / DAY


def days_before_latest(times: Tensor | None, offsets: Tensor) -> Tensor:
    """[sum_n], float64: how long each event lies before the latest of its history, in days."""
    if times is None:
        raise DataError(
            "key 'model.recency': needs the time of every event, which the histories of this dataset do not have; "
            "leave it out"
        )
    request = row_of(offsets, times.shape[0])
    latest = times.new_full((offsets.shape[0] - 1,), torch.iinfo(torch.int64).min)
    latest = latest.scatter_reduce(0, request, times, "amax")
    return (latest.index_select(0, request) - times).double() / DAY
