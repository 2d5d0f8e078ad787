"""Catalogs that are hard for integer rows, by name."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from limerank.ops.candidate import RequestHead, RowStore

WIDTH, HIDDEN, GROUPS = 24, 12, 2


def hard_tables(name: str, items: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows [items, WIDTH] and head parts [items, HIDDEN]."""
    rows = torch.randn(items, GROUPS, WIDTH // GROUPS, generator=generator).mul(2).softmax(-1).flatten(1)
    parts = torch.randn(items, HIDDEN, generator=generator) / 2
    if name == "negative":
        rows = torch.randn(items, WIDTH, generator=generator)
    elif name == "near ties":
        rows = rows[:1] + 1e-6 * torch.rand(items, WIDTH, generator=generator)
        parts = parts[:1].repeat(items, 1)
    elif name == "all equal":
        rows, parts = rows[:1].repeat(items, 1), parts[:1].repeat(items, 1)
    elif name == "zeros":
        rows, parts = torch.zeros_like(rows), torch.zeros_like(parts)
    elif name == "one huge weight":
        rows[items // 3, 5] = 3e4
    elif name == "one huge head part":
        parts[items // 4, 2] = -6e4
    elif name == "huge head parts":
        parts = parts * 1e4
    elif name == "tiny":
        rows, parts = rows * 1e-3, parts * 1e-4
    elif name == "columns of all sizes":
        rows = rows * 10 ** torch.linspace(-4, 4, WIDTH)
        parts = parts * 10 ** torch.linspace(3, -3, HIDDEN)
    elif name == "far from zero":
        rows, parts = rows + 100, parts - 300
    elif name == "on the edge":  # every value is half a level from the next, all to one side
        rows = (torch.randint(0, 255, rows.shape, generator=generator) + 0.49) / 255
        rows[0], rows[1] = 0, 1
    else:
        assert name == "as trained", name
    return rows, parts


NAMES = [
    "as trained",
    "negative",
    "near ties",
    "all equal",
    "zeros",
    "one huge weight",
    "one huge head part",
    "huge head parts",
    "tiny",
    "columns of all sizes",
    "far from zero",
    "on the edge",
]


def hard_store(name: str, items: int, row_type: str, seed: int = 0) -> RowStore:
    """The same as a store; what u8 refuses, values below zero, is cut off."""
    rows, parts = hard_tables(name, items, torch.Generator().manual_seed(seed))
    return RowStore.store(rows.clamp(min=0) if row_type == "u8" else rows, parts, row_type)


def make_head(hidden: tuple[int, ...] = (HIDDEN,), tasks: int = 2, seed: int = 0) -> RequestHead:
    """A random request for these catalogs."""
    generator = torch.Generator().manual_seed(seed)
    layers = [
        (torch.randn(b, a, generator=generator) / a**0.5, torch.randn(b, generator=generator) / 4)
        for a, b in pairwise((*hidden, tasks))
    ]
    matrix = torch.randn(WIDTH, hidden[0], generator=generator)
    return RequestHead(matrix, torch.randn(hidden[0], generator=generator), layers)
