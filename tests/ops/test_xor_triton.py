"""The Triton kernels, run by triton's interpreter in float32 and compiled for two architectures without a GPU.

Values and gradients obey the three-way rule: the kernels may be off by twice (gradients: five times) what the float32
reference is off, both measured against the float64 reference. Every buffer the backend allocates is poisoned with NaN.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from numeric import poisoned_buffers, rms
from torch import Tensor
from xor_inputs import RESULTS, values_and_gradients, xor_inputs

from limerank.errors import ArgumentError
from limerank.ops.xor_attention import triton_backend
from limerank.ops.xor_attention.reference import xor_attention_reference

KERNELS = "limerank.ops.xor_attention.triton_kernels"
EPS = torch.finfo(torch.float32).eps
EDGES = (0, 1, 2, 15, 16, 17, 63, 64, 65)
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True, scope="module")
def interpreter() -> Iterator[None]:
    """Kernels are interpreted or compiled for good when their module is imported: import a copy for these tests."""
    if importlib.util.find_spec("triton") is None:
        missing = "triton is not installed: pip install 'limerank[triton]'"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    package = importlib.import_module("limerank.ops.xor_attention")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        # both set only to be restored afterwards
        patch.setitem(sys.modules, KERNELS, package)
        patch.setattr(package, "triton_kernels", None, raising=False)
        del sys.modules[KERNELS]
        importlib.import_module(KERNELS)
        yield


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory that was not written yet reads as NaN."""
    with poisoned_buffers(monkeypatch):
        yield


class Case(NamedTuple):
    """A batch to attend over, and how."""

    lengths: Sequence[int]
    links: int
    heads: int
    a: int
    v: int
    activation: str
    contiguous: bool = True

    @property
    def bounds(self) -> list[int]:
        return [sum(self.lengths[:user]) for user in range(len(self.lengths) + 1)]

    @property
    def options(self) -> dict[str, Any]:
        return {"activation": self.activation, "scale": self.a**-0.5}

    def tensors(self) -> tuple[Tensor, ...]:
        """q_s, k_s, v_s, q_t, k_t, v_t and the gradients of out_s and out_t."""
        generator = torch.Generator().manual_seed(sum(self.lengths) + self.links)
        rows, links = (sum(self.lengths),), (len(self.lengths), self.links)
        sides = ((rows, self.a), (rows, self.a), (rows, self.v), (links, self.a), (links, self.a), (links, self.v))
        return tuple(self._strided(generator, *side) for side in (*sides, (rows, self.v), (links, self.v)))

    def _strided(self, generator: torch.Generator, rows: tuple[int, ...], width: int) -> Tensor:
        if self.contiguous:
            return torch.randn(*rows, self.heads, width, generator=generator)
        heads_first = torch.randn(self.heads, *rows, 2 * width + 1, generator=generator)
        return heads_first.movedim(0, -2)[..., 1::2]


NAMES = ("out_s", "out_t", "d_q_s", "d_k_s", "d_v_s", "d_q_t", "d_k_t", "d_v_t")


def by_kernels(tensors: tuple[Tensor, ...], bounds: list[int], **options: Any) -> dict[str, Tensor]:
    """Outputs, gradients and lse of both directions."""
    q_s, k_s, v_s, q_t, k_t, v_t, d_out_s, d_out_t = tensors
    out_t, lse_t = triton_backend.pool_forward(q_t, k_s, v_s, bounds, **options)
    out_s, lse_s = triton_backend.spread_forward(q_s, k_t, v_t, bounds, **options)
    d_q_t, d_k_s, d_v_s = triton_backend.pool_backward(d_out_t, q_t, k_s, v_s, out_t, lse_t, bounds, **options)
    d_q_s, d_k_t, d_v_t = triton_backend.spread_backward(d_out_s, q_s, k_t, v_t, out_s, lse_s, bounds, **options)
    values = (out_s, out_t, d_q_s, d_k_s, d_v_s, d_q_t, d_k_t, d_v_t)
    return dict(zip(NAMES, values, strict=True)) | {"lse_s": lse_s, "lse_t": lse_t}


def by_reference(
    tensors: tuple[Tensor, ...], bounds: list[int], dtype: torch.dtype, **options: Any
) -> dict[str, Tensor]:
    """The same by autograd in the given precision, without lse."""
    *inputs, d_out_s, d_out_t = (tensor.to(dtype, copy=True) for tensor in tensors)
    leaves = [tensor.requires_grad_() for tensor in inputs]
    q_s, k_s, v_s, q_t, k_t, v_t = leaves
    outputs = xor_attention_reference(q_s, k_s, v_s, q_t, k_t, v_t, bounds, **options)
    gradients = torch.autograd.grad(outputs, leaves, (d_out_s, d_out_t))
    return dict(zip(NAMES, (*(output.detach() for output in outputs), *gradients), strict=True))


