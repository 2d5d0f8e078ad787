"""Where and when an event stands in a history, added to its embedding: E_j + P[...].

The paper defines no position ("preserves the sequential nature" notwithstanding, its formulas are permutation-
invariant), so `none` is the default. What an encoding costs in serving:

| encoding | row | an event's row once written |
|---|---|---|
| `position` | index from the start of the kept history | stays while the history grows; shifts when it is full |
| `calendar` | hour of day and day of week (UTC) of the event | never changes |
| `recent_position` | index from the end | changes with every new event |
| `age` | power-of-two bucket of the time since the event | changes with every request |

The first two keep per-event caches and incremental user states exact, the last two do not: the user stage must run
over the whole history again.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from limerank.batch import UserInputs
from limerank.errors import DataError
from limerank.ops.jagged import row_of

Encoding = Literal["none", "position", "recent_position", "calendar", "age"]
KEEPS_CACHES: dict[Encoding, bool] = {
    "none": True,
    "position": True,
    "calendar": True,
    "recent_position": False,
    "age": False,
}
TIMED: tuple[Encoding, ...] = ("calendar", "age")
SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000
HOURS, WEEKDAYS = 24, 7
THURSDAY = 3  # 1970 began on one; Monday is 0
AGE_BUCKETS = 32  # powers of two of seconds: the last begins at 68 years


class HistoryEncoding(nn.Module):
    """A learned table for one encoding; `positions` rows for those that count, later ones share the last."""

    def __init__(self, encoding: Encoding, width: int, positions: int) -> None:
        super().__init__()
        self.encoding = encoding
        sizes = {
            "position": positions,
            "recent_position": positions,
            "calendar": HOURS + WEEKDAYS,
            "age": AGE_BUCKETS,
        }
        self.table = nn.Parameter(0.02 * torch.randn(sizes[encoding], width))

    def forward(self, embedded: Tensor, inputs: UserInputs) -> Tensor:
        """E [sum_n, d] with the encoding added."""
        if self.encoding == "calendar":
            return self.part(embedded, inputs.history.times, 0)
        return embedded + self.table.index_select(0, self._rows(inputs))

    def part(self, embedded: Tensor, times: Tensor | None, before: int) -> Tensor:
        """E of some consecutive events of one history, `before` of whose events stand in front of them.

        Only for encodings that keep caches (`KEEPS_CACHES`).
        """
        if self.encoding == "calendar":
            hour, weekday = hour_and_weekday(self._times(times))
            return embedded + self.table.index_select(0, hour) + self.table.index_select(0, HOURS + weekday)
        position = torch.arange(before, before + embedded.shape[0], device=embedded.device)
        return embedded + self.table.index_select(0, position.clamp(max=self.table.shape[0] - 1))

    def _rows(self, inputs: UserInputs) -> Tensor:
        history = inputs.history
        request = row_of(history.offsets, history.item_of_event.shape[0])
        if self.encoding == "age":
            now = self._times(inputs.times).index_select(0, request)
            return age_buckets(now - self._times(history.times))
        position = torch.arange(request.shape[0], device=request.device)
        if self.encoding == "position":
            position = position - history.offsets[:-1].index_select(0, request)
        else:
            position = history.offsets[1:].index_select(0, request) - 1 - position
        return position.clamp(max=self.table.shape[0] - 1)

    def _times(self, times: Tensor | None) -> Tensor:
        if times is None:
            raise DataError(
                f"key 'model.encoding': '{self.encoding}' needs the time of every event, which the histories of this "
                "dataset do not have; use none, position or recent_position"
            )
        return times


def hour_and_weekday(times: Tensor) -> tuple[Tensor, Tensor]:
    """Hour of day and day of week, Monday first, of milliseconds since 1970 (UTC)."""
    hour = times.remainder(DAY).div(HOUR, rounding_mode="floor")
    weekday = (times.div(DAY, rounding_mode="floor") + THURSDAY).remainder(WEEKDAYS)
    return hour, weekday


def age_buckets(ages: Tensor) -> Tensor:
    """The power of two below an age in seconds; under a second, and anything not in the past, is bucket 0."""
    starts = SECOND * 2 ** torch.arange(1, AGE_BUCKETS, device=ages.device)
    return torch.bucketize(ages, starts, right=True)
