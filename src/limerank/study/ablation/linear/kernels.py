"""Low-rank stand-ins for A(T, E), each as its ranker defines it, on the skyline's own queries and keys.

A stand-in of rank r gives weights [B, H, M, N]; what it costs a candidate does not depend on N. Those with parameters
are fitted (`fitting.py`); the parameters are the same for all users, as a ranker's are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from limerank.nn.layers.random_features import RandomFeatures
from limerank.study.ablation.linear.skyline import Attention, Skyline, softmax_scores

PSEUDO_INVERSE_FLOOR = 1e-5
"""Singular values of A(L, L) below this fraction of the largest count as zero."""


class Kernel(nn.Module):
    """Weights [B, H, M, N] in place of A(T, E); `rank` is what they have at most."""

    rank: int

    def forward(self, attention: Attention) -> Tensor:
        """The weights."""
        raise TypeError(f"{type(self).__name__} defines no weights")


class LinkKernel(Kernel):
    """LIME: A(T, L) A(L, E) through the skyline's own projections; the links L [l, d] are all there is to fit."""

    def __init__(self, skyline: Skyline, links: Tensor) -> None:
        super().__init__()
        self.skyline = skyline
        self.links = nn.Parameter(links.clone())
        self.rank = len(links)

    def forward(self, attention: Attention) -> Tensor:
        """A(T, L) A(L, E)."""
        to_links = softmax_scores(attention.queries, self.skyline.keys_of(self.links))
        return to_links @ softmax_scores(self.skyline.queries_of(self.links), attention.keys)


class ProjectedLinkKernel(Kernel):
    """LIME with projections of its own in each stage: keys and queries of the links [H, l, a], fitted freely."""

    def __init__(self, skyline: Skyline, links: Tensor) -> None:
        super().__init__()
        with torch.no_grad():
            self.link_keys = nn.Parameter(skyline.keys_of(links).clone())
            self.link_queries = nn.Parameter(skyline.queries_of(links).clone())
        self.rank = len(links)

    def forward(self, attention: Attention) -> Tensor:
        """The same, with the fitted keys and queries."""
        to_links = softmax_scores(attention.queries, self.link_keys)
        return to_links @ softmax_scores(self.link_queries, attention.keys)


class NystromKernel(Kernel):
    """A(T, L) A(L, L)^+ A(L, E), landmarks L: with as many landmarks as events, and those, it is A(T, E) itself."""

    def __init__(self, skyline: Skyline, landmarks: Tensor) -> None:
        super().__init__()
        self.rank = len(landmarks)
        with torch.no_grad():
            self.landmark_keys, self.landmark_queries = skyline.keys_of(landmarks), skyline.queries_of(landmarks)
            among = softmax_scores(self.landmark_queries, self.landmark_keys).double()
            self.inverse = torch.linalg.pinv(among, rtol=PSEUDO_INVERSE_FLOOR)

    def forward(self, attention: Attention) -> Tensor:
        """A(T, L) A(L, L)^+ A(L, E)."""
        to_landmarks = softmax_scores(attention.queries, self.landmark_keys).double() @ self.inverse
        weights: Tensor = to_landmarks @ softmax_scores(self.landmark_queries, attention.keys).double()
        return weights.float()


class PerformerKernel(Kernel):
    """Positive random features of the softmax kernel, normalized; another draw is another kernel."""

    def __init__(self, attention: Attention, rank: int) -> None:
        super().__init__()
        self.features = RandomFeatures(rank, attention.queries.shape[-1])
        self.rank = rank

    def forward(self, attention: Attention) -> Tensor:
        """f(q) f(k)^T, rows summing to one."""
        requests, _, length, _ = attention.keys.shape
        jagged = attention.keys.transpose(1, 2).flatten(0, 1)
        of_keys = self.features.of_keys(jagged, torch.arange(requests + 1) * length)
        of_queries = self.features.of_queries(attention.queries.transpose(0, 1))
        return normalized(of_queries.transpose(0, 1) @ of_keys.unflatten(0, (requests, length)).permute(0, 2, 3, 1))


