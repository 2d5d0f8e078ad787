"""A history without events: attention and scans give zeros, and gradients of zero come back to all they were given."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from limerank.ops import groups
from limerank.ops.causal_attention import Activation, attend_history
from limerank.ops.linear_attention import divide_by_last
from limerank.ops.selective_scan import _side_by_side, selective_scan
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


@pytest.mark.parametrize("scan", [selective_scan, _side_by_side])
@pytest.mark.parametrize("lists", [0, 1, 3])
@pytest.mark.parametrize("reads", [True, False])
def test_a_scan_of_no_events(scan: object, lists: int, reads: bool) -> None:
    """Zero states, no rows, and both forms have a gradient of zero for the decays, too."""
    assert callable(scan)
    shapes = [(lists, 0, 3), (lists, 0, 3), (3, 4), (lists, 0, 4), (lists, 0, 4)]
    given = [torch.randn(shape, requires_grad=True) for shape in shapes]
    rows, states = scan(*given[:4], given[4] if reads else None)
    assert torch.equal(states, torch.zeros(lists, 3, 4))
    assert (rows.shape == (lists, 0, 3)) if reads else rows is None
    total = states.sum() + (rows.sum() if reads else 0)
    given = given if reads else given[:4]
    for gradient, one in zip(torch.autograd.grad(total, given), given, strict=True):
        assert torch.equal(gradient, torch.zeros_like(one))


@pytest.mark.parametrize("activation", ["softmax", "silu"])
@pytest.mark.parametrize("lists", [1, 3])
def test_causal_attention_of_no_events(activation: Activation, lists: int) -> None:
    queries, keys, values = given = [torch.randn(0, 2, width, requires_grad=True) for width in (4, 4, 5)]
    found = attend_history(queries, keys, values, torch.zeros(lists + 1, dtype=torch.int64), activation)
    assert found.shape == (0, 2, 5)
    assert all(len(one) == 0 for one in torch.autograd.grad(found.sum(), given))


@pytest.mark.parametrize("lists", [1, 3])
def test_groups_of_no_rows_let_gradients_through(lists: int) -> None:
    rows = torch.randn(0, 2, requires_grad=True)
    cut = groups.group_lists(torch.zeros(lists + 1, dtype=torch.int64))
    back = cut.unpad(cut.pad(rows))
    assert back.shape == rows.shape
    assert torch.autograd.grad(back.sum(), [rows])[0].shape == rows.shape


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_averages_of_nothing_have_a_gradient(kind: torch.dtype) -> None:
    """However large a loss is scaled: what is multiplied by zeros on the way back must be a number."""
    sums = torch.tensor([[0.0, 0.0, 0.0], [2.0, 6.0, 4.0]], dtype=kind, requires_grad=True)
    averages = divide_by_last(sums)
    assert averages.tolist() == [[0.0, 0.0], [0.5, 1.5]]
    (gradient,) = torch.autograd.grad(averages.sum() * 65536, [sums])
    assert bool((gradient * 0 == 0).all())
    assert gradient[1].tolist() == [16384.0, 16384.0, -32768.0]
