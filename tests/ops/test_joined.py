"""XOR attention with all heads in one product: the same numbers as head by head, and as the mask says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from numeric import assert_three_way, poisoned_buffers
from torch import Tensor
from xor_inputs import NAMES, RESULTS, attend, values_and_gradients, xor_inputs

from limerank.errors import ArgumentError
from limerank.ops.xor_attention import chunked, joined, source_attention

ACTIVATIONS = ("silu", "softmax")
LENGTHS = [0, 1, 7, 64, 255, 256, 257, 0]
LONG = 2049
"""One more than the longest piece: with LENGTHS a batch has users of one, two and several pieces, alone and grouped."""
SHAPES = [
    # links, heads, width of keys, width of values
    (1, 2, 8, 8),
    (3, 4, 16, 8),
    (16, 8, 8, 16),
    (33, 4, 8, 8),
    (33, 2, 16, 16),
]
read: Any = source_attention


def per_head(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(joined, "WIDEST", 0)


def spied(patch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions of `joined` that are called from now on."""
    called: list[str] = []
    for name in ("pool_forward", "pool_backward", "spread_forward", "spread_backward"):
        inner: Callable[..., Any] = getattr(joined, name)

        def outer(*args: Any, name: str = name, inner: Callable[..., Any] = inner) -> Any:
            called.append(name)
            return inner(*args)

        patch.setattr(joined, name, outer)
    return called


def assert_same(got: tuple[Tensor, ...], expected: tuple[Tensor, ...], names: tuple[str, ...] = RESULTS) -> None:
    for name, one, other in zip(names, got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12, msg=f"{name} differs")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("links", "heads", "qk", "value"), SHAPES)
def test_joined_is_head_by_head_and_both_are_the_reference(
    activation: Any, links: int, heads: int, qk: int, value: int
) -> None:
    """fp64, tightly: values and all six gradients, and each path is the one that was asked for."""
    tensors, offsets = xor_inputs(LENGTHS, links=links, heads=heads, qk=qk, value=value)
    expected = values_and_gradients(tensors, offsets, activation=activation, backend="reference")
    with pytest.MonkeyPatch.context() as patch:
        called = spied(patch)
        assert_same(values_and_gradients(tensors, offsets, activation=activation, backend="chunked"), expected)
        fused = activation == "softmax" and qk == value  # PyTorch's own kernel is faster there
        pooled = ["pool_backward"] if fused else ["pool_backward", "pool_forward"]
        assert sorted(called) == [*pooled, "spread_backward", "spread_forward"]
        called.clear()
        per_head(patch)
        assert_same(values_and_gradients(tensors, offsets, activation=activation, backend="chunked"), expected)
        assert not called


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("links", "heads", "qk", "value"), [(3, 2, 8, 16), (33, 4, 8, 8)])
def test_users_of_several_pieces(activation: Any, links: int, heads: int, qk: int, value: int) -> None:
    """Sums that run over several pieces of one user, next to users that share one: fp64, against head by head."""
    lengths = [7, LONG, 0, 1, 256, 64]
    tensors, offsets = xor_inputs(lengths, links=links, heads=heads, qk=qk, value=value)
    got = values_and_gradients(tensors, offsets, activation=activation, backend="chunked")
    assert len([piece for piece in chunked._cut(offsets.tolist(), tensors[3]) if piece.users == slice(1, 2)]) > 1
    with pytest.MonkeyPatch.context() as patch:
        per_head(patch)
        assert_same(got, values_and_gradients(tensors, offsets, activation=activation, backend="chunked"))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_long_history_is_as_the_mask_says(activation: Any) -> None:
    """The reference itself, once, for a history of several pieces."""
    tensors, offsets = xor_inputs([3, LONG], links=3, heads=2, qk=8, value=8)
    expected = values_and_gradients(tensors, offsets, activation=activation, backend="reference")
    assert_same(values_and_gradients(tensors, offsets, activation=activation, backend="chunked"), expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("links", "heads", "qk", "value"), SHAPES)
