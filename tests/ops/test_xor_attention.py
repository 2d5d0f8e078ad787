"""XOR attention: every backend computes what the explicit mask says, forwards and backwards."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numeric import LENGTHS, assert_three_way, poisoned_buffers
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from xor_inputs import NAMES, RESULTS, attend, values_and_gradients, xor_inputs

from limerank.errors import ArgumentError, UnavailableError
from limerank.ops import explain_backends, use_backend, xor_attention
from limerank.ops.xor_attention import backends, chunked
from limerank.ops.xor_attention.pieces import pieces
from limerank.ops.xor_attention.reference import attend_user, xor_mask

ACTIVATIONS = ("silu", "softmax")


def test_the_mask_is_an_exclusive_or() -> None:
    """Sources read targets and targets read sources; nobody reads its own side (erratum: the paper prints AND)."""
    assert xor_mask(2, 3).int().tolist() == [
        [0, 0, 1, 1, 1],
        [0, 0, 1, 1, 1],
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
    ]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_reference_is_the_sum_over_pairs(activation: Any) -> None:
    """The specification against nested loops over rows, heads and pairs."""
    lengths, links, heads, qk, value = [3, 0, 2], 2, 2, 4, 3
    tensors, offsets = xor_inputs(lengths, links=links, heads=heads, qk=qk, value=value)
    q_s, k_s, v_s, q_t, k_t, v_t = tensors
    out_s, out_t = attend(*tensors, offsets, activation=activation, backend="reference")

    def pair(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if not len(keys):
            return torch.zeros(value, dtype=torch.float64)
        scores = [float(query @ key) / qk**0.5 for key in keys]
        if activation == "softmax":
            weights = torch.tensor(scores, dtype=torch.float64).exp()
            weights /= weights.sum()
        else:
            weights = torch.tensor(
                [s / (1 + torch.tensor(-s).exp().item()) for s in scores], dtype=torch.float64
            ) / len(keys)
        return sum(
            (weight * one for weight, one in zip(weights, values, strict=True)), torch.zeros(value, dtype=torch.float64)
        )

    for user, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
        for head in range(heads):
            for link in range(links):
                expected = pair(q_t[user, link, head], k_s[start:stop, head], v_s[start:stop, head])
                torch.testing.assert_close(out_t[user, link, head], expected, rtol=1e-6, atol=1e-7)
            for row in range(start, stop):
                expected = pair(q_s[row, head], k_t[user, :, head], v_t[user, :, head])
                torch.testing.assert_close(out_s[row, head], expected, rtol=1e-6, atol=1e-7)


def test_softmax_agrees_with_flex_attention() -> None:
    """An oracle nobody here wrote: FlexAttention with the XOR as its mask (SiLU cannot be said there)."""
    sources, links, heads, width = 40, 7, 2, 16
    rows = sources + links
    queries, keys, values = torch.randn(3, 1, heads, rows, width, generator=torch.Generator().manual_seed(0))

    def xor(_b: Tensor, _h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query < sources) ^ (key < sources)

    mask = create_block_mask(xor, None, None, rows, rows, device="cpu")
    with pytest.warns(UserWarning, match="flex_attention"):
        expected = flex_attention(queries, keys, values, block_mask=mask)
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (queries, keys, values))
    got = attend_user(q, k, v, sources, "softmax", width**-0.5)
    torch.testing.assert_close(got, expected[0].transpose(0, 1))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("links", "heads", "qk", "value"),
    [(1, 4, 8, 8), (2, 1, 16, 16), (8, 4, 8, 12), (16, 8, 8, 4), (17, 4, 20, 12), (32, 4, 16, 16), (256, 1, 8, 16)],
)
def test_chunked_is_as_exact_as_the_reference(activation: Any, links: int, heads: int, qk: int, value: int) -> None:
    """The three-way rule for values (2x) and gradients (5x), over histories of every awkward length at once."""
    exact, offsets = xor_inputs(LENGTHS, links=links, heads=heads, qk=qk, value=value)
    single = [tensor.float() for tensor in exact]
    truth = values_and_gradients([t.double() for t in single], offsets, activation=activation, backend="reference")
    theirs = values_and_gradients(single, offsets, activation=activation, backend="reference")
    ours = values_and_gradients(single, offsets, activation=activation, backend="chunked")
    assert_three_way(ours[:2], theirs[:2], truth[:2], 2, RESULTS[:2])
    assert_three_way(ours[2:], theirs[2:], truth[2:], 5, RESULTS[2:])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_stored_but_not_accumulated(activation: Any, dtype: torch.dtype) -> None:
    """The three-way rule again, with the reference in the same half precision."""
    exact, offsets = xor_inputs([0, 3, 64, 300], dtype=dtype)
    truth = values_and_gradients([t.double() for t in exact], offsets, activation=activation, backend="reference")
    theirs = values_and_gradients(exact, offsets, activation=activation, backend="reference")
    ours = values_and_gradients(exact, offsets, activation=activation, backend="chunked")
    assert {tensor.dtype for tensor in ours} == {dtype}
    assert_three_way(ours[:2], theirs[:2], truth[:2], 2, RESULTS[:2])
    assert_three_way(ours[2:], theirs[2:], truth[2:], 5, RESULTS[2:])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_by_finite_differences(activation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """fp64 gradcheck of the chunked backend, with a history that needs several chunks."""
    monkeypatch.setattr(chunked, "MOST_ROWS", 2)
    monkeypatch.setattr(chunked, "FEWEST_ROWS", 2)
    tensors, offsets = xor_inputs([0, 5, 1, 1], links=2, heads=2, qk=2, value=1)
    leaves = [tensor.requires_grad_() for tensor in tensors]
    assert torch.autograd.gradcheck(
        lambda *six: attend(*six, offsets, activation=activation, backend="chunked"), leaves
    )
    pooled = [leaves[1], leaves[2], leaves[3]]
    assert torch.autograd.gradcheck(
        lambda k_s, v_s, q_t: xor_attention(
            None, k_s, v_s, q_t, None, None, offsets, activation=activation, need_source=False, backend="chunked"
        )[1],
        pooled,
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    links=st.integers(1, 9),
    heads=st.sampled_from([1, 2, 4]),
    qk=st.integers(1, 9),
    value=st.integers(1, 9),
    rows=st.sampled_from([2, 8, 64]),
    seed=st.integers(0, 99),
)
def test_any_shape_cut_into_any_pieces(
    activation: Any, lengths: list[int], links: int, heads: int, qk: int, value: int, rows: int, seed: int
) -> None:
    """However a batch is cut, values and gradients are those of the reference."""
    tensors, offsets = xor_inputs(lengths, links=links, heads=heads, qk=qk, value=value, seed=seed)
    expected = values_and_gradients(tensors, offsets, activation=activation, backend="reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "MOST_ROWS", rows)
        patch.setattr(chunked, "FEWEST_ROWS", rows)
        got = values_and_gradients(tensors, offsets, activation=activation, backend="chunked")
    for name, one, other in zip(RESULTS, got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12, msg=f"{name} differs")


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(0, 300), max_size=40), rows=st.sampled_from([2, 64, 100]))
def test_pieces_cover_every_row_once(lengths: list[int], rows: int) -> None:
    """Every source row is in exactly one piece, under its own user; no piece holds more than its share of rows."""
    bounds = torch.tensor([0, *lengths]).cumsum(0).tolist()
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.long))
    seen = torch.zeros(bounds[-1], dtype=torch.long)
    for piece in pieces(bounds, rows, torch.device("cpu")):
        numbers = piece.rows_of(torch.arange(1, bounds[-1] + 1)[:, None, None])[..., 0, 0]
        users = piece.links_of(torch.arange(len(lengths)))
        assert numbers.numel() <= max(rows, int(numbers.shape[1]))
        for user, row in zip(users.tolist(), numbers, strict=True):
            real = row[row > 0] - 1
            assert owner[real].eq(user).all()
            seen[real] += 1
    assert seen.eq(1).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_nothing_uninitialized_is_read(activation: Any, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every fresh buffer full of NaN, values and gradients stay the same."""
    tensors, offsets = xor_inputs(LENGTHS, dtype=torch.float32)
    expected = values_and_gradients(tensors, offsets, activation=activation, backend=backend)
    with poisoned_buffers(monkeypatch):
        got = values_and_gradients(tensors, offsets, activation=activation, backend=backend)
    for name, one, other in zip(RESULTS, got, expected, strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_inputs_may_be_views(activation: Any) -> None:
    """Slices of one fused projection, transposed and expanded tensors give the same numbers as contiguous ones."""
    tensors, offsets = xor_inputs([5, 0, 70], heads=2, qk=6, value=6, links=3)
    expected = values_and_gradients(tensors, offsets, activation=activation, backend="chunked")
    fused = torch.stack(tensors[:3], dim=1)
    q_s, k_s, v_s = fused.unbind(1)
    stored_last_first = [tensor.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0) for tensor in tensors[3:]]
    assert not q_s.is_contiguous()
    assert not stored_last_first[0].is_contiguous()
    views = [q_s, k_s, v_s, *stored_last_first]
    for one, other in zip(views, tensors, strict=True):
        assert torch.equal(one, other)
    leaves = [view.requires_grad_() for view in views]
    out = attend(*leaves, offsets, activation=activation, backend="chunked")
    for one, other in zip(out, expected[:2], strict=True):
        torch.testing.assert_close(one, other)
    gradients = torch.autograd.grad([o.sum() for o in out], leaves)
    plain_leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    plain = attend(*plain_leaves, offsets, activation=activation, backend="chunked")
    for one, other in zip(gradients, torch.autograd.grad([o.sum() for o in plain], plain_leaves), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_a_user_does_not_see_the_batch(activation: Any, backend: Any) -> None:
    """Alone, or next to others in any order: the same values to rounding; the normalizer is the user's own length."""
    tensors, offsets = xor_inputs(LENGTHS)
    options: dict[str, Any] = {"activation": activation, "backend": backend}
    out_s, out_t = attend(*tensors, offsets, **options)
    for user, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
        own = [t[start:stop] for t in tensors[:3]] + [t[user : user + 1] for t in tensors[3:]]
        alone_s, alone_t = attend(*own, torch.tensor([0, stop - start]), **options)
        torch.testing.assert_close(out_s[start:stop], alone_s, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(out_t[user], alone_t[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_order_of_the_history_only_moves_its_rows(activation: Any, backend: Any) -> None:
    """Permuting the sources permutes out_s and leaves out_t: XOR attention has no positions."""
    tensors, offsets = xor_inputs([300])
    order = torch.randperm(300, generator=torch.Generator().manual_seed(3))
    options: dict[str, Any] = {"activation": activation, "backend": backend}
    out_s, out_t = attend(*tensors, offsets, **options)
    moved_s, moved_t = attend(*(t[order] for t in tensors[:3]), *tensors[3:], offsets, **options)
    torch.testing.assert_close(moved_s, out_s[order])
    torch.testing.assert_close(moved_t, out_t)


@pytest.mark.parametrize("backend", ["reference", "chunked"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_last_layer_needs_no_source(activation: Any, backend: Any) -> None:
    """need_source=False gives the same out_t, without q_s, k_t and v_t."""
    (q_s, k_s, v_s, q_t, k_t, v_t), offsets = xor_inputs([4, 0, 90])
    _, full = xor_attention(q_s, k_s, v_s, q_t, k_t, v_t, offsets, activation=activation, backend=backend)
    source, pruned = xor_attention(
        None, k_s, v_s, q_t, None, None, offsets, activation=activation, need_source=False, backend=backend
    )
    assert source.shape == (0, 4, 12)
    torch.testing.assert_close(pruned, full)


@pytest.mark.parametrize("backend", ["reference", "chunked"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_empty_histories_and_empty_batches(activation: Any, backend: Any) -> None:
    """Nobody to read gives zeros with zero gradients; no users give empty results."""
    tensors, offsets = xor_inputs([0, 0])
    for one in values_and_gradients(tensors, offsets, activation=activation, backend=backend):
        assert one.eq(0).all()
    tensors, offsets = xor_inputs([])
    out = attend(*tensors, offsets, activation=activation, backend=backend)
    assert [list(o.shape) for o in out] == [[0, 4, 12], [0, 8, 4, 12]]


def test_scale_is_one_over_the_root_of_the_width() -> None:
    """The default, and the paper's literal algorithm 2 with scale=1."""
    tensors, offsets = xor_inputs([6], qk=16)
    given = attend(*tensors, offsets, scale=0.25)
    torch.testing.assert_close(attend(*tensors, offsets), given)
    scaled = [tensors[0] * 4, tensors[1], tensors[2], tensors[3] * 4, *tensors[4:]]
    torch.testing.assert_close(attend(*scaled, offsets), attend(*tensors, offsets, scale=1.0))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_registered_as_torch_expects(activation: Any) -> None:
    """`torch.library.opcheck`: schema, fake tensors, autograd and dynamic tracing of all four custom ops."""
    (q_s, k_s, v_s, q_t, k_t, v_t), offsets = xor_inputs([0, 5, 70], dtype=torch.float32)
    for op, arguments in (
        (torch.ops.limerank.xor_pool, (q_t, k_s, v_s)),
        (torch.ops.limerank.xor_spread, (q_s, k_t, v_t)),
    ):
        leaves = tuple(a.clone().requires_grad_() for a in arguments)
        torch.library.opcheck(op.default, (*leaves, offsets, activation, 0.3, "chunked"))
        out, lse = op(*arguments, offsets, activation, 0.3, "chunked")
        backward = getattr(torch.ops.limerank, f"{op.__name__}_backward")
        torch.library.opcheck(
            backward.default, (torch.ones_like(out), *arguments, out, lse, offsets, activation, 0.3, "chunked")
        )


class _Layer(torch.nn.Module):
    def forward(
        self, q_s: Tensor, k_s: Tensor, v_s: Tensor, q_t: Tensor, k_t: Tensor, v_t: Tensor, offsets: Tensor
    ) -> tuple[Tensor, Tensor]:
        out_s, out_t = xor_attention(q_s * 2, k_s, v_s, q_t, k_t, v_t, offsets)
        return out_s + 1, out_t


def test_export_sees_through() -> None:
    """A program exported with dynamic rows and users holds the op and runs other sizes."""
    tensors, offsets = xor_inputs([3, 5], dtype=torch.float32)
    rows, users = torch.export.Dim("rows", min=2), torch.export.Dim("users", min=2)
    shapes = {name: {0: rows} for name in NAMES[:3]} | {name: {0: users} for name in NAMES[3:]}
    program = torch.export.export(
        _Layer(), (*tensors, offsets), dynamic_shapes={**shapes, "offsets": {0: users + 1}}, strict=False
    )
    targets = {str(node.target) for node in program.graph.nodes}
    assert {"limerank.xor_pool.default", "limerank.xor_spread.default"} <= targets
    others, other_offsets = xor_inputs([0, 9, 70], dtype=torch.float32, seed=5)
    for one, other in zip(program.module()(*others, other_offsets), _Layer()(*others, other_offsets), strict=True):
        torch.testing.assert_close(one, other)


def test_compile_sees_through() -> None:
    """One graph, no break, the same values and gradients, for changing sizes."""
    layer = _Layer()
    compiled: Any = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for lengths in ([3, 5], [0, 9, 70]):
        tensors, offsets = xor_inputs(lengths, dtype=torch.float32)
        leaves = [[t.clone().requires_grad_() for t in tensors] for _ in range(2)]
        results = [layer(*leaves[0], offsets), compiled(*leaves[1], offsets)]
        gradients = [
            torch.autograd.grad([o.square().sum() for o in out], own) for out, own in zip(results, leaves, strict=True)
        ]
        for one, other in zip([*results[0], *gradients[0]], [*results[1], *gradients[1]], strict=True):
            torch.testing.assert_close(one, other)


def _broken(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    tensors, offsets = xor_inputs([2, 3], links=4, heads=2, qk=8, value=6, dtype=torch.float32)
    arguments: dict[str, Any] = dict(zip(NAMES, tensors, strict=True), offsets=offsets)
    change(arguments)
    return arguments


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(k_s=a["k_s"][:, :, :7]), r"q_t \[2, 4, 2, 8\] does not fit k_s \[5, 2, 7\].*8 and 7"),
        (lambda a: a.update(v_s=a["v_s"][:4]), r"v_s \[4, 2, 6\] does not fit k_s \[5, 2, 8\]"),
        (lambda a: a.update(q_s=a["q_s"][:, :1]), r"q_s \[5, 1, 8\] does not fit k_s \[5, 2, 8\]"),
        (lambda a: a.update(k_t=a["k_t"][:, :3]), r"k_t \[2, 3, 2, 8\] does not fit q_t \[2, 4, 2, 8\]"),
        (lambda a: a.update(v_t=a["v_t"][..., :5]), r"v_t \[2, 4, 2, 5\] does not fit v_s \[5, 2, 6\]"),
        (lambda a: a.update(q_t=a["q_t"][0]), r"q_t must be \[B, l, H, a\], but has shape \[4, 2, 8\]"),
        (lambda a: a.update(k_s=a["k_s"].tolist()), r"k_s must be a tensor \[sum_n, H, a\], not list"),
        (lambda a: a.update(q_t=a["q_t"][:, :0]), r"at least one link.*q_t \[2, 0, 2, 8\]"),
        (lambda a: a.update(v_s=a["v_s"].double()), "v_s is torch.float64, but q_t is torch.float32"),
        (lambda a: a.update({n: a[n].int() for n in NAMES}), "q_t must hold floating numbers, not torch.int32"),
        (lambda a: a.update(k_t=a["k_t"].to("meta")), "k_t is on meta, but q_t on cpu"),
        (lambda a: a.update(offsets=a["offsets"].float()), "offsets must be int32 or int64, not torch.float32"),
        (lambda a: a.update(offsets=torch.tensor([0, 5])), r"offsets \[2\] must have one entry more.*2 \+ 1 = 3"),
        (lambda a: a.update(offsets=torch.tensor([0, 4, 3])), r"never descend, but offsets\[2\] = 3 follows 4"),
        (lambda a: a.update(offsets=torch.tensor([0, 2, 4])), "end at the number of source rows, 5, but end at 4"),
        (lambda a: a.update(offsets=torch.tensor([1, 2, 5])), "offsets must start at 0, but start at 1"),
        (lambda a: a.update(offsets=torch.tensor([[0, 2, 5]])), r"offsets must be \[B \+ 1\], but has shape \[1, 3\]"),
        (lambda a: a.update(q_s=None), "q_s may be None only with need_source=False"),
        (lambda a: a.update(scale=float("nan")), "scale must be a finite number, not nan"),
        (lambda a: a.update(activation="sillu"), "activation: no 'sillu'; did you mean 'silu'?"),
        (lambda a: a.update(backend="chunkd"), "no backend 'chunkd'; did you mean 'chunked'?"),
    ],
)
def test_bad_input_names_the_argument_and_both_shapes(change: Callable[[dict[str, Any]], object], message: str) -> None:
    """Every mistake is an error before anything is computed, for every backend that runs here."""
    arguments = _broken(change)
    for backend in {arguments.pop("backend", None)} - {None} or {"reference", "chunked", "auto"}:
        with pytest.raises(ArgumentError, match=message):
            attend(**arguments, backend=backend)


@pytest.mark.parametrize("backend", ["reference", "chunked"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", NAMES)
def test_numbers_that_are_none_are_refused(name: str, value: float, activation: Any, backend: Any) -> None:
    """NaN and infinity in any input: the error names it and says where."""
    arguments = _broken(lambda a: a[name].view(-1)[3].fill_(value))
    with pytest.raises(ArgumentError, match=rf"{name} \[.*holds 1 values that are not finite.*: {value}"):
        attend(**arguments, activation=activation, backend=backend)


def test_huge_numbers_are_not_refused() -> None:
    """A sum that overflows while every number is finite is no reason to complain."""
    tensors, offsets = xor_inputs([3], dtype=torch.float32)
    tensors[2].fill_(1e38)
    assert torch.isinf(tensors[2].sum())
    _, out = attend(*tensors, offsets, activation="softmax")
    torch.testing.assert_close(out, torch.full_like(out, 1e38))


def test_dispatch_explains_itself(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """argument > use_backend > environment > auto; a backend that cannot run is an error with the reason."""
    tensors, offsets = xor_inputs([3], dtype=torch.float32)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    monkeypatch.setattr(backends, "_logged", set())
    with caplog.at_level(logging.INFO, "limerank.ops.xor_attention"):
        attend(*tensors, offsets)
        attend(*tensors, offsets)
    assert [record.message for record in caplog.records] == [
        "xor_attention on cpu: backend chunked (pure torch, streams over the history, any device and floating dtype)"
    ]
    reports = {report.name: report for report in explain_backends()}
    assert reports["chunked"].chosen
    assert reports["chunked"].reason.endswith("chosen by auto")
    assert not reports["triton"].runs
    assert "TRITON_INTERPRET" in reports["triton"].reason or "pip install" in reports["triton"].reason
    monkeypatch.setenv(backends.VARIABLE, "triton")
    with pytest.raises(UnavailableError, match="'triton', chosen by the environment variable LIMERANK_XOR_BACKEND"):
        attend(*tensors, offsets)
    with use_backend("reference"):
        attend(*tensors, offsets)
        assert next(r for r in explain_backends() if r.chosen).name == "reference"
        with pytest.raises(UnavailableError, match="'triton', chosen by the argument"):
            attend(*tensors, offsets, backend="triton")
    monkeypatch.setenv(backends.VARIABLE, "chunky")
    with pytest.raises(ArgumentError, match="LIMERANK_XOR_BACKEND: no backend 'chunky'; did you mean 'chunked'?"):
        attend(*tensors, offsets)


def test_memory_grows_linearly() -> None:
    """Four times the history takes about four times the memory: nothing N x l per head, nothing N x N is kept."""

    def peak(sources: int) -> int:
        tensors, offsets = xor_inputs([sources], links=32, heads=4, qk=16, value=16, dtype=torch.float32)
        leaves = [t.requires_grad_() for t in tensors]
        saved: list[int] = []

        def note(tensor: Tensor) -> Tensor:
            saved.append(tensor.untyped_storage().nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            attend(*leaves, offsets, backend="chunked")
        return sum(saved)

    assert peak(8192) / peak(2048) < 4.2
    assert peak(8192) < 8192 * 4 * (16 * 5 + 3) * 4 * 1.2


def test_importing_ops_imports_no_engine() -> None:
    """Neither triton nor the compiler is loaded by `import limerank.ops`."""
    code = "import sys, limerank.ops; print([n for n in ('triton', 'torch._dynamo') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_learned_scale_is_refused() -> None:
    """It would lose its gradient inside the op."""
    tensors, offsets = xor_inputs([3])
    scale = torch.nn.Parameter(torch.tensor(0.5))
    for backend in ("reference", "chunked"):
        with pytest.raises(ArgumentError, match="scale must be a number, not Parameter; multiply the queries"):
            attend(*tensors, offsets, scale=scale, backend=backend)


def test_meta_tensors_have_shapes_only() -> None:
    """With and without gradients, as tools that count or shard models use them."""
    tensors, offsets = xor_inputs([3, 4])
    for gradients in (False, True):
        meta = [tensor.to("meta").requires_grad_(gradients) for tensor in tensors]
        out_s, out_t = attend(*meta, offsets.to("meta"))
        assert out_s.shape == (7, 4, 12)
        assert out_t.shape == (2, 8, 4, 12)


def test_heads_too_wide_for_triton() -> None:
    """`auto` never picks a backend that cannot take the heads; asking for it names the limit and the fix."""
    tensors, offsets = xor_inputs([3], qk=300, value=300, heads=1, dtype=torch.float32)
    with pytest.raises(UnavailableError, match="heads are 300 wide, its limit is 256; use backend='chunked'"):
        attend(*tensors, offsets, backend="triton")
    report = explain_backends(widest_head=300)
    assert "300 wide" in str(report)
    assert str(report).count("\n") == 2
    with pytest.raises(ArgumentError, match="dtype must be a floating type, not torch.int32"):
        explain_backends("cpu", torch.int32)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("scale", [-1.0, 0.0, 0.7])
@pytest.mark.parametrize("value", [8, 5])
def test_any_scale(activation: Any, scale: float, value: int) -> None:
    """Values and gradients with a scale that is not the default, for equal and unequal widths."""
    tensors, offsets = xor_inputs([3, 130, 0, 63, 8], value=value)
    expected = values_and_gradients(tensors, offsets, activation=activation, scale=scale, backend="reference")
    got = values_and_gradients(tensors, offsets, activation=activation, scale=scale, backend="chunked")
    for name, one, other in zip(RESULTS, got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11, msg=f"{name} differs")


def test_scores_far_below_zero_next_to_padding() -> None:
    """A padded row's score of 0 is far above a user's own of -200: its weight must not overflow in the gradient."""
    tensors, offsets = xor_inputs([2, 3], links=2, heads=1, qk=4, value=4, dtype=torch.float32)
    tensors[1].mul_(0.01).add_(10)
    tensors[3].fill_(-10)
    expected = values_and_gradients(tensors, offsets, activation="softmax", backend="reference")
    got = values_and_gradients(tensors, offsets, activation="softmax", backend="chunked")
    for name, one, other in zip(RESULTS, got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, msg=f"{name} differs")


@pytest.mark.parametrize("needed", NAMES)
def test_a_single_input_may_need_its_gradient(needed: str) -> None:
    """Whichever it is, the op records."""
    tensors, offsets = xor_inputs([4, 9])
    expected = values_and_gradients(tensors, offsets, backend="chunked")[2 + NAMES.index(needed)]
    leaf = tensors[NAMES.index(needed)].requires_grad_()
    out = attend(*tensors, offsets, backend="chunked")
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64) for o in out]
    used = [(o, w) for o, w in zip(out, weights, strict=True) if o.requires_grad]
    (gradient,) = torch.autograd.grad([o for o, _ in used], [leaf], [w for _, w in used])
    torch.testing.assert_close(gradient, expected)


def test_compile_and_trace_without_gradients() -> None:
    """A graph without gradients holds the op too, and computes other offsets."""
    tensors, offsets = xor_inputs([3, 5], dtype=torch.float32)
    other = torch.tensor([0, 6, 8])
    expected = _Layer()(*tensors, other)
    with torch.no_grad():
        compiled: Any = torch.compile(_Layer(), fullgraph=True, backend="aot_eager")
        compiled(*tensors, offsets)
        for one, theirs in zip(compiled(*tensors, other), expected, strict=True):
            torch.testing.assert_close(one, theirs)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_stays_outside(activation: Any, dtype: torch.dtype) -> None:
    """Under autocast the op computes what it computes without, and returns the dtype it was given."""
    tensors, offsets = xor_inputs([0, 300, 2500], dtype=dtype)
    expected = values_and_gradients(tensors, offsets, activation=activation, backend="chunked")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = values_and_gradients(tensors, offsets, activation=activation, backend="chunked")
    for name, one, other in zip(RESULTS, got, expected, strict=True):
        assert torch.equal(one, other), name
