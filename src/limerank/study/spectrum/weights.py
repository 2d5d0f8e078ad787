"""The attention weights of rankers, as matrices, exactly as the rankers compute them.

Attention is linear in its values: O = A V. So with more columns of values, O has more columns, and where those are the
identity they are A itself. A copy of an HSTU ranker gets layers that add such columns behind the real values and take
them off again before the layer goes on. Whatever a layer does between projections and output (SiLU or softmax, scale,
divisor, mask, bias) is then in A without being written here a second time.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limerank.batch import Features, UserInputs
from limerank.models.hstu import HSTURanker
from limerank.models.lime import LimeRanker
from limerank.nn.layers.attention import split_heads
from limerank.nn.layers.gated import Projected
from limerank.nn.layers.stu import STULayer, STUStack


@dataclass(frozen=True)
class AttentionWeights:
    """Of one sequence of N events and M candidates, every layer and head."""

    own: Tensor
    """History reads history [layers, H, N, N]: row i reads events up to i."""
    cross: Tensor
    """Candidates read history [layers, H, M, N]."""
    candidate: Tensor
    """What a candidate gives itself [layers, H, M]: no event, so no column of `cross`."""


class RecordingLayer(STULayer):
    """An STU layer that remembers the weights of its last attention: N columns for events, one for the candidate."""

    weights: Tensor
    real_width: int

    def forward(self, rows: Tensor, *others: Any, **more: Any) -> Any:
        """History rows after this layer, and what others read of them."""
        self.columns = _events(rows)
        return super().forward(rows, *others, **more)

    def append(self, rows: Tensor, *others: Any, **more: Any) -> Any:
        """Candidates after this layer."""
        columns = rows.new_zeros(rows.shape[0], self.columns.shape[1])
        columns[:, -1] = 1
        self.columns = columns
        return super().append(rows, *others, **more)

    def project(self, rows: Tensor) -> Projected:
        """All four projections, the values with columns behind them."""
        projected = super().project(rows)
        return projected._replace(values=self._with_columns(projected.values))

    def project_read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys, and values with columns behind them."""
        self.columns = _events(rows)
        keys, values = super().project_read(rows)
        return keys, self._with_columns(values)

    def finish(self, rows: Tensor, attended: Tensor, gate: Tensor) -> Tensor:
        """Rows after the layer; what came back in the columns is kept."""
        self.weights = attended[..., self.real_width :].transpose(0, 1)
        return super().finish(rows, attended[..., : self.real_width], gate)

    def _with_columns(self, values: Tensor) -> Tensor:
        self.real_width = values.shape[-1]
        columns = self.columns.to(values.dtype)[:, None].expand(-1, values.shape[1], -1)
        return torch.cat([values, columns], -1)


def _events(rows: Tensor) -> Tensor:
    """[N, N + 1]: event j is column j, and the last column is the candidate's."""
    return torch.eye(rows.shape[0], rows.shape[0] + 1, dtype=rows.dtype, device=rows.device)


class RecordingStack(STUStack):
    """A stack of such layers. Its prefill also computes what the last layer's history rows would read.

    The user stage leaves that out, since no one reads those rows afterwards; it is one of the matrices all the same.
    """

    own: Tensor

    def prefill(self, rows: Tensor, *others: Any, **more: Any) -> Any:
        """Keys and values of every layer; `own` has the weights of every layer's history rows."""
        self(rows, *others, **more)
        self.own = self.last_weights()[..., :-1]
        return super().prefill(rows, *others, **more)

    def last_weights(self) -> Tensor:
        """Of each layer's last attention [layers, H, rows, N + 1]."""
        return torch.stack([layer.weights for layer in self.layers if isinstance(layer, RecordingLayer)])


class RecordedHSTU:
    """A copy of an HSTU ranker whose attention can be looked at; the ranker itself stays as it is."""

    def __init__(self, ranker: HSTURanker) -> None:
        self.ranker = copy.deepcopy(ranker).eval()
        self.ranker.stack.__class__ = RecordingStack
        for layer in self.ranker.stack.layers:
            layer.__class__ = RecordingLayer

    @torch.no_grad()
    def weights(self, inputs: UserInputs, candidates: Features) -> AttentionWeights:
        """Of one request and some candidates: the ranker's own stages run, and its layers remember."""
        stack = self.ranker.stack
        assert isinstance(stack, RecordingStack)
        user = self.ranker.encode_user(inputs)
        items = self.ranker.encode_items(candidates)
        self.ranker.interact(user, items, torch.tensor([0, len(candidates)]))
        every = stack.last_weights()
        return AttentionWeights(stack.own, every[..., :-1], every[..., -1])


@torch.no_grad()
def link_factors(ranker: LimeRanker, inputs: UserInputs, candidates: Features) -> tuple[Tensor, Tensor]:
    """A(T, L) [H, M, l], cached per item, and A(L, E) [H, l, N] of a request: their product stands for A(T, E)."""
    items = split_heads(ranker.encode_items(candidates).rows, ranker.options.heads)
    return items.transpose(0, 1), ranker.history_attention(inputs).permute(2, 1, 0)


@torch.no_grad()
def personalized_links(ranker: LimeRanker, inputs: UserInputs) -> Tensor:
    """L^P [B, l, d] of a batch of requests."""
    reading, _ = ranker.reading_links(ranker.context_tower(inputs.users, inputs.context))
    return ranker.personalize(reading, inputs)
