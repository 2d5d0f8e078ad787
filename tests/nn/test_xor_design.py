"""XOR layers of every design against dense attention under the mask of the paper's Algorithm 1."""

from __future__ import annotations

import itertools
from itertools import pairwise
from typing import Any

import pytest
import torch
from dense_lime import EXACT, dense_layer, dense_stack, shaken, walk_short_histories
from torch import Tensor

from limerank.errors import ArgumentError
from limerank.nn.layers.xor import XorDesign, XorLayer, XorStack, history_weights
from limerank.ops.xor_attention import joined

WIDTH, HEADS, LINKS = 16, 2, 5
LENGTHS = [3, 0, 1, 40, 9]
DESIGNS = [
    XorDesign(
        activation=activation,  # type: ignore[arg-type]
        normalizer=normalizer,  # type: ignore[arg-type]
        output=output,  # type: ignore[arg-type]
        uvqk_activation=activated,  # type: ignore[arg-type]
        order=order,  # type: ignore[arg-type]
        scale=scale,
        query_width=query_width,
    )
    for (activation, normalizer), output, activated, order, (scale, query_width) in itertools.product(
        [("silu", "length"), ("silu", "none"), ("softmax", "length")],
        ["gated", "concat"],
        ["u", "all"],
        ["jacobi", "gauss-seidel"],
        [(None, None), (1.0, None), (None, 8), (0.3, 24)],
    )
]


def name_of(design: XorDesign) -> str:
    parts = (design.activation, design.normalizer, design.output, design.uvqk_activation, design.order)
    return "-".join((*parts, str(design.scale), str(design.query_width)))


def states(lengths: list[int], links: int = LINKS, width: int = WIDTH, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Histories end to end, links of each user, offsets; fp64."""
    generator = torch.Generator().manual_seed(seed)
    sources = torch.randn(sum(lengths), width, generator=generator, dtype=torch.float64)
    targets = torch.randn(len(lengths), links, width, generator=generator, dtype=torch.float64)
    return sources, targets, torch.tensor([0, *lengths]).cumsum(0)


def stack_of(design: XorDesign, layers: int) -> XorStack:
    torch.manual_seed(0)
    stack = shaken(XorStack(WIDTH, HEADS, layers, design))
    assert isinstance(stack, XorStack)
    return stack


@pytest.mark.parametrize("design", DESIGNS, ids=name_of)
def test_a_layer_is_dense_attention_under_the_mask(design: XorDesign) -> None:
    """History and links after one layer; users with no, one and several events, each for itself."""
    (layer,) = stack_of(design, 1).layers
    assert isinstance(layer, XorLayer)
    sources, links, offsets = states(LENGTHS)
    got_sources, got_links = layer(sources, links, offsets)
    expected = [
        dense_layer(layer, sources[start:stop], own)
        for (start, stop), own in zip(pairwise(offsets.tolist()), links, strict=True)
    ]
    torch.testing.assert_close(got_sources, torch.cat([history for history, _ in expected]), **EXACT)
    torch.testing.assert_close(got_links, torch.stack([own for _, own in expected]), **EXACT)
    nothing, alone = layer(sources, links, offsets, need_source=False)
    assert nothing is None
    torch.testing.assert_close(alone, got_links, **EXACT)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("design", DESIGNS[::3], ids=name_of)
def test_a_stack_is_layer_after_layer(design: XorDesign, layers: int) -> None:
    """Trained and served, the links of the last layer are those of a stack that computes everything."""
    stack = stack_of(design, layers)
    sources, links, offsets = states(LENGTHS)
    expected = torch.stack(
        [
            dense_stack(stack, sources[start:stop], own)
            for (start, stop), own in zip(pairwise(offsets.tolist()), links, strict=True)
        ]
    )
    torch.testing.assert_close(stack(sources, links, offsets), expected, **EXACT)
    torch.testing.assert_close(stack.infer(sources, links, offsets), expected, **EXACT)


GRADIENT_DESIGNS = [
    XorDesign(),
    XorDesign(activation="softmax"),
    XorDesign(order="gauss-seidel"),
    XorDesign(output="concat", uvqk_activation="all", normalizer="none", query_width=8, scale=1.0),
    XorDesign(output="concat", activation="softmax", order="gauss-seidel", query_width=24),
]


@pytest.mark.parametrize("path", ["head by head", "joined", "walked"])
@pytest.mark.parametrize("design", GRADIENT_DESIGNS, ids=name_of)
def test_gradients_are_those_of_dense_attention(design: XorDesign, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every parameter, of the history and of the links, through three layers, on each path that computes them."""
    if path == "head by head":
        monkeypatch.setattr(joined, "WIDEST", 0)
    if path == "walked":
        walk_short_histories(monkeypatch)
    stack = stack_of(design, 3)
    sources, links, offsets = states(LENGTHS)
    inputs = [sources.requires_grad_(), links.requires_grad_(), *stack.parameters()]
    expected = torch.stack(
        [
            dense_stack(stack, sources[start:stop], own)
            for (start, stop), own in zip(pairwise(offsets.tolist()), links, strict=True)
        ]
    )
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    theirs = torch.autograd.grad(expected, inputs, weights)
    ours = torch.autograd.grad(stack(sources, links, offsets), inputs, weights)
    names = ["sources", "links", *(name for name, _ in stack.named_parameters())]
    for name, one, other in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10, msg=f"gradient of {name} differs")


