"""The paper's printed formulas against autograd: they are wrong where docs/explanation/xor-attention.md says so.

Every number the page gives about them is recomputed here, and the backward pass it prints is run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from limerank.ops.xor_attention import Activation, xor_attention
from limerank.ops.xor_attention.reference import xor_mask

PAGE = (Path(__file__).parents[2] / "docs/explanation/xor-attention.md").read_text()
EVENTS, LINKS, WIDTH = 12, 5, 4
POINTS = torch.tensor([-6, -4, -2, 0, 2, 4, 6], dtype=torch.float64)


def stacked() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and d_out of one user and head, history first; a stream that numpy promises to keep."""
    numbers = np.random.RandomState(0).standard_normal((4, EVENTS + LINKS, WIDTH))
    queries, keys, values, d_out = torch.from_numpy(numbers)
    return queries, keys, values, d_out


def denominators() -> Tensor:
    """Algorithm 1: the size of the opposite side, for every query."""
    return torch.tensor([LINKS] * EVENTS + [EVENTS] * LINKS, dtype=torch.float64)[:, None]


def true_gradients(activation: str) -> list[Tensor]:
    """d_queries, d_keys and d_values by autograd through the dense mask, scale 1 as in the printed algorithms."""
    *inputs, d_out = stacked()
    queries, keys, values = (tensor.requires_grad_() for tensor in inputs)
    mask = xor_mask(EVENTS, LINKS)
    scores = queries @ keys.T
    if activation == "softmax":
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    else:
        weights = functional.silu(scores).masked_fill(~mask, 0) / denominators()
    return list(torch.autograd.grad(weights @ values, [queries, keys, values], d_out))


def printed_derivative(scores: Tensor, denominator: Tensor | float) -> Tensor:
    """Algorithm 3: s = SiLU(S) / d, then s (1 - s) (1 + S) / d."""
    activated = functional.silu(scores) / denominator
    return activated * (1 - activated) * (1 + scores) / denominator


def true_derivative(scores: Tensor, denominator: Tensor | float) -> Tensor:
    sigma = scores.sigmoid()
    return sigma * (1 + scores * (1 - sigma)) / denominator


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def documented(name: str) -> Any:
    """A function of the page's python blocks."""
    room: dict[str, Any] = {"torch": torch}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        if block.startswith("def "):
            exec(block, room)
    return room[name]


