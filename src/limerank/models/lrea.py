"""LREA: attention of low rank along the sequence, without a softmax, so that both compressed sides multiply early.

Reconstructed from the abstract and summaries of arXiv 2503.02542 (low-rank attention, matrix absorption, pre-storage, a
loss that keeps attention non-negative): its equations were not at hand.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from limerank.batch import RequestBatch, UserInputs
from limerank.models.base import AttentionOptions, ItemState, UserState
from limerank.models.factorized import FactorizedRanker
from limerank.models.queried import QueriedRanker
from limerank.nn.layers.attention import HeadProjection, split_heads, start_aligned
from limerank.nn.layers.compressed_sequence import CompressedSequence
from limerank.ops.jagged import pad
from limerank.schema import FeatureSpace


class LREA(AttentionOptions):
    """Options of LREA; `positions` is N_max: older events are not read."""

    rank: int = Field(default=32, ge=1, description="r, what a history is compressed to")
    nonnegativity: float = Field(default=0.1, ge=0, description="weight of the loss on attention below zero")


class LREARanker(QueriedRanker, FactorizedRanker):
    """A = LN(T) W_Q (R P LN(E) W_K)^T / sqrt(d_a),  o_c = A_c LN(E) W_V / N  per head, P and R^T [r, N_max].

    o_c = LN(T_c) W_Q B_u with B_u = (P LN(E) W_K)^T (R^T LN(E) W_V) / (N sqrt(d_a)): Linformer's K' and V', multiplied.
    N counts the events that are read. The loss adds `nonnegativity` * mean(relu(-A)) over candidates, events and heads.
    """

    name = "lrea"
    family = "linear-attention"
    options_type = LREA
    ordered = True
    options: LREA

    def __init__(self, space: FeatureSpace, tasks: int, options: LREA) -> None:
        super().__init__(space, tasks, options)
        self.to_queries = HeadProjection(options.width, options.heads, options.query_key_width)
        keys_values = HeadProjection(options.width, options.heads, options.query_key_width, options.width)
        start_aligned([self.to_queries], [keys_values], options.sharpness)
        self.compressed = CompressedSequence(keys_values, options.rank, options.positions, shared=False)

    def row_shape(self) -> tuple[int, int]:
        return self.options.heads, self.options.query_key_width // self.options.heads

    def _events_read(self, offsets: Tensor) -> Tensor:
        return offsets.diff().clamp(max=self.options.positions)

    def encode_user(self, inputs: UserInputs) -> UserState:
        offsets = inputs.history.offsets
        keys, values = self.compressed(self.history(inputs), offsets)
        keys = keys * self.row_shape()[1] ** -0.5
        events = self._events_read(offsets).clamp(min=1)[:, None, None, None]
        matrices = keys.permute(0, 2, 3, 1) @ values.transpose(1, 2) / events
        context = self.context_tower(inputs.users, inputs.context)
        # only the loss reads the keys; a served state is the matrices alone
        memory = (matrices, keys) if self.training else (matrices,)
        return UserState(memory, self.head.from_user(context))

    def auxiliary_loss(
        self, user: UserState, items: ItemState, batch: RequestBatch, weights: Tensor | None = None
    ) -> Tensor | None:
        if not self.training or not self.options.nonnegativity:
            return None
        _, keys = user.memory
        attention, counted = self._attention(keys, items.rows, batch)
        below = (torch.relu(-attention) * counted).sum()
        pairs = self.peers.total(counted.sum()) * self.options.heads
        return self.options.nonnegativity * below / pairs.clamp(min=1)

    def _attention(self, keys: Tensor, rows: Tensor, batch: RequestBatch) -> tuple[Tensor, Tensor]:
        """A [B, H, candidates, N], newest event first, and which of it is not padding [B, 1, candidates, N]."""
        offsets = batch.candidates.offsets
        queries, _ = pad(split_heads(rows, self.options.heads), offsets)
        events = self._events_read(batch.inputs.history.offsets)
        longest = int(events.max())
        mixtures = queries.transpose(1, 2) @ keys.permute(0, 2, 3, 1)
        attention = mixtures @ self.compressed.value_weights()[:longest].T
        is_event = torch.arange(longest, device=rows.device) < events[:, None]
        is_candidate = torch.arange(queries.shape[1], device=rows.device) < offsets.diff()[:, None]
        return attention, is_candidate[:, None, :, None] & is_event[:, None, None, :]
