"""Truncated MHA: target attention over the most recent events only, the plain answer to a long history."""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field
from torch.nn import functional

from limerank.batch import Features, History, UserInputs
from limerank.models.base import UserState
from limerank.models.mha import MHA, MHARanker
from limerank.ops.jagged import row_of


class TruncatedMHA(MHA):
    """Options of truncated MHA."""

    recent: int = Field(default=32, ge=1, description="most recent events that are read; the rest is never embedded")


class TruncatedMHARanker(MHARanker):
    """o_c = MHA(T_c, E', E'; J), with E' the last `recent` rows of E."""

    name = "truncated-mha"
    options_type = TruncatedMHA
    ordered = True
    options: TruncatedMHA

    def encode_user(self, inputs: UserInputs) -> UserState:
        return super().encode_user(replace(inputs, history=most_recent(inputs.history, self.options.recent)))


def most_recent(history: History, count: int) -> History:
    """The last `count` events of each request, with the items they are about."""
    eager = not torch.compiler.is_compiling()
    if history.offsets.shape[0] == 2:
        if eager and history.item_of_event.shape[0] <= count:
            return history
        kept = torch.arange(history.item_of_event.shape[0], device=history.offsets.device)[-count:]
        offsets = history.offsets.clamp(max=count)
    else:
        request = row_of(history.offsets, history.item_of_event.shape[0])
        positions = torch.arange(request.shape[0], device=request.device)
        kept = (positions >= (history.offsets[1:] - count).index_select(0, request)).nonzero()[:, 0]
        offsets = functional.pad(history.offsets.diff().clamp(max=count).cumsum(0), (1, 0))
    items, item_of_event = history.items, history.item_of_event.index_select(0, kept)
    if eager and items.indices.device.type == "cpu":
        # items that only older events are about need not be embedded; their number depends on the data
        distinct, item_of_event = item_of_event.unique(return_inverse=True)
        items = items.take(distinct)
    return History(
        items=items,
        item_of_event=item_of_event,
        events=Features(history.events.indices.index_select(0, kept)),
        offsets=offsets,
        times=None if history.times is None else history.times.index_select(0, kept),
    )