def check_against_reference(case: Case) -> dict[str, Tensor]:
    """The three-way rule for every output and gradient."""
    tensors, bounds = case.tensors(), case.bounds
    got = by_kernels(tensors, bounds, **case.options)
    single = by_reference(tensors, bounds, torch.float32, **case.options)
    truth = by_reference(tensors, bounds, torch.float64, **case.options)
    for name in NAMES:
        assert got[name].shape == truth[name].shape, name
        assert got[name].dtype == torch.float32, name
        assert got[name].is_contiguous(), name
        allowed = (2 if name.startswith("out") else 5) * rms(single[name] - truth[name]) + 4 * EPS * rms(truth[name])
        assert rms(got[name] - truth[name]) <= allowed, name
    return got


@pytest.mark.parametrize(
    "case",
    [
        Case(EDGES, 17, 4, 8, 12, "silu", contiguous=False),
        Case(EDGES, 16, 1, 24, 16, "softmax", contiguous=False),
        Case((3, 1100), 8, 1, 16, 8, "silu"),
        Case((1100, 0, 5), 2, 1, 8, 16, "softmax"),
        Case((40, 9), 1, 1, 8, 8, "silu"),
        Case((20, 33), 32, 4, 16, 8, "softmax"),
        Case((34,), 40, 1, 5, 3, "silu"),
        Case((2, 0, 1), 256, 1, 8, 8, "softmax"),
        Case((2, 1), 256, 1, 8, 8, "silu"),
    ],
    ids=lambda case: f"{case.activation}-l{case.links}-H{case.heads}-n{max(case.lengths)}",
)
def test_values_and_gradients_match_the_reference(case: Case) -> None:
    """Lengths around every block edge, several pieces, several and ragged blocks of links, a != v, any strides."""
    check_against_reference(case)


@pytest.mark.parametrize("activation", ["silu", "softmax"])
def test_the_public_op_runs_the_kernels(activation: str) -> None:
    """`xor_attention(backend="triton")` with its checks, its custom ops and their gradients."""
    tensors, offsets = xor_inputs([3, 0, 40], links=3, heads=2, qk=5, value=4, dtype=torch.float32)
    expected = values_and_gradients(tensors, offsets, activation=activation, backend="reference")
    got = values_and_gradients(tensors, offsets, activation=activation, backend="triton")
    for name, one, other in zip(RESULTS, got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=f"{name} differs")


def test_a_long_history_is_cut_into_pieces_and_a_short_one_is_not() -> None:
    """The cases above with 1100 rows do need several parts per user."""
    piece = triton_backend.plan(16, 8, 8, torch.float32).piece
    work = triton_backend.cut([0, 3, 1103, 1103], piece, None, CPU)
    assert work.bounds.tolist() == [0, 1, 4, 4]
    assert work.items.tolist() == [[0, 0, 3, 3], [1, 3, 515, 1100], [1, 515, 1027, 1100], [1, 1027, 1103, 1100]]


def test_lse_is_the_log_of_the_summed_exponentials() -> None:
    case = Case((0, 5, 600), 3, 2, 8, 8, "softmax")
    q_s, k_s, _, q_t, k_t, *_ = tensors = case.tensors()
    got = by_kernels(tensors, case.bounds, **case.options)
    assert (got["lse_t"][0] == 0).all()
    scale = case.options["scale"]
    for user, (start, stop) in enumerate(pairwise(case.bounds)):
        spread = torch.einsum("nha,lha->nhl", q_s[start:stop], k_t[user]) * scale
        torch.testing.assert_close(got["lse_s"][start:stop], spread.logsumexp(-1))
        if stop > start:
            pool = torch.einsum("lha,nha->lhn", q_t[user], k_s[start:stop]) * scale
            torch.testing.assert_close(got["lse_t"][user], pool.logsumexp(-1))


def test_softmax_over_one_link_copies_its_value_and_has_no_slope() -> None:
    """The reference's slope is exactly 0 here; the kernels take the difference of two rounded sums."""
    case = Case((7, 2), 1, 1, 8, 8, "softmax")
    tensors = case.tensors()
    got = by_kernels(tensors, case.bounds, **case.options)
    assert torch.equal(got["out_s"], tensors[5][:, 0].repeat_interleave(torch.tensor([7, 2]), 0))
    for name in ("d_q_s", "d_k_t"):
        assert got[name].abs().max() < 1e-5, name


