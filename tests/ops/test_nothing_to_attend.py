"""A history without events: attention gives zeros, and gradients of zero come back to whatever it was given."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from limerank.ops.target_attention import attend_jagged, attend_nothing, attend_one
from limerank.ops.top_events import attend_chosen


def chosen(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return attend_chosen(queries, keys, values, torch.zeros(len(queries), 0, dtype=torch.int64))


def jagged(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return attend_jagged(queries, torch.tensor([0, len(queries)]), keys, values, torch.tensor([0, 0]))


@pytest.mark.parametrize("attend", [attend_nothing, attend_one, chosen, jagged])
def test_a_batch_without_history_is_a_step_of_every_weight(attend: object) -> None:
    """An optimizer passes over weights without a gradient; one request or several must not differ in that."""
    assert callable(attend)
    given = [torch.randn(size, 2, width, requires_grad=True) for size, width in ((3, 4), (0, 4), (0, 5))]
    found = attend(*given)
    assert torch.equal(found, torch.zeros(3, 2, 5))
    for gradient, one in zip(torch.autograd.grad(found.sum(), given), given, strict=True):
        assert torch.equal(gradient, torch.zeros_like(one))
