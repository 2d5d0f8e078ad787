"""The fused XOR layer equals the module's plain forward, absorbed or not, for any number of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numeric import LENGTHS, assert_three_way, poisoned_buffers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from limerank.errors import ArgumentError
from limerank.nn.layers.xor import XorDesign, XorLayer, XorStack
from limerank.ops.cost import absorption
from limerank.ops.dealing import in_order
from limerank.ops.xor_layer import fused, fused_xor_layer, fused_xor_stack
from limerank.ops.xor_layer.chunks import AbsorbedChunks, ProjectedChunks

ACTIVATIONS = ("silu", "softmax")


def stack(
    layers: int = 3,
    width: int = 16,
    heads: int = 4,
    activation: Any = "silu",
    seed: int = 0,
    query_width: int | None = None,
) -> XorStack:
    """A stack in which every parameter differs from its start, norms and biases included."""
    torch.manual_seed(seed)
    design = XorDesign(activation=activation, query_width=query_width)
    made = XorStack(width, heads, layers, design).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made


def inputs(lengths: list[int], links: int = 5, width: int = 16, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    sources = torch.randn(int(offsets[-1]), width, generator=generator, dtype=torch.float64)
    return sources, torch.randn(len(lengths), links, width, generator=generator, dtype=torch.float64), offsets


@pytest.mark.parametrize("absorb", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_fused_equals_plain(layers: int, activation: Any, absorb: bool) -> None:
    """Every awkward history length and both ways to compute, in fp64 to rounding."""
    module = stack(layers, activation=activation)
    sources, links, offsets = inputs([*LENGTHS, 2 * fused.CHUNK + 1])
    with torch.no_grad():
        expected = module(sources, links, offsets)
        weights = [layer.tensors() for layer in module.layers]  # type: ignore[operator]
        bounds = offsets.tolist()
        for user, own in enumerate(links):
            rows = sources[bounds[user] : bounds[user + 1]]
            untouched = rows.clone()
            got = fused_xor_stack(rows, own, weights, absorb=absorb)
            torch.testing.assert_close(got, expected[user], rtol=1e-9, atol=1e-10)
            assert torch.equal(rows, untouched), "the caller's history must not change"


@pytest.mark.parametrize("absorb", [True, False, None])
@pytest.mark.parametrize("query_width", [4, 16, 80])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_queries_and_keys_may_be_of_another_width(activation: Any, query_width: int, absorb: bool | None) -> None:
    """Narrower and wider than d, the scale by their own width; the last layer too, which has no keys of its own."""
    module = stack(2, activation=activation, query_width=query_width)
    sources, links, offsets = inputs([40])
    weights = module.tensors()
    assert [len(weights[0].part(name)[1]) for name in "UVQK"] == [16, 16, query_width, query_width]
    with torch.no_grad():
        expected = module(sources, links, offsets)[0]
        got = fused_xor_stack(sources, links[0], weights, absorb=absorb)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)


def test_wide_queries_and_keys_are_absorbed_and_narrow_ones_are_not() -> None:
    """By counted work: with H * l = 128 against d = 256 the usual width absorbs, and so does any wider one."""
    for query_width, absorbed in ((16, False), (256, True), (4096, True)):
        weights = stack(1, width=256, heads=4, query_width=query_width).tensors()[0]
        assert fused._absorbs(weights, links=32, history=1024) is absorbed


@pytest.mark.parametrize("absorb", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_parts_of_a_history_are_independent_works(activation: Any, absorb: bool, monkeypatch: Any) -> None:
    """Whoever does them, in whatever order: the same bits; and to rounding those of a history in one part."""
    monkeypatch.setattr(fused, "CHUNK", 4)
    monkeypatch.setattr(fused, "PART", 8)
    module, (sources, links, _) = stack(3, activation=activation), inputs([43])
    weights = [layer.tensors() for layer in module.layers]  # type: ignore[operator]
    dealt: list[int] = []

    def backwards(works: Sequence[Callable[[], Any]]) -> list[Any]:
        dealt.append(len(works))
        return [work() for work in reversed(works)][::-1]

    with ThreadPoolExecutor(3) as threads:
        results = [
            fused_xor_stack(sources, links[0], weights, absorb=absorb, deal=deal)
            for deal in (in_order, backwards, lambda works: list(threads.map(lambda work: work(), works)))
        ]
    assert dealt == [6, 6, 6]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    monkeypatch.setattr(fused, "CHUNK", 43)
    whole = fused_xor_stack(sources, links[0], weights, absorb=absorb, deal=backwards)
    assert dealt == [6, 6, 6], "a short history is nobody else's work"
    torch.testing.assert_close(results[0], whole, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_infer_is_as_exact_as_forward(activation: Any) -> None:
    """fp32 against fp64 by the three-way rule, at a size where absorption pays for the long history only."""
    module, (sources, links, offsets) = stack(3, 32, 2, activation), inputs([0, 4, 3000], links=4, width=32)
    choice = absorption(links=4, heads=2, width=32)
    assert choice.pays(history=3000)
    assert not choice.pays(history=4)
    with torch.no_grad():
        truth = module(sources, links, offsets)
        single = module.float()
        theirs = single(sources.float(), links.float(), offsets)
        ours = single.infer(sources.float(), links.float(), offsets)
    assert_three_way([ours], [theirs], [truth], 2, ["links"])


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    links=st.integers(1, 9),
    heads=st.sampled_from([1, 2, 4]),
    layers=st.integers(1, 3),
    activation=st.sampled_from(ACTIVATIONS),
    chunk=st.sampled_from([1, 7, 64]),
    absorb=st.booleans(),
)
def test_any_shape_in_any_chunks(
    lengths: list[int], links: int, heads: int, layers: int, activation: Any, chunk: int, absorb: bool
) -> None:
    module, (sources, own, offsets) = stack(layers, 8, heads, activation), inputs(lengths, links, 8)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(fused, "CHUNK", chunk)
        expected = module(sources, own, offsets)
        bounds = offsets.tolist()
        weights = [layer.tensors() for layer in module.layers]  # type: ignore[operator]
        for user in range(len(own)):
            rows = sources[bounds[user] : bounds[user + 1]]
            got = fused_xor_stack(rows, own[user], weights, absorb=absorb)
            torch.testing.assert_close(got, expected[user], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("absorb", [True, False])
def test_one_layer_updates_the_history_too(absorb: bool) -> None:
    """`out` receives the rows after the layer, also in place."""
    layer = stack(1).layers[0]
    assert isinstance(layer, XorLayer)
    sources, links, offsets = inputs([700])
    with torch.no_grad():
        rows, after = layer(sources, links, offsets)
        out = torch.empty_like(sources)
        got = fused_xor_layer(sources, links[0], layer.tensors(), out=out, absorb=absorb)
        torch.testing.assert_close(out, rows, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(got, after[0], rtol=1e-9, atol=1e-10)
        fused_xor_layer(sources, links[0], layer.tensors(), out=sources, absorb=absorb)
        torch.testing.assert_close(sources, rows, rtol=1e-9, atol=1e-10)


def test_the_last_layers_history_is_dead_code() -> None:
    """A stack that computes the last source stream as well gives the same links."""
    module, (sources, links, offsets) = stack(2), inputs([30, 4])
    with torch.no_grad():
        rows, after = module.layers[0](sources, links, offsets)
        _, expected = module.layers[1](rows, after, offsets, need_source=True)
        torch.testing.assert_close(module(sources, links, offsets), expected)


def test_history_reaches_history_at_the_third_layer_only() -> None:
    """docs/explanation/xor-attention.md, depth: with fewer layers the links' reading of one event ignores the others.

    An event's influence on what another event contributes is a mixed second derivative through the source stream; with
    one and two layers changing event b leaves the row of event a, as the links read it, unchanged.
    """
    sources, links, offsets = inputs([2])
    changed = sources.clone()
    changed[1] = changed[1].roll(1)
    for layers, expected in ((1, False), (2, True)):
        module = stack(layers + 1)
        with torch.no_grad():
            rows, others, own, moved = sources, changed, links, links
            for layer in module.layers[:layers]:
                rows, own = layer(rows, own, offsets)
                others, moved = layer(others, moved, offsets)
        assert bool((rows[0] - others[0]).abs().max() > 1e-6) is expected


def test_every_parameter_learns_and_links_alone_survive_an_empty_history() -> None:
    """Gradients reach all layers but the last one's unused halves; an empty history leaves finite links."""
    module, (sources, links, offsets) = stack(3).train(), inputs([9, 0, 3])
    module(sources, links, offsets).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    alone = module.infer(sources[:0], links[:1], torch.tensor([0, 0]))
    torch.testing.assert_close(alone, module.eval()(sources[:0], links[:1], torch.tensor([0, 0])))


