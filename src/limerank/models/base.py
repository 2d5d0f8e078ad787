"""The one interface of every ranker.

    encode_user   request side -> UserState      never sees candidates
    encode_items  item features -> ItemState     never sees a user, so it can be cached
    interact      UserState x ItemState -> o_c   [candidates, d]
    score         o_c and both sides -> logits   [candidates, tasks]

`forward` composes the four and is what training calls; serving calls the same four, or `fold` for factorized rankers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator
from torch import Tensor, nn

from limerank.batch import Features, RequestBatch, UserInputs
from limerank.nn.features import ContextTower, ItemTower
from limerank.nn.head import InteractionHead
from limerank.ops.jagged import row_of
from limerank.schema import FeatureSpace


class RankerOptions(BaseModel):
    """Options every ranker has; the same values make a comparison fair."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    width: int = Field(default=32, ge=1, description="d, the width of E and T")
    embedding_width: int = Field(default=16, ge=1, description="width of each attribute's embedding")
    tower_hidden: int = Field(default=64, ge=1, description="hidden width of the item tower")
    head: tuple[PositiveInt, ...] = Field(
        default=(64,), min_length=1, description="hidden widths of the interaction network"
    )
    unknown_rate: float = Field(default=0.01, ge=0, lt=1, description="share of indices trained as 'unknown'")


class AttentionOptions(RankerOptions):
    """Options of rankers with attention heads."""

    heads: int = Field(default=4, ge=1)
    sharpness: float = Field(default=3.0, gt=0, description="standard deviation of attention scores at the start")

    @model_validator(mode="after")
    def _heads_divide_width(self) -> AttentionOptions:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be split into {self.heads} heads")
        return self


@dataclass(frozen=True)
class UserState:
    """What the user stage leaves behind for a batch of requests.

    `memory` is what the interaction reads (jagged along `offsets` when that is given), `share` [B, hidden] the user's
    part of the head's first layer.
    """

    memory: tuple[Tensor, ...]
    share: Tensor
    offsets: Tensor | None = None


@dataclass(frozen=True)
class ItemState:
    """What the item stage leaves behind: `rows` [n, r] for the interaction, `share` [n, hidden] for the head."""

    rows: Tensor
    share: Tensor

    def take(self, index: Tensor) -> ItemState:
        """The states of some items, in that order."""
        return ItemState(self.rows.index_select(0, index), self.share.index_select(0, index))


@dataclass(frozen=True)
class FoldedUser:
    """A request folded into the head's first layer: z_c = row_c @ matrix [r, hidden] + share_c + offset [hidden]."""

    matrix: Tensor
    offset: Tensor


class Ranker(nn.Module):
    """A user encoder, an item encoder, an interaction and a head."""

    name: ClassVar[str]
    options_type: ClassVar[type[RankerOptions]]
    factorized: ClassVar[bool]
    """Whether the interaction is an item row times a user matrix, so that `fold` exists."""

    def __init__(self, space: FeatureSpace, tasks: int, options: RankerOptions) -> None:
        super().__init__()
        self.options = options
        self.tasks = tasks
        self.item_tower = ItemTower(
            space.item,
            space.event,
            embedding_width=options.embedding_width,
            hidden=options.tower_hidden,
            width=options.width,
            unknown_rate=options.unknown_rate,
        )
        self.context_tower = ContextTower(
            space.user, space.context, embedding_width=options.embedding_width, unknown_rate=options.unknown_rate
        )
        self.head = InteractionHead(
            interaction_width=options.width,
            item_width=options.width,
            user_width=self.context_tower.output_width,
            hidden=options.head,
            tasks=tasks,
        )

    def encode_user(self, inputs: UserInputs) -> UserState:
        """The user stage: once per request, independent of the candidates."""
        raise TypeError(f"{type(self).__name__} defines no user stage")

    def item_rows(self, items: Tensor) -> Tensor:
        """What the interaction needs of each item, from T [n, d]: [n, r]."""
        raise TypeError(f"{type(self).__name__} defines no item rows")

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        """o_c [candidates, d]; candidate c of request b is a row between candidate_offsets[b] and [b + 1]."""
        raise TypeError(f"{type(self).__name__} defines no interaction")

    def fold(self, user: UserState) -> list[FoldedUser]:
        """One folded user per request; only factorized rankers have it."""
        raise TypeError(f"{type(self).__name__} is not factorized and cannot be folded")

    def row_parameters(self) -> list[nn.Parameter]:
        """The parameters `item_rows` reads, besides the item tower's."""
        return []

    def encode_items(self, items: Features) -> ItemState:
        """The item stage: independent of any user."""
        embedded = self.item_tower.candidates(items)
        return ItemState(self.item_rows(embedded), self.head.from_item(embedded))

    def score(self, interaction: Tensor, items: ItemState, user: UserState, candidate_offsets: Tensor) -> Tensor:
        """logits [candidates, tasks]."""
        user_share = user.share.index_select(0, row_of(candidate_offsets))
        logits: Tensor = self.head(interaction, items.share, user_share)
        return logits

    def forward(self, batch: RequestBatch) -> Tensor:
        """logits [candidates, tasks] of a batch of requests."""
        user = self.encode_user(batch.inputs)
        items = self.encode_items(batch.candidates.items).take(batch.candidates.item_of_candidate)
        interaction = self.interact(user, items, batch.candidates.offsets)
        return self.score(interaction, items, user, batch.candidates.offsets)

    def item_side_parameters(self) -> dict[str, nn.Parameter]:
        """Exactly the parameters that item rows depend on, by name: their hash ties rows to weights."""
        mine = [*self.item_tower.item_parameters(), *self.row_parameters(), *self.head.from_item.parameters()]
        identities = {id(parameter) for parameter in mine}
        return {name: parameter for name, parameter in self.named_parameters() if id(parameter) in identities}
