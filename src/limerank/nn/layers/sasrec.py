"""The block of SASRec: softmax self-attention along a history, then a feed-forward layer.

    q = LN(x);  z = LN(q + MHA_causal(q, x, x));  x' = z + W_2 relu(W_1 z)

As published, only the queries are normalized: keys and values are projections of x itself, and the residual carries q.
The stack ends with a LayerNorm, as its authors' code does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.nn.layers.attention import EPSILON, split_heads
from limerank.nn.layers.causal_stack import CausalLayer, CausalStack, KeysValues, last_rows
from limerank.ops.causal_attention import attend_appended, attend_history
from limerank.ops.target_attention import attend_dense


class SASRecBlock(CausalLayer):
    """One block; dropout follows the attention and each feed-forward product."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.to_queries = nn.Linear(width, width)
        self.to_keys_values = nn.Linear(width, 2 * width)
        self.join_heads = nn.Linear(width, width)
        self.out_norm = nn.LayerNorm(width, eps=EPSILON)
        self.to_hidden = nn.Linear(width, hidden)
        self.to_output = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            for weight in (self.to_queries.weight, *self.to_keys_values.weight.chunk(2)):
                nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.to_queries.bias)
        nn.init.zeros_(self.to_keys_values.bias)

    def start_aligned(self, sharpness: float | None) -> None:
        """Start queries and keys from one random rotation; None leaves both Xavier.

        Keys are projections of x itself, so scores start with a deviation of `sharpness` times the size of x: of E in
        the first block, about 1 behind it. docs/decisions/0003-aligned-start.md
        """
        if sharpness is None:
            return
        with torch.no_grad():
            keys, _ = self.to_keys_values.weight.chunk(2)
            nn.init.orthogonal_(keys)
            self.to_queries.weight.copy_(sharpness * keys)

    def forward(self, rows: Tensor, offsets: Tensor) -> tuple[Tensor, KeysValues]:
        keys, values = self.keys_values(rows)
        normed = self.norm(rows)
        attended = attend_history(self._queries(normed), keys, values, offsets, "softmax")
        return self._finish(normed, attended), (keys, values)

    def keys_values(self, rows: Tensor) -> KeysValues:
        keys, values = self.to_keys_values(rows).chunk(2, dim=-1)
        return split_heads(keys, self.heads), split_heads(values, self.heads)

    def append(self, rows: Tensor, candidate_offsets: Tensor, history: KeysValues, offsets: Tensor) -> Tensor:
        normed = self.norm(rows)
        own_keys, own_values = self.keys_values(rows)
        attended = attend_appended(
            self._queries(normed), own_keys, own_values, candidate_offsets, *history, offsets, "softmax"
        )
        return self._finish(normed, attended)

    def last(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """Only the last row of each history after this block [B, d]: one query per request.

        Of an empty history it means nothing.
        """
        keys, values = self.keys_values(rows)
        normed = self.norm(last_rows(rows, offsets))
        attended = attend_dense(self._queries(normed)[:, None], keys, values, offsets)[:, 0]
        return self._finish(normed, attended)

    def _queries(self, normed: Tensor) -> Tensor:
        return split_heads(self.to_queries(normed), self.heads)

    def _finish(self, normed: Tensor, attended: Tensor) -> Tensor:
        mixed = self.out_norm(normed + self.dropout(self.join_heads(attended.flatten(-2))))
        hidden = self.dropout(functional.relu(self.to_hidden(mixed)))
        finished: Tensor = mixed + self.dropout(self.to_output(hidden))
        return finished


class SASRecStack(CausalStack):
    """Blocks one after the other, then a LayerNorm if wanted; `last` reads only each history's final state."""

    def __init__(
        self, width: int, heads: int, layers: int, hidden: int, dropout: float = 0.0, *, final_norm: bool = False
    ) -> None:
        super().__init__(SASRecBlock(width, heads, hidden, dropout) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width, eps=EPSILON) if final_norm else None

    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:
        return self._normed(super().forward(rows, offsets))

    def append(
        self, rows: Tensor, candidate_offsets: Tensor, memory: tuple[KeysValues, ...], offsets: Tensor
    ) -> Tensor:
        return self._normed(super().append(rows, candidate_offsets, memory, offsets))

    def last(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """The last state of each history, [B, d]; zero if it is empty."""
        *earlier, final = (layer for layer in self.layers if isinstance(layer, SASRecBlock))
        for layer in earlier:
            rows, _ = layer(rows, offsets)
        return self._normed(final.last(rows, offsets)) * offsets.diff().clamp(max=1)[:, None]

    def _normed(self, rows: Tensor) -> Tensor:
        return rows if self.final_norm is None else self.final_norm(rows)
