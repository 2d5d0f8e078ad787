"""The loss of several tasks: each on the rows whose label is known, gradients included; a missing label is NaN."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from limerank.nn.losses import cross_entropy

NEARLY: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
MISSING = math.nan


def by_loops(logits: list[list[float]], labels: list[list[float]], weights: list[float]) -> float:
    """The definition, entry by entry."""
    total = 0.0
    for task, weight in enumerate(weights):
        terms = [
            math.log1p(math.exp(-row[task])) if label[task] else math.log1p(math.exp(row[task]))
            for row, label in zip(logits, labels, strict=True)
            if not math.isnan(label[task])
        ]
        total += weight * (sum(terms) / len(terms) if terms else 0.0)
    return total / sum(weights)


@settings(max_examples=60)
@given(data=st.data(), rows=st.integers(1, 6), tasks=st.integers(1, 3))
def test_it_is_what_loops_give_and_gradients_are_those_of_finite_differences(
    data: st.DataObject, rows: int, tasks: int
) -> None:
    def matrix(values: st.SearchStrategy[float]) -> list[list[float]]:
        row = st.lists(values, min_size=tasks, max_size=tasks)
        return data.draw(st.lists(row, min_size=rows, max_size=rows))

    logits, labels = matrix(st.floats(-4, 4)), matrix(st.sampled_from([0.0, 1.0, MISSING]))
    weights = data.draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=tasks, max_size=tasks))
    tensor = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    known = torch.tensor(labels, dtype=torch.float64)
    weighed = torch.tensor(weights, dtype=torch.float64)
    loss = cross_entropy(tensor, known, weighed)
    assert float(loss.detach()) == pytest.approx(by_loops(logits, labels, weights), abs=1e-12)
    assert torch.autograd.gradcheck(lambda x: cross_entropy(x, known, weighed), (tensor,))
    (gradient,) = torch.autograd.grad(loss, tensor)
    assert bool((gradient[known.isnan()] == 0).all())


def test_without_missing_labels_and_weights_it_is_the_mean_over_all_entries() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 3, dtype=torch.float64, generator=generator)
    labels = (torch.rand(50, 3, generator=generator) < 0.3).double()
    expected = functional.binary_cross_entropy_with_logits(logits, labels)
    torch.testing.assert_close(cross_entropy(logits, labels), expected, **NEARLY)
    equal = torch.full((3,), 0.25, dtype=torch.float64)
    torch.testing.assert_close(cross_entropy(logits, labels, equal), expected, **NEARLY)


def test_a_task_without_any_label_adds_nothing_and_no_gradient() -> None:
    """Not even when its logits are as large as numbers get; the other task keeps its half."""
    logits = torch.tensor([[0.5, 1e38], [-1.0, -1e38]], requires_grad=True)
    labels = torch.tensor([[1.0, MISSING], [0.0, MISSING]])
    loss = cross_entropy(logits, labels)
    alone = functional.binary_cross_entropy_with_logits(logits[:, 0], labels[:, 0])
    torch.testing.assert_close(loss, alone / 2)
    loss.backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())
    assert bool((logits.grad[:, 1] == 0).all())
    assert bool((logits.grad[:, 0] != 0).all())


def test_a_batch_without_any_label_has_loss_zero() -> None:
    logits = torch.ones(3, 2, requires_grad=True)
    loss = cross_entropy(logits, torch.full((3, 2), MISSING))
    loss.backward()
    assert float(loss.detach()) == 0
    assert logits.grad is not None
    assert bool((logits.grad == 0).all())


def test_no_branch_depends_on_a_value() -> None:
    """It runs where there are no values at all, on the meta device: nothing waits for a GPU."""
    logits, labels = torch.empty(4, 2, device="meta"), torch.empty(4, 2, device="meta")
    assert cross_entropy(logits, labels, torch.empty(2, device="meta")).shape == ()
