"""DIN: every candidate weighs every event with a small network, and sums the events."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from limerank.batch import UserInputs
from limerank.models.base import ItemState, Ranker, RankerOptions, UserState
from limerank.nn.layers.activation_unit import EVENTS_PER_BLOCK, PAIRS_PER_BLOCK, Activation, ActivationUnit
from limerank.ops.gathered import Gathered, weigh_pairs, weighs
from limerank.ops.jagged import pad, unpad
from limerank.schema import FeatureSpace


class DIN(RankerOptions):
    """Options of DIN; `hidden` as in its authors' code, `normalization` as in their paper, ReLU as in neither.

    docs/rankers/target-attention.md sets them beside those of FuxiCTR, whose DIN stands on public leaderboards.
    """

    hidden: tuple[PositiveInt, ...] = Field(
        default=(80, 40), min_length=1, description="hidden widths of the network that weighs an event"
    )
    activation: Activation = Field(default="relu", description="between those layers; dice adapts to its inputs")
    normalization: Literal["none", "softmax"] = Field(
        default="none", description="none keeps how much a history speaks for a candidate; softmax makes a mean"
    )


class DINRanker(Ranker):
    """o_c = sum_j a_cj E_j, a_cj = MLP[T_c; E_j; T_c - E_j; T_c * E_j], not normalized.

    An item row holds T_c and what it adds to the MLP's first layer.
    """

    name = "din"
    family = "target-attention"
    options_type = DIN
    options: DIN

    def __init__(self, space: FeatureSpace, tasks: int, options: DIN) -> None:
        super().__init__(space, tasks, options)
        # a bias of the last layer would cancel in a softmax
        self.unit = ActivationUnit(
            options.width, options.hidden, options.activation, bias=options.normalization == "none"
        )

    def encode_user(self, inputs: UserInputs) -> UserState:
        head_part = self.head.from_user(self.context_tower(inputs.users, inputs.context))
        if torch.is_grad_enabled():
            return UserState((), head_part, inputs.history.offsets, self.distinct_history(inputs))
        return UserState((self.history(inputs),), head_part, inputs.history.offsets)

    def item_rows(self, items: Tensor) -> Tensor:
        return torch.cat([items, self.unit.item_part(items)], 1)

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        assert user.offsets is not None
        if user.history is not None:
            return self._interact_training(user.history, user.offsets, items.rows, candidate_offsets)
        (history,) = user.memory
        if torch.is_grad_enabled() or self.training:
            return self._interact_padded(history, user.offsets, items.rows, candidate_offsets)
        if candidate_offsets.shape[0] == 2:
            return self._interact_one(history, items.rows)
        # without gradients nothing has to be kept, and one request after the other needs no padding
        events, rows = pairwise(user.offsets.tolist()), pairwise(candidate_offsets.tolist())
        return torch.cat(
            [self._interact_one(history[a:b], items.rows[c:d]) for (a, b), (c, d) in zip(events, rows, strict=True)]
        )

    def row_parameters(self) -> list[Tensor]:
        return list(self.unit.first.parameters())

    def _interact_one(self, history: Tensor, rows: Tensor) -> Tensor:
        if not history.shape[0]:
            return rows.new_zeros(rows.shape[0], self.options.width)
        result = rows.new_empty(rows.shape[0], self.options.width)
        block = max(PAIRS_PER_BLOCK // min(history.shape[0], EVENTS_PER_BLOCK), 1)
        for start in range(0, rows.shape[0], block):
            part = rows[start : start + block]
            weights = self.unit.one(*self._parts(part), history)
            if self.options.normalization == "softmax":
                weights = weights.softmax(0)
            torch.mm(weights.T, history, out=result[start : start + block])
        return result

    def _interact_training(self, history: Gathered, offsets: Tensor, rows: Tensor, candidate_offsets: Tensor) -> Tensor:
        """Request by request where that pays: a ReLU sees no batch mates, as `Dice` does in training."""
        if self.options.activation == "relu" and offsets.device.type == "cpu":
            pairs = int((offsets.diff() * candidate_offsets.diff()).sum())
            if weighs(history.rows, pairs, offsets.shape[0] - 1):
                softmax = self.options.normalization == "softmax"
                parts, network = self._parts(rows), self.unit.network()
                return weigh_pairs(*parts, candidate_offsets, history, offsets, network, softmax=softmax)
        return self._interact_padded(history.all(), offsets, rows, candidate_offsets)

    def _interact_padded(self, history: Tensor, offsets: Tensor, rows: Tensor, candidate_offsets: Tensor) -> Tensor:
        padded_history, _ = pad(history, offsets)
        padded_rows, positions = pad(rows, candidate_offsets)
        events = torch.arange(padded_history.shape[1], device=offsets.device) < offsets.diff()[:, None]
        candidates = torch.arange(padded_rows.shape[1], device=offsets.device) < candidate_offsets.diff()[:, None]
        weights = self.unit.padded(*self._parts(padded_rows), padded_history, events[:, :, None] & candidates[:, None])
        if self.options.normalization == "softmax":
            weights = weights.masked_fill(~events[..., None], torch.finfo(weights.dtype).min).softmax(1)
        return unpad((weights * events[..., None]).mT @ padded_history, positions)

    def _parts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        width = self.options.width
        return rows[..., :width], rows[..., width:]
