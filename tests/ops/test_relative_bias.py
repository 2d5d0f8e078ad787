"""Attention with a bias for distance and time: tiles against the whole matrix, and nothing as large as that matrix."""

from __future__ import annotations

from math import floor, log2
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from limerank.ops import groups
from limerank.ops.causal_attention import TIME_BUCKETS, PairBias, attend_history, relative, time_buckets

EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
LENGTHS = (24, 0, 1, 22, 3, 37)
POSITIONS = 12
"""Fewer than the longest history has distances."""


def bucket(age: int) -> int:
    """The definition: half powers of two of seconds, everything under a second in the first."""
    return 0 if age < 1000 else floor(2 * log2(age / 1000)) + 1


def test_buckets_are_half_powers_of_two_of_seconds() -> None:
    ages = [-5, 0, 999, 1000, 1414, 1415, 1999, 2000, 2828, 2829, 3_600_000, 86_400_000, 10**15]
    assert time_buckets(torch.tensor(ages)).tolist() == [min(bucket(age), TIME_BUCKETS - 1) for age in ages]
    assert time_buckets(torch.tensor([1414, 1415])).tolist() == [1, 2]
    assert time_buckets(torch.tensor([1000 * 2**31 - 1, 1000 * 2**31])).tolist() == [TIME_BUCKETS - 2, TIME_BUCKETS - 1]


Rows = tuple[Tensor, Tensor, Tensor]


def random_rows(count: int, queries: int, values: int) -> Rows:
    widths = (queries, queries, values)
    one, two, three = (torch.randn(count, 2, width, dtype=torch.double, requires_grad=True) for width in widths)
    return one, two, three


def inputs(kind: str) -> tuple[Rows, Tensor, PairBias, list[Tensor]]:
    """Queries, keys, values; offsets; a bias; and all that has a gradient. Some events happen at the same time."""
    torch.manual_seed(4)
    count = sum(LENGTHS)
    rows = random_rows(count, 3, 5)
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    times = torch.cat([torch.randint(0, 60, (n,)).cumsum(0) * 700 * (n % 5) for n in LENGTHS])
    position = torch.randn(POSITIONS, dtype=torch.double, requires_grad=True) if "position" in kind else None
    time = torch.randn(TIME_BUCKETS, dtype=torch.double, requires_grad=True) if "time" in kind else None
    bias = PairBias(position, time, times if time is not None else None)
    return rows, offsets, bias, [*rows, *(table for table in (position, time) if table is not None)]


def pair_by_pair(rows: Rows, offsets: Tensor, bias: PairBias, activation: str, scale: float | None = None) -> Tensor:
    """The definition, one history, one event and one pair after the other."""
    queries, keys, values = rows
    factor = queries.shape[-1] ** -0.5 if scale is None else scale
    out = []
    for start, stop in offsets.unfold(0, 2, 1).tolist():
        for i in range(start, stop):
            scores = factor * torch.einsum("ha,nha->nh", queries[i], keys[start : i + 1])
            added = []
            for j in range(start, i + 1):
                own = torch.zeros((), dtype=torch.double)
                if bias.position is not None:
                    own = own + bias.position[min(i - j, POSITIONS - 1)]
                if bias.time is not None and bias.times is not None:
                    own = own + bias.time[bucket(int(bias.times[i] - bias.times[j]))]
                added.append(own)
            scores = scores + torch.stack(added)[:, None]
            weights = scores.softmax(0) if activation == "softmax" else scores * scores.sigmoid() / (stop - start + 1)
            out.append(torch.einsum("nh,nhv->hv", weights, values[start : i + 1]))
    return torch.stack(out)


@pytest.mark.parametrize("activation", ["silu", "softmax"])
@pytest.mark.parametrize("kind", ["position", "time", "position-time"])
def test_tiles_with_a_bias_are_the_definition(
    monkeypatch: pytest.MonkeyPatch, kind: str, activation: Literal["silu", "softmax"]
) -> None:
    """Values and gradients of rows and tables; histories that are empty, single, tied in time, beyond the table."""
    monkeypatch.setattr(relative, "SCORES_PER_TILE", 1)
    monkeypatch.setattr(relative, "FEWEST_QUERIES", 16)
    rows, offsets, bias, parts = inputs(kind)
    found = attend_history(*rows, offsets, activation, bias=bias)
    expected = pair_by_pair(rows, offsets, bias, activation)
    torch.testing.assert_close(found, expected, **EXACT)
    with torch.no_grad():
        torch.testing.assert_close(attend_history(*rows, offsets, activation, bias=bias), expected, **EXACT)
    weights = torch.randn_like(found)
    mine = torch.autograd.grad((found * weights).sum(), parts)
    theirs = torch.autograd.grad((expected * weights).sum(), parts)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, **EXACT)
    alone = torch.cat(
        [
            attend_history(
                rows[0][start:stop],
                rows[1][start:stop],
                rows[2][start:stop],
                torch.tensor([0, stop - start]),
                activation,
                bias=PairBias(bias.position, bias.time, None if bias.times is None else bias.times[start:stop]),
            )
            for start, stop in offsets.unfold(0, 2, 1).tolist()
        ]
    )
    torch.testing.assert_close(alone, found, **EXACT)


@pytest.mark.parametrize("activation", ["silu", "softmax"])
def test_a_scale_multiplies_the_scores_and_not_the_bias(activation: Literal["silu", "softmax"]) -> None:
    rows, offsets, bias, _ = inputs("position-time")
    none = PairBias(torch.zeros(POSITIONS, dtype=torch.double))
    with torch.no_grad():
        found = attend_history(*rows, offsets, activation, 0.3, bias)
        torch.testing.assert_close(found, pair_by_pair(rows, offsets, bias, activation, 0.3), **EXACT)
        plain = attend_history(*rows, offsets, activation, 0.3)
        torch.testing.assert_close(plain, attend_history(*rows, offsets, activation, 0.3, none), **EXACT)


class Largest(TorchDispatchMode):
    """Remembers the most numbers that any tensor had."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [one for one in (out if isinstance(out, tuple | list) else (out,)) if isinstance(one, Tensor)]
        self.numbers = max([self.numbers, *(one.numel() for one in tensors)])
        return out


@pytest.mark.parametrize("activation", ["silu", "softmax"])
def test_a_long_history_never_has_a_matrix_of_all_pairs(
    monkeypatch: pytest.MonkeyPatch, activation: Literal["silu", "softmax"]
) -> None:
    """Neither forward nor backward: no tensor is larger than a tile."""
    monkeypatch.setattr(relative, "SCORES_PER_TILE", 2**14)
    length = 512
    rows = random_rows(length, 4, 4)
    position, time = (torch.randn(n, dtype=torch.double, requires_grad=True) for n in (POSITIONS, TIME_BUCKETS))
    bias = PairBias(position, time, torch.arange(length) * 60_000)
    with Largest() as largest:  # type: ignore[no-untyped-call]
        attend_history(*rows, torch.tensor([0, length]), activation, bias=bias).sum().backward()
    tile = 2 * length * relative.FEWEST_QUERIES
    assert 0 < largest.numbers <= tile < length**2
    assert position.grad is not None
    assert time.grad is not None


def test_groups_are_tested_with_more_than_one() -> None:
    """The lengths above do not all fall in one padded group, nor each in its own."""
    shapes = groups.group_lists(torch.tensor([0, *LENGTHS]).cumsum(0)).shapes
    assert 1 < len(shapes) < len(LENGTHS) - 1
