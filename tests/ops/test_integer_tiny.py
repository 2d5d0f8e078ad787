"""Numbers so small that their squares vanish in fp32: bounds hold, and one dead column does not spoil the others."""

from __future__ import annotations

import pytest
import torch
from integer_inputs import hard_store, make_head

from limerank.ops.candidate import RequestHead, RowStore, candidate_logits
from limerank.ops.candidate.integer import IntegerRows, integer_logits


@pytest.mark.parametrize("small", [1e-17, 1e-20, 1e-21, 1e-22, 1e-23])
def test_bounds_hold_for_numbers_whose_squares_vanish(small: float) -> None:
    """A matrix of tiny numbers, and a layer behind it that makes logits of usual size of them."""
    given, head = hard_store("as trained", 500, "fp32"), make_head()
    store = RowStore(given.rows, torch.zeros_like(given.head_part))
    layers = [(weight / small, bias) for weight, bias in head.layers]
    request = RequestHead(head.matrix * small, head.offset * small, layers)
    found = integer_logits(IntegerRows.of(store), request)
    assert found is not None
    logits, bounds = found
    assert ((logits - candidate_logits(store, request)[:, 0]).abs() <= bounds).all()


@pytest.mark.parametrize("small", [1e-19, 1e-22, 1e-25, 1e-28, 1e-33])
def test_a_dead_column_does_not_widen_the_bounds_of_the_others(small: float) -> None:
    """What weight decay leaves of a hidden unit that nothing needs."""
    store, head = hard_store("as trained", 500, "fp16"), make_head()
    alive, dead = head.matrix.clone(), head.matrix.clone()
    alive[:, 3], dead[:, 3] = 0, small * head.matrix[:, 3]
    rows, found = IntegerRows.of(store), []
    for matrix in (alive, dead):
        logits = integer_logits(rows, RequestHead(matrix, head.offset, head.layers))
        assert logits is not None
        found.append(logits[1])
    torch.testing.assert_close(found[1], found[0], rtol=0.1, atol=0)