def table_after(heading: str) -> list[list[str]]:
    """The cells of the first table below a line of the page, without its header."""
    lines = PAGE[PAGE.index(heading) :].splitlines()
    first = next(position for position, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_printed_derivative_of_silu_is_not_the_derivative() -> None:
    """Ours equals autograd's; the printed one differs at every point, and the page shows both."""
    points = POINTS.clone().requires_grad_()
    (expected,) = torch.autograd.grad(functional.silu(points).sum(), points)
    ours, printed = true_derivative(POINTS, 1), printed_derivative(POINTS, 1)
    torch.testing.assert_close(ours, expected)
    assert ((printed - expected).abs() > 0.05).all()
    for (point, shown_true, shown_printed), *values in zip(
        table_after("Derivative of SiLU"), POINTS, expected, printed, strict=True
    ):
        assert float(point) == values[0]
        assert float(shown_true) == pytest.approx(float(values[1]), abs=6e-4)
        assert float(shown_printed) == pytest.approx(float(values[2]), abs=6e-2)


def test_the_printed_gradients_of_algorithm_3_are_wrong() -> None:
    """As printed, with only the derivative repaired, and ours; relative errors as the page gives them."""
    queries, keys, values, d_out = stacked()
    _, d_keys, d_values = true_gradients("silu")
    mask, scores = xor_mask(EVENTS, LINKS), queries @ keys.T
    printed = printed_derivative(scores, denominators()).masked_fill(~mask, 0)
    repaired = true_derivative(scores, denominators()).masked_fill(~mask, 0)
    activated = (functional.silu(scores) / denominators()).masked_fill(~mask, 0)
    found = {
        "as printed": (printed.T @ d_out, printed.T @ queries),
        "derivative repaired only": (repaired.T @ d_out, repaired.T @ queries),
        "corrected": (activated.T @ d_out, (repaired * (d_out @ values.T)).T @ queries),
    }
    shown = {name: (float(dv), float(dk)) for name, dv, dk in table_after("Relative error of the printed gradients")}
    assert set(shown) == set(found)
    for name, (of_values, of_keys) in found.items():
        errors = relative_error(of_values, d_values), relative_error(of_keys, d_keys)
        assert errors == pytest.approx(shown[name], abs=6e-3), name
        assert all(error < 1e-14 if name == "corrected" else error > 0.5 for error in errors), name


def test_the_printed_gradient_of_the_queries_has_the_wrong_shape() -> None:
    """(dO V^T) S^T of a block of queries and a block of keys is queries x queries, not queries x width."""
    queries, keys, values, d_out = stacked()
    queries, d_out, keys, values = queries[:3], d_out[:3], keys[EVENTS:], values[EVENTS:]
    block = printed_derivative(queries @ keys.T, LINKS)
    assert ((d_out @ values.T) @ block.T).shape == (3, 3)
    assert queries.shape == (3, WIDTH)


@pytest.mark.parametrize("activation", ["silu", "softmax"])
def test_the_documented_backward_is_the_gradient(activation: Activation) -> None:
    """The page's code and the op, both directions, against autograd through the dense mask."""
    queries, keys, values, d_out = stacked()
    history, links = slice(0, EVENTS), slice(EVENTS, EVENTS + LINKS)
    expected = true_gradients(activation)
    for asking, answering in ((links, history), (history, links)):
        sides = queries[asking], keys[answering], values[answering]
        if activation == "silu":
            found = documented("silu_backward")(*sides, d_out[asking], scale=1.0, factor=1 / len(sides[1]))
        else:
            scores = sides[0] @ sides[1].T
            lse, out = scores.logsumexp(-1), scores.softmax(-1) @ sides[2]
            found = documented("softmax_backward")(*sides, out, lse, d_out[asking], scale=1.0)
        for got, whole, rows in zip(found, expected, (asking, answering, answering), strict=True):
            torch.testing.assert_close(got, whole[rows], rtol=1e-12, atol=1e-12)

    parts = [tensor[side, None].clone() for side in (history, links) for tensor in (queries, keys, values)]
    parts[3:] = [part[None] for part in parts[3:]]
    inputs = [part.requires_grad_() for part in parts]
    q_s, k_s, v_s, q_t, k_t, v_t = inputs
    bounds = torch.tensor([0, EVENTS])
    out_s, out_t = xor_attention(q_s, k_s, v_s, q_t, k_t, v_t, bounds, activation=activation, scale=1.0)
    gradients = torch.autograd.grad([out_s, out_t], inputs, [d_out[history, None], d_out[None, links, None]])
    for got_s, got_t, whole in zip(gradients[:3], gradients[3:], expected, strict=True):
        torch.testing.assert_close(torch.cat([got_s[:, 0], got_t[0, :, 0]]), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("activation", "right"), [("silu", True), ("softmax", False)])
def test_the_appendix_gradient_of_values_holds_for_elementwise_activations_only(activation: str, right: bool) -> None:
    """dV[T] = phi(K[T] Q[S]^T) dO[S] transposes the argument of phi; a row softmax must be transposed as a whole."""
    queries, keys, _, d_out = stacked()
    asking, answering = queries[:EVENTS], keys[EVENTS:]
    scores = answering @ asking.T
    weights = scores.softmax(-1) if activation == "softmax" else functional.silu(scores) / LINKS
    error = relative_error(weights @ d_out[:EVENTS], true_gradients(activation)[2][EVENTS:])
    assert (error < 1e-14) == right
    if not right:
        shown = re.search(r"relative error of the appendix's softmax dV is (\d\.\d\d)", " ".join(PAGE.split()))
        assert shown is not None
        assert error == pytest.approx(float(shown[1]), abs=6e-3)


def test_the_appendix_gradients_of_queries_and_keys_have_the_wrong_shape() -> None:
    """K V^T phi' dO and Q V^T phi' dO compose, but to the rows of the links, whatever is differentiated."""
    queries, keys, values, d_out = stacked()
    (q_s, q_t), (k_s, k_t), (v_s, v_t), (d_s, d_t) = (
        (tensor[:EVENTS], tensor[EVENTS:]) for tensor in (queries, keys, values, d_out)
    )
    d_q_s = k_t @ v_t.T @ true_derivative(k_t @ q_s.T, 1) @ d_s
    d_k_s = q_t @ v_s.T @ true_derivative(k_s @ q_t.T, 1) @ d_t
    assert d_q_s.shape == d_k_s.shape == (LINKS, WIDTH)
    assert q_s.shape == k_s.shape == (EVENTS, WIDTH)


def test_the_printed_mask_keeps_what_it_should_remove() -> None:
    """AND keeps history x history and nothing else; XOR keeps the two blocks between history and links."""
    is_source = torch.arange(EVENTS + LINKS) < EVENTS
    printed = is_source[:, None] & is_source
    assert printed[:EVENTS, :EVENTS].all()
    assert printed.sum() == EVENTS**2
    right = xor_mask(EVENTS, LINKS)
    assert not (right & printed).any()
    assert right.sum() == 2 * EVENTS * LINKS


def test_a_mask_after_the_softmax_loses_weight() -> None:
    """phi(Q K^T) * M keeps masked keys in the denominator: no row sums to one."""
    queries, keys, _, _ = stacked()
    mask = xor_mask(EVENTS, LINKS)
    printed = (queries @ keys.T).softmax(-1) * mask
    right = (queries @ keys.T).masked_fill(~mask, -torch.inf).softmax(-1)
    assert (printed.sum(1) < 0.99).all()
    torch.testing.assert_close(right.sum(1), torch.ones(EVENTS + LINKS, dtype=torch.float64))


def test_zero_padding_is_harmless_for_silu_only() -> None:
    """Algorithm 2 has no tail mask: a padded key adds SiLU(0) = 0 to a sum, but exp(0) = 1 to a denominator."""
    queries, keys, values, _ = (tensor[:EVENTS] for tensor in stacked())
    padded_keys, padded_values = (functional.pad(tensor, (0, 0, 0, 4)) for tensor in (keys, values))
    silu, padded_silu = functional.silu(queries @ keys.T), functional.silu(queries @ padded_keys.T)
    torch.testing.assert_close(padded_silu @ padded_values, silu @ values)
    softmax, padded_softmax = (queries @ keys.T).softmax(-1), (queries @ padded_keys.T).softmax(-1)
    mass = (queries @ keys.T).exp().sum(-1, keepdim=True)
    shrunk = softmax @ values * (mass / (mass + 4))  # four padded keys
    torch.testing.assert_close(padded_softmax @ padded_values, shrunk)


def test_events_hear_of_each_other_after_two_layers_and_links_after_three() -> None:
    """Another event changes a row's state from layer 2 on; so what links read of it changes in layer 3."""
    events, links = (torch.from_numpy(part) for part in np.split(np.random.RandomState(1).standard_normal((8, 4)), [5]))

    def rows_after(layers: int, last_event: float) -> Tensor:
        source, target = events.clone(), links.clone()
        source[-1] = last_event
        for _ in range(layers):
            s, t = source[:, None], target[None, :, None]
            out_s, out_t = xor_attention(s, s, s, t, t, t, torch.tensor([0, len(s)]))
            source, target = source + out_s[:, 0], target + out_t[0, :, 0]  # both read the old states
        return source[:-1]

    for layers, hears in ((1, False), (2, True)):
        assert torch.equal(rows_after(layers, 0.0), rows_after(layers, 3.0)) == (not hears)
