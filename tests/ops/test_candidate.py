"""Folded and plain scoring are the same product in another order; the cost formula counts both."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

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
