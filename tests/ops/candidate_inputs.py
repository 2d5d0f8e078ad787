"""Catalogs and request heads for the candidate tests."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from limerank.ops.candidate import RequestHead, RowStore


def make_weights(items: int, heads: int, links: int, seed: int = 0) -> Tensor:
    """Softmax weights [items, heads * links], peaked as trained ones are."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(items, heads, links, generator=generator).mul(2).softmax(-1).flatten(1)


def make_case(
    items: int, width: int, hidden: tuple[int, ...], tasks: int, row_type: str = "fp32", seed: int = 0
) -> tuple[RowStore, RequestHead]:
    """Random rows in [0, 1], a random matrix, and a head with these hidden widths."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(items, width, generator=generator)
    head_part = torch.randn(items, hidden[0], generator=generator)
    widths = (*hidden, tasks)
    layers = [
        (torch.randn(b, a, generator=generator) / a**0.5, torch.randn(b, generator=generator))
        for a, b in pairwise(widths)
    ]
    matrix = torch.randn(width, hidden[0], generator=generator) / max(width, 1) ** 0.5
    head = RequestHead(matrix, torch.randn(hidden[0], generator=generator), layers)
    return RowStore.store(rows, head_part, row_type), head


def straightforward(store: RowStore, head: RequestHead, index: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The formula as it is written, unblocked, in a precision of choice."""
    rows, head_part = (table.to(dtype) for table in store.widened(index))
    x = torch.einsum("cr,rk->ck", rows, head.matrix.to(dtype)) + head_part + head.offset.to(dtype)
    for weight, bias in head.layers:
        x = torch.einsum("ck,ok->co", x.relu(), weight.to(dtype)) + bias.to(dtype)
    return x
