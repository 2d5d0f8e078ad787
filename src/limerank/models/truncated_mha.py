"""Truncated MHA: target attention over the most recent events only, the plain answer to a long history."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from limerank.batch import UserInputs
from limerank.models.base import UserState
from limerank.models.mha import MHA, MHARanker
from limerank.nn.recent import most_recent


class TruncatedMHA(MHA):
    """Options of target attention over a short history."""

    recent: int = Field(default=32, ge=1, description="most recent events that are read; the rest is never embedded")


class TruncatedMHARanker(MHARanker):
    """o_c = MHA(T_c, E', E'; J), with E' the last `recent` rows of E."""

    name = "truncated-mha"
    options_type = TruncatedMHA
    ordered = True
    options: TruncatedMHA

    def encode_user(self, inputs: UserInputs) -> UserState:
        return super().encode_user(replace(inputs, history=most_recent(inputs.history, self.options.recent)))
