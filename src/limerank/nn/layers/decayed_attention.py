"""A layer of decayed linear attention over a history (Lightning Attention, TransNormerLLM).

Every head has a state that each event decays by lambda_h:

    q, k, v = SiLU(LN(x) W_Q, W_K, W_V),   g = sigmoid(LN(x) W_G)
    x_i <- x_i + (g_i * RMSNorm(q_i sum_(j <= i) lambda_h^(i - j) k_j v_j^T)) W_O
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.nn.layers.attention import HeadProjection, RMSNorm
from limerank.ops.jagged import pad, unpad
from limerank.ops.linear_attention import decayed_causal, decayed_sums


def decay_rates(heads: int, layer: int, layers: int, strength: float) -> Tensor:
    """-log lambda_h = strength h / H (1 - layer / layers), both counted from 0: head 0 forgets nothing."""
    return torch.arange(heads) * (strength / heads * (1 - layer / layers))


class DecayedAttention(nn.Module):
    """x [sum_n, d], jagged, to the same shape; an event sees itself and what came before it."""

    rates: Tensor

    def __init__(self, width: int, heads: int, query_key_width: int, rates: Tensor, sharpness: float | None) -> None:
        super().__init__()
        self.project = HeadProjection(width, heads, query_key_width, query_key_width, width, width)
        self.norm = RMSNorm(width)
        self.to_output = nn.Linear(width, width, bias=False)
        self.register_buffer("rates", rates, persistent=False)
        if sharpness is not None:
            self._start_aligned(sharpness)

    def _start_aligned(self, sharpness: float) -> None:
        queries, keys, *_ = self.project.linear.weight.detach().split(self.project.outputs)
        nn.init.orthogonal_(keys)
        queries.copy_(sharpness * keys)

    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:
        queries, keys, values, gate = self.project(rows)
        (queries, positions), (keys, _), (values, _) = (
            pad(functional.silu(part), offsets) for part in (queries, keys, values)
        )
        mixed = unpad(decayed_causal(queries, keys, values, self.rates), positions)
        return self._finish(rows, mixed, gate)

    def state_after(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """The states [B, H, a, v] behind histories [sum_n, d] before this layer."""
        _, keys, values, _ = self.project(rows)
        return decayed_sums(functional.silu(keys), functional.silu(values), self.rates, offsets)

    def advance(self, rows: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [B, d], each the next event behind its state [B, H, a, v], after this layer, and the states after it."""
        *projected, gate = self.project(rows)
        queries, keys, values = (functional.silu(part) for part in projected)
        after = torch.addcmul(keys[..., None] * values[..., None, :], before, torch.exp(-self.rates)[:, None, None])
        return self._finish(rows, (queries[..., None, :] @ after).squeeze(-2), gate), after

    def _finish(self, rows: Tensor, mixed: Tensor, gate: Tensor) -> Tensor:
        output: Tensor = rows + self.to_output(torch.sigmoid(gate.flatten(1)) * self.norm(mixed.flatten(1)))
        return output
