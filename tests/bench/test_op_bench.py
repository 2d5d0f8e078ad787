"""The ops bench compares equal results and reports every figure it promises; it asserts no time."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from limerank.bench import ops as op_bench
from limerank.bench.op_contestants import Group, XorCase, XorShape, candidate_group, pool_group, stack_group
from limerank.bench.ops import OpBench, peak_growth, run_op_bench
from limerank.progress import Progress


@pytest.fixture(scope="module")
def result() -> OpBench:
    return run_op_bench(Progress(quiet=True), threads=[1], repeats=1, flex=False, small=True)


def test_rows_carry_what_the_issue_asks(result: OpBench) -> None:
    """op, backend, shape, ms, gflops, fraction_of_gemm_peak, peak_bytes; peaks of the same rounds; ratios."""
    ops = {row.op.split()[0] for row in result.rows}
    assert ops == {"xor_attention", "xor_stack", "link_pool", "candidate"}
    for row in result.rows:
        assert row.ms > 0
        assert row.gflops > 0
        assert row.fraction_of_gemm_peak > 0
        assert row.threads == 1
        assert row.shape
    backends = {row.backend for row in result.rows}
    assert {"reference", "chunked", "sdpa, explicit mask", "sdpa, two calls", "append one event"} <= backends
    assert {"folded fp32", "folded fp16", "folded u8", "plain fp32"} <= backends
    assert [peak.threads for peak in result.peaks] == [1]
    assert {one.other for one in result.ratios} >= {"reference", "sdpa, explicit mask", "plain modules"}
    assert result.notes == ["flex attention was left out"]
    assert [one.history for one in result.memory] == [64, 128]


def test_threads_are_set_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every count is measured with its own threads, and the caller's number is back afterwards."""
    seen: list[int] = []

    def no_groups(_notes: list[str], *, flex: bool, small: bool) -> list[Group]:
        seen.append(torch.get_num_threads())
        return [stack_group(history=8, links=2, width=8)]

    monkeypatch.setattr(op_bench, "groups", no_groups)
    before = torch.get_num_threads()
    run_op_bench(Progress(quiet=True), threads=[2, 1], repeats=1, small=True)
    assert seen == [2, 1]
    assert torch.get_num_threads() == before


def test_xor_contestants_compute_the_same() -> None:
    """All softmax contestants, and both SiLU backends with their gradients, agree on one case."""
    shape = XorShape(40, links=4, width=16, heads=2, users=3)
    case = XorCase(shape)
    ours: Any = case.ours("chunked", "softmax").run()
    reference: Any = case.ours("reference", "softmax").run()
    twice: Any = case.sdpa_twice().run()
    masked: Any = case.sdpa_masked().run()
    as_rows = [_rows(twice[0]), twice[1].transpose(1, 2)]
    from_mask = [_rows(masked[:, :, :40]), masked[:, :, 40:].transpose(1, 2)]
    for others in (reference, as_rows, from_mask):
        for one, other in zip(ours, others, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    gradients: Any = [case.ours(backend, "silu", backward=True).run() for backend in ("chunked", "reference")]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def _rows(per_user: Tensor) -> Tensor:
    """[B, H, n, v] to [B * n, H, v]."""
    return per_user.transpose(1, 2).flatten(0, 1)


def test_other_contestants_compute_the_same() -> None:
    """Fused and plain stacks, absorbed and projected pooling, and every order and precision of scoring."""
    fused, plain = (one.run() for one in stack_group(history=70, links=4, width=16).contestants)
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)
    absorbed, projected, _ = (one.run() for one in pool_group(history=70, links=4, width=16).contestants)
    assert isinstance(absorbed, Tensor)
    assert isinstance(projected, Tensor)
    torch.testing.assert_close(absorbed.transpose(0, 1), projected[0], rtol=1e-4, atol=1e-5)
    group = candidate_group(candidates=300, product=16, width=16, hidden=8)
    results: dict[str, Any] = {one.backend: one.run() for one in group.contestants}
    exact = results["folded fp32"]
    torch.testing.assert_close(results["plain fp32"], exact, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results["folded, unblocked"], exact, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results["folded fp16"], exact, rtol=0, atol=0.02)
    torch.testing.assert_close(results["folded u8"], exact, rtol=0, atol=0.1)
    best = results["folded fp32, top 100"]
    assert best.positions.tolist() == exact[:, 0].argsort(descending=True, stable=True)[:100].tolist()


def test_peak_memory_sees_a_buffer_that_is_gone_afterwards() -> None:
    """64 MB that live only inside the call are reported, doing nothing is not; None where the system does not tell."""
    used = peak_growth(lambda: torch.ones(16 * 2**20).sum())
    idle = peak_growth(lambda: None)
    if used is None or idle is None:
        assert not os.access("/proc/self/clear_refs", os.W_OK)
        return
    assert 60e6 < used < 90e6
    assert idle < 8e6
