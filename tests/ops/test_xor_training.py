"""The streamed history side of a SiLU XOR layer equals the layer in plain operators, values and all gradients."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from numeric import assert_three_way
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from limerank.nn.layers.xor import XorDesign, XorLayer, XorStack
from limerank.ops.xor_layer import streams, training

LENGTHS = [
    [700, 0, 1500, 3, 256],
    [training.BLOCK, training.BLOCK],
    [2 * training.BLOCK + 1],
    [0, 0, 300],
    [1],
    [0],
]


def stack(layers: int, width: int = 16, heads: int = 4) -> XorStack:
    """A stack in which every parameter differs from its start, biases included: they matter in a SiLU."""
    torch.manual_seed(0)
    made = XorStack(width, heads, layers).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def inputs(lengths: list[int], width: int = 16, links: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    sources = torch.randn(int(offsets[-1]), width, dtype=torch.float64, requires_grad=True)
    return sources, torch.randn(len(lengths), links, width, dtype=torch.float64, requires_grad=True), offsets


def results(module: XorStack, sources: Tensor, links: Tensor, offsets: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
    """Links after the stack and the gradients of everything."""
    after = module(sources, links, offsets)
    named = {"sources": sources, "links": links, **dict(module.named_parameters())}
    gradients = torch.autograd.grad(after, list(named.values()), cotangent, allow_unused=True)
    found = {name: torch.zeros_like(named[name]) if g is None else g for name, g in zip(named, gradients, strict=True)}
    return {"after": after.detach(), **found}


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_streamed_equals_plain(lengths: list[int], layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories of no, one and several blocks, in fp64 to rounding."""
    module, (sources, links, offsets) = stack(layers), inputs(lengths)
    cotangent = torch.randn(links.shape, dtype=torch.float64)
    found = []
    for worthwhile in (0, 10**9):
        monkeypatch.setattr(training, "WORTHWHILE", worthwhile)
        assert streams(module.layers[0].tensors(), sources, len(links)) is (worthwhile == 0)  # type: ignore[operator]
        found.append(results(module, sources, links, offsets, cotangent))
    for name, value in found[0].items():
        assert torch.allclose(value, found[1][name], rtol=1e-9, atol=1e-9), name


def test_as_exact_as_plain_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """fp32 against fp64 by the three-way rule, for the result and every gradient."""
    module, (sources, links, offsets) = stack(2), inputs([900, 0, 1300])
    cotangent = torch.randn(links.shape, dtype=torch.float64)
    monkeypatch.setattr(training, "WORTHWHILE", 10**9)
    truth = results(module, sources, links, offsets, cotangent)
    rows, own = (one.detach().float().requires_grad_() for one in (sources, links))
    module.float()
    theirs = results(module, rows, own, offsets, cotangent.float())
    monkeypatch.setattr(training, "WORTHWHILE", 0)
    ours = results(module, rows, own, offsets, cotangent.float())
    assert_three_way(list(ours.values()), list(theirs.values()), list(truth.values()), 5, list(ours))


def test_gradients_can_be_taken_twice() -> None:
    """A graph that is kept gives the same gradients again: nothing that was saved is overwritten."""
    module, (sources, links, offsets) = stack(2), inputs([600])
    after = module(sources, links, offsets)
    first = torch.autograd.grad(after.sum(), [sources, links], retain_graph=True)
    second = torch.autograd.grad(after.sum(), [sources, links])
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_a_user_depends_on_nobody_else() -> None:
    """Alone or among others, a user's links are the same numbers."""
    module, (sources, links, offsets) = stack(3), inputs([900, 400, 1100])
    together = module(sources, links, offsets)
    for user, (start, stop) in enumerate(pairwise(offsets.tolist())):
        alone = module(sources[start:stop], links[user : user + 1], torch.tensor([0, stop - start]))
        torch.testing.assert_close(alone[0], together[user], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("design", "width", "heads"),
    [
        (XorDesign(activation="softmax"), 16, 4),
        (XorDesign(output="concat"), 16, 4),
        (XorDesign(order="gauss-seidel"), 16, 4),
        (XorDesign(), 128, 2),
        (XorDesign(), 16, 1),
    ],
    ids=["softmax", "concat", "gauss-seidel", "wide heads", "one head"],
)
def test_other_layers_are_not_streamed(
    design: XorDesign, width: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the walk does not compute, it does not claim: these layers run, and never through it."""

    def refuse(*_: object) -> None:
        raise AssertionError("streamed")

    monkeypatch.setattr("limerank.nn.layers.xor.source_pass", refuse)
    module = XorStack(width, heads, 2, design).double()
    sources, links, offsets = inputs([600], width=width)
    assert torch.isfinite(module(sources, links, offsets)).all()


def test_dropout_is_not_streamed_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the history must be dropped too: the walk, which drops none, is taken only when predicting."""
    walked = []

    def watched(*arguments: Any) -> tuple[Tensor, Tensor]:
        walked.append(arguments[2] is None)  # without keys of links: the last layer, which has nothing to drop
        return training.source_pass(*arguments)

    monkeypatch.setattr("limerank.nn.layers.xor.source_pass", watched)
    module = XorStack(16, 4, 2, XorDesign(dropout=0.5)).double().train()
    sources, links, offsets = inputs([600])
    module(sources, links, offsets)
    assert walked == [True]
    module.eval()(sources, links, offsets)
    assert walked == [True, False, True]


def test_what_watches_operators_sees_the_plain_layer() -> None:
    """Counted work is that of the equation: it does not jump where the walk begins."""

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **kwargs or {})

    module, (sources, links, _) = stack(1), inputs([600])
    layer = module.layers[0]
    assert isinstance(layer, XorLayer)
    assert streams(layer.tensors(), sources, len(links))
    with Watching():  # type: ignore[no-untyped-call]
        assert not streams(layer.tensors(), sources, len(links))
