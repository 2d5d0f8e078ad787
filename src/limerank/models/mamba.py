"""Mamba: a selective recurrence along the history; its last output is the user, or a candidate is its next event."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from limerank.batch import UserInputs
from limerank.models.base import ItemState, RankerOptions, UserState
from limerank.models.pooled import PooledRanker
from limerank.nn.layers.mamba import MambaStack, MambaState
from limerank.ops.jagged import row_of
from limerank.schema import FeatureSpace

CANDIDATES_PER_BLOCK = 256


class Mamba(RankerOptions):
    """Options of Mamba; the published sizes of a block."""

    layers: int = Field(default=2, ge=1, description="Mamba blocks")
    state: int = Field(default=16, ge=1, description="numbers of state per channel")
    expand: int = Field(default=2, ge=1, description="channels per unit of width")
    taps: int = Field(default=4, ge=2, description="events that the convolution sees")
    readout: Literal["last", "state"] = Field(
        default="last", description="the last output, or that of a candidate as the next event"
    )


class MambaRanker(PooledRanker):
    """h_t = exp(delta_t A) h_(t-1) + delta_t B_t x_t, y_t = C_t h_t + D x_t, gated, in residual blocks (`nn.mamba`).

    last:   o_c = the output for the last event; zero for an empty history.
    state:  o_c = the output for T_c as the next event, y_c = C(T_c) (exp(delta(T_c) A) h_N + delta(T_c) B(T_c) x(T_c))
            + D x(T_c) in every block: the user is its states, whatever the length of the history.
    """

    name = "mamba"
    family = "sequence"
    options_type = Mamba
    ordered = True
    options: Mamba

    def __init__(self, space: FeatureSpace, tasks: int, options: Mamba) -> None:
        super().__init__(space, tasks, options)
        self.stack = MambaStack(
            options.width, options.layers, state=options.state, expand=options.expand, taps=options.taps
        )
        self.factorized = self.foldable = options.readout == "last"

    def encode_user(self, inputs: UserInputs) -> UserState:
        rows, offsets = self.history(inputs), inputs.history.offsets
        head_part = self.head.from_user(self.context_tower(inputs.users, inputs.context))
        if self.factorized:
            return UserState((self.stack.last(rows, offsets),), head_part)
        return UserState(tuple(tensor for state in self.stack.states(rows, offsets) for tensor in state), head_part)

    def item_rows(self, items: Tensor) -> Tensor:
        return super().item_rows(items) if self.factorized else items

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        if self.factorized:
            return super().interact(user, items, candidate_offsets)
        states = tuple(map(MambaState, user.memory[::2], user.memory[1::2]))
        if candidate_offsets.shape[0] == 2:
            blocks = items.rows.split(CANDIDATES_PER_BLOCK)
            return torch.cat([self.stack.step(block, states) for block in blocks])
        request = row_of(candidate_offsets, items.rows.shape[0])
        own = tuple(MambaState(*(tensor.index_select(0, request) for tensor in state)) for state in states)
        return self.stack.step(items.rows, own)
