"""The attention that is approximated: A(T, E) = softmax(Q_T K_E^T / sqrt(d_a)) of a trained MHA skyline, head by head.

Every history has the same length N here (the most recent N events of requests that have as many), so that an error of
one request means what it means for another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from limerank.data.batches import RequestLoader
from limerank.data.store.dataset import StoredDataset
from limerank.errors import DataError
from limerank.models.mha import MHARanker
from limerank.splits import Part

LONG_ENOUGH = 0.75
"""N is the length that a quarter of the requests reach, in the train and in the test part."""


@dataclass(frozen=True)
class Attention:
    """Rows as the skyline's projections see them, and what it makes of them."""

    targets: Tensor
    """LN(T) [M, d]"""
    events: Tensor
    """LN(E) [B, N, d]"""
    queries: Tensor
    """[H, M, a]"""
    keys: Tensor
    """[B, H, N, a]"""

    def weights(self) -> Tensor:
        """A(T, E) [B, H, M, N]."""
        return softmax_scores(self.queries, self.keys)

    def part(self, requests: Tensor, candidates: Tensor) -> Attention:
        """The same of some requests and candidates."""
        return Attention(
            self.targets[candidates], self.events[requests], self.queries[:, candidates], self.keys[requests]
        )


class Skyline:
    """A trained MHA ranker, frozen."""

    def __init__(self, ranker: MHARanker) -> None:
        if ranker.recency is not None:
            raise DataError("the skyline has a recency bias, which no kernel of queries and keys approximates")
        self.ranker = ranker.requires_grad_(False)
        self.heads = ranker.options.heads

    def queries_of(self, rows: Tensor) -> Tensor:
        """Q [H, n, a] of rows [n, d]."""
        (queries,) = self.ranker.to_queries(rows)
        swapped: Tensor = queries.transpose(0, 1)
        return swapped

    def keys_of(self, rows: Tensor) -> Tensor:
        """K [..., H, n, a] of rows [..., n, d]."""
        keys: Tensor = self.ranker.to_keys_values(rows)[0]
        return keys.transpose(-3, -2)

    @torch.no_grad()
    def attention(self, targets: Tensor, events: Tensor) -> Attention:
        """Of candidates T [M, d] and histories E [B, N, d]."""
        return Attention(
            self.ranker.to_queries.norm(targets),
            self.ranker.to_keys_values.norm(events),
            self.queries_of(targets),
            self.keys_of(events),
        )


def softmax_scores(queries: Tensor, keys: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(d_a)) over the keys."""
    weights: Tensor = (queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5).softmax(-1)
    return weights


def history_length(dataset: StoredDataset, max_history: int) -> int:
    """N: what a quarter of the requests of the train part and of the test part reach, at most `max_history`."""
    lengths = []
    for part in (Part.TRAIN, Part.TEST):
        loader = RequestLoader(dataset, part, batch_requests=1, max_history=max_history)
        lengths.append(float(np.quantile(loader.history_lengths(loader.requests), LONG_ENOUGH)))
    if min(lengths) < 2:
        raise DataError(f"{dataset.path}: histories are too short for kernels; leave the group 'linear' out")
    return int(min(lengths))


@torch.no_grad()
def histories(ranker: MHARanker, dataset: StoredDataset, part: Part, length: int, count: int, seed: int) -> Tensor:
    """E [B, N, d] of up to `count` requests of a part that have N events, chosen at random."""
    loader = RequestLoader(dataset, part, batch_requests=1, max_history=length, with_times=ranker.needs_times)
    enough = loader.requests[loader.history_lengths(loader.requests) == length]
    chosen = np.sort(np.random.default_rng(seed).permutation(enough)[:count])
    inputs = loader.user_inputs(chosen)
    return ranker.history(inputs).view(len(chosen), length, -1)


@torch.no_grad()
def candidates(ranker: MHARanker, dataset: StoredDataset, count: int, seed: int) -> Tensor:
    """T [M, d] of items of the catalog, chosen at random, in random order."""
    items = 1 + np.random.default_rng(seed).permutation(len(dataset.item_table) - 1)[:count]
    embedded: Tensor = ranker.item_tower.candidates(dataset.item_table.take(torch.from_numpy(items)))
    return embedded