@pytest.mark.parametrize("walked", [False, True])
@pytest.mark.parametrize("design", GRADIENT_DESIGNS, ids=name_of)
def test_the_history_may_be_a_view(design: XorDesign, walked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows stored column by column, and rows with gaps between them, have the gradient of contiguous ones."""
    if walked:
        walk_short_histories(monkeypatch)
    stack = stack_of(design, 2)
    sources, links, offsets = states(LENGTHS)
    results = []
    for view in (
        sources,
        sources.T.contiguous().T,
        torch.cat([sources, torch.full_like(sources, torch.nan)], 1)[:, :WIDTH],
    ):
        leaf = view.detach().requires_grad_()
        after = stack(leaf, links, offsets)
        results.append((after, *torch.autograd.grad(after.square().sum(), leaf)))
    for other in results[1:]:
        for one, theirs in zip(results[0], other, strict=True):
            torch.testing.assert_close(one, theirs, **EXACT)


def test_history_meets_history_at_the_documented_depth() -> None:
    """An event reaches the states of others after two layers in jacobi order, after one in gauss-seidel's.

    Links read such states one layer later: in the third and in the second.
    """
    sources, links, offsets = states([6])
    changed = sources.clone()
    changed[0] += 1
    for order, expected in (("jacobi", [False, True]), ("gauss-seidel", [True, True])):
        stack = stack_of(XorDesign(order=order), 2)  # type: ignore[arg-type]
        reached = []
        before, after = (sources, links), (changed, links)
        for layer in stack.layers:
            before, after = layer(*before, offsets), layer(*after, offsets)
            reached.append(not torch.equal(before[0][1:], after[0][1:]))
        assert reached == expected


def test_the_normalizer_hardly_matters_behind_a_norm() -> None:
    """Gated, LN follows and removes the factor up to its epsilon; with concat the raw sum is used and grows."""
    sources, links, offsets = states([40])
    differences = {}
    for output in ("gated", "concat"):
        divided, raw = (
            stack_of(XorDesign(normalizer=normalizer, output=output), 1) for normalizer in ("length", "none")
        )
        raw.load_state_dict(divided.state_dict())
        difference = divided(sources, links, offsets) - raw(sources, links, offsets)
        differences[output] = float(difference.detach().abs().max())
    assert differences["gated"] < 0.01
    assert differences["concat"] > 1


def test_dropout_is_for_training_only() -> None:
    """In training it changes results and differs between calls; the design that is served ignores it."""
    stack = stack_of(XorDesign(dropout=0.5), 2)
    plain = stack_of(XorDesign(), 2)
    sources, links, offsets = states(LENGTHS)
    torch.testing.assert_close(stack(sources, links, offsets), plain(sources, links, offsets), **EXACT)
    stack.train()
    first, second = stack(sources, links, offsets), stack(sources, links, offsets)
    assert not torch.allclose(first, second)


def test_only_the_plain_design_streams() -> None:
    """What the fused path does not compute is not sent there."""
    assert XorDesign().fusible
    assert XorDesign(activation="softmax", scale=1.0).fusible
    for other in (
        XorDesign(normalizer="none"),
        XorDesign(output="concat"),
        XorDesign(uvqk_activation="all"),
        XorDesign(order="gauss-seidel"),
    ):
        assert not other.fusible


def test_heads_must_divide_both_widths() -> None:
    for width, query_width in ((15, None), (16, 9)):
        with pytest.raises(ArgumentError, match="cannot be split into 2 heads"):
            XorLayer(width, 2, XorDesign(query_width=query_width))


@pytest.mark.parametrize("activation", ["silu", "softmax"])
def test_weights_over_a_history(activation: Any) -> None:
    """phi of each user's scores by itself; a softmax sums to one, scores of 1000 do not overflow."""
    lengths = [3, 0, 1, 4]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    scores = 300 * torch.randn(8, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = history_weights(scores, offsets, activation)
    for start, stop in pairwise(offsets.tolist()):
        own = scores[start:stop]
        expected = own.softmax(0) if activation == "softmax" else torch.nn.functional.silu(own) / max(len(own), 1)
        torch.testing.assert_close(got[start:stop], expected, **EXACT)
