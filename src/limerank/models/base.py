"""The one interface of every ranker.

    encode_user   request side -> UserState      never sees candidates
    encode_items  item features -> ItemState     never sees a user, so it can be cached
    interact      UserState x ItemState -> o_c   [candidates, d]
    score         o_c and both sides -> logits   [candidates, tasks]

`forward` composes the four; training minimizes `loss`, which adds a ranker's own loss term if it has one. Serving calls
the same four, or `fold` where the interaction is linear in the item row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from limerank.batch import Features, RequestBatch, UserInputs
from limerank.nn.encodings import TIMED, Encoding, HistoryEncoding
from limerank.nn.features import ContextTower, ItemTower
from limerank.nn.head import InteractionHead
from limerank.nn.losses import cross_entropy
from limerank.nn.peers import NOBODY, Peers
from limerank.ops.gathered import Gathered
from limerank.ops.jagged import row_of
from limerank.schema import FeatureSpace
from limerank.typed import Typed

Family = Literal["two-tower", "target-attention", "sequence", "linear-attention", "lime"]


class RankerOptions(Typed):
    """Options every ranker has; the same values make a comparison fair."""

    width: int = Field(default=32, ge=1, description="d, the width of E and T")
    embedding_width: int = Field(default=16, ge=1, description="width of each attribute's embedding")
    tower_hidden: int = Field(default=64, ge=1, description="hidden width of the item tower")
    tower_shortcut: bool = Field(default=True, description="a linear way around the item tower's ReLU")
    head: tuple[PositiveInt, ...] = Field(
        default=(64,), min_length=1, description="hidden widths of the interaction network"
    )
    task_head: tuple[PositiveInt, ...] = Field(
        default=(), description="hidden widths of layers that each task has for itself, behind those of `head`"
    )
    unknown_rate: float = Field(default=0.01, ge=0, lt=1, description="fraction of indices trained as 'unknown'")
    id_start: float = Field(
        default=0.1,
        ge=0,
        description="standard deviation at the start of embeddings of ids (over 1,000 values) where attributes have as "
        "many combinations; of all others it is 0.5",
    )
    encoding: Encoding = Field(default="none", description="what is added to E_j for its position or time")
    positions: int = Field(default=1024, ge=1, description="rows of a position table; later events share the last")


class AttentionOptions(RankerOptions):
    """Options of rankers with attention heads."""

    heads: int = Field(default=4, ge=1, description="H, attention heads")
    query_width: int | None = Field(
        default=None, ge=1, description="width of queries and keys, all heads together; default: width"
    )
    sharpness: float | None = Field(
        default=3.0, gt=0, description="scale of queries at a start aligned with the keys; null: Xavier projections"
    )

    @property
    def query_key_width(self) -> int:
        """H * d_a, the paper's QK dimension."""
        return self.query_width or self.width

    @model_validator(mode="after")
    def _heads_divide_widths(self) -> AttentionOptions:
        for name, width in (("width", self.width), ("query_width", self.query_key_width)):
            if width % self.heads:
                raise ValueError(f"{name} {width} cannot be split into {self.heads} heads")
        return self


@dataclass(frozen=True)
class UserState:
    """What the user stage leaves behind for a batch of requests.

    `memory` is what the interaction reads (jagged along `offsets` when that is given), `head_part` [B, hidden] what the
    user adds to the head's first layer. In training `history`, E itself, may stand for a memory that is never computed.
    """

    memory: tuple[Tensor, ...]
    head_part: Tensor
    offsets: Tensor | None = None
    history: Gathered | None = None


@dataclass(frozen=True)
class ItemState:
    """What the item stage leaves behind: `rows` [n, r] for the interaction, `head_part` [n, hidden] for the head."""

    rows: Tensor
    head_part: Tensor

    def take(self, index: Tensor) -> ItemState:
        """The states of some items, in that order."""
        return ItemState(self.rows.index_select(0, index), self.head_part.index_select(0, index))


@dataclass(frozen=True)
class FoldedUser:
    """A request folded into the head's first layer: z_c = row_c @ matrix + head_part_c + offset."""

    matrix: Tensor
    """[r, hidden]"""
    offset: Tensor
    """[hidden]"""


