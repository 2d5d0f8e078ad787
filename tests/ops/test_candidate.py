"""Folded and plain scoring are the same product in another order; the cost formula counts both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from limerank.errors import ArgumentError
from limerank.ops.candidate import block_diagonal_values, fold_values, scoring_cost, weighted_values

sizes = st.tuples(*(st.integers(1, 6) for _ in range(6)))


@given(sizes)
def test_folded_equals_plain(shape: tuple[int, int, int, int, int, int]) -> None:
    batch, candidates, heads, links, width, hidden = shape
    weights = torch.rand(batch, candidates, heads, links, dtype=torch.float64)
    values = torch.randn(batch, heads, links, width, dtype=torch.float64)
    layer = torch.randn(hidden, heads * width, dtype=torch.float64)
    plain = weighted_values(weights, values) @ layer.T
    folded = weights.flatten(2) @ fold_values(values, layer)
    torch.testing.assert_close(folded, plain, rtol=1e-12, atol=1e-12)
    for request in range(batch):
        one = weights[request].flatten(1) @ block_diagonal_values(values[request]) @ layer.T
        torch.testing.assert_close(one, plain[request], rtol=1e-12, atol=1e-12)


def test_weighted_values_against_explicit_sums() -> None:
    weights, values = torch.rand(1, 2, 3, 4), torch.randn(1, 3, 4, 5)
    out = weighted_values(weights, values)
    for c in range(2):
        expected = torch.cat([sum(weights[0, c, h, i] * values[0, h, i] for i in range(4)) for h in range(3)])  # type: ignore[misc]
        torch.testing.assert_close(out[0, c], expected)


def test_cost_formulas_at_the_papers_sizes() -> None:
    """Industrial sizes are cheaper folded, KuaiRand's wide head is cheaper unfolded."""
    industrial = scoring_cost(heads=4, links=32, value_width=256, hidden=96)
    assert (industrial.folded, industrial.plain) == (24_576, 114_688)
    assert industrial.fold_pays(10_000)
    kuairand = scoring_cost(heads=4, links=16, value_width=32, hidden=512)
    assert (kuairand.folded, kuairand.plain) == (65_536, 36_864)
    assert not kuairand.fold_pays(10_000)


def test_folding_does_not_pay_for_a_handful_of_candidates() -> None:
    cost = scoring_cost(heads=4, links=32, value_width=256, hidden=96)
    assert not cost.fold_pays(1)


def test_shapes_that_do_not_fit_are_named() -> None:
    values, weight = torch.zeros(1, 4, 3, 2), torch.zeros(5, 8)
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: weighted_values(torch.zeros(1, 6, 4, 2), values), r"weights \[1, 6, 4, 2\] does not fit values"),
        (lambda: weighted_values(torch.zeros(1, 6, 4), values), r"weights must be \[B, c, H, l\]"),
        (lambda: weighted_values(torch.zeros(1, 6, 4, 3).double(), values), "values is torch.float32, but weights"),
        (lambda: block_diagonal_values(values), r"values must be \[H, l, v\], but has shape \[1, 4, 3, 2\]"),
        (lambda: fold_values(values, weight[:, :7]), r"weight \[5, 7\] does not fit values \[1, 4, 3, 2\]"),
        (lambda: fold_values(values[0], weight), r"values must be \[B, H, l, v\]"),
    ]
    for call, message in wrong:
        with pytest.raises(ArgumentError, match=message):
            call()


def test_folding_reads_strided_weights() -> None:
    torch.manual_seed(0)
    values, weight = torch.randn(2, 4, 3, 2), torch.randn(8, 5)
    torch.testing.assert_close(fold_values(values, weight.T), fold_values(values, weight.T.contiguous()))
