"""Keys and values of r mixtures of a history's events (Linformer; LREA uses the same).

    K' = P_K^T (LN(E) W_K),   V' = P_V^T (LN(E) W_V)         P_K, P_V [positions, r], 0 is the newest event

A product is associative: the mixtures are made before the projection, (P^T LN(E)) W, so that r rows are projected and
not N. The bias comes along as a column of ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.nn.layers.attention import HeadProjection, split_heads
from limerank.ops.jagged import row_of
from limerank.ops.linear_attention import append_one


class CompressedSequence(nn.Module):
    """K' [B, r, H, d_a] and V' [B, r, H, v] of each request; an empty history gives zeros.

    `weights` [positions, 2r] holds P_K and P_V side by side, or [positions, r] one for both.

    The event at position p starts in mixture p mod r, of keys as of values: a history of up to r events starts unmixed.
    docs/rankers/linear-attention.md compares this with a random projection.
    """

    def __init__(self, projection: HeadProjection, rank: int, positions: int, *, shared: bool) -> None:
        super().__init__()
        self.projection = projection
        start = torch.eye(rank).repeat(-(-positions // rank), 1)[:positions]
        self.weights = nn.Parameter(start if shared else start.repeat(1, 2))
        self.rank = rank

    def value_weights(self) -> Tensor:
        """P_V [positions, r]."""
        return self.weights[:, -self.rank :]

    def forward(self, history: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        mixtures = project_recent(append_one(self.projection.norm(history)), offsets, self.weights)
        of_keys, of_values = mixtures[:, : self.rank], mixtures[:, -self.rank :]
        linear, outputs = self.projection.linear, self.projection.outputs
        matrix = torch.cat([linear.weight, linear.bias[:, None]], dim=1)
        keys, values = (
            split_heads(functional.linear(rows, part), self.projection.heads)
            for rows, part in zip((of_keys, of_values), matrix.split(outputs), strict=True)
        )
        return keys, values


def project_recent(values: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """sum_j weights[position of j] (x) value_j: jagged [sum_n, d] and [positions, k] give [B, k, d], empty ones zero.

    Position 0 is the newest event. Events at positions beyond the weights are not read.
    """
    requests, positions = offsets.shape[0] - 1, weights.shape[0]
    if requests == 1:
        return _project_one(values, weights)[None]
    count, width = values.shape
    longest = min(max(int(offsets.diff().max()), 1), positions) if requests else 1
    request = row_of(offsets, count)
    position = offsets[1:].index_select(0, request) - 1 - torch.arange(count, device=values.device)
    # positions before requests: then one product serves all requests; what is too old goes to a last row, unread
    slot = torch.where(position < longest, position * requests + request, longest * requests)
    table = values.new_zeros(longest * requests + 1, width).index_copy(0, slot, values)
    mixed = weights[:longest].T @ table[:-1].view(longest, requests * width)
    return mixed.view(-1, requests, width).transpose(0, 1)


def _project_one(values: Tensor, weights: Tensor) -> Tensor:
    positions = weights.shape[0]
    if not torch.compiler.is_compiling():
        values = values[-positions:]  # a traced length must not be compared with the table's
    position = torch.arange(values.shape[0] - 1, -1, -1, device=values.device)
    chosen = weights.index_select(0, position.clamp(max=positions - 1))
    if torch.compiler.is_compiling():
        chosen = chosen * (position < positions)[:, None]
    return chosen.T @ values