@pytest.mark.parametrize("absorb", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nothing_uninitialized_is_read(activation: Any, absorb: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module, (sources, links, _) = stack(activation=activation), inputs([700])
    weights = [layer.tensors() for layer in module.layers]  # type: ignore[operator]
    with torch.no_grad():
        expected = fused_xor_stack(sources, links[0], weights, absorb=absorb)
        with poisoned_buffers(monkeypatch):
            assert torch.equal(fused_xor_stack(sources, links[0], weights, absorb=absorb), expected)


@pytest.mark.parametrize("absorb", [True, False])
def test_nothing_of_size_n_by_4d_is_stored(absorb: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one tensor that grows with the history is the residual stream, N x d; the last layer has not even that."""
    module, (sources, links, _) = stack(2), inputs([40 * fused.CHUNK])
    weights = [layer.tensors() for layer in module.layers]  # type: ignore[operator]
    sizes: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for tensor in made if isinstance(made, tuple | list) else (made,):
                if isinstance(tensor, Tensor):
                    sizes.append(tensor.untyped_storage().nbytes())
            return made

    with torch.no_grad(), Watch():  # type: ignore[no-untyped-call]
        fused_xor_stack(sources, links[0], weights, absorb=absorb)
    assert max(sizes) == sources.nbytes
    sizes.clear()
    with torch.no_grad(), Watch():  # type: ignore[no-untyped-call]
        fused_xor_layer(sources, links[0], weights[1], out=None, absorb=absorb)
    grown = sorted(size for size in sizes if size != sources.nbytes)
    assert grown[-1] <= fused.CHUNK * 4 * 16 * 8, "a chunk's projections are the largest buffer"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(sources=a["sources"][:, :9]), r"sources \[6, 9\] does not fit links \[5, 16\]"),
        (lambda a: a.update(links=a["links"][0]), r"links must be \[l, d\], but has shape \[16\]"),
        (lambda a: a.update(links=a["links"].float()), "links is torch.float32, but sources is torch.float64"),
        (lambda a: a.update(out=a["sources"][:3]), r"out \[3, 16\] does not fit sources \[6, 16\]"),
        (lambda a: a["sources"][2, 3].fill_(torch.nan), r"sources \[6, 16\] holds 1 values.*at \[2, 3\]: nan"),
        (
            lambda a: a.update(sources=a["sources"][:, :8], links=a["links"][:, :8]),
            r"sources \[6, 8\] does not fit norm_weight \[16\]",
        ),
    ],
)
def test_bad_input_names_the_argument_and_both_shapes(change: Callable[[dict[str, Any]], object], message: str) -> None:
    layer = stack(1).layers[0]
    assert isinstance(layer, XorLayer)
    sources, links, _ = inputs([6])
    arguments: dict[str, Any] = {"sources": sources, "links": links[0], "weights": layer.tensors(), "out": None}
    change(arguments)
    with torch.no_grad(), pytest.raises(ArgumentError, match=message):
        fused_xor_layer(**arguments)


def test_modules_refuse_what_they_cannot_compute() -> None:
    """An unknown activation, heads that do not divide the width, offsets of other users: before anything runs."""
    with pytest.raises(ArgumentError, match="activation: no 'softmx'; did you mean 'softmax'?"):
        XorStack(16, 4, 2, XorDesign(activation="softmx"))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="width 30 cannot be split into 4 heads"):
        XorStack(30, 4, 2)
    sources, links, offsets = inputs([3, 4])
    with pytest.raises(
        ArgumentError, match=r"offsets \[2\] must have one entry more than there are targets, 2 \+ 1 = 3"
    ):
        stack().infer(sources, links, offsets[:2])
    with pytest.raises(ArgumentError, match=r"offsets must be a tensor \[B \+ 1\], not list"):
        stack().infer(sources, links, offsets.tolist())  # type: ignore[arg-type]


def test_the_cost_formula_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """With absorb=None a long history is absorbed and a short one is not."""
    module, (sources, links, _) = stack(1, 32, 2), inputs([100], links=4, width=32)
    (weights,) = (layer.tensors() for layer in module.layers)  # type: ignore[operator]
    used: list[str] = []
    for kind in (AbsorbedChunks, ProjectedChunks):
        prepare = kind.prepare

        def noted(self: Any, prepare: Any = prepare) -> None:
            used.append(type(self).__name__)
            prepare(self)

        monkeypatch.setattr(kind, "prepare", noted)
    first = absorption(links=4, heads=2, width=32).pays_from
    assert first is not None
    with torch.no_grad():
        for count in (first, first - 1):
            fused_xor_layer(sources[:count], links[0], weights, out=None)
    assert used == ["AbsorbedChunks", "ProjectedChunks"]


def test_training_and_serving_under_autocast() -> None:
    """A stack trains under autocast, and the fused path ignores it."""
    module, (sources, links, offsets) = stack(2, 32, 4).float(), inputs([300], links=32, width=32)
    sources, links = sources.float(), links.float()
    expected = module.infer(sources, links, offsets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module(sources, links, offsets).float().square().mean().backward()
        assert torch.equal(module.infer(sources, links, offsets), expected)
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_half_precision_is_refused() -> None:
    module, (sources, links, offsets) = stack().half(), inputs([3])
    with pytest.raises(ArgumentError, match="sources must be float32 or float64, not torch.float16"):
        module.infer(sources.half(), links.half(), offsets)