def test_joined_is_as_exact_as_the_reference(activation: Any, links: int, heads: int, qk: int, value: int) -> None:
    """fp32 by the three-way rule: values at most twice, gradients five times as far from fp64 as the reference."""
    exact, offsets = xor_inputs(LENGTHS, links=links, heads=heads, qk=qk, value=value, seed=3)
    single = [tensor.float() for tensor in exact]
    truth = values_and_gradients([t.double() for t in single], offsets, activation=activation, backend="reference")
    theirs = values_and_gradients(single, offsets, activation=activation, backend="reference")
    ours = values_and_gradients(single, offsets, activation=activation, backend="chunked")
    assert_three_way(ours[:2], theirs[:2], truth[:2], 2, RESULTS[:2])
    assert_three_way(ours[2:], theirs[2:], truth[2:], 5, RESULTS[2:])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layout", ["fused", "heads first", "last first", "every other row", "expanded links"])
def test_inputs_may_be_views(activation: Any, layout: str) -> None:
    """Slices of one uvqk tensor, rows stored head by head, rows with gaps: gradients go to the right places."""
    heads, width = 2, 8
    tensors, offsets = xor_inputs([5, 0, 70, 300, 71], heads=heads, qk=width, value=width, links=3)
    if layout == "fused":
        fused = [torch.cat([part.flatten(-2) for part in tensors[i : i + 3]], -1) for i in (0, 3)]
        views = [part.unflatten(-1, (heads, width)) for one in fused for part in one.split(heads * width, -1)]
    elif layout == "heads first":
        views = [tensor.transpose(0, -2).contiguous().transpose(0, -2) for tensor in tensors]
    elif layout == "last first":
        views = [tensor.transpose(0, -1).contiguous().transpose(0, -1) for tensor in tensors]
    elif layout == "every other row":
        views = [torch.stack([tensor, torch.full_like(tensor, torch.nan)], 1)[:, 0] for tensor in tensors]
    else:
        tensors[3:] = [tensor[:1].expand_as(tensor).contiguous() for tensor in tensors[3:]]
        views = tensors[:3] + [tensor[:1].expand_as(tensor) for tensor in tensors[3:]]
    assert not all(view.is_contiguous() for view in views)
    for view, tensor in zip(views, tensors, strict=True):
        assert torch.equal(view, tensor)
    expected = values_and_gradients(tensors, offsets, activation=activation, backend="reference")
    got = values_and_gradients(views, offsets, activation=activation, backend="chunked")
    assert_same(got, expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nothing_uninitialized_is_read(activation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch and results are full of NaN to begin with, padding included; nothing of it arrives anywhere."""
    tensors, offsets = xor_inputs([*LENGTHS, LONG], heads=4, qk=8, value=8, links=3, dtype=torch.float32)
    expected = values_and_gradients(tensors, offsets, activation=activation, backend="chunked")
    with poisoned_buffers(monkeypatch):
        got = values_and_gradients(tensors, offsets, activation=activation, backend="chunked")
    for name, one, other in zip(RESULTS, got, expected, strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_user_does_not_depend_on_its_batch(activation: Any) -> None:
    """Alone or padded to a neighbor, values and gradients are the same."""
    lengths = [6, 1, 8, 60, 64]
    tensors, offsets = xor_inputs(lengths, heads=4, qk=8, value=8, links=3)
    together = values_and_gradients(tensors, offsets, activation=activation, backend="chunked")
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(one.shape, generator=generator, dtype=torch.float64) for one in together[:2]]
    for user, length in enumerate(lengths):
        rows, own = slice(int(offsets[user]), int(offsets[user + 1])), slice(user, user + 1)
        leaves = [
            tensor[rows if position < 3 else own].clone().requires_grad_() for position, tensor in enumerate(tensors)
        ]
        out = attend(*leaves, torch.tensor([0, length]), activation=activation, backend="chunked")
        gradients = torch.autograd.grad(out, leaves, [weights[0][rows], weights[1][own]])
        parts = [rows, own, rows, rows, rows, own, own, own]
        assert_same((*out, *gradients), tuple(one[part] for one, part in zip(together, parts, strict=True)))


def test_scores_far_below_zero_next_to_padding() -> None:
    """A padded row's score of 0 is far above a user's own of -200; it must get no weight, and no gradient be NaN."""
    tensors, offsets = xor_inputs([2, 3], links=2, heads=2, qk=4, value=4)
    tensors[1].mul_(0.01).add_(10)
    tensors[3].fill_(-10)
    expected = values_and_gradients(tensors, offsets, activation="softmax", backend="reference")
    assert_same(values_and_gradients(tensors, offsets, activation="softmax", backend="chunked"), expected)


def test_which_heads_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several heads, none wider than WIDEST, in a type that is computed in; everything else goes head by head."""

    def decides(heads: int, *widths: int, dtype: torch.dtype = torch.float32) -> bool:
        return joined.joins(*(torch.zeros(1, 2, heads, width, dtype=dtype) for width in widths))

    assert decides(4, 16, 16)
    assert decides(2, 8, 16, dtype=torch.float64)
    assert not decides(1, 8, 8)
    assert not decides(4, 17, 8)
    assert not decides(4, 8, 17)
    assert not decides(4, 8, 8, dtype=torch.bfloat16)
    monkeypatch.setattr(joined, "WIDEST", 32)
    assert decides(4, 17, 32)


def test_blocks_of_a_block_diagonal_matrix_are_its_links() -> None:
    """Zero outside the blocks, and the two functions undo each other."""
    links = torch.randn(3, 5, 2, 4, generator=torch.Generator().manual_seed(0))
    matrix = joined.block_diagonal(links)
    assert matrix.shape == (3, 10, 8)
    assert torch.equal(joined.blocks_of(matrix, 2), links.transpose(1, 2))
    for user in range(3):
        assert torch.equal(matrix[user], torch.block_diag(links[user, :, 0], links[user, :, 1]))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("backend", ["reference", "chunked", "auto"])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_source_attention_is_one_direction_of_xor_attention(activation: Any, backend: Any, scale: float | None) -> None:
    """out_s and the gradients of q_s, k_t and v_t; what links would read plays no part. Empty users included."""
    tensors, offsets = xor_inputs([0, 5, 70, 300, 0], links=3, qk=8, value=12)
    for width in (0, joined.WIDEST):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(joined, "WIDEST", width)
            own = [tensors[position].clone().requires_grad_() for position in (0, 4, 5)]
            out = read(*own, offsets, activation=activation, scale=scale, backend=backend)
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        expected, _ = attend(*leaves, offsets, activation=activation, scale=scale, backend="reference")
        theirs = torch.autograd.grad(expected, [leaves[position] for position in (0, 4, 5)], weights)
        names = ("out_s", "d_q_s", "d_k_t", "d_v_t")
        assert_same((out, *torch.autograd.grad(out, own, weights)), (expected, *theirs), names)
    with torch.no_grad():
        torch.testing.assert_close(
            read(tensors[0], *tensors[4:], offsets, activation=activation, scale=scale, backend=backend), expected
        )


def test_source_attention_without_any_event() -> None:
    """Nobody has a history: no rows, and gradients of zero."""
    q_s, k_t, v_t = (xor_inputs([0, 0])[0][position].requires_grad_() for position in (0, 4, 5))
    for backend in ("reference", "chunked"):
        out = read(q_s, k_t, v_t, torch.tensor([0, 0, 0]), backend=backend)
        assert out.shape == (0, 4, 12)
        if out.requires_grad:
            assert not torch.autograd.grad(out.sum(), v_t, allow_unused=True)[0].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(k_t=a["k_t"][..., :7]), r"k_t \[2, 4, 2, 7\] does not fit q_s \[5, 2, 8\].*7 and 8"),
        (lambda a: a.update(k_t=a["k_t"][:, :, :1]), r"k_t \[2, 4, 1, 8\] does not fit q_s \[5, 2, 8\]"),
        (lambda a: a.update(v_t=a["v_t"][:, :3]), r"v_t \[2, 3, 2, 6\] does not fit k_t \[2, 4, 2, 8\]"),
        (lambda a: a.update(q_s=a["q_s"][0]), r"q_s must be \[sum_n, H, a\], but has shape \[2, 8\]"),
        (lambda a: a.update(q_s=3), r"q_s must be a tensor \[sum_n, H, a\], not int"),
        (lambda a: a.update(k_t=a["k_t"][:, :0], v_t=a["v_t"][:, :0]), r"at least one link.*k_t \[2, 0, 2, 8\]"),
        (lambda a: a.update(v_t=a["v_t"][..., :0]), r"at least one link.*v_t \[2, 4, 2, 0\]"),
        (lambda a: a.update(v_t=a["v_t"].double()), "v_t is torch.float64, but q_s is torch.float32"),
        (lambda a: a.update(k_t=a["k_t"].to("meta")), "k_t is on meta, but q_s on cpu"),
        (lambda a: a.update(offsets=torch.tensor([0, 5])), r"offsets \[2\] must have one entry more.*2 \+ 1 = 3"),
        (lambda a: a.update(offsets=torch.tensor([0, 2, 4])), "end at the number of source rows, 5, but end at 4"),
        (lambda a: a.update(scale=float("inf")), "scale must be a finite number, not inf"),
        (lambda a: a.update(scale=torch.tensor(0.5)), "scale must be a number, not Tensor"),
        (lambda a: a.update(activation="sofmax"), "activation: no 'sofmax'; did you mean 'softmax'?"),
        (lambda a: a.update(backend="refrence"), "no backend 'refrence'; did you mean 'reference'?"),
        (lambda a: a["q_s"].view(-1)[3].fill_(torch.nan), r"q_s \[.*holds 1 values that are not finite.*: nan"),
        (lambda a: a["v_t"].view(-1)[3].fill_(torch.inf), r"v_t \[.*holds 1 values that are not finite.*: inf"),
    ],
)
def test_bad_input_of_source_attention_names_the_argument(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    """Every mistake is an error that says which argument and how it does not fit."""
    tensors, offsets = xor_inputs([2, 3], links=4, heads=2, qk=8, value=6, dtype=torch.float32)
    named = dict(zip(NAMES, tensors, strict=True))
    arguments: dict[str, Any] = {name: named[name] for name in ("q_s", "k_t", "v_t")} | {"offsets": offsets}
    change(arguments)
    for backend in {arguments.pop("backend", None)} - {None} or {"reference", "chunked"}:
        with pytest.raises(ArgumentError, match=message):
            read(**arguments, backend=backend)


class _Reader(torch.nn.Module):
    def forward(self, q_s: Tensor, k_t: Tensor, v_t: Tensor, offsets: Tensor) -> Tensor:
        return source_attention(q_s * 2, k_t, v_t, offsets, activation="softmax") + 1


def test_export_and_compile_see_through_source_attention() -> None:
    """A program with free numbers of rows and users holds the op; a compiled one has its gradients."""
    tensors, offsets = xor_inputs([3, 5], dtype=torch.float32)
    rows, users = torch.export.Dim("rows", min=2), torch.export.Dim("users", min=2)
    shapes = {"q_s": {0: rows}, "k_t": {0: users}, "v_t": {0: users}, "offsets": {0: users + 1}}
    example = (tensors[0], *tensors[4:], offsets)
    program = torch.export.export(_Reader(), example, dynamic_shapes=shapes, strict=False)
    assert "limerank.xor_spread.default" in {str(node.target) for node in program.graph.nodes}
    compiled: Any = torch.compile(_Reader(), fullgraph=True, backend="aot_eager", dynamic=True)
    others, other_offsets = xor_inputs([0, 9, 70], dtype=torch.float32, seed=5)
    own = [others[position].clone().requires_grad_() for position in (0, 4, 5)]
    expected = _Reader()(*own, other_offsets)
    torch.testing.assert_close(program.module()(*own, other_offsets), expected)
    got = compiled(*own, other_offsets)
    torch.testing.assert_close(got, expected)
    for one, other in zip(
        torch.autograd.grad(got.square().sum(), own), torch.autograd.grad(expected.square().sum(), own), strict=True
    ):
        torch.testing.assert_close(one, other)