class Ranker(nn.Module):
    """A user encoder, an item encoder, an interaction and a head."""

    name: ClassVar[str]
    family: ClassVar[Family]
    options_type: ClassVar[type[RankerOptions]]
    factorized: bool = False
    """Whether the interaction is an item row, the same for all users, times a user matrix: O(1) in the history."""
    foldable: bool = False
    """Whether it is linear in the item row besides, so that `fold` exists."""
    ordered: ClassVar[bool] = False
    """Whether the order of the history matters even without an encoding."""
    peers: Peers = NOBODY
    """Who holds the rest of each batch, where several processes train together."""

    def __init__(self, space: FeatureSpace, tasks: int, options: RankerOptions) -> None:
        super().__init__()
        self.options = options
        self.tasks = tasks
        self.encoding = (
            None if options.encoding == "none" else HistoryEncoding(options.encoding, options.width, options.positions)
        )
        self.item_tower = ItemTower(
            space.item,
            space.event,
            embedding_width=options.embedding_width,
            hidden=options.tower_hidden,
            width=options.width,
            unknown_rate=options.unknown_rate,
            id_start=options.id_start,
            shortcut=options.tower_shortcut,
        )
        self.context_tower = ContextTower(
            space.user,
            space.context,
            embedding_width=options.embedding_width,
            unknown_rate=options.unknown_rate,
            id_start=options.id_start,
        )
        self.head = InteractionHead(
            interaction_width=self.interaction_width(),
            item_width=options.width,
            user_width=self.context_tower.output_width,
            hidden=options.head,
            tasks=tasks,
            task_hidden=options.task_head,
        )

    @property
    def needs_times(self) -> bool:
        """Whether the user stage reads when events happened."""
        return self.options.encoding in TIMED

    @property
    def reads_now(self) -> bool:
        """Whether the time of the request itself changes the user's state."""
        return self.options.encoding == "age"

    def interaction_width(self) -> int:
        """The width of o_c."""
        return self.options.width

    def row_shape(self) -> tuple[int, int]:
        """Heads and weights per head of an item row; what a factorized ranker's cost depends on."""
        return 1, 0

    def history(self, inputs: UserInputs) -> Tensor:
        """E [sum_n, d], encodings included."""
        embedded = self.item_tower.history(inputs.history)
        return embedded if self.encoding is None else self.encoding(embedded, inputs)

    def distinct_history(self, inputs: UserInputs) -> Gathered:
        """The same E, equal rows held once where that is known: what only depends on a row is then computed once."""
        if self.encoding is not None:
            return Gathered(self.history(inputs))
        return self.item_tower.distinct_history(inputs.history)

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
        """One folded user per request; only foldable rankers have it."""
        raise TypeError(f"{type(self).__name__} is not linear in the item rows and cannot be folded")

    def row_parameters(self) -> list[Tensor]:
        """The parameters and buffers `item_rows` reads, besides the item tower's."""
        return []

    def auxiliary_loss(
        self, user: UserState, items: ItemState, batch: RequestBatch, weights: Tensor | None = None
    ) -> Tensor | None:
        """A loss term of the ranker's own; `items` are the candidates' states, in batch order, `weights` the tasks'."""
        return None

    @property
    def start_items(self) -> int:
        """How many items of its log a ranker has to see to start; 0: it starts as it was built."""
        return 0

    def start_from(self, items: Features) -> None:
        """A training begins, on a log with such items: for rankers that start from what they will read."""

    def resume_at(self, step: int) -> None:
        """Training goes on after so many steps: for rankers that count them."""

    def encode_items(self, items: Features) -> ItemState:
        """The item stage: independent of any user."""
        embedded = self.item_tower.candidates(items)
        return ItemState(self.item_rows(embedded), self.head.from_item(embedded))

    def score(self, interaction: Tensor, items: ItemState, user: UserState, candidate_offsets: Tensor) -> Tensor:
        """logits [candidates, tasks]."""
        user_part = user.head_part.index_select(0, row_of(candidate_offsets, interaction.shape[0]))
        logits: Tensor = self.head(interaction, items.head_part, user_part)
        return logits

    def forward(self, batch: RequestBatch) -> Tensor:
        """logits [candidates, tasks] of a batch of requests."""
        return self._stages(batch)[2]

    def losses(self, batch: RequestBatch, weights: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The mean binary cross-entropy of all tasks (paper, appendix C), and the ranker's own term.

        `weights` [tasks] weigh the tasks, on the labels' device; missing labels teach nothing (`nn.losses`). With peers
        both are this process's share: shares add up.
        """
        user, items, logits = self._stages(batch)
        loss = cross_entropy(logits, batch.labels, weights, self.peers)
        return loss, self.auxiliary_loss(user, items, batch, weights)

    def loss(self, batch: RequestBatch, weights: Tensor | None = None) -> Tensor:
        """What training minimizes: the sum of both."""
        loss, own = self.losses(batch, weights)
        return loss if own is None else loss + own

    def _stages(self, batch: RequestBatch) -> tuple[UserState, ItemState, Tensor]:
        user = self.encode_user(batch.inputs)
        items = self.encode_items(batch.candidates.items).take(batch.candidates.item_of_candidate)
        interaction = self.interact(user, items, batch.candidates.offsets)
        return user, items, self.score(interaction, items, user, batch.candidates.offsets)

    def item_side_parameters(self) -> dict[str, Tensor]:
        """Exactly the parameters and buffers that item rows depend on, by name: their hash ties rows to weights."""
        mine = [*self.item_tower.item_parameters(), *self.row_parameters(), *self.head.from_item.parameters()]
        identities = {id(tensor) for tensor in mine}
        named: list[tuple[str, Tensor]] = [*self.named_parameters(), *self.named_buffers()]
        return {name: tensor for name, tensor in named if id(tensor) in identities}
