"""SASRec: self-attention along the history; a candidate is appended to read it, or its last state is the user."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from torch import Tensor

from limerank.batch import UserInputs
from limerank.models.base import ItemState, RankerOptions, UserState
from limerank.models.pooled import PooledRanker
from limerank.nn.encodings import Encoding
from limerank.nn.layers.sasrec import SASRecBlock, SASRecStack
from limerank.schema import FeatureSpace


class SASRec(RankerOptions):
    """Options of SASRec; two blocks and learned positions, as published."""

    encoding: Encoding = Field(default="position", description="what is added to E_j for its position or time")
    heads: int = Field(default=4, ge=1, description="H, attention heads")
    layers: int = Field(default=2, ge=1, description="blocks")
    feed_forward: int | None = Field(
        default=None, ge=1, description="hidden width of the feed-forward layers; default: width"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="behind the attention and in the feed-forward layers")
    sharpness: float | None = Field(
        default=3.0, gt=0, description="scale of queries at a start aligned with the keys; null: Xavier projections"
    )
    final_norm: bool = Field(default=True, description="a LayerNorm behind the last block")
    readout: Literal["last", "target"] = Field(
        default="target", description="the history's last state, or the row of a candidate appended to it"
    )

    @model_validator(mode="after")
    def _heads_divide_width(self) -> SASRec:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be split into {self.heads} heads")
        return self


class SASRecRanker(PooledRanker):
    """Blocks x <- FFN(LN(q + MHA_causal(q, x, x))), q = LN(x), FFN(z) = z + W_2 relu(W_1 z), over E with positions.

    A LayerNorm follows the last block.
    target:  o_c = the state of T_c appended to the history (as in BST), which reads the history and itself. T_c has no
             position: its row must not depend on the user. What the paper calls cross-attention models like SASRec.
    last:    o_c = the state of the last event, as its authors use it; zero for an empty history.
    """

    name = "sasrec"
    family = "sequence"
    options_type = SASRec
    ordered = True
    options: SASRec

    def __init__(self, space: FeatureSpace, tasks: int, options: SASRec) -> None:
        super().__init__(space, tasks, options)
        hidden = options.feed_forward or options.width
        self.stack = SASRecStack(
            options.width, options.heads, options.layers, hidden, options.dropout, final_norm=options.final_norm
        )
        for block in self.stack.layers:
            assert isinstance(block, SASRecBlock)
            block.start_aligned(options.sharpness)
        self.factorized = self.foldable = options.readout == "last"

    def encode_user(self, inputs: UserInputs) -> UserState:
        rows, offsets = self.history(inputs), inputs.history.offsets
        head_part = self.head.from_user(self.context_tower(inputs.users, inputs.context))
        if self.factorized:
            return UserState((self.stack.last(rows, offsets),), head_part)
        memory = self.stack.prefill(rows, offsets)
        return UserState(tuple(tensor for keys_values in memory for tensor in keys_values), head_part, offsets)

    def item_rows(self, items: Tensor) -> Tensor:
        return super().item_rows(items) if self.factorized else items

    def interact(self, user: UserState, items: ItemState, candidate_offsets: Tensor) -> Tensor:
        if self.factorized:
            return super().interact(user, items, candidate_offsets)
        assert user.offsets is not None
        memory = tuple(zip(user.memory[::2], user.memory[1::2], strict=True))
        return self.stack.append(items.rows, candidate_offsets, memory, user.offsets)
