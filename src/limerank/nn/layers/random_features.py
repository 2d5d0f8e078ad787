"""Positive random features of the softmax kernel (Performer, "FAVOR+").

    exp(q . k / sqrt(d_a)) = E[f(q) . f(k)],   f(x) = exp(omega x' - |x'|^2 / 2) / sqrt(r),   x' = x d_a^(-1/4)

The rows of omega are orthogonal within blocks of d_a and as long as Gaussian vectors: each alone is Gaussian, so the
estimate is unbiased, and a block covers all directions, so that its variance is smaller.

A factor common to a query's features, or to those of all keys of a user, cancels where attention is normalized. So the
largest exponent is subtracted, of each query by itself and of each user's keys together, never across users or
candidates. Then no feature exceeds 1 / sqrt(r), the largest of a query is 1 / sqrt(r), and a stored row neither
overflows nor vanishes in fp16. Epsilon, added to both, keeps the normalizer above N * epsilon / sqrt(r).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from limerank.nn.peers import NOBODY, Peers
from limerank.ops.jagged import row_of
from limerank.ops.linear_attention import segment_max

EPSILON = 1e-12
"""Only against a normalizer of zero: features span many powers of ten, and 1e-6 already moves o_c visibly."""


class RandomFeatures(nn.Module):
    """`directions` omega [r, d_a], shared by all heads: a buffer that is saved, for cached rows depend on it."""

    directions: Tensor
    peers: Peers = NOBODY

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.register_buffer("directions", orthogonal_directions(count, width))

    def redraw(self) -> None:
        """New directions, in place."""
        count, width = self.directions.shape
        self.directions.copy_(self.peers.agreed(orthogonal_directions(count, width, self.directions.device)))

    def exponents(self, rows: Tensor) -> Tensor:
        """omega x' - |x'|^2 / 2: [..., d_a] to [..., r]."""
        scaled = rows * rows.shape[-1] ** -0.25
        exponents: Tensor = scaled @ self.directions.T - scaled.square().sum(-1, keepdim=True) / 2
        return exponents

    def of_queries(self, queries: Tensor) -> Tensor:
        """[n, H, d_a] to features [n, H, r], each up to a factor of its own."""
        # |x'|^2 / 2 is part of that factor
        exponents = queries * queries.shape[-1] ** -0.25 @ self.directions.T
        return self._features(exponents, exponents.detach().amax(-1, keepdim=True))

    def of_keys(self, keys: Tensor, offsets: Tensor) -> Tensor:
        """Jagged [sum_n, H, d_a] to features [sum_n, H, r], up to a factor of each user and head."""
        exponents = self.exponents(keys)
        largest = segment_max(exponents.detach().amax(-1), offsets)
        return self._features(exponents, largest.index_select(0, row_of(offsets, keys.shape[0]))[..., None])

    def _features(self, exponents: Tensor, largest: Tensor) -> Tensor:
        return torch.exp(exponents - largest) / math.sqrt(exponents.shape[-1]) + EPSILON


def orthogonal_directions(count: int, width: int, device: torch.device | None = None) -> Tensor:
    """omega [count, width]: blocks of `width` orthogonal rows, each as long as a Gaussian vector of its own."""
    blocks = -(-count // width)
    square, triangle = torch.linalg.qr(torch.randn(blocks, width, width, device=device))
    # with the signs of the diagonal the rotation is uniform; QR alone prefers some
    rotations = square * triangle.diagonal(dim1=1, dim2=2).sign()[:, None, :]
    lengths = torch.randn(count, width, device=device).norm(dim=1, keepdim=True)
    directions: Tensor = rotations.flatten(0, 1)[:count] * lengths
    return directions