class FixedFeatureKernel(Kernel):
    """elu(q) + 1 times elu(k) + 1, normalized, on the skyline's queries and keys: its rank is the width of a head."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.rank = attention.queries.shape[-1]

    def forward(self, attention: Attention) -> Tensor:
        """f(q) f(k)^T, rows summing to one."""
        return normalized(_elu(attention.queries) @ _elu(attention.keys).transpose(-1, -2))


class FeatureKernel(Kernel):
    """The same behind projections of its own [H, r, d], fitted: linear attention with `query_width` H r."""

    def __init__(self, attention: Attention, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.to_queries, self.to_keys = _two_projections(attention, rank)

    def forward(self, attention: Attention) -> Tensor:
        """f(q) f(k)^T, rows summing to one."""
        return normalized(
            _elu(_projected(attention.targets, self.to_queries))
            @ _elu(_projected(attention.events, self.to_keys)).transpose(-1, -2)
        )


class LinformerKernel(Kernel):
    """softmax(Q (P_K K)^T / sqrt(d_a)) P_V, with P [r, N] by position, from means: event p starts in mixture p mod r.

    The ranker starts from sums, which its projections undo; here, where keys are given, means are the better start.
    """

    def __init__(self, attention: Attention, rank: int) -> None:
        super().__init__()
        start = positions_of(rank, attention.keys.shape[-2])
        self.of_keys, self.of_values = nn.Parameter(start), nn.Parameter(start.clone())
        self.rank = rank

    def forward(self, attention: Attention) -> Tensor:
        """A softmax over mixtures, spread over the events they are made of."""
        return softmax_scores(attention.queries, self.of_keys @ attention.keys) @ self.of_values


class LREAKernel(Kernel):
    """Q (P K)^T R / (N sqrt(r)) without a softmax, its own projections [H, r, d], P and R [r, N] by position."""

    def __init__(self, attention: Attention, rank: int) -> None:
        super().__init__()
        length = attention.keys.shape[-2]
        self.to_queries, self.to_keys = _two_projections(attention, rank)
        self.of_keys, self.of_values = (nn.Parameter(positions_of(rank, length)) for _ in range(2))
        self.scale = 1 / (length * rank**0.5)
        self.rank = rank

    def forward(self, attention: Attention) -> Tensor:
        """Of either sign; rows need not sum to one."""
        mixtures = self.of_keys @ _projected(attention.events, self.to_keys)
        scores = _projected(attention.targets, self.to_queries) @ mixtures.transpose(-1, -2)
        weights: Tensor = self.scale * scores @ self.of_values
        return weights


class TruncatedKernel(Kernel):
    """The softmax over the r most recent events; the others get nothing."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def forward(self, attention: Attention) -> Tensor:
        """Zero for all but the last events."""
        length = attention.keys.shape[-2]
        recent = softmax_scores(attention.queries, attention.keys[..., max(0, length - self.rank) :, :])
        return functional.pad(recent, (length - recent.shape[-1], 0))


def normalized(weights: Tensor) -> Tensor:
    """Rows that sum to one."""
    return weights / weights.sum(-1, keepdim=True)


def positions_of(rank: int, length: int) -> Tensor:
    """P [r, N]: mixture m is the mean of positions m, m + r, ...; the newest event, which comes last, is at 0."""
    members = torch.eye(rank).repeat(1, -(-length // rank))[:, :length].flip(1)
    return members / members.sum(1, keepdim=True).clamp(min=1)


def _two_projections(attention: Attention, rank: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Queries and keys from one matrix [H, r, d], as rankers start."""
    heads, width = attention.queries.shape[0], attention.targets.shape[-1]
    start = torch.randn(heads, rank, width) * width**-0.5
    return nn.Parameter(start), nn.Parameter(start.clone())


def _projected(rows: Tensor, matrix: Tensor) -> Tensor:
    """Rows [..., n, d] by a matrix [H, r, d]: [..., H, n, r]."""
    return rows[..., None, :, :] @ matrix.transpose(-1, -2)


def _elu(rows: Tensor) -> Tensor:
    return functional.elu(rows) + 1
