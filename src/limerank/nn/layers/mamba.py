"""Mamba blocks: a gated, input-dependent recurrence along a history, whose state is all that a next event reads.

    u = RMSNorm(r);  x, z = split(u W_in);  x = SiLU(conv_4(x) + b)              2 d channels
    delta_low, B, C = split(x W_x);  delta = softplus(delta_low W_delta + b_delta)
    h_t = exp(delta_t A) h_(t-1) + delta_t B_t x_t;  y_t = C_t h_t + D * x_t
    r' = r + (y * SiLU(z)) W_out

The recurrence is `limerank.ops.selective_scan`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.nn.layers.attention import RMSNorm
from limerank.nn.layers.causal_stack import last_rows
from limerank.ops.groups import group_lists
from limerank.ops.selective_scan import causal_convolution, selective_scan

SMALLEST_STEP, LARGEST_STEP = 0.001, 0.1  # of delta at the start, as published


class MambaState(NamedTuple):
    """What a block keeps of each history: the recurrence's state [B, i, s], and the convolution's last inputs
    [B, taps - 1, i], the most recent first; zero where there are no events.
    """

    hidden: Tensor
    recent: Tensor


class MambaBlock(nn.Module):
    """One block; `forward` along histories, `step` for one more event behind each."""

    def __init__(self, width: int, *, state: int = 16, expand: int = 2, taps: int = 4) -> None:
        super().__init__()
        inner, rank = expand * width, math.ceil(width / 16)
        self.parts = (rank, state, state)
        self.norm = RMSNorm(width)
        self.to_inner = nn.Linear(width, 2 * inner, bias=False)
        self.taps = nn.Parameter(nn.init.uniform_(torch.empty(taps, inner), -(taps**-0.5), taps**-0.5))
        self.taps_bias = nn.Parameter(torch.zeros(inner))
        self.to_selected = nn.Linear(inner, sum(self.parts), bias=False)
        self.to_delta = nn.Linear(rank, inner)
        self.log_decay = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        self.to_output = nn.Linear(inner, width, bias=False)
        steps = torch.empty(inner).uniform_(math.log(SMALLEST_STEP), math.log(LARGEST_STEP)).exp()
        with torch.no_grad():
            self.to_delta.bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus

    def forward(self, rows: Tensor, offsets: Tensor) -> tuple[Tensor, MambaState]:
        """Histories [sum_n, d] after this block, and the state they leave."""
        channels, gate = self.to_inner(self.norm(rows)).chunk(2, dim=-1)
        inputs = self._convolved(channels, offsets)
        delta, write, read = self._selected(inputs)
        out, hidden = self._scan(delta, inputs, write, read, offsets)
        return self._finish(rows, out + self.skip * inputs, gate), MambaState(hidden, self._recent(channels, offsets))

    def state_after(self, rows: Tensor, offsets: Tensor) -> MambaState:
        """Only the state: no output is computed."""
        channels, _, hidden = self._carry(rows, offsets)
        return MambaState(hidden, self._recent(channels, offsets))

    def last(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """The last row of each history after this block [B, d]; an empty history gives zero, as nothing has a bias."""
        _, inputs, hidden = self._carry(rows, offsets)
        final, final_inputs = last_rows(rows, offsets), last_rows(inputs, offsets)
        gate = functional.linear(self.norm(final), self.to_inner.weight.chunk(2)[1])
        read = self._selected(final_inputs)[2]
        out = (hidden @ read[..., None]).squeeze(-1) + self.skip * final_inputs
        return self._finish(final, out, gate)

    def step(self, rows: Tensor, before: MambaState) -> Tensor:
        """Rows [M, d] after this block, each as the next event behind its own state; states [M, ...] or [1, ...]."""
        _, gate, inputs, delta, write, read = self._behind(rows, before)
        faded = (delta[..., None] * self._decay()).exp() * before.hidden
        out = (faded @ read[..., None]).squeeze(-1) + delta * inputs * (write * read).sum(-1, keepdim=True)
        return self._finish(rows, out + self.skip * inputs, gate)

    def advance(self, rows: Tensor, before: MambaState) -> tuple[Tensor, MambaState]:
        """Rows [B, d], each the next event behind its own state, after this block, and the states after it."""
        channels, gate, inputs, delta, write, read = self._behind(rows, before)
        faded = (delta[..., None] * self._decay()).exp() * before.hidden
        hidden = torch.addcmul(faded, (delta * inputs)[..., None], write[:, None])
        recent = torch.cat([channels[:, None], before.recent[:, :-1]], 1)
        out = (hidden @ read[..., None]).squeeze(-1) + self.skip * inputs
        return self._finish(rows, out, gate), MambaState(hidden, recent)

    def _behind(self, rows: Tensor, before: MambaState) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Channels, gate and inputs [M, i] of rows as next events, and their delta, B and C."""
        channels, gate = self.to_inner(self.norm(rows)).chunk(2, dim=-1)
        earlier = (before.recent * self.taps[1:]).sum(1)
        inputs = functional.silu(channels * self.taps[0] + earlier + self.taps_bias)
        return channels, gate, inputs, *self._selected(inputs)

    def _carry(self, rows: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Channels before and after the convolution, and the states behind each history: no gates, no outputs."""
        channels = functional.linear(self.norm(rows), self.to_inner.weight.chunk(2)[0])
        inputs = self._convolved(channels, offsets)
        delta, write, _ = self._selected(inputs)
        _, hidden = self._scan(delta, inputs, write, None, offsets)
        return channels, inputs, hidden

    def _convolved(self, channels: Tensor, offsets: Tensor) -> Tensor:
        return functional.silu(causal_convolution(channels, self.taps, offsets) + self.taps_bias)

    def _selected(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """delta [n, i], B and C [n, s]."""
        low, write, read = self.to_selected(inputs).split(self.parts, dim=-1)
        return functional.softplus(self.to_delta(low)), write, read

    def _decay(self) -> Tensor:
        return -self.log_decay.exp()

    def _scan(
        self, delta: Tensor, inputs: Tensor, write: Tensor, read: Tensor | None, offsets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """y [sum_n, i] and the states behind each history [B, i, s], in groups of similar length."""
        decay, groups = self._decay(), group_lists(offsets)
        deltas, sources, writes = groups.pad(delta), groups.pad(inputs), groups.pad(write)
        reads = [None] * len(deltas) if read is None else groups.pad(read)
        scanned = [
            selective_scan(own_delta, own_inputs, decay, own_write, own_read)
            for own_delta, own_inputs, own_write, own_read in zip(deltas, sources, writes, reads, strict=True)
        ]
        hidden = inputs.new_zeros(offsets.shape[0] - 1, *decay.shape)
        hidden = hidden.index_copy(0, groups.numbers, torch.cat([state for _, state in scanned]))
        rows = [out for out, _ in scanned if out is not None]
        return groups.unpad(rows) if rows else inputs, hidden

    def _recent(self, channels: Tensor, offsets: Tensor) -> Tensor:
        """The last rows of each history, most recent first."""
        back = torch.arange(self.taps.shape[0] - 1, device=offsets.device)
        positions = torch.where(back < offsets.diff()[:, None], offsets[1:, None] - back, 0)
        return functional.pad(channels, (0, 0, 1, 0))[positions]

    def _finish(self, rows: Tensor, out: Tensor, gate: Tensor) -> Tensor:
        finished: Tensor = rows + self.to_output(out * functional.silu(gate))
        return finished


class MambaStack(nn.Module):
    """n blocks one after the other."""

    def __init__(self, width: int, layers: int, *, state: int = 16, expand: int = 2, taps: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MambaBlock(width, state=state, expand=expand, taps=taps) for _ in range(layers))

    def last(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """The last row of each history after all blocks, [B, d]; zero for an empty one."""
        *earlier, final = self.blocks()
        for block in earlier:
            rows, _ = block(rows, offsets)
        return final.last(rows, offsets)

    def states(self, rows: Tensor, offsets: Tensor) -> tuple[MambaState, ...]:
        """What every block keeps of each history."""
        *earlier, final = self.blocks()
        kept = []
        for block in earlier:
            rows, state = block(rows, offsets)
            kept.append(state)
        return *kept, final.state_after(rows, offsets)

    def step(self, rows: Tensor, states: tuple[MambaState, ...]) -> Tensor:
        """Rows [M, d] after all blocks, each as the next event behind the states [M, ...] or [1, ...]."""
        for block, state in zip(self.blocks(), states, strict=True):
            rows = block.step(rows, state)
        return rows

    def blocks(self) -> list[MambaBlock]:
        """The blocks, by their type."""
        return [block for block in self.layers if isinstance(block, MambaBlock)]
