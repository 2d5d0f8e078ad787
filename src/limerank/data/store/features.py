"""Encoded columns of a table of items or users, as the tensors that a ranker reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from limerank.batch import Features, Jagged
from limerank.data.store.encoders import Encoder
from limerank.schema import Kind

Pieces = Callable[[str], list[NDArray[Any]]]
"""A column by its name (NAME, or NAME.values and NAME.offsets for lists), as each segment holds it."""


def features_of(encoders: Sequence[Encoder], rows: int, pieces: Pieces) -> Features:
    """The features of a table of so many rows, in batch order."""
    single = [e for e in encoders if e.kind not in (Kind.MULTI_VALUED, Kind.VECTOR)]
    indices = torch.empty(rows, len(single), dtype=torch.long)
    for column, encoder in enumerate(single):
        indices[:, column] = torch.from_numpy(np.concatenate(pieces(encoder.name)).astype(np.int64))
    return Features(
        indices,
        tuple(_lists(pieces, e.name) for e in encoders if e.kind is Kind.MULTI_VALUED),
        tuple(torch.from_numpy(np.concatenate(pieces(e.name))) for e in encoders if e.kind is Kind.VECTOR),
    )


def _lists(pieces: Pieces, name: str) -> Jagged:
    values = [piece.astype(np.int64) for piece in pieces(f"{name}.values")]
    lengths = [np.diff(piece.astype(np.int64)) for piece in pieces(f"{name}.offsets")]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    return Jagged(torch.from_numpy(np.concatenate(values)), torch.from_numpy(offsets))