@pytest.mark.parametrize("activation", ["silu", "softmax"])
@pytest.mark.parametrize("lengths", [(), (0, 0)], ids=["no users", "no rows"])
def test_nothing_to_read_gives_zeros(lengths: tuple[int, ...], activation: str) -> None:
    case = Case(lengths, 3, 2, 4, 5, activation)
    for name, tensor in by_kernels(case.tensors(), case.bounds, **case.options).items():
        assert torch.equal(tensor, torch.zeros_like(tensor)), name


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
@pytest.mark.parametrize("activation", ["silu", "softmax"])
def test_extreme_scores_stay_finite(activation: str) -> None:
    """exp of minus a score overflows to infinity for SiLU, which is right: the weight is 0."""
    case = Case((20, 600), 2, 1, 8, 8, activation)
    options = {"activation": activation, "scale": 60.0}
    tensors = case.tensors()
    truth = by_reference(tensors, case.bounds, torch.float64, **options)
    got = by_kernels(tensors, case.bounds, **options)
    for name in NAMES:
        assert rms(got[name] - truth[name]) <= 1e-3 * rms(truth[name]), name


@pytest.mark.parametrize("activation", ["silu", "softmax"])
def test_same_bits_in_two_runs_and_in_any_company(activation: str) -> None:
    """No atomics, and no sum that depends on who else is in the batch."""
    case = Case((17, 0, 600, 5), 3, 1, 8, 8, activation)
    tensors, bounds = case.tensors(), case.bounds
    together = by_kernels(tensors, bounds, **case.options)
    again = by_kernels(tensors, bounds, **case.options)
    for name, tensor in together.items():
        assert torch.equal(tensor, again[name]), name
    for user, (start, stop) in enumerate(pairwise(bounds)):
        rows, links = slice(start, stop), slice(user, user + 1)
        own = tuple(tensor[rows if tensor.dim() == 3 else links] for tensor in tensors)
        alone = by_kernels(own, [0, stop - start], **case.options)
        for name in NAMES:
            assert torch.equal(alone[name], together[name][rows if name.endswith("_s") else links]), (user, name)


def test_heads_too_wide_are_refused_with_both_widths() -> None:
    case = Case((2,), 1, 1, 300, 8, "silu")
    with pytest.raises(ArgumentError, match="up to 256 wide, but a = 300 and v = 8"):
        by_kernels(case.tensors(), case.bounds, **case.options)


def test_why_not_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert triton_backend.why_not(CPU, torch.float32) is None
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert "float32 only" in str(triton_backend.why_not(CPU, dtype))
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "set TRITON_INTERPRET=1" in str(triton_backend.why_not(CPU, torch.float32))


def test_why_not_with_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    kernels = importlib.import_module(KERNELS)
    monkeypatch.setattr(kernels, "attend", triton.JITFunction(kernels.attend.fn))
    assert "set after" in str(triton_backend.why_not(CPU, torch.float32))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in str(triton_backend.why_not(CUDA, torch.float32))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "8.0 or newer; cuda:0 has 7.5" in str(triton_backend.why_not(CUDA, torch.float32))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert triton_backend.why_not(CUDA, torch.bfloat16) is None
    assert "not torch.float64" in str(triton_backend.why_not(CUDA, torch.float64))


@pytest.mark.parametrize("problem", [ImportError("no module"), OSError("libtriton.so: undefined symbol")], ids=repr)
def test_why_not_without_a_working_triton(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    """Whatever a broken wheel raises becomes a reason, not a crash."""

    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "triton":
                raise problem

    monkeypatch.delitem(sys.modules, "triton")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    reason = str(triton_backend.why_not(CPU, torch.float32))
    assert str(problem) in reason
    assert "pip install 'limerank[triton]'" in reason


def test_every_kernel_compiles_for_two_architectures(tmp_path: Path) -> None:
    """In a process of its own, because this one interprets; the compiled kernels go to a temporary folder."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("triton_compile.py")), "64", "64", "32"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    cases = [("float16", "silu"), ("float16", "softmax"), ("bfloat16", "silu"), ("float32", "softmax")]
    work = [
        (kernel, side) for kernel in ("attend", "grad_queries", "grad_keys_and_values") for side in ("rows", "links")
    ]
    adding = {"silu": ["sum_parts"], "softmax": ["sum_parts", "merge_parts"]}
    assert {(row["kernel"], row["side"], row["arch"], row["dtype"], row["activation"]) for row in rows} == {
        (kernel, side, arch, dtype, activation)
        for arch in (80, 90)
        for dtype, activation in cases
        for kernel, side in [*work, *((kernel, "links") for kernel in adding[activation])]
    }
    for row in rows:
        assert row["cubin"] > 0, row
        assert row["shared"] <= {80: 163, 90: 227}[row["arch"]] * 1024, row
