"""IntTower: two towers whose layers meet in many small inner products instead of one."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from limerank.batch import RequestBatch, UserInputs
from limerank.models.base import ItemState, Ranker, RankerOptions, UserState
from limerank.nn.layers.attention import split_heads
from limerank.ops.jagged import pad, row_of, segment_mean, segment_sum, unpad
from limerank.schema import FeatureSpace


class IntTower(RankerOptions):
    """Options of IntTower."""

    user_layers: tuple[PositiveInt, ...] = Field(
        default=(64, 64, 64),
        min_length=1,
        description="widths of the user tower's layers, each of which meets the item",
    )
    user_heads: int = Field(default=4, ge=1, description="vectors that each user layer is projected to")
    item_heads: int = Field(default=4, ge=1, description="vectors that the item is projected to; the row holds them")
    head_width: int = Field(default=32, ge=1, description="width of those vectors")
    pooling: Literal["sum", "mean"] = Field(default="sum", description="of the history, as in ttsn")
    gate: bool = Field(default=False, description="LightSE: fields of the user tower's input weigh each other")
    contrastive: float = Field(default=0.0, ge=0, description="weight of the contrastive loss between the towers")
    temperature: float = Field(default=0.1, gt=0, description="of the contrastive loss")


class IntTowerRanker(Ranker):
    """o_c = [max_i <u_(l,h), v_(c,i)>]_(l,h): for each user layer l and user head h, the best of the item's heads.

    u_l = relu(W_l u_(l-1) + b_l) from u_0 = [sum_j E_j, E^C], u_(l,h) = (P_l u_l)_h, v_(c,i) = (P T_c)_i. The
    original's score is the sum of o_c, which the head can form. A candidate costs the same whatever the history.
    """

    name = "inttower"
    family = "two-tower"
    options_type = IntTower
    options: IntTower

    def __init__(self, space: FeatureSpace, tasks: int, options: IntTower) -> None:
        super().__init__(space, tasks, options)
        features = len(space.user) + len(space.context)
        fields = (options.width, *([options.embedding_width] * features or [self.context_tower.output_width]))
        widths = (sum(fields), *options.user_layers)
        self.gate = FieldGate(fields) if options.gate else None
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        self.to_user_heads = nn.ModuleList(
            nn.Linear(width, options.user_heads * options.head_width) for width in options.user_layers
        )
        self.to_item_heads = nn.Linear(options.width, options.item_heads * options.head_width)

    def interaction_width(self) -> int:
        return len(self.options.user_layers) * self.options.user_heads

    def encode_user(self, inputs: UserInputs) -> UserState:
        pool = segment_mean if self.options.pooling == "mean" else segment_sum
        pooled = pool(self.history(inputs), inputs.history.offsets)
        return self.user_state(pooled, self.context_tower(inputs.users, inputs.context))

    def user_state(self, pooled: Tensor, context: Tensor) -> UserState:
        """What candidates meet, from the pooled history [B, d] and E^C."""
        state = torch.cat([pooled, context], 1)
        if self.gate is not None:
            state = self.gate(state)
        heads = []
        for layer, project in zip(self.layers, self.to_user_heads, strict=True):
            state = functional.relu(layer(state))
            heads.append(split_heads(project(state), self.options.user_heads))
        return UserState((torch.cat(heads, 1),), self.head.from_user(context))

    def item_rows(self, items: Tensor) -> Tensor:
        rows: Tensor = self.to_item_heads(items)
        return rows

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        (user_heads,) = user.memory
        item_heads = split_heads(items.rows, self.options.item_heads)
        if candidate_offsets.shape[0] == 2:
            best = item_heads.flatten(0, 1) @ user_heads[0].T
            return best.view(*item_heads.shape[:2], -1).amax(1)
        padded, positions = pad(item_heads, candidate_offsets)
        products = padded.flatten(1, 2) @ user_heads.mT
        return unpad(products.unflatten(1, padded.shape[1:3]).amax(2), positions)

    def auxiliary_loss(
        self, user: UserState, items: ItemState, batch: RequestBatch, weights: Tensor | None = None
    ) -> Tensor | None:
        """Each candidate with a positive label of the first task against the batch's candidates with a negative one."""
        if not self.options.contrastive:
            return None
        users = functional.normalize(user.memory[0][:, -self.options.user_heads :].mean(1), dim=1)
        vectors = functional.normalize(split_heads(items.rows, self.options.item_heads).mean(1), dim=1)
        similarity = users @ self.peers.rows(vectors).T / self.options.temperature
        positive = batch.labels[:, 0] > 0.5
        negative = self.peers.rows(batch.labels[:, 0]) < 0.5  # a missing label, NaN, is neither
        others = similarity.masked_fill(~negative, -torch.inf).logsumexp(1)
        request = row_of(batch.candidates.offsets, positive.shape[0])
        own = similarity.gather(0, request[None])[0]
        terms = functional.softplus(others.index_select(0, request) - own) * positive
        return self.options.contrastive * terms.sum() / self.peers.total(positive.sum()).clamp(min=1)

    def row_parameters(self) -> list[Tensor]:
        return list(self.to_item_heads.parameters())


class FieldGate(nn.Module):
    """LightSE: fields of these widths, side by side, weigh each other; [B, sum of widths] to the same.

    a = softmax(W mean(x) + b),    x'_f = (1 + a_f) x_f        mean(x) [F], the mean of each field
    """

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.widths = widths
        self.weigh = nn.Linear(len(widths), len(widths))

    def forward(self, rows: Tensor) -> Tensor:
        fields = rows.split(self.widths, 1)
        weights = self.weigh(torch.stack([field.mean(1) for field in fields], 1)).softmax(1)
        return torch.cat([field * (1 + weight) for field, weight in zip(fields, weights.split(1, 1), strict=True)], 1)
